"""safetensors files: headers read without trusting them, and written.

A file is eight bytes with the header's length, a JSON object {name: {"dtype", "shape", "data_offsets"}}, then
the data without a hole (huggingface/safetensors, README, "Format"). A header is accepted only if it agrees
with the file's size.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

from llamapar.describe.dtypes import STORED_BYTES
from llamapar.errors import CheckpointError
from llamapar.records.tables import Plain

from .stored import Stored, StoredPiece, checked, json_object

MAX_HEADER = 2**25
"""Longest header that is read; that of a whole 405B model has 150 KB."""

INDEX = "model.safetensors.index.json"
MAX_INDEX = 2**26


def read_safetensors(path: Path) -> dict[str, Stored]:
    """The tensors of a file by name, from its header alone. Raises CheckpointError."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
        if not 2 <= length <= min(MAX_HEADER, size - 8):
            what = f"{path.name} is no safetensors file, or is cut short"
            why = "its first eight bytes give the length of its header"
            raise CheckpointError(f"{what}: a header of {length} bytes in a file of {size}", why)
        raw = file.read(length)
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as problem:
        raise CheckpointError(f"{path.name}: the header is no JSON: {str(problem)[:200]}") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{path.name}: the header is no JSON object")
    # The one key that is no tensor; it holds texts, which nothing here needs.
    header.pop("__metadata__", None)
    found = {name: _entry(path, name, entry, 8 + length) for name, entry in header.items()}
    end = 8 + length
    # Empty tensors share an offset with the next one, so they sort before it by their size.
    for stored in sorted(found.values(), key=lambda s: (s.boxes[0].offset, s.nbytes)):
        if stored.boxes[0].offset != end:
            what = f"{path.name}: {stored.name} begins at byte {stored.boxes[0].offset}"
            why = "tensors lie one after the other without hole or overlap"
            raise CheckpointError(f"{what}, and the tensor before it ends at {end}", why)
        end += stored.nbytes
    if end != size:
        change = "it was cut short" if size < end else "something was added to it"
        what = f"{path.name} has {size:,} bytes, and its header describes {end:,}"
        raise CheckpointError(what, f"{change} after it was written")
    return found


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found


def _entry(path: Path, name: str, entry: object, base: int) -> Stored:
    if not isinstance(entry, dict) or not isinstance(dtype := entry.get("dtype"), str):
        raise CheckpointError(f"{path.name}: {name[:100]} has no dtype")
    shape = checked(name[:100], dtype, entry.get("shape"), path.name)
    nbytes = math.prod(shape) * STORED_BYTES[dtype]
    match entry.get("data_offsets"):
        case [int(first), int(last)] if last - first == nbytes and first >= 0:
            return Stored(name, dtype, shape, (StoredPiece(path, base + first, (0,) * len(shape), shape),))
    what = f"{path.name}: {name[:100]} says data_offsets {str(entry.get('data_offsets'))[:60]}"
    raise CheckpointError(what, f"{dtype} {list(shape)} takes {nbytes} bytes")


def read_index(path: Path) -> dict[str, Stored]:
    """The tensors of an indexed checkpoint. Raises CheckpointError for a missing file or tensor."""
    weight_map = json_object(path, MAX_INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path.name} has no weight_map")
    # A value that is no text cannot be a key of the dict below; file_inside refuses it with the right
    # words.
    for name in weight_map.values():
        if not isinstance(name, str):
            file_inside(path.parent, name, path.name)
    files = {name: file_inside(path.parent, name, path.name) for name in dict.fromkeys(weight_map.values())}
    present = {name: read_safetensors(file) for name, file in files.items()}
    found: dict[str, Stored] = {}
    for tensor, name in weight_map.items():
        if tensor not in present[name]:
            raise CheckpointError(f"{path.name} says that {name} holds {tensor[:100]}, and it does not")
        found[tensor] = present[name][tensor]
    for name, tensors in present.items():
        for tensor in tensors:
            if weight_map.get(tensor) != name:
                where = f"and in {weight_map[tensor]}" if tensor in weight_map else "and not in the index"
                raise CheckpointError(f"{tensor[:100]} stands in {name} {where}")
    return found


def file_inside(folder: Path, name: object, where: str) -> Path:
    """The file `name` of the folder. Raises CheckpointError if the path leaves the folder or is no file."""
    if not isinstance(name, str) or name in ("", ".", "..") or Path(name).name != name or "\0" in name:
        why = "a checkpoint's files lie in its own folder"
        raise CheckpointError(f"{where} names the file {str(name)[:100]!r}", why)
    if not (folder / name).is_file():
        raise CheckpointError(f"{name}, named in {where}, is missing", f"it is looked for in {folder}")
    return folder / name


def lay_out_safetensors(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, int]:
    """Write the header for these (dtype, shape), give the file its full size, and return name → offset of the
    data.
    """
    places: dict[str, Plain] = {}
    end = 0
    # Widest dtypes first, so that every tensor starts at a multiple of its own item, as safetensors
    # itself writes them.
    aligned = sorted(tensors.items(), key=lambda entry: -STORED_BYTES[entry[1][0]])
    for name, (dtype, shape) in aligned:
        size = math.prod(shape) * STORED_BYTES[dtype]
        places[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps({"__metadata__": {"format": "pt"}, **places}, separators=(",", ":")).encode()
    # Blanks are allowed at a header's end, and data then starts at a multiple of eight bytes.
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return {name: 8 + len(text) + place["data_offsets"][0] for name, place in places.items()}


def index(files: Mapping[str, Iterable[str]], total: int) -> Plain:
    """The object of an index.json."""
    weight_map = {tensor: name for name, tensors in files.items() for tensor in tensors}
    return {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
