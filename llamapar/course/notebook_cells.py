"""The course's notebooks as data: where they are, their cells and sections, and how long they take to read.

`docs/course.md` has the formula of the minutes. Words at 200 a minute: adults read English non-fiction
silently at 238 on average, most of them between 175 and 300 (Brysbaert 2019,
doi:10.1016/j.jml.2019.104047), and this is technical prose. The other paces are assumptions of ours, stated
here: nobody was timed. Puzzles, at which one may sit for long, and what is folded are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from llamapar.errors import LlamaparError

SECONDS = {
    "words": 60 / 200,
    "lines of code": 3,  # which is read
    "lines of output": 1,  # which is looked at
    "pictures": 20,
    "questions": 15,  # to guess
    "runs": 20,  # ranks that are watched step by step, or that the reader's own cell starts
    "exercises": 90,  # and each question of the exam, which is worked out on paper
}
"""What a reader meets in a notebook → seconds for one of it."""

SECONDS_TO_RUN = 60
"""What the notebooks promise at most."""

_UNREAD = re.compile(r"<details>(?!<summary>After your).*?</details>|(?<=\])\([^)]*\)", re.DOTALL)
"""What is folded and not read after a guess, and where a link leads."""

_HEADING = re.compile(r"^(?=##? )", re.MULTILINE)
_ASKED = re.compile(r'(?<!lp\.)\b(predict|check|ask|puzzle)\(\s*("(?:[^"\\]|\\.)*")')
_RUN = re.compile(r"^%%ranks|\blp\.watch\(", re.MULTILINE)


@dataclass(frozen=True)
class NotebookCell:
    """A cell. source: of text, without what is folded and where links lead. number: as in [3], 0 for text.

    calls: which function asks ("predict", "check", "ask", "puzzle"), and the name of what it asks. shows: its
    outputs, each a MIME type → content; what was printed is text, and an error's message is "error".
    """

    is_code: bool
    source: str
    number: int
    calls: tuple[tuple[str, str], ...]
    shows: tuple[dict[str, str], ...]

    @property
    def asks(self) -> tuple[tuple[str, str], ...]:
        """Its calls that show a box: all but puzzles."""
        return tuple(call for call in self.calls if call[0] != "puzzle")


def read_cells(path: Path) -> list[NotebookCell]:
    """The cells of a notebook. Raises LlamaparError for a file that is none."""
    try:
        stored = [
            (cell, "".join(cell["source"]), cell["cell_type"] == "code")
            for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
        ]
        return [
            NotebookCell(
                is_code,
                source if is_code else _UNREAD.sub("", source),
                cell.get("execution_count") or 0,
                tuple((how, json.loads(name)) for how, name in _ASKED.findall(source) if is_code),
                tuple(
                    {kind: "".join(part) for kind, part in data.items() if isinstance(part, str | list)}
                    for output in cell.get("outputs", [])
                    for printed in [{"text/plain": output.get("text", ""), "error": output.get("evalue", "")}]
                    for data in [output.get("data") or printed]
                ),
            )
            for cell, source, is_code in stored
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as problem:
        raise LlamaparError(f"{path} cannot be read as a notebook", str(problem), field="name") from None


def sections(cells: Iterable[NotebookCell]) -> list[tuple[str, list[NotebookCell]]]:
    """Each heading with the cells below it; what has no code, as a summary, belongs to the section before."""
    pieces = [
        replace(cell, source=piece)
        for cell in cells
        for piece in ([cell.source] if cell.is_code else _HEADING.split(cell.source))
    ]
    begin = [i for i, cell in enumerate(pieces) if not cell.is_code and _HEADING.match(cell.source)]
    lively = [a for a, b in pairwise([*begin, len(pieces)]) if any(cell.is_code for cell in pieces[a:b])]
    spans = pairwise([*(lively or [0]), len(pieces)])
    return [(pieces[a].source.partition("\n")[0].strip("# "), pieces[a:b]) for a, b in spans if a < b]


def minutes_to_read(cells: Sequence[NotebookCell]) -> float:
    """By SECONDS, of some cells, without the time to run, without puzzles and what is folded."""
    code = [cell for cell in cells if cell.is_code]
    shown = [data for cell in code for data in cell.shows]
    printed = [data.get("text/plain", "") for data in shown if "image/png" not in data]
    counts = {
        "words": sum(len(cell.source.split()) for cell in cells if not cell.is_code),
        "lines of code": sum(len(cell.source.splitlines()) for cell in code),
        "lines of output": sum(len(text.splitlines()) for text in printed),
        "pictures": len(shown) - len(printed),
        "questions": sum("predict" in dict(cell.asks) for cell in code),
        "runs": sum(bool(_RUN.search(cell.source)) for cell in code),
        "exercises": sum(not {"check", "ask"}.isdisjoint(dict(cell.asks)) for cell in code),
    }
    return sum(SECONDS[what] * n for what, n in counts.items()) / 60
