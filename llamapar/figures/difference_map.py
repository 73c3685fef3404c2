"""The map of who holds what with what differs marked: the maps of heads, rows, tokens and layers as they are,
and over them the units of each rank that differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from llamapar.place.difference_map import DifferenceMap
from llamapar.place.sequence_map import in_runs
from llamapar.records.tables import span

from . import draw, head_map, sequence_map, stage_map, vocab_map
from .scenes import DECIMALS, Label, Scene, Shape, middle, shape, upright

_DRAWN: dict[str, tuple[Callable[..., tuple[Scene, str]], str]] = {
    "head": (head_map.picture, "q"),
    "KV head": (head_map.picture, "kv"),
    "token": (sequence_map.picture, "chunks"),
    "layer": (stage_map.picture, "layers"),
}
_ROWS = vocab_map.picture, "rows"
"""A kind of unit → its map, and the lane there in which ranks hold it; those of rows of any other kind."""

_LOOK = "wrong off"


def picture(record: DifferenceMap) -> tuple[Scene, str]:
    """The scene, and the same as text."""
    draw_map, lane = _DRAWN.get(record.unit, _ROWS)
    scene, _ = draw_map(record.held)
    marks = [*_marks(record, scene, lane)]
    # A mark has its own words, in the place of those of the shape under it.
    spots = {label[:2] for _, label in marks}
    labels = [label for label in scene["labels"] if label[:2] not in spots]
    scene |= {
        "says": record.words,
        "warn": True,
        "shapes": [*scene["shapes"], *(mark for mark, _ in marks)],
        "labels": [*labels, *(label for _, label in marks)],
        "legend": [*scene["legend"], [_LOOK, "differs"]],
    }
    ranks = [f"  {record.axis.upper()} rank {rank}: {_words(record, rank)}" for rank in record.off]
    return scene, draw.lines(record.words, ranks, scene["rest"])


def _runs(units: Iterable[int]) -> tuple[range, ...]:
    return in_runs(range(unit, unit + 1) for unit in sorted(units))


def _words(record: DifferenceMap, rank: int) -> str:
    units = record.off[rank]
    return f"{record.unit if len(units) == 1 else f'{record.unit}s'} {', '.join(map(span, _runs(units)))}"


def _marks(record: DifferenceMap, scene: Scene, of_ranks: str) -> Iterator[tuple[Shape, Label]]:
    """What lies over the shapes of the ranks, and over the whole above them where the map has that. of_ranks:
    the ranks' lane.
    """
    every = {*chain(*record.off.values())}
    for lane, start, stop, copy, band, _ in scene["shapes"]:
        if lane not in ("whole", of_ranks):
            continue
        x0, x1, y0, _, _, y1 = band
        off = every
        if lane != "whole":
            [rank] = (rank for left, right, _, rank in scene["ranks"] if left <= (x0 + x1) / 2 <= right)
            off = {*record.off.get(rank, ())}
        first = round(start * record.size)
        one = (x1 - x0) / (stop - start) / record.size
        for run in _runs(off & {*range(first, round(stop * record.size))}):
            x = x0 + (run.start - start * record.size) * one, x0 + (run.stop - start * record.size) * one
            part = run.start / record.size, run.stop / record.size
            y = y0, y1
            label = round(middle(x), DECIMALS), middle(y) + 4, span(run), x[1] - x[0], _LOOK
            yield shape(lane, part, copy, upright(x, y), _LOOK), label
