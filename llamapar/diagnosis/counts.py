"""Hypotheses from counts that should agree: ranks and degrees, batches, layers and stages, vocabularies."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from llamapar.records.equations import Comparison, Product, Quotient, Stated, rest

from .cuts import rounded_up
from .hypothesis import LIKELY, POSSIBLE, Hypothesis, first, found
from .known import Known
from .observations import AXES, Unequal
from .reading import Reading
from .words import pattern

_TWO_RUNS, _PIECES = pattern("two_runs"), pattern("collective_of_unequal_pieces")
_LAYERS = pattern("counted_layers")


def explain_unequal(o: Unequal, r: Reading, known: Known) -> Iterator[Hypothesis]:
    concepts = {t.concept for t in o.terms}
    axes = concepts & set(AXES)
    if _TWO_RUNS.search(r.low) and (axes or "world" in concepts):
        return  # a matter of two layouts, see `topics`
    if _PIECES.search(r.low):
        return  # see `limits`
    if not concepts & {"microbatch", "batch"}:  # of batches see `topics.stated`
        yield from _products(o, r, concepts, known)
    if "vocab" in concepts:
        yield from _padded(o.values, known)
    layers = [int(first or second) for first, second in _LAYERS.findall(r.low)]
    layers += [t.number for t in o.terms if t.concept == "layers" and t.number]
    staged = "pp" in concepts or (known.get("pp") or 1) > 1
    if not concepts & {"world", "microbatch"} and ((staged and layers) or len(set(layers)) > 1):
        yield from _layers(list(dict.fromkeys(layers)), known)


def _products(o: Unequal, r: Reading, concepts: set[str], known: Known) -> Iterator[Hypothesis]:
    """Degrees, as a product or one by one, compared with the number of ranks."""
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
    axes = concepts & set(AXES)
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
            equation = Stated(f"{big} - {small} = {big - small} pad rows")
            yield found("vocab_padding", POSSIBLE, cause, equation, needs="padding, tp")
            return


def _layers(layers: list[int], known: Known) -> Iterator[Hypothesis]:
    """n layers expected, fewer present: floor division over stages, once or twice."""
    pp, given = known.get("pp"), known.get("n_layers") or 0
    for total in sorted({*layers, given}, reverse=True):
        for kept in (n for n in layers if 0 < n < total):
            for stages in [pp] if pp else range(2, 65):
                for chunks in (1, 2, 3, 4, 5, 6, 8):
                    each = total // stages // chunks
                    if each * chunks * stages == kept:
                        twice = f", //{chunks} = {each}" if chunks > 1 else ""
                        lost = Quotient(total, stages, floor=True, after=twice)
                        cause = (
                            f"{total} layers over {stages} stages round down: {total - kept} layers are lost"
                        )
                        kept_of = Comparison(Product((each, chunks, stages)), "of", total)
                        yield found("layers_not_divisible_pp", LIKELY, cause, lost, kept_of)
                        return
    cause = "the layers and the stages do not fit together"
    yield found("layers_not_divisible_pp", POSSIBLE, cause, rest(layers[0] if layers else None, pp))
