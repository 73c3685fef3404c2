"""torch.distributed.checkpoint directories, read by their headers.

`.metadata` is a pickle of which chunk of which tensor lies where, and torch's reader unpickles it freely;
here it is read as data (see `pickled`). A chunk is a zip file of one tensor inside a bigger file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from llamapar.describe import pickles as pickled
from llamapar.describe.pickles import Made, Name
from llamapar.errors import CheckpointError, shown

from .pth import DTYPES, is_tensor, tensor, unpickled
from .stored import Box, Stored, checked
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
}
MAX_CELLS = 2**22
"""Pieces that the chunks' borders may cut one tensor into."""


def read(folder: Path) -> tuple[dict[str, Stored], list[str]]:
    """The tensors of a checkpoint directory by name, and notes of what else is in it; reads headers only.

    Raises CheckpointError, naming the file or the tensor, for a chunk that is missing, damaged, of another
    shape or dtype than `.metadata` tells, outside its file, or in a file outside the folder, and for
    chunks that do not cover their tensor exactly once.
    """
    with pickled.uncollected():
        return _read(folder)


def _read(folder: Path) -> tuple[dict[str, Stored], list[str]]:
    with window(folder / METADATA) as file:
        if file.length > pickled.MAX_PICKLE:
            raise CheckpointError(
                f"{file.where} has {file.length:,} bytes", f"at most {pickled.MAX_PICKLE:,} are read"
            )
        where = file.where
        value = pickled.load(file.read(0, file.length), _NAMES, where)
    try:
        tensors, places, others = _parsed(value, where)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as problem:
        if isinstance(problem, CheckpointError):
            raise
        raise CheckpointError(
            f"{where} is no metadata of a checkpoint", f"{type(problem).__name__} on the way"
        ) from None
    found = _chunks(folder, tensors, places, where)
    made = {}
    for name, (dtype, shape, _) in tensors.items():
        boxes = found.get(name, ())
        _covers(shown(name), shape, boxes, where)
        made[name] = Stored(name, dtype, shape, tuple(sorted(boxes, key=lambda box: box.start)))
    names = shown(", ".join(others[:4]))[1:-1]
    notes = [f"{METADATA}: {len(others)} entries that are no tensors: {names}"] if others else []
    return made, notes


Tensor = tuple[str, tuple[int, ...], dict[tuple[int, ...], tuple[int, ...]]]
"""Dtype and shape of a tensor, and of each chunk the start and the shape."""

Place = tuple[str, int, int]
"""File, offset and length of a chunk."""


def _state(value: object, name: str) -> dict[str, Any]:
    if type(value) is not Made or value.name.rpartition(".")[2] != name or not isinstance(value.state, dict):
        raise TypeError
    return value.state


def _parsed(
    value: object, where: str
) -> tuple[dict[str, Tensor], dict[tuple[str, tuple[int, ...]], Place], list[str]]:
    """What `.metadata` tells: tensors, places of chunks by name and start, names of what is no tensor."""
    top = _state(value, "Metadata")
    places: dict[tuple[str, tuple[int, ...]], Place] = {}
    for key, value in top["storage_data"].items():
        index, info = _state(key, "MetadataIndex"), _state(value, "_StorageInfo")
        if index.get("offset") is None:
            continue  # what is no tensor
        path, offset, length, start = info["relative_path"], info["offset"], info["length"], index["offset"]
        if type(path) is not str or type(index["fqn"]) is not str or type(start) is not tuple:
            raise TypeError
        if any(type(n) is not int or not 0 <= n < 2**60 for n in (offset, length, *start)):
            raise TypeError
        if info.get("transform_descriptors"):
            raise CheckpointError(
                f"{where}: the chunks of {shown(index['fqn'])} are transformed", "only plain ones are read"
            )
        places[index["fqn"], start] = path, offset, length
    tensors: dict[str, Tensor] = {}
    others: list[str] = []
    for name, value in top["state_dict_metadata"].items():
        if type(name) is not str or type(value) is not Made:
            raise TypeError
        if value.name.endswith(".BytesStorageMetadata"):
            others.append(name)
            continue
        kept = _state(value, "TensorStorageMetadata")
        state = kept["properties"].state
        dtype = state["dtype"] if isinstance(state, dict) else state[0]
        if type(dtype) is not Name:
            raise TypeError
        shape = checked(shown(name), DTYPES.get(dtype.name, dtype.name), kept["size"], where)
        pieces = {}
        for chunk in kept["chunks"]:
            piece = _state(chunk, "ChunkStorageMetadata")
            start, size = piece["offsets"], piece["sizes"]
            if any(type(n) is not int or n < 0 for n in (*start, *size)) or start in pieces:
                raise CheckpointError(f"{where}: {shown(name)} has a chunk twice, or an impossible one")
            if len(start) != len(shape) or len(size) != len(shape):
                raise CheckpointError(f"{where}: {shown(name)} has a chunk of other dims than its own")
            if any(s + n > full for s, n, full in zip(start, size, shape, strict=True)):
                raise CheckpointError(
                    f"{where}: {shown(name)} of shape {list(shape)} has a chunk outside",
                    f"at {list(start)} of shape {list(size)}",
                )
            pieces[start] = size
        tensors[name] = DTYPES[dtype.name], shape, pieces
    return tensors, places, others


def _chunks(
    folder: Path,
    tensors: dict[str, Tensor],
    places: dict[tuple[str, tuple[int, ...]], Place],
    where: str,
) -> dict[str, list[Box]]:
    """The box of each chunk, found in its file."""
    by_file: dict[str, list[tuple[int, int, str, tuple[int, ...]]]] = {}
    for name, (_, _, pieces) in tensors.items():
        for start, size in pieces.items():
            if 0 in size:
                continue
            if (name, start) not in places:
                raise CheckpointError(f"{where}: {shown(name)} has no data for its chunk at {list(start)}")
            path, offset, length = places[name, start]
            by_file.setdefault(path, []).append((offset, length, name, start))
    root, found = folder.resolve(), dict[str, list[Box]]()
    alike: dict[Any, _Seen | None] = {}
    for path, chunks in by_file.items():
        try:
            inside = len(path) < 256 and (folder / path).resolve().is_relative_to(root)
        except (OSError, RuntimeError, ValueError):  # a link to itself, a null byte
            inside = False
        if not inside:
            raise CheckpointError(f"{where} names {shown(path)}, which is outside the folder")
        with window(folder / path) as file:
            for offset, length, name, start in sorted(chunks):
                if offset + length > file.length:
                    raise CheckpointError(
                        f"{file.where} has {file.length:,} bytes",
                        f"the chunk of {shown(name)} at {list(start)} ends at {offset + length:,}",
                    )
                dtype, _, pieces = tensors[name]
                size = pieces[start]
                seen = alike.get(key := (length, dtype, size))
                box = seen and seen.again(file, offset, length, start, size)
                if not box:
                    label = f"{file.where}: the chunk of {shown(name)} at {list(start)}"
                    zipped = Window(file.file, file.handle, offset, length, label)
                    box, alike[key] = _chunk(zipped, name, dtype, start, size)
                found.setdefault(name, []).append(box)
    return found


class _Seen(NamedTuple):
    """A chunk that was read: what precedes its data, its directory, and where in it are two checksums.

    Chunks of one shape differ in their bytes, the checksum of these, a hash and its checksum, and in
    nothing else; so the next one is compared with the last.
    """

    head: bytes
    listed: bytes
    main: int
    other: int

    def again(
        self, file: Window, offset: int, length: int, start: tuple[int, ...], size: tuple[int, ...]
    ) -> Box | None:
        """The box of another chunk, if it is like this one."""
        if file.pread(offset, len(self.head)) != self.head:
            return None
        mine, size_of = self.listed, len(self.listed)
        listed = file.pread(offset + length - size_of, size_of)
        first, second = sorted((self.main, self.other))
        for low, high in ((0, first), (first + 4, second), (second + 4, size_of)):
            if listed[low:high] != mine[low:high]:
                return None
        crc = int.from_bytes(listed[self.main : self.main + 4], "little")
        return Box(file.file, offset + len(self.head), start, size, crc or None)


def _chunk(
    zipped: Window, name: str, dtype: str, start: tuple[int, ...], size: tuple[int, ...]
) -> tuple[Box, _Seen | None]:
    """The box of one chunk, and what to compare the next with."""
    value, records = unpickled(zipped)
    if not is_tensor(value):
        raise CheckpointError(f"{zipped.where} is no tensor")
    stored = tensor(name, value, records, zipped)
    if (stored.dtype, stored.shape) != (dtype, size):
        raise CheckpointError(
            f"{zipped.where} is {stored.dtype} of shape {list(stored.shape)}",
            f"{METADATA} tells of {dtype} of shape {list(size)}",
        )
    (box,) = stored.boxes
    main, hashed, seen = records.get("data/0"), records.get(".data/serialization_id"), None
    if main and hashed and stored.nbytes == main.size and box.offset - zipped.offset == main.data <= 2**16:
        first = min(record.entry for record in records.values())
        listed = zipped.read(first, zipped.length - first)
        seen = _Seen(zipped.read(0, main.data), listed, main.entry + 16 - first, hashed.entry + 16 - first)
    return Box(box.file, box.offset, start, size, box.crc32), seen


def _covers(name: str, shape: tuple[int, ...], boxes: Sequence[Box], where: str) -> None:
    """Refuse boxes that do not cover the shape exactly once."""
    covered, full = sum(math.prod(box.shape) for box in boxes), math.prod(shape)
    if covered != full:
        raise CheckpointError(
            f"{where}: the chunks of {name} hold {covered:,} elements",
            f"shape {list(shape)} has {full:,}: {'some are missing' if covered < full else 'some overlap'}",
        )
    if len(boxes) < 2:
        return
    cuts = [
        {at: i for i, at in enumerate(sorted({0, n, *(box.start[d] for box in boxes), *ends}))}
        for d, n in enumerate(shape)
        for ends in [{box.start[d] + box.shape[d] for box in boxes}]
    ]
    cells = math.prod(len(cut) - 1 for cut in cuts)
    if cells > MAX_CELLS:
        raise CheckpointError(f"{where}: the chunks of {name} cut it into {cells:,} pieces")
    seen = np.zeros([len(cut) - 1 for cut in cuts], bool)
    for box in boxes:
        part = tuple(slice(cut[s], cut[s + n]) for cut, s, n in zip(cuts, box.start, box.shape, strict=True))
        if seen[part].any():
            raise CheckpointError(
                f"{where}: the chunk of {name} at {list(box.start)} overlaps another",
                f"it is of shape {list(box.shape)}; as many elements are missing elsewhere",
            )
        seen[part] = True
