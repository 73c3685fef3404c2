"""What a recorded collective belongs to in a Llama step: layer, part, phase and micro-batch, or nothing.

A group's calls are compared with the order in which `count.order` has them. A call is named only where it
stands in two whole periods of the program that are there to the byte, and in one way: so that another
program, say one that recomputes its activations, is not mistaken for it. Its line of code has to be that of
the period before or after; where no frames were kept, no backward is told, for it may be another forward.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from llamapar.count.order import BACKWARD, FORWARD, Sent, order
from llamapar.count.wire import sending
from llamapar.describe.layout import AXES, Layout
from llamapar.describe.models import ModelConfig
from llamapar.errors import LlamaparError

from .dumps import Call

PERIODS = 2
"""Whole periods without a break in which a call has to stand."""

SIZES = 4
"""Most numbers of tokens that are tried where the records leave it open."""

_DTYPES = {"BFloat16": "bfloat16", "Half": "float16", "Float": "float32", "Double": "float64"}
_BYTES = {"BFloat16": 2, "Half": 2, "Float": 4, "Double": 8}

Key = tuple[str, int]


@dataclass(frozen=True, eq=False)
class Program:
    """A Llama step of a model. numbers: what else is known: zero, micro_batch, global_batch."""

    model: ModelConfig
    numbers: Mapping[str, int]

    @cached_property
    def _orders(self) -> dict[object, list[tuple[Sent, ...]]]:
        return {}

    def belonging(
        self,
        layout: Layout,
        rank: int,
        axis: str,
        calls: Mapping[str, Sequence[Call]],
        lines: Sequence[str],
        at: int,
    ) -> Sent | None:
        """What call `at` of a rank's along an axis belongs to; None where that is not certain.

        calls: of the rank in order, by axis; lines: of those along this one.
        """
        if axis not in AXES:
            return None
        own = calls[axis]
        scatters = any("reduce_scatter" in call.op for call in own)
        recorded = [_recorded(call, scatters, layout.size(axis)) for call in own]
        found = list[Sent]()
        for dtype, tokens in self._sizes(layout, calls.get("tp", ()), own):
            for expected in self._expected(layout, rank, axis, dtype, tokens):
                place = _place(recorded, [_key(sent, scatters) for sent in expected], at)
                if place is not None and _same_line(lines, at, len(expected), expected[place]):
                    found.append(expected[place])
        told = {(sent.phase, sent.part, sent.layer) for sent in found}
        return max(found, key=lambda sent: sent.micro_batch is not None) if len(told) == 1 else None

    def _sizes(self, layout: Layout, residual: Sequence[Call], own: Sequence[Call]) -> list[tuple[str, int]]:
        """(dtype, tokens of a rank's micro-batch) that tensors over tp may be of, or as is known."""
        given = self.numbers.get("seq_len", 0) * self.numbers.get("micro_batch", 1) // layout.cp
        seen = {
            (_DTYPES[call.dtypes[0]], tokens)
            for call in residual or own
            if call.dtypes and call.dtypes[0] in _DTYPES
            for numbers in [max(_numbers(call.inputs), _numbers(call.outputs))]
            for tokens in [numbers // self.model.dim if residual else given]
            if tokens and (numbers % self.model.dim == 0 or not residual)
        }
        return sorted(seen, key=lambda pair: -pair[1])[:SIZES]

    def _expected(
        self, layout: Layout, rank: int, axis: str, dtype: str, tokens: int
    ) -> list[tuple[Sent, ...]]:
        """Orders along the axis: of whole steps where the micro-batches are known, and of one micro-batch."""
        place = (layout, layout.coord_of(rank).pp, axis, dtype, tokens)
        if place not in self._orders:
            self._orders[place] = list(self._made(layout, rank, axis, dtype, tokens))
        return self._orders[place]

    def _made(
        self, layout: Layout, rank: int, axis: str, dtype: str, tokens: int
    ) -> Iterator[tuple[Sent, ...]]:
        batch, each = self.numbers.get("global_batch", 0), self.numbers.get("micro_batch", 1)
        many = batch // (layout.dp * each)
        length = tokens * layout.cp
        for sequence_parallel in (True, False) if layout.tp > 1 else (False,):
            asked = layout.replace(
                sequence_parallel=sequence_parallel, zero=self.numbers.get("zero", layout.zero)
            )
            for program, count in (("step", many), ("llama", many), ("step", 1), ("llama", 1)):
                if not count:
                    continue
                try:
                    sent = sending(
                        program, self.model, asked, length, layout.dp * count, dtype,
                        layout.tp > self.model.n_kv_heads, micro_batches=count, rank=rank,
                    )  # fmt: skip
                    made = order(sent)
                except LlamaparError:
                    continue
                own = tuple(sent for sent in made if sent.axis == axis)
                if count > 1:
                    yield own
                else:  # micro-batches one after another, the gradients after each, or later
                    own = tuple(replace(sent, micro_batch=None) for sent in own)
                    yield from {own, tuple(sent for sent in own if sent.phase in (FORWARD, BACKWARD))}


def _place(recorded: Sequence[Key], expected: Sequence[Key], at: int) -> int | None:
    """Where in the expected period call `at` is, if the calls around it are so, and in one way."""
    period = len(expected)
    enough = PERIODS * period
    if not period or len(recorded) < enough:
        return None
    found = list[int]()
    for place in range(period):
        shift, first, last = place - at, at, at
        while last < len(recorded) and recorded[last] == expected[(last + shift) % period]:
            last += 1
            if last - at >= enough:
                break
        while first and last > at and last - first < enough:
            if recorded[first - 1] != expected[(first - 1 + shift) % period]:
                break
            first -= 1
        found += [place] * (last - first >= enough)
    return found[0] if len(found) == 1 else None


def _same_line(lines: Sequence[str], at: int, period: int, sent: Sent) -> bool:
    other = lines[at - period if at >= period else at + period]
    return lines[at] == other and (bool(other) or sent.phase != BACKWARD)


def _recorded(call: Call, scatters: bool, ranks: int) -> Key:
    """Kind and bytes as a trace has them: of what comes out of an all-gather, of what goes in otherwise."""
    kind = re.sub(r"^_|_base$|_into_tensor|_tensor|_single|_coalesced", "", call.op)
    numbers = _numbers(call.inputs) * (ranks if kind == "all_gather" else 1)
    size = _BYTES.get(call.dtypes[0], 0) if call.dtypes else 0
    return kind if scatters else _folded(kind), numbers * size


def _key(sent: Sent, scatters: bool) -> Key:
    return sent.kind if scatters else _folded(sent.kind), sent.bytes


def _folded(kind: str) -> str:
    """gloo has no reduce-scatter of its own, and records the all-reduce that stands for it."""
    return "all_reduce" if kind == "reduce_scatter" else kind


def _numbers(shapes: Sequence[Sequence[int]]) -> int:
    return sum(math.prod(shape) for shape in shapes)
