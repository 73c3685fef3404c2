"""torch.distributed.checkpoint directories, read from their headers alone.

`.metadata` is a pickle which says where each chunk of each tensor lies. torch's reader unpickles it without
restriction; this module reads it as data (see `pickled`). A chunk is a zip file with one tensor, inside a
larger file. Writing this format is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from llamapar.describe import pickles as pickled
from llamapar.describe.pickles import Name, PickledCall
from llamapar.errors import CheckpointError, shown

from .pth import DTYPES, is_tensor, no_tensors, tensor, unpickled
from .stored import Stored, StoredPiece, checked
from .zipped import Window, window

METADATA = ".metadata"

_DCP = "torch.distributed.checkpoint"
_CLASSES = "Metadata MetadataIndex TensorStorageMetadata BytesStorageMetadata ChunkStorageMetadata"
_NAMES = {
    *(f"{_DCP}.metadata.{n}" for n in _CLASSES.split()),
    *(f"{_DCP}.metadata.{n}" for n in ("TensorProperties", "StorageMeta", "_MEM_FORMAT_ENCODING")),
    *(f"{_DCP}.filesystem.{n}" for n in ("_StorageInfo", "_StoragePrefix")),
    *(f"{m}.{n}Path" for m in ("pathlib", "pathlib._local") for n in ("Posix", "Windows", "PurePosix", "")),
    *DTYPES,
    *{"torch.Size", "torch.serialization._get_layout", "collections.OrderedDict"},
    "builtins.getattr",  # an enum member, as Python 3.11.2 writes it; no name is called here
}
MAX_HEAD = 2**16
"""Bytes before the data of a chunk that the next one is compared with."""

MAX_CELLS = 2**22
"""Pieces that the chunks' borders may cut one tensor into."""


Shape = tuple[int, ...]


class Chunk(NamedTuple):
    """A piece of a tensor as `.metadata` describes it: the place of its bytes, and its corner and shape."""

    file: str
    offset: int
    length: int
    name: str
    dtype: str
    start: Shape
    shape: Shape

    def __str__(self) -> str:
        return f"the chunk of {shown(self.name)} at {list(self.start)}"


@pickled.uncollected()
def read_dcp(folder: Path) -> tuple[dict[str, Stored], list[str]]:
    """The tensors of a checkpoint directory by name, and notes about its other contents; reads only headers.

    Raises CheckpointError, with the file or tensor, for a chunk that is missing or damaged, differs in shape
    or dtype from `.metadata`, lies outside its file or in a file outside the folder, and for chunks that do
    not cover their tensor exactly once.
    """
    with window(folder / METADATA) as file:
        where = file.where
        if file.length > pickled.MAX_PICKLE:
            raise file.refusal(f"has {file.length:,} bytes", f"at most {pickled.MAX_PICKLE:,} are read")
        value = pickled.load_pickle(file.read(0, file.length), _NAMES, where)
    try:
        kinds, chunks, others = _parsed(value, where)
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as problem:
        why = f"{type(problem).__name__} on the way"
        raise CheckpointError(f"{where} is no metadata of a checkpoint", why) from None
    boxes = _boxes(folder, chunks, where)
    tensors = {
        name: Stored(name, *kind, tuple(sorted(boxes.get(name, ()), key=lambda box: box.start)))
        for name, kind in kinds.items()
    }
    return tensors, no_tensors(METADATA, others)


# -- what .metadata tells ----------------------------------------------------------------------------


def _state(value: object, name: str) -> dict[str, Any]:
    if (
        type(value) is not PickledCall
        or value.name.rpartition(".")[2] != name
        or not isinstance(value.state, dict)
    ):
        raise TypeError
    return value.state


def _of_numbers(*shapes: object) -> bool:
    """Whether each is a tuple of plain numbers. Any other tuple could take unbounded time to hash."""
    return all(type(s) is tuple and all(type(n) is int and 0 <= n < 2**60 for n in s) for s in shapes)


def _parsed(value: object, where: str) -> tuple[dict[str, tuple[str, Shape]], list[Chunk], list[str]]:
    """Dtype and shape of each tensor by name, the chunks with data, and the names of entries that are no
    tensors.
    """
    top = _state(value, "Metadata")
    places = dict(_places(top["storage_data"], where))
    kinds, chunks, others = dict[str, tuple[str, Shape]](), list[Chunk](), list[str]()
    for name, described in top["state_dict_metadata"].items():
        if type(name) is not str or type(described) is not PickledCall:
            raise TypeError
        if described.name.endswith(".BytesStorageMetadata"):
            others.append(name)
            continue
        state = _state(described, "TensorStorageMetadata")
        properties = state["properties"].state
        dtype = properties["dtype"] if isinstance(properties, dict) else properties[0]
        if type(dtype) is not Name:
            raise TypeError
        shape = checked(shown(name), DTYPES.get(dtype.name, dtype.name), state["size"], where)
        kinds[name] = DTYPES[dtype.name], shape
        for start, size in _pieces(name, shape, state["chunks"], where).items():
            if 0 in size:
                continue
            if (name, start) not in places:
                raise CheckpointError(f"{where}: {shown(name)} has no data for its chunk at {list(start)}")
            chunks.append(Chunk(*places[name, start], name, DTYPES[dtype.name], start, size))
    return kinds, chunks, others


def _places(
    storage: Mapping[object, object], where: str
) -> Iterator[tuple[tuple[str, Shape], tuple[str, int, int]]]:
    """(name of a tensor, start of a chunk) → the chunk's (file, offset, length)."""
    for key, value in storage.items():
        index, info = _state(key, "MetadataIndex"), _state(value, "_StorageInfo")
        name, start = index["fqn"], index.get("offset")
        if start is None:
            continue  # This entry is no tensor.
        file, offset, length = info["relative_path"], info["offset"], info["length"]
        if type(file) is not str or type(name) is not str or not _of_numbers(start, (offset, length)):
            raise TypeError
        if info.get("transform_descriptors"):
            what = f"{where}: the chunks of {shown(name)} are transformed"
            raise CheckpointError(what, "only plain ones are read")
        yield (name, start), (file, offset, length)


def _pieces(name: str, shape: Shape, described: Iterable[object], where: str) -> dict[Shape, Shape]:
    """Start → shape of the chunks of a tensor, which together cover the tensor."""
    pieces: dict[Shape, Shape] = {}
    for chunk in described:
        piece = _state(chunk, "ChunkStorageMetadata")
        start, size = piece["offsets"], piece["sizes"]
        if not _of_numbers(start, size) or start in pieces:
            raise CheckpointError(f"{where}: {shown(name)} has a chunk twice, or an impossible one")
        if len(start) != len(shape) or len(size) != len(shape):
            raise CheckpointError(f"{where}: {shown(name)} has a chunk of other dims than its own")
        if any(s + n > full for s, n, full in zip(start, size, shape, strict=True)):
            what = f"{where}: {shown(name)} of shape {list(shape)} has a chunk outside"
            raise CheckpointError(what, f"at {list(start)} of shape {list(size)}")
        pieces[start] = size
    _cover(shown(name), shape, pieces, where)
    return pieces


def _cover(name: str, shape: Shape, pieces: Mapping[Shape, Shape], where: str) -> None:
    """Refuse pieces that do not cover the shape exactly once."""
    # Equal sums prove nothing by themselves: one overlap may hide one hole, which the grid below finds.
    covered, full = sum(map(math.prod, pieces.values())), math.prod(shape)
    if covered != full:
        fault = "some are missing" if covered < full else "some overlap"
        what = f"{where}: the chunks of {name} hold {covered:,} elements"
        raise CheckpointError(what, f"shape {list(shape)} has {full:,}: {fault}")
    if len(pieces) < 2:
        return
    # The chunks' borders cut the tensor into cells, whose number depends on the borders and not on the
    # tensor's size.
    cuts = []
    for dim, n in enumerate(shape):
        ends = {start[dim] + size[dim] for start, size in pieces.items()}
        borders = sorted({0, n, *(start[dim] for start in pieces), *ends})
        cuts.append({border: i for i, border in enumerate(borders)})
    cells = math.prod(len(cut) - 1 for cut in cuts)
    if cells > MAX_CELLS:
        raise CheckpointError(f"{where}: the chunks of {name} cut it into {cells:,} pieces")
    seen = np.zeros([len(cut) - 1 for cut in cuts], bool)
    for start, size in pieces.items():
        part = tuple(slice(cut[s], cut[s + n]) for cut, s, n in zip(cuts, start, size, strict=True))
        if seen[part].any():
            why = f"it is of shape {list(size)}; as many elements are missing elsewhere"
            raise CheckpointError(f"{where}: the chunk of {name} at {list(start)} overlaps another", why)
        seen[part] = True


# -- the files of chunks -----------------------------------------------------------------------------


def _boxes(folder: Path, chunks: Iterable[Chunk], where: str) -> dict[str, list[StoredPiece]]:
    """Name → the boxes of its chunks, each located in its file."""
    root, found = folder.resolve(), dict[str, list[StoredPiece]]()
    alike: dict[tuple[int, str, Shape], _Seen | None] = {}
    by_file: dict[str, list[Chunk]] = {}
    for chunk in chunks:
        by_file.setdefault(chunk.file, []).append(chunk)
    for name, of_file in by_file.items():
        try:
            inside = len(name) < 256 and (folder / name).resolve().is_relative_to(root)
        # The path can be a link to itself or contain a null byte.
        except (OSError, RuntimeError, ValueError):
            inside = False
        if not inside:
            raise CheckpointError(f"{where} names {shown(name)}, which is outside the folder")
        with window(folder / name) as file:
            # In the order of their places, so that the disk is read forwards.
            for chunk in sorted(of_file):
                if (end := chunk.offset + chunk.length) > file.length:
                    raise file.refusal(f"has {file.length:,} bytes", f"{chunk} ends at {end:,}")
                kind = chunk.length, chunk.dtype, chunk.shape
                seen = alike.get(kind)
                box = seen and seen.again(file, chunk)
                if not box:
                    box, alike[kind] = _looked_at(file, chunk)
                found.setdefault(chunk.name, []).append(box)
    return found


class _Seen(NamedTuple):
    """A chunk already read: the bytes before its data, its directory, and the places of its two checksums.

    Chunks of one shape differ only in their data, the data's checksum, a hash and the hash's checksum. So the
    next chunk is compared with the last one instead of being parsed.
    """

    head: bytes
    listed: bytes
    checksums: tuple[int, int]

    def again(self, file: Window, chunk: Chunk) -> StoredPiece | None:
        """The box of another chunk, if that chunk matches this one."""
        if file.pread(chunk.offset, len(self.head)) != self.head:
            return None
        size = len(self.listed)
        listed = bytearray(file.pread(chunk.offset + chunk.length - size, size))
        main, _ = self.checksums
        crc = int.from_bytes(listed[main : main + 4], "little")
        # The two checksums may differ; put back, all other bytes must be equal.
        for at in self.checksums:
            listed[at : at + 4] = self.listed[at : at + 4]
        if listed != self.listed:
            return None
        return StoredPiece(file.file, chunk.offset + len(self.head), chunk.start, chunk.shape, crc or None)


def _looked_at(file: Window, chunk: Chunk) -> tuple[StoredPiece, _Seen | None]:
    """The box of one chunk, and the template to compare the next chunk with."""
    zipped = Window(file.file, file.handle, chunk.offset, chunk.length, f"{file.where}: {chunk}")
    value, records = unpickled(zipped)
    if not is_tensor(value):
        raise zipped.refusal("is no tensor")
    stored = tensor(chunk.name, value, records, zipped)
    if (stored.dtype, stored.shape) != (chunk.dtype, chunk.shape):
        why = f"{METADATA} tells of {chunk.dtype} of shape {list(chunk.shape)}"
        raise zipped.refusal(f"is {stored.dtype} of shape {list(stored.shape)}", why)
    box = replace(stored.boxes[0], start=chunk.start)
    main, hashed = records.get("data/0"), records.get(".data/serialization_id")
    if not main or not hashed or stored.nbytes != main.size or main.data > MAX_HEAD:
        return box, None
    if box.offset != zipped.offset + main.data:  # Its bytes belong to another record.
        return box, None
    # Where the zip's directory begins.
    first = min(record.entry for record in records.values())
    listed = zipped.read(first, zipped.length - first)
    return box, _Seen(zipped.read(0, main.data), listed, (main.entry + 16 - first, hashed.entry + 16 - first))
