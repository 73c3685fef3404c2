"""Write a checkpoint so that it appears complete or not at all.

Everything goes into a temporary folder beside the target first. Files are laid out at full size and filled
tensor by tensor; each is read back and compared with its source. At the end come the manifest, fsync and one
rename. No existing file is changed. A run that is interrupted leaves nothing, and starts over.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from llamapar.describe.dtypes import STORED_BYTES
from llamapar.errors import CheckpointError
from llamapar.records.tables import Plain

from . import pth, safetensors
from .progress_line import Counter, Progress
from .source import MANIFEST, checksums, crc_of, tensors_of
from .stored import Bytes, Stored


@dataclass(frozen=True)
class OutputFile:
    """A file of a checkpoint. tensors: name → (dtype, shape); shared: second names of tensors in it."""

    name: str
    shard: tuple[int, int]
    tensors: Mapping[str, tuple[str, tuple[int, ...]]]
    shared: Mapping[str, str] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(math.prod(shape) * STORED_BYTES[dtype] for dtype, shape in self.tensors.values())


Values = Iterable[tuple[tuple[int, int], str, Bytes]]
"""(stage, tp rank), name and bytes of each tensor to be written."""


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to be filled, which becomes `target` at the end of the block; after an error it is gone.

    Raises CheckpointError if the target exists, and for errors of the disk.
    """
    _refuse_existing(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Made anew under a name of its own, and open to nobody else: no planted link is followed.
        temporary = Path(tempfile.mkdtemp(".partial", f"{target.name}.", target.parent))
        try:
            work = temporary / "new"  # With the usual mode, because this is what is renamed.
            work.mkdir()
            yield work
            for path in (*work.rglob("*"), work):
                _sync(path)
            _refuse_existing(target)
            os.rename(work, target)
            _sync(target.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as problem:
        raise CheckpointError(f"{problem.filename or target}: {problem.strerror}") from None


def write_checkpoint(
    target: Path,
    files: Sequence[OutputFile],
    values: Values,
    beside: Mapping[str, bytes],
    sharding: Plain,
    sources: Sequence[Path],
    progress: Progress | bool,
) -> None:
    """Write the files, `beside` (small files by name) and the manifest to the new folder `target`.

    sources: files that `values` reads. Raises CheckpointError if the target exists, the disk is too small, or
    a source is damaged or changes meanwhile.
    """
    with new_folder(target) as work:
        total = sum(file.nbytes for file in files)
        free = shutil.disk_usage(work).free
        if total > free:
            what = f"{total:,} bytes are to be written, and {free:,} are free where it goes"
            raise CheckpointError(what, "nothing has been written; the old checkpoint is as it was")
        before = _states(sources)
        _fill(work, files, values, progress)
        for name, text in beside.items():
            (work / name).write_bytes(text)
        manifest = {"llamapar": 1, "sharding": sharding, "files": checksums(sorted(work.iterdir()))}
        (work / MANIFEST).write_bytes(json.dumps({**manifest, "crc32": crc_of(manifest)}).encode())
        if _states(sources) != before:
            raise CheckpointError("the source was changed while it was read", "", ["the command again"])


def _refuse_existing(target: Path) -> None:
    if os.path.lexists(target):
        raise CheckpointError(f"{target} is there already", "nothing is ever overwritten", field="target")


def _states(sources: Sequence[Path]) -> list[tuple[int, int]]:
    """Size and time of each source file."""
    return [(found.st_size, found.st_mtime_ns) for found in map(os.stat, sources)]


def _fill(work: Path, files: Sequence[OutputFile], values: Values, progress: Progress | bool) -> None:
    count = Counter(progress, sum(file.nbytes for file in files))
    # By shard and name. The second name of a shared tensor is in no file's list.
    places: dict[tuple[tuple[int, int], str], Stored] = {}
    for file in files:
        # A file of full size with holes in place of data; its tensors, as its own reader finds them.
        path = work / file.name
        if path.suffix == ".pth":
            pth.lay_out_pth(path, file.tensors, file.shared)
        else:
            safetensors.lay_out_safetensors(path, file.tensors)
        laid_out = tensors_of(path)
        places |= {(file.shard, name): laid_out[name] for name in file.tensors}
    for at, name, data in values:
        if place := places.get((at, name)):
            _write(place, data)
            count(data.nbytes)


def _write(stored: Stored, data: Bytes) -> None:
    """Write a tensor to its place in a laid-out file, and read it back."""
    left = np.ascontiguousarray(data).reshape(-1).data
    with stored.path.open("r+b", buffering=0) as out:
        out.seek(stored.offset)
        while left:
            left = left[out.write(left) :]
    if not np.array_equal(stored.read(), data):
        what = f"{stored.file}: {stored.name} is not what was written, read back from the disk"
        raise CheckpointError(what, "the disk or its driver is faulty; the old checkpoint is as it was")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
