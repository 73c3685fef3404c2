"""Questions whose truth only PyTorch computes, as plain values: `record.py` writes them, the page reads them.

A question is kept with its truth, its choices and hints, and its pictures: the one before a guess and
the one after it. A question that judges answers by a function of its own, or whose answer is placed on a
board, cannot be kept.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from pathlib import Path

from llamapar.course.boxes import Item
from llamapar.figures import View

KEPT = "kept.json"
PLAIN = ("text", "truth", "unit", "choices", "hints", "slips", "why")

Kept = dict[str, object]


def keep(item: Item) -> Kept:
    """An item as plain values. Raises ValueError for one that cannot be kept."""
    if item.judge or item.board:
        raise ValueError(f"{item.text}: it is judged by a function or placed on a board")
    said = {name: getattr(item, name) for name in PLAIN}
    text = repr(said)
    if ast.literal_eval(text) != said:
        raise ValueError(f"{item.text}: its values are not plain")
    return {
        "said": text,
        "picture": _plain(item.picture),
        "veiled": _plain(item.veiled),
    }


def kept_items(path: Path) -> dict[str, Item]:
    """By name, the questions of a file that `record.py` wrote; none where there is no file."""
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {name: _item(kept) for name, kept in found.items()}


def _item(kept: Mapping[str, object]) -> Item:
    said = ast.literal_eval(str(kept["said"]))
    return Item(**said, shows=_view(kept["picture"]), veiled=_view(kept["veiled"]))


def _plain(view: View | None) -> object:
    return view and [view.spec, view.summary]


def _view(plain: object) -> View | None:
    return View(*plain) if isinstance(plain, list) else None
