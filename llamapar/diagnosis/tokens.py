"""Hypotheses about tokens and samples: cut into parts that do not come out even, or compared uncut."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from llamapar.records.equations import Quotient

from .hypothesis import LIKELY, POSSIBLE, Hypothesis, found
from .known import Known
from .observations import View
from .reading import Reading

_EXPERTS = re.compile(r"\bep_|_ep\b|expert")
_BATCH = re.compile(r"micro|mbs|\bn_mb\b|samples|accum|batch")
_SEQUENCE = re.compile(r"\bcp\b|cp_size|cp_world|context|zigzag|ring|\btp\b|tp_size|seq|token")

_SIZES = (
    ("n_layers", "layers_not_divisible_pp", "layers"),
    ("n_heads", "heads_not_divisible", "query heads"),
    ("n_kv_heads", "kv_heads_lt_tp", "KV heads"),
    ("global_batch", "microbatch_divisibility", "samples"),
    ("vocab_size", "vocab_not_divisible", "rows of the vocabulary"),
    ("seq_len", "seq_not_divisible", "tokens"),
)
"""Known sizes that may be dealt out in equal parts: the fact, the category where they do not, the units."""


def explain_cut(o: View, r: Reading, known: Known) -> Iterator[Hypothesis]:
    """view(batch, k, n // k, …): a sequence or a batch in k parts, which k does not divide."""
    units, dims = o.numel, list(o.target)
    while len(dims) > 2 and (dims[-1] == -1 or (dims[-1] > 1 and units % dims[-1] == 0)):
        units //= max(1, dims.pop())
    each_open = -1 in o.target
    while len(dims) > 1 and dims[0] > 0 and units % dims[0] == 0:
        units //= dims.pop(0)
    parts, each = dims[0], math.prod(n for n in dims[1:] if n > 0)
    if parts < 2 or units % parts == 0 or not (each_open or (len(dims) > 1 and each == units // parts)):
        return
    cp = known.get("cp") or 0
    tokens = parts in (known.get("tp"), cp, 2 * cp)
    samples = parts in (known.get("dp"), known.get("micro_batches"))
    if _EXPERTS.search(r.line) or (parts == known.get("ep") and not (tokens or samples)):
        cause = f"{units} experts do not divide over {parts} ranks"
        yield found("other: experts_not_divisible_ep", LIKELY, cause, Quotient(units, parts), needs="ep")
        return
    if not (tokens or samples):
        tokens, samples = bool(_SEQUENCE.search(r.line)), bool(_BATCH.search(r.line))
    size = next((size for size in _SIZES if known.get(size[0]) == units), None)
    if size is not None:
        _, category, word = size
        cause = f"{units} {word} do not divide into {parts} equal parts"
        yield found(category, LIKELY, cause, Quotient(units, parts))
        return
    dealt = len(o.target) == 5 and dims == list(o.target[2:4])  # [batch, seq, ranks, heads, head_dim]
    either = tokens == samples
    rows = (
        ("heads_not_divisible", "heads", dealt, "n_heads, tp, cp"),
        ("seq_not_divisible", "tokens", tokens or either, "seq_len, cp, tp"),
        ("microbatch_divisibility", "samples", samples or either, "global_batch, micro_batch, dp"),
    )
    level, blame = (POSSIBLE, None) if dealt or either else (LIKELY, True)
    for category, word, ours, needs in rows:
        if ours:
            cause = f"{units} {word} do not divide into {parts} equal parts"
            yield found(category, level, cause, Quotient(units, parts), parallel=blame, needs=needs)


def explain_uncut(small: int, big: int, what: str, known: Known) -> Iterator[Hypothesis]:
    """A rank's tokens beside those of the whole sequence: `what` was not cut with the rest."""
    k = big // small
    ours = k in (known.get("cp"), known.get("tp"))
    cause = f"{small} is 1/{k} of {big}: a rank's tokens meet {what} of the whole sequence"
    yield found(
        "other: global_dim_not_localized", LIKELY if ours else POSSIBLE, cause, Quotient(big, k),
        parallel=True if ours else None, needs="cp, tp, seq_len",
    )  # fmt: skip
