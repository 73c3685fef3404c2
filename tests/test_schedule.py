"""Pipeline schedules: tables equal to torch's, and what is said of tables that cannot run."""

import dataclasses
import hashlib
import itertools
import json
from pathlib import Path

import pytest

import llamapar as lp
from llamapar.frameworks.dtensor import TORCH_1F1B, TORCH_ROUNDS
from llamapar.place.orders import ORDERS

ORACLE = json.loads((Path(__file__).parent / "oracles" / "schedules.json").read_text())["cases"]


def digest(schedule: lp.Schedule) -> str:
    text = "\n".join(" ".join(map(str, row)) for row in schedule.ranks)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def refused(message: str) -> bool:
    return " " in message


# -- torch's own tables ----------------------------------------------------------------------------


def test_tables_are_torchs(sample):
    """Its listing of Schedule1F1B corrected, as oracles/make_schedules.py says."""
    cases = [case for case in ORACLE if not refused(case[-1])]
    assert len(cases) > 1400
    for n, (name, pp, v, many, told) in enumerate(sample(cases, 160)):
        made = lp.schedule(name, pp=pp, virtual_stages=v, micro_batches=many)
        assert digest(made) == told, (name, pp, v, many)
        assert made.ok, (name, pp, v, many)
        if n == 0:  # another table would be noticed
            assert digest(dataclasses.replace(made, ranks=tuple(row[::-1] for row in made.ranks))) != told


def test_what_torch_refuses_is_refused():
    """1F1B with fewer micro-batches than stages can run, and torch's refusal is its own: it is evidence."""
    cases = [case for case in ORACLE if refused(case[-1])]
    assert len(cases) > 500
    for name, pp, v, many, told in cases:
        if name == "1f1b":
            assert TORCH_1F1B.message.format(micro_batches=many, stages=pp) == told
            assert lp.schedule(name, pp=pp, micro_batches=many).ok
            continue
        with pytest.raises(lp.LayoutError, match=r"micro-batch|virtual_stages") as refusal:
            lp.schedule(name, pp=pp, virtual_stages=v, micro_batches=many)
        for choice in refusal.value.choices:
            changes = {"name": name, "pp": pp, "virtual_stages": v, "micro_batches": many}
            values = dict(choice.values)
            changes |= {"name" if key == "schedule" else key: value for key, value in values.items()}
            assert lp.schedule(**changes).pp == pp, choice
        if name == "interleaved-1f1b":
            assert TORCH_ROUNDS.message.format(micro_batches=many, rounds=max(1, many // pp)) == told


def test_the_evidence_speaks_of_the_same_jobs():
    for _, pp, v, many, told in (case for case in ORACLE if case[0] == "interleaved-1f1b"):
        job = lp.Job.of("llama3-8b", lp.Layout(pp=pp, virtual_stages=v), micro_batches=many)
        assert TORCH_ROUNDS.when(job) == refused(told), (pp, v, many)


# -- Llama 3's own ---------------------------------------------------------------------------------


def test_flexible_with_rounds_of_pp_is_interleaved():
    for pp, v, many in itertools.product((2, 4), (1, 2, 3, 4), (8, 12, 16, 24, 40)):
        known = {"pp": pp, "virtual_stages": v, "micro_batches": many}
        ours = lp.schedule("flexible", **known)
        assert ours.nc == pp
        assert ours.ranks == lp.schedule("interleaved-1f1b", **known).ranks, known


def test_longer_rounds_keep_more_in_flight():
    """ISCA 2025 section 3.1.1: (nc - pp)(v - 1) more on each rank."""
    pp = 4
    for v, nc in ((2, 5), (2, 8), (3, 6), (4, 8)):
        longer, shorter = (
            lp.schedule("flexible", pp=pp, virtual_stages=v, micro_batches=40, nc=n).in_flight
            for n in (nc, pp)
        )
        assert [a - b for a, b in zip(longer, shorter, strict=True)] == [(nc - pp) * (v - 1)] * pp


def test_shorter_rounds_are_all_forward_all_backward():
    made = lp.schedule("flexible", pp=4, virtual_stages=2, micro_batches=6, nc=3)
    for row in made.ranks:
        assert [action.kind for action in row] == ["F"] * 12 + ["B"] * 12
    assert made.in_flight == (12,) * 4


def test_flexible_is_refused_only_where_ranks_would_wait(sample):
    every = itertools.product(range(1, 9), range(1, 5), range(1, 25), range(1, 25))
    stuck = 0
    for pp, v, many, nc in sample([one for one in every if one[3] <= one[2]], 300):
        known = {"pp": pp, "virtual_stages": v, "micro_batches": many}
        try:
            assert lp.schedule("flexible", **known, nc=nc).ok
        except lp.LayoutError as refusal:
            assert 0 < many % nc < pp <= nc
            for choice in refusal.choices:
                assert lp.schedule("flexible", **known, **dict(choice.values)).ok  # type: ignore[arg-type]
            stuck += 1
    assert stuck


# -- placement and chunks in flight ----------------------------------------------------------------


def test_chunks_in_flight():
    flying = {"1f1b": (4, 3, 2, 1), "gpipe": (8,) * 4}
    flying |= {"interleaved-1f1b": (11, 9, 7, 5), "looped-bfs": (16,) * 4}
    made = {name: lp.schedule(name, pp=4, micro_batches=8) for name in ORDERS}
    assert {name: made[name].in_flight for name in flying} == flying
    stages = {name: one.virtual_stages for name, one in made.items()}  # unless said
    assert stages == {name: 1 if name in ("gpipe", "1f1b") else 2 for name in ORDERS}


# -- what cannot be --------------------------------------------------------------------------------


def test_an_entry_that_is_none():
    for row in ("0F0 0Q0", "F0", "0F-1", "0F0 0B" + "9" * 10):
        with pytest.raises(lp.LayoutError, match="is no operation\n  why  an entry is a stage, F, B, I or W"):
            lp.Schedule.read([row])
    with pytest.raises(lp.LayoutError, match=r"^rows='0F0 0B0': a text for each rank$"):
        lp.Schedule.read("0F0 0B0")
    assert lp.Schedule.read(["0F0, 0B0"]).ok
