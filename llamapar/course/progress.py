"""What a reader guessed and solved: one file beside the notebooks, and a page that adds it up.

The file is JSON, each entry by its kind and its name. Whatever is there and is not ours stays as it is:
nothing is kept then, and a sentence says so. `LLAMAPAR_PROGRESS` names another file; `off` keeps and shows
nothing, which is how tests and the tool that stores outputs run the notebooks.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from llamapar.errors import LayoutError
from llamapar.records.tables import Table

from .notebook_cells import read_cells

FOLDER = Path.cwd()
"""Where the notebooks are: a kernel starts in the folder of its notebook."""

FILE = FOLDER / "progress.json"
FORM = "progress of the llamapar course, form 1"
KINDS = {"predict": "predictions", "check": "exercises", "puzzle": "puzzles", "ask": "questions"}
"""The function that a cell calls with the name first, and what it is counted as."""

NOTHING = "nothing is kept yet: answer a question in any notebook"

Entries = dict[str, dict[str, dict[str, Any]]]
"""By kind and name: {"right": True, False, or None where nothing judges} and perhaps "guess", a text."""


def file() -> Path | None:
    """Where progress is kept; None where it is not: beside no notebook it would only litter a folder."""
    named = os.environ.get("LLAMAPAR_PROGRESS", "")
    if named == "off" or not (named or any(FOLDER.glob("*.ipynb"))):
        return None
    return Path(named or FILE)


def load_progress(path: Path) -> Entries:
    """What a file holds; nothing where there is none.

    Raises LayoutError for a file that is not ours or cannot be read.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as problem:
        raise _unread(path, f"it cannot be read: {problem}") from None
    if not isinstance(found, dict) or found.get("form") != FORM:
        raise _unread(path, f"it does not begin as this course writes it, with {FORM!r}")
    entries = {kind: named for kind, named in found.items() if kind != "form"}
    for kind, named in entries.items():
        if not isinstance(named, dict) or not all(
            isinstance(one, dict) and one.get("right") in (True, False, None) for one in named.values()
        ):
            raise _unread(path, f"its {kind} are not as this course writes them")
    return entries


def _unread(path: Path, why: str) -> LayoutError:
    return LayoutError(
        f"{path.name} was left as it is, and this is not kept in it",
        why,
        ["rename the file, and a new one begins"],
        "progress",
    )


def keep(
    kind: str, name: str, right: bool | None, guess: str | None = None, say: Callable[[str], object] = print
) -> dict[str, Any]:
    """Writes one entry down and returns what stands for it now. What cannot be kept is said, never raised.

    kind: one of KINDS' values. guess: of a prediction, whose first one stands, for it was made unseen; of
    everything else the last try stands, but for one that was right.
    """
    entry = {"right": right} | ({} if guess is None else {"guess": guess})
    path = file()
    if path is None:
        return entry
    try:
        with _alone(path.parent):
            entries = load_progress(path)
            named = entries.setdefault(kind, {})
            before = named.get(name, {})
            if "guess" in before or before.get("right"):
                return before
            named[name] = entry
            _write(path, {"form": FORM} | entries)
    except LayoutError as problem:
        say(str(problem))
    except OSError as problem:
        say(f"{path.name} could not be written ({problem.strerror}); this is not kept")
    return entry


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """While this lasts no other notebook writes progress into the folder, or its answer would be lost.

    The lock is on the folder itself, and the system takes it back from a process that dies. Where there are
    no such locks (Windows, the page without an install) one notebook at a time is safe.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    held = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system that knows no locks
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _write(path: Path, content: dict[str, Any]) -> None:
    """All of it or nothing: written beside the file, which then takes its place."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as new:
        try:
            json.dump(content, new, indent=1, ensure_ascii=False)
            new.close()
            os.replace(new.name, path)
        except BaseException:
            os.unlink(new.name)
            raise


def questions_asked(folder: Path | None = None) -> dict[str, list[tuple[str, str]]]:
    """What each notebook asks, as (kind, name), from the cells themselves; folder: FOLDER by default."""
    found = {}
    for path in sorted((folder or FOLDER).glob("*.ipynb")):
        calls = [(KINDS[how], name) for cell in read_cells(path) for how, name in cell.calls]
        found[path.stem] = list(dict.fromkeys(calls))
    return found


def progress() -> Table | None:
    """What was guessed and solved so far, by notebook; where that is nothing, a sentence says how."""
    path = file()
    try:
        entries = load_progress(path) if path else {}
    except LayoutError as problem:
        print(problem)
        return None
    if not any(entries.values()):
        print(NOTHING)
        return None
    notebooks = questions_asked()
    notebooks["together"] = [question for questions in notebooks.values() for question in questions]
    rows: list[list[object]] = [
        [name, *(_count(questions, kind, entries) for kind in KINDS.values())]
        for name, questions in notebooks.items()
    ]
    return Table("what you guessed and solved", ["notebook", *KINDS.values()], rows)


def _count(questions: list[tuple[str, str]], kind: str, entries: Entries) -> str:
    """ "4 of 7, 3 right", of the questions of a kind; empty where there are none."""
    names = [name for one, name in questions if one == kind]
    kept = entries.get(kind, {})
    done = [kept[name] for name in names if name in kept]
    right = sum(entry["right"] is True for entry in done)
    return f"{len(done)} of {len(names)}, {right} right" if names else ""
