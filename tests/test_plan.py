"""The search for a layout: closed forms against the functions that they stand for, and what is shown."""

import itertools
import json
import re
from collections import Counter
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llamapar as lp
from llamapar.count.in_flight import in_flight
from llamapar.count.terms import SHARES
from llamapar.describe.hardware import HARDWARE
from llamapar.describe.job import Job
from llamapar.frameworks import Framework
from llamapar.place.orders import ORDERS
from llamapar.place.schedule import ends_of, schedule_of, walk_of
from llamapar.rules.memory_rule import least_bytes, memory_of
from llamapar.rules.severity import codes, severities
from llamapar.rules.table import ERROR
from llamapar.timing.layer import Conditions
from llamapar.timing.plan import SLOW, Plan
from llamapar.timing.ranking import TIE
from llamapar.timing.search import (
    Candidate,
    candidates,
    kept_bytes,
    splits_of,
)
from llamapar.timing.stagings import SPLIT, waits_of

ORACLES = Path(__file__).parent / "oracles"
SMALL: dict[str, Any] = {"gpus": 8, "seq_len": 8192, "global_batch": 16}


@cache
def small(**changes: Any) -> Plan:
    return lp.plan("llama3-8b", **SMALL | changes)


# -- closed forms ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_the_bubble_is_the_tables(name):
    for pp, stages, many in itertools.product((2, 4, 8), (1, 2, 4), (1, 2, 3, 4, 8, 16)):
        waits = schedule_of(name, pp, stages, many).timeline(forward=1, backward=2).end - 3 * many * stages
        assert waits == waits_of(name, pp, stages, many, 1, 2), (pp, stages, many)


@pytest.mark.parametrize("name", ORDERS)
def test_a_walk_without_records_is_the_tables(name):
    checked = 0
    for pp, stages, many in itertools.product((1, 2, 4), (1, 2, 3), (2, 5, 8)):
        with suppress(lp.LayoutError):  # not defined
            table = schedule_of(name, pp, stages, many)
            assert walk_of(name, pp, stages, many) == table.walked, (pp, stages, many)
            checked += 1
    assert checked > 3


@pytest.mark.parametrize("name", ["1f1b", "gpipe", *SPLIT])
def test_many_rounds_end_as_their_whole_table_does(name):
    """Of unlike stages; only some of the rounds are walked."""
    for pp, stages, many in ((2, 2, 64), (4, 2, 76), (8, 2, 128)):
        if name == "interleaved-zero-bubble":
            many -= many % pp
        kinds = [{"F": 1 + n % 3 / 9, "B": 2.0, "I": 1 + n % 5 / 9, "W": 1.0} for n in range(pp * stages)]
        whole = walk_of(name, pp, stages, many).ends(kinds, 0.2)
        assert ends_of(name, pp, stages, many, None, kinds, 0.2) == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize("name", SPLIT)
def test_the_bubble_of_split_backwards_is_the_tables(name):
    checked = 0
    for pp, stages, many in itertools.product((1, 2, 4, 8), (1, 2, 4), (1, 2, 4, 8, 16, 32)):
        with suppress(lp.LayoutError):  # not defined
            table = schedule_of(name, pp, stages, many)
            if many >= (2 * pp if table.placement == "v" else pp):
                waits = table.timeline(forward=1, backward=2).end - 3 * many * stages
                assert waits == waits_of(name, pp, stages, many, 1, 2), (pp, stages, many)
                checked += 1
    assert checked > 10


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_account_of_memory_is_below_the_least(data):
    """Else a layout that may fit would be lost: by the lower end of what is not known, whoever trains."""
    judge = data.draw(st.sampled_from(JUDGES))
    job = SIXTEEN
    found = data.draw(st.sampled_from(every(judge)))
    made = found.job(job)
    try:
        held = memory_of(made, judge)
    except lp.LlamaparError:  # a schedule that is not defined for it
        return
    split = found.layer_split or splits_of(judge)[0]
    counts = lp.stages(job.model, made.layout, layer_split=split).counts
    shards, many = found.cp * found.dp, 64 // found.dp // found.micro_batch
    each, expected = kept_bytes(job.model, found.tp, 4096, found.recompute, False, judge)
    assert each <= expected
    for rank in range(min(2, found.pp)):
        layers = counts[rank :: found.pp]
        numel = sum(layers) * job.model.layer_params / found.tp
        least = least_bytes(numel, found.zero, shards, judge)
        flying = in_flight("1f1b", rank, found.pp, found.virtual_stages, many)
        kept = each * found.micro_batch / found.cp
        kept *= sum(n * chunks for n, chunks in zip(layers, flying, strict=True))
        assert least <= held.low_bytes
        first = least_bytes(numel, found.zero, shards, judge, many > 1)
        assert max(first, (first + kept) * SHARES["needs"][0]) <= held.low_bytes


JUDGES = [None, *(lp.FRAMEWORKS[name] for name in ("megatron-lm", "torchtitan", "picotron", "colossalai"))]
SIXTEEN = Job.of("llama3-8b", lp.Layout(), seq_len=4096, global_batch=64)


@cache
def every(judge: Framework | None) -> list[Candidate]:
    return [*map(Candidate._make, candidates(SIXTEEN, Conditions(HARDWARE["h100-80gb"]), 16, judge))]


def test_no_layout_that_passes_is_left_out():
    """Every layout of sixteen ranks in the search's own choices that `check` passes and that may fit."""
    job = SIXTEEN.replace(gpus=16, gpu="h100-80gb")
    plain = [c for c in every(None) if (c.micro_batch, c.virtual_stages) == (1, 1)]
    there = {(c.tp, c.cp, c.pp, c.dp, c.zero) for c in plain}
    for tp, cp, pp, zero in itertools.product((1, 2, 4, 8, 16), (1, 2, 4), (1, 2, 4), (1, 3)):
        dp, rest = divmod(16, tp * cp * pp)
        if rest or dp * cp == 1 < zero:
            continue
        layout = lp.Layout(tp=tp, cp=cp, pp=pp, dp=dp, zero=zero)
        made = job.replace(layout=layout, micro_batch=1, recompute="full")
        passes = not codes(severities(made, None), ERROR) and memory_of(made).outcome != "does not fit"
        assert not passes or (tp, cp, pp, dp, zero) in there, layout


# -- the plan --------------------------------------------------------------------------------------


def test_layouts_are_the_fastest_first_and_each_passes_and_fits():
    found = small()
    times = [(one.outcome == "tight", one.cost.step_seconds) for one in found.layouts]
    assert times == sorted(times)
    assert len(times) == 10
    assert found.complete
    # the fastest of its degrees, and beside it at most one that surely fits
    assert max(Counter(one.degrees for one in found.layouts).values()) <= 2
    for one in found.layouts:
        lay, job = one.layout, one.job
        assert lay.world == 8
        options = {"micro_batch": job.micro_batch, "global_batch": 16, "recompute": job.recompute}
        assert lp.check("llama3-8b", lay, gpus=8, seq_len=8192, gpu="h100-80gb", **options).ok
        held = lp.memory("llama3-8b", lay, seq_len=8192, **options)
        assert (one.memory_bytes, one.held.high_bytes) == (held.worst.total_bytes, held.high_bytes)
        assert held.outcome != "does not fit"
        assert one.outcome in (held.outcome, "tight")
        assert lp.cost("llama3-8b", lay, seq_len=8192, **options).step_seconds == one.cost.step_seconds


def test_layouts_that_do_not_fit_take_no_place_from_those_that_may():
    """Of each degrees for which something may fit, one layout is listed, unless it is a slow one."""
    gpu, judge = {"base": "h100-80gb", "hbm_bytes": 24 * 2**30}, lp.FRAMEWORKS["megatron-lm"]
    job = {"gpus": 8, "seq_len": 8192, "global_batch": 16, "gpu": gpu}
    found = lp.plan("llama3-8b", **job, framework=judge.name, top=1000)
    fastest = min(one.cost.step_seconds for one in found.layouts if one.outcome != "tight")
    may_fit = set()
    for candidate in map(Candidate._make, found.asked.candidates()):
        made = candidate.job(found.asked.job)
        if candidate.seconds > SLOW * fastest or codes(severities(made, judge), ERROR):
            continue
        with suppress(lp.LlamaparError):
            if memory_of(made, judge).low_bytes <= gpu["hbm_bytes"]:
                may_fit.add((candidate.tp, candidate.cp, candidate.pp, candidate.dp))
    assert {tuple(one.degrees) for one in found.layouts} == may_fit
    assert len(may_fit) > 5


def test_the_picture_s_axes_fit_its_points():
    """Layouts within some percent of each other fill the height: neither axis is made to begin at zero."""
    spec = lp.view(small()).spec
    for name in ("xaxis", "yaxis"):
        axis = spec["layout"][name]
        assert "range" not in axis
        assert axis.get("rangemode", "normal") != "tozero"


def test_the_answer_is_the_same_every_time():
    again = lp.plan("llama3-8b", 8, seq_len=8192, global_batch=16)  # GPUs may be given by place
    assert again.asked == small().asked
    assert [one.as_dict() for one in again.layouts] == [one.as_dict() for one in small().layouts]


@pytest.mark.parametrize("name", ["dualpipev", "flexible"])
def test_what_a_schedule_is_not_made_for_is_left_out(name):
    """Too few micro-batches for the one, a short last round for the other."""
    found = small(schedule=name, global_batch=24)
    assert found.layouts
    assert {one.job.schedule for one in found.layouts} == {name}


JOBS = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["llama3.2-1b", "llama3-8b"]),
        "gpus": st.sampled_from([4, 8, 12, 16]),
        "seq_len": st.sampled_from([2048, 8192]),
        "global_batch": st.sampled_from([16, 48]),
        "schedule": st.sampled_from(["1f1b", "gpipe", "zbv"]),
    }
)


def best_seconds(**job: Any) -> float:
    """Of the fastest layout; infinite where none fits."""
    layouts = lp.plan(job.pop("model"), **job, top=1).layouts
    return layouts[0].cost.step_seconds if layouts else float("inf")


@settings(max_examples=5)
@given(JOBS, st.floats(0.2, 1.0), st.floats(1.0, 2.0))
def test_more_memory_never_loses_a_layout(job, share, more):
    size = round(HARDWARE["h100-80gb"].hbm_bytes * share)
    sizes = [size, round(size * more)]
    less, larger = (lp.plan(**job, gpu={"base": "h100-80gb", "hbm_bytes": n}, top=3) for n in sizes)
    assert larger.considered >= less.considered
    if less.layouts:
        assert larger.best.cost.step_seconds <= less.best.cost.step_seconds
        for one in less.layouts:
            how = one.job.micro_batch, one.job.recompute, one.job.schedule
            assert not larger.why(one.layout, *how).startswith("stage")


@settings(max_examples=5)
@given(JOBS, st.sampled_from(["net_rate", "link_rate", "hbm_rate", "bfloat16"]), st.floats(1.0, 4.0))
def test_no_plan_is_slower_on_faster_hardware(job, field, more):
    faster = {"base": "h100-80gb", field: getattr(HARDWARE["h100-80gb"], field) * more}
    assert best_seconds(**job, gpu=faster) <= best_seconds(**job) * (1 + 1e-12)


@settings(max_examples=5)
@given(JOBS)
def test_no_plan_is_slower_on_twice_the_gpus(job):
    twice = job | {"gpus": 2 * job["gpus"]}
    assert best_seconds(**twice) <= best_seconds(**job)


def test_the_frontier_falls_in_memory():
    sizes = [one.memory_bytes for one in small().frontier]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == small().best.memory_bytes


def test_a_comparison_sums_to_its_net():
    """Losses, gains and others are all of it; what is nearer than the measured error is a tie."""
    found = small()
    best = found.best.cost
    for one in found.layouts[1:]:
        terms, _, end = one.why.partition(" = ")
        parts = [float(word.replace("−", "-")) for word in re.findall(r"[+−]\S+(?= s )", terms)]
        net = one.cost.step_seconds - best.step_seconds
        assert sum(parts) == pytest.approx(net, abs=0.06 * max(map(abs, [*parts, net])))
        assert ("a tie" in end) == (abs(net) < TIE * best.step_seconds)
        assert (one.place == "1=") == ("a tie" in end and one.outcome != "tight")


def test_what_takes_from_the_headroom_comes_last_and_is_marked():
    for headroom, free in ((0.2, 0.2 * HARDWARE["h100-80gb"].hbm_bytes), (30.0, 30 * 2**30)):
        found = small(headroom=headroom, framework="torchtitan")
        room = HARDWARE["h100-80gb"].hbm_bytes
        for one in found.layouts:
            assert (one.outcome == "tight") == (one.held.expected_bytes > room - free)
            assert one.outcome in ("tight", one.held.outcome)
        tight = [one.outcome == "tight" for one in found.layouts]
        assert tight == sorted(tight)
    assert "tight" not in {one.outcome for one in small(headroom=0.0).layouts}
    narrow = small(headroom=50.0, framework="torchtitan", top=60)
    below = [one for one in narrow.layouts if one.why.endswith(" faster; below, because it is tight")]
    assert below == [o for o in narrow.layouts if o.cost.step_seconds < narrow.best.cost.step_seconds] != []
    with pytest.raises(lp.LayoutError, match=r"^headroom=-1: headroom must be a number"):
        small(headroom=-1)


def test_copies_of_the_shards_are_searched():
    """HSDP of a large group: reductions stay in a part of it, and the step is no slower for it."""
    found = lp.plan("llama3-8b", gpus=256, seq_len=8192, global_batch=256, framework="torchtitan", top=50)
    copied = [one for one in found.layouts if one.layout.dp_replicate > 1]
    assert copied
    whole = [found.asked.timed(one.job.replace(layout=one.layout.replace(dp_replicate=1))) for one in copied]
    seconds = [(one.cost.step_seconds, other.step_seconds) for one, other in zip(copied, whole, strict=True)]
    assert any(one < other for one, other in seconds)
    assert all(one < other * 1.01 for one, other in seconds)


def test_a_search_can_be_watched_and_stopped():
    seen = []
    watched = {"progress": lambda *now: seen.append(now), "cancel": lambda: len(seen) > 20}
    found = lp.plan("llama3-8b", **SMALL, **watched)
    assert (found.complete, len(seen)) == (False, 21)
    assert found.layouts
    assert "stopped, the best so far" in str(found)


# -- what may fit, and what a trainer has ----------------------------------------------------------


META: dict[str, Any] = {"gpus": 16384, "seq_len": 8192, "global_batch": 2048}
"""Table 4 of the Llama 3 paper, its second row."""


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(JUDGES), st.data())
def test_why_and_memory_agree(judge, data):
    """A plan refuses nothing that `lp.memory` calls undecided, and nothing else fits in its words."""
    found = planned(judge)
    job = data.draw(st.sampled_from(every(None))).job(found.asked.job)
    if codes(severities(job, judge), ERROR):
        return
    told = found.why(job.layout, job.micro_batch, job.recompute)
    outcome = memory_of(job, judge).outcome
    assert ("undecided" in told) == (outcome == "undecided")
    assert ("GiB" in told and "undecided" not in told) == (outcome == "does not fit")


@cache
def planned(judge: Framework | None) -> Plan:
    return lp.plan("llama3-8b", gpus=16, seq_len=4096, global_batch=64, framework=judge, top=1)


@pytest.mark.parametrize("name", [name for name, one in lp.FRAMEWORKS.items() if one.trains])
def test_only_what_the_trainer_has_is_tried(name):
    judge = lp.FRAMEWORKS[name]
    for one in every(judge):
        assert one.zero in judge.zero or one.dp * one.cp == 1
        assert one.virtual_stages == 1 or judge.interleaves
        assert one.dp_replicate == 1 or judge.hsdp
        assert one.layer_split in ("", *judge.layer_splits)
    # FSDP shards gradients with or without weights; whatever else is missing has a source.
    fsdp = {2, 3} <= {*judge.zero}
    assert "zero" in judge.sources or fsdp or name == "internevo"


def test_megatrons_flags_for_both_ends_are_tried():
    """126 layers split evenly over two ranks at most; with both ends counted in they split as Meta's."""
    found = lp.plan("llama3.1-405b", **META, framework="megatron", top=5)
    deep = next(one for one in found.layouts if one.layout.pp > 2)
    assert deep.job.layer_split == "balanced ends"
    assert deep.cost.mfu > 0.4
    assert "layers" in str(found).splitlines()[1]
    assert "balanced ends" in str(found)
    own = lp.Layout(tp=8, cp=2, pp=16, dp=64, virtual_stages=8)
    assert re.search(r" s: \d\.\d% (slower|faster), a tie$", found.why(own, 1, "none"))


# -- what others chose -----------------------------------------------------------------------------


ZEROS = {"fsdp": 3, "zero1": 1}
"""Beginning of a strategy's name in plans.json → its ZeRO stage."""


@pytest.mark.parametrize(
    "gpus", [8, *(pytest.param(gpus, marks=pytest.mark.soak) for gpus in (64, 256, 1024, 16384))]
)
def test_no_layout_of_another_optimizer_is_faster(gpus):
    """zhebrak's, for the same jobs, from each of its starts: a fixture of what its own code answered."""
    rows = json.loads((ORACLES / "plans.json").read_text())["rows"]
    rows = [row for row in rows if row["success"] and row["gpus"] == gpus]
    assert rows
    for row in rows:
        known = {name: row[name] for name in ("seq_len", "global_batch")}
        best = lp.plan(row["model"], gpus=gpus, **known).best
        tp, cp, pp = row["tp"], row["cp"], row["pp"]
        zero = next(stage for word, stage in ZEROS.items() if row["strategy"].startswith(word))
        layout = lp.Layout(tp=tp, cp=cp, pp=pp, dp=gpus // (tp * cp * pp), zero=zero)
        layout = layout.replace(virtual_stages=row["virtual_stages"] if pp > 1 else 1)
        how = {name: row[name] for name in ("micro_batch", "recompute")}
        theirs = lp.cost(row["model"], layout, **known, **how)
        assert best.cost.step_seconds <= theirs.step_seconds, row
