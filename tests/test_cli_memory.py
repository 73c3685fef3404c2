"""`llamapar memory` and `llamapar loading`: published numbers through the shell, statuses, refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest

import llamapar as lp
from llamapar.cli.plain_commands import PLAIN
from llamapar.count import ACCOUNTINGS
from llamapar.count.in_flight import SCHEDULES
from llamapar.count.saved import RECOMPUTE
from llamapar.describe.hardware import HARDWARE
from llamapar.describe.options import OPTIONS
from llamapar.nodes.loading import BLOCKS

MIB = 2**20
SPLIT = str(lp.FRAMEWORKS["colossalai"].layer_split).replace(" ", "-")
JOB = (
    "memory --model llama3.1-405b --tp 8 --pp 16 --dp 128 --seq-len 8192 --micro-batch 1 --global-batch 2048"
)
LAYOUT = lp.Layout(tp=8, pp=16, dp=128)
STEP = {"seq_len": 8192, "micro_batch": 1, "global_batch": 2048}


# -- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "mib"),
    [
        ("--model llama3.1-405b --tp 8 --pp 16 --dp 128 --global-batch 2048", 82524.80),
        ("--model llama3.1-8b --dp 8", 57436.90 + 36936.06),
        ("--model llama3.1-70b --tp 8 --pp 4 --dp 2", 46507.80),
    ],
)
def test_megatrons_published_totals(run: Any, layout: str, mib: float) -> None:
    status, out, err = run(f"memory {layout} --seq-len 8192 --micro-batch 1 --accounting megatron --json")
    told = json.loads(out)
    assert (list(told)[:3], err) == (["stages", "worst", "fits"], "")
    assert told["worst"]["total_bytes"] / MIB == pytest.approx(mib, abs=0.01)
    assert sum(told["worst"]["terms"].values()) == told["worst"]["total_bytes"]
    assert (status, told["fits"]) == ((0, True) if mib < 81559 else (1, False))


def test_the_exact_account_has_every_stage(run: Any) -> None:
    status, out, err = run(f"{JOB} --json")
    told = json.loads(out)
    assert (status, err) == (1, "")
    assert told == lp.memory("llama3.1-405b", LAYOUT, **STEP).as_dict()
    assert [stage["stage"] for stage in told["stages"]] == list(range(16))
    assert {tuple(stage) for stage in told["stages"]} == {("stage", "total_bytes", "terms")}
    assert told["worst"] == max(told["stages"], key=lambda stage: stage["total_bytes"])


@pytest.mark.parametrize(("gpu", "status"), [("h100-80gb", 1), ("h200-141gb", 0)])
def test_text_is_the_record_and_the_gpu_decides(run: Any, gpu: str, status: int) -> None:
    found = lp.memory("llama3.1-405b", LAYOUT, **STEP, gpu=gpu, framework="torchtitan", recompute="selective")
    assert run(f"{JOB} --gpu {gpu} --framework torchtitan --recompute selective") == (
        status,
        f"{found}\n",
        "",
    )


def test_the_defaults_are_the_documented_ones(run: Any) -> None:
    plain = run(f"{JOB} --json")[1]
    named = "--zero 1 --schedule 1f1b --accounting exact"
    assert run(f"{JOB} {named} --gpu h100-80gb --json")[1] == plain
    for other in (
        "--zero 3",
        "--no-sequence-parallel",
        "--sequence-parallel",
        "--recompute full",
        "--accounting korthikanti",
    ):
        assert run(f"{JOB} {other} --json")[1] != plain, other


def test_every_option_of_memory_reaches_the_library(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def stop(*args: Any, **options: Any) -> None:
        seen.extend((args, options))
        raise lp.LlamaparError("stop")

    monkeypatch.setattr("llamapar.rules.memory_rule.memory_of", stop)
    run(
        "memory --model tiny --tp 2 --cp 2 --pp 2 --dp 4 --dp-replicate 2 --virtual-stages 2 --zero 3 "
        "--no-sequence-parallel --kv-replication --seq-len 512 --micro-batch 2 --global-batch 16 "
        "--recompute none --schedule gpipe --accounting ultrascale --gpu a100-40gb --padding 128*tp "
        "--layer-split remainder-first --cp-method ring --loss torch --no-master-weights --framework nanotron"
    )
    (job, judge), options = seen
    layout = lp.Layout(2, 2, 2, 4, dp_replicate=2, sequence_parallel=False, virtual_stages=2, zero=3)
    assert job == lp.Job.of(
        "tiny",
        layout,
        seq_len=512,
        micro_batch=2,
        global_batch=16,
        kv_replication=True,
        padding=lp.Padding(128, per_tp=True),
        layer_split="remainder first",
        recompute="none",
        schedule="gpipe",
        gpu="a100-40gb",
    )
    how = {"accounting": "ultrascale", "cp_method": "ring", "loss": "torch"}
    assert (judge, options) == (lp.FRAMEWORKS["nanotron"], {**how, "master_weights": False})


def test_memory_takes_what_check_takes_and_counts_by_the_framework(run: Any) -> None:
    line = "memory --model llama3.1-8b --tp 8 --pp 2 --dp 2 --seq-len 4096 --zero 2 --json"
    facts = "--gpus 32 --gpus-per-node 4 --batch-tokens 1M --quant-group 32 --order megatron-lm"
    assert run(f"{line} {facts}")[1] == run(line)[1]
    padded, told, plain = (
        [stage["terms"]["parameters"] for stage in json.loads(run(f"{line} {facts}")[1])["stages"]]
        for facts in ("--framework colossalai", f"--padding colossalai --layer-split {SPLIT}", "")
    )
    assert padded == told != plain
    assert (
        run(f"{line} --micro-batch 1 --micro-batches 8")[1]
        == (run(f"{line} --micro-batch 1 --global-batch 16")[1])
    )


def test_no_padding_can_be_said(run: Any) -> None:
    line = "memory --model llama3-8b --tp 8 --seq-len 512 --json"
    line += " --framework megatron-lm"
    plain = run(line.replace("megatron-lm", "megatron-lm --padding none"))
    assert run(f"{line} --padding none") == plain != run(line)
    assert run(f"{line} --padding 1024*tp")[1] != run(line)[1]


# -- load ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "size"),
    [
        ("llama3.1-8b", 6323781632),
        ("llama3.1-70b", 43302682624),
        ("llama3.1-405b", 235530158080),
        ("llama3.1-405b-mp16", 237908328448),
    ],
)
def test_published_sizes_of_q40(run: Any, model: str, size: int) -> None:
    status, out, err = run(f"loading --model {model} --format q40 --nodes 4 --memory-gib 64 --json")
    told = json.loads(out)
    assert (status, err, told["file_bytes"]) == (0, "", size)
    assert list(told) == ["file_bytes", "nodes", "fits", "smallest_nodes", "overflows"]
    assert [node["role"] for node in told["nodes"]] == ["root", "worker", "worker", "worker"]


def test_the_incident(run: Any) -> None:
    line = "loading --model llama3.1-405b-mp16 --format q40 --nodes 4 --memory-gib 64"
    told = json.loads(run(f"{line} --json")[1])
    assert f"{told['nodes'][0]['weight_bytes'] / 2**30:.2f}" == "61.28"
    assert (told["fits"], told["smallest_nodes"]) == (True, 4)
    embedding = told["overflows"][0]
    assert (embedding["value"], embedding["uint32"]) == (8405385216, 4110417920)
    status, text, _ = run(line)
    assert (status, text.splitlines()[0]) == (
        0,
        str(lp.loading("llama3.1-405b-mp16", nodes=4)).splitlines()[0],
    )
    assert "tok_embeddings.weight: 128256 × 16384 × 4 = 8,405,385,216; int32 holds" in text
    assert ", uint32 holds 4,110,417,920\n" in text


@pytest.mark.parametrize(
    ("options", "status", "smallest"),
    [
        ("--nodes 2 --memory-gib 64", 1, 4),
        ("--nodes 4 --memory-gib 16", 1, None),
        ("--nodes 2 --memory-gib 128", 0, 2),
        ("--nodes 4 --memory-gib 64 --seq-len 131072", 1, 8),
    ],
)
def test_whether_it_fits(run: Any, options: str, status: int, smallest: int | None) -> None:
    found, out, _ = run(f"loading --model llama3.1-405b {options} --json")
    told = json.loads(out)
    assert (found, told["fits"], told["smallest_nodes"]) == (status, status == 0, smallest)
    text = run(f"loading --model llama3.1-405b {options}")[1]
    assert f"{'fits' if not status else 'does not fit'}; smallest number of nodes: {smallest}" in text


def test_the_defaults_of_loading(run: Any) -> None:
    plain = run("loading --model llama3-8b --json")
    assert (
        run("loading --model llama3-8b --format q40 --nodes 1 --memory-gib 64 --seq-len 4096 --json") == plain
    )
    assert json.loads(plain[1]) == lp.loading("llama3-8b").as_dict()


# -- refusals ------------------------------------------------------------------------------------

REFUSALS = [
    ("memory --seq-len 8192", "a model is needed", "llama3.1-405b"),
    ("memory --model tiny", "a sequence length is needed", "--seq-len 8192"),
    ("memory tiny tiny --seq-len 8", "'tiny' is one word too many", "llamapar memory --help"),
    ("memory --model tiny --seq-len 0", "seq_len=0: seq_len must be", "--seq-len 1"),
    ("memory --model tiny --seq-len 8e3", "seq_len='8e3': a whole number is needed", "--seq-len 8000"),
    ("memory --model tiny --seq-len 8 --recompute selctive", "recompute='selctive' is not", "selective"),
    ("memory --model tiny --seq-len 8 --schedule 1fb1", "schedule='1fb1' is not known", "1f1b"),
    ("memory --model tiny --seq-len 8 --accounting megatorn", "accounting='megatorn' is not", "megatron"),
    ("memory --model tiny --seq-len 8 --gpu h100-80g", "gpu='h100-80g' is not known", "h100-80gb"),
    ("memory --model tiny --seq-len 8 --zero 4", "zero=4: zero must be", "--zero 3"),
    ("memory --model llama3-8b --tp 16 --seq-len 8", "tp=16 does not divide n_kv_heads=8", "--tp 8"),
    (f"{JOB} --global-batch 100", "global_batch=100 sequences are no whole", "--global-batch 128"),
    ("memory --model tiny --seq-len 8 --nodes 4", "'--nodes' is not an option of llamapar memory", "--"),
    ("loading", "a model is needed", "llamapar loading --help"),
    ("loading --model tiny --format q41", "format='q41' is not known", "q40"),
    ("loading --model tiny --nodes 0", "nodes=0: nodes must be a whole number from 1 to 4096", "--nodes 1"),
    ("loading --model tiny --memory-gib 64GB", "memory_gib='64GB': a", "--memory-gib 64"),
    ("loading --model tiny --memory-gib nan", "memory_gib=nan: memory_gib must be a number", "--memory-gib"),
    ("loading --model tiny --memory-gib -1", "memory_gib=-1: memory_gib must be a number", "--memory-gib"),
    ("loading --model tiny --node 4", "'--node' is not an option of llamapar load", "--nodes"),
]


def test_the_least_memory_that_is_offered_is_taken(run: Any) -> None:
    offered = run("loading --model tiny --memory-gib 0")[2].splitlines()[-1].removeprefix("  try  ")
    assert offered == "--memory-gib 0.0009765625"
    assert run(f"loading --model tiny {offered}")[0] == 1


@pytest.mark.parametrize(("line", "what", "choice"), REFUSALS, ids=[row[1][:40] for row in REFUSALS])
def test_refusal(refused: Any, line: str, what: str, choice: str) -> None:
    refused(line, what, choice)


# -- help ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["memory", "loading"])
def test_help(run: Any, command: str) -> None:
    status, out, err = run(f"{command} --help")
    assert (status, err) == (0, "")
    assert out.isascii()
    assert f"example:\n  llamapar {command} --model llama3.1-405b" in out
    assert "exit status: 0 it fits, 1 it does not or may not fit, 2 bad usage or bad input\n" in out
    assert f"\n    {command} " in run("--help")[1]


def test_help_names_every_choice() -> None:
    for option, known, default in (
        ("recompute", RECOMPUTE, None),
        ("schedule", SCHEDULES, "1f1b"),
        ("accounting", ACCOUNTINGS, "exact"),
        ("gpu", HARDWARE, "h100-80gb"),
        ("format", BLOCKS, "q40"),
    ):
        told = OPTIONS[option].about(default)
        assert all(name in told for name in known), option
        assert (f"{default} (default)" if default else "(default: the trainer's)") in told


def test_the_examples_work(run: Any) -> None:
    for command in ("memory", "loading"):
        for line in PLAIN[command].example.splitlines():
            status, out, err = run(line.strip().removeprefix("llamapar "))
            assert status in (0, 1), err
            assert out
