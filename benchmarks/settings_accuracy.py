"""How much of real settings files is read right: fields right, confidently wrong, and unknown left unknown.

    .venv/bin/python benchmarks/settings_accuracy.py [--misses] [--clones FOLDER]

Sets: the 71 files that the readers were written with, and 113 that they met once they were written (first
sight, 2026-11-22: 1,771 of 1,958 fields right, 20 sure and wrong, 212 of 216 unknown kept; mended since).
With FOLDER, which holds a clone of each repository as OWNER/NAME, also 46 and 59 whose labels were committed
before any reader saw them, in two halves: mended with the first, never with the second.
Doubtful rows are counted apart. A field is confidently wrong when it is wrong, and neither marked unknown nor
contradicted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from settings_cases import ORACLES, Score, cases, score, unseen


def _sets(clones: Path | None) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    for path in sorted(ORACLES.glob("run_configs*.jsonl")):
        held: list[Mapping[str, Any]] = []
        if "unseen" not in path.name:
            held = [*cases(path.name).values()]
            for doubtful in (False, True):
                title = path.stem + " (doubtful)" * doubtful
                yield title, [row for row in held if bool(row["doubtful"]) is doubtful]
        elif clones is not None:
            held = [*unseen(path.name, clones).values()]
            for half in ("first", "second"):
                yield f"{path.stem} ({half} half)", [row for row in held if row["half"] == half]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--misses", action="store_true", help="name every field that is not right")
    parser.add_argument("--clones", type=Path, help="a folder with clones, as OWNER/NAME")
    said = parser.parse_args()
    head = f"{'set':33} {'rows':>5} {'fields':>7} {'right':>12} {'open':>5}"
    print(f"{head} {'sure, wrong':>12} {'unknown kept':>13}")
    for title, rows in _sets(said.clones):
        total = Score()
        for row in rows:
            total.add(score(row))
        share = f"{total.right} ({total.right / max(1, total.fields):.1%})"
        unknown = f"{total.kept} of {total.kept + len(total.filled)}"
        print(
            f"{title:33} {len(rows):>5} {total.fields:>7} {share:>12} {len(total.open):>5} "
            f"{len(total.sure):>12} {unknown:>13}"
        )
        if said.misses:
            for word, misses in (("open", total.open), ("sure", total.sure), ("filled", total.filled)):
                print(*(f"  {word}: {miss}" for miss in misses), sep="\n")


if __name__ == "__main__":
    main()
