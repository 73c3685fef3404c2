"""`llamapar course` and `llamapar explorer`: the course, or the Explorer alone, in the reader's browser.

A wheel carries notebooks, docs and Jupyter's settings in `llamapar/shipped`; a checkout has them at its top.
Both are started by the same `jupyter/start.py` as `make lab`: JupyterLab for the course, Voilà for the
Explorer, because Voilà runs a notebook when its page opens and shows only what it displays.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from llamapar.configs.export import as_cli
from llamapar.describe.job import Job
from llamapar.errors import LlamaparError, install, whole
from llamapar.records.tables import Plain, fold

FIRST = "notebooks/00_start_here.ipynb"
COPIED = ("notebooks/*.ipynb", "docs/*.md", "docs/measured/*.md")
"""The files that a course consists of: its notebooks, and the pages that they link to."""

STATE = ".jupyter"
"""The folder of a course into which its JupyterLab writes."""


def shipped_folder(package: Path = Path(__file__).parent.parent) -> Path:
    """The folder with the course's notebooks, docs and Jupyter settings: a wheel's, or the checkout.

    Raises LlamaparError where they are at neither place.
    """
    for folder in (package / "shipped", package.parent):
        if (folder / FIRST).is_file():
            return folder
    raise LlamaparError(
        "the notebooks of the course are not here",
        "they come with the package, or with a checkout beside it",
        [install("lab"), "a path, such as notebooks/03_attention_heads.ipynb"],
        "name",
    )


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
        lines = [
            f"{self.folder}: {len(self.copied)} files copied"
            if self.copied
            else f"{self.folder}: all files are there"
        ]
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
    source, target = shipped_folder(), Path(folder).expanduser().absolute()
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
            same = _is_there(target / file, content)
            if same is None:
                missing.append(file)
            elif not same:
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


def _is_there(place: Path, content: bytes) -> bool | None:
    """Whether the file at a place has this content; None where there is no file."""
    entry = _standing(place, stat.S_ISREG, "a regular file")
    if entry is None:
        return None
    return entry.st_size == len(content) and place.read_bytes() == content


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
    options = [] if copy else _server_options(browser, port)
    made = course_copy(folder)
    if not copy:
        print(made.text(), file=sys.stderr, flush=True)
        _become_a_server(made.folder / STATE, "--root", str(made.folder), FIRST, *options)
    return made


def open_explorer(
    job: Job | None = None, framework: str | None = None, browser: bool = True, port: int | None = None
) -> NoReturn:
    """Become Voilà on an Explorer with a job; without one, with the Llama 3 paper's.

    Raises LlamaparError for a wrong port, or without Voilà.
    """
    options = _server_options(browser, port)
    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "llamapar"
    os.environ["LLAMAPAR_EXPLORER"] = as_cli(job, framework) if job else ""
    _become_a_server(state, "--alone", str(shipped_folder() / "jupyter" / "explorer.ipynb"), *options)


def _server_options(browser: bool, port: int | None) -> list[str]:
    """The options of a server that can start. Raises LlamaparError for one that cannot."""
    missing = [
        name for name in ("jupyterlab", "voila", "anywidget", "plotly", "torch") if not find_spec(name)
    ]
    if missing:
        raise LlamaparError(
            f"{missing[0]} is not installed",
            "the course opens by JupyterLab, and the Explorer alone by Voila",
            [install("lab")],
        )
    options = [] if browser else ["--no-browser"]
    if port is not None:
        options.append(f"--port={whole('port', port, 1, 65535)}")
    return options


def _become_a_server(state: Path, *words: str) -> NoReturn:
    """Replace this process by `jupyter/start.py`, so that Ctrl-C is the server's own."""
    try:
        state.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        what = f"{state} cannot be made, and the server writes there"
        raise LlamaparError(what, str(problem), ["another XDG_STATE_HOME"]) from None
    start = str(shipped_folder() / "jupyter" / "start.py")
    os.execv(sys.executable, [sys.executable, start, "--state", str(state), *words])
