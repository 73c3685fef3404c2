"""The ledger: the tensors alive after each torch operation, with their sizes and their holders.

A storage is alive from the operation that made it until its last tensor dies, which a weak reference reports.
Tensors that autograd packs for the backward are activations of the model part whose code is running.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FrameType

import torch
from torch import Tensor

from llamapar.programs import attention, llama, mlp, vocab
from llamapar.records.curve import OperationMemory, Span
from llamapar.records.trace import CollectiveEvent

WORKSPACE = "workspace: "
"""What a holder's name begins with until somebody is known to hold the tensor."""

GATHERED = "gathered parameters"

PARTS: dict[CodeType, str] = {
    attention.attention.__code__: "attention",
    attention.meta_attention.__code__: "attention",
    mlp.mlp.__code__: "MLP",
    mlp.mlp_unfused.__code__: "MLP",
    llama.block.__code__: "norms",  # what a block does besides its attention and its MLP
    vocab.embedding.__code__: "embedding",
    vocab.cross_entropy.__code__: "logits and loss",
    vocab.loss.__code__: "head",
    llama.llama_stage.__code__: "head",
}
"""Code of a program → its part by the names of `llamapar.count.saved`; the innermost that runs decides."""


class _Piece(weakref.ref[torch.UntypedStorage]):
    """A storage that is alive, with its bytes and its holder; one Python object stands for it all that
    time.
    """

    __slots__ = ("holder", "key", "size")
    key: int
    size: int
    holder: str


class Ledger:
    """Counts the bytes of the tensors passed to `made`, by holder, operation by operation.

    The other methods receive tensors and collectives as they occur.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.start: dict[str, int] = {}
        self.total = 0
        self.by_holder: Counter[str] = Counter()
        self._alive: dict[int, _Piece] = {}
        self._name = self._holder = ""
        self._begin()

    def _begin(self) -> None:
        self._before, self._start = self.total, Counter(self.by_holder)
        self._events: list[CollectiveEvent] = []
        self._most, self._peak_in, self._at_peak = 0, "", Counter(self.by_holder)

    def begin(self, name: str, holder: str = "") -> None:
        """Start an operation. holder: of tensors made in it that have no other known holder."""
        self.start = self.start or dict(self.by_holder)
        self._begin()
        self._name = name
        self._holder = holder

    def end(self) -> None:
        """End the operation that began last."""
        profile = OperationMemory(
            tuple(self._events),
            self._most,
            self._peak_in,
            _changes(self._start, self._at_peak),
            _changes(self._start, self.by_holder),
        )
        self.spans.append(Span(self._name, self._before, profile))
        self._name = self._holder = ""

    @contextmanager
    def span(self, name: str, holder: str = "") -> Iterator[None]:
        """An operation from beginning to end, as a context manager."""
        self.begin(name, holder)
        yield
        self.end()

    def again(self, name: str, profile: OperationMemory) -> None:
        """Repeat the same operation without its tensors."""
        self.spans.append(Span(name, self.total, profile, measured=False))
        self.by_holder.update(profile.after)
        self.total += profile.change

    # -- tensors ---------------------------------------------------------------------------------

    def made(self, t: Tensor, operation: str = "") -> None:
        """Count a tensor that a torch operation returned; one already alive is not counted again."""
        self.take(t, self._holder or f"{WORKSPACE}{operation}", operation)

    def take(self, t: Tensor, holder: str, operation: str = "") -> None:
        """Count a tensor for the holder, unless it is already alive."""
        storage = t.untyped_storage()
        if id(storage) in self._alive:
            return
        piece = _Piece(storage, self._gone)
        piece.key, piece.size, piece.holder = id(storage), storage.nbytes(), holder
        self._alive[piece.key] = piece
        self._changed(holder, piece.size, operation)

    def held(self, t: Tensor, holder: str) -> None:
        """Set the holder of a tensor in the workspace."""
        piece = self._alive.get(id(t.untyped_storage()))
        if piece is not None and piece.holder.startswith((WORKSPACE, "messages")):
            self.by_holder[piece.holder] -= piece.size
            self.by_holder[holder] += piece.size
            piece.holder = holder

    def _gone(self, piece: weakref.ref[torch.UntypedStorage]) -> None:
        assert isinstance(piece, _Piece)
        if self._alive.pop(piece.key, None) is not None:
            self._changed(piece.holder, -piece.size, "")

    def _changed(self, holder: str, size: int, operation: str) -> None:
        self.total += size
        self.by_holder[holder] += size
        above = self.total - self._before
        if above > self._most:
            self._most, self._peak_in, self._at_peak = above, operation, Counter(self.by_holder)

    @contextmanager
    def packing(self) -> Iterator[None]:
        """Context in which autograd's saved tensors are counted for the running part."""

        def packed(t: Tensor) -> Tensor:
            self.told("kept", t)
            return t.detach()  # Saving an operation's own output would create a reference cycle.

        with torch.autograd.graph.saved_tensors_hooks(packed, lambda t: t):
            yield

    def told(self, what: str, t: Tensor) -> None:
        """Count a tensor that autograd has "kept", or that ZeRO has "gathered"."""
        self.held(t, GATHERED if what == "gathered" else f"activations: {_part(sys._getframe(1))}")

    # -- collectives -----------------------------------------------------------------------------

    def event(self, event: CollectiveEvent) -> None:
        """Record a collective in the open span, or a send after the last span."""
        if self._name:
            self._events.append(event)
        elif self.spans:
            last = self.spans[-1]
            self.spans[-1] = Span(last.name, last.before, last.profile, (*last.sends, event), last.measured)


def _changes(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    found = {name: after.get(name, 0) - before.get(name, 0) for name in {**before, **after}}
    return {name: n for name, n in found.items() if n}


def _part(frame: FrameType | None) -> str:
    """The part of the model whose code is running; "the program" for a user's own code."""
    while frame is not None:
        part = PARTS.get(frame.f_code)
        if part is not None:
            return part
        frame = frame.f_back
    return "the program"
