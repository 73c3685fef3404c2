"""docs/map.md, the course's ideas on one page, from llamapar/course/lessons.toml. For authors.

    python tools/idea_map.py            # write docs/map.md anew

GitHub draws the Mermaid graph; elsewhere the table below it says the same.
"""

from __future__ import annotations

from pathlib import Path

from llamapar.course.lessons import LESSONS

PROJECT = Path(__file__).resolve().parent.parent
PAGE = PROJECT / "docs" / "map.md"
ROWS = {name: row for name, row in LESSONS.items() if "parts" not in row}
KINDS = {"opener": "To begin with", "lesson": "Lessons", "tool": "By job", "exam": "At the end"}
"""Kind of a notebook → the title of its frame."""


def node(name: str) -> str:
    """A notebook as a node: its number and its idea."""
    return f'{name.partition("_")[0]}["{name.partition("_")[0]} {ROWS[name]["idea"]}"]'


def page() -> str:
    """The whole page."""
    graph = ["flowchart TD"]
    for kind, title in KINDS.items():
        nodes = [f"    n{node(name)}" for name, row in ROWS.items() if row["kind"] == kind]
        graph += [f'  subgraph {kind} ["{title}"]', *nodes, "  end"]
    table = ["| notebook | idea | what it takes along |", "|---|---|---|"]
    for name, row in ROWS.items():
        number, needs = name.partition("_")[0], row.get("needs", {})
        graph += [f'  n{other.partition("_")[0]} -->|"{taken}"| n{number}' for other, taken in needs.items()]
        taken = "; ".join(f"{what} ({other.partition('_')[0]})" for other, what in needs.items())
        table.append(f"| [{name}](../notebooks/{name}.ipynb) | {row['idea']} | {taken} |")
    return "\n".join(
        [
            "# A map of ideas",
            "",
            "Each box is a notebook of [the course](course.md), with its one idea. An arrow says what the "
            "next notebook takes along. To start in the middle, follow the arrows back.",
            "",
            "```mermaid",
            *graph,
            "```",
            "",
            *table,
            "",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
