"""Hypotheses from counts that should agree: ranks and degrees, a vocabulary and its padded form."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from llamapar.records.equations import Comparison, Product, Stated

from .cuts import rounded_up
from .hypothesis import LIKELY, POSSIBLE, Hypothesis, found
from .known import Known
from .observations import AXES, Unequal
from .reading import Reading
from .words import pattern

_TWO_RUNS = pattern("two_runs")


_SAME = re.compile(
    r"!=|equal|match|but (?:got|found|\w{1,20} partition)|instead of|exceeds?\b|available|\bhold|larger than|"
    "consistent"
)
"""What a text says of two counts that should be one."""

_GRID = re.compile(r"(?:mesh|grid)[_ ]shape")
"""What stands before a shape that holds degrees."""


_AGREE = (
    (("lora",), "lora_tp", "the adapter's rows and the base's"),
    (("microbatch", "batch"), "microbatch_divisibility", "batch, micro-batches and ranks"),
    (("world",), "world_size_product", "degrees and ranks"),
    (("layers",), "layers_not_divisible_pp", "layers and stages"),
    (("position",), "position/rope", "the sequence and the table of positions"),
    (("tp", "cp", "dp", "ep"), "world_size_product", "degrees and ranks"),
    (("pp",), "layers_not_divisible_pp", "layers and stages"),
)
"""Concepts of a text → the category and the words for its counts; the first row with one of them decides."""


def explain_unequal(o: Unequal, r: Reading, known: Known) -> Iterator[Hypothesis]:
    """Counts of ranks, layers or samples that should agree, as a product or one by one."""
    concepts = {t.concept for t in o.terms}
    if _TWO_RUNS.search(r.low) and concepts & {*AXES, "world"}:
        return  # See `limits`.
    sizes: Iterable[tuple[int, int]] = ()
    if "vocab" in concepts:
        sizes = pairwise(sorted(o.values))
    for small, big in sizes:
        if 10000 < small < big < 1.1 * small and rounded_up(small, big, known):
            cause = f"a vocabulary of {small} rows is padded to {big}"
            equation = Stated(f"{big} - {small} = {big - small} pad rows")
            yield found("vocab_padding", POSSIBLE, cause, equation, needs="padding, tp")
            break
    row = next((row for row in _AGREE if concepts & {*row[0]}), None)
    if row is None:
        return
    _, category, what = row
    ranks = next((t.number for t in o.terms if t.concept == "world" and t.number), known.get("world")) or 0
    degrees = tuple(t.number for t in o.terms if t.concept in AXES and t.number)
    pairs = list[tuple[tuple[int, ...], int]]()
    if category == "world_size_product" and "mesh(" not in r.low:  # Two meshes may name an axis twice.
        grids = [shape for shape, _ in r.shapes if _GRID.search(r.low)]
        pairs = [(each, ranks) for each in [degrees, *grids] if len(each) > 1]
    for factors, value in r.products:
        others = (*(n for n in o.values if n not in (*factors, value, 1)), known.get("world"))
        pairs.append((factors, next((n for n in others if n), 0)))
    for factors, stated in pairs:
        value = math.prod(factors)
        if stated and value != stated and value not in (2**31, 2**32):
            cause = f"{what} do not fit together: {'·'.join(map(str, factors))} is {value}, not {stated}"
            facts = {}
            if category == "world_size_product":
                facts = {"world": stated}
            yield found(category, LIKELY, cause, Comparison(Product(factors), "≠", stated), facts=facts)
    numbers = list(dict.fromkeys(o.values))
    if len(numbers) == 2 and min(numbers) > 0 and not pairs and _SAME.search(r.low):
        cause = f"{what} do not fit together: {numbers[0]} and {numbers[1]} should be one number"
        # A model's table may be short by itself.
        blame: bool | None = True
        if category == "position/rope":
            blame = None
        yield found(category, POSSIBLE, cause, Comparison(numbers[0], "≠", numbers[1]), parallel=blame)
