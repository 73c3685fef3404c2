"""docs/map.md, the course's ideas on one page, from llamapar/course/lessons.toml. For authors.

    python tools/idea_map.py            # write docs/map.md anew

GitHub draws the Mermaid graph; the table below it says the same, and what each arrow stands for.
"""

from __future__ import annotations

from pathlib import Path

from llamapar.course.lessons import LESSONS

PROJECT = Path(__file__).resolve().parent.parent
PAGE = PROJECT / "docs" / "map.md"
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


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
