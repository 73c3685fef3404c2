"""What lessons show and only PyTorch runs: recordings of watched ranks, and questions with their truths.

    python site/lessons/record.py CODES.json FOLDER

CODES.json: {"panels": by lesson and key, "puzzles": by lesson and cell}, each the code. Into FOLDER go films,
kept.json and said.json, which has by lesson and cell what the ranks of a puzzle said to its answer.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from unittest.mock import patch

from films import write
from kept import KEPT, Kept, keep
from running import run

from llamapar.course import exercises
from llamapar.panels.watch_panel import Watch

Codes = dict[str, dict[str, str]]


def said_by(puzzles: Codes) -> Codes:
    """What the code of each puzzle prints. Raises ValueError for an answer that is not right."""
    said: Codes = {lesson: {} for lesson in puzzles}
    for lesson, cells in puzzles.items():
        for cell, code in cells.items():
            _, text = run(code)
            if not text.startswith("right"):
                raise ValueError(f"{lesson}, cell {cell}: {text}")
            said[lesson][cell] = text
    return said


def record(codes: Codes, folder: Path) -> None:
    """Run each code, and write down what it shows. Says on stderr what cannot be kept, and leaves it out."""
    watched, kept = [], dict[str, Kept]()
    for lesson, cells in codes.items():
        for key, code in cells.items():
            with patch.object(exercises, "box") as box, patch("IPython.display.display"):
                shown, _ = run(code)
            if isinstance(shown, Watch):
                watched.append(shown._state)
            elif box.called:
                item, _, name = box.call_args.args[:3]
                try:
                    kept[name] = keep(item)
                except ValueError as problem:
                    print(f"{lesson} {key} is not kept: {problem}", file=sys.stderr)
    (folder / KEPT).write_text(json.dumps(kept), encoding="utf-8")
    write(folder, watched)  # its index is written last


if __name__ == "__main__":
    codes, folder = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "said.json").write_text(json.dumps(said_by(codes["puzzles"])), encoding="utf-8")
    record(codes["panels"], folder)
