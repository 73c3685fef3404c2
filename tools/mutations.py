"""Change the core on purpose, one slip at a time, and see whether its tests notice. For `make deep`.

    python tools/mutations.py                      # all of them, two at a time, as a table
    python tools/mutations.py --only copies-tiled  # one, with what pytest said
    python tools/mutations.py --into slips.md      # those that do not stand there, each written as it ends
    python tools/mutations.py --list

The slips stand in `mutations.toml`. Each is made in a copy of the checkout, where the tests that are
named beside it run with `-x`. The test that fails runs once more without the slip: where it fails then, too,
it has not noticed anything. A slip that no test notices shows a test that is missing, unless it changes
nothing at all, which `survives` then explains. A text that does not stand exactly once where it should is an
error: the code has moved on, and so must the table.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Queue

PROJECT = Path(__file__).resolve().parent.parent
TABLE = Path(__file__).with_suffix(".toml")
LIMIT = 600
"""Seconds for the tests of one slip; one that makes them hang is noticed as well."""

PYTEST = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:nbval")
"""nbval reads the schemas of notebooks first, for seconds."""

PASSED, FAILED = 0, 1
"""Exit codes of pytest; any other is a fault of the table, not an answer."""

WITNESS = """
import sys
from pathlib import Path

def pytest_collection_finish(session):
    import llamapar
    if not Path(llamapar.__file__).is_relative_to({copy!r}):
        sys.exit("the tests import " + llamapar.__file__)
"""
"""A plugin that ends pytest where the tests import another llamapar than the changed one."""


@dataclass(frozen=True)
class Mutation:
    """`old` → `new` in the package (or file) `room` under llamapar/, and the `tests` that notice it."""

    id: str
    room: str
    old: str
    new: str
    tests: str
    why: str
    survives: str = ""

    def file(self, project: Path) -> Path:
        """The file in which `old` stands. Raises ValueError unless it does so exactly once."""
        place = project / "llamapar" / self.room
        files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
        counts = {path: path.read_text().count(self.old) for path in files}
        if sum(counts.values()) != 1:
            found = ", ".join(str(path.relative_to(project)) for path, n in counts.items() if n)
            raise ValueError(
                f"{self.id}: {self.old!r} stands {sum(counts.values())} times in llamapar/{self.room}"
                f" ({found or 'nowhere'})"
            )
        return max(counts, key=counts.__getitem__)

    @property
    def arguments(self) -> list[str]:
        """What pytest is given: files, and perhaps --soak, or -k with its expression."""
        words = shlex.split(self.tests)
        at = words.index("-k") if "-k" in words else len(words)
        files = (name if name.startswith("-") else f"tests/test_{name}.py" for name in words[:at])
        return [*files, *words[at:]]


@dataclass(frozen=True)
class Outcome:
    """How the tests of a mutation ended: pytest's exit code (None past the limit), and how long it took.

    sound: whether what failed passes without the mutation.
    """

    code: int | None
    seconds: float
    output: str
    sound: bool = True

    @property
    def caught(self) -> bool:
        return self.code in (FAILED, None) and self.sound

    @property
    def by(self) -> str:
        """The test that failed; "" where none ended."""
        found = re.search(r"^(?:FAILED|ERROR) (tests/\S+?(?:\[.*?\])?)(?: - |$)", self.output, re.MULTILINE)
        return found[1] if found else ""


def read() -> list[Mutation]:
    """The table."""
    return [Mutation(**entry) for entry in tomllib.loads(TABLE.read_text())["mutation"]]


def copied(target: Path) -> Path:
    """The checkout as git knows it, changes that are not committed included, and compiled.

    What is compiled holds for a source's content, not for its time: two slips may come in one second.
    """
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=PROJECT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (PROJECT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, target / name)
    (target / "witness.py").write_text(WITNESS.format(copy=str(target)))
    compiled = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash"]
    subprocess.run([*compiled, "llamapar", "tests"], cwd=target, check=True)
    subprocess.run([*PYTEST, "--collect-only", "tests"], cwd=target, check=True, stdout=subprocess.DEVNULL)
    return target


def tested(copy: Path, arguments: list[str]) -> Outcome:
    """Run tests of the copy."""
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    began = time.monotonic()
    with subprocess.Popen(
        [*PYTEST, "-p", "witness", *arguments],
        cwd=copy,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=LIMIT)
            code: int | None = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, code = process.communicate()[0], None
    return Outcome(code, time.monotonic() - began, output)


def judged(copy: Path, mutation: Mutation) -> Outcome:
    """What the tests of a mutation say of it."""
    file = mutation.file(copy)
    source = file.read_text()
    try:
        file.write_text(source.replace(mutation.old, mutation.new))
        outcome = tested(copy, mutation.arguments)
    finally:
        file.write_text(source)
    if not outcome.caught:
        return outcome
    untouched = tested(copy, [outcome.by] if outcome.by else mutation.arguments)
    return replace(outcome, sound=untouched.code == PASSED, seconds=outcome.seconds + untouched.seconds)


def row(mutation: Mutation, outcome: Outcome) -> str:
    """A line of the table of outcomes."""
    if outcome.caught:
        word = f"caught by {outcome.by.removeprefix('tests/') or 'the time limit'}"
    elif not outcome.sound:
        word = f"{outcome.by or mutation.tests} fails without it, too"
    elif outcome.code == PASSED:
        word = f"equivalent: {mutation.survives}" if mutation.survives else "SURVIVED"
    else:
        word = f"pytest ended with {outcome.code}"
    return f"| {mutation.id} | {mutation.room} | {mutation.why} | {word} | {outcome.seconds:.0f} s |"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="ID", action="append", help="this one (may be given again)")
    parser.add_argument("--list", action="store_true", help="the table without running anything")
    parser.add_argument("--jobs", type=int, default=2, help="copies at work at once (2)")
    parser.add_argument("--into", type=Path, metavar="FILE", help="write each answer there, and try no other")
    args = parser.parse_args()
    table = read()
    if unknown := set(args.only or ()) - {m.id for m in table}:
        parser.error(f"no such mutation: {', '.join(sorted(unknown))}")
    there = args.into.read_text() if args.into and args.into.exists() else ""
    chosen = [m for m in table if (not args.only or m.id in args.only) and f"| {m.id} |" not in there]
    for mutation in chosen:
        mutation.file(PROJECT)
    if args.list:
        for m in chosen:
            print(f"{m.id}\n    {m.room}: {m.old}\n    {'→'.rjust(len(m.room) + 1)} {m.new}\n    {m.why}")
        return 0

    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        copies: Queue[Path] = Queue()
        for i in range(args.jobs):
            copies.put(copied(Path(folder).resolve() / str(i)))

        def tried(mutation: Mutation) -> tuple[Mutation, Outcome]:
            copy = copies.get()
            try:
                outcome = judged(copy, mutation)
            finally:
                copies.put(copy)
            line = row(mutation, outcome)
            print(f"{mutation.id}: {line.split('|')[4].strip()}", file=sys.stderr, flush=True)
            if args.into:
                with args.into.open("a") as file:
                    file.write(f"{line}\n")
            return mutation, outcome

        with ThreadPoolExecutor(args.jobs) as pool:
            outcomes = list(pool.map(tried, chosen))

    print("| mutation | in | what it does to a person | outcome | time |\n|---|---|---|---|---|")
    for mutation, outcome in outcomes:
        print(row(mutation, outcome))
    caught = sum(outcome.caught for _, outcome in outcomes)
    print(f"\n{caught} of {len(outcomes)} caught")
    if args.only:
        print(*(outcome.output[-3000:] for _, outcome in outcomes), sep="\n")
    odd = [m.id for m, o in outcomes if o.code not in (PASSED, FAILED, None) or o.caught == bool(m.survives)]
    return int(bool(odd))


if __name__ == "__main__":
    sys.exit(main())
