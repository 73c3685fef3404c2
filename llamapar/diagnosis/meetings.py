"""The places in an observation where two sizes meet that should be equal."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from llamapar.records.equations import Comparison

from .known import Known
from .observations import LABELS, Matmul, Pair, ViewCall
from .reading import Reading, Shape
from .words import either, table

BATCH = 64
"""Rows of [batch, tokens], at most; of a weight there are more."""

_KEYS = {key: either(patterns) for key, patterns in table("words.toml")["names"].items()}
"""Row of the placement table, or another kind of tensor → what its name holds."""


def key_of(name: str) -> str:
    """The row of the placement table for a tensor's name; "lora", "fused", "position" or "" for other
    tensors.
    """
    low = name.lower()
    return next((key for key, pattern in _KEYS.items() if pattern.search(low)), "")


@dataclass(frozen=True)
class DifferingSizes:
    """Two sizes that differ, in text order and by size, with their tensor and the known facts.

    ratio: how often one contains the other, 0 for no whole number. dims: of the tensor.
    """

    o: ViewCall | Matmul | Pair
    r: Reading
    known: Known
    a: int
    b: int
    small: int
    big: int
    ratio: int
    key: str
    name: str
    dim: int | None
    shapes: tuple[Shape, ...]
    dims: int

    @classmethod
    def of(cls, o: ViewCall | Matmul | Pair, r: Reading, known: Known) -> DifferingSizes:
        if isinstance(o, ViewCall):
            pair = Pair(o.numel, abs(math.prod(o.target)))
        elif isinstance(o, Matmul):
            pair = Pair(o.a, o.b)
        else:
            pair = o
        small, big = sorted((pair.a, pair.b))
        ratio = 0 if small < 1 or big % small else big // small
        shapes = pair.shapes or ()
        named = key_of(pair.name), pair.name, pair.dim, shapes, len(shapes[0]) if shapes else 0
        return cls(o, r, known, pair.a, pair.b, small, big, ratio, *named)

    @property
    def both(self) -> Comparison:
        return Comparison(self.a, "≠", self.b)

    @cached_property
    def meetings(self) -> list[tuple[int, int]]:
        """The pairs of sizes that should be equal; for a view or labels, each dim is tried."""
        o = self.o
        known = self.known
        if isinstance(o, ViewCall):
            return list(_of_view(o, known))
        if self.name != LABELS:
            return [(self.a, self.b)]
        # One dim contains the batch and its tokens.
        samples = range(1, BATCH + 1 if known.get("seq_len") else 0)
        return [(self.a // n, self.b // n) for n in samples if self.a % n == self.b % n == 0]


def _of_view(o: ViewCall, known: Known) -> Iterator[tuple[int, int]]:
    """The one dim of the target, or two adjacent ones, that would need another number."""
    dims = 0
    if min(o.target) > 0:
        dims = len(o.target)
    for first in range(dims):
        for last in {first + 1, min(first + 2, dims), dims}:
            asked = math.prod(o.target[first:last])
            there, rest = divmod(o.numel * asked, math.prod(o.target))
            own = first == dims - 1 and asked == known.get(
                "head_dim"
            )  # the size of a head, which nobody cuts
            if not (rest or own) and there != asked:
                yield there, asked
