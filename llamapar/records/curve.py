"""Memory of one rank over its operations: how many bytes are alive after each, and what holds them. No torch.

Operations of one kind are alike for every micro-batch. So each kind is one profile, which many spans share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from .tables import Record, cut, readable_bytes, unit_of
from .trace import CollectiveEvent

SHOWN = 7
"""The most holders that the sentence about the peak lists."""


@dataclass(frozen=True)
class OperationMemory:
    """The memory of one kind of operation, in bytes relative to what was alive before it.

    events: its collectives, in order. most: the largest value, at least 0.
    peak_in: the torch operation that allocated the tensor at the peak.
    at_peak, after: holder → change of its bytes at the peak, and at the end.
    """

    events: tuple[CollectiveEvent, ...] = ()
    most: int = 0
    peak_in: str = ""
    at_peak: Mapping[str, int] = field(default_factory=dict)
    after: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def change(self) -> int:
        """Bytes that are alive after the operation and were not before; negative if it frees more."""
        return sum(self.after.values())


@dataclass(frozen=True)
class Span:
    """One operation of the rank.

    before: bytes alive when it begins. sends: to other stages, at its end.
    measured: True if it ran; False if its profile comes from another operation of its kind.
    """

    name: str
    before: int
    profile: OperationMemory
    sends: tuple[CollectiveEvent, ...] = ()
    measured: bool = True

    @property
    def most(self) -> int:
        """Bytes alive at the peak of the operation."""
        return self.before + self.profile.most

    @property
    def after(self) -> int:
        """Bytes alive at its end."""
        return self.before + self.profile.change

    @property
    def events(self) -> list[CollectiveEvent]:
        """Its collectives and sends, in order."""
        return [*self.profile.events, *self.sends]


@dataclass(frozen=True, repr=False)
class MemoryCurve(Record):
    """Bytes alive on a rank over its operations. start: holder → bytes before the first operation.

    Holders: "parameters", "inputs", "gradients", "activations: …" (by the part of the model that autograd
    keeps them for), "messages" between stages, "stage's input and output", and "workspace: …" (by torch
    operation, for tensors with no other known holder).
    """

    title: str
    start: Mapping[str, int]
    spans: tuple[Span, ...]

    @cached_property
    def peak_at(self) -> int:
        """Index of the first span that reaches the peak; -1 without spans."""
        # The -i makes the first of equal peaks win.
        return max(range(len(self.spans)), key=lambda i: (self.spans[i].most, -i), default=-1)

    @property
    def peak_bytes(self) -> int:
        if self.spans:
            return self.spans[self.peak_at].most
        return sum(self.start.values())

    @property
    def peak(self) -> str:
        """The place of the peak, in words."""
        if not self.spans:
            return "before the first operation"
        span = self.spans[self.peak_at]
        inside = ""
        if span.profile.peak_in:
            inside = f", in {span.profile.peak_in}"
        return f"{span.name}, operation {self.peak_at + 1} of {len(self.spans)}{inside}"

    @property
    def alive(self) -> dict[str, int]:
        """Holder → bytes at the peak, the largest first."""
        held = Counter(self.start)
        for span in self.spans[: self.peak_at]:
            held.update(span.profile.after)
        if self.spans:
            # As `after`, it is the change from the bytes before the operation.
            held.update(self.spans[self.peak_at].profile.at_peak)
        return {name: n for name, n in held.most_common() if n}

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        unit, size_of = unit_of(self.peak_bytes)
        rows: list[list[object]] = []
        for i in cut(len(self.spans)):
            span = self.spans[i]
            kinds = Counter(f"{event.kind} {event.axis}" for event in span.events)
            sent = ", ".join(f"{n} {kind}" for kind, n in kinds.items())
            sizes = (span.before, span.most, span.after)
            rows.append([i + 1, span.name, *(f"{size / size_of:.2f}" for size in sizes), sent])
        return (
            self.title,
            ["", "operation", f"before, {unit}", "most", "after", "collectives"],
            rows,
            self.sentence,
        )

    @property
    def sentence(self) -> str:
        """One sentence: the peak, where it is, and the largest holders there."""
        alive = ", ".join(f"{name} {readable_bytes(n)}" for name, n in list(self.alive.items())[:SHOWN])
        return f"peak {readable_bytes(self.peak_bytes)} at {self.peak}: {alive}"
