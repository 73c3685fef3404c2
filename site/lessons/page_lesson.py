"""A lesson in the page's Python: each cell that shows a panel makes it when the page asks for it.

The code is the lesson's own, cut down to what the panel needs; questions and truths are the course's own
modules. What the page cannot run is what PyTorch runs: questions whose truth needs it stand in `kept.json`,
as `record.py` wrote them.

    python site/lessons/page_lesson.py     # first states of all lessons, and what could not be made, as JSON
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anywidget
from IPython.display import shown
from kept import KEPT, kept_items
from page_watch import PageWatch, blank
from running import run

import llamapar
from llamapar.errors import LlamaparError
from llamapar.panels.runner import Runner
from llamapar.panels.watch_panel import initial_watch

HERE = Path(__file__).parent
"""Where `lessons.json` lies: by lesson and key, the code of a panel; and the course's modules."""

PROGRESS = "/progress.json"
"""In the page's own file system, which is gone with it; the browser keeps what it holds."""

NEED_TORCH = ("run", "tape", "record", "checkpoint")
"""Of the library: what the stand-in of torch, made for small tensors, would take hours over."""

KINDS = ("explorer", "clinic", "live", "watch", "box")

Read = Callable[[str], bytes]


class Lesson:
    """The panels of one lesson. post: takes messages to the page. read: a recording's name → its bytes."""

    def __init__(self, name: str, post: Callable[[str], object], read: Read) -> None:
        self._cells: dict[str, str] = lessons()[name]
        self._post, self._kept = post, ""
        self._progress = Path(os.environ.setdefault("LLAMAPAR_PROGRESS", PROGRESS))
        prepare(read)

    def receive(self, text: str) -> None:
        """A message of the page: what to open, what was guessed before, or a panel's own."""
        message = json.loads(text)
        if "open" in message:
            self._open(message["open"])
        elif "progress" in message:
            self._restore(message["progress"])
        else:
            anywidget.receive(text)
            self._tell_progress()

    def _open(self, key: str) -> None:
        try:
            with anywidget.silence():
                widget = make(self._cells[key])
            anywidget.rename(widget, key)
        except Exception as fault:  # the picture stays as it is stored
            self._post(json.dumps({"to": key, "failed": f"{type(fault).__name__}: {fault}"}))
        else:
            self._post(json.dumps({"to": key, "state": widget.get_state()}))

    def _restore(self, text: str) -> None:
        if text:
            self._progress.write_text(text, encoding="utf-8")
        self._kept = text

    def _tell_progress(self) -> None:
        text = self._progress.read_text(encoding="utf-8") if self._progress.is_file() else ""
        if text != self._kept:
            self._kept = text
            self._post(json.dumps({"progress": text}))


def lessons() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads((HERE / "lessons.json").read_text(encoding="utf-8"))
    return found


def prepare(read: Read) -> None:
    """The page's own ways: watched ranks are recorded or run on a stand-in, and some truths are kept."""
    llamapar.watch = lambda *args, **options: PageWatch(initial_watch(blank(read), *args, **options))
    for name in NEED_TORCH:
        setattr(llamapar, name, _refuse)
    Runner._do = _refuse  # type: ignore[method-assign,assignment]
    from llamapar.course import exercises

    for question, item in kept_items(HERE / KEPT).items():
        table = exercises.PREDICTIONS if question in exercises.PREDICTIONS else exercises.EXERCISES
        table[question] = lambda item=item: item


def _refuse(*_: object, **__: object) -> None:
    raise LlamaparError("this runs on PyTorch, which a page has not", "JupyterLab runs it: make lab")


def make(code: str) -> Any:
    """The widget that the last line of a cell's code shows."""
    shown.clear()
    found, _ = run(code)
    return shown[-1] if found is None else found  # a question displays its box


def kind_of(widget: object) -> str:
    """The name of its JavaScript."""
    return next(name for one in type(widget).__mro__ if (name := one.__name__.lower()) in KINDS)


def states(read: Read) -> dict[str, Any]:
    """By lesson and key: kind and first state of each panel, or why there is none."""
    prepare(read)
    codes = lessons()
    made: dict[str, dict[str, object]] = {name: {} for name in codes}
    failed: dict[str, dict[str, str]] = {name: {} for name in codes}
    for name, cells in codes.items():
        for key, code in cells.items():
            try:
                widget = make(code)
                made[name][key] = {"kind": kind_of(widget), "state": widget.get_state()}
            except Exception as fault:
                failed[name][key] = f"{type(fault).__name__}: {fault}"
    return {"states": made, "failed": failed}


if __name__ == "__main__":
    from films import read

    json.dump(states(read), sys.stdout)
