"""Memory as a rule of `check`: when it is judged, what it says, and fixes that fit, with their price."""

import gc
import sys
from types import FunctionType, ModuleType

import pytest

import llamapar as lp
from llamapar.describe.job import Job
from llamapar.rules import memory_rule
from llamapar.rules.fix import effect
from llamapar.rules.table import NOTE

B8, B70, B405 = "llama3-8b", "llama3.1-70b", "llama3.1-405b"
GIB = 2**30
WIDE = {"model": B8, "layout": {"tp": 8, "dp": 8}, "seq_len": 8192, "micro_batch": 8, "recompute": "none"}
"""A job whose memory depends on its trainer: what TP gathers is kept, or not."""
ON_64 = {"gpus": 64, "seq_len": 8192}


def finding_of(report):
    """For tests/texts/memory.txt."""
    return (report.memory.code, report.memory.severity) if report.memory else None


# -- when, and how bad ---------------------------------------------------------------------------


def test_it_says_the_number_of_lp_memory(run):
    line = "--model llama3.1-70b --dp 64 --gpus 64 --seq-len 8192 --gpu h100-80gb"
    found = lp.memory(B70, {"dp": 64}, seq_len=8192)
    status, out, err = run(f"check {line}")
    assert (status, err) == (1, "")
    assert f"{found.figure()} GiB a rank" in out
    assert f"{found.worst.total_bytes / GIB:.2f} GiB >" in run(f"memory {line}")[1]


def test_a_judge_that_copies_kv_heads_is_counted_with_its_copies():
    asked = {"model": B8, "layout": {"tp": 16}, "gpus_per_node": 16, "seq_len": 8192, "gpu": "a100-40gb"}
    assert lp.check(**asked).memory is None  # nothing to count: tp cuts through a head
    job = lp.check(**asked, framework="megatron-lm").job
    found = memory_rule.load_of(job, lp.FRAMEWORKS["megatron-lm"])
    assert found is not None
    said = lp.memory(B8, {"tp": 16}, seq_len=8192, kv_replication=True, framework="megatron-lm")
    assert found.memory.high_bytes == said.high_bytes


def test_without_a_gpu_nothing_is_counted_until_somebody_reads_the_findings(monkeypatch):
    counted = []
    monkeypatch.setattr(memory_rule, "finding_of", lambda job, judge=None: counted.append(job))
    report = lp.check(B70, {"dp": 64}, gpus=64)
    assert (report.ok, report.errors, counted) == (True, (), [])
    assert report.findings == ()
    assert len(counted) == 1
    assert lp.check(B70, {"dp": 64}, gpu="h100-80gb").ok
    assert len(counted) == 2


# -- fixes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "job",
    [
        {"model": B70, "layout": {"dp": 64}, **ON_64},
        {"model": B405, "layout": {"tp": 8, "pp": 16, "dp": 128}, "gpus": 16384, "seq_len": 8192},
        {"model": B405, "layout": {"tp": 16, "pp": 16, "dp": 64}, "gpus": 16384, "seq_len": 8192},
        {"model": B70, "layout": {"tp": 8}, **ON_64},
        {"model": B70, "layout": {"tp": 8, "pp": 4, "dp": 2}, **ON_64, "framework": "colossalai"},
        WIDE,
    ],
    ids=str,
)
def test_every_fix_fits_whatever_it_mends(job):
    report = lp.check(**job, gpu="h100-80gb")
    offered = [(finding.rule, fix) for finding in report.findings for fix in finding.fixes]
    assert offered
    for _, fix in offered:
        after = lp.check(fix.job.model, fix.layout, **known(fix.job), framework=job.get("framework"))
        assert after.ok, fix
        if after.memory and after.memory.severity != NOTE:  # undecided, but expected to fit
            judge = lp.FRAMEWORKS.get(job.get("framework", ""))
            assert (after.memory.code, memory_rule.has_room(fix.job, judge)) == ("LP512", True)
        assert f": {fix.effect.load.memory.expected_bytes / GIB:.2f} GiB" in str(fix)


def known(job):
    return {name: getattr(job, name) for name in Job.__dataclass_fields__ if name not in ("model", "layout")}


def test_without_a_gpu_fixes_that_fit_none_come_last():
    job = {"model": B405, "layout": {"tp": 8}, "gpus": 64, "seq_len": 8192}
    report = lp.check(**job)
    room = [memory_rule.has_room(fix.job) for fix in report.fixes]
    assert room == sorted(room, reverse=True)


# -- the price -----------------------------------------------------------------------------------


CHANGES = [
    {"recompute": "full"},
    {"pp": 2, "dp": 2},
    {"tp": 8, "dp": 1},
    {"cp": 2, "dp": 2},
    {"zero": 3},
    {"pp": 4, "dp": 1, "virtual_stages": 2, "schedule": "zbv"},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
@pytest.mark.parametrize("framework", [None, "megatron-lm"])
def test_a_change_is_as_much_slower_as_cost_says(changes, framework):
    job = Job.of(B8, {"tp": 2, "dp": 4}, gpus=8, seq_len=8192, global_batch=32, recompute="none")
    judge = None if framework is None else lp.FRAMEWORKS[framework]
    degrees = {name: value for name, value in changes.items() if name in lp.Layout.__dataclass_fields__}
    others = {name: value for name, value in changes.items() if name not in degrees}
    new = job.replace(layout=job.layout.replace(**degrees), **others)
    known = {"seq_len": 8192, "global_batch": 32, "framework": framework}
    before = lp.cost(B8, job.layout, recompute="none", **known)
    after = lp.cost(B8, new.layout, **{"recompute": "none", **known, **others})
    assert effect(job, new, judge).time == pytest.approx(after.step_seconds / before.step_seconds)


def test_without_a_batch_both_jobs_have_the_usual_one():
    job = Job.of(B8, {"pp": 4, "dp": 2}, seq_len=8192)
    new = job.replace(layout=job.layout.replace(pp=2, dp=4))
    before, after = (lp.cost(B8, each.layout, seq_len=8192) for each in (job, new))
    expected = after.step_seconds / after.tokens * before.tokens / before.step_seconds
    assert effect(job, new, None).time == pytest.approx(expected)


# -- the pipeline of a job -------------------------------------------------------------------------


def test_rounds_of_the_flexible_schedule_are_a_fact_of_the_job(run):
    """In `check`, in both commands and in the panel it is the nc of `memory`."""
    layout = lp.Layout(pp=4, virtual_stages=2, dp=2)
    known = {"seq_len": 8192, "global_batch": 48, "micro_batch": 1, "schedule": "flexible"}
    known["nc"] = 6
    found = lp.memory(B70, layout, **known)
    assert found.high_bytes != lp.memory(B70, layout, **(known | {"nc": 4})).high_bytes
    report = lp.check(B70, layout, **known, gpu="h100-80gb")
    assert report.memory is not None
    gib = f"{found.figure()} GiB a rank"
    assert gib in report.memory.message
    line = "--model llama3.1-70b --pp 4 --dp 2 --virtual-stages 2 --seq-len 8192 --global-batch 48 "
    line += "--micro-batch 1 --schedule flexible --nc 6 --gpu h100-80gb"
    assert gib in run(f"check {line}")[1]
    assert f"{found.worst.total_bytes / GIB:.2f} GiB >" in run(f"memory {line}")[1]
    panel = lp.explorer(B70, tp=1, pp=4, dp=2, virtual_stages=2, zero=1, tab="memory", **known)
    assert found.verdict in panel.snapshot().summary
    panel.set(schedule="1f1b")  # what was typed stays, and waits for its schedule
    assert panel.report is not None
    assert panel.report.job.nc is None


def test_micro_batches_that_nobody_said_are_as_many_everywhere():
    job = Job.of(B8, {"pp": 4, "virtual_stages": 2, "dp": 2}, seq_len=1024)
    many = job.layout.usual_micro_batches
    assert many == 8
    every = lp.memory(B8, job.layout, seq_len=1024, schedule="gpipe").stages
    assert every == lp.memory(B8, job.layout, seq_len=1024, schedule="gpipe", global_batch=2 * many).stages
    drawn = lp.explorer(B8, tp=1, pp=4, dp=2, virtual_stages=2, seq_len=1024, tab="pipeline").snapshot()
    assert f"{many} micro-batches" in drawn.summary


def weight(value):
    """Bytes of a value and all that it holds; of functions what they close over."""
    seen, stack, total = set[int](), [value], 0
    while stack:
        one = stack.pop()
        if id(one) in seen or isinstance(one, type | ModuleType):
            continue
        seen.add(id(one))
        total += sys.getsizeof(one)
        closed = one.__closure__ or () if isinstance(one, FunctionType) else None
        stack.extend(gc.get_referents(one) if closed is None else (cell.cell_contents for cell in closed))
    return total


def test_what_is_remembered_of_jobs_stays_below_a_process_that_grows():
    """A panel asks for thousands of jobs; one of 16 stages is a large one."""
    model, layout = lp.model("llama3.1-405b"), lp.Layout(tp=8, pp=16, dp=128)
    found = memory_rule.load_of(Job.of(model, layout, seq_len=8192, gpu="h100-80gb"))
    assert found is not None
    assert found.memory.low_bytes < found.memory.high_bytes
    most = memory_rule.load_of.cache_info().maxsize
    assert most is not None
    assert weight(found) * most < 64 * 2**20
