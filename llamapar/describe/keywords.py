"""What each public function takes by name, as a TypedDict that the table of options makes.

Type checkers read keywords.pyi instead, which tools/keywords.py writes; a test compares.
"""

from __future__ import annotations

from typing import TypedDict


def __getattr__(name: str) -> object:
    """CheckKeywords and the others: while code runs, nothing reads more of them than their names."""
    if name != "Degrees" and not name.endswith(("Keywords", "Settings")):
        raise AttributeError(f"no keywords are called {name!r}")
    return TypedDict(name, {}, total=False)
