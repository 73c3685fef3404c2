"""What to do about a text without arithmetic: the command that can go on, with what is known filled in."""

from __future__ import annotations

import math
import re

from llamapar.describe.hardware import DEFAULT_GPU, HARDWARE

from .known import Known, model_named
from .lines import score
from .observations import AXES
from .reading import Reading

_RAISED = 2.0
"""Score, at least, of a text in which something was raised."""

_QUESTION = re.compile(r"\?\s*$")


def without_arithmetic(r: Reading, known: Known, reason: str) -> tuple[str, tuple[str, ...]]:
    """The reason with the product of the degrees, if they agree, and the commands that can go on."""
    degrees = {axis: n for axis in AXES if (n := known.numbers.get(axis))}
    world = known.numbers.get("world")
    product = math.prod(degrees.values())
    if len(degrees) > 1 and world == product:
        reason = f"{'·'.join(map(str, degrees.values()))} = {world} agrees; {reason}"
    named = known
    if not known.model:
        named = Known.of(model_named(r.text), None, None, known.numbers)
    if degrees or known.layout is not None:
        return reason, (named.command("check"),)
    if score(r.text) >= _RAISED:
        return reason, ("llamapar debug SCRIPT.py",)
    gpu = next((name for name in HARDWARE if name.partition("-")[0] in r.low), DEFAULT_GPU)
    asked = reason
    if _QUESTION.search(r.text):
        asked = "no error text"
    return asked, (f"{named.command('plan')} --gpu {gpu}",)
