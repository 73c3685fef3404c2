"""safetensors files: headers read by the `safetensors` package, files laid out, and indexes of several.

The package accepts a header only if the tensors fill the file without hole or overlap. Files are laid out
here: the package writes tensors that all lie in memory, and these are put into place one by one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open

from llamapar.describe.dtypes import STORED_BYTES
from llamapar.errors import CheckpointError, shown
from llamapar.records.tables import Plain

from .stored import Stored, checked, json_object

INDEX = "model.safetensors.index.json"
MAX_INDEX = 2**26


def read_safetensors(path: Path) -> dict[str, Stored]:
    """The tensors of a file by name, from its header alone. Raises CheckpointError."""
    found = dict[str, Stored]()
    try:
        with path.open("rb") as start, safe_open(path, framework="np") as file:
            end = 8 + int.from_bytes(start.read(8), "little")
            # safetensors has made sure that the tensors lie one after the other, without hole or overlap.
            for name in file.offset_keys():
                header = file.get_slice(name)
                dtype = header.get_dtype()
                shape = checked(f"{path.name}: {name[:100]}", dtype, header.get_shape())
                found[name] = Stored(name, dtype, shape, path, end)
                end += found[name].nbytes
    except (SafetensorError, OSError) as problem:
        what = f"{path.name}: safetensors refuses it: {str(problem)[:200]}"
        why = "it is no safetensors file, it was cut short, or something was added to it"
        raise CheckpointError(what, why) from None
    return found


def read_index(path: Path) -> dict[str, Stored]:
    """The tensors of an indexed checkpoint. Raises CheckpointError for a missing file or tensor."""
    weight_map = json_object(path, MAX_INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path.name} has no weight_map")
    listed = {(tensor, str(name)) for tensor, name in weight_map.items()}
    files = {name: file_inside(path.parent, name, path.name) for name in sorted({n for _, n in listed})}
    present = {name: read_safetensors(file) for name, file in files.items()}
    there = {(tensor, name) for name, tensors in present.items() for tensor in tensors}
    for tensor, name in sorted(listed ^ there):
        where = "not in the index"
        if (tensor, name) in listed:
            where = "not in the file"
        raise CheckpointError(f"{path.name}: {tensor[:100]} of {name} is {where}")
    return {tensor: present[name][tensor] for tensor, name in weight_map.items()}


def file_inside(folder: Path, name: str, where: str) -> Path:
    """The file `name` of the folder. Raises CheckpointError if the path leaves the folder or is no file."""
    if Path(name).name != name or not (folder / name).is_file():
        why = f"a checkpoint's files lie in its own folder, {folder}"
        raise CheckpointError(f"{where} names the file {shown(name)}, which is not there", why)
    return folder / name


def lay_out_safetensors(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
    """Write the header for these (dtype, shape), and give the file its full size."""
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
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def index(files: Mapping[str, Iterable[str]], total: int) -> Plain:
    """The object of an index.json."""
    weight_map = {tensor: name for name, tensors in files.items() for tensor in tensors}
    return {"metadata": {"total_size": total}, "weight_map": weight_map}
