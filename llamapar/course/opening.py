"""`llamapar course`: a copy of the course in a folder, opened in JupyterLab."""

from __future__ import annotations

import os
import secrets
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from llamapar.cli.serving import FIRST, become_a_server, server_options, shipped_folder
from llamapar.errors import LlamaparError
from llamapar.records.tables import Plain, fold

COPIED = ("notebooks/*.ipynb", "docs/*.md")
"""The files that a course consists of: its notebooks, and the pages that they link to."""

STATE = ".jupyter"
"""The folder of a course into which its JupyterLab writes."""


@dataclass(frozen=True)
class CourseCopy:
    """A course in a folder. copied: the files written now. kept: those that differ from this version's."""

    folder: Path
    copied: tuple[str, ...]
    kept: tuple[str, ...]

    def as_dict(self) -> Plain:
        """As plain values."""
        return {"folder": str(self.folder), "copied": list(self.copied), "kept": list(self.kept)}

    def text(self, width: int | None = None) -> str:
        """What was done, in a sentence or two."""
        lines = [f"{self.folder}: all files are there"]
        if self.copied:
            lines = [f"{self.folder}: {len(self.copied)} files copied"]
        if self.kept:
            lines.append(
                f"    kept as they are, because they differ from this version's: {', '.join(self.kept)}"
            )
        return fold("\n".join(lines), width)


def course_copy(folder: str) -> CourseCopy:
    """Copy the course into a folder; a file that is there already is never overwritten, and no link followed.

    Raises LlamaparError if a file cannot be read or written, and before the first copy where a link, a
    named pipe or the like stands at a place of the course.
    """
    source = shipped_folder()
    target = Path(folder).expanduser().absolute()
    files = [file.relative_to(source) for pattern in COPIED for file in source.glob(pattern)]
    stored = {file: (source / file).read_bytes() for file in sorted(files)}
    folders = {above for file in stored for above in file.parents[:-1]}
    copied: list[str] = []
    kept: list[str] = []
    missing: list[Path] = []
    try:
        for inner in sorted({*folders, Path(STATE)}):
            _standing(target / inner, stat.S_ISDIR, "a folder")
        for file, content in stored.items():
            entry = _standing(target / file, stat.S_ISREG, "a regular file")
            if entry is None:
                missing.append(file)
            elif entry.st_size != len(content) or (target / file).read_bytes() != content:
                kept.append(file.as_posix())
        for file in missing:
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            if _written(target / file, stored[file]):
                copied.append(file.as_posix())
    except OSError as problem:
        what = f"the course cannot be copied to {target}"
        raise LlamaparError(what, str(problem), ["llamapar course OTHER-FOLDER"], "folder") from None
    return CourseCopy(target, tuple(copied), tuple(kept))


def _standing(place: Path, is_kind: Callable[[int], bool], kind: str) -> os.stat_result | None:
    """What stands at a place, a link as itself; None where nothing does. Raises OSError for another kind."""
    try:
        entry = place.lstat()
    except FileNotFoundError:
        return None
    if not is_kind(entry.st_mode):
        raise OSError(f"{place} is not {kind}; the course follows no link and opens no pipe or device")
    return entry


def _written(place: Path, content: bytes) -> bool:
    """Write a new file, all of it or nothing; False where a file came to its place in the meantime."""
    part = place.with_name(f".{place.name}.{secrets.token_hex(8)}")
    try:
        with open(part, "xb") as new:  # never through a link, and never over a file
            new.write(content)
        try:
            os.link(part, place)  # A rename would replace what another copy has just put there.
        except FileExistsError:
            return False
        except OSError:  # A file system without hard links.
            part.rename(place)
    finally:
        part.unlink(missing_ok=True)
    return True


def open_course(
    folder: str = "llamapar-course", copy: bool = False, browser: bool = True, port: int | None = None
) -> CourseCopy:
    """Copy the course into a folder and become JupyterLab on its first notebook; with `copy`, only copy.

    Raises LlamaparError if a file cannot be copied, for a wrong port, or without JupyterLab.
    """
    options = [] if copy else server_options(browser, port)
    made = course_copy(folder)
    if not copy:
        print(made.text(), file=sys.stderr, flush=True)
        become_a_server(made.folder / STATE, "--root", str(made.folder), FIRST, *options)
    return made
