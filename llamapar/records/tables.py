"""Tables as aligned text and as HTML: the two forms that every record has."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from html import escape
from itertools import zip_longest
from typing import Any, ClassVar

from llamapar.late import late

from .calls import Call

Plain = dict[str, Any]
"""A record as plain values for JSON."""

SHOWN = 32
"""The most rows that a table lists before it is shortened."""

_GAP = "  "
_BREAKS = re.compile(r"(?<=\s)(?=\S)|(?<=[./_])(?=[A-Za-z])")
"""Where a line may break: after spaces, and inside a name or path; never inside a number."""

_SLIVER = 12
"""The fewest characters of a cell that stay together when it is folded; "dim 1 by tp" just fits."""

_LABEL = re.compile(r" +(?:\w{2,4} +)?")
"""The start of a line, by which its continuations are indented: spaces, and a label like "why" or "try"."""


def cut(n: int, most: int = SHOWN) -> list[int]:
    """Indexes of the rows to list or draw: all n, or the first ones and the last, `most` in total."""
    # The last row is always shown: there the pads, the remainder and the head are.
    if n <= most:
        return list(range(n))
    return [*range(most - 1), n - 1]


def span(units: range) -> str:
    """A range as people read it: "0–15", "7", "16,032–32,063", "none"."""
    if not len(units):
        return "none"
    if len(units) == 1:
        return f"{units[0]:,}"
    return f"{units[0]:,}–{units[-1]:,}"


def plural(n: float, word: str) -> str:
    """A count with its noun: "1 rank", "16,384 ranks", "8 micro-batches"."""
    if n == 1:
        return f"{n:,} {word}"
    # "batches"; no other noun here needs more than an s.
    if word.endswith("ch"):
        return f"{n:,} {word}es"
    return f"{n:,} {word}s"


def noun(n: float, word: str) -> str:
    """A noun as it stands after a number: "rank" of 1, "ranks" of 16,384, "micro-batches" of 8."""
    return plural(n, word).partition(" ")[2]


def share(count: int, ranks: int, word: str) -> str:
    """Part of a rank, when `ranks` divide things: "4 KV heads", "half a KV head", "1.33 KV heads"."""
    each = Fraction(count, ranks)
    if each == Fraction(1, 2):
        return f"half a {word}"
    if each < 1:
        return f"{each} of a {word}"
    if each.denominator == 1:
        return plural(each.numerator, word)
    return f"{float(each):,.2f} {word}s"


def units(word: str, numbers: range) -> str:
    """Numbered units in words: "head 3", "heads 0–15", "no heads"."""
    if not len(numbers):
        return f"no {word}s"
    return f"{noun(len(numbers), word)} {span(numbers)}"


def three_digits(n: float) -> str:
    """A number as people read it, to three digits: "10.4", "2,840", "0.534"; never "2.84e+03"."""
    return f"{float(f'{n:.3g}'):,.10g}"


_DECIMAL = {"TB": 10**12, "GB": 10**9, "MB": 10**6, "kB": 10**3, "B": 1}
_BINARY = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "B": 1}


def unit_of(most: int, sizes: Mapping[str, int] = _BINARY) -> tuple[str, int]:
    """The largest unit of which `most` has at least one, and its bytes."""
    return next(((name, size) for name, size in sizes.items() if most >= size), ("B", 1))


def human(n: int) -> str:
    """Bytes in decimal units, as networks count them: "498 GB"."""
    name, size = unit_of(n, _DECIMAL)
    if size > 1:
        return f"{n / size:.3g} {name}"
    return f"{n} B"


def readable_bytes(n: int) -> str:
    """Bytes in binary units, as memory counts them: "150.36 GiB", "4.12 KiB"."""
    name, size = unit_of(n)
    if size > 1:
        return f"{n / size:,.2f} {name}"
    return f"{n} B"


def fold(text: str, width: int | None) -> str:
    """`text` with lines folded to `width` characters (None: unlimited); continuation lines are indented."""
    if width is None:
        return text
    folded: list[str] = []
    for line in text.split("\n"):
        label = _LABEL.match(line)
        # On a very narrow screen a long label would leave no room for words.
        indent = min(label.end() if label else len(_GAP), width // 2)
        first, *more = _folded(line, width, indent)
        folded += [first, *(" " * indent + part for part in more)]
    return "\n".join(folded)


def _folded(text: str, width: int, indent: int = 0) -> list[str]:
    """The lines of a text, all but the first shorter by `indent`; a word longer than a line is broken."""
    lines = list[str]()
    line = ""
    most = width
    for piece in _BREAKS.split(text):
        if line and len(line) + len(piece.rstrip()) > most:
            lines.append(line.rstrip())
            line = ""
            most = width - indent
        line += piece
        # One word can be longer than the whole line: it is broken at the edge.
        while len(line.rstrip()) > most:
            lines.append(line[:most])
            line = line[most:]
            most = width - indent
    return [*lines, line.rstrip()]


def text_table(
    title: str,
    head: Sequence[str],
    rows: Sequence[Sequence[object]],
    foot: str = "",
    width: int | None = None,
) -> str:
    """A table as text: title, aligned columns, foot.

    width: the most characters in a line; None for no limit. Cells are folded to fit. Columns that do not fit
    side by side continue below, in blocks that repeat the first column.
    """
    first, *others = [
        list(column) for column in zip(head, *([str(c) for c in row] for row in rows), strict=True)
    ]
    # Columns that fit side by side make a block. The first one names the row, so every block repeats it.
    held = [[first]]
    for column in others:
        if width is not None and len(held[-1]) > 1 and not _fit([*held[-1], column], width):
            held.append([first])
        held[-1].append(column)
    blocks = ["\n".join(_lines(block, width)) for block in held]
    return "\n".join([fold(title, width), "\n\n".join(blocks), *([fold(foot, width)] if foot else [])])


def aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    """The rows of a table as lines, with aligned columns."""
    return list(_lines([list(column) for column in zip(*rows, strict=True)], None))


def _least(column: list[str]) -> int:
    """The narrowest readable width of a column: its longest word, with no cell folded into slivers."""
    words = max(len(piece.rstrip()) for cell in column for piece in _BREAKS.split(cell))
    return max(words, *(min(len(cell), _SLIVER) for cell in column[1:]), 0)


def _fit(columns: list[list[str]], width: int) -> bool:
    """Whether the columns fit side by side and stay readable."""
    return sum(map(_least, columns)) + len(_GAP) * (len(columns) - 1) <= width


def _widths(columns: list[list[str]], width: int | None) -> list[int]:
    """The width of each column: what its cells need; if that is too much, the widest columns shrink."""
    needed = [max(map(len, column)) for column in columns]
    if width is None:
        return needed
    least = list(map(_least, columns)) if _fit(columns, width) else [1] * len(columns)
    # Lower the cap on all columns until the table fits: this shrinks the widest and leaves narrow ones whole.
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
    """The same table as HTML, with every text escaped.

    left: align cells to the left, for words. code: indexes of columns with code or shapes, which never wrap.
    """
    style = ""
    if left:
        style = ' style="text-align:left"'

    def cell(column: int, value: object) -> str:
        text = escape(str(value))
        if column in code and text:
            text = f'<code style="white-space:nowrap">{text}</code>'
        return text

    body = html_rows([[cell(i, value) for i, value in enumerate(row)] for row in rows], head, style)
    end = ""
    if foot:
        end = f"<p>{'<br>'.join(map(escape, foot.splitlines()))}</p>"
    return f"<p><b>{escape(title)}</b></p>{body}{end}"


def html_rows(rows: Iterable[Sequence[str]], head: Sequence[str], style: str = "") -> str:
    """An HTML table of cells that are HTML already. style: an attribute of every cell, with a blank first."""
    top = "".join(f"<th{style}>{escape(name)}</th>" for name in head)
    lines = []
    if head:
        lines = [f"<tr>{top}</tr>"]
    lines += [f"<tr>{''.join(f'<td{style}>{cell}</td>' for cell in row)}</tr>" for row in rows]
    return f"<table>{''.join(lines)}</table>"


def paragraphs(text: str) -> str:
    """HTML with one paragraph for each line of `text`."""
    return "".join(f"<p>{escape(line)}</p>" for line in text.splitlines())


class AsDict:
    """Base of values whose JSON form is a choice of their attributes, by name, in `json_names`."""

    json_names: ClassVar[tuple[str, ...]]

    def as_dict(self) -> Plain:
        """Plain values for JSON."""
        return {name: plain_value(getattr(self, name)) for name in self.json_names}


def plain_value(value: Any) -> Any:
    """A value as JSON holds it: records by their `as_dict`, tuples as lists."""
    if hasattr(value, "as_dict"):
        return value.as_dict()
    if isinstance(value, Mapping):
        return {name: plain_value(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [plain_value(each) for each in value]
    return value


class Record:
    """Base of records that show themselves as a table: `_table` gives title, head, rows and foot.

    _left: whether cells hold words, which HTML aligns to the left.
    """

    _left = False

    @property
    def call(self) -> Call | None:
        """The public call that made the record; None if something else made it.

        It is not a field: two records with the same values are equal, whatever call made them.
        """
        # Stored past the dataclass, since frozen records refuse assignment and `replace` must drop the call.
        return vars(self).get("_call")

    def live(self, **values: object) -> Any:
        """A live picture of the record with knobs: `lp.live(record, **values)`.

        Raises LlamaparError for a record that has none.
        """
        return late("live")(self, **values)

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        raise NotImplementedError

    def text(self, width: int | None = None) -> str:
        """The table as text, with lines of at most `width` characters if given."""
        return text_table(*self._table(), width=width)

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(*self._table(), left=self._left)


class Judged(Record):
    """A record of something that may not work."""

    @property
    @abstractmethod
    def reason(self) -> str:
        """Why it does not work, in one line; empty if it does."""

    @property
    def ok(self) -> bool:
        """Whether it works: there is no reason why not."""
        return not self.reason


@dataclass(frozen=True, repr=False)
class Table(Record):
    """A table without a record type of its own."""

    title: str
    head: list[str]
    rows: list[list[object]]

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        return self.title, self.head, self.rows, ""
