"""Write a checkpoint so that it appears complete or not at all.

Everything goes into FOLDER.partial first. Files are laid out at full size and filled block by block; a
journal records each finished tensor with its checksum. At the end come the manifest, fsync and one rename. An
interrupted run continues where the journal ends, after it has verified the journal's entries. No existing
file is changed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from llamapar.errors import CheckpointError
from llamapar.records.tables import Plain

from . import pth, safetensors
from .progress_line import Counter, Progress
from .rows import LazyRows, Output
from .source import MANIFEST, tensors_of, with_checksum
from .stored import Bytes, Stored, StoredPiece

try:
    import fcntl
except ImportError:  # Windows has no fcntl. Checkpoints can be read there, not written.
    CAN_LOCK = False
else:
    CAN_LOCK = True

BLOCK = 2**18
"""Bytes that a worker reads and writes at once: few enough for the cache of a core (measured)."""

WORKERS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True)
class OutputFile:
    """A file of a checkpoint. shared: second names of tensors in the file."""

    name: str
    shard: tuple[int, int]
    tensors: Mapping[str, Output]
    shared: Mapping[str, str] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(output.rows.nbytes for output in self.tensors.values())


class Stopped(Exception):
    """Raised in a worker that gives up because another worker failed."""


class Sources:
    """Verifies each stored tensor with a known checksum once, before its first use."""

    def __init__(self) -> None:
        self._seen: dict[StoredPiece, threading.Event] = {}
        self._lock = threading.Lock()

    def prove(self, stored: Stored, stop: threading.Event) -> None:
        for box in stored.boxes:
            if box.crc32 is None:
                continue
            with self._lock:
                first = box not in self._seen
                done = self._seen.setdefault(box, threading.Event())
            if not first:
                while not done.wait(0.05):
                    _go_on(stop)
                continue
            if crc_of(box.file, box.offset, stored.bytes_of(box), stop) != box.crc32:
                why = f"their crc32 is not the stored {box.crc32:08x}; the file is damaged"
                raise CheckpointError(stored.damage(box), why)
            done.set()


def _go_on(stop: threading.Event) -> None:
    if stop.is_set():
        raise Stopped


def crc_of(file: Path, offset: int, nbytes: int, stop: threading.Event | None = None) -> int:
    """crc32 of a span of a file; if the file ends inside the span, of the bytes up to its end."""
    crc, left = 0, nbytes
    with file.open("rb", buffering=0) as data:
        data.seek(offset)
        while left and (block := data.read(min(BLOCK, left))):
            if stop is not None:
                _go_on(stop)
            crc, left = zlib.crc32(block, crc), left - len(block)
    return crc


# -- the journal -------------------------------------------------------------------------------------


class Journal:
    """The finished tensors, one line of JSON each. A lock lets only one process use the journal at a time.

    crcs: laid-out file → finished tensor → crc32 of its bytes.
    """

    def __init__(self, path: Path, plan: int) -> None:
        self.crcs: dict[str, dict[str, int]] = {}
        self._threads = threading.Lock()
        self._file: IO[str] = path.open("a+", encoding="utf-8", errors="replace")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise CheckpointError(f"{path.parent} is being written by another process") from None
        self._file.seek(0)
        entries = list(map(_entry, self._file.read().splitlines()))
        if any(entry.get("plan", plan) != plan for entry in entries):
            self._file.close()
            what = f"{path.parent} holds an unfinished checkpoint of another source or other options"
            choose = [f"rm -r {path.parent}", "the command that began it"]
            raise CheckpointError(what, "only the same command can go on with it", choose)
        for entry in entries:
            if "laid_out" in entry:
                self.crcs[entry["laid_out"]] = {}
            elif "tensor" in entry:
                self.crcs.setdefault(entry["file"], {})[entry["tensor"]] = entry["crc32"]
        self._note({"plan": plan})

    def laid_out(self, file: str) -> None:
        """Record that a file has its header and full size, but no tensor yet."""
        self.crcs[file] = {}
        self._note({"laid_out": file})

    def finished(self, file: str, tensor: str, crc: int) -> None:
        """Record that a tensor is written. Called from several threads."""
        with self._threads:
            self.crcs[file][tensor] = crc
            self._note({"file": file, "tensor": tensor, "crc32": crc})

    def _note(self, entry: Plain) -> None:
        self._file.write("\n" + json.dumps(entry))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


_ENTRIES = [{"plan": int}, {"laid_out": str}, {"file": str, "tensor": str, "crc32": int}]


def _entry(line: str) -> Plain:
    """The entry in a line of a journal; {} for a line that a killed run cut short (its tensor is
    rewritten).
    """
    with contextlib.suppress(ValueError, RecursionError):
        entry = json.loads(line)
        if isinstance(entry, dict) and {key: type(value) for key, value in entry.items()} in _ENTRIES:
            return entry
    return {}


# -- the run -----------------------------------------------------------------------------------------


def write_checkpoint(
    target: Path,
    files: Sequence[OutputFile],
    beside: Mapping[str, bytes],
    about: Plain,
    progress: Progress | bool = False,
) -> None:
    """Write the files, `beside` (small files by name) and the manifest to the new folder `target`.

    about: entries of the manifest besides the checksums. Raises CheckpointError if the target exists, the
    disk is too small or a source is damaged; the next run reuses the unfinished folder (see `waiting`).
    """
    if not CAN_LOCK:
        what, why = "writing a checkpoint needs Linux or macOS", "this system cannot lock what is unfinished"
        raise CheckpointError(what, why, ["inspect and verify, which only read"])
    if os.path.lexists(target):
        raise CheckpointError(f"{target} is there already", "nothing is ever overwritten", field="target")
    partial = target.with_name(target.name + ".partial")
    work = partial / "new"
    try:
        try:
            partial.mkdir(0o700, parents=True)  # The mode keeps other users from adding files to the folder.
        except FileExistsError:
            if not _ours(partial):
                what = f"{partial} is there already, and holds something else than an unfinished checkpoint"
                why = "that name is needed while the new one is made"
                raise CheckpointError(what, why, [f"another name than {target.name}"], "target") from None
        work.mkdir(exist_ok=True)
        plan = _plan(files, beside, about)
        with contextlib.closing(Journal(partial / "journal", plan)) as journal:
            _need_space(partial, files, journal)
            listed = _fill(work, files, journal, progress)
            for name, text in beside.items():
                _durable(work / name, text)
            others = {name: zlib.crc32(text) for name, text in beside.items()}
            manifest = {"llamapar": 1, **about, "files": listed, "others": others}
            _durable(work / MANIFEST, with_checksum(manifest))
            _sync(work)
            # Compare the sources with those at the start once more, before the folder gets its final name.
            if _plan(files, beside, about) != plan:
                again = f"rm -r {partial}, and the command again"
                raise CheckpointError("the source was changed while it was read", "", [again])
            os.rename(work, target)
            # A rename is durable only after its parent folder is synced; until then the journal must stay.
            _sync(target.parent)
            (partial / "journal").unlink()
        partial.rmdir()
    except OSError as problem:
        raise CheckpointError(f"{problem.filename or target}: {problem.strerror}", waiting(target)) from None


def waiting(target: Path) -> str:
    """A sentence about an unfinished checkpoint: the folder of its finished tensors; "" without any."""
    partial = target.with_name(target.name + ".partial")
    try:
        begun = (partial / "journal").read_text("utf-8", "replace")
    except OSError:
        return ""
    kept = f"what is finished waits in {partial}; the same command goes on with it"
    return kept if '"tensor"' in begun else ""


def _ours(partial: Path) -> bool:
    """Whether a folder belongs to the user and contains only the files of an unfinished run.

    A link planted there by another user would make us overwrite the link's target.
    """
    if not _own(partial, stat.S_ISDIR):
        return False
    partial.chmod(0o700)  # From here on, no other user can change the contents.
    names = {path.name for path in partial.iterdir()}
    if not names <= {"new", "journal"} or ("new" in names and not _own(partial / "new", stat.S_ISDIR)):
        return False
    files = list((partial / "new").iterdir()) if "new" in names else []
    if "journal" in names:
        return all(_own(file, stat.S_ISREG) for file in (partial / "journal", *files))
    return not files


def _own(path: Path, is_kind: Callable[[int], bool]) -> bool:
    """Whether a path has the right kind, is no link, belongs to the user and is the file's only name."""
    found = path.lstat()
    only = stat.S_ISDIR(found.st_mode) or found.st_nlink == 1
    return is_kind(found.st_mode) and found.st_uid == os.geteuid() and only


def _plan(files: Sequence[OutputFile], beside: Mapping[str, bytes], about: Plain) -> int:
    """A fingerprint of everything the result depends on: the sources as they are now, and the output made of
    them.
    """
    crc = zlib.crc32(json.dumps([about, sorted(beside)], default=str).encode())
    sources: set[Path] = set()
    for file in files:
        for name, output in file.tensors.items():
            crc = zlib.crc32(f"{file.name} {name} {output.dtype} {output.shape}".encode(), crc)
            sources |= {box.file for stored in output.rows.sources for box in stored.boxes}
    for path in sorted(sources):
        found = path.stat()
        crc = zlib.crc32(f"{path.resolve()} {found.st_size} {found.st_mtime_ns}".encode(), crc)
    return crc


def _need_space(partial: Path, files: Sequence[OutputFile], journal: Journal) -> None:
    total = 0
    for file in files:
        finished = journal.crcs.get(file.name, {})
        total += sum(out.rows.nbytes for name, out in file.tensors.items() if name not in finished)
    free = shutil.disk_usage(partial).free
    if total > free:
        what = f"{total:,} bytes are to be written, and {free:,} are free where {partial.name} lies"
        raise CheckpointError(what, "nothing has been written; the old checkpoint is as it was")


def _fill(
    work: Path, files: Sequence[OutputFile], journal: Journal, progress: Progress | bool
) -> dict[str, Plain]:
    """Fill all files and return the manifest's list of them."""
    offsets = {file.name: _laid_out(work, file, journal) for file in files}
    stop, sources = threading.Event(), Sources()
    count = Counter(progress, sum(file.nbytes for file in files))

    def fill(file: OutputFile, name: str, output: Output) -> None:
        offset = offsets[file.name][name]
        recorded = journal.crcs[file.name].get(name)
        if recorded is not None and crc_of(work / file.name, offset, output.rows.nbytes, stop) == recorded:
            count(output.rows.nbytes)
            return
        for stored in output.rows.sources:
            sources.prove(stored, stop)
        with (work / file.name).open("r+b", buffering=0) as out:
            out.seek(offset)
            crc = 0
            for block in _blocks(output.rows):
                _go_on(stop)
                data = block.data.cast("B")
                crc = zlib.crc32(data, crc)
                while data:
                    data = data[out.write(data) :]
                _begin_writeback(out.fileno(), out.tell() - block.nbytes, block.nbytes)
                count(block.nbytes)
        journal.finished(file.name, name, crc)

    with ThreadPoolExecutor(WORKERS, "llamapar-write") as pool:
        jobs = [pool.submit(fill, file, name, out) for file in files for name, out in file.tensors.items()]
        try:
            wait(jobs, return_when=FIRST_EXCEPTION)
        finally:  # An interrupt must stop the workers as well.
            if not all(job.done() for job in jobs):
                stop.set()
                pool.shutdown(cancel_futures=True)
        for problem in [job.exception() for job in jobs if job.done() and not job.cancelled()]:
            if problem is not None and not isinstance(problem, Stopped):
                raise problem
    return {file.name: _finished(work, file, offsets[file.name], journal) for file in files}


def _begin_writeback(handle: int, offset: int, nbytes: int) -> None:
    """Start the write to disk while the next block is prepared, so that fsync has little left to do."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(handle, offset, nbytes, os.POSIX_FADV_DONTNEED)


def _blocks(rows: LazyRows) -> Iterator[Bytes]:
    for low, high in rows.spans(BLOCK):
        block = rows.read(low, high)
        yield block if block.flags.c_contiguous else block.copy()


def _laid_out(work: Path, file: OutputFile, journal: Journal) -> dict[str, int]:
    """Byte offsets of the file's tensors. A file without header and full size gets them first."""
    shapes = {name: (out.dtype, out.shape) for name, out in file.tensors.items()}
    path = work / file.name
    if file.name in journal.crcs:
        with contextlib.suppress(CheckpointError, OSError):
            present = tensors_of(path)
            if {name: (s.dtype, s.shape) for name, s in present.items() if name not in file.shared} == shapes:
                return {name: present[name].boxes[0].offset for name in shapes}
    if path.suffix == ".pth":
        offsets = pth.lay_out_pth(path, shapes, file.shared)
    else:
        offsets = safetensors.lay_out_safetensors(path, shapes)
    journal.laid_out(file.name)
    return offsets


def _finished(work: Path, file: OutputFile, offsets: Mapping[str, int], journal: Journal) -> Plain:
    """Seal and sync a file, and return its manifest entry. frame: crc32 of all bytes outside the tensors'
    data.
    """
    path, found = work / file.name, journal.crcs[file.name]
    # Follow the file's order, not the order in which workers finish.
    crcs = {name: found[name] for name in file.tensors}
    if path.suffix == ".pth":
        pth.seal(path, crcs)
    crcs |= {alias: crcs[name] for alias, name in file.shared.items()}
    _sync(path)
    spans = sorted((offsets[name], out.rows.nbytes) for name, out in file.tensors.items())
    frame, nbytes = frame_of(path, spans), path.stat().st_size
    return {"bytes": nbytes, "shard": list(file.shard), "frame": frame, "tensors": crcs}


def frame_of(path: Path, spans: Sequence[tuple[int, int]]) -> int:
    """crc32 of a file's bytes outside the (offset, length) spans of its tensors."""
    crc, at = 0, 0
    with path.open("rb") as data:
        for offset, length in [*sorted(spans), (path.stat().st_size, 0)]:
            data.seek(at)
            crc = zlib.crc32(data.read(max(0, offset - at)), crc)
            at = max(at, offset + length)
    return crc


def _durable(path: Path, text: bytes) -> None:
    path.write_bytes(text)
    _sync(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
