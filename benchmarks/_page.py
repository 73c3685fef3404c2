"""docs/accuracy.md: the benchmark that makes a number writes it into the page, with `--page`.

The page is Markdown. Each computed table stands between `<!-- NAME -->` and `<!-- end -->`, and its script
replaces it; a test compares it with what the script computes now. The words around the tables are written by
hand, and so are figures of first sight, which were measured once and cannot be made again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "accuracy.md"


def filled(tables: Mapping[str, Sequence[str]]) -> str:
    """The text of the page with the computed tables in their places. tables: name → lines."""
    text = PAGE.read_text(encoding="utf-8")
    for name, lines in tables.items():
        begin, end = f"<!-- {name} -->\n", "<!-- end -->\n"
        if text.count(begin) != 1:
            raise ValueError(f"{PAGE} has {text.count(begin)} places for the table {name!r}, not 1")
        before, _, rest = text.partition(begin)
        text = before + begin + "\n" + "\n".join([*lines, "", ""]) + end + rest.partition(end)[2]
    return text


def write(tables: Mapping[str, Sequence[str]]) -> None:
    """Write the tables of a benchmark into the page."""
    text = filled(tables)
    PAGE.write_text(text, encoding="utf-8")
    print(f"docs/{PAGE.name} is written: {', '.join(tables)}")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a table."""
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(str(cell) for cell in line)} |" for line in lines]
