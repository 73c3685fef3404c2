"""The numbers of one collective, read against model and layout: 33,554,432 = 8,192 · 4,096.

Which collectives a model sends, over which axis and of how many numbers, is the table of `count.wire`, which
traced runs agree with. Left out: buckets of gradients, and the flat weights of FSDP, whose sizes are the
trainer's choice.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from llamapar.count.wire import sending
from llamapar.describe.layout import AXES, Layout
from llamapar.describe.models import ModelConfig
from llamapar.diagnosis.known import Known
from llamapar.errors import LlamaparError

FEW = 4
"""Numbers up to which a collective carries no tensor of the model."""

_FLOAT = 4
"""Bytes of a number in the table."""

_TENSORS = {
    "column input": "the residual stream",
    "row output": "the residual stream",
    "stage": "the residual stream",
    "K and V": "K or V",
    "tokens to heads": "Q, K or V",
    "heads to tokens": "the output of attention",
    "loss": "the loss",
}
"""Part of a program that sends activations → its tensor; the others are weights."""


def readings(op: str, numel: tuple[int, int], known: Known, axes: str = "") -> list[str]:
    """Everything that a collective of so many numbers, in and out, can be, for a known model and layout.

    op: as in a flight record. axes: those of its group; "" or "all" say nothing.
    """
    (less, size), model, layout = sorted(numel), known.model, known.layout
    if size <= FEW:
        if size:
            return [f"{size} = a norm, a loss or a flag"]
        return []
    kind = re.sub(r"^_|_base$|_into_tensor|_tensor|_single|_coalesced| .*", "", op).replace("recv", "send")
    wide = {axis: layout.size(axis) for axis in AXES if layout is not None and layout.size(axis) > 1}
    found = defaultdict[str, list[str]](list)
    if model is not None and layout is not None:
        for text, axis in _of_model(model, layout, kind, size, known):
            # An axis of one rank sends nothing, so "dp-cp" without CP is DP's group.
            own = [name for name in axis.split("-") if name in wide]
            if own and (axes in ("", "all") or {*own} == wide.keys() & {*axes.split("-")}):
                found[text].append("-".join(own))
    told = [f"{text}, over {' or '.join(dict.fromkeys(over))}" for text, over in found.items()]
    if kind in ("all_gather", "reduce_scatter") and 0 < less < size and size % less == 0 and not axes:
        many = size // less
        over = " or ".join(axis for axis, ranks in wide.items() if ranks == many)
        told.append(f"{size:,} / {less:,} = {many} ranks in the group{over and f', as {over}'}")
    return told


def _of_model(
    model: ModelConfig, layout: Layout, kind: str, size: int, known: Known
) -> Iterator[tuple[str, str]]:
    """(text, axis) for each reading, with what such a collective says of sequence parallelism and ZeRO."""
    halves = kind in ("all_gather", "reduce_scatter")
    layout = layout.replace(sequence_parallel=halves and layout.tp > 1, zero=3 if halves else 1)
    tokens = max(layout.tp, 2)  # of a CP rank: the fewest that every method of CP and SP can cut
    try:
        sent = sending("step", model, layout, layout.cp * tokens, micro_batches=1)
    except LlamaparError:  # of heads that do not divide, say: then no collective is known
        return
    shapes = {p.key: " · ".join(f"{n:,}" for n in sent.cut.local_shape(p)) for p in model.parameters()}
    for part, rows in sent.rows.items():
        for _, axis, own, _, size_bytes, _ in rows:
            # K and V are gathered from all ranks of CP.
            ranks = 1
            if part == "K and V" and halves:
                ranks = layout.cp
            width = size_bytes // _FLOAT // tokens // ranks
            if own != kind:
                continue
            if part in shapes and size_bytes == size * _FLOAT:
                yield f"{size:,} = {shapes[part]}: {part} of a rank", axis
            elif (
                part in _TENSORS
                and width
                and size % width == 0
                and _as_many(size // width, width, layout.cp // ranks, known)
            ):
                yield f"{size:,} = {size // width:,} · {width:,}: tokens of {_TENSORS[part]}", axis


def _as_many(tokens: int, width: int, cut_by: int, known: Known) -> bool:
    """Whether a rank can have so many tokens; one number a token is no evidence without their number."""
    length = known.get("seq_len")
    sequences = known.get("micro_batch")
    if length is None:
        return width > 1
    own = length // cut_by * (sequences or 1)
    if sequences or width == 1:
        return tokens == own
    return own > 0 and tokens % own == 0
