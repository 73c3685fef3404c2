"""torch.distributed.checkpoint directories, read from their metadata alone.

`.metadata` is a pickle which says where each chunk of each tensor lies. torch's reader unpickles it without
restriction; this module reads it as data (see `pickles`). A chunk is a zip file with one tensor, inside a
larger file; its header is read when its bytes are first asked for. Writing this format is left out.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from llamapar.describe import pickles
from llamapar.describe.pickles import PickledCall
from llamapar.errors import CheckpointError, shown

from .pth import DTYPES, is_tensor, loaded, opened_file, place_of, unpickled
from .stored import Stored, StoredPiece, bytes_of, checked

METADATA = ".metadata"

_PLAIN = """torch.Size torch.serialization._get_layout collections.OrderedDict builtins.getattr
    torch.distributed.checkpoint.metadata.Metadata
    torch.distributed.checkpoint.metadata.MetadataIndex
    torch.distributed.checkpoint.metadata.TensorStorageMetadata
    torch.distributed.checkpoint.metadata.BytesStorageMetadata
    torch.distributed.checkpoint.metadata.ChunkStorageMetadata
    torch.distributed.checkpoint.metadata.TensorProperties
    torch.distributed.checkpoint.metadata.StorageMeta
    torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING
    torch.distributed.checkpoint.filesystem._StorageInfo
    torch.distributed.checkpoint.filesystem._StoragePrefix
    pathlib.PosixPath pathlib.WindowsPath pathlib.PurePosixPath pathlib.Path
    pathlib._local.PosixPath pathlib._local.WindowsPath pathlib._local.PurePosixPath pathlib._local.Path"""
_NAMES = {*DTYPES, *_PLAIN.split()}
"""Names that `.metadata` may hold; none is called. getattr: an enum member, as Python 3.11.2 writes it."""


Shape = tuple[int, ...]


@dataclass(frozen=True)
class Chunk(StoredPiece):
    """A piece of a tensor as `.metadata` describes it: `length` bytes, which are a file of torch's."""

    length: int = 0
    name: str = ""
    dtype: str = ""

    @cached_property
    def located(self) -> StoredPiece:
        """The place of its bytes, from its header. Raises CheckpointError if `.metadata` says otherwise."""
        where = f"{self.file}: the chunk of {shown(self.name)} at {list(self.start)}"
        part = io.BytesIO(bytes_of(self.file, self.offset, self.length).data)
        value, records = unpickled(part, where)
        tensor = loaded(part, where)
        if not is_tensor(value) or not isinstance(tensor, Tensor):
            raise CheckpointError(f"{where} is no tensor")
        dtype, piece = place_of(self.file, where, tensor, value, records)
        if (dtype, piece.shape) != (self.dtype, self.shape):
            why = f"{METADATA} tells of {self.dtype} of shape {list(self.shape)}"
            raise CheckpointError(f"{where} is {dtype} of shape {list(piece.shape)}", why)
        return replace(piece, offset=self.offset + piece.offset, start=self.start)


@pickles.uncollected()
def read_dcp(folder: Path) -> tuple[dict[str, Stored], list[str]]:
    """The tensors of a checkpoint directory by name, and notes about its other contents; reads only metadata.

    Raises CheckpointError, with the file or tensor, for a chunk that is missing, lies outside its file or in
    a file outside the folder, and for chunks of which some are missing. A chunk that is damaged, overlaps
    another, or differs in shape or dtype from `.metadata` is refused when it is read.
    """
    where = str(folder / METADATA)
    with opened_file(folder / METADATA) as file:
        # Of a longer one the steps of its pickle are too many long before its end.
        value = pickles.load_pickle(file.read(pickles.MAX_PICKLE), _NAMES, where)
    try:
        tensors, others = _parsed(value, folder, where)
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as problem:
        why = f"{type(problem).__name__} on the way"
        raise CheckpointError(f"{where} is no metadata of a checkpoint", why) from None
    if not others:
        return tensors, []
    first = shown(", ".join(others[:4]))[1:-1]
    return tensors, [f"{METADATA}: {len(others)} entries that are no tensors: {first}"]


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


def _parsed(value: object, folder: Path, where: str) -> tuple[dict[str, Stored], list[str]]:
    """The tensors by name, and the names of entries that are no tensors."""
    top = _state(value, "Metadata")
    places = dict[tuple[str, Shape], tuple[str, int, int]]()
    for key, stored in top["storage_data"].items():
        index = _state(key, "MetadataIndex")
        info = _state(stored, "_StorageInfo")
        name = index["fqn"]
        start = index.get("offset")
        if start is None:
            continue  # This entry is no tensor.
        file = info["relative_path"]
        offset = info["offset"]
        length = info["length"]
        if type(file) is not str or type(name) is not str or not _of_numbers(start, (offset, length)):
            raise TypeError
        if info.get("transform_descriptors"):
            what = f"{where}: the chunks of {shown(name)} are transformed"
            raise CheckpointError(what, "only plain ones are read")
        places[name, start] = file, offset, length
    tensors = dict[str, Stored]()
    others = list[str]()
    ends = dict[str, int]()
    for name, described in top["state_dict_metadata"].items():
        if type(name) is not str:
            raise TypeError
        if described.name.endswith(".BytesStorageMetadata"):
            others.append(name)
            continue
        state = _state(described, "TensorStorageMetadata")
        what = f"{where}: {shown(name)}"
        properties = state["properties"].state
        named = (properties["dtype"] if isinstance(properties, dict) else properties[0]).name
        dtype = DTYPES.get(named, named)
        if not _of_numbers(state["size"]):
            raise TypeError
        shape = checked(what, dtype, state["size"])
        chunks = list[Chunk]()
        covered = 0
        for chunk in state["chunks"]:
            piece = _state(chunk, "ChunkStorageMetadata")
            start = piece["offsets"]
            size = piece["sizes"]
            if not _of_numbers(start, size):
                raise TypeError
            if any(s + n > full for s, n, full in zip(start, size, shape, strict=True)):
                why = f"at {list(start)} of shape {list(size)}"
                raise CheckpointError(f"{what} of shape {list(shape)} has a chunk outside", why)
            covered += math.prod(size)
            if 0 in size:
                continue
            if (name, start) not in places:
                raise CheckpointError(f"{what} has no data for its chunk at {list(start)}")
            file, offset, length = places[name, start]
            ends[file] = max(ends.get(file, 0), offset + length)
            chunks.append(Chunk(folder / file, offset, start, size, None, length, name, dtype))
        # That none overlaps another is seen when they are put together (`Stored.read`).
        if covered != math.prod(shape):
            why = f"shape {list(shape)} has {math.prod(shape):,}: some are missing, or overlap"
            raise CheckpointError(f"{what}: its chunks hold {covered:,} elements", why)
        tensors[name] = Stored(name, dtype, shape, tuple(chunks))
    _check_files(folder, ends, where)
    return tensors, others


# -- the files of chunks -----------------------------------------------------------------------------


def _check_files(folder: Path, ends: Mapping[str, int], where: str) -> None:
    """Raise CheckpointError for a file that is missing, outside the folder, or shorter than its chunks."""
    for name, end in ends.items():
        try:
            inside = len(name) < 256 and (folder / name).resolve().is_relative_to(folder.resolve())
        # The path can be a link to itself or contain a null byte.
        except (OSError, RuntimeError, ValueError):
            inside = False
        if not inside:
            raise CheckpointError(f"{where} names {shown(name)}, which is outside the folder")
        with opened_file(folder / name) as file:
            size = os.fstat(file.fileno()).st_size
        if end > size:
            raise CheckpointError(f"{folder / name} has {size:,} bytes", f"its last chunk ends at {end:,}")
