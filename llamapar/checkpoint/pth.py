"""Torch's zip files (`consolidated.NN.pth`, any plain state dict): read from their headers, and written.

Reading parses the zip's directory and its pickle with readers that execute nothing and trust no size, and it
leaves the tensors' bytes alone. This is stricter than `torch.load(weights_only=True)` (see `pickled`), which
is the second witness in the tests. For writing, torch lays out a sparse file; the caller fills in the bytes,
and `seal` then writes the checksums.
"""

from __future__ import annotations

import math
import pickle
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeGuard

import numpy as np

from llamapar.describe import pickles as pickled
from llamapar.describe.dtypes import SAFETENSORS, STORED_BYTES
from llamapar.describe.pickles import Name, PickledCall
from llamapar.errors import CheckpointError, shown

from .stored import Stored, StoredPiece, checked
from .zipped import Window, ZipEntry, records, window

_STORAGES = """DoubleStorage=F64 FloatStorage=F32 HalfStorage=F16 BFloat16Storage=BF16 LongStorage=I64
    IntStorage=I32 ShortStorage=I16 CharStorage=I8 ByteStorage=U8 BoolStorage=BOOL
    storage.UntypedStorage=U8"""

DTYPES = {f"torch.{name}": stored for name, stored in SAFETENSORS.items()}
"""safetensors' names of torch's dtypes."""

STORAGES: dict[str, str] = dict(f"torch.{pair}".split("=") for pair in _STORAGES.split())
"""safetensors' names of the dtypes of torch's storages."""

SUFFIXES = (".pth", ".pt", ".bin")
"""Suffixes of files that torch.save writes."""

_V2, _V3, _PARAMETER = (f"torch._utils._rebuild_{n}" for n in ("tensor_v2", "tensor_v3", "parameter"))
_NAMES = {*STORAGES, *DTYPES, _V2, _V3, _PARAMETER, "collections.OrderedDict", "torch.Size", "torch.device"}


def unpickled(zipped: Window) -> tuple[object, dict[str, ZipEntry]]:
    """The contents of a torch.save'd zip, as `pickled.load_pickle` describes them, and its records by their
    short names.
    """
    where, found = zipped.where, records(zipped)
    # torch.save puts everything under one folder with a name of its own, such as "archive/".
    root = next(iter(found), "").split("/")[0] + "/"
    short = {name.removeprefix(root): record for name, record in found.items() if name.startswith(root)}
    if "data.pkl" not in short:
        raise zipped.refusal("is a zip file without data.pkl", "torch.save writes one")
    order = short.get("byteorder")
    if order and (order.size > 6 or zipped.read(order.data, order.size) != b"little"):
        raise zipped.refusal("is not little-endian", "its numbers would be read backwards")
    main = short["data.pkl"]
    if main.size > pickled.MAX_PICKLE:
        why = f"at most {pickled.MAX_PICKLE:,} are read"
        raise CheckpointError(f"{where}: its data.pkl has {main.size:,} bytes", why)
    data = zipped.read(main.data, main.size)
    # Checked before it is read: otherwise damaged bytes would decide what the file seems to hold.
    if main.crc32 and zlib.crc32(data) != main.crc32:
        why = "its bytes do not have the checksum stored"
        raise CheckpointError(f"{where}: its data.pkl is damaged", why)
    return pickled.load_pickle(data, _NAMES, where, storages=True), short


def is_tensor(value: object) -> TypeGuard[PickledCall]:
    """Whether a value from `unpickled` stands for a tensor."""
    return type(value) is PickledCall and value.name in (_V2, _V3, _PARAMETER)


def tensor(name: str, made: PickledCall, found: Mapping[str, ZipEntry], zipped: Window) -> Stored:
    """The tensor that `made` stands for, as one box. Raises CheckpointError, naming it."""
    where = f"{zipped.where}: {shown(name)}"
    if made.name == _PARAMETER:
        made = made.args[0] if made.args and is_tensor(made.args[0]) else made
    try:
        storage, first, shape, strides, *rest = made.args
        kind, stored_as, key, _, numel = storage.args
        unit = STORED_BYTES[STORAGES[stored_as.name]]
        dtype = DTYPES[rest[2].name] if made.name == _V3 else STORAGES[stored_as.name]
        if kind != "storage" or storage.name != pickled.STORAGE or type(stored_as) is not Name:
            raise TypeError
        if any(type(n) is not int or n < 0 for n in (first, numel, *strides)) or len(strides) != len(shape):
            raise TypeError
        record = found.get(f"data/{key}") if type(key) is str else None
    except (ValueError, TypeError, AttributeError, KeyError, IndexError):
        raise CheckpointError(f"{where} is no plain tensor") from None
    shape = checked(shown(name), dtype, shape, zipped.where)
    if record is None:
        raise CheckpointError(f"{where} has no data", f"the file holds no record data/{shown(key)}")
    # The storage's size is said twice, in the pickle and in the zip, and a forged file may differ in the
    # two.
    if numel * unit != record.size:
        why = f"its record data/{shown(key)} has {record.size:,} bytes"
        raise CheckpointError(f"{where} tells of {shown(numel)} elements of {stored_as.name}", why)
    count, item = math.prod(shape), STORED_BYTES[dtype]
    if (first + count) * item > record.size:
        why = f"its record data/{shown(key)} has room for {record.size // item:,}"
        raise CheckpointError(f"{where} tells of {count:,} elements from {shown(first)} on", why)
    # Strides of a contiguous tensor. A dim of size 1 may have any.
    plain = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    if count and any(n > 1 and s != p for n, s, p in zip(shape, strides, plain, strict=True)):
        why = "only rows that lie one after another are read; save tensor.contiguous()"
        raise CheckpointError(f"{where} is a view with strides {list(strides)} of shape {list(shape)}", why)
    # A checksum of 0 means that torch did not compute one.
    crc = record.crc32 if count * item == record.size else 0
    place = zipped.offset + record.data + first * item
    box = StoredPiece(zipped.file, place, (0,) * len(shape), shape, crc or None)
    return Stored(name, dtype, shape, (box,))


def no_tensors(file: str, names: Sequence[str]) -> list[str]:
    """A note about the entries of a file that are no tensors, if there are any."""
    first = shown(", ".join(names[:4]))[1:-1]
    return [f"{file}: {len(names)} entries that are no tensors: {first}"] if names else []


def contents(path: Path) -> tuple[dict[str, Stored], list[str]]:
    """The tensors of a torch zip file by name, and notes about its other contents; reads only headers.

    For {"model": {…}}, the state dict inside is returned. Raises CheckpointError.
    """
    with window(path) as zipped:
        value, found = unpickled(zipped)
        if not isinstance(value, dict):
            raise zipped.refusal("holds no state dict", "a dict of names and tensors is needed")
        notes = []
        inner = [k for k, v in value.items() if isinstance(v, dict) and any(map(is_tensor, v.values()))]
        if inner and not any(map(is_tensor, value.values())):
            if len(inner) > 1:
                raise zipped.refusal(f"holds {len(inner)} state dicts: {shown(inner)}", "save one of them")
            notes.append(f"{path.name}: the tensors are those of {shown(inner[0])}")
            value = value[inner[0]]
        tensors = {}
        for name, made in value.items():
            if is_tensor(made):
                if type(name) is not str:
                    raise zipped.refusal("has a tensor whose name is no text")
                tensors[name] = tensor(name, made, found, zipped)
        return tensors, notes + no_tensors(path.name, [str(k) for k in value if k not in tensors])


def read_pth(path: Path) -> dict[str, Stored]:
    """The tensors of a torch zip file by name, from its headers alone. Raises CheckpointError."""
    return contents(path)[0]


# -- writing -----------------------------------------------------------------------------------


def lay_out_pth(
    path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]], shared: Mapping[str, str] | None = None
) -> dict[str, int]:
    """Create the file of a state dict with holes in place of data; returns the offset of each tensor's bytes.

    tensors: name → dtype and shape, in the order of the dict. shared: name → the name of the tensor that has
    the same storage (a tied head). Equal input gives equal bytes. Call `seal` when the data is in place.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    kinds = {name: getattr(torch, full.removeprefix("torch.")) for full, name in DTYPES.items()}
    shared = shared or {}
    # Fake tensors have shapes and no memory, and skip_data leaves holes in their place: a sparse file of
    # any size in no time.
    with FakeTensorMode():
        state = {n: torch.empty(shape, dtype=kinds[d]) for n, (d, shape) in tensors.items()}
    state |= {name: state[owner] for name, owner in shared.items()}
    # Save to a stream, because torch stores the name of a path in the file.
    with torch.serialization.skip_data(materialize_fake_tensors=True), path.open("wb") as out:
        torch.save(state, out)
    return {name: stored.boxes[0].offset for name, stored in read_pth(path).items()}


def seal(path: Path, crcs: Mapping[str, int]) -> None:
    """Write the CRC-32 of each tensor's bytes into a file from `lay_out_pth` that now contains its data.

    crcs: one for every tensor; a tensor that shares the storage of another may be left out.
    """
    places = {name: stored.boxes[0].offset for name, stored in read_pth(path).items() if stored.nbytes}
    known = {places[name]: crc for name, crc in crcs.items() if name in places}
    with window(path) as zipped:
        by_place = {record.data: record for record in records(zipped).values() if record.size}
    with path.open("r+b") as out:
        for name, place in places.items():
            if place not in known:
                raise CheckpointError(f"{path}: no checksum is given for {shown(name)}")
            record = by_place[place]
            # A streamed record has its checksum behind the data, any other in its header in front of it
            # (zip's APPNOTE, 4.3).
            before_or_behind = place + record.size + 4 if record.streamed else record.header + 14
            # The checksum stands twice: in the directory, and beside the data.
            for at in (record.entry + 16, before_or_behind):
                out.seek(at)
                out.write(struct.pack("<L", known[place]))


def confirmed(path: Path, tensors: Iterable[Stored]) -> list[str]:
    """Differences between `read_pth` and `torch.load` (weights_only, mapped) of the same file; empty if they
    agree.

    Compares names, dtypes, shapes and the bytes of the first and last row.
    """
    import torch

    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, pickle.UnpicklingError, ValueError, EOFError) as problem:
        first_line = str(problem).splitlines()[0][:200]
        return [f"{path.name}: torch.load(weights_only=True) refuses it: {first_line}"]
    inner = [value for value in state.values() if isinstance(value, dict)]
    for entries in inner:  # Unwrap {"model": {…}}, as `contents` does.
        state = {**entries, **state}
    found = []
    for stored in tensors:
        loaded = state.get(stored.name)
        known = isinstance(loaded, torch.Tensor)
        if not known or (DTYPES.get(str(loaded.dtype)), tuple(loaded.shape)) != (stored.dtype, stored.shape):
            found.append(f"{path.name}: torch.load reads {stored.name} otherwise")
        elif stored.nbytes:
            rows = loaded.detach().reshape(stored.rows, -1).view(torch.uint8).numpy()
            ends = (0, stored.rows - 1)
            if any(not np.array_equal(rows[i : i + 1], stored.read(i, i + 1)) for i in ends):
                found.append(f"{path.name}: torch.load finds other bytes in {stored.name}")
    return found
