"""The card under a failing cell: its explanation as HTML, and buttons that find the edit and put it in.

Left out: the text and the HTML that a notebook saves. They stand beside the widget, without its buttons.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import anywidget
import traitlets

from llamapar.describe.options import Values
from llamapar.diagnosis import Explanation
from llamapar.errors import LlamaparError, real

from .page import for_browser, source

LONGER = 20
"""Seconds of the trials that the second button starts."""


class FailureCard(anywidget.AnyWidget):
    """An explanation with buttons. find: what a press calls, with seconds; None where a newer card stands."""

    _esm = source("failure_card.js")
    payload = traitlets.Dict().tag(sync=True)
    layout = None

    def __init__(self, found: Explanation, find: Callable[[float], Explanation], tried: float = 0) -> None:
        self.find: Callable[[float], Explanation] | None = find
        super().__init__(payload=_payload(found, tried))
        self.on_msg(self._receive)

    def _receive(self, _: object, content: Values, __: object) -> None:
        """Answer a press, exactly once, whatever happens."""
        try:
            if self.find is None:
                raise LlamaparError("another cell has failed since, or a newer card stands below")
            seconds = real("seconds", content.get("seconds"), 0.5, 600)
            payload = _payload(self.find(seconds), seconds)
        except LlamaparError as refused:
            payload = self.payload | {"said": refused.what}
        except (Exception, KeyboardInterrupt) as fault:
            payload = self.payload | {"said": f"no answer: {type(fault).__name__}: {fault}"}
        # traitlets sends no value that equals the last one, and the page waits for an answer.
        self.payload = payload | {"answer": self.payload["answer"] + 1}


def _payload(found: Explanation, tried: float) -> Values:
    """What the page shows. tried: seconds of the trials so far; 0 for none."""
    asks = []
    if not tried:
        asks = [("find the edit", 3)]
        found = replace(found, next=())  # The button is what comes next.
    elif found.next and tried < LONGER:  # The time was too short.
        asks = [(f"try {LONGER} s", LONGER)]
    payload = {
        "html": found._repr_html_(),
        "edits": _edits(found.edit),
        "asks": asks,
        "said": "",
        "answer": 0,
    }
    shown = for_browser(payload)
    assert isinstance(shown, dict)
    return shown


def _edits(diff: tuple[str, ...]) -> list[tuple[str, str]]:
    """Old and new lines of a cell; none if the lines are another file's, or two answers stand there."""
    old = [line[2:] for line in diff if line.startswith("- ")]
    new = [line[2:] for line in diff if line.startswith("+ ")]
    clear = len({*old}) == len(old) and len(old) + len(new) == len(diff)
    return list(zip(old, new, strict=True)) if clear else []
