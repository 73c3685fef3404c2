"""Lazy tensors: rows of bytes that are read, joined and cut only on demand.

Each output tensor of a gather, a cut or a reshard is one such expression. `atomic_write` evaluates it
block by block, so no tensor is ever whole in memory. Copies on several ranks are compared while they are
read.
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
class LazyRows:
    """A lazy tensor of `rows` rows, each of `row_bytes` bytes.

    part: a function from (rows, bytes of each row) to those bytes. sources: the stored tensors it reads from.
    """

    rows: int
    row_bytes: int
    part: Callable[[range, range], Bytes] = field(repr=False)
    sources: tuple[Stored, ...] = ()

    def read(self, low: int, high: int) -> Bytes:
        """Rows low to high: [high - low, row_bytes]."""
        return self.part(range(low, high), range(self.row_bytes))

    @property
    def nbytes(self) -> int:
        return self.rows * self.row_bytes

    def spans(self, block: int) -> Iterator[tuple[int, int]]:
        """(low, high) of consecutive blocks of rows, each of about `block` bytes, which cover all rows."""
        # At least one row, even where a row is longer than a block.
        step = max(1, block // max(1, self.row_bytes))
        for low in range(0, self.rows if self.row_bytes else 0, step):
            yield low, min(low + step, self.rows)


@dataclass(frozen=True)
class Output:
    """A tensor to be written."""

    dtype: str
    shape: tuple[int, ...]
    rows: LazyRows


def of(stored: Stored) -> LazyRows:
    """A stored tensor, unchanged."""
    return LazyRows(stored.rows, stored.row_bytes, stored.part, (stored,))


def _sources(parts: Sequence[LazyRows]) -> tuple[Stored, ...]:
    return tuple(dict.fromkeys(source for part in parts for source in part.sources))


def joined_rows(parts: Sequence[LazyRows]) -> LazyRows:
    """Parts joined along dim 0."""
    if len(parts) == 1:
        return parts[0]
    lengths = [part.rows for part in parts]

    def read(rows: range, columns: range) -> Bytes:
        # One piece is the usual case, and passing it on saves a copy of every byte.
        pieces = [parts[i].part(own, columns) for i, own in _shares(lengths, rows)]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    return LazyRows(sum(lengths), parts[0].row_bytes, read, _sources(parts))


def beside(parts: Sequence[LazyRows]) -> LazyRows:
    """Parts joined along dim 1."""
    if len(parts) == 1:
        return parts[0]
    widths = [part.row_bytes for part in parts]

    def read(rows: range, columns: range) -> Bytes:
        return np.concatenate([parts[i].part(rows, own) for i, own in _shares(widths, columns)], axis=1)

    return LazyRows(parts[0].rows, sum(widths), read, _sources(parts))


def _shares(lengths: Sequence[int], asked: range) -> Iterator[tuple[int, range]]:
    """For parts that follow each other: each part that overlaps `asked`, and the range inside that part."""
    start = 0
    for i, length in enumerate(lengths):
        low, high = max(asked.start, start), min(asked.stop, start + length)
        if low < high:
            yield i, range(low - start, high - start)
        start += length


def agreed(name: str, parts: Sequence[LazyRows]) -> LazyRows:
    """The first of several copies. Raises CheckpointError, while reading, if another copy differs."""
    first, *others = parts
    if not others:
        return first

    def read(rows: range, columns: range) -> Bytes:
        expected = first.part(rows, columns)
        for i, other in enumerate(others, 1):
            if not np.array_equal(expected, other.part(rows, columns)):
                files = " and ".join(part.sources[0].file for part in (first, other))
                which = f"copies 0 and {i}, rows {rows.start} to {rows.stop - 1}"
                raise CheckpointError(f"{name}: the copies in {files} differ ({which})", _COPIES_DIFFER)
        return expected

    return LazyRows(first.rows, first.row_bytes, read, _sources(parts))


def rows_of(whole: LazyRows, part: range) -> LazyRows:
    """A range of rows; rows past the end are zeros (pad rows)."""
    if part == range(whole.rows):
        return whole

    def read(rows: range, columns: range) -> Bytes:
        # Rows past the end of the whole are pads; both ends are clipped, so `first` may equal `last`.
        first, last = (min(part.start + row, whole.rows) for row in (rows.start, rows.stop))
        nothing = np.empty((0, len(columns)), np.uint8)
        real = whole.part(range(first, last), columns) if first < last else nothing
        if (pads := len(rows) - (last - first)) == 0:
            return real
        return np.concatenate([real, np.zeros((pads, len(columns)), np.uint8)])

    return LazyRows(len(part), whole.row_bytes, read, whole.sources)


def columns_of(whole: LazyRows, part: range) -> LazyRows:
    """A range of bytes of each row."""
    if part == range(whole.row_bytes):
        return whole

    def read(rows: range, columns: range) -> Bytes:
        return whole.part(rows, range(part.start + columns.start, part.start + columns.stop))

    return LazyRows(whole.rows, len(part), read, whole.sources)


def picked(whole: LazyRows, index: NDArray[np.int64]) -> LazyRows:
    """Row i of the result is row index[i] of `whole`. Rows read together should lie near each other."""

    def read(rows: range, columns: range) -> Bytes:
        # One read of the span that holds them all, then the rows in their order: within a head they lie
        # close together.
        chosen = index[rows.start : rows.stop]
        first = int(chosen.min())
        return whole.part(range(first, int(chosen.max()) + 1), columns)[chosen - first]

    return LazyRows(len(index), whole.row_bytes, read, whole.sources)
