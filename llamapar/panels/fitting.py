"""Another model in the same job: what the job keeps, and one line about what it cannot. Pure.

A degree stays as far as it divides: it becomes its largest divisor that the rules pass. DP takes what the
others give up, so that the GPUs stay. Whether the job then fits its GPU is not asked: it is an answer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection

from llamapar.describe.layout import divisors
from llamapar.describe.options import Values
from llamapar.figures.wording import listed

from .controls import FACTS, LAYOUT, knob_title
from .holding import is_count, kept_batch, valid_degrees

CUTS = (("tp",), ("cp",), ("pp", "virtual_stages"))
"""What cuts a model, in the order in which it is fitted; what the rules multiply is fitted together."""


def fitted(values: Values, given: Collection[str], longest: int, errors: Callable[[Values], float]) -> Values:
    """The changes with which the controls suit another model.

    given: controls that the reader has just set, which stay. longest: the model's longest sequence.
    errors: how many rules refuse the controls with some changes.
    """
    degrees = valid_degrees(values)
    if degrees is None:
        return {}
    made: Values = {}
    seq_len = values["seq_len"]
    if "seq_len" not in given and is_count(seq_len, "seq_len") and seq_len > longest:
        made["seq_len"] = longest
    for names in CUTS:
        free = [name for name in names if name not in given]
        smaller = itertools.product(*(reversed(divisors(values[name])) for name in free))
        tries = [made | dict(zip(free, some, strict=True)) for some in smaller]
        made = min(tries, key=errors)  # of equal ones the first, which gives up least
    world = math.prod(degrees.values())
    if "dp" not in given:
        room = world // math.prod(made.get(name, degrees[name]) for name in ("tp", "cp", "pp"))
        shares = [(dp, kept_batch(values, given, degrees["dp"], dp)[0]) for dp in reversed(divisors(room))]
        made = min((made | {"dp": dp} | batch for dp, batch in shares), key=errors)
    if values["gpus"] == world and "gpus" not in given:
        made["gpus"] = math.prod((degrees | made)[axis] for axis in degrees)
    return made


def told(before: Values, after: Values) -> str:
    """What of a job another model has changed, in words: "TP, DP and sequence length changed with it"."""
    names = [knob_title(name) for name in (*LAYOUT, *FACTS, "rank") if before[name] != after[name]]
    if names:
        return f"{listed(names)} changed with it"
    return "layout, GPUs, sequence and batch stay"
