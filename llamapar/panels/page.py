"""What the panels share: their page's sources, plotly's bundle, and messages that are answered or refused."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import anywidget
import traitlets

from llamapar.errors import LlamaparError, ModelError, shown
from llamapar.figures import View

A_PICTURE = "a picture: run this cell"
"""What the still picture of a panel says of itself."""


def source(*names: str) -> str:
    """Files beside this one, one after the other."""
    return "".join((files(__package__) / name).read_text(encoding="utf-8") for name in names)


class Page(anywidget.AnyWidget):
    """A widget whose page says what was touched, and is told all that follows in one `payload`."""

    payload = traitlets.Dict().tag(sync=True)
    layout: Any = None
    """No box of ipywidgets' own: it would be one more model, with a random id."""

    def __init__(self, **traits: Any) -> None:
        super().__init__(**traits)
        self.on_msg(self._receive)

    def snapshot(self) -> View:
        """What the panel shows now: its picture, and all else that it says as text."""
        raise NotImplementedError

    def _now(self) -> View:
        """The snapshot that is there at once."""
        return self.snapshot()

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The widget, and what stands there where it cannot live: its text, and its figure if it has one.

        By the metadata the server that saves the notebook (jupyter/saving.py) knows which of them to keep.
        """
        data, metadata = super()._repr_mimebundle_() or ({}, {})
        now = self._now()
        data["text/plain"] = now.summary
        if now.spec["data"]:
            data |= still(now)._repr_mimebundle_()
        return data, metadata | {"llamapar": "panel"}

    def _answer(self, kind: str, content: dict[str, Any], seq: int) -> None:
        """Do what a message asks; KeyError, TypeError and ValueError for one that cannot be read."""
        raise NotImplementedError

    def _refuse(self, problem: LlamaparError, seq: int) -> None:
        """Show why a message was refused."""
        raise NotImplementedError

    def _receive(self, _: Any, content: Any, __: Any) -> None:
        """A message from the browser: data, whose names and values are checked like anybody's."""
        kind = content.get("kind") if isinstance(content, dict) else None
        seq = content.get("seq") if isinstance(content, dict) else None
        seq = seq if isinstance(seq, int) else 0
        try:
            if kind == "plotly":
                self.send({"kind": "plotly"}, buffers=[_plotly_js()])
            elif isinstance(kind, str):
                self._answer(kind, content, seq)
        except LlamaparError as problem:
            self._refuse(problem, seq)
        except (KeyError, TypeError, ValueError) as problem:
            off = ModelError(f"the browser sent {shown(content)}, which cannot be read: {problem}")
            self._refuse(off, seq)


def still(now: View) -> View:
    """The same, where the figure says that it is only a picture."""
    layout = now.spec["layout"]
    says = {"text": f"<i>{A_PICTURE}</i>", "showarrow": False, "yshift": 6}
    corner = {"xref": "paper", "yref": "paper", "x": 1, "y": 1, "xanchor": "right", "yanchor": "bottom"}
    annotations = [*layout.get("annotations", []), says | corner]
    return View({**now.spec, "layout": {**layout, "annotations": annotations}}, now.summary)


def _plotly_js() -> bytes:
    return (files("plotly") / "package_data" / "plotly.min.js").read_bytes()
