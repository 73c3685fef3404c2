"""A picture as one record: its words, its traces and axes, and the rows that its text lists.

A picture's module describes what it shows as a Chart, and here the description becomes plotly's spec and a
text. All texts have one form: a head, a line for each row, remarks, and a sentence about rows that are not
drawn. How a bar is made is left to `draw`, and how pictures look to `style`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from . import style
from .draw import Rows, lines
from .style import Spec

_NO_ROWS = Rows(0)


@dataclass(frozen=True, kw_only=True)
class Chart:
    """What a picture shows, before it has plotly's form.

    kind: pictures of one kind replace each other without a jump. title and note stand above the picture.
    layout: the axes, and what else `style.layout` takes. head: the first lines of the text, the title if
    empty. rows and line: what the text lists, and the line of each. remarks: the lines after them.
    """

    kind: str
    title: str
    note: str = ""
    data: Iterable[Spec]
    layout: Spec
    head: str | Iterable[str] = ""
    rows: Rows = _NO_ROWS
    line: Callable[[int], str] = str
    remarks: str | Iterable[str] = ()

    def drawn(self) -> tuple[Spec, str]:
        """The picture as plotly's spec, and the same as text."""
        layout = style.layout(self.kind, self.title, self.note, **self.layout)
        listing = self.rows.listing(self.line)
        text = lines(self.head or self.title, listing, self.remarks, self.rows.left_out)
        return {"data": list(self.data), "layout": layout}, text
