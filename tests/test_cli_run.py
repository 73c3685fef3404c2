"""`llamapar run`: every option, every kind of answer, and every exit status."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import llamapar as lp
from llamapar.cli import output
from llamapar.cli import run_command as running
from llamapar.describe.options import OPTIONS
from llamapar.errors import Choice
from llamapar.execution import execute
from llamapar.execution.capacity import DEVICES
from llamapar.execution.engines import torchrun
from llamapar.execution.engines.pool import close_pool
from llamapar.execution.replies import RankFailure
from llamapar.place.sequence_map import CHUNKINGS
from llamapar.spmd.setting import DTYPES

PROJECT = Path(__file__).resolve().parent.parent
REFUSED = "run attention --model llama3-8b --tp 16"


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """What `execute.run` is called with; it then refuses."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def stop(*args: Any, **options: Any) -> None:
        calls.append((args, options))
        raise lp.LlamaparError("stop")

    monkeypatch.setattr(execute, "run", stop)
    return calls


# -- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["local", "processes"])
def test_json_of_a_run(run: Any, engine: str) -> None:
    line = f"run attention --model tiny --tp 4 --cp 2 --engine {engine} --dtype float64 --device cpu --json"
    status, out, err = run(line)
    close_pool()
    told = json.loads(out)
    assert (status, err) == (0, "")
    assert (told["ok"], told["engine"], told["device"], told["ranks"]) == (True, engine, "cpu", 8)
    assert told["max_error"] < 1e-12
    assert told["max_grad_error"] < 1e-12
    assert (told["events"], told["errors"]) == (12, {})
    result = lp.run("attention", "tiny", lp.Layout(tp=4, cp=2), dtype="float64", device="cpu")
    assert told["bytes"] == result.trace.by_axis == {"tp": 262144, "cp": 163840}


@pytest.mark.parametrize("program", running.PROGRAMS)
def test_text_of_a_run_is_the_result(run: Any, program: str) -> None:
    status, out, err = run(f"run {program} --model tiny --tp 2 --device cpu --seq-len 16")
    result = lp.run(program, "tiny", lp.Layout(tp=2), device="cpu", seq_len=16)
    assert (status, err) == (0, "")
    assert out.splitlines()[0] == result.summary
    assert out.splitlines()[-1] == "device cpu: asked for"


def test_tape_and_trace(run: Any) -> None:
    result = lp.run("mlp", "tiny", lp.Layout(tp=2), seq_len=8, device="cpu")
    line = "run mlp --model tiny --tp 2 --seq-len 8 --device cpu --tape --trace"
    text = run(line)[1]
    assert text.endswith(f"\n\n{result.tape}\n\n{result.trace}\n")
    told = json.loads(run(f"{line} --json")[1])
    assert told["trace"]["rank"] == 0
    assert [(e["kind"], e["axis"], e["phase"], e["bytes"]) for e in told["trace"]["events"]] == [
        (e.kind, e.axis, e.phase, e.bytes) for e in result.trace.events
    ]
    tape = told["tape"]
    assert (tape["program"], tape["ranks"], tape["world"]) == ("mlp", 2, 2)
    for step, expected in zip(tape["steps"], result.tape.steps, strict=True):
        assert (step["where"], step["code"], step["name"]) == (expected.where, expected.code, expected.name)
        assert step["local"] == {str(r): list(shape) for r, shape in expected.local.items()}
        assert step["cut"] == {str(dim): list(axes) for dim, axes in expected.cut.items()}
        assert (step["error"], step["why"]) == ({}, "")
    without = json.loads(run("run mlp --model tiny --tp 2 --seq-len 8 --device cpu --json")[1])
    assert not {"tape", "trace"} & set(without)


def test_a_run_that_differs(run: Any) -> None:
    line = "run mlp --model tiny --tp 2 --no-sequence-parallel --fault sum_twice --seq-len 8"
    status, out, err = run(line)
    assert (status, err) == (1, "")
    assert out.splitlines()[0].endswith("with sum_twice: DIFFERS from the reference")
    told = json.loads(run(f"{line} --json")[1])
    assert (told["ok"], told["errors"]) == (False, {})
    assert told["max_error"] < 2e-5 < told["max_grad_error"]


def test_a_layout_that_check_refuses(run: Any) -> None:
    status, out, err = run(REFUSED)
    report = lp.check("llama3-8b", lp.Layout(tp=16), seq_len=64, micro_batch=1, global_batch=2)
    assert (status, err) == (1, "")
    assert out == f"{report}\nnot run: --force runs it all the same\n"
    status, out, err = run(f"{REFUSED} --json")
    told = json.loads(out)
    assert (status, err, list(told)) == (1, "", ["ok", "findings", "error"])
    assert {"ok": told["ok"], "findings": told["findings"]} == report.as_dict()
    assert told["error"] == {
        "field": "",
        "message": "LP104 tp=16 does not divide n_kv_heads=8 (llama3-8b)",
        "why": "a rank would need half a KV head; tp may be 1, 2, 4, 8",
        "choose": [str(fix) for fix in report.findings[0].fixes],
    }


def test_the_genuine_error(run: Any) -> None:
    line = f"{REFUSED} --shrink --force --device cpu"
    status, out, err = run(line)
    raised = "RuntimeError: shape '[2, 64, -1, 8]' is invalid for input of size 512"
    assert (status, err) == (1, "")
    assert f"error  ranks 0–15                     {raised}\n" in out
    told = json.loads(run(f"{line} --tape --json")[1])
    assert (told["ok"], told["max_error"]) == (False, None)
    assert told["errors"] == {str(rank): raised for rank in range(16)}
    assert told["notes"][0] == "llama3-8b with head_dim 8, dim 256, ffn_dim 512, 1024 tokens and 2 layers"
    assert told["notes"][1] == "forced past LP104: tp=16 does not divide n_kv_heads=8 (small llama3-8b)"
    last = told["tape"]["steps"][-1]
    assert (last["name"], set(last["error"])) == ("k", {str(rank) for rank in range(16)})


def test_shrink_runs_what_does_not_fit(run: Any) -> None:
    status, out, err = run("run mlp --model llama3.1-405b --tp 2 --pp 16 --dp 64")
    assert (status, out) == (2, "")
    assert err.startswith("llamapar: 128 ranks, and at most 64 run on one machine")
    assert err.splitlines()[-1] == "  try  --shrink, or --model tiny"
    status, out, _ = run("run mlp --model llama3.1-405b --tp 2 --pp 16 --dp 64 --shrink --json --seq-len 16")
    told = json.loads(out)
    assert (status, told["ok"], told["ranks"]) == (0, True, 4)
    assert told["notes"][:2] == ["pp=16 runs as 1", "dp=64 runs as 2"]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_run_that_was_given_up(run: Any, monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    ranks = {0: "waiting in all_reduce", 1: "computing"}

    def give_up(*_: Any, **__: Any) -> None:
        choose = [Choice.of("if a rank only computes for long", timeout=4)]
        raise RankFailure("time-out: no rank made progress for 2 s", "who waits", choose, ranks, 1)

    monkeypatch.setattr(execute, "run", give_up)
    status, out, err = run("run mlp --model tiny" + " --json" * as_json)
    assert (status, err) == (1, "")
    choose = "--timeout 4 if a rank only computes for long"
    if not as_json:
        assert out == f"time-out: no rank made progress for 2 s\n  why  who waits\n  try  {choose}\n"
        return
    error = {"field": "", "message": "time-out: no rank made progress for 2 s", "why": "who waits"}
    told = {"0": "waiting in all_reduce", "1": "computing"}
    assert json.loads(out) == {"ok": False, "error": {**error, "choose": [choose], "ranks": told}}


def test_an_error_without_bound_is_still_json(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    result = lp.run("mlp", "tiny", lp.Layout(), seq_len=8)
    broken = replace(result, output_errors={"out": float("inf")})
    monkeypatch.setattr(execute, "run", lambda *_, **__: broken)
    status, out, _ = run("run mlp --model tiny --json")
    assert status == 1
    assert json.loads(out, parse_constant=pytest.fail)["max_error"] == "inf"


# -- options -------------------------------------------------------------------------------------


def test_every_option_reaches_the_run(run: Any, seen: list[Any]) -> None:
    line = (
        "run attention --model tiny --tp 2 --cp 4 --pp 2 --dp 3 --order megatron-lm --no-sequence-parallel "
        "--engine processes --device cpu --dtype bfloat16 --seq-len 64 --global-batch 6 --seed 5 "
        "--padding 128*tp --kv-replication "
        "--chunking contiguous --cp-method ring --documents 10,20,34 --pads-in-softmax "
        "--fault tile_kv --force --timeout 2.5 --mutants"
    )
    assert run(line)[0] == 2
    [(args, options)] = seen
    layout = lp.Layout(2, 4, 2, 3, sequence_parallel=False, order="tp-cp-dp-pp")
    assert args == ("attention", lp.model("tiny"), layout)
    assert options == {
        "engine": "processes",
        "device": "cpu",
        "dtype": "bfloat16",
        "seq_len": 64,
        "global_batch": 6,
        "seed": 5,
        "padding": lp.Padding(128, per_tp=True),
        "kv_replication": True,
        "chunking": "contiguous",
        "cp_method": "ring",
        "documents": (10, 20, 34),
        "pads_in_softmax": True,
        "fault": "tile_kv",
        "force": True,
        "timeout": 2.5,
        "mutants": True,
    }


def test_what_is_not_given_is_left_to_the_run(run: Any, seen: list[Any]) -> None:
    run("run attention --model tiny")
    switches = dict.fromkeys(("kv_replication", "pads_in_softmax", "force", "mutants"), False)
    assert seen == [(("attention", lp.model("tiny"), lp.Layout()), switches)]


def test_shrink_is_given_the_padding(run: Any, seen: list[Any]) -> None:
    run("run loss --model llama3-8b --tp 8 --pp 4 --padding colossalai --shrink")
    padding = lp.FRAMEWORKS["colossalai"].padding
    small = lp.shrink(lp.model("llama3-8b"), lp.Layout(tp=8, pp=4), padding=padding)
    assert seen[0][0] == ("loss", small.model, small.layout)


def test_the_help_names_what_there_is() -> None:
    assert set(running.PROGRAMS) <= set(lp.programs.PROGRAMS)
    known = {"engine": execute.ENGINES, "device": DEVICES, "dtype": DTYPES, "chunking": CHUNKINGS}
    for option, names in {**known, "cp_method": execute.CP_METHODS}.items():
        about = OPTIONS[option].about(OPTIONS[option].default)
        assert all(name in about for name in names), option
        assert f"{next(iter(names))} (default" in about or option == "dtype"


# -- refusals ------------------------------------------------------------------------------------

REFUSALS = [
    ("run attenton --model tiny", "program='attenton' is not known", "attention"),
    ("run attention --model tinny", "model='tinny' is neither a preset nor a file", "tiny"),
    (
        "run meta_attention --model qwen2.5-7b --shrink",
        "small qwen2.5-7b has biases or QK norms, which meta_attention leaves out",
        "--program attention",
    ),
    ("run attention --model tiny --tp 0", "tp=0: tp must be a whole number", "--tp 1"),
    (
        "run attention --model tiny --gpus 3",
        "'--gpus' is not an option of llamapar run",
        "--tp",
    ),
    ("run attention --model tiny --engine mpi", "engine='mpi' is not known", "local"),
    ("run attention --model tiny --device gpu", "device='gpu' is not known", "cpu"),
    ("run attention --model tiny --dtype float16", "dtype='float16' is not known", "float64"),
    ("run attention --model tiny --seq-len 0", "seq_len=0: seq_len must be a whole number", "--seq-len 1"),
    ("run attention --model tiny --seq-len x", "seq_len='x': a whole number is needed", "--seq-len 1"),
    (
        "run attention --model tiny --global-batch 1.5",
        "global_batch=1.5: global_batch must be a whole number",
        "--global-batch 1",
    ),
    ("run attention --model tiny --seed -1", "seed=-1: seed must be a whole number from 0", "--seed 0"),
    ("run attention --model tiny --seed 0.5", "seed=0.5: seed must be a whole number from 0", "--seed 0"),
    ("run attention --model tiny --padding x", "padding='x' is not known", "none"),
    ("run attention --model tiny --chunking tail", "chunking='tail' is not known", "head-tail"),
    ("run attention --model tiny --cp-method rings", "cp_method='rings' is not known", "ring"),
    ("run attention --model tiny --documents 10,x", "documents='x': a whole number is needed", "documents"),
    ("run attention --model tiny --documents 10,0", "documents=0: documents must be a whole", "documents"),
    ("run attention --model tiny --fault tile", "fault='tile' is not known", "tile_kv"),
    (
        "run attention --model tiny --timeout 0",
        "timeout=0: timeout must be a number from 0.1",
        "--timeout 0.1",
    ),
    ("run attention --model tiny --timeout nan", "timeout=nan: timeout must be a number", "--timeout 0.1"),
    ("run attention --model tiny --engine torchrun", "engine='torchrun', but torchrun did not", "--nproc"),
]


@pytest.mark.parametrize(("line", "what", "choice"), REFUSALS, ids=[row[1][:40] for row in REFUSALS])
def test_refusal(refused: Any, line: str, what: str, choice: str) -> None:
    refused(line, what, choice)


def test_documents_that_do_not_fill_the_sequence(run: Any) -> None:
    status, out, err = run("run attention --model tiny --seq-len 64 --documents 10,20,35")
    assert (status, out) == (2, "")
    assert err == (
        "llamapar: documents of 65 tokens in all for seq_len=64\n"
        "  why  each is at least one token, and together they are the sequence\n"
    )


def test_no_such_gpu(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llamapar.spmd.compat.gpus", lambda: 0)
    status, out, err = run("run mlp --model tiny --device cuda")
    assert (status, out) == (2, "")
    assert err == "llamapar: device='cuda': torch sees no CUDA device\n  try  --device cpu\n"


def test_a_deadline_gives_up(run: Any) -> None:
    status, out, err = run("run llama --model tiny --tp 4 --deadline 0.1 --device cpu")
    assert (status, err) == (1, "")
    assert out == (
        "the run took longer than its deadline of 0.1 s\n  try  --deadline 0.2 if it may take longer\n"
    )


# -- other machines ------------------------------------------------------------------------------


def python(line: str, code: str) -> subprocess.CompletedProcess[str]:
    """`llamapar …` in an interpreter that ran `code` first."""
    script = (
        f"import sys; {code}; from llamapar.cli import main as cli; sys.exit(cli.main({shlex.split(line)}))"
    )
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_without_torch() -> None:
    done = python("run mlp --model tiny --json", "sys.modules['torch'] = None")
    assert done.returncode == 2
    assert done.stderr == (
        "llamapar: torch is not installed, and running a layout needs it\n"
        "  why  every other command needs nothing but Python\n"
        "  try  pip install -e '.[run]' in a checkout of llamapar\n"
    )
    assert json.loads(done.stdout)["error"]["choose"] == ["pip install -e '.[run]' in a checkout of llamapar"]


def test_with_a_torch_that_is_too_old() -> None:
    done = python("run mlp --model tiny", "sys.modules['torch.distributed._local_tensor'] = None")
    assert (done.returncode, done.stdout) == (2, "")
    assert "needs torch 2.11 or newer\n" in done.stderr
    assert done.stderr.endswith("  try  pip install --upgrade -e '.[run]' in a checkout of llamapar\n")


def test_as_a_module() -> None:
    words = [sys.executable, "-m", "llamapar", "run", "mlp", "--model", "tiny", "--seq-len", "8", "--json"]
    done = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, timeout=60)
    patient = r"llamapar: (importing|running) "  # what a busy machine makes it say
    said = [line for line in done.stderr.splitlines() if not re.match(patient, line)]
    assert (done.returncode, said) == (0, [])
    assert json.loads(done.stdout)["ok"] is True


def test_a_long_run_says_what_it_does(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "PATIENCE", 1e-3)
    status, out, err = run("run mlp tiny --tp 2 --seq-len 8 --device cpu --json")
    assert (status, json.loads(out)["ok"]) == (0, True)
    told = r"llamapar: running mlp of tiny on 2 ranks; Ctrl-C ends it: \d+ s"
    assert [line for line in err.splitlines() if re.fullmatch(told, line)]


# -- under torchrun, as far as it shows in one process -------------------------------------------


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`rank(3)`: this process is rank 3 of 4, and has parted with this status."""
    parted: list[int] = []

    def become(number: int) -> list[int]:
        for name, value in (("RANK", number), ("WORLD_SIZE", 4), ("MASTER_ADDR", "x"), ("MASTER_PORT", 1)):
            monkeypatch.setenv(name, str(value))
        monkeypatch.setattr(torchrun, "part", lambda status: parted.append(status) or status)
        return parted

    return become


def test_torchrun_is_the_engine_of_its_ranks(run: Any, seen: list[Any], rank: Any) -> None:
    rank(0)
    assert run("run mlp --model tiny --dp 4")[0] == 2
    assert seen[0][1]["engine"] == "torchrun"


def test_only_rank_0_writes(run: Any, rank: Any) -> None:
    parted = rank(0)
    status, out, err = run("run mlp --model tiny --tp 8 --json")
    assert err == (
        "llamapar: the layout has 8 ranks, torchrun started 4\n"
        "  why  every rank is one process\n"
        "  try  torchrun --nproc-per-node 8\n"
    )
    assert json.loads(out)["error"]["field"] == "world"
    rank(1)
    assert run("run mlp --model tiny --tp 8 --json") == (2, "", "")
    assert (status, parted) == (2, [2, 2])


def test_another_engine_under_torchrun(run: Any, rank: Any) -> None:
    rank(0)
    status, _, err = run("run mlp --model tiny --tp 4 --engine local")
    assert status == 2
    assert err.startswith("llamapar: engine='local' under torchrun: each of its processes would run all")


def test_other_commands_are_as_ever_on_a_rank(run: Any, rank: Any) -> None:
    parted = rank(1)
    assert run("check --model tiny")[1].startswith("tiny  tp=1")
    assert parted == []
