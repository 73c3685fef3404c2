"""A tensor in files: where its bytes lie, and how to read some of its rows.

Bytes stay bytes: nothing is converted to numbers, so every dtype passes through unchanged. A tensor is a
number of rows times the bytes of a row, and only the requested rows are read.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llamapar.describe.configfile import MAX_CONFIG_BYTES, parse_object
from llamapar.describe.dtypes import STORED_BYTES
from llamapar.describe.pickles import MAX_DIMS
from llamapar.errors import CheckpointError
from llamapar.records.tables import Plain

Bytes = NDArray[np.uint8]

MAX_BYTES = 2**46

AT_ONCE = 2**18
"""Bytes of whole rows that are read at once where some bytes of each are asked for."""

APART = 2**12
"""Bytes of a row above which only those that are asked for are read (measured)."""


@contextmanager
def many_objects() -> Iterator[None]:
    """Pause Python's garbage collector: headers become millions of objects, none of which is in a cycle."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@dataclass(frozen=True)
class StoredPiece:
    """A contiguous piece of a tensor: its corner and shape in the tensor, and the place of its bytes in a
    file.

    crc32: checksum of the bytes, if known.
    """

    file: Path
    offset: int
    start: tuple[int, ...]
    shape: tuple[int, ...]
    crc32: int | None = None


@dataclass(frozen=True)
class Stored:
    """One named tensor of a checkpoint. boxes: one, or several that cover the tensor without overlap."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    boxes: tuple[StoredPiece, ...]

    @property
    def itemsize(self) -> int:
        return STORED_BYTES[self.dtype]

    @property
    def file(self) -> str:
        """Name of the file that contains its first byte; empty for a tensor without elements."""
        return self.boxes[0].file.name if self.boxes else ""

    def bytes_of(self, box: StoredPiece) -> int:
        """The bytes of one of its boxes."""
        return math.prod(box.shape) * self.itemsize

    def damage(self, box: StoredPiece) -> str:
        """The message for a box whose checksum does not match."""
        return f"{box.file.name}: the bytes of {self.name} are not those that were written"

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize

    @cached_property
    def rows(self) -> int:
        return self.shape[0] if self.shape else 1

    @cached_property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.itemsize

    def read(self, low: int, high: int) -> Bytes:
        """Rows low to high as [high - low, row_bytes]."""
        if len(self.boxes) == 1:
            box = self.boxes[0]
            start = box.offset + low * self.row_bytes
            return _span(box.file, start, (high - low) * self.row_bytes).reshape(high - low, self.row_bytes)
        # Several boxes: each gives the part of these rows that it holds, at its own corner.
        out = np.empty((high - low, *self.shape[1:], self.itemsize), np.uint8)
        for box in self.boxes:
            first, last = max(low, box.start[0]), min(high, box.start[0] + box.shape[0])
            if first >= last:
                continue
            row = math.prod(box.shape[1:]) * self.itemsize
            at = box.offset + (first - box.start[0]) * row
            piece = _span(box.file, at, (last - first) * row)
            where = [slice(first - low, last - low)]
            where += [slice(s, s + n) for s, n in zip(box.start[1:], box.shape[1:], strict=True)]
            out[tuple(where)] = piece.reshape(last - first, *box.shape[1:], self.itemsize)
        return out.reshape(high - low, self.row_bytes)

    def part(self, rows: range, columns: range) -> Bytes:
        """Some bytes of some rows: [len(rows), len(columns)]."""
        if len(columns) == self.row_bytes:
            return self.read(rows.start, rows.stop)
        found = np.empty((len(rows), len(columns)), np.uint8)
        # Wide rows are read piece by piece; of narrow ones whole rows are read and cut, because a read
        # costs more than some bytes too many.
        if len(self.boxes) == 1 and self.row_bytes > APART:
            box = self.boxes[0]
            first = box.offset + columns.start
            _fill(found, box.file, [first + row * self.row_bytes for row in rows])
            return found
        step = max(1, AT_ONCE // max(1, self.row_bytes))
        for low in range(rows.start, rows.stop, step):
            high = min(low + step, rows.stop)
            found[low - rows.start : high - rows.start] = self.read(low, high)[
                :, columns.start : columns.stop
            ]
        return found


def _span(file: Path, start: int, nbytes: int) -> Bytes:
    """A span of bytes of the file."""
    found = np.empty(nbytes, np.uint8)
    _fill(found.reshape(1, nbytes), file, [start])
    return found


def _fill(rows: Bytes, file: Path, places: Sequence[int]) -> None:
    """Read each row from its place in the file.

    The file is not mapped: a read past a file that shrinks meanwhile would kill the process.
    """
    width = rows.shape[1]
    view = rows.reshape(-1).data
    with file.open("rb", buffering=0) as data:
        for i, place in enumerate(places):
            data.seek(place)
            left = view[i * width : (i + 1) * width]
            while left:
                if not (count := data.readinto(left)):
                    raise CheckpointError(f"{file.name} became shorter while it was read")
                left = left[count:]


def json_object(path: Path, limit: int = MAX_CONFIG_BYTES) -> Plain:
    """The JSON object in a file of at most `limit` bytes. Raises LlamaparError."""
    if (size := path.stat().st_size) > limit:
        raise CheckpointError(f"{path.name} holds {size:,} bytes", f"at most {limit:,} are read")
    try:
        return dict(parse_object(path.read_text("utf-8"), path.name, limit))
    except UnicodeDecodeError:
        raise CheckpointError(f"{path.name} is not UTF-8 text") from None


def checked(name: str, dtype: str, shape: object, where: str) -> tuple[int, ...]:
    """The shape of a tensor in a file's header. Raises CheckpointError for an impossible shape."""
    if dtype not in STORED_BYTES:
        why = f"dtypes of checkpoints are {', '.join(STORED_BYTES)}"
        raise CheckpointError(f"{where}: {name} has dtype {dtype!r}", why)
    if not isinstance(shape, list | tuple) or len(shape) > MAX_DIMS:
        raise CheckpointError(f"{where}: the shape of {name} is no list of at most {MAX_DIMS} sizes")
    sizes = tuple(shape)
    # type() and not isinstance(): True is an int to the latter.
    odd = not {*map(type, sizes)} <= {int} or min(sizes, default=0) < 0
    if odd or math.prod(sizes) * STORED_BYTES[dtype] > MAX_BYTES:
        raise CheckpointError(f"{where}: {name} has the impossible shape {str(list(shape))[:100]}")
    return sizes
