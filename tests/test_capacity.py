"""Memory as a rule of `check`: when it is judged, what it says, and fixes that fit, with their price."""

from __future__ import annotations

import gc
import sys
from types import FunctionType, ModuleType
from typing import Any

import pytest

import llamapar as lp
from llamapar.count.wire import block_rounds
from llamapar.describe.hardware import GPUS
from llamapar.describe.job import Job
from llamapar.describe.layout import AXES
from llamapar.rules import memory_rule, price
from llamapar.rules.table import ERROR, MEMORY, NOTE, WARNING

B8, B70, B405 = "llama3-8b", "llama3.1-70b", "llama3.1-405b"
GIB = 2**30
WIDE = {"model": B8, "layout": {"tp": 8, "dp": 8}, "seq_len": 8192, "micro_batch": 8, "recompute": "none"}
"""A job whose account is wide: what TP gathers is kept, or not."""


def finding_of(report: lp.Report) -> tuple[str, str] | None:
    return (report.memory.code, report.memory.severity) if report.memory else None


# -- when, and how bad ---------------------------------------------------------------------------


@pytest.mark.parametrize("seq_len", [None, 8192])
def test_a_layout_that_holds_too_much(seq_len: int | None) -> None:
    """70B over dp=64 alone: 407 GiB of states on each rank, with or without activations."""
    known: dict[str, Any] = {"gpus": 64, "seq_len": seq_len}
    without = lp.check(B70, {"dp": 64}, **known)
    assert (without.ok, finding_of(without)) == (True, ("LP511", NOTE))
    assert "no GPU that is known holds that" in without.findings[0].message
    named = lp.check(B70, {"dp": 64}, **known, gpu="h100-80gb")
    assert (named.ok, finding_of(named)) == (False, ("LP511", ERROR))
    assert "and h100-80gb has 79.65" in named.findings[0].message
    assert named.errors == (named.memory,)


def test_it_says_the_number_of_lp_memory(run: Any) -> None:
    line = "--model llama3.1-70b --dp 64 --gpus 64 --seq-len 8192 --gpu h100-80gb"
    found = lp.memory(B70, {"dp": 64}, seq_len=8192)
    status, out, err = run(f"check {line}")
    assert (status, err) == (1, "")
    assert f"{found.low_bytes / GIB:.2f} to {found.high_bytes / GIB:.2f} GiB a rank" in out
    assert f"{found.worst.total_bytes / GIB:.2f} GiB >" in run(f"memory {line}")[1]


def test_without_a_gpu_a_note_names_those_that_hold_it() -> None:
    found = lp.memory(**WIDE)
    holds = [gpu for gpu, size in GPUS.items() if found.high_bytes <= size]
    perhaps = [gpu for gpu, size in GPUS.items() if found.low_bytes <= size < found.high_bytes]
    assert holds
    assert perhaps
    message = lp.check(**WIDE).findings[0].message
    assert message.endswith(
        f"that fits {', '.join(holds)}, perhaps {', '.join(sorted(perhaps, key=GPUS.__getitem__))}"
    )
    assert set(perhaps) == {"a100-40gb", "h100-80gb", "a100-80gb", "h100-96gb"}


def test_what_every_known_gpu_holds_is_not_worth_a_note() -> None:
    assert lp.check(B8, {"tp": 8}, seq_len=8192).findings == ()
    assert finding_of(lp.check(B8, {"tp": 8})) is None


def test_an_estimate_that_straddles_is_undecided_and_does_not_refuse() -> None:
    report = lp.check(**WIDE, gpu="h100-80gb")
    assert (report.ok, finding_of(report)) == (True, ("LP512", WARNING))
    assert report.findings[0].why.startswith("framework=")
    assert not lp.check(**{**WIDE, "layout": {"tp": 8, "dp": 8}}, gpu="h100-80gb", gpus=9).ok
    assert lp.check(**WIDE, gpu="h100-80gb", regather=True).memory is None
    told = lp.check(**WIDE, gpu="h100-80gb", framework="torchtitan")  # which gathers once, and keeps it
    assert (told.ok, finding_of(told)) == (False, ("LP511", ERROR))


def test_without_a_sequence_length_activations_are_said_to_be_missing() -> None:
    report = lp.check(B8, {"tp": 8}, gpu="h100-80gb")
    assert (report.ok, finding_of(report)) == (True, ("LP513", NOTE))
    states = ("parameters", "gradients", "master weights", "optimizer states")
    whole = lp.memory(B8, {"tp": 8}, seq_len=8192).worst
    counted = memory_rule.account(report.job).memory.worst
    assert counted.bytes(*states) == whole.bytes(*states) > 0
    assert not [term.name for term in counted.terms if term.name.startswith(("activations", "logits"))]


def test_a_framework_that_only_serves_is_not_refused_for_training() -> None:
    job = {"model": B70, "layout": {"tp": 8}, "seq_len": 8192, "gpu": "h100-80gb"}
    for name, framework in lp.FRAMEWORKS.items():
        report = lp.check(**job, framework=name)
        assert report.memory is not None
        assert report.memory.severity == (ERROR if framework.trains else NOTE)
        told = f"of training, which {framework.title} does not do"
        assert (told in report.memory.why) == (not framework.trains)


def test_a_judge_that_copies_kv_heads_is_counted_with_its_copies() -> None:
    asked = {"model": B8, "layout": {"tp": 16}, "gpus_per_node": 16, "seq_len": 8192, "gpu": "a100-40gb"}
    assert lp.check(**asked).memory is None  # nothing to count: tp cuts through a head
    job = lp.check(**asked, framework="megatron-lm").job
    found = memory_rule.load_of(job, lp.FRAMEWORKS["megatron-lm"])
    assert found is not None
    said = lp.memory(B8, {"tp": 16}, seq_len=8192, kv_replication=True, framework="megatron-lm")
    assert found.memory.high_bytes == said.high_bytes


def test_without_a_gpu_nothing_is_counted_until_somebody_reads_the_findings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[Job] = []
    monkeypatch.setattr(memory_rule, "finding_of", lambda job, judge=None: counted.append(job))
    report = lp.check(B70, {"dp": 64}, gpus=64)
    assert (report.ok, report.errors, counted) == (True, (), [])
    assert report.findings == ()
    assert len(counted) == 1
    assert lp.check(B70, {"dp": 64}, gpu="h100-80gb").ok
    assert len(counted) == 2


@pytest.mark.parametrize("value", ["h100", "H100-80GB", "", 80, True, [1]])
def test_a_gpu_that_is_not_known_is_refused(value: Any) -> None:
    with pytest.raises(lp.LayoutError, match=r"^gpu=.* is not known\n  why  known are a100-40gb, "):
        lp.check(B8, {}, gpu=value)


# -- fixes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "job",
    [
        {"model": B70, "layout": {"dp": 64}, "gpus": 64, "seq_len": 8192},
        {"model": B70, "layout": {"dp": 64}, "gpus": 64},
        {"model": B405, "layout": {"tp": 8, "pp": 16, "dp": 128}, "gpus": 16384, "seq_len": 8192},
        {"model": B405, "layout": {"tp": 16, "pp": 16, "dp": 64}, "gpus": 16384, "seq_len": 8192},
        {"model": B70, "layout": {"tp": 8}, "gpus": 64, "seq_len": 8192},
        {"model": B70, "layout": {"tp": 8}, "gpus": 8, "framework": "colossalai", "seq_len": 8192},
        WIDE,
    ],
    ids=str,
)
def test_every_fix_fits_whatever_it_mends(job: dict[str, Any]) -> None:
    report = lp.check(**job, gpu="h100-80gb")
    offered = [(finding.rule, fix) for finding in report.findings for fix in finding.fixes]
    assert offered
    for rule, fix in offered:
        after = lp.check(fix.job.model, fix.layout, **known(fix.job), framework=job.get("framework"))
        assert after.ok, fix
        if rule in MEMORY or "framework" in job:
            assert after.memory is None or after.memory.severity == NOTE
        elif after.memory:  # of a layout for another reason, what any trainer may do is said
            assert (after.memory.code, memory_rule.has_room(fix.job)) == ("LP512", True)
            assert ": at most " in str(fix)
        assert f"{fix.effect.load.memory.high_bytes / GIB:.2f} GiB" in str(fix)


def known(job: Job) -> dict[str, Any]:
    return {name: getattr(job, name) for name in Job.__dataclass_fields__ if name not in ("model", "layout")}


def test_a_nearer_fix_that_does_not_fit_is_passed_over() -> None:
    """Of 64 GPUs for 405B, dp=8 is the nearest to turn; it fits no H100, and what is offered does."""
    job = {"model": B70, "layout": {"tp": 8}, "gpus": 16, "seq_len": 8192}
    nearest = lp.check(**job).fixes[0]
    assert nearest.text == "dp=2 (8·1·1·2 = 16 ranks)"
    assert nearest.text not in [fix.text for fix in lp.check(**job, gpu="h100-80gb").fixes]


def test_without_a_gpu_fixes_that_fit_none_come_last() -> None:
    job = {"model": B405, "layout": {"tp": 8}, "gpus": 64, "seq_len": 8192}
    report = lp.check(**job)
    room = [memory_rule.has_room(fix.job) for fix in report.fixes]
    assert room == sorted(room, reverse=True)


# -- the price -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layout",
    [{"tp": 4}, {"tp": 4, "sequence_parallel": False}, {"cp": 4}, {"tp": 2, "cp": 4}, {"dp": 8}],
    ids=str,
)
def test_bytes_on_the_wire_are_those_of_traffic(layout: dict[str, Any]) -> None:
    """The collectives of a block, which traces of runs witness, sent over a ring."""
    model = lp.model("tiny").replace(n_layers=1)
    job = Job.of(model, {"zero": 0, **layout}, seq_len=512, global_batch=8)
    asked = lp.traffic("block", model, job.layout, seq_len=512, global_batch=8, dtype="bfloat16")
    sent = dict.fromkeys(AXES, 0.0)
    for term in asked.terms:
        if term.phase != "gradients" or term.axis == "dp":
            n = job.layout.size(term.axis)
            times = 2 if term.kind == "all_reduce" else 1
            wider = 2 if term.axis == "dp" else 1  # gradients are summed in float32
            sent[term.axis] += times * wider * (n - 1) / n * term.count * term.bytes
    found = price.wire_bytes(job, 512, 8)
    for axis in ("tp", "cp") if job.layout.dp == 1 else ("dp",):
        assert found[axis] == pytest.approx(sent[axis]), axis


def test_flops_are_six_a_parameter_and_token_and_what_is_computed_again() -> None:
    m = lp.model(B8)
    matmuls = m.n_params - m.vocab_size * m.dim - m.dim * (2 * m.n_layers + 1)
    attention = 6 * m.n_layers * 8192 * m.q_dim
    assert price.flops_a_token(m, 8192, "none") == 6 * matmuls + attention
    layers = matmuls - m.vocab_size * m.dim
    assert price.flops_a_token(m, 8192, "full") == 6 * matmuls + 2 * layers + attention * 4 / 3


def test_prices_in_words() -> None:
    job = Job.of(B8, {"tp": 2, "dp": 4}, gpus=8, seq_len=8192, global_batch=32, gpu="h100-80gb")

    def told(**changes: Any) -> list[str]:
        degrees = {name: changes.pop(name) for name in ("tp", "pp", "dp") if name in changes}
        return price.effect(job, job.replace(layout=job.layout.replace(**degrees), **changes), None).price

    assert told() == []
    assert told(recompute="full")[0] == "19% more FLOPs"
    assert told(dp=2)[-1] == "4 GPUs idle"
    assert told(pp=2, dp=2)[-1] == "GPUs idle 6% of a step in the pipeline, 0% before"
    assert told(tp=8, dp=1) == ["5.7 x the bytes on the wire"]


def test_the_wait_of_a_schedule_is_its_own() -> None:
    """Zero bubble on a V waits for less than 1F1B's formula says; a long table is not walked for a word."""
    job = Job.of(B8, {"pp": 4, "virtual_stages": 2}, seq_len=8192, global_batch=8, micro_batch=1)
    zbv = job.replace(schedule="zbv")
    walked = lp.schedule("zbv", pp=4, micro_batches=8).timeline().idle_share
    assert price.idle_share(zbv, 8) == pytest.approx(walked)
    assert walked < 3 / (2 * 8 + 3)
    for name in ("1f1b", "gpipe"):
        own = {"1f1b": "interleaved-1f1b", "gpipe": "looped-bfs"}[name]
        table = lp.schedule(own, pp=4, virtual_stages=2, micro_batches=8).timeline()
        assert price.idle_share(job.replace(schedule=name), 8) == pytest.approx(table.idle_share)
    assert price.idle_share(zbv, 8 * price.CHUNKS) is None
    assert price.idle_share(job.replace(schedule="dualpipev"), 4) is None  # it is not made for so few
    assert price.effect(job, zbv, None).idle_share == (pytest.approx(3 / 19), pytest.approx(walked))
    long = zbv.replace(global_batch=8 * price.CHUNKS)
    assert price.effect(job, long, None).idle_share is None


@pytest.mark.parametrize(("split", "recomputed", "rounds"), [(False, False, 8), (True, True, 12)])
def test_rounds_of_a_block(split: bool, recomputed: bool, rounds: int) -> None:
    """Megatron-LM's f and g, or their halves, twice a block (arXiv:2205.05198 section 4.2.2)."""
    assert block_rounds(split, recomputed) == {"tp": rounds, "cp": rounds // 2}


def test_a_price_that_is_not_known_is_not_said() -> None:
    job = Job.of(B8, {"tp": 2, "dp": 4})
    changed = job.replace(layout=lp.Layout(tp=8))
    assert price.effect(job, changed, None).text == ""
    assert price.effect(job, changed, None).as_dict()["wire"] is None


# -- the pipeline of a job -------------------------------------------------------------------------


def test_rounds_of_the_flexible_schedule_are_a_fact_of_the_job(run: Any) -> None:
    """In `check`, in both commands and in the panel it is the nc of `memory`."""
    layout = lp.Layout(pp=4, virtual_stages=2, dp=2)
    known: dict[str, Any] = {"seq_len": 8192, "global_batch": 48, "micro_batch": 1, "schedule": "flexible"}
    known["nc"] = 6
    found = lp.memory(B70, layout, **known)
    assert found.high_bytes != lp.memory(B70, layout, **(known | {"nc": 4})).high_bytes
    report = lp.check(B70, layout, **known, gpu="h100-80gb")
    assert report.memory is not None
    gib = f"{found.high_bytes / GIB:.2f} GiB a rank"
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


def test_micro_batches_that_nobody_said_are_as_many_everywhere() -> None:
    job = Job.of(B8, {"pp": 4, "virtual_stages": 2, "dp": 2}, seq_len=1024)
    many = job.layout.usual_micro_batches
    assert many == 8
    every = lp.memory(B8, job.layout, seq_len=1024, schedule="gpipe").stages
    assert every == lp.memory(B8, job.layout, seq_len=1024, schedule="gpipe", global_batch=2 * many).stages
    assert price.sequences_of(job) == 2 * many
    drawn = lp.explorer(B8, tp=1, pp=4, dp=2, virtual_stages=2, seq_len=1024, tab="pipeline").snapshot()
    assert f"{many} micro-batches" in drawn.summary


def weight(value: object) -> int:
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


def test_what_is_remembered_of_jobs_stays_below_a_process_that_grows() -> None:
    """A panel asks for thousands of jobs; one of 16 stages is a large one."""
    model, layout = lp.model("llama3.1-405b"), lp.Layout(tp=8, pp=16, dp=128)
    found = memory_rule.load_of(Job.of(model, layout, seq_len=8192, gpu="h100-80gb"))
    assert found is not None
    assert found.memory.low_bytes < found.memory.high_bytes
    most = memory_rule.load_of.cache_info().maxsize
    assert most is not None
    assert weight(found) * most < 64 * 2**20
