"""The pipeline of a run: its schedule, stages and micro-batches, derived from the options."""

from __future__ import annotations

from typing import NamedTuple

from llamapar.describe.layout import Layout
from llamapar.errors import Choice, LayoutError, LlamaparError, whole
from llamapar.place.pipeline import Schedule
from llamapar.place.schedule import of_layout
from llamapar.programs import PROGRAMS, Program


class Pipeline(NamedTuple):
    """The pipeline of a run: the layout of the stages that run, the schedule if there is one, and the
    batch.
    """

    layout: Layout
    schedule: Schedule | None
    global_batch: int
    notes: tuple[str, ...] = ()


def pipeline_of(
    program: Program,
    layout: Layout,
    schedule: str | Schedule,
    micro_batches: int | None,
    nc: int | None,
    global_batch: int | None,
    *,
    each: int,
) -> Pipeline:
    """The pipeline of a program in a layout. each: sequences of a micro-batch, if global_batch is not given.

    Without pp and micro_batches only a training step has one. A program that is no whole model never has one:
    it runs on the ranks of one stage. Raises LayoutError if the schedule refuses, or if the sequences do not
    divide.
    """
    asked = micro_batches is not None or nc is not None or schedule != "1f1b"
    if program.stage is None:
        if asked:
            names = [Choice.of(program=name) for name, known in PROGRAMS.items() if known.stage is not None]
            what = f"{program.name} has no stages"
            raise LlamaparError(what, "a schedule and micro-batches are a whole model's", names, "program")
        notes: tuple[str, ...] = ()
        if layout.pp > 1:
            notes = (f"pp={layout.pp}: the ranks of one stage are run",)
        one = layout.replace(pp=1, virtual_stages=1)
        return Pipeline(one, None, _batch(global_batch, each * layout.dp), notes)
    if layout.stages == 1 and not asked and not program.trains:
        return Pipeline(layout, None, _batch(global_batch, each * layout.dp))
    table, staged = of_layout(schedule, layout, micro_batches, nc, global_batch)
    several = f"{table.title} has {table.virtual_stages} stages on a rank"
    notes = ()
    if staged != layout:
        notes = (several,)
    layout = staged
    shares = layout.dp * table.micro_batches
    sequences = _batch(global_batch, each * shares)
    if sequences % shares:
        low = sequences // shares * shares
        raise LayoutError(
            f"global_batch={sequences} for dp·micro_batches = {layout.dp}·{table.micro_batches} = {shares}",
            "every micro-batch has as many sequences",
            [Choice.of(global_batch=n) for n in (low, low + shares) if n],
            "global_batch",
        )
    return Pipeline(layout, table, sequences, notes)


def _batch(global_batch: int | None, usual: int) -> int:
    if global_batch is not None:
        return whole("global_batch", global_batch)
    return usual
