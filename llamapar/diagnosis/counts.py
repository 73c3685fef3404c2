"""Hypotheses from counts that should agree: ranks and degrees, a vocabulary and its padded form."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from llamapar.records.equations import Comparison, Equation, Multiples, Product, Stated

from .cuts import rounded_up
from .hypothesis import LIKELY, POSSIBLE, Hypothesis, first, found
from .known import Known
from .observations import AXES, Unequal
from .reading import Reading
from .words import pattern

_TWO_RUNS, _PIECES = pattern("two_runs"), pattern("collective_of_unequal_pieces")


def explain_unequal(o: Unequal, r: Reading, known: Known) -> Iterator[Hypothesis]:
    """Degrees, as a product or one by one, compared with the number of ranks."""
    concepts = {t.concept for t in o.terms}
    axes = concepts & set(AXES)
    if _TWO_RUNS.search(r.low) and (axes or "world" in concepts):
        return  # a matter of two layouts, see `topics`
    if _PIECES.search(r.low):
        return  # see `limits`
    if "vocab" in concepts:
        yield from _padded(o.values, known)
    if concepts & {"microbatch", "batch"}:
        return  # of batches see `topics.stated`
    ranks = [t for t in o.terms if t.concept == "world"]
    degrees = [t.number for t in o.terms if t.concept in AXES and t.number]
    for row, value in ((row, value) for row, value in r.products if value > 0):
        others = [n for n in o.values if n not in row and n not in (value, 1)]
        stated = next((n for n in (*others, known.get("world")) if n and n != value), None)
        if stated and value not in (2**31, 2**32) and (ranks or stated % value == 0 or value % stated == 0):
            cause = f"the degrees multiply to {value}, not to {stated}"
            yield found(
                "world_size_product",
                LIKELY,
                cause,
                Comparison(Product(row), "≠", stated),
                facts={"world": stated},
            )
    if axes == {"pp"} and len(degrees) < 2:
        return  # stages and layers, see `topics.stated`
    if ranks and (axes or re.search(r"mesh|process|gpus?\b|devices", r.low)):
        have = next((t.number for t in ranks if t.number), None) or known.get("world")
        product = math.prod(degrees)
        differ = have and 1 < product != have
        equation = Comparison(Product(tuple(degrees)), "≠", have) if have and differ else None
        numbers = ", ".join(map(str, [n for n in dict.fromkeys(o.values) if n][:5]))
        cause = first(
            (equation and len(degrees) > 1, f"the degrees multiply to {product}, not to {have}"),
            (
                product == have,
                f"the degrees in the text multiply to its {have} ranks, so it means another degree or count",
            ),
            otherwise="the degrees do not multiply to the number of ranks: "
            f"{numbers or 'the text gives no numbers'}",
        )
        needs = "world, tp, pp, dp"
        level = LIKELY if product != have and (equation or len(axes) > 1) else POSSIBLE
        yield found("world_size_product", level, cause, equation, needs=needs)


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
