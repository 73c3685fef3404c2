"""What real frameworks do, as data: one file for each, read by `rules`, `explain` and the pictures.

Every case names repository, path and commit. Without evidence there is no case, and the verdict is "not
known". Reading a run's files is not done here, but in `configs`.
"""

from __future__ import annotations

from llamapar.describe.options import offer
from llamapar.describe.splits import NO_PADDING, Padding
from llamapar.errors import LayoutError, one_of

from .base import (
    ADAPTS,
    CLEAR,
    FAILS,
    FORWARD,
    INIT,
    NA,
    SAVE,
    SILENT,
    UNKNOWN,
    VERDICTS,
    WORKS,
    Change,
    Evidence,
    Framework,
    Source,
    Verdict,
    of_version,
)
from .colossalai import COLOSSALAI
from .distributed_llama import DISTRIBUTED_LLAMA
from .dtensor import DTENSOR
from .megatron import MEGATRON
from .meta import META
from .nanotron import NANOTRON
from .picotron import PICOTRON
from .torchtitan import TORCHTITAN
from .transformers import TRANSFORMERS
from .vllm import VLLM

FRAMEWORKS: dict[str, Framework] = {
    f.name: f
    for f in (
        META,
        TORCHTITAN,
        MEGATRON,
        COLOSSALAI,
        DISTRIBUTED_LLAMA,
        TRANSFORMERS,
        PICOTRON,
        NANOTRON,
        VLLM,
        DTENSOR,
    )
}
"""Name → the framework's habits and evidence."""

offer("framework", FRAMEWORKS)

_BY_ALIAS = {alias: f for f in FRAMEWORKS.values() for alias in (f.name, f.title.lower(), *f.aliases)}


def framework(name: str | Framework) -> Framework:
    """The framework called `name`, in any usual spelling. Raises LayoutError with the nearest names."""
    if isinstance(name, Framework):
        return name
    if isinstance(name, str) and name.strip().lower() in _BY_ALIAS:
        return _BY_ALIAS[name.strip().lower()]
    one_of("framework", name, FRAMEWORKS)
    raise AssertionError("one_of refuses every unknown name")


def padding_rule(value: str | Padding | None) -> Padding:
    """A Padding from a Padding, None or "none", a text such as "64" or "32*tp", or a framework's name."""
    if value is None or value == "none":
        return NO_PADDING
    if isinstance(value, Padding):
        return value
    # "64" and "64*tp" are numbers; every other word has to be a framework's name.
    number, per_tp, rest = value.partition("*tp") if isinstance(value, str) else ("", "", "")
    if number.isdecimal() and len(number) < 10 and not rest:
        return Padding(int(number), per_tp=bool(per_tp))
    try:
        return framework(value).padding
    except LayoutError:
        one_of("padding", value, ("none", *FRAMEWORKS))
        raise


__all__ = [
    "ADAPTS",
    "CLEAR",
    "FAILS",
    "FORWARD",
    "FRAMEWORKS",
    "INIT",
    "NA",
    "SAVE",
    "SILENT",
    "UNKNOWN",
    "VERDICTS",
    "WORKS",
    "Change",
    "Evidence",
    "Framework",
    "Source",
    "Verdict",
    "framework",
    "of_version",
    "padding_rule",
]
