"""Where the course lists its notebooks, from the notebooks and llamapar/course/lessons.toml. For authors.

    python tools/idea_map.py            # write the three lists anew

docs/map.md is written whole: GitHub draws the Mermaid graph, and the table below it says the same, and what
each arrow stands for. In docs/course.md and in the first notebook a row keeps its words, and a new notebook
gets a row with its own question; the minutes are those that `llamapar/course/notebook_cells.py` adds up.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from llamapar.course.lessons import LESSONS
from llamapar.course.notebook_cells import SECONDS_TO_RUN, minutes_to_read, read_cells

PROJECT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((PROJECT / "notebooks").glob("*.ipynb"))
PAGE = PROJECT / "docs" / "map.md"
COURSE = PROJECT / "docs" / "course.md"
TO_A_PUZZLE = 10
"""Minutes, as docs/course.md says."""

ROWS = {name: row for name, row in LESSONS.items() if "parts" not in row}
SHAPES = {"opener": ('(["', '"])'), "lesson": ('["', '"]'), "tool": ('("', '")'), "exam": ('(["', '"])')}
"""Kind of a notebook → the brackets of its node."""

TIGHT = '%%{init: {"flowchart": {"nodeSpacing": 20, "rankSpacing": 45, "wrappingWidth": 130}}}%%'
"""Narrow nodes, so that the letters stay readable at the width of GitHub's column."""

ABOVE = """\
# A map of ideas

Each box is a notebook of [the course](course.md) with its one idea, and each arrow leads to one that needs
it. Square boxes are the lessons, in order; boxes with round corners are for a job at hand. To start in the
middle, follow the arrows back: the table says what to take along from there. GitHub draws the graph; where
you see its source, the table below it says the same.
"""


def number(name: str) -> str:
    """What a notebook's name begins with: "03", "a1"."""
    return name.partition("_")[0]


def page() -> str:
    """The whole page."""
    nodes, arrows = [], []
    table = ["| notebook | idea | what it takes along |", "|---|---|---|"]
    for name, row in ROWS.items():
        opens, closes = SHAPES[row["kind"]]
        nodes.append(f"  n{number(name)}{opens}{number(name)} {row['idea']}{closes}")
        needs = row.get("needs", {})
        arrows += [f"  n{number(other)} --> n{number(name)}" for other in needs]
        taken = "; ".join(f"{what} ({number(other)})" for other, what in needs.items())
        table.append(f"| [{name}](../notebooks/{name}.ipynb) | {row['idea']} | {taken} |")
    graph = ["```mermaid", TIGHT, "flowchart TD", *nodes, *arrows, "```"]
    return "\n".join([ABOVE, *graph, "", *table, ""])


def question(notebook: Path) -> str:
    """What the first line of a notebook asks."""
    return read_cells(notebook)[0].source.partition("\n")[0].strip("# ")


def listed(text: str, where: str, notebooks: list[Path], minutes: bool) -> str:
    """`text` with its table of notebooks anew. where: the folder of the links, "" or "../notebooks/"."""
    row = re.compile(rf"^\| \[(\w+)\]\({re.escape(where)}\w+\.ipynb\) \| (.*?) \|.*\n", re.MULTILINE)
    words = dict(row.findall(text))
    rows = []
    for notebook in notebooks:
        name = notebook.stem
        line = f"| [{name}]({where}{name}.ipynb) | {words.get(name, question(notebook))} |"
        if minutes:
            cells = read_cells(notebook)
            puzzles = sum(how == "puzzle" for cell in cells for how, _ in cell.calls)
            once = round(minutes_to_read(cells) + SECONDS_TO_RUN / 60)
            line += f" `{once}` | `{once + TO_A_PUZZLE * puzzles}` |"
        rows.append(f"{line}\n")
    first, last = [*row.finditer(text)][:: len(words) - 1]
    return text[: first.start()] + "".join(rows) + text[last.end() :]


def course_page() -> str:
    """docs/course.md with its table anew."""
    return listed(COURSE.read_text(encoding="utf-8"), "../notebooks/", NOTEBOOKS, minutes=True)


def first_notebook() -> str:
    """The first notebook's file with its table of the others anew."""
    stored = json.loads(NOTEBOOKS[0].read_text(encoding="utf-8"))
    for cell in stored["cells"]:
        text = "".join(cell["source"])
        if f"]({NOTEBOOKS[1].name}) |" in text:
            cell["source"] = listed(text, "", NOTEBOOKS[1:], minutes=False).splitlines(keepends=True)
    return json.dumps(stored, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    # The first notebook comes before the page that counts its minutes, for a row makes it longer.
    NOTEBOOKS[0].write_text(first_notebook(), encoding="utf-8")
    COURSE.write_text(course_page(), encoding="utf-8")
