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
class Stored:
    """One named tensor of a checkpoint, whose bytes lie in `path` from `offset` on. crc32: their checksum, if
    known.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    crc32: int | None = None

    @property
    def place(self) -> tuple[Path, int, tuple[int, ...]]:
        """Where it lies: two names of one tensor have the same place."""
        return self.path, self.offset, self.shape

    @property
    def itemsize(self) -> int:
        return STORED_BYTES[self.dtype]

    @property
    def file(self) -> str:
        return self.path.name

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize

    def read(self) -> Bytes:
        """Its bytes as [*shape, itemsize]. Raises CheckpointError if they do not have their checksum."""
        if self.nbytes > MAX_READ:
            what = f"{self.file}: {self.name} has {self.nbytes:,} bytes"
            raise CheckpointError(what, f"at most {MAX_READ:,} are read")
        try:
            # The file is not mapped: a read past a file that shrinks meanwhile would kill the process.
            data = np.fromfile(self.path, np.uint8, self.nbytes, offset=self.offset)
        except OSError as problem:
            raise CheckpointError(f"{self.path}: {problem.strerror}") from None
        if len(data) < self.nbytes:
            raise CheckpointError(f"{self.file} became shorter while it was read")
        if self.crc32 is not None and zlib.crc32(data.data) != self.crc32:
            what = f"{self.file}: the bytes of {self.name} are not those that were written"
            raise CheckpointError(
                what, f"their crc32 is not the stored {self.crc32:08x}; the file is damaged"
            )
        return data.reshape(*self.shape, self.itemsize)


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
