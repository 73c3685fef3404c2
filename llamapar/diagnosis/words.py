"""The words of messages: lists of patterns in words.toml, compiled for the first text.

Of a list one pattern has to be found, in lower case where nothing else is said. Every pattern is linear: no
repeat inside a repeat over the same characters, and every repeat bounded.

concepts   what a word of a message speaks of. At each place of a text the first concept that fits wins, so a
           longer wording stands above the shorter one that it contains. {axis} stands for what may follow the
           name of an axis ("parallel", "_model_parallel"), {size} for what may follow that ("_world_size").
names      what the name of a tensor means: a row of `describe.placement.PARAMETERS`, or "lora", "position"
           and "fused". The first one that fits wins.
sentences  of torch, NCCL, JAX and trainers that say which of their rules is broken, but never by which cut.
           The first one that fits is told, as possible. Each is quoted from a source or a run, without its
           names and numbers. open: a cut need not be the cause.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent

_AFTER_AN_AXIS = {
    "{axis}": r"[_ -]?(?:model[_ -]?)?para(?:llel(?:i[sz]\w{1,5})?)?",
    "{size}": r"(?:[_ -]?(?:world[_ -]?)?(?:size|degree|ranks?|nodes|shards))?",
}


@cache
def table(name: str) -> dict[str, Any]:
    """A file of words beside this module."""
    return tomllib.loads((_FOLDER / name).read_text("utf-8"))


def either(patterns: Iterable[str]) -> re.Pattern[str]:
    """One of the patterns."""
    return re.compile("|".join(patterns), re.DOTALL)


def pattern(name: str) -> re.Pattern[str]:
    """The patterns of this name, any one of them."""
    return re.compile("|".join(table("words.toml")["patterns"][name]))


def concepts() -> re.Pattern[str]:
    """Every concept as a named group, matched at the start of a word or of a word's part."""
    groups = []
    for name, patterns in table("words.toml")["concepts"].items():
        one = "|".join(patterns)
        for word, what in _AFTER_AN_AXIS.items():
            one = one.replace(word, what)
        groups.append(f"(?P<{name}>{one})")
    return re.compile("(?<![a-z])(?=[a-z])(?:" + "|".join(groups) + ")")
