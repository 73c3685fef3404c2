"""`llamapar schedule`: a pipeline schedule as a timeline, or as a table for scripts."""

from __future__ import annotations

from llamapar.errors import Choice
from llamapar.place.orders import ORDERS
from llamapar.place.schedule import schedule

from .commands import Command, CommandAnswer, Given, answer

_OPTIONS = ("pp", "virtual_stages", "micro_batches", "nc")


def _schedule(given: Given) -> CommandAnswer:
    """The schedule's timeline, in which a forward takes 1 and a backward 2."""
    choose = [f"llamapar schedule {name}" for name in ("1f1b", "interleaved-1f1b")]
    name = given.needed("schedule", "a schedule is needed", f"schedules are {', '.join(ORDERS)}", choose)
    why = "a schedule is the order in which ranks take them"
    given.needed("micro_batches", "a number of micro-batches is needed", why, [Choice.of(micro_batches=8)])
    return answer(schedule(name, **given.of(*_OPTIONS)).timeline())


COMMAND = Command(
    _schedule,
    "order and times of a pipeline's operations, and its bubble",
    "schedule",
    _OPTIONS,
    "llamapar schedule 1f1b --pp 4 --micro-batches 8\n"
    "  llamapar schedule interleaved-1f1b --pp 16 --virtual-stages 8 --micro-batches 16 --json",
    exits="0 found",
    positional=(("schedule", ", ".join(ORDERS)),),
    surplus="--pp {word}",
    helps={
        "virtual_stages": "stages per rank (default: 1 for gpipe and 1f1b, 2 for the others)",
        "micro_batches": "micro-batches in a step",
    },
)
