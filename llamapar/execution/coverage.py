"""What the inputs of a run never touched: a slip there could not have shown.

A run compares numbers, and a row that nobody looked up has none. So a run that equals its reference has
proved nothing about such a row.
"""

from __future__ import annotations

from itertools import accumulate

from llamapar.records.trace import some
from llamapar.spmd.setting import kind

from .body import Task, asked_shapes, inputs, uncut


def untouched(task: Task) -> tuple[str, ...]:
    """Sentences about the edges of shards and chunks that the task's inputs never touch."""
    return (*_vocabulary(task), *_documents(task))


def _vocabulary(task: Task) -> list[str]:
    """Rows of the embedding that no token looks up, and columns of the head that are no target."""
    setting = task.setting
    found = []
    for did, rows in _rows(task).items():
        shards = {own.rank: own.real for own in setting.vocab.ranks if len(own.real)}
        never = [rank for rank, own in shards.items() if rows.isdisjoint(own)]
        edge = [rank for rank, own in shards.items() if rank not in never and not {own[0], own[-1]} <= rows]
        if never:
            found.append(f"no vocabulary row of TP {some(never)} was {did}")
        if edge:
            found.append(f"the first or last vocabulary row of TP {some(edge)} was never {did}")
    return found


def _rows(task: Task) -> dict[str, set[int]]:
    """What happened to vocabulary rows → those rows; without what happened to none."""
    names = [name for name in asked_shapes(task) if kind(name) == "tokens"]
    whole = inputs(task, uncut, wanted=names)
    found = {
        did: {row for name in names if name.endswith(what) for row in whole[name].flatten().tolist()}
        for what, did in (("tokens", "looked up"), ("targets", "a target"))
    }
    return {did: rows for did, rows in found.items() if rows}


def _documents(task: Task) -> list[str]:
    """Whether some document lies on both sides of a chunk's edge, where its mask is cut."""
    setting = task.setting
    if setting.documents is None or setting.layout.cp == 1:
        return []
    starts = {chunk.start for part in setting.sequence.ranks for chunk in part.chunks} - {0}
    begins = {0, *accumulate(setting.documents)}
    if starts - begins:
        return []
    return ["no document crosses the edge of a CP rank's chunk"]
