"""A run's own files in both panels: what they say is taken with its source, and is data."""

import pytest

import llamapar as lp
from wire import receive

TOML = """\
[model]
name = "llama3"
flavor = "70B"
[training]
seq_len = 8192
local_batch_size = 2
[parallelism]
tensor_parallel_degree = 8
pipeline_parallel_degree = 2
data_parallel_shard_degree = -1
"""
LAUNCH = "torchrun --nnodes 8 --nproc_per_node 8 train.py --job.config_file train.toml"
FILES = [["train.toml", TOML], ["run.sh", LAUNCH]]


def said(panel, kind):
    return [text for what, text in panel.told["said"] if what == kind]


def test_files_fill_model_layout_and_job():
    panel = lp.explorer(micro_batches=7, kv_replication=True, zero=1)
    assert receive(panel, kind="settings", files=FILES) is None
    assert panel.job.model == lp.PRESETS["llama3-70b"]
    assert panel.payload["values"]["preset"] == "llama3-70b"
    assert panel.job.layout.world == panel.payload["values"]["gpus"] == 64
    assert panel.report.judge.name == "torchtitan"
    assert panel.payload["values"]["kv_replication"] is False
    assert ["tp", "8", "train.toml:8 parallelism.tensor_parallel_degree"] in panel.told["rows"]
    assert said(panel, "unknown") == []
    panel.undo()
    assert panel.payload["values"]["micro_batches"] == 7


def test_padding_is_the_frameworks_own_where_the_files_say_the_same():
    panel = lp.explorer()
    for multiple, held in (("128", "own"), ("64", "64*tp")):
        flags = f"--tensor-model-parallel-size 8 --make-vocab-size-divisible-by {multiple}"
        command = f"torchrun --nnodes 8 --nproc_per_node 8 pretrain_gpt.py {flags} --num-layers 80"
        assert receive(panel, kind="settings", files=[["run.sh", command]]) is None
        assert panel.payload["values"]["padding"] == held


def test_what_is_not_known_is_left_open_and_told():
    panel = lp.explorer()
    assert receive(panel, kind="settings", files=[["", TOML]]) is None  # pasted text
    assert panel.payload["values"]["dp"] is None
    assert panel.payload["problem"]["what"].startswith("dp is empty")
    assert "dp: GPUs / (tp·cp·pp = 8·1·2)" in said(panel, "unknown")


def test_a_contradiction_is_told():
    panel = lp.explorer()
    odd = TOML.replace("tensor_parallel_degree = 8", "tensor_parallel_degree = 5")
    receive(panel, kind="settings", files=[["train.toml", odd], FILES[1]])
    assert any("gpus: " in text and "64" in text for text in said(panel, "contradiction"))


NONE = [None, 7, "x", [], [["a.toml"]], [["a.toml", 1]], [["a.toml", "[[["]]]
NONE += [[["x.md", "<img src=x>"]], [["a.yaml", "a" * 5_000_000]], [["a.json", "[" * 100_000]]]
NONE += [[[f"{i}.toml", "a=1"] for i in range(40)]]


@pytest.mark.parametrize("opened", [lp.explorer, lp.clinic])
def test_files_that_are_none_change_nothing(opened):
    panel = opened()
    before = panel.payload["values"]
    for files in NONE:
        assert receive(panel, kind="settings", files=files) is not None, str(files)[:20]
        assert panel.payload["values"] == before
        assert panel.told == {}


def test_the_clinic_explains_with_the_files_and_opens_the_explorer_on_them():
    visit = lp.clinic("n_kv_heads must be divisible by the tensor parallel degree")
    receive(visit, kind="settings", files=FILES)
    fields = visit.payload["values"]
    assert [fields[n] for n in ("model", "tp", "pp", "framework")] == ["llama3-70b", 8, 2, "torchtitan"]
    assert visit.payload["origins"]["tp"] == "your files"
    assert visit.explanation.known.model == lp.PRESETS["llama3-70b"]
    visit.set(tp=4)  # what the reader types wins
    assert (visit.payload["values"]["tp"], visit.payload["origins"]["tp"]) == (4, "yours")
    receive(visit, kind="open")
    assert visit.explorer is not None
    assert visit.explorer.job.layout.tp == 8
    assert visit.explorer.told == visit.told


def test_a_clinic_without_files_has_nothing_to_open():
    told = receive(lp.clinic(), kind="open")
    assert told is not None
    assert told["what"] == "no files were read"
