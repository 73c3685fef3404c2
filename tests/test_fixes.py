"""Every fix is itself checked from scratch: it passes, ends its finding and keeps the GPUs."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings

import llamapar as lp
from inputs import drawn, jobs
from llamapar.describe.hardware import HARDWARE
from llamapar.describe.job import Job
from llamapar.describe.layout import AXES
from llamapar.rules import memory_rule
from llamapar.rules.fix import Fix
from llamapar.rules.report import Finding
from llamapar.rules.severity import unproven
from llamapar.rules.table import RULE_BY_CODE
from llamapar.timing.fixes import MOST, _passing

B8, B70, B405 = "llama3-8b", "llama3-70b", "llama3.1-405b"


def checked_anew(arguments: dict[str, Any], fix: Fix) -> lp.Report:
    """`lp.check` with the words of a fix, as a person would type them over what they gave before."""
    report = lp.check(**{**arguments, **dict(fix.changes)})
    assert report.job.layout == fix.layout
    return report


def assert_fixes_hold(arguments: dict[str, Any]) -> None:
    report = lp.check(**arguments)
    warned = {f.code for f in report.findings if f.severity == "warning"}
    for finding in report.findings:
        assert len(finding.fixes) <= MOST
        assert not finding.fixes or finding.severity != "note"
        assert len({fix.text for fix in finding.fixes}) == len(finding.fixes)
        for fix in finding.fixes:
            after = checked_anew(arguments, fix)
            assert after.ok, f"{finding.code}: {fix.text}"
            left = {f.code: f.severity for f in after.findings}
            assert left.get(finding.code, "note") == "note", f"{finding.code}: {fix.text}"
            # what surely did not fit, and a fix of another rule, may leave open what a framework decides
            open_too = {memory_rule.OPEN} if finding.code != memory_rule.OPEN else set()
            assert {code for code, s in left.items() if s == "warning"} <= warned | open_too
            changes = dict(fix.changes)
            assert changes, "a fix changes something"

            # vLLM may leave some GPUs idle, and Megatron makes another dp.
            other = left.get("LP001") in ("note", "warning")
            if arguments.get("gpus") is not None and not other:
                assert fix.layout.world == changes.get("gpus", arguments["gpus"])
    assert report.fixes == next((f.fixes for f in report.findings if f.fixes), ())


@pytest.mark.soak
@settings(max_examples=settings.default.max_examples // 3)
@given(jobs())
def test_every_fix_passes_check_and_ends_its_finding(arguments):
    assert_fixes_hold(arguments)


def test_a_step_smaller_than_a_micro_batch_gets_no_fix_of_no_micro_batch():
    assert_fixes_hold({"model": B8, "tp": 1, "micro_batch": 2, "global_batch": 1, "micro_batches": 1})


def test_fixes_of_common_slips(counts):
    """Some TP, CP, PP and DP on preset models: what people really type."""
    cases = [
        {
            "model": name,
            "tp": tp,
            "cp": cp,
            "pp": pp,
            "dp": dp,
            "gpus": gpus,
            "seq_len": s,
            "framework": judge,
        }
        for name in (B8, B405, "qwen2.5-7b", "llama3.2-1b")
        for tp in (1, 2, 3, 6, 8, 16, 64)
        for cp, s in ((1, 8192), (2, 8192), (4, 8188))
        for pp in (1, 4, 16)
        for dp in (1, 6)
        for gpus in (tp * cp * pp * dp, 64)
        for judge in (None, *lp.FRAMEWORKS)
    ]
    for arguments in drawn(cases, counts(50, 120, len(cases))):
        assert_fixes_hold(arguments)


# -- what is offered -------------------------------------------------------------------------------


@pytest.mark.parametrize("seq_len", [1, 6, 100, 200, 420, 421])
def test_the_list_of_valid_degrees_is_whole_or_ends_in_dots(seq_len):
    """`check` accepts each of them, and no other without dots."""
    (finding,) = (f for f in lp.check("tiny", cp=8, seq_len=seq_len).errors if f.code == "LP201")
    listed = finding.why.rpartition("cp may be ")[2].split(", ")
    accepted = []
    for cp in range(1, seq_len + 1):
        refused = [f for f in lp.check("tiny", cp=cp, seq_len=seq_len).errors if f.code == "LP201"]
        if not refused:
            accepted.append(str(cp))
    assert listed == (accepted if len(accepted) <= 12 else [*accepted[:12], "…"])
    assert ("50" in listed) is (seq_len in (100, 200)), "100 tokens are cut into 2 · 50 chunks"


# -- on the GPUs that are there --------------------------------------------------------------------


def too_much(seed: int, many: int) -> Iterator[tuple[dict[str, Any], Finding]]:
    """Random layouts against which nothing is but memory."""
    rng = random.Random(seed)
    while many:
        model, gpus = rng.choice(
            [(B8, 16), (B8, 64), ("llama3.1-70b", 64), ("llama3.1-70b", 256), (B405, 1024)]
        )
        tp, cp, pp = (rng.choice(ways) for ways in ((1, 1, 2, 4), (1, 1, 2, 4), (1, 1, 2, 4)))
        dp, micro_batch = max(1, gpus // (tp * cp * pp)), rng.choice([1, 2, 4, 8])
        arguments: dict[str, Any] = {
            "model": model,
            "layout": lp.Layout(tp=tp, cp=cp, pp=pp, dp=dp, zero=rng.choice(range(4))),
            "seq_len": rng.choice([4096, 8192]),
            "micro_batch": micro_batch,
            "global_batch": dp * micro_batch * rng.choice([1, 4, 16]),
            "recompute": rng.choice(["none", "selective", "full"]),
            "framework": rng.choice([None, None, "torchtitan", "megatron"]),
            "gpus": gpus,
            "gpu": rng.choice(["h100-80gb", "a100-80gb"]),
        }
        found = lp.check(**arguments).errors
        if [finding.code for finding in found] == ["LP511"]:
            many -= 1
            yield arguments, found[0]


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.soak) for n in range(2, 12))])
def test_no_fix_buys_gpus_while_a_layout_on_the_given_ones_passes(seed):
    """Of 45 such layouts 13 had no fix and 3 another GPU, where a plan lists thousands on the same ones."""
    for arguments, finding in too_much(seed, 12):
        fixes = finding.fixes
        words = {name for fix in fixes for name, _ in fix.changes}
        if fixes and not words & {"gpu", "gpus"}:
            assert all(fix.layout.world == arguments["gpus"] for fix in fixes)
            continue
        known = {k: arguments[k] for k in ("gpus", "seq_len", "global_batch", "gpu", "framework")}
        assert not lp.plan(arguments["model"], **known).layouts, arguments


@pytest.mark.parametrize(
    ("model", "layout", "gpu", "known"),
    [
        (B8, {"tp": 2, "zero": 2}, "a100-80gb", dict(gpus=2, seq_len=32768, global_batch=2)),
        ("llama3.1-70b", {"tp": 4, "dp": 4}, "a100-40gb", dict(gpus=16, seq_len=8192, global_batch=16)),
    ],
)
def test_what_may_fit_here_comes_before_larger_gpus(model, layout, gpu, known):
    """Nothing fits for sure, nor is expected to; a plan lists what some trainer may hold."""
    assert {one.held.outcome for one in lp.plan(model, gpu=gpu, **known).layouts} == {"undecided"}
    (finding,) = lp.check(model, layout, micro_batch=2, recompute="none", gpu=gpu, **known).errors
    assert finding.fixes
    for fix in finding.fixes:
        assert (str(fix.job.gpu), fix.layout.world) == (gpu, known["gpus"])
        assert fix.memory is not None
        assert fix.memory.within(HARDWARE[gpu].hbm_bytes) == "undecided"


@pytest.mark.parametrize(
    "facts",
    [
        dict(tp=2, cp=3, pp=8, dp=2, gpu="a100-80gb", global_batch=128, framework="torchtitan"),
        dict(tp=8, cp=3, pp=8, dp=1, gpu="h100-80gb", global_batch=64, framework="megatron"),
    ],
)
def test_a_fix_of_another_rule_neither_buys_gpus_nor_leaves_them_idle(facts):
    """Offered were 192 GPUs, and 96 of 128 on larger ones."""
    known = {"gpus": 128, "seq_len": 4096, **facts}
    assert lp.plan(B405, **{name: value for name, value in known.items() if name not in AXES}).layouts
    for finding in lp.check(B405, micro_batch=1, **known).errors:
        assert finding.fixes, finding.code
        assert {(str(fix.job.gpu), fix.layout.world) for fix in finding.fixes} == {(known["gpu"], 128)}


# -- the parts -------------------------------------------------------------------------------------


def test_a_layout_of_which_nobody_knows_whether_it_runs_is_no_fix():
    """What vLLM does with 8,192 tokens over cp=3 is not known; over dp=3 it is."""
    judge = lp.FRAMEWORKS["vllm"]
    job = Job.of(B8, lp.Layout(tp=12), gpus=12, seq_len=8192)
    unknown, known = (job.replace(layout=lp.Layout(tp=4, **{axis: 3})) for axis in ("cp", "dp"))
    assert unproven(unknown, judge)
    rule = RULE_BY_CODE["LP101"]
    assert [fix.job for fix in _passing(job, rule, judge, [unknown, known], MOST, set())] == [known]
    again = job.replace(layout=lp.Layout(tp=2, cp=6))  # what the rule itself doubts is no fix of it
    found = _passing(unknown, RULE_BY_CODE["LP201"], judge, [again, known], MOST, set())
    assert [fix.job for fix in found] == [known]
