"""The current line of a rank: from faulthandler's output, or from a thread of this process."""

from __future__ import annotations

import linecache
import re
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from llamapar.records.frames import is_library

PACKAGE = Path(__file__).parent.parent
CALLER = str(PACKAGE / "execution" / "engines" / "rank.py")
"""What calls a program on a rank: it and its callers are no news."""

_CALL = re.compile(r'^  File "(.*)", line (\d+) in (.+)$', re.MULTILINE)
_ESCAPE = re.compile(r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")


class PendingCall(NamedTuple):
    """A call that has not returned, with its current line."""

    file: str
    line: int
    name: str


def pending_calls(dump: str) -> list[PendingCall]:
    """The calls that faulthandler wrote, innermost first."""
    text = _ESCAPE.sub(lambda escape: chr(int(escape[0][2:], 16)), dump)
    return [PendingCall(file, int(line), name) for file, line, name in _CALL.findall(text)]


def of_thread(thread: int | None) -> list[PendingCall]:
    """The calls of a thread of this process, innermost first."""
    frame = sys._current_frames().get(thread or 0)
    return [PendingCall(f.filename, f.lineno or 0, f.name) for f in reversed(traceback.extract_stack(frame))]


def place(calls: Iterable[PendingCall]) -> str:
    """The current line, in the program's own code if possible; "" without calls."""
    of_program = []
    for call in calls:
        if call.file == CALLER:
            break
        of_program.append(call)
    programs = str(PACKAGE / "programs")
    own = [c for c in of_program if c.file.startswith(programs) or not is_library(c.file)]
    if not of_program:
        return ""
    file, line, name = (own or of_program)[0]
    in_notebook = Path(file).parent.name.startswith("ipykernel_")
    where = f"line {line} of {'a cell' if in_notebook else Path(file).name}, in {name}"
    source = linecache.getline(file, line).strip()
    if source:
        return f"{where}: {source}"
    return where
