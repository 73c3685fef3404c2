"""What lessons show and only PyTorch runs: recordings of watched ranks, and questions with their truths.

python site/lessons/record.py CODES.json FOLDER     # by lesson and key, code; into FOLDER: films, kept.json
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from unittest.mock import patch

os.environ["LLAMAPAR_PROGRESS"] = "off"

from films import write
from kept import KEPT, Kept, keep
from running import run

import exercises
from llamapar.panels.watch_panel import Watch


def record(codes: dict[str, dict[str, str]], folder: Path) -> None:
    """Run each code, and write down what it shows. Says on stderr what cannot be kept, and leaves it out."""
    watched, kept = [], dict[str, Kept]()
    for lesson, cells in codes.items():
        for key, code in cells.items():
            with patch.object(exercises, "box") as box, patch("IPython.display.display"):
                shown = run(code)
            if isinstance(shown, Watch):
                watched.append(shown._state)
            elif box.called:
                item, _, name = box.call_args.args[:3]
                try:
                    kept[name] = keep(item)
                except ValueError as problem:
                    print(f"{lesson} {key} is not kept: {problem}", file=sys.stderr)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / KEPT).write_text(json.dumps(kept), encoding="utf-8")
    write(folder, watched)  # its index is written last


if __name__ == "__main__":
    record(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
