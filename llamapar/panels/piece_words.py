"""The words for a rank's piece of a tensor: its dims by name, its units, and how the rank holds it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from llamapar.records.tables import span
from llamapar.records.trace import Tape, TapeStep, grouped

UNITS = {
    "batch": "sequences",
    "seq": "tokens",
    "n_heads": "heads",
    "n_kv_heads": "KV heads",
    "q_dim": "query rows",
    "kv_dim": "KV rows",
    "ffn_dim": "hidden columns",
    "vocab_size": "vocabulary rows",
    "dim": "columns",
}
"""Name of a dim → what a piece along it is made of."""


def rows_and_columns(shape: tuple[int, ...]) -> tuple[int, int]:
    """The picture of a tensor: rows are batch and sequence, columns are the other dims."""
    down = min(2, max(0, len(shape) - 1))
    return math.prod(shape[:down]), math.prod(shape[down:])


def dim_names(step: TapeStep, tape: Tape) -> list[str]:
    """The name of each dim of the whole tensor, from its size and position; "" for an unnamed dim."""
    whole = step.global_shape or ()
    sizes = tape.sizes
    names = []
    for dim, n in enumerate(whole):
        if len(whole) == 4 and dim > 1:
            usual: tuple[str, ...] = ("n_heads", "n_kv_heads") if dim == 2 else ("head_dim",)
        elif step.name in ("positions",) or (dim == 1 and len(whole) > 2) or (dim == 1 and n == sizes["seq"]):
            usual = ("seq",)
        elif dim == 0 and n == sizes["batch"]:
            usual = ("batch",)
        else:
            usual = ("dim", "q_dim", "kv_dim", "ffn_dim", "vocab_size")
        names.append(next((name for name in usual if sizes[name] == n), ""))
    return names


def dims(step: TapeStep, tape: Tape) -> list[str]:
    """Each dim with the axes that cut it: "batch", "seq/cp", "n_heads/tp"; an unnamed dim shows its size."""
    whole = step.global_shape or next(iter(step.local.values()), ())
    names = dim_names(step, tape) or [""] * len(whole)
    cuts = [f"{''.join(f'/{axis}' for axis in step.cut.get(dim, ()))}" for dim in range(len(whole))]
    return [f"{name or n}{cut}" for name, n, cut in zip(names, whole, cuts, strict=True)]


def unit(step: TapeStep, tape: Tape, dim: int) -> str:
    return UNITS.get(dim_names(step, tape)[dim], "rows")


def place_words(step: TapeStep, tape: Tape, rank: int) -> str:
    """How a rank holds the tensor: "summand over TP · piece: tokens 0–3, 12–15"."""
    words = []
    at = step.at.get(rank)
    for kind, numbers in grouped({n: p.kind for n, p in enumerate(step.places.values()) if p.dim is None}):
        over = "·".join(list(step.places)[n].upper() for n in numbers)
        words.append("numbers of its own" if kind == "own" else f"{kind} over {over}")
    for dim, axes in step.cut.items():
        what = "summand of a piece" if any(step.places[a].kind == "summand" for a in axes) else "piece"
        where = ", ".join(span(part) for part in at[dim]) if at is not None else ""
        words.append(f"{what}: {unit(step, tape, dim)} {where}")
    for dim, parts in out_of_order(step, rank):
        words.append(f"{unit(step, tape, dim)} in the order {', '.join(map(span, parts))}")
    return " · ".join(words)


def out_of_order(step: TapeStep, rank: int) -> list[tuple[int, Sequence[range]]]:
    """Uncut dims that a rank holds completely but in another order, as an all-gather leaves them."""
    at = step.at.get(rank, ())
    return [(dim, parts) for dim, parts in enumerate(at) if len(parts) > 1 and dim not in step.cut]
