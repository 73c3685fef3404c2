"""A panel on stand-ins: in the page's Python, and where the state that a page opens with is made.

python site/standins/page_python.py explorer clinic …     # opening states and sources, as JSON
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import anywidget

Read = Callable[[str], bytes]
"""A recording's name → its bytes."""


def nothing(name: str) -> bytes:
    raise FileNotFoundError(name)


def begin(name: str, post: Callable[[str], object], read: Read = nothing) -> Callable[[str], None]:
    """Open a panel, or a lesson, whose messages go to `post`; returns what takes the page's."""
    anywidget.connect(post)
    if name in PANELS:
        PANELS[name](read)
        return anywidget.receive
    from page_lesson import Lesson

    return Lesson(name, post, read).receive


def explorer(_: Read) -> object:
    from llamapar.panels.explorer_panel import Explorer

    return Explorer()


def clinic(_: Read) -> object:
    from llamapar.panels.clinic_panel import Clinic

    return Clinic()


def live(_: Read) -> object:
    from llamapar.panels.live_panel import live

    return live("block", "llama3.1-405b", tp=8, cp=16, pp=16, dp=8, seq_len=131072)


def watch(read: Read) -> object:
    from page_watch import PageWatch, first

    return PageWatch(first(read))


PANELS: dict[str, Callable[[Read], object]] = {
    "explorer": explorer,
    "clinic": clinic,
    "live": live,
    "watch": watch,
}


if __name__ == "__main__":
    from llamapar.panels import box_panel, clinic_panel, explorer_panel, live_panel, watch_panel

    recorded = __import__("films").read if "watch" in sys.argv else nothing
    opening = {name: PANELS[name](recorded).get_state() for name in sys.argv[1:]}  # type: ignore[attr-defined]
    kinds = {
        "explorer": explorer_panel.Explorer,
        "clinic": clinic_panel.Clinic,
        "live": live_panel.Live,
        "watch": watch_panel.Watch,
        "box": box_panel.Box,
    }
    sources = {name: [one._esm, one._css] for name, one in kinds.items()}
    print(json.dumps({"opening": opening, "sources": sources}))
