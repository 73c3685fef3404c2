"""Pages of docs/measured: the benchmark that makes the numbers writes them into its page, with `--page`.

A page is Markdown. Each computed table stands between `<!-- NAME -->` and `<!-- end -->`, and the script
replaces it; a test compares it with what the script computes now. The words around the tables are written by
hand, and so are figures of first sight, which were measured once and cannot be made again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "measured"


def page(script: str) -> Path:
    """The page of a benchmark. script: its name, with or without its folder."""
    return FOLDER / f"{Path(script).stem}.md"


def filled(script: str, tables: Mapping[str, Sequence[str]]) -> str:
    """The text of a page with the computed tables in their places. tables: name → lines."""
    text = page(script).read_text(encoding="utf-8")
    for name, lines in tables.items():
        begin, end = f"<!-- {name} -->\n", "<!-- end -->\n"
        if text.count(begin) != 1:
            raise ValueError(f"{page(script)} has {text.count(begin)} places for the table {name!r}, not 1")
        before, _, rest = text.partition(begin)
        text = before + begin + "\n" + "\n".join([*lines, "", ""]) + end + rest.partition(end)[2]
    return text


def write(script: str, tables: Mapping[str, Sequence[str]]) -> None:
    """Write the page of a benchmark anew."""
    text = filled(script, tables)
    page(script).write_text(text, encoding="utf-8")
    print(f"docs/measured/{page(script).name} is written")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a table."""
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(str(cell) for cell in line)} |" for line in lines]
