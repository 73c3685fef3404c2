"""Hypotheses from counts that should agree: ranks and degrees, a vocabulary and its padded form."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from llamapar.records.equations import Comparison, Equation, Multiples, Product, Stated

from .cuts import rounded_up
from .hypothesis import LIKELY, POSSIBLE, Hypothesis, found
from .known import Known
from .observations import AXES, Unequal
from .reading import Reading
from .words import pattern

_TWO_RUNS, _PIECES = pattern("two_runs"), pattern("collective_of_unequal_pieces")


_SAME = re.compile(
    r"!=|equal|match|but (?:got|found|\w{1,20} partition)|instead of|exceeds?\b|available|\bhold|larger than|"
    "consistent"
)
"""What a text says of two counts that should be one."""

_GRID = re.compile(r"(?:mesh|grid)[_ ]shape")
"""What stands before a shape that holds degrees."""


def explain_unequal(o: Unequal, r: Reading, known: Known) -> Iterator[Hypothesis]:
    """Counts of ranks, layers or samples that should agree, as a product or one by one."""
    concepts = {t.concept for t in o.terms}
    axes = concepts & {*AXES}
    two_layouts = _TWO_RUNS.search(r.low) and (axes or "world" in concepts)
    if two_layouts or _PIECES.search(r.low):
        return  # See `limits`.
    if "vocab" in concepts:
        yield from _padded(o.values, known)
    if "lora" in concepts:
        category, what = "lora_tp", "the adapter's rows and the base's"
    elif concepts & {"microbatch", "batch"}:
        category, what = "microbatch_divisibility", "batch, micro-batches and ranks"
    elif "world" not in concepts and ("layers" in concepts or axes == {"pp"}):
        category, what = "layers_not_divisible_pp", "layers and stages"
    elif "position" in concepts:
        category, what = "position/rope", "the sequence and the table of positions"
    elif axes or "world" in concepts:
        category, what = "world_size_product", "degrees and ranks"
    else:
        return
    ranks = next((t.number for t in o.terms if t.concept == "world" and t.number), known.get("world"))
    degrees = tuple(t.number for t in o.terms if t.concept in AXES and t.number)
    degrees = () if "mesh(" in r.low else degrees  # Two meshes may name an axis twice.
    rows = [degrees] if len(degrees) > 1 else []
    rows += [shape for shape, _ in r.shapes if len(shape) > 1 and _GRID.search(r.low)]
    pairs = [(row, ranks or 0) for row in rows if category == "world_size_product"]
    for row, value in r.products:
        others = [n for n in o.values if n not in row and n not in (value, 1)]
        stated = next((n for n in (*others, known.get("world")) if n and n != value), 0)
        if value > 0 and stated and ("world" in concepts or 0 in (stated % value, value % stated)):
            pairs.append((row, stated))
    for row, stated in pairs:
        value = math.prod(row)
        if stated and value != stated and value not in (2**31, 2**32):
            cause = f"{what} do not fit together: {'·'.join(map(str, row))} is {value}, not {stated}"
            facts = {"world": stated} if category == "world_size_product" else {}
            yield found(category, LIKELY, cause, Comparison(Product(row), "≠", stated), facts=facts)
    numbers = list(dict.fromkeys(o.values))
    if len(numbers) == 2 and min(numbers) > 0 and not pairs and _SAME.search(r.low):
        cause = f"{what} do not fit together: {numbers[0]} and {numbers[1]} should be one number"
        blame = None if category == "position/rope" else True  # A model's table may be short by itself.
        yield found(category, POSSIBLE, cause, Comparison(numbers[0], "≠", numbers[1]), parallel=blame)


def _padded(values: tuple[int, ...], known: Known) -> Iterator[Hypothesis]:
    """A vocabulary beside its padded form."""
    for small, big in zip(sorted(values), sorted(values)[1:], strict=False):
        if 10000 < small < big < 1.1 * small and rounded_up(small, big, known):
            cause = f"a vocabulary of {small} rows is padded to {big}"
            equation: Equation = Stated(f"{big} - {small} = {big - small} pad rows")
            if small % 64 == big % 64 == 0:
                cause = f"one vocabulary in {small} and in {big} rows: padded to different multiples"
                equation = Multiples((small, big), 64)
            yield found("vocab_padding", POSSIBLE, cause, equation, needs="padding, tp")
            return
