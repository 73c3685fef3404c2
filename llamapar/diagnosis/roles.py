"""The possible roles of a bare number: a size of the known model or a public one, and whether it is cut."""

from __future__ import annotations

from collections.abc import Iterator

from llamapar.describe.models import public_models
from llamapar.records.equations import Quotient

from .cuts import rounded_up, uneven
from .hypothesis import LIKELY, POSSIBLE, WEAK, WIDTH, Hypothesis, Level, found
from .known import VOCABULARIES, Known
from .observations import AXES, Divides

BY_FACT = {
    "n_kv_heads": "kv_heads_lt_tp",
    "kv_dim": "kv_heads_lt_tp",
    "n_heads": "heads_not_divisible",
    "q_dim": "heads_not_divisible",
    "n_layers": "layers_not_divisible_pp",
    "vocab_size": "vocab_not_divisible",
    "ffn_dim": "hidden_or_ffn_not_divisible",
    "dim": "hidden_or_ffn_not_divisible",
    "seq_len": "seq_not_divisible",
    "world": "world_size_product",
    "global_batch": "microbatch_divisibility",
    "micro_batch": "microbatch_divisibility",
}
"""The known number that is divided → the category."""


def roles(
    number: int, divisor: int | None, concepts: frozenset[str], known: Known
) -> Iterator[tuple[str, str, Level]]:
    """The possible roles of a bare number: (fact, its source, level)."""
    tp, vocab, m = known.get("tp"), known.get("vocab_size"), known.model
    for fact in ("world", *BY_FACT):
        if fact in ("world", "n_layers") and divisor and divisor == tp and divisor != known.get("pp"):
            continue  # a tensor's size rather than a count of ranks or layers
        if known.get(fact) == number:
            yield fact, "given", LIKELY
    if vocab and rounded_up(vocab, number, known):
        yield "vocab_size", "given, padded", LIKELY
    if m:
        for fact in ("kv_dim", "q_dim"):
            if getattr(m, fact) == number and not (fact == "kv_dim" and m.kv_dim == m.q_dim):  # Q is first
                yield fact, f"given by {m.name}", LIKELY
        return
    for concept, fact, low, high in _BESIDE:
        if concept in concepts and low <= number < high:
            yield fact, "by the words beside it", POSSIBLE
    if number in VOCABULARIES:
        yield "vocab_size", "a public vocabulary", POSSIBLE
    for fact in ("vocab_size", "n_heads", "ffn_dim", "kv_dim", "dim"):
        models = [m for m in public_models().values() if getattr(m, fact) == number]
        if fact == "kv_dim":  # of grouped heads, whose number the divisor does not divide
            models = [m for m in models if m.kv_dim < m.q_dim and m.n_kv_heads % (divisor or 2)]
        named = [m.name for m in models]
        if named:
            yield fact, named[0], POSSIBLE
    if number <= 256:
        small = divisor is not None and number < divisor and number <= 16
        yield ("n_kv_heads" if small else "n_heads"), "by its size", WEAK
    else:
        vocabulary = number >= 30000 and number % 1024
        yield ("vocab_size", "by its size", WEAK) if vocabulary else ("dim", "by its size", WEAK)


_BESIDE = (
    ("vocab", "vocab_size", 5000, 2**22),
    ("kv", "n_kv_heads", 1, 512),
    ("heads", "n_heads", 1, 512),
    ("ffn", "ffn_dim", 512, 2**18),
)
"""What is spoken of near a bare number, and how large such a number is."""


def explain_unnamed(o: Divides, known: Known) -> Iterator[Hypothesis]:
    """`numerator % denominator` without numbers: which of the known sizes does tp not divide?"""
    needs = "model, tp"
    if o.by & {"batch", "microbatch"} and not o.by & {*AXES}:
        cause = "a size that is dealt out to the batch is no multiple of it"
        yield found("microbatch_divisibility", POSSIBLE, cause, parallel=None)
        return
    tp = known.get("tp")
    fails = [cut for cut in uneven(known) if tp and cut.axis == "tp" and cut.fact in _UNNAMED]
    if o.subject in ("dimension", "hidden"):
        ffn = next((Quotient(cut.count, cut.degree) for cut in fails if cut.fact == "ffn_dim"), None)
        cause = "a width cannot be cut evenly over the ranks"
        yield found(WIDTH, LIKELY if ffn else POSSIBLE, cause, ffn, needs="" if ffn else needs)
        return
    for cut in fails if len(fails) == 1 else ():
        yield found(cut.category, LIKELY, f"{cut} cannot be cut evenly", Quotient(cut.count, cut.degree))
    if len(fails) > 1:
        cause = (
            f"tp={known.get('tp')} divides none of {', '.join(f'{cut.fact} {cut.count}' for cut in fails)}"
        )
        rests = (Quotient(cut.count, cut.degree) for cut in fails)
        yield found("other", POSSIBLE, cause, *rests, needs=needs)
        return
    cause = "a size that has to be cut is no multiple of the ranks; the text does not say which"
    yield found("other", WEAK, cause, needs=needs)


_UNNAMED = ("n_heads", "n_kv_heads", "ffn_dim")
"""Sizes that code cuts over tp as they are; vocabularies are padded before."""
