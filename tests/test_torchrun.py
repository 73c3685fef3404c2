"""The torchrun engine: two agents on one machine, and what becomes of ranks that raise, hang or die."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from torch.distributed import HashStore

import llamapar as lp
from llamapar.execution.engines import torchrun

PROJECT = Path(__file__).resolve().parent.parent
RUN = "attention --model tiny --tp 2 --cp 2 --dtype float64 --device cpu"
LIMIT = 150  # seconds within which everything here has to end

BODY = """
import os, signal, sys, time
import torch.distributed as dist
import llamapar as lp
from llamapar.spmd import collectives

def body(mesh, setting, x):
    y = mean(x, mesh, setting)
    if dist.get_rank() == 1:
        FAULT
    return mean(y, mesh, setting)

def mean(x, mesh, setting):
    return collectives.all_reduce(collectives.copy(x, mesh, "tp") / setting.layout.tp, mesh, "tp")

def reference(setting, x):
    return x * 1.0

layout = lp.Layout(tp=TP, sequence_parallel=False)
for _ in range(TIMES):
    try:
        result = lp.run(body, "tiny", layout, engine="torchrun", timeout=10.0, seq_len=8, reference=reference)
        told = [result.summary, *(f"{rank}: {error}" for rank, error in result.errors.items())]
        held = len(result.outputs[0]) if hasattr(result, "outputs") else "rank 0 alone"
        told.append(f"outputs of {held}, {len(result.trace.events)} events")
    except lp.LlamaparError as error:
        told = [f"{type(error).__name__}: {error}"]
    print("\\n".join(told), flush=True)
"""
HERE = "all_reduce over tp, [2, 8, 128] float32"
SUM = 'collectives.all_reduce(collectives.copy(x, mesh, "tp") / setting.layout.tp, mesh, "tp")'


@pytest.fixture
def few(counts):
    """How often it is shown: a start takes ten seconds and more, and the soak has more ranks instead."""
    return range(counts(1, 1, 5))


@pytest.fixture
def world(soak):
    """How many ranks, where torchrun itself is left out."""
    return 4 if soak else 2


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def started(commands, environments):
    """The processes, each the first of a session of its own; nothing of the sessions is left after it."""
    base = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    base |= {"PYTHONPATH": str(PROJECT), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            command,
            env={**base, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for command, environment in zip(commands, environments, strict=True)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for stream in (process.stdout, process.stderr):
                stream.close()


def ended(processes):
    """Exit status, stdout and stderr of each; and none of their sessions has a process left."""
    end = time.monotonic() + LIMIT
    told = []
    for process in processes:
        out, err = process.communicate(timeout=max(1.0, end - time.monotonic()))
        told.append((process.returncode, out, err))
    sessions = {process.pid for process in processes}
    deadline = time.monotonic() + 10
    while left := [p for p in psutil.pids() if session(p) in sessions]:
        assert time.monotonic() < deadline, f"left over: {left}"
        time.sleep(0.1)
    return told


def session(pid):
    with contextlib.suppress(OSError, psutil.Error):
        if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            return os.getsid(pid)
    return -1


def agents(words, static=False):
    """Two torchrun agents of two ranks each."""
    port = free_port()
    commands = []
    for node in range(2):
        meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "test"]
        if static:
            meet = ["--node-rank", f"{node}", "--master-addr", "127.0.0.1", "--master-port", f"{port}"]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2"]
        commands.append([*torchrun, "--local-addr", "127.0.0.1", *meet, *words])
    with started(commands, [{}, {}]) as processes:
        return ended(processes)


def ranks(tmp_path, world, fault, count=1):
    """The ranks alone, in the environment that torchrun gives them."""
    text = BODY.replace("FAULT", fault).replace("TP", str(world)).replace("TIMES", str(count))
    (tmp_path / "body.py").write_text(text)
    port = str(free_port())
    environments = [{"RANK": str(r), "LOCAL_RANK": str(r), "WORLD_SIZE": str(world)} for r in range(world)]
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "LOCAL_WORLD_SIZE": str(world)}
    command = [sys.executable, str(tmp_path / "body.py")]
    with started([command] * world, [{**own, **meet} for own in environments]) as processes:
        return ended(processes)


# -- torchrun itself -----------------------------------------------------------------------------


def told_by_two(line, expected=0, static=False):
    """What rank 0 alone, which is on either agent, tells of `llamapar run`; both agents exit alike."""
    told = agents(["-m", "llamapar", "run", *line.split(), "--json"], static)
    assert [status for status, _, _ in told] == [expected] * 2, told
    [said] = "".join(out for _, out, _ in told).splitlines()
    return json.loads(said)


@pytest.mark.parametrize(
    "static", [pytest.param(False, marks=pytest.mark.soak), pytest.param(True, marks=pytest.mark.deep)]
)
def test_two_agents_tell_what_processes_tell(static):
    expected = lp.run("attention", "tiny", lp.Layout(tp=2, cp=2), dtype="float64", device="cpu")
    result = told_by_two(RUN, static=static)
    assert (result["ok"], result["engine"], result["ranks"]) == (True, "torchrun", 4)
    assert (result["bytes"], result["events"]) == (expected.trace.by_axis, len(expected.trace.events))
    assert max(result["max_error"], result["max_grad_error"]) < 1e-12
    assert result["notes"] == ["device cpu over gloo: asked for"]


@pytest.mark.soak
def test_two_agents_take_training_steps_through_a_pipeline():
    pipeline = "--micro-batches 4 --seq-len 8 --dtype float64 --schedule zbv"
    result = told_by_two(f"step --model tiny --pp 2 --dp 2 --zero 2 --steps 2 --device cpu {pipeline}")
    assert (result["ok"], len(result["losses"])) == (True, 2)
    assert result["max_grad_error"] < 1e-12
    options = {"micro_batches": 4, "seq_len": 8, "dtype": "float64", "schedule": "zbv"}
    sent = lp.traffic("step", "tiny", lp.Layout(pp=2, dp=2, zero=2), global_batch=16, **options).by_axis
    assert result["bytes"] == {axis: 2 * size for axis, size in sent.items()}


@pytest.mark.soak
def test_two_agents_tell_of_a_pipeline_that_stands_still():
    pipeline = "--tp 2 --pp 2 --micro-batches 4 --seq-len 8 --fault send_receive_crossed --timeout 12"
    why = told_by_two(f"llama --model tiny --device cpu {pipeline}", expected=1)["error"]["why"]
    assert "the gradients of micro-batch 0 for stage 0 from rank 2: rank 0 arrived" in why
    assert "the activations of micro-batch 0 for stage 1 from rank 0: rank 2 arrived" in why


@pytest.mark.soak
def test_two_agents_with_bad_input():
    result = told_by_two(f"{RUN} --tp 8", expected=1)  # torchrun's own, for the 2 of its ranks
    assert result["error"]["message"] == "the layout has 16 ranks, torchrun started 4"


# -- its ranks -----------------------------------------------------------------------------------


def test_every_rank_returns_the_result(tmp_path, world):
    told = ranks(tmp_path, world, "pass", count=2)
    assert [status for status, _, _ in told] == [0] * world, told
    summary = f"body  tp={world} cp=1 pp=1 dp=1 ({world} ranks, torchrun, cpu): equal to the reference"
    assert [out.splitlines() for _, out, _ in told] == [
        [summary, f"outputs of {'rank 0 alone' if rank else 1}, 4 events"] * 2 for rank in range(world)
    ]


@pytest.mark.parametrize(("text", "waits"), [(torchrun.STARTING, True), ("", False)])
def test_until_all_ranks_are_there_no_timeout_counts(text, waits):
    run = SimpleNamespace(note=torchrun._OwnNote(2), store=HashStore(), timeout=0.1)
    run.note.write(0, text)
    looks = iter([*[False] * 10, True])
    assert torchrun._Run._watch(run, lambda: next(looks)) is waits


@pytest.mark.soak
def test_a_rank_that_raises(tmp_path, few, world):
    others = [rank for rank in range(world) if rank != 1]
    waited = f"was waiting in {HERE} when rank 1 raised ValueError: no luck"
    lines = [
        f"body  tp={world} cp=1 pp=1 dp=1 ({world} ranks, torchrun, cpu): rank 1 raised ValueError",
        *("1: no luck", *(f"{rank}: rank {rank} {waited}" for rank in others)),
    ]
    ends = [f"outputs of {'rank 0 alone' if rank else 0}, 0 events" for rank in range(world)]
    for _ in few:
        told = ranks(tmp_path, world, 'raise ValueError("no luck")')
        assert [out.splitlines() for _, out, _ in told] == [[*lines, end] for end in ends], told
        assert [status for status, _, _ in told] == [1] * world, told


@pytest.mark.soak
def test_a_rank_that_never_comes(tmp_path, few, world):
    arrived = "rank 0" if world == 2 else "ranks 0, 2, 3"
    text = (
        "RankFailure: time-out: no rank made progress for 10 s\n"
        f"  why  {HERE}: {arrived} arrived; rank 1 never did, it is computing\n"
        f"       {arrived} stand{'' if world > 2 else 's'} on line 14 of body.py, in mean: return {SUM}\n"
        "       rank 1 stands on line 10 of body.py, in body: time.sleep(100)\n"
        "  try  timeout=20 if a rank only computes for long\n"
    )
    for _ in few:
        told = ranks(tmp_path, world, "time.sleep(100)")
        assert [out for _, out, _ in told] == [text] * world, told
        assert [status for status, _, _ in told] == [1] * world, told


@pytest.mark.soak
def test_ranks_that_never_end(tmp_path, few, world):
    """Nobody waits for anybody, and the time-out comes."""
    fault = "pass\n    while True: pass"
    numbers = ", ".join(map(str, range(world)))
    text = (
        "RankFailure: time-out: no rank made progress for 10 s\n"
        f"  why  ranks {numbers}: computing; "
        "progress is to enter or leave a collective, or to end\n"
        f"       ranks {numbers} stand on line 11 of body.py, in body: while True: pass\n"
        "  try  timeout=20 if a rank only computes for long\n"
    )
    for _ in few:
        told = ranks(tmp_path, world, fault)
        assert [(status, out) for status, out, _ in told] == [(1, text)] * world, told


@pytest.mark.soak
@pytest.mark.parametrize(
    ("killed", "fault", "said"),
    [
        (1, "", "RankFailure: rank 1 is gone: no sign of life for 10 s"),
        (0, "pass\n    if dist.get_rank() == 0: ", "RankFailure: rank 0 is gone"),
    ],
)
def test_a_rank_that_is_killed(tmp_path, few, world, killed, fault, said):
    for _ in few:
        told = ranks(tmp_path, world, f"{fault}os.kill(os.getpid(), signal.SIGKILL)")
        assert told.pop(killed)[:2] == (-signal.SIGKILL, "")
        for status, out, _ in told:
            assert status == 1, told
            assert out.startswith(said), told
