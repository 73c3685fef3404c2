"""A panel on stand-ins: in the page's Python, and where the state that a page opens with is made."""

from __future__ import annotations

import json
from collections.abc import Callable

import anywidget

from llamapar.panels import Clinic, Explorer

PANELS: dict[str, Callable[[], object]] = {"explorer": Explorer, "clinic": Clinic}


def begin(name: str, post: Callable[[str], object]) -> Callable[[str], None]:
    """Open a panel whose messages go to `post`; returns what takes the page's."""
    anywidget.connect(post)
    PANELS[name]()
    return anywidget.receive


if __name__ == "__main__":
    opening = {name: panel().get_state() for name, panel in PANELS.items()}  # type: ignore[attr-defined]
    sources = {name: [panel._esm, panel._css] for name, panel in PANELS.items()}  # type: ignore[attr-defined]
    print(json.dumps({"opening": opening, "sources": sources}))
