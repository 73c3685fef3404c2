"""The zip files that torch writes, read from their directory: uncompressed records with verified places.

Python's zipfile would do for one file. A torch.distributed.checkpoint contains one zip for each chunk of each
tensor; there zipfile costs ten times as much and checks less.
"""

from __future__ import annotations

import itertools
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from llamapar.errors import CheckpointError, shown

_END, _END64, _LOCATOR = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL")
_ENTRY, _LOCAL = struct.Struct("<4s6H3L5H2L"), struct.Struct("<4s5H3L2H")
_AGAIN = "torch before 1.6 wrote it, or it has another format: save it again with torch.save"
_DAMAGED = "has a damaged zip directory"
_BLOCK = 4096

MAX_DIRECTORY = 2**24
"""Bytes of the largest directory that is read; a record takes about 80."""


@dataclass
class Window:
    """A file, or `length` bytes of it from `offset` on; bytes outside cannot be read."""

    file: Path
    handle: int
    offset: int
    length: int
    where: str
    cached: dict[int, bytes] = field(default_factory=dict)

    def read(self, at: int, size: int) -> bytes:
        if at < 0 or size < 0 or at + size > self.length:
            why = f"it has {self.length:,} bytes and tells of some at {shown(at)}"
            raise self.refusal("is damaged or cut off", why)
        # Large or block-crossing reads gain nothing from the cached block.
        if size > _BLOCK or self.length <= _BLOCK or at // _BLOCK != (at + size - 1) // _BLOCK:
            return self.pread(at, size)
        block = at - at % _BLOCK  # The small parts of a zip lie together, so one read gets several.
        if block not in self.cached:
            self.cached = {block: self.pread(block, min(_BLOCK, self.length - block))}
        return self.cached[block][at - block : at - block + size]

    def pread(self, at: int, size: int) -> bytes:
        """`read` for a place that is known to be inside."""
        found = os.pread(self.handle, size, self.offset + at)
        if len(found) != size:
            raise self.refusal("became shorter while it was read")
        return found

    def refusal(self, what: str, why: str = "") -> CheckpointError:
        """An error with the file's name in front."""
        return CheckpointError(f"{self.where} {what}", why)


@contextmanager
def window(path: Path) -> Iterator[Window]:
    """A whole regular file, open for reading. Raises CheckpointError."""
    try:
        found = path.stat()  # Check before opening: opening a pipe would wait for a writer.
        if not stat.S_ISREG(found.st_mode):
            raise CheckpointError(f"{path} is no file")
        handle = os.open(path, os.O_RDONLY)
    except OSError as problem:
        raise CheckpointError(f"{path} cannot be read", problem.strerror or "") from None
    try:
        yield Window(path, handle, 0, found.st_size, str(path))
    finally:
        os.close(handle)


class ZipEntry(NamedTuple):
    """A record of a zip: the starts of its directory entry, header and bytes, and its number of bytes."""

    entry: int
    header: int
    data: int
    size: int
    crc32: int
    streamed: bool
    """Whether the checksum stands behind the data, not before it."""


def records(zipped: Window) -> dict[str, ZipEntry]:
    """The records of a zip file by name. Each must be uncompressed, inside the file, and apart from the
    others.

    Raises CheckpointError for a file that torch would not write.
    """
    if zipped.read(0, min(4, zipped.length)) != b"PK\3\4":
        raise zipped.refusal("is no zip file as torch.save writes it", _AGAIN)
    start, size, count = _directory(zipped)
    listed, at, found = zipped.read(start, size), 0, dict[str, ZipEntry]()
    for _ in range(count):
        name, record, end = _entry(zipped, listed, at, start)
        if name in found:
            raise zipped.refusal(f"holds {shown(name)} twice")
        found[name], at = record, end
    if at != size:
        raise zipped.refusal(_DAMAGED)
    # Records that overlap could give one stretch of bytes two names, and hide data from a checksum.
    order = sorted(found.values(), key=lambda record: record.header)
    if any(a.data + a.size > b.header for a, b in itertools.pairwise(order)):
        raise zipped.refusal("holds records that overlap")
    return found


def _directory(zipped: Window) -> tuple[int, int, int]:
    """The start of the directory, its bytes, and the number of records it lists."""
    # torch writes no comment, so the end record is the last thing in the file, and need not be searched.
    end = zipped.length - _END.size
    magic, disk, other, here, count, size, start, comment = _END.unpack(zipped.read(end, _END.size))
    if magic != b"PK\5\6" or disk or other or comment:
        raise zipped.refusal("is cut off, or something follows the end of its zip")
    # Past 4 GiB or 65,535 records the real numbers stand in the 64-bit end record, which the locator
    # points at.
    if end >= _LOCATOR.size and zipped.read(end - _LOCATOR.size, 4) == b"PK\6\7":
        _, disk, end, disks = _LOCATOR.unpack(zipped.read(end - _LOCATOR.size, _LOCATOR.size))
        fields = _END64.unpack(zipped.read(end, _END64.size))
        magic, rest, _, _, disk, other, here, count, size, start = fields
        if magic != b"PK\6\6" or rest != _END64.size - 12 or disk or other or disks > 1:
            raise zipped.refusal(_DAMAGED)
    if here != count or start + size != end or size < count * _ENTRY.size:
        raise zipped.refusal(_DAMAGED, f"{count:,} records in {size:,} bytes at {start:,}")
    if size > MAX_DIRECTORY:
        why = f"at most {MAX_DIRECTORY:,} are read"
        raise zipped.refusal(f"has a zip directory of {size:,} bytes", why)
    return start, size, count


def _entry(zipped: Window, listed: bytes, at: int, start: int) -> tuple[str, ZipEntry, int]:
    """Name and record of the directory entry at `at`, and the start of the next entry."""
    if at + _ENTRY.size > len(listed):
        raise zipped.refusal(_DAMAGED)
    fields = _ENTRY.unpack_from(listed, at)
    magic, _, _, flags, method, _, _, crc, packed, full, n, extra, note, _, _, _, header = fields
    names_end = at + _ENTRY.size + n
    raw, more = listed[names_end - n : names_end], listed[names_end : names_end + extra]
    name = raw.decode("utf-8", "replace")
    # This value means "see the 64-bit field", and only fields with it are there, in this order.
    if 0xFFFFFFFF in (packed, full, header):
        wide = iter(_zip64(more))
        full, packed, header = (next(wide, -1) if v == 0xFFFFFFFF else v for v in (full, packed, header))
    # 0x808: sizes behind the data (8) and names in UTF-8 (0x800) are the only flags that torch sets.
    if magic != b"PK\1\2" or flags & ~0x808 or len(more) != extra or header < 0:
        raise zipped.refusal(_DAMAGED, f"at record {shown(name)}")
    if method or packed != full:
        raise zipped.refusal(f"holds {shown(name)} compressed", "torch.save never compresses")
    local = _LOCAL.unpack(zipped.read(header, _LOCAL.size))
    data = header + _LOCAL.size + local[9] + local[10]
    if local[0] != b"PK\3\4" or local[3] or zipped.read(header + _LOCAL.size, local[9]) != raw:
        raise zipped.refusal(f"has a damaged header of record {shown(name)}")
    if data + full > start:
        why = f"{full:,} bytes are announced from {data:,} on, the records end at {start:,}"
        raise zipped.refusal(f"is damaged or cut off at record {shown(name)}", why)
    record = ZipEntry(start + at, header, data, full, crc, bool(flags & 8))
    return name, record, names_end + extra + note


def _zip64(extra: bytes) -> tuple[int, ...]:
    at = 0
    while at + 4 <= len(extra):
        kind, size = struct.unpack_from("<2H", extra, at)
        # Kind 1 is the 64-bit extension; others, such as torch's padding, are skipped.
        if kind == 1 and size % 8 == 0 and at + 4 + size <= len(extra):
            return struct.unpack_from(f"<{size // 8}Q", extra, at + 4)
        at += 4 + size
    return ()
