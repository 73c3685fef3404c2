"""The options of public functions for type checkers: describe/keywords.pyi, written from the table.

    python tools/keywords.py            # write it anew
    python tools/keywords.py --check    # write nothing; exit 1 where it would change

A row of llamapar/describe/options.py says who takes an option. Type checkers read names and types from
source alone, so they have them from this stub: a TypedDict for each function, which takes it as `Unpack[…]`
(PEP 692).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

import llamapar.panels.clinic_panel  # noqa: E402
import llamapar.panels.explorer_panel  # noqa: E402, F401  the panels say which values they open with
from llamapar.describe.option_rows import NEEDED  # noqa: E402
from llamapar.describe.options import LAYOUT, OPTIONS, annotation, options_of  # noqa: E402

STUB = PROJECT / "llamapar" / "describe" / "keywords.pyi"

HEAD = '''"""What each public function takes by name, for type checkers. tools/keywords.py writes it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Required, TypedDict

from torch import Tensor

from llamapar.frameworks import Framework
from llamapar.place.pipeline import Schedule

from .hardware import GpuLike
from .layout import LayoutLike
from .models import ModelLike
from .splits import Padding
'''

SETTINGS = {
    "check": {"layout": "LayoutLike"},
    "cost": {"layout": "LayoutLike"},
    "plan": {
        "gpus": "int",
        "progress": "Callable[[int, int], object] | None",
        "cancel": "Callable[[], bool] | None",
    },
}
"""A function that takes what `read_settings` read → what may stand beside it that is no option."""


def functions() -> list[str]:
    """Every function and panel that the table names."""
    named = " ".join(option.takers for option in OPTIONS.values()).split()
    found = {name.removesuffix("()") for name in named if not name.startswith("--")}
    return sorted(found - {"Layout", "Job"})


def typed_dict(name: str, base: str, rows: Iterable[tuple[str, str]]) -> str:
    """A TypedDict as source."""
    lines = "".join(f"\n    {option}: {kind}" for option, kind in rows)
    return f"\nclass {name}({base}, total=False):{lines or ' ...'}\n"


def written() -> str:
    """The stub's text."""
    degrees = {name: annotation(name, "") for name in LAYOUT}
    parts = [HEAD, typed_dict("Degrees", "TypedDict", degrees.items())]
    for function in functions():
        rows = {name: annotation(name, function) for name in options_of(function)}
        needed = {name: rows.pop(name) for name in NEEDED.get(function, ()) if name in rows}
        base, title = "TypedDict", function.capitalize()
        if degrees.items() <= rows.items():
            base, rows = "Degrees", {name: kind for name, kind in rows.items() if name not in degrees}
        if function in SETTINGS:
            parts.append(typed_dict(f"{title}Options", base, rows.items()))
            parts.append(
                typed_dict(f"{title}Settings", f"{title}Options", (needed | SETTINGS[function]).items())
            )
            base, rows = f"{title}Options", {}
        required = {name: f"Required[{kind}]" for name, kind in needed.items()}
        parts.append(typed_dict(f"{title}Keywords", base, (rows | required).items()))
    return "".join(parts)


if __name__ == "__main__":
    from generated import settle  # It lies beside this script.

    sys.exit(settle(__doc__, {STUB: written()}, [STUB] if STUB.exists() else []))
