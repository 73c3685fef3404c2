"""The place of a recorded collective in a Llama step: layer, part, phase and micro-batch, or nothing.

A group's calls are compared with the order from `order`, under each possible pipeline schedule. A call
is named only if it lies in two whole periods of the program that match to the byte, in exactly one way, so
that another program, such as one with recomputation, is not mistaken for it. If the job is known (seq_len and
global_batch are given), a whole step is enough, or two forwards and two backwards, or the gradients of two
layers, provided everything from the beginning of that step to the end of the record matches. The line of code
must equal that of a corresponding call. Without recorded frames no backward is named, because it may be
another forward.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from llamapar.count.wire import Sending, sending
from llamapar.describe.layout import AXES, Layout
from llamapar.describe.models import ModelConfig
from llamapar.errors import LlamaparError, one_of
from llamapar.place.orders import ORDERS

from .dumps import CollectiveCall
from .order import BACKWARD, FORWARD, Sent, collectives_in_order

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
class LlamaStep:
    """A Llama step of a model. numbers: other known facts: zero, seq_len, micro_batch, global_batch.

    schedule: of the pipeline; "" for any.
    """

    model: ModelConfig
    numbers: Mapping[str, int]
    schedule: str = ""
    _orders: dict[object, list[Expected]] = field(default_factory=dict, init=False)
    _read: dict[tuple[int, str], tuple[list[Key], list[Compared]]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.schedule:
            one_of("schedule", self.schedule, ORDERS)

    def belonging(
        self,
        layout: Layout,
        rank: int,
        axis: str,
        calls: Mapping[str, Sequence[CollectiveCall]],
        lines: Sequence[str],
        at: int,
    ) -> Sent | None:
        """The place of call `at` of a rank along an axis; None if that is not certain.

        calls: the rank's calls in order, by axis; lines: the lines of those along this axis.
        """
        if axis not in AXES:
            return None
        read = self._read.get((rank, axis))
        if read is None:
            read = self._read[rank, axis] = self._compared(layout, rank, axis, calls)
        recorded, each = read
        # The stronger proof first: everything up to the end of the record matches. Otherwise periods
        # around the call.
        found = _told(((e, _since(ends, e, len(recorded), at)) for e, _, ends in each), lines, at)
        found = found or _told(((e, _place(recorded, keys, at)) for e, keys, _ in each), lines, at)
        # Several schedules may fit; they only have to agree on the place. The micro-batch may stay
        # unknown.
        if len({(sent.phase, sent.part, sent.layer) for sent in found}) != 1:
            return None
        return max(found, key=lambda sent: sent.micro_batch is not None)

    def _compared(
        self, layout: Layout, rank: int, axis: str, calls: Mapping[str, Sequence[CollectiveCall]]
    ) -> tuple[list[Key], list[Compared]]:
        """A rank's calls along an axis, and each possible order with its result from `_ends`."""
        own = calls[axis]
        # gloo's records have none, and all-reduces in their place; both sides are then compared in that
        # form.
        scatters = any("reduce_scatter" in call.op for call in own)
        recorded = [_recorded(call, scatters, layout.size(axis)) for call in own]
        found = list[Compared]()
        for dtype, tokens in self._sizes(layout, calls.get("tp", ()), own):
            place = (layout, layout.coord_of(rank).pp, axis, dtype, tokens)
            if place not in self._orders:
                self._orders[place] = list(self._expected(layout, rank, axis, dtype, tokens))
            for expected in self._orders[place]:
                keys = [(one.kind if scatters else _folded(one.kind), one.bytes) for one in expected.sent]
                found.append((expected, keys, _ends(recorded, keys) if expected.proof else []))
        return recorded, found

    def _given(self, layout: Layout) -> int:
        """Tokens in a rank's micro-batch, if the job is known."""
        return self.numbers.get("seq_len", 0) * self.numbers.get("micro_batch", 1) // layout.cp

    def _sizes(
        self, layout: Layout, residual: Sequence[CollectiveCall], own: Sequence[CollectiveCall]
    ) -> list[tuple[str, int]]:
        """Possible (dtype, tokens of a rank's micro-batch) of tensors over tp, or the known ones."""
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

    def _expected(self, layout: Layout, rank: int, axis: str, dtype: str, tokens: int) -> Iterator[Expected]:
        """Orders along the axis: whole steps if the number of micro-batches is known, and one micro-batch."""
        batch, each = self.numbers.get("global_batch", 0), self.numbers.get("micro_batch", 1)
        many = batch // (layout.dp * each)
        each_layer = sum(p.layer == 0 for p in self.model.parameters())
        for sent in self._sendings(layout, rank, dtype, tokens, many):
            own = tuple(one for one in collectives_in_order(sent) if one.axis == axis)
            if sent.table is not None and sent.table.micro_batches > 1:
                yield Expected(own, _proof(own, each_layer) if tokens == self._given(layout) else 0)
            else:  # micro-batches one after another, the gradients after each, or later
                own = tuple(replace(one, micro_batch=None) for one in own)
                proof = len(own) if many == 1 and tokens == self._given(layout) else 0
                yield Expected(own, proof)
                yield Expected(tuple(one for one in own if one.phase in (FORWARD, BACKWARD)))

    def _sendings(self, layout: Layout, rank: int, dtype: str, tokens: int, many: int) -> Iterator[Sending]:
        """The possible steps: each kind, and each schedule that differs on this rank."""
        pp_rank, seen = layout.coord_of(rank).pp, set[object]()
        schedules = [self.schedule] if self.schedule else ORDERS
        kinds = itertools.product(
            # SP is tried with and without; at tp=1 the slice starts at 1, which leaves only without.
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
                # Schedules may give one rank the same row, and comparing it twice would make every match
                # ambiguous.
                key = (sp, program, tuple(sent.table.ranks[pp_rank]), stages)
                if key not in seen:
                    seen.add(key)
                    yield sent


@dataclass(frozen=True)
class Expected:
    """A rank's messages along an axis in one period.

    proof: number of first calls that identify this program in a known job; 0 if the job is unknown.
    """

    sent: tuple[Sent, ...]
    proof: int = 0


Compared = tuple[Expected, list[Key], list[tuple[int, int]]]


def _proof(step: Sequence[Sent], parameters: int) -> int:
    """Number of calls up to the end of the second forward and the second backward, or of the step.

    On an axis that sends nothing during passes: as many calls as two layers have parameters.
    """
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
    """(call at which a step begins, shift): from there on all calls match the program, shifted by this."""
    period, found = len(expected), []
    for shift in range(period):
        first = len(recorded)
        while first and recorded[first - 1] == expected[(first - 1 + shift) % period]:
            first -= 1
        # The first beginning of a step from `first` on.
        begin = first + (-first - shift) % period
        found += [(begin, shift)] * (begin < len(recorded))
    return found


def _since(ends: Sequence[tuple[int, int]], expected: Expected, many: int, at: int) -> int | None:
    """Position of call `at` in the expected step, by the one reading that explains most; of `many` calls."""
    # Every earlier beginning explains more of the record; two shifts that explain equally much explain
    # nothing.
    enough = [(begin, shift) for begin, shift in ends if begin <= at and many - begin >= expected.proof]
    best = [shift for begin, shift in enough if begin == min(enough)[0]]
    return (at + best[0]) % len(expected.sent) if len(best) == 1 else None


def _place(recorded: Sequence[Key], expected: Sequence[Key], at: int) -> int | None:
    """Position of call `at` in the expected period, if the calls around it match in exactly one way."""
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
        # Forward first, then backward until two whole periods match; `last > at` means that the call
        # itself did.
        while first and last > at and last - first < enough:
            if recorded[first - 1] != expected[(first - 1 + shift) % period]:
                break
            first -= 1
        found += [place] * (last - first >= enough)
    return found[0] if len(found) == 1 else None


def _told(places: Iterable[tuple[Expected, int | None]], lines: Sequence[str], at: int) -> list[Sent]:
    return [e.sent[p] for e, p in places if p is not None and _same_line(lines, at, e, p)]


def _same_line(lines: Sequence[str], at: int, expected: Expected, place: int) -> bool:
    """Whether a corresponding call, of another step, layer or micro-batch, has the same line of code."""
    sent, period = expected.sent[place], len(expected.sent)
    # One step earlier or later the same line must stand; without another step, the same part of another
    # layer.
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


def _recorded(call: CollectiveCall, scatters: bool, ranks: int) -> Key:
    """Kind and bytes as in a trace: of the output for an all-gather, else of the input."""
    kind = re.sub(r"^_|_base$|_into_tensor|_tensor|_single|_coalesced", "", call.op)
    numbers = _numbers(call.inputs) * (ranks if kind == "all_gather" else 1)
    size = _BYTES.get(call.dtypes[0], 0) if call.dtypes else 0
    return kind if scatters else _folded(kind), numbers * size


def _folded(kind: str) -> str:
    """gloo has no reduce-scatter, and records the all-reduce that replaces it."""
    return "all_reduce" if kind == "reduce_scatter" else kind


def _numbers(shapes: Sequence[Sequence[int]]) -> int:
    return sum(math.prod(shape) for shape in shapes)
