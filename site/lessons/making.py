"""The course's panels for the page: the code of each, what PyTorch records for it, and its first state."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts import OF_WATCH, PROJECT, printed_by

from .cells import puzzles_in, shown_in

HERE = Path(__file__).resolve().parent


def write_lessons(archive: Path, films: Path, cache: Path, notebooks: Sequence[Path]) -> dict[str, Any]:
    """Write what a lesson's Python needs into a folder, add its recordings to `films`.

    Returns "states": by lesson and key, kind and first state of each panel; "asked": by lesson, (kind, name)
    of its questions; "still": the words with which a stored question asks to be run; and "said": by lesson
    and cell, what the ranks of a puzzle said to its answer.

    What the page's Python cannot run, or runs forward alone, is recorded with PyTorch; kept in `cache`.
    """
    codes = write_archive(archive, notebooks)
    found = states(archive, films)
    needed = {
        name: {key: code for key, code in own.items() if key in found["failed"][name] or "lp.watch(" in code}
        for name, own in codes.items()
    }
    puzzles = {path.stem: dict(puzzles_in(json.loads(path.read_text()))) for path in notebooks}
    recorded = _recorded({"panels": needed, "puzzles": puzzles}, cache)
    shutil.copyfile(recorded / "kept.json", archive / "kept.json")
    _add_films(recorded, films)
    from llamapar.course.boxes import ASK
    from llamapar.course.progress import questions_asked

    said = json.loads((recorded / "said.json").read_text())
    return {
        "states": states(archive, films)["states"],
        "asked": questions_asked(PROJECT / "notebooks"),
        "still": ASK,
        "said": said,
    }


def write_archive(archive: Path, notebooks: Sequence[Path]) -> dict[str, dict[str, str]]:
    """What a lesson's Python needs beside the library; returns the code of each panel, by lesson and key."""
    codes = {
        path.stem: {one.key: one.code for one in shown_in(json.loads(path.read_text()))} for path in notebooks
    }
    course = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PROJECT / "llamapar" / "course", archive / "llamapar" / "course", ignore=course)
    for name in ("page_lesson.py", "kept.py", "running.py"):
        shutil.copyfile(HERE / name, archive / name)
    shutil.copytree(
        HERE / "standins", archive, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
    )
    (archive / "lessons.json").write_text(json.dumps(codes))
    return codes


def states(archive: Path, films: Path) -> dict[str, Any]:
    """ "states": by lesson and key, kind and first state; "failed": why there is none."""
    script = archive / "page_lesson.py"
    made: dict[str, Any] = json.loads(
        printed_by(script, imports=(archive, *OF_WATCH), LLAMAPAR_FILMS=films, LLAMAPAR_PROGRESS="off")
    )
    return made


def _recorded(codes: dict[str, object], cache: Path) -> Path:
    """A folder with recordings and kept questions, made where it is not there yet."""
    trees = (PROJECT / "llamapar", HERE.parent / "watch")
    sources = sorted(path for tree in trees for path in tree.rglob("*.py"))
    sources += [HERE / name for name in ("record.py", "kept.py", "running.py")]
    whole = hashlib.sha256(json.dumps(codes).encode() + b"".join(path.read_bytes() for path in sources))
    folder = cache / f"lessons-{whole.hexdigest()[:16]}"
    if not (folder / "index.json").is_file():  # which is written last
        cache.mkdir(parents=True, exist_ok=True)
        asked = cache / "codes.json"
        asked.write_text(json.dumps(codes))
        imports = (HERE, HERE.parent / "watch", PROJECT)
        printed_by(HERE / "record.py", asked, folder, imports=imports, LLAMAPAR_PROGRESS="off")
    return folder


def _add_films(recorded: Path, films: Path) -> None:
    names = {name for folder in (recorded, films) for name in json.loads((folder / "index.json").read_text())}
    for path in recorded.glob("*.json.gz"):
        shutil.copyfile(path, films / path.name)
    (films / "index.json").write_text(json.dumps(sorted(names)))
