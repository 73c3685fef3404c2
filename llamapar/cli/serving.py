"""The servers that `llamapar course` and `llamapar explorer` become, and the files that they serve.

A wheel carries notebooks, docs and Jupyter's settings in `llamapar/shipped`; a checkout has them at its top.
Both commands use the same `jupyter/start.py` as `make lab`: JupyterLab for the course, Voilà for the
Explorer, because Voilà runs a notebook when its page opens and shows only what it displays.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from llamapar.describe.job import Job
from llamapar.errors import LlamaparError, install, whole
from llamapar.rules.job_text import as_cli

FIRST = "notebooks/00_start_here.ipynb"
"""The notebook that a course opens on."""


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


def open_explorer(
    job: Job | None = None, framework: str | None = None, browser: bool = True, port: int | None = None
) -> NoReturn:
    """Become Voilà on an Explorer with a job; without one, with the Llama 3 paper's.

    Raises LlamaparError for a wrong port, or without Voilà.
    """
    options = server_options(browser, port)
    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "llamapar"
    os.environ["LLAMAPAR_EXPLORER"] = as_cli(job, framework) if job else ""
    become_a_server(state, "--alone", str(shipped_folder() / "jupyter" / "explorer.ipynb"), *options)


def server_options(browser: bool, port: int | None) -> list[str]:
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
    options = []
    if not browser:
        options = ["--no-browser"]
    if port is not None:
        options.append(f"--port={whole('port', port, 1, 65535)}")
    return options


def become_a_server(state: Path, *words: str) -> NoReturn:
    """Replace this process by `jupyter/start.py`, so that Ctrl-C is the server's own."""
    try:
        state.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        what = f"{state} cannot be made, and the server writes there"
        raise LlamaparError(what, str(problem), ["another XDG_STATE_HOME"]) from None
    start = str(shipped_folder() / "jupyter" / "start.py")
    os.execv(sys.executable, [sys.executable, start, "--state", str(state), *words])
