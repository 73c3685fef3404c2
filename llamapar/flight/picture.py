"""The picture of a hang: ranks by their last collectives, with waiting ranks and the culprit marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from llamapar.figures import draw, style
from llamapar.figures.draw import Bar
from llamapar.figures.style import Spec

from .dumps import Stack
from .groups import rank_label
from .verdict import RankPositions

CALLS = 16
"""Calls drawn of the ranks that came farthest: the last ones."""

RANKS = 32
"""Most ranks drawn: the culprits, those of their group, and the first of the others."""

STACKS = 64
"""Most different stacks that travel with a picture: those of calls that wait, then of others."""

OTHER, OUTSIDE = "other groups", "in no collective"

_SHARE = 0.86
"""Part of its place that the bar of a call takes."""


def picture(record: RankPositions, with_stacks: bool = False) -> tuple[Spec, str]:
    """One row for each rank and one bar for each call, in program order; a hollow bar has not ended.

    with_stacks: add the stack of a clicked call for a panel. Stacks differ between machines.
    """
    group = record.group.ranks if record.group is not None else ()
    ranks = sorted([*dict.fromkeys([*record.ranks, *group, *record.every])][:RANKS])
    # Ring buffers have dropped different numbers of calls, so rows are aligned on the first call that all
    # have.
    begins = record.hang.starts([rank for rank in ranks if rank in record.hang.dumps])
    ends = {rank: len(record.hang.dumps[rank]) - at for rank, at in begins.items()}
    last = max(ends.values(), default=1)
    first = max(0, last - CALLS)
    other = OUTSIDE if record.hang.places else OTHER
    done: dict[str, list[Bar]] = {}
    waiting: list[Bar] = []
    stacks: dict[tuple[float, float], Stack] = {}
    for row, rank in enumerate(ranks):
        if rank not in begins:
            continue
        open_calls = {wait.at for wait in record.hang.waits.get(rank, ())}
        for at in range(max(0, begins[rank] + first), len(record.hang.dumps[rank])):
            place = at - begins[rank]
            bar = Bar(row, place, place + _SHARE, _hover(record, rank, at))
            stacks[bar.row, bar.start] = record.hang.dumps[rank].stacks[at]
            axes = record.hang.groups[record.hang.dumps[rank].calls[at].group].axes
            look = axes if axes in style.COLOURS else other
            (waiting if at in open_calls else done.setdefault(look, [])).append(bar)
    colours = {**style.COLOURS, other: style.PAD}
    seen = ((done.get(look, []), {"color": colour}, look) for look, colour in colours.items())
    data = draw.looks(seen, len(ranks))
    data += [draw.missing(waiting, len(ranks), "waits there")] if waiting else []
    more: Spec = {"meta": {"stacks": _frames(data, stacks)}} if with_stacks else {}
    marks = [(row, rank) for row, rank in enumerate(ranks) if rank in record.ranks]
    if marks:
        places = [_place(record, rank, begins, ends, last) + _SHARE / 2 for _, rank in marks]
        cross = {"symbol": "x", "size": 13, "color": style.WARN}
        hover = [f"rank {rank}: {record.kind}" for _, rank in marks]
        rows = [row for row, _ in marks]
        data.append(
            draw.scatter("markers", places, rows, marker=cross, hovertext=hover, **draw.legend("here"))
        )
    title, ticks = "calls of a rank, in order", {"dtick": draw.step(int(last - first) + 1, 8)}
    if by_place := {place: record.hang.of_rank(rank) for rank, place in record.hang.places.items()}:
        # On two lines, or the names of neighbours run into each other where a panel is narrow.
        names = [
            "<br>".join((escape(op[:24]), escape(f"({line.rpartition(', ')[2]})"[:24])))
            for op, _, line in by_place.values()
        ]
        title, ticks = "places in the program", draw.ticks([at + _SHARE / 2 for at in by_place], names)
    left_out = len(record.every) - len(ranks)
    named = f"{rank_label(None, record.ranks)} left the others" if record.ranks else "nobody can be named"
    layout = style.layout(
        "flight",
        named,
        f"{left_out:,} more ranks are not drawn" if left_out else "",
        widest=str(max(ranks)),
        xaxis=draw.axis(title, [first - 0.2, last + 1], **ticks),
        yaxis=draw.downward(
            draw.axis("rank", [-0.5, len(ranks) - 0.5], **draw.ticks(range(len(ranks)), ranks))
        ),
        **more,
    )
    return {"data": data, "layout": layout}, f"{record.cause}\n{record}"


def _frames(traces: Sequence[Spec], stacks: Mapping[tuple[float, float], Stack]) -> list[list[str]]:
    """The stacks of drawn calls, each once, those that wait first; bars refer to them by number."""
    numbers: dict[Stack, int] = {}
    # Waiting calls are the last trace, so theirs are numbered first and survive the limit of STACKS.
    for trace in reversed(traces):
        of_bars = (stacks[place] for place in zip(trace["y"], trace["base"], strict=True))
        trace["customdata"] = [
            numbers.setdefault(stack, len(numbers)) if stack.frames else None for stack in of_bars
        ]
    return [list(stack.frames) for stack in [*numbers][:STACKS]]


def _place(
    record: RankPositions, rank: int, begins: dict[int, int], ends: dict[int, int], last: int
) -> float:
    """The position of a culprit: at its deviating call, or after its last call."""
    parted = record.hang.parted
    if parted is not None and rank in parted.ranks and rank in begins:
        return parted.ranks[rank] - begins[rank]
    return record.hang.places.get(rank, ends.get(rank, last - 1))


def _hover(record: RankPositions, rank: int, at: int) -> str:
    dump = record.hang.dumps[rank]
    call = dump.calls[at]
    where = record.hang.groups[call.group].where(record.layout)
    sizes = f"{[list(size) for size in call.inputs]} to {[list(size) for size in call.outputs]}"
    text = f"rank {rank} · {where}: {call.op} #{dump.numbers[at]}, {sizes} {', '.join(call.dtypes)}"
    text = text if dump.numbers[at] >= 0 else f"rank {rank} · {call.op}"
    said = " · ".join(filter(None, [text, record.hang.belongs(rank, at), dump.stacks[at].line]))
    return escape(said, quote=False)
