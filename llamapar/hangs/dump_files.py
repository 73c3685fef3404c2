"""The dumps of a folder: one file for each rank, whose name ends in the rank's number."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from llamapar.describe import pickles
from llamapar.errors import shown

from .dumps import MAX_ENTRIES, MAX_RANKS, Dump, SharedTables, dump_of
from .inert import CutOff, plain_mapping, refused

MAX_FILE = 2**25
"""Bytes of the largest dump that is read: 2,000 entries take one or two million, with frames ten."""

_NUMBERED = re.compile(r"(?!\.)(?!.*\.(?:log|txt|out|err)$).*?(\d{1,8})[^\d.]*(?:\.\D\w*)?", re.IGNORECASE)
"""The name of a dump, with its rank. Hidden files, and texts beside the dumps, have none."""


def read_dumps(source: str | Path | Iterable[tuple[str, bytes]]) -> tuple[dict[int, Dump], dict[int, str]]:
    """The dumps in a folder, or in (name, bytes) of files, by rank; and why a rank's dump cannot be read.

    Raises LlamaparError for a file that is no dump, for a rank that has two, and where there is none.
    """
    dumps = dict[int, Dump]()
    broken = dict[int, str]()
    names = dict[int, str]()
    known = SharedTables()
    for name, data in _opened(Path(source)) if isinstance(source, str | Path) else source:
        number = _NUMBERED.fullmatch(name)
        if number is None:
            raise refused(name, "no number of a rank in its name")
        rank = int(number[1])
        if rank >= MAX_RANKS:
            raise refused(name, f"its name ends in {rank:,}, and at most {MAX_RANKS:,} ranks are read")
        if rank in names:
            raise refused(name, f"it is of rank {rank}, and so is {names[rank]}")
        if len(data) > MAX_FILE:
            raise refused(name, f"more than {MAX_FILE:,} bytes; a dump of {MAX_ENTRIES:,} entries has fewer")
        names[rank] = name
        try:
            with pickles.uncollected():
                dumps[rank] = dump_of(plain_mapping(data, name), name, known)
        except CutOff as problem:
            broken[rank] = str(problem)
    if not names:
        raise refused("the folder", "no file's name ends in a rank's number, as nccl_trace_rank_3")
    return dict(sorted(dumps.items())), dict(sorted(broken.items()))


def _opened(folder: Path) -> Iterator[tuple[str, bytes]]:
    try:
        # A pipe is no file here; one that nobody writes to would be waited for.
        for file in sorted(file for file in folder.iterdir() if file.is_file()):
            if _NUMBERED.fullmatch(file.name):
                with file.open("rb") as opened:
                    yield file.name, opened.read(MAX_FILE + 1)
    except (OSError, ValueError) as problem:
        words = getattr(problem, "strerror", None) or "it cannot be a folder's name"
        raise refused(shown(str(folder), 200), words) from None
