"""How long a notebook takes: an estimate from its words, code, pictures, questions and runs.

`docs/course.md` has the formula. Words at 200 a minute: adults read English non-fiction silently at 238 on
average, most of them between 175 and 300 (Brysbaert 2019, doi:10.1016/j.jml.2019.104047), and this is
technical prose. The other paces are assumptions of ours, stated here: nobody was timed. Puzzles, at which one
may sit for long, are counted apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import nbformat

WORDS_A_MINUTE = 200
SECONDS_A_LINE, SECONDS_AN_OUTPUT_LINE = 3, 1
"""Of code, which is read, and of printed output, which is looked at."""

SECONDS_A_PICTURE = 20
SECONDS_A_QUESTION = 15
"""To guess. A question of the exam is worked out on paper, as an exercise is."""

SECONDS_AN_EXERCISE = 90
SECONDS_A_RUN = 20
"""Of ranks that are watched step by step, or that the reader's own cell starts."""

SECONDS_TO_RUN = 60
"""What the notebooks promise at most."""

_FOLDED = re.compile(r"<details>.*?</details>", re.DOTALL)
_LINK = re.compile(r"\]\([^)]*\)")
_NAME = r'\(\s*"(?:[^"\\]|\\.)*"'
_GUESS = re.compile(rf"\bpredict{_NAME}(?:,\s*None\b|\s*\))")
_BOX = re.compile(rf"(?<!lp\.)\bcheck{_NAME}\s*\)")
"""An exercise that is answered in its box; others have a stub before the cell that checks it."""

_ASKED = re.compile(rf"^ask{_NAME}")
_RUN = re.compile(r"^%%ranks|\blp\.watch\(", re.MULTILINE)


@dataclass(frozen=True)
class Reading:
    """What a notebook asks of its reader."""

    words: int
    code_lines: int
    output_lines: int
    pictures: int
    questions: int
    exercises: int
    runs: int
    puzzles: int

    @property
    def minutes(self) -> float:
        """Without its puzzles."""
        seconds = (
            self.code_lines * SECONDS_A_LINE
            + self.output_lines * SECONDS_AN_OUTPUT_LINE
            + self.pictures * SECONDS_A_PICTURE
            + self.questions * SECONDS_A_QUESTION
            + self.runs * SECONDS_A_RUN
            + self.exercises * SECONDS_AN_EXERCISE
            + SECONDS_TO_RUN
        )
        return self.words / WORDS_A_MINUTE + seconds / 60


def reading(path: Path) -> Reading:
    """Of a notebook, with what is folded left out."""
    cells = nbformat.read(path, 4).cells
    prose = " ".join(_LINK.sub("]", _FOLDED.sub("", c.source)) for c in cells if c.cell_type == "markdown")
    code = [cell for cell in cells if cell.cell_type == "code"]
    tags = [set(cell.metadata.get("tags", [])) for cell in code]
    outputs = [output for cell in code for output in cell.outputs]
    shown = [output.get("data") or {"text/plain": output.get("text", "")} for output in outputs]
    pictures = sum("image/png" in data for data in shown)
    printed = [str(data.get("text/plain", "")) for data in shown if "image/png" not in data]
    return Reading(
        words=len(prose.split()),
        code_lines=sum(len(cell.source.splitlines()) for cell in code),
        output_lines=sum(len(text.splitlines()) for text in printed),
        pictures=pictures,
        questions=sum(bool(_GUESS.search(cell.source)) for cell in code),
        runs=sum(bool(_RUN.search(cell.source)) for cell in code),
        exercises=sum("exercise" in found and "puzzle" not in found for found in tags)
        + sum(bool(_BOX.search(cell.source) or _ASKED.search(cell.source)) for cell in code),
        puzzles=sum("puzzle" in found for found in tags),
    )
