"""What a run compared with one process: a row for each tensor, and the table of them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from llamapar.records.tables import Plain, plural

MOST_ROWS = 10
"""Rows of one kind that agree and are shown one by one; more are grouped."""

OUTPUT, LOSS, GRADIENT, MEAN, WEIGHT = "output", "loss", "gradient", "AdamW's mean", "updated weight"
"""Kinds of rows, in the order of a step."""

LINE = "line"
"""The kind of a row where two runs part."""


@dataclass(frozen=True)
class Row:
    """One thing that was compared with one process.

    kind: OUTPUT, GRADIENT, … name: of the tensor. error: max|Δ| / max|whole| over all ranks, None where no
    numbers were compared. ok: whether it is right, for a gradient perhaps once the trainer has averaged it.
    how: it compares, in words. whole, here: its shapes, and the first rank's. placement: how it is cut.
    ranks: those that differ.
    """

    kind: str
    name: str
    error: float | None
    tolerance: float
    ok: bool = True
    how: str = "equal"
    whole: tuple[int, ...] = ()
    here: tuple[int, ...] = ()
    placement: str = ""
    ranks: tuple[int, ...] = ()

    def as_dict(self) -> Plain:
        """Plain values for JSON."""
        return {name: in_json(value) for name, value in vars(self).items()}


def in_json(value: object) -> object:
    """A value as JSON holds it: a number that is none, or infinite, as a word; a tuple as a list."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, tuple):
        return [in_json(each) for each in value]
    return value


def table_of(rows: Iterable[Row], tolerance: float, shapes: bool) -> tuple[list[str], list[list[object]]]:
    """Head and rows of the table; many that agree are grouped. shapes: with shapes and placements, and only
    what has the same ones in a group.
    """
    rows = list(rows)
    alike = dict[object, list[Row]]()
    agreeing = Counter(row.kind for row in rows if row.ok)
    for row in rows:
        key: tuple[object, ...] = (row.kind, row.how)
        if shapes:
            key = (*key, re.sub(r"\d+", "*", row.name), row.whole, row.here, row.placement)
        if not (row.ok and agreeing[row.kind] > MOST_ROWS):
            key = (row.kind, row.name)
        alike.setdefault(key, []).append(row)
    head = ["what", "of", "max|Δ| / max|ref|", f"within {tolerance:.0e}"]
    if shapes:
        head[2:2] = ["whole", "here", "placement"]
    shown: list[list[object]] = []
    for group in alike.values():
        row = group[0]
        held = list[object]()
        if shapes:
            held = [list(row.whole), list(row.here), row.placement]
        errors = [each.error for each in group if each.error is not None]
        worst = ""
        if errors:
            worst = f"{max(errors):.0e}"
        shown.append([row.kind, _names(group), *held, worst, _said(row)])
    return head, shown


def _names(rows: list[Row]) -> str:
    """The name of a row, or of several that are shown as one."""
    if len(rows) == 1:
        return rows[0].name
    starred = {re.sub(r"\d+", "*", row.name) for row in rows}
    if len(starred) == 1:
        return f"{starred.pop()} ({len(rows)})"
    worst = max(rows, key=lambda row: row.error or 0.0)
    return f"{plural(len(rows), 'tensor')}, worst {worst.name}"


def _said(row: Row) -> str:
    """How a row compares, in words."""
    if row.ok or row.how == "DIFFERS":
        return row.how
    return f"{row.how}, DIFFERS"
