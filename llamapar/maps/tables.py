"""Rows as aligned text and as HTML: the two forms in which a record shows itself."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

SHOWN = 32
"""Ranks listed before a table is cut with a line that says so."""


def cut(n: int) -> list[int]:
    """Which of n rows a table lists: all, or the first ones and the last."""
    return list(range(n)) if n <= SHOWN else [*range(SHOWN - 1), n - 1]


def span(units: range) -> str:
    """A range as people read it: "0–15", "7", "none"."""
    if not len(units):
        return "none"
    if len(units) == 1:
        return str(units[0])
    return f"{units[0]}–{units[-1]}"


def text_table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]], foot: str = "") -> str:
    """Title, aligned columns, foot."""
    cells = [list(head), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([title, *lines, *([foot] if foot else [])])


def html_table(
    title: str, head: Sequence[str], rows: Sequence[Sequence[object]], foot: str = "", left: bool = False
) -> str:
    """The same as an HTML table; every text is escaped. left: cells of words, set to the left."""
    style = ' style="text-align:left"' if left else ""
    top = "".join(f"<th{style}>{escape(cell)}</th>" for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td{style}>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    end = f"<p>{'<br>'.join(map(escape, foot.splitlines()))}</p>" if foot else ""
    return f"<p><b>{escape(title)}</b></p><table><tr>{top}</tr>{body}</table>{end}"


class Record:
    """A record that shows itself as a table: `_table` gives title, head, rows and foot."""

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        raise NotImplementedError

    def __str__(self) -> str:
        return text_table(*self._table())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(*self._table())
