"""How much of real settings files is read right: fields right, confidently wrong, and unknown left unknown.

    .venv/bin/python benchmarks/settings_accuracy.py [--misses] [--clones FOLDER]
    .venv/bin/python benchmarks/settings_accuracy.py --page    # writes docs/accuracy.md

Sets: the 64 files that the readers were written with, and 100 that they met once they were written. With
FOLDER, which holds a clone of each repository as OWNER/NAME, also 46 and 59 whose labels were committed
before any reader saw them, in two halves: mended with the first, never with the second.
Doubtful rows are counted apart. A field is confidently wrong when it is wrong, and neither marked unknown nor
contradicted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import _page
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


TITLES = {
    "run_configs": "files that the readers were written with",
    "run_configs (doubtful)": "more of these, which leave something to judgement",
    "run_configs_gathered": "files gathered afterwards",
}
"""Set → what the page calls it."""


def figures(rows: Sequence[Mapping[str, Any]]) -> tuple[Any, ...]:
    """Of some files: how many, their fields, and how these are read."""
    total = scored(rows)
    share = f"{total.right} ({total.right / max(1, total.fields):.1%})"
    unknown = f"{total.kept} of {total.kept + len(total.filled)}"
    return len(rows), total.fields, share, len(total.sure), unknown


def scored(rows: Iterable[Mapping[str, Any]]) -> Score:
    """The scores of some files, added up."""
    total = Score()
    for row in rows:
        total.add(score(row))
    return total


def tables() -> dict[str, list[str]]:
    """That of docs/accuracy.md."""
    head = ("set", "files", "fields", "right", "wrong without a doubt", "unknown that stay unknown")
    held = {title: rows for title, rows in _sets(None) if rows}
    return {"settings": _page.table(head, [(TITLES[title], *figures(rows)) for title, rows in held.items()])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--misses", action="store_true", help="name every field that is not right")
    parser.add_argument("--clones", type=Path, help="a folder with clones, as OWNER/NAME")
    parser.add_argument("--page", action="store_true", help="write docs/accuracy.md")
    said = parser.parse_args()
    if said.page:
        _page.write(tables())
        return
    head = f"{'set':33} {'rows':>5} {'fields':>7} {'right':>12} {'open':>5}"
    print(f"{head} {'sure, wrong':>12} {'unknown kept':>13}")
    for title, rows in _sets(said.clones):
        total = scored(rows)
        files, fields, share, wrong, unknown = figures(rows)
        print(f"{title:33} {files:>5} {fields:>7} {share:>12} {len(total.open):>5} {wrong:>12} {unknown:>13}")
        if said.misses:
            for word, misses in (("open", total.open), ("sure", total.sure), ("filled", total.filled)):
                print(*(f"  {word}: {miss}" for miss in misses), sep="\n")


if __name__ == "__main__":
    main()
