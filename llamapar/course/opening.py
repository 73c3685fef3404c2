"""`llamapar course` and `llamapar explorer`: the course, or the Explorer alone, in the reader's browser.

A wheel carries notebooks, docs and Jupyter's settings in `llamapar/shipped`; a checkout has them at its top.
Both are started by the same `jupyter/start.py` as `make lab`: JupyterLab for the course, Voilà for the
Explorer, because Voilà runs a notebook when its page opens and shows only what it displays.
"""

from __future__ import annotations

import os
import sys
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
    """Copy the course into a folder; a file that is there already is never overwritten.

    Raises LlamaparError if a file cannot be read or written.
    """
    source, target = shipped_folder(), Path(folder).expanduser().absolute()
    names = sorted(file.relative_to(source).as_posix() for pattern in COPIED for file in source.glob(pattern))
    copied, kept = [], []
    try:
        for name in names:
            stored = (source / name).read_bytes()
            if os.path.lexists(target / name):
                if (target / name).read_bytes() != stored:
                    kept.append(name)
                continue
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            part = target / f"{name}.part"  # A copy that breaks off does not leave half a notebook.
            part.write_bytes(stored)
            part.rename(target / name)
            copied.append(name)
    except OSError as problem:
        what = f"the course cannot be copied to {target}"
        raise LlamaparError(what, str(problem), ["llamapar course OTHER-FOLDER"], "folder") from None
    return CourseCopy(target, tuple(copied), tuple(kept))


def open_course(
    folder: str = "llamapar-course", copy: bool = False, browser: bool = True, port: int | None = None
) -> CourseCopy:
    """Copy the course into a folder and become JupyterLab on its first notebook; with `copy`, only copy.

    Raises LlamaparError if a file cannot be copied, for a wrong port, or without JupyterLab.
    """
    made = course_copy(folder)
    if not copy:
        print(made.text(), file=sys.stderr, flush=True)
        _become_a_server(made.folder / ".jupyter", browser, port, "--root", str(made.folder), FIRST)
    return made


def open_explorer(
    job: Job | None = None, framework: str | None = None, browser: bool = True, port: int | None = None
) -> NoReturn:
    """Become Voilà on an Explorer with a job; without one, with the Llama 3 paper's.

    Raises LlamaparError for a wrong port, or without Voilà.
    """
    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "llamapar"
    os.environ["LLAMAPAR_EXPLORER"] = as_cli(job, framework) if job else ""
    _become_a_server(state, browser, port, "--alone", str(shipped_folder() / "jupyter" / "explorer.ipynb"))


def _become_a_server(state: Path, browser: bool, port: int | None, *words: str) -> NoReturn:
    """Replace this process by `jupyter/start.py`, so that Ctrl-C is the server's own."""
    missing = [
        name for name in ("jupyterlab", "voila", "anywidget", "plotly", "torch") if not find_spec(name)
    ]
    if missing:
        raise LlamaparError(
            f"{missing[0]} is not installed",
            "the course opens by JupyterLab, and the Explorer alone by Voila",
            [install("lab")],
        )
    try:
        state.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        what = f"{state} cannot be made, and the server writes there"
        raise LlamaparError(what, str(problem), ["another XDG_STATE_HOME"]) from None
    options = [] if browser else ["--no-browser"]
    options += [] if port is None else [f"--port={whole('port', port, 1, 65535)}"]
    start = str(shipped_folder() / "jupyter" / "start.py")
    os.execv(sys.executable, [sys.executable, start, "--state", str(state), *words, *options])
