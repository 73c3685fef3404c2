"""Tensors that are not there yet: rows of bytes that are read, joined and cut only when they are asked for.

A gather, a cut or a reshard is one such expression per output tensor; `writing` asks for it block by block,
so that no tensor is ever whole in memory. What copies hold alike is compared while it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from llamapar.errors import CheckpointError

from .stored import Bytes, Stored

_COPIES_DIFFER = (
    "ranks that replicate a tensor must hold the same bytes; a file is of another step or damaged, "
    "or KV heads lie as 0, 1, …, 0, 1, … and not as 0, 0, 1, 1, …"
)


@dataclass(frozen=True)
class Rows:
    """rows × row_bytes. read: (low, high) → those rows. sources: the stored tensors it reads from."""

    rows: int
    row_bytes: int
    read: Callable[[int, int], Bytes] = field(repr=False)
    sources: tuple[Stored, ...] = ()

    @property
    def nbytes(self) -> int:
        return self.rows * self.row_bytes

    def spans(self, block: int) -> Iterator[tuple[int, int]]:
        """(low, high) of runs of rows that together are all, each of about `block` bytes."""
        step = max(1, block // max(1, self.row_bytes))
        for low in range(0, self.rows if self.row_bytes else 0, step):
            yield low, min(low + step, self.rows)


@dataclass(frozen=True)
class Output:
    """A tensor to be written."""

    dtype: str
    shape: tuple[int, ...]
    rows: Rows


def of(stored: Stored) -> Rows:
    """A stored tensor as it is."""
    return Rows(stored.rows, stored.row_bytes, stored.read, (stored,))


def _sources(parts: Sequence[Rows]) -> tuple[Stored, ...]:
    return tuple(dict.fromkeys(source for part in parts for source in part.sources))


def stacked(parts: Sequence[Rows]) -> Rows:
    """Parts joined along dim 0."""
    if len(parts) == 1:
        return parts[0]
    starts = np.cumsum([0, *(part.rows for part in parts)]).tolist()

    def read(low: int, high: int) -> Bytes:
        pieces = [
            part.read(max(low, start) - start, min(high, start + part.rows) - start)
            for part, start in zip(parts, starts, strict=False)
            if max(low, start) < min(high, start + part.rows)
        ]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    return Rows(starts[-1], parts[0].row_bytes, read, _sources(parts))


def beside(parts: Sequence[Rows]) -> Rows:
    """Parts joined along dim 1."""
    if len(parts) == 1:
        return parts[0]

    def read(low: int, high: int) -> Bytes:
        return np.concatenate([part.read(low, high) for part in parts], axis=1)

    return Rows(parts[0].rows, sum(part.row_bytes for part in parts), read, _sources(parts))


def agreed(name: str, parts: Sequence[Rows]) -> Rows:
    """The first of several copies; CheckpointError, while reading, where another one differs."""
    first, *others = parts
    if not others:
        return first

    def read(low: int, high: int) -> Bytes:
        expected = first.read(low, high)
        for i, other in enumerate(others, 1):
            if not np.array_equal(expected, other.read(low, high)):
                files = " and ".join(part.sources[0].file for part in (first, other))
                which = f"copies 0 and {i}, rows {low} to {high - 1}"
                raise CheckpointError(f"{name}: the copies in {files} differ ({which})", _COPIES_DIFFER)
        return expected

    return Rows(first.rows, first.row_bytes, read, _sources(parts))


def rows_of(whole: Rows, part: range) -> Rows:
    """A range of rows; those past the end are zeros (pad rows)."""
    if part == range(whole.rows):
        return whole

    def read(low: int, high: int) -> Bytes:
        first, last = min(part.start + low, whole.rows), min(part.start + high, whole.rows)
        real = whole.read(first, last) if first < last else np.empty((0, whole.row_bytes), np.uint8)
        if (pads := high - low - (last - first)) == 0:
            return real
        return np.concatenate([real, np.zeros((pads, whole.row_bytes), np.uint8)])

    return Rows(len(part), whole.row_bytes, read, whole.sources)


def columns_of(whole: Rows, part: range) -> Rows:
    """A range of bytes of each row."""
    if part == range(whole.row_bytes):
        return whole

    def read(low: int, high: int) -> Bytes:
        return whole.read(low, high)[:, part.start : part.stop]

    return Rows(whole.rows, len(part), read, whole.sources)


def picked(whole: Rows, index: NDArray[np.int64]) -> Rows:
    """Row i of the result is row index[i]; rows that are asked for together should lie near each other."""

    def read(low: int, high: int) -> Bytes:
        chosen = index[low:high]
        first = int(chosen.min())
        return whole.read(first, int(chosen.max()) + 1)[chosen - first]

    return Rows(len(index), whole.row_bytes, read, whole.sources)
