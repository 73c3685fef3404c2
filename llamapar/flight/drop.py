"""What a person brings of a run that hangs: flight records, logs and stacks, one file a rank or all in one.

A file is a text if its name says so or if it holds a stack, and else a record. Of a text only those lines are
kept that say where a rank stands, below a heading with the file's name, for the rank may stand in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from llamapar.describe import pickles
from llamapar.errors import LlamaparError, shown

from .dumps import LAST_NUMBER, MAX_ENTRIES, MAX_RANKS, Dump, Folder, SharedTables, dump_of
from .inert import CutOff, plain_mapping
from .log_lines import kept_lines

MAX_FILE = 2**25
"""Bytes of the largest dump that is read: 2,000 entries take one or two million, with frames ten. Of a longer
text the end is read, because a hang is there."""

_TEXT = re.compile(r"\.(log|txt|out|err)$", re.IGNORECASE)
"""Names of texts, which need no number; any other file in a folder has to end in its rank's."""


def read_dumps(path: object) -> Folder:
    """The dumps and texts in a folder, or in some files; the last number in a file's name is the rank.

    In a folder, hidden files and those without a number are skipped; the logs of torchrun's --log-dir lie in
    folders below it. A truncated or damaged dump is listed in `broken`. Raises LlamaparError for a dump of a
    rank that appears twice, for a file that is neither, and for a folder with nothing to read.
    """
    if not isinstance(path, str | Path):
        return of_bytes(map(_opened, path if isinstance(path, Iterable) else ()))
    folder = Path(path)
    try:
        inside = [folder] if folder.is_file() else [*folder.iterdir(), *folder.glob("[0-9]*/std*.log")]
        files = sorted(file for file in inside if file.is_file())
    except (OSError, ValueError) as problem:
        words = getattr(problem, "strerror", None) or "it cannot be a folder's name"
        raise LlamaparError(
            f"{shown(str(path), 200)}: {words}", "", ["a folder of dumps"], "flight"
        ) from None
    files = [
        file
        for file in files
        if file.name[0] != "." and (LAST_NUMBER.search(file.stem) or _TEXT.search(file.name))
    ]
    if not files or len(files) > MAX_RANKS:
        what = f"{shown(str(path), 200)}: {len(files):,} files that end in a rank's number"
        why = f"a dump is one file a rank, such as nccl_trace_rank_3; at most {MAX_RANKS:,} are read"
        raise LlamaparError(what, why, ["a folder of dumps"], "flight")
    return of_bytes(map(_opened, files))


def _opened(file: object) -> tuple[str, bytes]:
    path = Path(str(file))
    text = bool(_TEXT.search(path.name))
    try:
        if path.is_fifo():  # one that nobody writes to would be waited for
            raise LlamaparError(f"{shown(str(path), 200)} is a pipe", "", ["a file"], "flight")
        with path.open("rb") as opened:
            opened.seek(max(0, path.stat().st_size - MAX_FILE) if text else 0)
            data = opened.read(MAX_FILE + 1)
    except OSError as problem:
        raise LlamaparError(f"{shown(str(path), 200)}: {problem.strerror}", "", (), "flight") from None
    if len(data) > MAX_FILE and not text:
        why = f"a dump of {MAX_ENTRIES:,} entries is smaller"
        raise LlamaparError(f"{path.name}: more than {MAX_FILE:,} bytes", why, (), "flight")
    return path.name if LAST_NUMBER.search(path.stem) else f"{path.parent.name}/{path.name}", data


def of_bytes(files: Iterable[tuple[str, bytes]]) -> Folder:
    """The dumps and texts in (name, bytes) of files, as from `read_dumps`."""
    dumps, broken, names = dict[int, Dump](), dict[int, str](), dict[int, str]()
    known, lines = SharedTables(), list[str]()
    for name, data in files:
        kept = kept_lines(data, name)
        lines += kept
        if kept or _TEXT.search(name):
            continue
        number = LAST_NUMBER.search(Path(name).stem)
        if number is None:
            raise LlamaparError(f"{shown(name)}: no number of a rank in its name", "", ["rank_0"], "flight")
        rank = int(number[1])
        if rank >= MAX_RANKS:
            what = f"{shown(name)}: its name ends in {rank:,}, which is no rank"
            raise LlamaparError(what, f"at most {MAX_RANKS:,} ranks are read", ["rank_0"], "flight")
        if rank in names:
            raise LlamaparError(
                f"rank {rank} comes twice: {names[rank]} and {name}", "a rank leaves one dump", (), "flight"
            )
        names[rank] = name
        try:
            with pickles.uncollected():
                dumps[rank] = dump_of(rank, plain_mapping(data, name), name, known)
        except CutOff as problem:
            broken[rank] = str(problem)
    if not names and not lines:
        raise LlamaparError("no flight records", "", ["one file a rank"], "flight")
    return Folder(dict(sorted(dumps.items())), dict(sorted(broken.items())), lines=lines)
