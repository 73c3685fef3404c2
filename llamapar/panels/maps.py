"""The pictures of the tabs, as records made from a report and the values of the controls. Pure.

Left out: time and the grid of ranks, which are no records, and runs and searches, drawn when they end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from llamapar.describe.layout import Layout
from llamapar.describe.options import Values
from llamapar.describe.splits import NO_PADDING, Padding
from llamapar.errors import LlamaparError, one_of
from llamapar.frameworks import split_of
from llamapar.place import heads, stages, vocab
from llamapar.place.orders import ORDERS
from llamapar.place.pipeline import Timeline, Timelines
from llamapar.place.schedule import fewer_micro_batches, schedule_of
from llamapar.records.tables import Record
from llamapar.rules.report import Report

from .answers import layer_steps, load, refuse_longer, sequence_map

MOST_OPERATIONS = 2**15
"""The Pipeline picture draws at most this many operations, which takes half a second."""


def padding(report: Report) -> Padding:
    return report.job.padding or (report.judge.padding if report.judge else NO_PADDING)


def split(report: Report) -> str:
    return split_of(report.judge, report.job.layer_split)


def pipeline(report: Report, values: Values) -> Record:
    """The timeline of the schedule, with a cursor if a time is set, or beside another timeline.

    Raises LayoutError if a schedule is undefined, or has more operations than the tab draws.
    """
    layout = report.job.layout
    pp = layout.pp
    v = layout.virtual_stages
    many = report.job.n_micro_batches or layout.usual_micro_batches
    fewer = fewer_micro_batches(MOST_OPERATIONS // 2, pp, v)
    refuse_longer(layout, many, MOST_OPERATIONS, "drawn", fewer)

    def timeline(name: str) -> Timeline:
        nc = values["nc"] if name == "flexible" else None
        return schedule_of(name, pp, v, many, nc).timeline()

    shown: Timeline | Timelines
    shown = first = timeline(one_of("schedule", values["schedule"], ORDERS))
    if values["beside"]:
        shown = first.beside(timeline(one_of("beside", values["beside"], ORDERS)))
    if values["time"] is None:
        return shown
    return shown.at(min(values["time"], shown.end))


MAP_AXES = {"heads": "tp", "vocab": "tp", "sequence": "cp", "stages": "pp"}
"""A tab with a map → the axis whose ranks stand side by side in it."""


def place_on_map(values: Values, layout: Layout) -> int | None:
    """The chosen rank's place among those of the shown map; None without a map or such a rank."""
    axis = MAP_AXES.get(values["tab"])
    with suppress(LlamaparError):  # what is wrong with the rank the sentence says
        return getattr(layout.coord_of(values["rank"]), axis) if axis else None
    return None


def rank_at(values: Values, layout: Layout, place: int) -> int:
    """The rank at another place of the shown map, and else placed as the chosen one. Raises LlamaparError."""
    at = layout.coord_of(values["rank"])._asdict() | {MAP_AXES[values["tab"]]: place}
    return layout.rank_of(**at)


RECORDS: dict[str, Callable[[Report, Values], Record]] = {
    "heads": lambda r, v: heads(r.job.model, r.job.layout, kv_replication=r.job.kv_replication),
    "vocab": lambda r, v: vocab(r.job.model, r.job.layout, padding=padding(r)),
    "sequence": sequence_map,
    "stages": lambda r, v: stages(r.job.model, r.job.layout, layer_split=split(r)),
    "memory": lambda r, v: load(r).memory,
    "pipeline": pipeline,
    "layer": layer_steps,
}
"""By the tab's name what it draws, of a report and the values of the controls; Run draws when it ran."""
