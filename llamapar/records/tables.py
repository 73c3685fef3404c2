"""Rows as aligned text and as HTML: the two forms in which a record shows itself."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import zip_longest
from typing import Any

from llamapar.late import late

from .calls import Call

Plain = dict[str, Any]
"""A record as plain values for JSON."""

SHOWN = 32
"""Ranks listed before a table is cut with a line that says so."""

_GAP = "  "
_BREAKS = re.compile(r"(?<=\s)(?=\S)|(?<=[./_])(?=[A-Za-z])")
"""Where a line may end: after spaces, and within a name or a path; never within a number."""

_SLIVER = 12
"""Characters of a cell that are kept together where there is no room for all of it: "dim 1 by tp"."""

_LABEL = re.compile(r" +(?:\w{2,4} +)?")
"""What the lines of a paragraph stand to the right of: its indent, and "why" or "try"."""


def cut(n: int, most: int = SHOWN) -> list[int]:
    """Which of n rows are listed (or drawn): all, or the first ones and the last, `most` together."""
    return list(range(n)) if n <= most else [*range(most - 1), n - 1]


def span(units: range) -> str:
    """A range as people read it: "0–15", "7", "none"."""
    if not len(units):
        return "none"
    if len(units) == 1:
        return str(units[0])
    return f"{units[0]}–{units[-1]}"


def plural(n: int, word: str) -> str:
    """ "1 rank", "16,384 ranks", "8 micro-batches"."""
    many = "es" if word.endswith("ch") else "s"
    return f"{n:,} {word}{'' if n == 1 else many}"


def human(n: int) -> str:
    """Bytes in decimal units, as networks count them: "498 GB"."""
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if n >= size:
            return f"{n / size:.3g} {unit}"
    return f"{n} B"


def units(word: str, numbers: range) -> str:
    """ "head 3", "heads 0–15", "no heads"."""
    if not len(numbers):
        return f"no {word}s"
    return f"{word}{'s' if len(numbers) > 1 else ''} {span(numbers)}"


def fold(text: str, width: int | None) -> str:
    """`text` with its lines folded to `width`, None for any; what goes on is set in."""
    if width is None:
        return text
    folded: list[str] = []
    for line in text.split("\n"):
        label = _LABEL.match(line)
        indent = min(label.end() if label else len(_GAP), width // 2)
        first, *more = _folded(line, width, indent)
        folded += [first, *(" " * indent + part for part in more)]
    return "\n".join(folded)


def _folded(text: str, width: int, indent: int = 0) -> list[str]:
    """The lines of a text, those after the first `indent` shorter; a word too long for one is broken."""
    lines, line, most = list[str](), "", width
    for piece in _BREAKS.split(text):
        if line and len(line) + len(piece.rstrip()) > most:
            lines.append(line.rstrip())
            line, most = "", width - indent
        line += piece
        while len(line.rstrip()) > most:
            lines.append(line[:most])
            line, most = line[most:], width - indent
    return [*lines, line.rstrip()]


def text_table(
    title: str,
    head: Sequence[str],
    rows: Sequence[Sequence[object]],
    foot: str = "",
    width: int | None = None,
) -> str:
    """Title, aligned columns, foot.

    width: the most characters of a line, None for any. Cells are folded to keep to it; columns whose words do
    not stand side by side follow below, in blocks that begin with the first column again.
    """
    columns = [list(column) for column in zip(head, *([str(c) for c in row] for row in rows), strict=True)]
    blocks = ["\n".join(_lines(block, width)) for block in _blocks(columns, width)]
    return "\n".join([fold(title, width), "\n\n".join(blocks), *([fold(foot, width)] if foot else [])])


def _blocks(columns: list[list[str]], width: int | None) -> Iterator[list[list[str]]]:
    """The columns that stand side by side."""
    first, *others = columns
    block = [first]
    for column in others:
        if width is not None and len(block) > 1 and not _fit([*block, column], width):
            yield block
            block = [first]
        block.append(column)
    yield block


def _least(column: list[str]) -> int:
    """Characters that a column needs to be read: its longest word, and no cell in slivers."""
    words = max(len(piece.rstrip()) for cell in column for piece in _BREAKS.split(cell))
    return max(words, *(min(len(cell), _SLIVER) for cell in column[1:]), 0)


def _fit(columns: list[list[str]], width: int) -> bool:
    """Whether columns stand side by side and can be read."""
    return sum(map(_least, columns)) + len(_GAP) * (len(columns) - 1) <= width


def _widths(columns: list[list[str]], width: int | None) -> list[int]:
    """Characters for each column: what it needs, or as much of it as there is room for, the widest less."""
    needed = [max(map(len, column)) for column in columns]
    if width is None:
        return needed
    least = list(map(_least, columns)) if _fit(columns, width) else [1] * len(columns)
    available = max(width - len(_GAP) * (len(columns) - 1), sum(least))
    for most in range(max(needed), 0, -1):
        widths = [max(low, min(want, most)) for low, want in zip(least, needed, strict=True)]
        if sum(widths) <= available:
            return widths
    return least


def _lines(columns: list[list[str]], width: int | None) -> Iterator[str]:
    widths = _widths(columns, width)
    for row in zip(*columns, strict=True):
        cells = [_folded(cell, w) for cell, w in zip(row, widths, strict=True)]
        for parts in zip_longest(*cells, fillvalue=""):
            yield _GAP.join(part.ljust(w) for part, w in zip(parts, widths, strict=True)).rstrip()


def html_table(
    title: str,
    head: Sequence[str],
    rows: Sequence[Sequence[object]],
    foot: str = "",
    left: bool = False,
    code: Collection[int] = (),
) -> str:
    """The same as an HTML table; every text is escaped.

    left: cells of words, set to the left. code: columns of code and shapes, each kept on a line.
    """
    style = ' style="text-align:left"' if left else ""

    def cell(column: int, value: object) -> str:
        text = escape(str(value))
        if column in code and text:
            text = f'<code style="white-space:nowrap">{text}</code>'
        return f"<td{style}>{text}</td>"

    top = "".join(f"<th{style}>{escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(cell(i, value) for i, value in enumerate(row))}</tr>" for row in rows)
    end = f"<p>{'<br>'.join(map(escape, foot.splitlines()))}</p>" if foot else ""
    return f"<p><b>{escape(title)}</b></p><table><tr>{top}</tr>{body}</table>{end}"


def paragraphs(text: str) -> str:
    """Each line as a paragraph of HTML."""
    return "".join(f"<p>{escape(line)}</p>" for line in text.splitlines())


class Record:
    """A record that shows itself as a table: `_table` gives title, head, rows and foot.

    _left: whether its cells are words, which HTML sets to the left.
    """

    _left = False

    @property
    def call(self) -> Call | None:
        """The call of a public function that made it; None for a record that was made otherwise.

        It is no field: records that say the same are equal, whoever made them.
        """
        return vars(self).get("_call")

    def note(self, call: Call) -> None:
        """Keep the call that made it."""
        vars(self)["_call"] = call

    def live(self, **values: object) -> Any:
        """Its picture with knobs: `lp.live(record, **values)`. Raises LlamaparError where there is none."""
        return late("live")(self, **values)

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        raise NotImplementedError

    def text(self, width: int | None = None) -> str:
        """The table as text, of lines of at most `width` characters where that is given."""
        return text_table(*self._table(), width=width)

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(*self._table(), left=self._left)


@dataclass(frozen=True, repr=False)
class Table(Record):
    """A table that no other record makes."""

    title: str
    head: list[str]
    rows: list[list[object]]

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        return self.title, self.head, self.rows, ""
