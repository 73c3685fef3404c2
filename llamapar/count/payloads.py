"""What the parts of a program send, as rows: which collective, how often, and how many bytes."""

from __future__ import annotations

import math

from llamapar.describe.cp_methods import CpMethod
from llamapar.place.cut import Cut

from .sharing import ParameterTraffic, Row

TENSOR_PARALLEL: dict[bool, dict[str, tuple[tuple[str, str], ...]]] = {
    False: {"column input": (("backward", "all_reduce"),), "row output": (("forward", "all_reduce"),)},
    True: {
        "column input": (("forward", "all_gather"), ("backward", "reduce_scatter")),
        "row output": (("forward", "reduce_scatter"), ("backward", "all_gather")),
    },
}
"""With sequence parallelism or not → part → its collectives over tp, each of [batch/dp, seq/cp, dim]."""


def of_cp(cut: Cut, method: CpMethod, tokens: int, item: int, wide: int) -> dict[str, list[Row]]:
    """What context parallelism sends of a rank's `tokens`. wide: bytes of a gradient on its way in a ring."""
    cp = cut.layout.cp
    q = tokens * len(cut.along("q_dim", 0)) * item
    # Numbers in a rank's own K, or V, with the copies that Ulysses needs.
    kv = tokens * len(cut.along("kv_dim", 0)) * method.copies(len(cut.along("n_kv_heads", 0)))
    trades = int(method.heads > 1)
    both = ("forward", "backward")
    rows: dict[str, list[Row]] = {
        # Q, K and V come as heads and go back as tokens' gradients; the output the other way.
        "tokens to heads": [
            (phase, "cp", "all_to_all", count * trades, size, method.heads)
            for phase in both
            for count, size in ((1, q), (2, kv * item))
        ],
        "heads to tokens": [(phase, "cp", "all_to_all", trades, q, method.heads) for phase in both],
        "K and V": [
            *((phase, "cp", "send", 2 * (method.ring - 1), kv * item, 2) for phase in both),
            # Their gradients go all the way home, and none goes where the ring is one group.
            ("backward", "cp", "send", 2 * method.ring * (method.ring > 1), kv * wide, 2),
        ],
    }
    if method.gathers:
        kinds = zip(both, ("all_gather", "reduce_scatter"), strict=True)
        rows["K and V"] = [(phase, "cp", kind, 2, cp * kv * item, cp) for phase, kind in kinds]
    return rows


def of_parameters(sent: ParameterTraffic, late: bool) -> dict[str, list[Row]]:
    """What each parameter sends, by its key. late: gradients are reduced after the last micro-batch."""
    shapes = {p.key: p for p in sent.cut.model.parameters()}
    rows = {key: sent.rows(p, late) for key, p in shapes.items()}
    rows.setdefault("norm", [])  # of a model whose norms have no weights
    rows.setdefault("output", sent.rows(shapes["tok_embeddings"], late, head=True))  # tied
    rows["the same as head"] = [
        row for row in rows["output"] if sent.reshard and row[0] in ("forward", "backward")
    ]
    return rows


def of_stages(cut: Cut, residual: int, summed: int, wide: int) -> dict[str, list[Row]]:
    """What a pipeline's stages send one another, and what the gradients' norm takes. residual: bytes.

    summed: bytes of a number in the sum of gradients.
    """
    lay = cut.layout
    shards = cut.shards
    embedding = next(p for p in cut.model.parameters() if p.key == "tok_embeddings")
    size = math.prod(cut.local_shape(embedding)) * summed
    squares: list[Row] = [
        ("update", "tp", "all_reduce", 1, wide, lay.tp),
        ("update", "pp", "send", lay.pp - 1, wide, 2),
    ]
    if shards.cuts("gradients") and shards.ranks > 1:
        squares.append(("update", shards.axis, "all_reduce", 1, wide, shards.ranks))
    return {
        "stage": [(phase, "pp", "send", 1, residual, 2) for phase in ("forward", "backward")],
        "the other end": [("gradients", "pp", "send", 1, size, 2)],
        "sum of squares": squares,
    }
