"""Verify every byte of a checkpoint: against its checksums, its own copies, or another checkpoint."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from llamapar.describe.arguments import checked_options
from llamapar.describe.models import ModelLike
from llamapar.errors import CheckpointError
from llamapar.records.tables import SHOWN, Plain, Record

from . import pth
from .atomic_write import BLOCK, crc_of, frame_of
from .inspection import reason
from .progress_line import Counter, Progress
from .rows import Output
from .source import MANIFEST, Checkpoint, Placement, opened, understood
from .stored import Stored
from .whole import expressions


@dataclass(frozen=True, repr=False)
class Verification(Record):
    """What was compared, and what is wrong. checks: (what, how many, bytes); problems: one line each."""

    _left = True

    path: Path
    checks: tuple[tuple[str, int, int], ...]
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems

    def as_dict(self) -> Plain:
        """Plain values for JSON."""
        names = ("what", "count", "bytes")
        checks = [dict(zip(names, check, strict=True)) for check in self.checks]
        return {"path": str(self.path), "ok": self.ok, "checks": checks, "problems": list(self.problems)}

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        n = len(self.problems)
        state = f"has {n} fault{'s' * (n > 1)}" if n else "is in order"
        rows: list[list[object]] = [[what, f"{n:,}", f"{size:,}"] for what, n, size in self.checks]
        lines = [*self.problems[:SHOWN], *([f"… and {n - SHOWN} more"] if n > SHOWN else [])]
        return f"{self.path.name} {state}", ["compared", "count", "bytes"], rows, "\n".join(lines)


@checked_options
def verify(
    path: str | Path,
    *,
    against: str | Path | None = None,
    model: ModelLike | None = None,
    progress: Progress | bool = False,
) -> Verification:
    """Read every byte of a checkpoint, and report each byte that disagrees with a second source.

    Shapes are compared with the config. Bytes are compared with the checksums in the manifest or in a .pth
    file (a plain safetensors file has none: only another checkpoint can confirm its bytes). Tensors
    replicated on several ranks are compared with one another. With `against`, another checkpoint of the same
    model in any format and sharding, every parameter is compared bit for bit, in this checkpoint's names and
    order. progress: as in `gather`.

    Raises CheckpointError for a checkpoint that cannot be read at all.
    """
    found = understood(opened(path, model))
    problems = list(_odd(found))
    checks = [("tensors with the model's shapes", len(list(found.checkpoint.tensors)), 0)]
    count = Counter(progress, found.checkpoint.nbytes * (1 if against is None else 2))
    numbers, faults = _checksums(found.checkpoint, count)
    checks.append(("stored checksums", *numbers))
    problems += faults
    # A second reader, torch's own, has to find the same tensors: the witness for ours.
    if files := [file for file in found.checkpoint.files if file.suffix in pth.SUFFIXES]:
        tensors = list(found.checkpoint.tensors)
        for file in files:
            problems += pth.confirmed(file, [s for s in tensors if s.boxes[0].file == file])
        checks.append(("files that torch.load(weights_only=True) reads alike", len(files), 0))
    if not found.mismatches:
        alike = found if against is None else _other(found, against)
        numbers, faults = _compared(found, alike, count)
        alone = "parameters, copies of ranks alike"
        checks.append((alone if against is None else f"parameters like {against}'s", *numbers))
        problems += faults
    return Verification(Path(path), tuple(checks), tuple(problems))


def _odd(found: Placement) -> Iterator[str]:
    """A problem for every tensor with a mismatch; the reason is computed once for similar tensors."""
    reasons: dict[tuple[object, ...], str] = {}
    for odd in found.mismatches:
        alike = (odd.key, odd.got, odd.want)
        if alike not in reasons:
            reasons[alike] = reason(odd, found.sharding)
        yield f"{odd}{reasons[alike]}"


def _checksums(checkpoint: Checkpoint, count: Counter) -> tuple[tuple[int, int], list[str]]:
    """((checksums compared, their bytes), the problems found)."""
    number = size = 0
    problems = []
    for stored in checkpoint.tensors:
        for box in stored.boxes:
            if box.crc32 is None:
                continue
            nbytes = stored.bytes_of(box)
            number, size = number + 1, size + nbytes
            if crc_of(box.file, box.offset, nbytes) != box.crc32:
                problems.append(stored.damage(box))
            count(nbytes)
    if checkpoint.manifest is not None:
        spans: dict[str, set[tuple[int, int]]] = {}
        for tensor in checkpoint.tensors:
            # A set, because a tied head and the embedding are one span under two names.
            spans.setdefault(tensor.file, set()).add((tensor.boxes[0].offset, tensor.nbytes))
        for name, entry in checkpoint.manifest["files"].items():
            number += 1
            if frame_of(checkpoint.path / name, sorted(spans.get(name, ()))) != entry.get("frame"):
                problems.append(f"{name}: its header is not as it was written")
        for name, crc in checkpoint.manifest.get("others", {}).items():
            number += 1
            file = checkpoint.path / Path(name).name
            if not file.is_file() or zlib.crc32(file.read_bytes()) != crc:
                problems.append(f"{name} is missing or not as it was written, {MANIFEST} says")
    return (number, size), problems


def _other(found: Placement, against: str | Path) -> Placement:
    """The other checkpoint, which must be of the same model."""
    made = opened(against)
    other = understood(made if made.model else opened(against, found.sharding.model))
    if other.mismatches:
        raise CheckpointError(f"{against} is not {other.sharding.model.name}: {other.mismatches[0]}")
    return other


def _compared(found: Placement, source: Placement, count: Counter) -> tuple[tuple[int, int], list[str]]:
    """Compare every stored tensor with the tensor that `source` gives for it."""
    number = size = 0
    problems = []
    for (stage, rank), name, expected in expressions(source, found.sharding):
        parameter = found.sharding.tensors[stage][name]
        # Without `against` a checkpoint is compared with what its own first copies give; a tensor that is
        # this copy itself has nothing to be compared with.
        for holder, stored in found.by_parameter[parameter.name]:
            if holder != rank or expected.rows.sources == (stored,):
                continue  # This tensor has no counterpart.
            number, size = number + 1, size + stored.nbytes
            try:
                if fault := _difference(stored, expected):
                    problems.append(f"{stored.file}: {stored.name} {fault}")
            except CheckpointError as problem:  # The copies differ. Report this once, not once for each copy.
                problems += [problem.what] if problem.what not in problems else []
            count(stored.nbytes)
    return (number, size), problems


def _difference(stored: Stored, expected: Output) -> str:
    """The first difference of a stored tensor; empty if there is none."""
    if stored.dtype != expected.dtype:
        return f"is {stored.dtype}, not {expected.dtype}"
    for low, high in expected.rows.spans(BLOCK):
        own, others = stored.read(low, high), expected.rows.read(low, high)
        if not np.array_equal(own, others):
            row = low + int(np.flatnonzero((own != others).any(axis=1))[0])
            return f"differs from row {row} on"
    return ""
