"""A tensor in files: where its bytes lie, and how to read them.

Bytes stay bytes: nothing is converted to numbers, so every dtype passes through unchanged. A tensor is read
whole, one at a time; the largest of Llama 3.1 405B has 4 GB.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
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

MAX_READ = 2**33
"""Bytes of the largest tensor that is read, as 405B's embedding in float32: a forged file may hold holes."""


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

    @property
    def located(self) -> StoredPiece:
        """The piece with the place of its bytes; one whose header has to be read first overrides this."""
        return self


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

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize

    def read(self) -> Bytes:
        """Its bytes as [*shape, itemsize]. Raises CheckpointError if they do not have their checksum."""
        _check_size(f"{self.file}: {self.name}", self.nbytes)
        whole = np.empty((*self.shape, self.itemsize), np.uint8)
        seen = np.zeros(self.shape, bool)
        for piece in self.boxes:
            box = piece.located
            data = bytes_of(box.file, box.offset, math.prod(box.shape) * self.itemsize)
            if box.crc32 is not None and zlib.crc32(data.data) != box.crc32:
                what = f"{box.file.name}: the bytes of {self.name} are not those that were written"
                why = f"their crc32 is not the stored {box.crc32:08x}; the file is damaged"
                raise CheckpointError(what, why)
            data = data.reshape(*box.shape, self.itemsize)
            if box.shape == self.shape:
                return data
            place = tuple(slice(s, s + n) for s, n in zip(box.start, box.shape, strict=True))
            # Equal sums prove nothing by themselves: one overlap may hide one hole.
            if seen[place].any():
                why = "as many elements are missing elsewhere"
                raise CheckpointError(f"{self.name}: its chunk at {list(box.start)} overlaps another", why)
            seen[place] = True
            whole[place] = data
        return whole


def _check_size(what: str, nbytes: int) -> None:
    if nbytes > MAX_READ:
        raise CheckpointError(f"{what} has {nbytes:,} bytes", f"at most {MAX_READ:,} are read")


def bytes_of(file: Path, offset: int, size: int) -> Bytes:
    """A span of bytes of the file. Raises CheckpointError."""
    _check_size(f"{file.name}: a part of it", size)
    try:
        # The file is not mapped: a read past a file that shrinks meanwhile would kill the process.
        data = np.fromfile(file, np.uint8, size, offset=offset)
    except OSError as problem:
        raise CheckpointError(f"{file}: {problem.strerror}") from None
    if len(data) < size:
        raise CheckpointError(f"{file.name} became shorter while it was read")
    return data


def json_object(path: Path, limit: int = MAX_CONFIG_BYTES) -> Plain:
    """The JSON object in a file of at most `limit` bytes. Raises LlamaparError."""
    if (size := path.stat().st_size) > limit:
        raise CheckpointError(f"{path.name} holds {size:,} bytes", f"at most {limit:,} are read")
    try:
        return dict(parse_object(path.read_text("utf-8"), path.name, limit))
    except UnicodeDecodeError:
        raise CheckpointError(f"{path.name} is not UTF-8 text") from None


def checked(where: str, dtype: str, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of a tensor in a file's header. Raises CheckpointError for an impossible dtype or shape."""
    if dtype not in STORED_BYTES:
        why = f"dtypes of checkpoints are {', '.join(STORED_BYTES)}"
        raise CheckpointError(f"{where} has dtype {dtype!r}", why)
    if len(shape) > MAX_DIMS or math.prod(shape) * STORED_BYTES[dtype] > MAX_BYTES:
        why = f"at most {MAX_DIMS} dims and {MAX_BYTES:,} bytes are read"
        raise CheckpointError(f"{where} has the impossible shape {str(list(shape))[:100]}", why)
    return tuple(shape)
