"""torch's zip files (`consolidated.NN.pth`, any plain state dict): read by torch behind a gate, and laid out.

`torch.load(weights_only=True)` calls what is on torch's own list: a pickle of a hundred bytes makes it
allocate any amount of memory. So the pickle is first read as data (`describe.pickles`), and a file reaches
torch only if it holds nothing but tensors, numbers and text. No tensor's bytes are read here. For writing,
torch lays out a file with holes in place of the data.
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeGuard, cast

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from llamapar.describe import pickles
from llamapar.describe.dtypes import SAFETENSORS
from llamapar.describe.pickles import PickledCall
from llamapar.errors import CheckpointError, shown

from .stored import Stored, checked

DTYPES = {f"torch.{name}": stored for name, stored in SAFETENSORS.items()}
"""safetensors' names of torch's dtypes."""

KINDS = {stored: getattr(torch, name) for name, stored in SAFETENSORS.items()}
"""torch's dtypes by safetensors' names."""

SUFFIXES = (".pth", ".pt", ".bin")
"""Suffixes of files that torch.save writes."""

_REBUILD = {f"torch._utils._rebuild_{kind}" for kind in ("tensor_v2", "tensor_v3", "parameter")}
_PLAIN = """torch.DoubleStorage torch.FloatStorage torch.HalfStorage torch.BFloat16Storage torch.LongStorage
    torch.IntStorage torch.ShortStorage torch.CharStorage torch.ByteStorage torch.BoolStorage
    torch.storage.UntypedStorage torch.Size torch.device collections.OrderedDict"""
_NAMES = {*_REBUILD, *DTYPES, *_PLAIN.split()}
MAX_PKL = 2**22
"""Bytes of the largest data.pkl that reaches torch, which may take 430 for each; a tensor has about 150."""

_END = 22
"""Bytes of the last record of a zip that has no comment."""


class _Opened(io.FileIO):
    """A file that gives no more bytes at once than a pickle or a zip directory may have."""

    def read(self, size: int | None = -1, /) -> bytes:
        # zipfile asks for as many bytes as a forged directory says it has.
        size = -1 if size is None else min(size, os.fstat(self.fileno()).st_size)
        if size > pickles.MAX_PICKLE:
            raise OSError(f"{size:,} bytes at once")
        return super().read(size) or b""


@contextmanager
def _opened_file(path: Path) -> Iterator[BinaryIO]:
    """A regular file, open for reading. Raises CheckpointError."""
    try:
        # Asked before it is opened: a pipe would wait for a writer.
        if not path.is_file():
            raise CheckpointError(f"{path} is no file, or is not there")
        file = _Opened(path)
    except OSError as problem:
        raise CheckpointError(f"{path} cannot be read", problem.strerror or "") from None
    with file:
        yield cast(BinaryIO, file)


class ZipRecord(NamedTuple):
    """A record of a zip: the start of its bytes, how many they are, and their checksum (0: not computed)."""

    start: int
    size: int
    crc32: int


def _at(file: BinaryIO, start: int, size: int) -> bytes:
    """`size` bytes from `start` on, or fewer where the file ends."""
    file.seek(start)
    return file.read(size)


def _records(file: BinaryIO, where: str) -> dict[str, ZipRecord]:
    """The records of a zip by name, without the folder that torch.save puts around them.

    Each must be uncompressed, inside the file, and apart from the others. Raises CheckpointError.
    """
    found = dict[str, ZipRecord]()
    end = 0
    try:
        length = file.seek(0, os.SEEK_END)
        # torch writes no comment, so the last record has to be the last thing in the file.
        if _at(file, max(0, length - _END), 4) != b"PK\5\6":
            raise zipfile.BadZipFile
        with zipfile.ZipFile(file) as archive:
            for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
                name_size, more = struct.unpack("<2H", _at(file, info.header_offset + 26, 4))
                start = info.header_offset + 30 + name_size + more
                name = info.filename.partition("/")[2]
                # Records that overlap could give bytes two names, and hide data from a checksum.
                if info.header_offset < end or name in found:
                    raise CheckpointError(
                        f"{where} holds {shown(info.filename)} twice, or records that overlap"
                    )
                if info.compress_type != zipfile.ZIP_STORED:
                    what = f"{where} holds {shown(info.filename)} compressed"
                    raise CheckpointError(what, "torch.save never compresses")
                found[name] = ZipRecord(start, info.file_size, info.CRC)
                end = start + info.file_size
        if end > length:
            raise zipfile.BadZipFile
    except CheckpointError:
        raise
    except (zipfile.BadZipFile, RuntimeError, OSError, ValueError, OverflowError, struct.error):
        what = (
            f"{where} is no zip file as torch.save writes it, or it is cut off, or something follows its end"
        )
        again = "torch before 1.6 wrote another format: save it again with torch.save"
        raise CheckpointError(what, again) from None
    return found


def _unpickled(file: BinaryIO, where: str) -> tuple[object, dict[str, ZipRecord]]:
    """The pickle of a torch.save'd zip as data (`pickles.load_pickle`), and the records of the zip."""
    records = _records(file, where)
    if "data.pkl" not in records:
        raise CheckpointError(f"{where} is a zip file without data.pkl", "torch.save writes one")
    order = records.get("byteorder")
    if order and _at(file, order.start, min(order.size, 6)) != b"little":
        raise CheckpointError(f"{where} is not little-endian", "its numbers would be read backwards")
    start, size, crc = records["data.pkl"]
    if size > MAX_PKL:
        why = f"at most {MAX_PKL:,} are read"
        raise CheckpointError(f"{where}: its data.pkl has {size:,} bytes", why)
    data = _at(file, start, size)
    # Checked before it is read: otherwise damaged bytes would decide what the file seems to hold.
    if crc and zlib.crc32(data) != crc:
        why = "its bytes do not have the checksum stored"
        raise CheckpointError(f"{where}: its data.pkl is damaged", why)
    return pickles.load_pickle(data, _NAMES, where, storages=True), records


def _loaded(source: BinaryIO, where: str) -> object:
    """What torch.load makes of a file whose pickle `_unpickled` has let pass, with tensors that hold no data.

    Raises CheckpointError.
    """
    source.seek(0)
    try:
        # Among fake tensors torch.load reads headers alone. mmap=True would map the file privately, and Linux
        # refuses to map one that is larger than the memory.
        with FakeTensorMode():
            return torch.load(source, map_location="cpu", weights_only=True)
    except Exception as problem:  # torch raises whatever Python does on odd values.
        first_line = str(problem).partition("\n")[0][:200]
        raise CheckpointError(f"{where}: torch.load(weights_only=True) refuses it", first_line) from None


def _is_tensor(value: object) -> TypeGuard[PickledCall]:
    """Whether a value from `_unpickled` stands for a tensor."""
    return type(value) is PickledCall and value.name in _REBUILD and value.state is None


def _stored(
    path: Path, name: str, tensor: Tensor, made: PickledCall, records: Mapping[str, ZipRecord]
) -> Stored:
    """A tensor that torch has loaded, with its place. made: the same tensor from `_unpickled`.

    Raises CheckpointError for one that does not lie in its record row by row.
    """
    where = f"{path}: {shown(name)}"
    dtype = DTYPES.get(str(tensor.dtype), str(tensor.dtype))
    shape = checked(where, dtype, tuple(tensor.shape))
    if not tensor.is_contiguous():
        why = "only rows that lie one after another are read; save tensor.contiguous()"
        raise CheckpointError(f"{where} is a view with strides {list(tensor.stride())} of {list(shape)}", why)
    storage = made
    while _is_tensor(storage):
        storage = storage.args[0]
    record = records.get(f"data/{storage.args[2]}", ZipRecord(0, 0, 0))
    first = int(tensor.storage_offset()) * tensor.itemsize
    # The size is said twice, in the pickle and in the zip, and a forged file may differ in the two.
    needed = first + tensor.nbytes
    if needed > record.size:
        raise CheckpointError(
            f"{where} takes {needed:,} bytes", f"its record in the file has {record.size:,}"
        )
    # A checksum is that of the whole record; 0 means that torch did not compute one.
    crc = 0
    if tensor.nbytes == record.size:
        crc = record.crc32
    return Stored(name, dtype, shape, path, record.start + first, crc or None)


def read_pth(path: Path) -> dict[str, Stored]:
    """The tensors of a torch zip file by name, from its headers alone. Raises CheckpointError.

    Of {"model": {…}} the state dict inside is read.
    """
    with _opened_file(path) as file:
        value, records = _unpickled(file, str(path))
        state = _loaded(file, str(path))
    if not isinstance(value, dict) or not isinstance(state, dict):
        raise CheckpointError(f"{path} holds no state dict", "a dict of names and tensors is needed")
    inner = [k for k, v in value.items() if isinstance(v, dict) and any(map(_is_tensor, v.values()))]
    if inner and not any(map(_is_tensor, value.values())):
        if len(inner) > 1:
            what = f"{path} holds {len(inner)} state dicts: {shown(inner)}"
            raise CheckpointError(what, "save one of them")
        value = value[inner[0]]
        state = state[inner[0]]
    tensors = dict[str, Stored]()
    for name, made in value.items():
        # A name that is no text is no name of a model's tensor.
        if not _is_tensor(made) or type(name) is not str:
            continue
        tensors[name] = _stored(path, name, state[name], made, records)
    return tensors


def lay_out_pth(
    path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]], shared: Mapping[str, str] | None = None
) -> None:
    """Create the file of a state dict with holes in place of data.

    tensors: name → dtype and shape, in the order of the dict. shared: name → the name of the tensor that has
    the same storage (a tied head). Equal input gives equal bytes.
    """
    # Fake tensors have shapes and no memory, and skip_data leaves holes in their place: a sparse file of
    # any size in no time.
    with FakeTensorMode():
        state = {n: torch.empty(shape, dtype=KINDS[d]) for n, (d, shape) in tensors.items()}
    state |= {name: state[owner] for name, owner in (shared or {}).items()}
    # Save to a stream, because torch stores the name of a path in the file.
    with torch.serialization.skip_data(materialize_fake_tensors=True), path.open("wb") as out:
        torch.save(state, out)
