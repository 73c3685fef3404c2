"""Ranks, coordinates and groups: a bijection, a partition, and arithmetic that costs no list."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inputs import BAD_COUNTS, layouts
from llamapar import AXES, Layout, LayoutError
from llamapar.describe.layout import Coord
from llamapar.errors import MAX_DEGREE

SMALL = (1, 1, 2, 3, 4, 5)
JOINT = ("dp-cp", "tp-pp", "cp-tp", "tp-cp-pp-dp", "pp-dp-tp")


# -- the mesh --------------------------------------------------------------------------------------


@given(layouts(SMALL))
def test_rank_and_coord_are_a_bijection(lay):
    coords = [lay.coord_of(rank) for rank in range(lay.world)]
    assert [lay.rank_of(*coord) for coord in coords] == list(range(lay.world))
    assert set(coords) == {Coord(*c) for c in itertools.product(*(range(lay.size(a)) for a in AXES))}


@given(layouts(SMALL))
def test_ranks_walk_through_the_order_fastest_first(lay):
    """Independent of strides: counting with one digit an axis."""
    digits = [range(getattr(lay, axis)) for axis in reversed(lay.axes)]
    for rank, place in enumerate(itertools.product(*digits)):
        by_axis = dict(zip(reversed(lay.axes), place, strict=True))
        assert lay.coord_of(rank)._asdict() == by_axis


@given(layouts(SMALL), st.sampled_from((*AXES, *JOINT)))
def test_groups_partition_the_world(lay, axis):
    groups = list(dict.fromkeys(lay.group(axis, rank) for rank in range(lay.world)))
    assert sorted(itertools.chain.from_iterable(groups)) == list(range(lay.world))
    assert [group[0] for group in groups] == sorted(group[0] for group in groups)
    names = axis.split("-")
    for group in groups:
        assert list(group) == sorted(group)
        assert len(group) == lay.size(axis)
        fixed = {tuple(v for n, v in lay.coord_of(r)._asdict().items() if n not in names) for r in group}
        assert len(fixed) == 1
        assert all(lay.group(axis, rank) == group for rank in (group[0], group[-1]))


@given(layouts())
def test_sizes(lay):
    assert lay.world == lay.tp * lay.cp * lay.pp * lay.dp == lay.size("tp-cp-pp-dp")
    assert lay.dp == lay.dp_replicate * lay.dp_shard
    assert lay.replace(dp=8, dp_replicate=2).dp_shard == 4  # HSDP
    assert lay.stages == lay.pp * lay.virtual_stages
    assert lay.sp == (lay.tp > 1 and lay.sequence_parallel is not False)
    assert Layout.of(lay) is lay
    assert Layout.of({name: getattr(lay, name) for name in Layout.__dataclass_fields__}) == lay
    assert str(lay) == f"tp={lay.tp} cp={lay.cp} pp={lay.pp} dp={lay.dp}"


# -- no list of ranks is ever made -----------------------------------------------------------------


def test_groups_of_a_million_ranks_are_no_lists():
    large = Layout(tp=16, cp=16, pp=64, dp=64)
    last = large.world - 1
    assert large.rank_of(*large.coord_of(last)) == last == 2**20 - 1
    for axis in AXES:
        group = large.group(axis, last)
        assert isinstance(group, range)
        assert last in group
    assert len(large.group("dp-cp", 7)) == 1024  # a joint group lists its own members, no others
    flat = Layout(dp=2**20)
    assert (flat.group("dp", 2**19), flat.group("tp", 0)) == (range(2**20), range(1))


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["tp", "cp", "pp", "dp", "dp_replicate", "virtual_stages", "zero"])
def test_every_field_refuses_what_is_no_count(field):
    low, high = (0, 3) if field == "zero" else (1, MAX_DEGREE)
    need = f"{field} must be a whole number from {low} to {high}"
    for kind, value in BAD_COUNTS.items():
        if (field, kind) == ("zero", "zero"):
            continue
        with pytest.raises(LayoutError, match=f"^{field}(=| is empty).*{need}") as refusal:
            Layout(**{field: value})
        assert refusal.value.field == field
        for choice in refusal.value.choose:  # each is itself accepted
            name, number = choice.split("=")
            assert name == field
            Layout(**{"dp": int(number) if field == "dp_replicate" else 1, field: int(number)})


@st.composite
def wild(draw):
    """Degrees as slips of the keyboard make them, too many and too large ones among them."""
    sizes = st.sampled_from([None, 0, -8, 1, 2, 3, 2.5, 8, 1000, 10**6, 2**20, 2**20 + 1, 10**30])
    return {
        name: draw(sizes)
        for name in ("tp", "cp", "pp", "dp", "dp_replicate")
        if draw(st.booleans()) or name == "tp"
    }


@given(wild())
def test_what_a_refusal_offers_passes_what_refused(fields):
    for _ in range(12):  # each taken choice leads on, until all is accepted
        _, offered = refused(fields)
        if not offered:
            Layout(**fields)
            return
        fields |= {name: int(n) for name, n in (part.split("=") for part in offered[0].split())}
    pytest.fail(f"no way out: {fields}")


@given(wild())
def test_every_choice_passes_the_check_that_offered_it(fields):
    field, offered = refused(fields)
    for choice in offered:
        changed = fields | {name: int(n) for name, n in (part.split("=") for part in choice.split())}
        assert refused(changed)[0] != field


def refused(fields):
    """The field that a layout is refused for, "" for none, and what is offered."""
    try:
        Layout(**fields)
    except LayoutError as refusal:
        return refusal.field, refusal.choose
    return "", ()
