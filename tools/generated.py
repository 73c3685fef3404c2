"""What the authors' tools share that write files from the code: they write what changed, or only say so."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent


def settle(about: str | None, files: Mapping[Path, str], there: Iterable[Path]) -> int:
    """Answer a tool's command line, whose only option is --check, and return the exit status.

    files: path → the text that it should have. there: the files of today; one that is not in `files` is
    removed. With --check nothing is written, and the status is 1 if something would change.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if that is needed")
    check = parser.parse_args().check
    today = {path: path.read_text(encoding="utf-8") for path in there}
    changed = sorted(path for path in files.keys() | today if files.get(path) != today.get(path))
    for path in changed:
        done = "written" if path in files else "removed"
        print(f"{path.relative_to(PROJECT)} {'would change' if check else done}")
        if check:
            continue
        if path in files:
            path.parent.mkdir(exist_ok=True)
            path.write_text(files[path], encoding="utf-8")
        else:
            path.unlink()
    return int(check and bool(changed))
