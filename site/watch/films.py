"""Recordings for the page: films that torch made while the page was built, each found by what was run.

    python site/watch/films.py FOLDER CACHE     # and "first" for the film that the page opens with alone

The page has no backward and no pipeline of its own; where there is a recording, it shows both. `index.json`
names the recordings; each is fetched when it is shown.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import llamapar
from llamapar.describe.options import Values
from llamapar.panels.watch_state import WATCHED, WatchState, known_programs, usual
from llamapar.records.tables import Plain

FOLDER = "LLAMAPAR_FILMS"
"""Of the environment: where recordings lie while the page is built and tested."""

FIRST = {"tp": 2, "cp": 2, "pp": 1, "dp": 1}
"""The layout that the page opens with; every program is recorded in it."""

DEGREES = {"tp": (1, 2, 4), "cp": (1, 2)}
OF_STAGES = {"tp": (1, 2), "cp": (1, 2), "pp": (1, 2, 4)}
"""What is recorded of programs that the page runs, and of those that it does not."""


MOST_RANKS = 4
"""In a recording of stages that is none of a fault: those of eight ranks were a third of all bytes."""


def name_of(state: WatchState, fault: str) -> str:
    """The file of a recording: by program, model, data, layout, options and fault."""
    return f"{hashlib.sha256(state.key(fault, '').encode()).hexdigest()[:20]}.json.gz"


def read(name: str) -> bytes:
    return (Path(os.environ[FOLDER]) / name).read_bytes()


class Films:
    """Recordings as they are shown. read: a file's name → its bytes."""

    def __init__(self, read: Callable[[str], bytes]) -> None:
        self._read = read
        self.names = frozenset(json.loads(read("index.json")))

    def of(self, state: WatchState, fault: str) -> Plain | None:
        """The film of a state with its own source, or None where there is no recording."""
        name = name_of(state, fault)
        if name not in self.names:
            return None
        film: Plain = json.loads(gzip.decompress(self._read(name)))
        return film


def first_values() -> Values:
    """What the page opens with."""
    return {**usual(), **FIRST, "program": WATCHED[0]}


def states() -> Iterator[WatchState]:
    """All that is recorded: each program, each of its faults, and beside that the same layout without it."""
    from llamapar.programs.cases import BREAK, CASES

    programs = {name: known_programs()[name] for name in WATCHED}
    first = WatchState(programs, first_values(), first_values())
    yield first
    for program in WATCHED:
        degrees = DEGREES if programs[program].stage is None else OF_STAGES
        values = {**first.values, "program": program}
        for sizes in itertools.product(*degrees.values()):
            own = values | dict(zip(degrees, sizes, strict=True))
            if programs[program].stage is None or own["tp"] * own["cp"] * own["pp"] <= MOST_RANKS:
                yield replace(first, values=own)
        faults = [name for name, case in CASES.items() if case.group == BREAK and case.program == program]
        for fault in faults:
            broken = replace(first, values=values, clean=values).change({"case": fault})
            yield broken
            if programs[program].stage is not None:  # else the page runs it
                yield replace(broken, values={**broken.values, "case": ""})


def write(folder: Path, shown: Iterable[WatchState]) -> None:
    """Record states with torch: a file each, and the index of all."""
    names = set()
    for state in shown:
        fault = state.broken[0]
        text = json.dumps(state.shoot(fault, ""), separators=(",", ":"))
        names.add(name_of(state, fault))
        (folder / name_of(state, fault)).write_bytes(gzip.compress(text.encode(), mtime=0))
    (folder / "index.json").write_text(json.dumps(sorted(names)))


LIBRARY = Path(llamapar.__file__).parent
SOURCES = ("describe", "execution", "place", "programs", "records", "spmd")
"""Parts of the library that a recording depends on, beside what makes a film."""


def cached(cache: Path, only_first: bool) -> Path:
    """A folder with the recordings that this library makes; made where it is not there yet."""
    sources = [path for name in SOURCES for path in sorted((LIBRARY / name).rglob("*.py"))]
    sources += [LIBRARY / "panels" / name for name in ("film.py", "watch_state.py")]
    whole = hashlib.sha256(b"".join(path.read_bytes() for path in (*sources, Path(__file__)))).hexdigest()
    folder = cache / f"{whole[:16]}{'-first' * only_first}"
    if not (folder / "index.json").is_file():  # which is written last
        folder.mkdir(parents=True, exist_ok=True)
        write(folder, itertools.islice(states(), 1 if only_first else None))
    return folder


if __name__ == "__main__":
    shutil.copytree(cached(Path(sys.argv[2]), sys.argv[3:] == ["first"]), sys.argv[1])
