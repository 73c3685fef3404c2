"""A panel on stand-ins: in the page's Python, and where the state that a page opens with is made."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import anywidget

from llamapar.panels.clinic_panel import Clinic
from llamapar.panels.explorer_panel import Explorer

PANELS: dict[str, Callable[[], object]] = {"explorer": Explorer, "clinic": Clinic}


def begin(
    name: str, post: Callable[[str], object], read: Callable[[str], bytes] | None = None
) -> Callable[[str], None]:
    """Open a panel whose messages go to `post`; returns what takes the page's.

    read: a recording's name → its bytes; for lp.watch alone.
    """
    anywidget.connect(post)
    if read is None:
        PANELS[name]()
    else:
        open_watch(read)
    return anywidget.receive


def open_watch(read: Callable[[str], bytes]) -> object:
    """lp.watch on its stand-in of torch, which is there when it is watched alone."""
    from page_watch import PageWatch

    return PageWatch(read)


if __name__ == "__main__":
    if sys.argv[1:] == ["watch"]:
        from films import read

        made = {"watch": open_watch(read)}
    else:
        made = {name: panel() for name, panel in PANELS.items()}
    opening = {name: panel.get_state() for name, panel in made.items()}  # type: ignore[attr-defined]
    sources = {name: [panel._esm, panel._css] for name, panel in made.items()}  # type: ignore[attr-defined]
    print(json.dumps({"opening": opening, "sources": sources}))
