"""Incident 2 (hpcaitech/ColossalAI #6108): Llama 3.1 70B at TP 8, its embedding saved as [16064, 8192].

Reproduced on ranks that hold padded shards, and refused by every door; notebook 11 inspects it, puts it right
and proves it byte for byte. The vocabulary is the true one; the rest of the model is narrow.
"""

import json
import os
import re
import shlex
from pathlib import Path

import pytest
import torch

import llamapar as lp
from llamapar.checkpoint import CheckpointError
from llamapar.cli import main as cli
from llamapar.describe.modelfile import config_json
from llamapar.programs.saving import gather_then_unpad, unpad_then_gather

pytestmark = pytest.mark.usefixtures("no_ranks_left")
BIG = lp.model("llama3.1-70b")
MODEL = BIG.replace(dim=16, n_heads=16, head_dim=2, ffn_dim=48, n_layers=2)
DEFAULT = lp.Padding(64, per_tp=True)
EMBEDDING = "model.embed_tokens.weight"
FOUND = (
    f"{EMBEDDING} is [16064, 16] in pytorch_model.bin, [128256, 16] is needed: it is one of 8 shards of a "
    "vocabulary padded to 128512 = 64·8·251, not the whole embedding"
)


@pytest.fixture(scope="module")
def weights():
    random = torch.Generator().manual_seed(0)
    return {p.hf_name: torch.randn(p.shape, generator=random).bfloat16() for p in MODEL.parameters()}


@pytest.fixture
def trained(tmp_path, weights):
    return save(tmp_path / "trained", weights)


def save(folder, tensors):
    folder.mkdir()
    torch.save(tensors, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(config_json(MODEL)))
    return folder


def saved(program, weights, tp, rule=DEFAULT, **options):
    """What every rank would write, by rank."""
    run = lp.run(
        program,
        MODEL,
        {"tp": tp},
        padding=rule,
        kv_replication=tp > MODEL.n_kv_heads,
        dtype="bfloat16",
        inputs={"tok_embeddings": weights[EMBEDDING]},
        backward=False,
        device="cpu",
        **options,
    )
    assert run.errors == {}
    assert list(run.outputs) == list(range(tp))
    return [run.outputs[rank]["saved"] for rank in range(tp)]


# -- reproduce it --------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["local", pytest.param("processes", marks=pytest.mark.soak)])
def test_each_rank_writes_its_own_shard_and_the_right_order_every_row(weights, engine):
    written = saved(unpad_then_gather, weights, 8, engine=engine)
    assert {tuple(t.shape) for t in written} == {(16064, 16)}
    padded = torch.cat([weights[EMBEDDING], torch.zeros(256, 16, dtype=torch.bfloat16)])
    assert torch.cat(written).equal(padded)  # pads and all; the 256 dead rows are rank 7's
    assert not written[7][-256:].any()
    for whole in saved(gather_then_unpad, weights, 8, engine=engine):
        assert whole.equal(weights[EMBEDDING])


# -- see it, and let nothing be made of it -----------------------------------------------------------


@pytest.fixture
def wrong(tmp_path, weights):
    """The folder that the wrong order wrote: rank 0 writes, as in the incident."""
    rank0 = saved(unpad_then_gather, weights, 8)[0]
    return save(tmp_path / "wrong", weights | {EMBEDDING: rank0})


def test_how_it_shows_itself_in_a_notebook(wrong, trained):
    page = lp.checkpoint.inspect(wrong)._repr_html_()
    assert page.startswith("<p><b>wrong: torch, whole; 21 tensors, ")
    assert page.endswith(f"</table><p>{FOUND}</p>")
    assert '<td style="text-align:left">[16064, 16]</td>' in page
    assert repr(lp.checkpoint.opened(trained)) == f"{trained}: torch, 1 file, 21 tensors, 8,223,904 bytes"
    faults = lp.checkpoint.Verification(Path("many"), (), tuple(f"<{i}>" for i in range(40)))
    assert str(faults).splitlines()[2:] == [*(f"<{i}>" for i in range(32)), "… and 8 more"]
    assert "<p>&lt;0&gt;<br>&lt;1&gt;<br>" in faults._repr_html_()
    assert faults.as_dict()["problems"][-1] == "<39>"


def test_everything_refuses_it(wrong, trained, tmp_path):
    before = (wrong / "pytorch_model.bin").read_bytes()
    for make in (lp.checkpoint.gather, lp.checkpoint.shard, lp.checkpoint.reshard):
        with pytest.raises(CheckpointError, match="does not agree with its config: ") as refused:
            make(wrong, tmp_path / "new")
        assert str(refused.value) == (
            f"{wrong} does not agree with its config: {FOUND}\n"
            "  try  the config of the model that was saved, or llamapar checkpoint inspect"
        )
    checked = lp.checkpoint.verify(wrong)
    assert checked.problems == (FOUND,)
    assert not lp.checkpoint.verify(wrong, against=trained).ok
    with pytest.raises(CheckpointError, match=r"embed_tokens.weight is \[16064, 16\]"):
        lp.checkpoint.verify(trained, against=wrong)
    assert sorted(os.listdir(tmp_path)) == ["trained", "wrong"]
    assert (wrong / "pytorch_model.bin").read_bytes() == before


# -- the page on checkpoints -------------------------------------------------------------------------


def test_the_page_on_checkpoints(trained, wrong, tmp_path, capsys, monkeypatch):
    wrong.rename(tmp_path / "saved")
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).resolve().parent.parent / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```shell-session\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    commands = re.findall(r"^\$ llamapar (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    assert len(commands) == 3
    for command, output in commands:
        status = cli.main(shlex.split(command))
        out, err = capsys.readouterr()
        assert err + out == output
        assert status == ("is needed" in output)
