"""`llamapar run`: every option, every kind of answer, and every exit status; its refusals: test_cli.py."""

import io
import json
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

import llamapar as lp
from llamapar.cli import output
from llamapar.cli import run_command as running
from llamapar.errors import Choice
from llamapar.execution import execute
from llamapar.execution.engines import torchrun
from llamapar.execution.replies import RankFailure

PROJECT = Path(__file__).resolve().parent.parent
REFUSED = "run attention --model llama3-8b --tp 16"


@pytest.fixture
def seen(monkeypatch):
    """What `execute.run` is called with; it then refuses."""
    calls = []

    def stop(*args, **options):
        calls.append((args, options))
        raise lp.LlamaparError("stop")

    monkeypatch.setattr(execute, "run", stop)
    return calls


# -- answers -------------------------------------------------------------------------------------


def test_json_of_a_run(run):
    line = "run attention --model tiny --tp 4 --cp 2 --dtype float64 --device cpu --json"
    status, out, err = run(line)
    told = json.loads(out)
    assert (status, err) == (0, "")
    assert (told["ok"], told["engine"], told["device"], told["ranks"]) == (True, "local", "cpu", 8)
    assert told["max_error"] < 1e-12
    assert told["max_grad_error"] < 1e-12
    assert (told["events"], told["errors"]) == (12, {})
    result = lp.run("attention", "tiny", lp.Layout(tp=4, cp=2), dtype="float64", device="cpu")
    assert told["bytes"] == result.trace.by_axis == {"tp": 196608, "cp": 131072}


@pytest.mark.parametrize("program", running.PROGRAMS)
def test_text_of_a_run_is_the_result(run, program):
    assert program in lp.programs.PROGRAMS
    status, out, err = run(f"run {program} --model tiny --tp 2 --device cpu --seq-len 16")
    result = lp.run(program, "tiny", lp.Layout(tp=2), device="cpu", seq_len=16)
    assert (status, err) == (0, "")
    assert out.splitlines()[0] == result.summary
    assert out.splitlines()[-1] == "device cpu: asked for"


def test_tape_and_trace(run):
    result = lp.run("mlp", "tiny", lp.Layout(tp=2), seq_len=8, device="cpu")
    line = "run mlp --model tiny --tp 2 --seq-len 8 --device cpu --tape --trace"
    text = run(line)[1]
    assert text.endswith(f"\n\n{result.tape}\n\n{result.trace}\n")
    told = json.loads(run(f"{line} --json")[1])
    assert told["trace"]["rank"] == 0
    assert [(e["kind"], e["axis"], e["phase"], e["payload"], e["sent"]) for e in told["trace"]["events"]] == [
        (e.kind, e.axis, e.phase, e.payload, e.sent) for e in result.trace.events
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


def test_a_run_that_differs(run):
    line = "run mlp --model tiny --tp 2 --no-sequence-parallel --fault sum_twice --seq-len 8"
    status, out, err = run(line)
    assert (status, err) == (1, "")
    assert out.splitlines()[0].endswith("with sum_twice: DIFFERS from the reference")
    told = json.loads(run(f"{line} --json")[1])
    assert (told["ok"], told["errors"]) == (False, {})
    assert told["max_error"] < 2e-5 < told["max_grad_error"]


def test_a_layout_that_check_refuses(run):
    status, out, err = run(REFUSED)
    report = lp.check("llama3-8b", lp.Layout(tp=16), seq_len=64, micro_batch=1, global_batch=2)
    assert (status, err) == (1, "")
    assert out == f"{report}\nnot run: --force runs it all the same\n"
    status, out, err = run(f"{REFUSED} --json")
    told = json.loads(out)
    assert (status, err, list(told)) == (1, "", ["schema", "ok", "findings", "error"])
    assert {"ok": told["ok"], "findings": told["findings"]} == report.as_dict()
    assert told["error"] == {
        "field": "",
        "message": "LP104 tp=16 does not divide n_kv_heads=8 (llama3-8b)",
        "why": "a rank would need half a KV head; tp may be 1, 2, 4, 8",
        "choose": [str(fix) for fix in report.findings[0].fixes],
    }


def test_the_genuine_error(run):
    line = f"{REFUSED} --shrink --force --device cpu"
    status, out, err = run(line)
    raised = "RuntimeError: shape '[2, 64, -1, 8]' is invalid for input of size 512"
    assert (status, err) == (1, "")
    assert f"error  ranks 0–15: {raised}\n" in out
    told = json.loads(run(f"{line} --tape --json")[1])
    assert (told["ok"], told["max_error"]) == (False, None)
    assert told["errors"] == {str(rank): raised for rank in range(16)}
    assert told["notes"][0] == "llama3-8b with head_dim 8, dim 256, ffn_dim 512, 1024 tokens and 2 layers"
    assert told["notes"][1] == "forced past LP104: tp=16 does not divide n_kv_heads=8 (small llama3-8b)"
    last = told["tape"]["steps"][-1]
    assert (last["name"], set(last["error"])) == ("k", {str(rank) for rank in range(16)})


def test_shrink_runs_what_does_not_fit(run):
    status, out, err = run("run mlp --model llama3.1-405b --tp 2 --pp 16 --dp 64")
    assert (status, out) == (2, "")
    assert err.startswith("llamapar: 128 ranks, and at most 64 run on one machine")
    assert err.splitlines()[-1] == "  try  --shrink, or --model tiny"
    status, out, _ = run("run mlp --model llama3.1-405b --tp 2 --pp 16 --dp 64 --shrink --json --seq-len 16")
    told = json.loads(out)
    assert (status, told["ok"], told["ranks"]) == (0, True, 4)
    assert told["notes"][:2] == ["pp=16 runs as 1", "dp=64 runs as 2"]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_run_that_was_given_up(run, monkeypatch, as_json):
    ranks = {0: "waiting in all_reduce", 1: "computing"}

    def give_up(*_, **__):
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
    error |= {"choose": [choose], "ranks": told}
    assert json.loads(out) == {"schema": 2, "ok": False, "error": error}


def test_an_error_without_bound_is_still_json(run, monkeypatch):
    result = lp.run("mlp", "tiny", lp.Layout(), seq_len=8)
    missing = replace(result.rows[0], error=float("inf"), ok=False, how="DIFFERS")
    broken = replace(result, rows=(missing, *result.rows[1:]))
    monkeypatch.setattr(execute, "run", lambda *_, **__: broken)
    status, out, _ = run("run mlp --model tiny --json")
    assert status == 1
    assert json.loads(out, parse_constant=pytest.fail)["max_error"] == "inf"


def test_a_loss_that_is_no_number_is_still_json(run, monkeypatch):
    result = lp.run("step", "tiny", lp.Layout(), seq_len=8, steps=2, device="cpu")
    curve = replace(result.loss_curve, losses=(1.5, float("nan")), norms=(float("inf"), -float("inf")))
    monkeypatch.setattr(execute, "run", lambda *_, **__: replace(result, loss_curve=curve))
    told = json.loads(run("run step --model tiny --json")[1], parse_constant=pytest.fail)
    assert (told["losses"], told["norms"]) == ([1.5, "nan"], ["inf", "-inf"])


# -- options -------------------------------------------------------------------------------------


def test_every_option_reaches_the_run(run, seen):
    line = (
        "run attention --model tiny --tp 2 --cp 4 --pp 2 --dp 3 --order megatron-lm --no-sequence-parallel "
        "--engine processes --device cpu --dtype bfloat16 --seq-len 64 --global-batch 6 --seed 5 "
        "--padding 128*tp --kv-replication "
        "--chunking contiguous --cp-method ring --documents 10,20,34 --pads-in-softmax "
        "--fault tile_kv --force --timeout 2.5"
    )
    assert run(line)[0] == 2
    [(args, options)] = seen
    layout = lp.Layout(2, 4, 2, 3, sequence_parallel=False, order="tp-cp-dp-pp")
    assert args == ("attention", lp.model("tiny"), layout)
    asked = {"engine": "processes", "device": "cpu", "dtype": "bfloat16", "seq_len": 64, "global_batch": 6}
    asked |= {"seed": 5, "padding": lp.Padding(128, per_tp=True), "chunking": "contiguous"}
    asked |= {"cp_method": "ring", "documents": (10, 20, 34), "fault": "tile_kv", "timeout": 2.5}
    asked |= dict.fromkeys(("kv_replication", "pads_in_softmax", "force"), True)
    assert options == asked


def test_what_is_not_given_is_left_to_the_run(run, seen):
    run("run attention --model tiny")
    switches = dict.fromkeys(("kv_replication", "pads_in_softmax", "force"), False)
    assert seen == [(("attention", lp.model("tiny"), lp.Layout()), switches)]


def test_shrink_is_given_the_padding(run, seen):
    run("run loss --model llama3-8b --tp 8 --pp 4 --padding colossalai --shrink")
    padding = lp.FRAMEWORKS["colossalai"].padding
    small = lp.shrink(lp.model("llama3-8b"), lp.Layout(tp=8, pp=4), padding=padding)
    assert seen[0][0] == ("loss", small.model, small.layout)


def test_no_such_gpu(run, monkeypatch):
    monkeypatch.setattr("llamapar.spmd.compat.gpus", lambda: 0)
    status, out, err = run("run mlp --model tiny --device cuda")
    assert (status, out) == (2, "")
    assert err == "llamapar: device='cuda': torch sees no CUDA device\n  try  --device cpu\n"


# -- other machines ------------------------------------------------------------------------------


def test_without_torch_and_with_one_that_is_too_old():
    """Both in one interpreter, in which torch has never been imported before."""
    script = (
        "import sys; from llamapar.cli.main import main\n"
        "sys.modules['torch'] = None\n"
        "status = main(['run', 'mlp', '--model', 'tiny', '--json'])\n"
        "print('\\n--', file=sys.stderr); del sys.modules['torch']\n"
        "sys.modules['torch.distributed._local_tensor'] = None\n"
        "sys.exit(10 * status + main(['run', 'mlp', '--model', 'tiny']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=PROJECT,
        env=os.environ | {"COLUMNS": "200"},  # torch's own version may need a second line
    )
    assert done.returncode == 22
    without, old = done.stderr.split("\n--\n")
    assert without == (
        "llamapar: torch is not installed, and running a layout needs it\n"
        "  why  every other command needs nothing but Python\n"
        "  try  pip install 'llamapar[run]'\n"
    )
    assert json.loads(done.stdout)["error"]["choose"] == ["pip install 'llamapar[run]'"]
    assert "needs torch 2.11 or newer\n" in old
    assert old.endswith("  try  pip install 'llamapar[run]'\n")


def test_a_long_run_says_what_it_does(run, monkeypatch):
    monkeypatch.setattr(output, "PATIENCE", 1e-3)
    status, out, err = run("run mlp tiny --tp 2 --seq-len 8 --device cpu --json")
    assert (status, json.loads(out)["ok"]) == (0, True)
    told = r"llamapar: running mlp of tiny on 2 ranks; Ctrl-C ends it: \d+ s"
    assert [line for line in err.splitlines() if re.fullmatch(told, line)]


def test_the_second_wait_is_twice_as_long_and_pipes_may_close(monkeypatch):
    pauses = []

    class Clock(threading.Event):
        def wait(self, timeout=None):
            pauses.append(timeout or 0)
            return len(pauses) == 3

    with monkeypatch.context() as patch:
        patch.setattr(output, "threading", SimpleNamespace(Event=Clock, Thread=threading.Thread))
        speaker, end = output.patience("it works"), time.monotonic() + 60
        with speaker:
            while len(pauses) < 3 and time.monotonic() < end:
                time.sleep(0.01)
    assert pauses == [5, 10, 20]
    closed = io.StringIO()
    monkeypatch.setattr(closed, "write", Mock(side_effect=BrokenPipeError))
    assert output.write_line(closed, "a line") == ""


# -- under torchrun, as far as it shows in one process -------------------------------------------


@pytest.fixture
def rank(monkeypatch):
    """`rank(3)`: this process is rank 3 of 4, and has parted with this status."""
    parted = []

    def become(number):
        for name, value in (("RANK", number), ("WORLD_SIZE", 4), ("MASTER_ADDR", "x"), ("MASTER_PORT", 1)):
            monkeypatch.setenv(name, str(value))
        monkeypatch.setattr(torchrun, "part", lambda status: parted.append(status) or status)
        return parted

    return become


def test_torchrun_is_the_engine_of_its_ranks(run, seen, rank):
    rank(0)
    assert run("run mlp --model tiny --dp 4")[0] == 2
    assert seen[0][1]["engine"] == "torchrun"


def test_only_rank_0_writes(run, rank):
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


def test_another_engine_under_torchrun(run, rank):
    rank(0)
    status, _, err = run("run mlp --model tiny --tp 4 --engine local")
    assert status == 2
    assert err.startswith("llamapar: engine='local' under torchrun: each of its processes would run all")


def test_other_commands_are_as_ever_on_a_rank(run, rank):
    parted = rank(1)
    assert run("check --model tiny")[1].startswith("tiny  tp=1")
    assert parted == []
