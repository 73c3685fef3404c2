"""What a recorded collective belongs to in a Llama step: layer, part, phase and micro-batch, or nothing.

A group's calls are compared with the order in which `count.order` has them, under each schedule that the
pipeline may have. A call is named only where it stands in two whole periods of the program that are there to
the byte, and in one way: so that another program, say one that recomputes its activations, is not mistaken
for it. Where the job is known (seq_len and global_batch are given) a whole step is enough, or two forwards
and two backwards, or the gradients of two layers, if everything from the beginning of that step to the end
of the record is the program's.
Its line of code has to be that of a call like it; where no frames were kept, no backward is told, for it may
be another forward.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

from llamapar.count.order import BACKWARD, FORWARD, Sent, order
from llamapar.count.wire import Sending, sending
from llamapar.describe.layout import AXES, Layout
from llamapar.describe.models import ModelConfig
from llamapar.errors import LlamaparError, one_of
from llamapar.place.orders import ORDERS

from .dumps import Call

PERIODS = 2
"""Whole periods without a break in which a call has to stand."""

ALONE = ["1f1b", "gpipe"]
"""Schedules without a pipeline: each micro-batch forward and backward, or all forward first."""

SIZES = 4
"""Most numbers of tokens that are tried where the records leave it open."""

_DTYPES = {"BFloat16": "bfloat16", "Half": "float16", "Float": "float32", "Double": "float64"}
_BYTES = {"BFloat16": 2, "Half": 2, "Float": 4, "Double": 8}

Key = tuple[str, int]


@dataclass(frozen=True, eq=False)
class Program:
    """A Llama step of a model. numbers: what else is known: zero, seq_len, micro_batch, global_batch.

    schedule: of the pipeline; "" where it may be any.
    """

    model: ModelConfig
    numbers: Mapping[str, int]
    schedule: str = ""

    def __post_init__(self) -> None:
        if self.schedule:
            one_of("schedule", self.schedule, ORDERS)

    @cached_property
    def _orders(self) -> dict[object, list[Expected]]:
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
        read = self._read.get((rank, axis))
        if read is None:
            read = self._read[rank, axis] = self._compared(layout, rank, axis, calls)
        recorded, each = read
        found = _told(((e, _since(ends, e, len(recorded), at)) for e, _, ends in each), lines, at)
        found = found or _told(((e, _place(recorded, keys, at)) for e, keys, _ in each), lines, at)
        if len({(sent.phase, sent.part, sent.layer) for sent in found}) != 1:
            return None
        return max(found, key=lambda sent: sent.micro_batch is not None)

    @cached_property
    def _read(self) -> dict[tuple[int, str], tuple[list[Key], list[Compared]]]:
        return {}

    def _compared(
        self, layout: Layout, rank: int, axis: str, calls: Mapping[str, Sequence[Call]]
    ) -> tuple[list[Key], list[Compared]]:
        """A rank's calls along an axis, and each order that they may have, with what `_ends` says of it."""
        own = calls[axis]
        scatters = any("reduce_scatter" in call.op for call in own)
        recorded = [_recorded(call, scatters, layout.size(axis)) for call in own]
        found = list[Compared]()
        for dtype, tokens in self._sizes(layout, calls.get("tp", ()), own):
            for expected in self._expected(layout, rank, axis, dtype, tokens):
                keys = [_key(sent, scatters) for sent in expected.sent]
                found.append((expected, keys, _ends(recorded, keys) if expected.proof else []))
        return recorded, found

    def _given(self, layout: Layout) -> int:
        """Tokens of a rank's micro-batch, where the job is known."""
        return self.numbers.get("seq_len", 0) * self.numbers.get("micro_batch", 1) // layout.cp

    def _sizes(self, layout: Layout, residual: Sequence[Call], own: Sequence[Call]) -> list[tuple[str, int]]:
        """(dtype, tokens of a rank's micro-batch) that tensors over tp may be of, or as is known."""
        given = self._given(layout)
        seen = {
            (_DTYPES[call.dtypes[0]], tokens)
            for call in residual or own
            if call.dtypes and call.dtypes[0] in _DTYPES
            for numbers in [max(_numbers(call.inputs), _numbers(call.outputs))]
            for tokens in [numbers // self.model.dim if residual else given]
            if tokens and (numbers % self.model.dim == 0 or not residual)
        }
        return sorted(seen, key=lambda pair: -pair[1])[:SIZES]

    def _expected(self, layout: Layout, rank: int, axis: str, dtype: str, tokens: int) -> list[Expected]:
        """Orders along the axis: of whole steps where the micro-batches are known, and of one micro-batch."""
        place = (layout, layout.coord_of(rank).pp, axis, dtype, tokens)
        if place not in self._orders:
            self._orders[place] = list(self._made(layout, rank, axis, dtype, tokens))
        return self._orders[place]

    def _made(self, layout: Layout, rank: int, axis: str, dtype: str, tokens: int) -> Iterator[Expected]:
        batch, each = self.numbers.get("global_batch", 0), self.numbers.get("micro_batch", 1)
        many = batch // (layout.dp * each)
        each_layer = sum(p.layer == 0 for p in self.model.parameters())
        for sent in self._sendings(layout, rank, dtype, tokens, many):
            own = tuple(one for one in order(sent) if one.axis == axis)
            if sent.table is not None and sent.table.micro_batches > 1:
                yield Expected(own, _proof(own, each_layer) if tokens == self._given(layout) else 0)
            else:  # micro-batches one after another, the gradients after each, or later
                own = tuple(replace(one, micro_batch=None) for one in own)
                proof = len(own) if many == 1 and tokens == self._given(layout) else 0
                yield Expected(own, proof)
                yield Expected(tuple(one for one in own if one.phase in (FORWARD, BACKWARD)))

    def _sendings(self, layout: Layout, rank: int, dtype: str, tokens: int, many: int) -> Iterator[Sending]:
        """The steps that there may be: each kind, and each schedule that is another one on the rank."""
        pp_rank, seen = layout.coord_of(rank).pp, set[object]()
        schedules = [self.schedule] if self.schedule else ORDERS
        kinds = itertools.product(
            (True, False)[layout.tp == 1 :], ("step", "llama"), {many, 1} - {0},
            schedules if layout.pp > 1 else ALONE,
        )  # fmt: skip
        for sp, program, count, schedule in kinds:
            asked = layout.replace(sequence_parallel=sp, zero=self.numbers.get("zero", layout.zero))
            with suppress(LlamaparError):
                sent = sending(
                    program, self.model, asked, tokens * layout.cp, layout.dp * count, dtype,
                    layout.tp > self.model.n_kv_heads, schedule=schedule, micro_batches=count, rank=rank,
                )  # fmt: skip
                assert sent.table is not None
                stages = tuple(sent.cut.stages_of(sent.table, pp_rank))
                key = (sp, program, tuple(sent.table.ranks[pp_rank]), stages)
                if key not in seen:
                    seen.add(key)
                    yield sent


@dataclass(frozen=True)
class Expected:
    """What a rank sends along an axis, in one period. proof: how many of its first calls tell that it is
    this program and no other, in a job that is known; 0 in one that is not."""

    sent: tuple[Sent, ...]
    proof: int = 0


Compared = tuple[Expected, list[Key], list[tuple[int, int]]]


def _proof(step: Sequence[Sent], parameters: int) -> int:
    """Calls up to the end of the second forward and the second backward, or of the step; along an axis on
    which nothing is sent in passes, as many as the parameters of two layers."""
    if not any(one.phase in (FORWARD, BACKWARD) for one in step):
        return min(len(step), PERIODS * parameters)
    passes, begun = Counter[str](), object()
    for at, one in enumerate(step):
        if (one.phase, one.micro_batch) != begun:
            if min(passes[FORWARD], passes[BACKWARD]) >= PERIODS:
                return at
            begun = (one.phase, one.micro_batch)
            passes[one.phase] += 1
    return len(step)


def _ends(recorded: Sequence[Key], expected: Sequence[Key]) -> list[tuple[int, int]]:
    """(call at which a step begins, shift): from there on all calls are the program's, shifted so."""
    period, found = len(expected), []
    for shift in range(period):
        first = len(recorded)
        while first and recorded[first - 1] == expected[(first - 1 + shift) % period]:
            first -= 1
        begin = first + (-first - shift) % period
        found += [(begin, shift)] * (begin < len(recorded))
    return found


def _since(ends: Sequence[tuple[int, int]], expected: Expected, many: int, at: int) -> int | None:
    """Where in the expected step call `at` is, by the one reading that explains most; of `many` calls."""
    enough = [(begin, shift) for begin, shift in ends if begin <= at and many - begin >= expected.proof]
    best = [shift for begin, shift in enough if begin == min(enough)[0]]
    return (at + best[0]) % len(expected.sent) if len(best) == 1 else None


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


def _told(places: Iterable[tuple[Expected, int | None]], lines: Sequence[str], at: int) -> list[Sent]:
    return [e.sent[p] for e, p in places if p is not None and _same_line(lines, at, e, p)]


def _same_line(lines: Sequence[str], at: int, expected: Expected, place: int) -> bool:
    """Whether a call like it, of another step or of another layer or micro-batch, has its line of code."""
    sent, period = expected.sent[place], len(expected.sent)
    if at >= period or at + period < len(lines):
        alike = [at - period if at >= period else at + period]
    else:
        shift = place - at
        others = ((i, expected.sent[(i + shift) % period]) for i in range(len(lines)) if i != at)
        alike = [
            i
            for i, o in others
            if (o.phase, o.part, o.kind, o.bytes) == (sent.phase, sent.part, sent.kind, sent.bytes)
        ]
    return any(lines[i] == lines[at] for i in alike) and (bool(lines[at]) or sent.phase != BACKWARD)


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
