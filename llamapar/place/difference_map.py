"""What differs, on the map of who holds what: the wrong heads, rows, tokens or layers of each rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

from llamapar.describe.splits import NO_PADDING

from .cut import Cut
from .head_map import HeadMap
from .sequence_map import SequenceMap
from .stage_map import StageMap
from .vocab_map import VocabMap

Held = HeadMap | SequenceMap | StageMap | VocabMap

Units = Mapping[int, Iterable[int]]
"""Rank → units."""


@dataclass(frozen=True)
class DifferenceMap:
    """A map with the units on it that differ.

    words: what differs. axis: of the ranks of the map. unit: "head", "KV head", "token" or "layer", else a
    row of some kind. size: all of them. off: rank of the map → its units that differ.
    """

    words: str
    held: Held
    axis: str
    unit: str
    size: int
    off: Mapping[int, tuple[int, ...]]


def drawn_on(words: str, cut: Cut, unit: str, size: int, held: Units, off: Units) -> DifferenceMap | None:
    """What differs on the map of its units; None if the ranks do not hold what that map shows.

    size: all units of their kind. held, off: rank of the layout → what it holds of them, and what differs.
    """
    axis = {"token": "cp", "layer": "pp"}.get(unit, "tp")
    rows = cut.vocab
    if unit == "vocabulary row":
        size = rows.padded
    else:
        rows = VocabMap(cut.model.replace(vocab_size=size), cut.layout.tp, NO_PADDING)
    maps: dict[str, Held] = {
        "head": cut.heads,
        "KV head": cut.heads,
        "token": cut.sequence,
        "layer": cut.stages,
    }
    record = maps.get(unit, rows)
    there = _of_axis(cut, axis, held)
    if any(found != {*_units(record, unit, rank)} for rank, found in there.items()):
        return None
    wrong = {rank: tuple(sorted(found)) for rank, found in _of_axis(cut, axis, off).items()}
    return DifferenceMap(words, record, axis, unit, size, wrong)


def _of_axis(cut: Cut, axis: str, units: Units) -> dict[int, set[int]]:
    """What all ranks with the same index along an axis have together."""
    found = dict[int, set[int]]()
    for rank, own in units.items():
        found.setdefault(getattr(cut.layout.coord_of(rank), axis), set()).update(own)
    return found


def _units(record: Held, unit: str, rank: int) -> Iterable[int]:
    """What a rank of a map holds."""
    if isinstance(record, HeadMap):
        heads = record.rank(rank)
        return {"head": heads.q_heads, "KV head": heads.kv_heads}[unit]
    if isinstance(record, SequenceMap):
        return chain(*record.rank(rank).chunks)
    if isinstance(record, StageMap):
        return chain(*(stage.layers for stage in record.stages[rank :: record.pp]))
    return record.rank(rank).real
