"""Pipeline schedules: tables equal to torch's, and what is said of tables that cannot run."""

import dataclasses
import hashlib
import itertools
import json
from pathlib import Path

import pytest

import llamapar as lp
from llamapar.frameworks.dtensor import TORCH_1F1B, TORCH_ROUNDS

ORACLE = json.loads((Path(__file__).parent / "oracles" / "schedules.json").read_text())["cases"]


def digest(schedule):
    text = "\n".join(" ".join(map(str, row)) for row in schedule.ranks)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def refused(message):
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
