"""Verify every byte of a checkpoint: against its checksums, its own copies, or another checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

import numpy as np

from llamapar.describe.arguments import checked_options
from llamapar.describe.keywords import VerifyKeywords
from llamapar.errors import CheckpointError
from llamapar.records.tables import SHOWN, Plain, Record, plural

from .inspection import reason
from .progress_line import Counter, Progress
from .source import Placement, changed_files, opened, understood
from .stored import Bytes, Stored
from .whole import dtype_of_shards, homes, shards_of, whole_parameter


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
        state = "is in order"
        if n:
            state = f"has {plural(n, 'fault')}"
        rows: list[list[object]] = [[what, f"{n:,}", f"{size:,}"] for what, n, size in self.checks]
        lines = [*self.problems[:SHOWN]]
        if n > SHOWN:
            lines.append(f"… and {n - SHOWN} more")
        return f"{self.path.name} {state}", ["compared", "count", "bytes"], rows, "\n".join(lines)


@checked_options
def verify(
    path: str | Path,
    *,
    progress: Progress | bool = False,
    **options: Unpack[VerifyKeywords],
) -> Verification:
    """Read every byte of a checkpoint, and report each byte that disagrees with a second source.

    Shapes are compared with the config. Bytes are compared with the checksums in the manifest or in a .pth
    file (a plain safetensors file has none: only another checkpoint can confirm its bytes). Tensors
    replicated on several ranks are compared with one another. With `against`, another checkpoint of the same
    model in any format and sharding, every parameter is compared bit for bit, in this checkpoint's names and
    order. progress: as in `gather`.

    Raises CheckpointError for a checkpoint that cannot be read at all.
    """
    found = understood(opened(path, options["model"]))
    against = options["against"]
    # The reason is computed once for similar tensors.
    reasons = {(odd.key, odd.got, odd.want): odd for odd in reversed(found.mismatches)}
    said = {alike: reason(odd, found.sharding) for alike, odd in reasons.items()}
    problems = [f"{odd}{said[odd.key, odd.got, odd.want]}" for odd in found.mismatches]
    checks = [("tensors with the model's shapes", len(list(found.checkpoint.tensors)), 0)]
    if manifest := found.checkpoint.manifest:
        problems += changed_files(found.checkpoint)
        checks.append(("files with the checksums stored", len(manifest["files"]), 0))
    if not found.mismatches:
        alike = found
        if against is not None:
            made = opened(against)
            alike = understood(made if made.model else opened(against, found.sharding.model))
            if alike.mismatches:
                raise CheckpointError(f"{against} is not {alike.sharding.model.name}: {alike.mismatches[0]}")
        numbers, faults = _compared(found, alike, Counter(progress, found.checkpoint.nbytes))
        alone = "parameters, copies of ranks alike"
        checks.append((alone if against is None else f"parameters like {against}'s", *numbers))
        problems += faults
    return Verification(Path(path), tuple(checks), tuple(problems))


def _compared(found: Placement, source: Placement, count: Counter) -> tuple[tuple[int, int], list[str]]:
    """Compare every stored tensor with what `source` gives for it; with itself only copies are compared."""
    number = 0
    size = 0
    problems = list[str]()
    stored_at = homes(found.sharding)
    for parameter in source.sharding.model.parameters():
        holders = found.by_parameter[parameter.name]
        nbytes = sum(stored.nbytes for _, stored in holders)
        number += len(holders)
        size += nbytes
        try:
            if found is source:
                whole_parameter(source, parameter)
                continue
            dtype = dtype_of_shards(source, parameter)
            for (_, rank), _, expected in shards_of(source, found.sharding, parameter, stored_at):
                own = [stored for holder, stored in holders if holder == rank]
                problems += filter(None, (_difference(stored, dtype, expected) for stored in own))
        except CheckpointError as problem:
            problems.append(problem.what)
        count(nbytes)
    return (number, size), problems


def _difference(stored: Stored, dtype: str, expected: Bytes) -> str:
    """The first difference of a stored tensor, in words; empty if there is none."""
    name = f"{stored.file}: {stored.name}"
    if stored.dtype != dtype:
        return f"{name} is {stored.dtype}, not {dtype}"
    own = stored.read()
    if np.array_equal(own, expected):
        return ""
    differs = (own != expected).reshape(len(own), -1).any(axis=1)
    return f"{name} differs from row {int(np.flatnonzero(differs)[0])} on"
