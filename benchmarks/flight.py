"""Flight records of a large run: explained, beside the time that parsing the same files alone takes.

    python benchmarks/flight.py [--ranks 1024] [--entries 2000] [--form pickle]
    python benchmarks/flight.py --hangs [--ranks 1024] [--seed 0]
    python benchmarks/flight.py --page    # writes docs/measured/flight.md

The dumps have NCCL's form and are made by `multiplied`; both sides use one process. "alone" is Python's own
json or pickle over the same files, which keeps nothing. With --hangs: each genuine hang of tests/oracles on
so many ranks, by `many`, and how often the right culprit is named.
"""

import argparse
import json
import pickle
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import _page
import llamapar as lp
from flights import folder as dumps_of
from flights import hangs, many, multiplied, spare, stacked, torchs_pickle, witnesses
from llamapar.flight.drop import of_bytes
from llamapar.flight.verdict import standing
from test_flight import PASSED, UNSEEN, culprits
from watchdogs import as_log

SETS = {
    "": "faults the analysis was written with, and as many it was not",
    "again": "the same kinds, raised afterwards",
    "fresh": "other kinds of mistakes",
    "later": "kinds not met before",
}
"""Beginning of a hang's name → the set it belongs to."""


def tables(ranks: int, seed: int) -> dict[str, list[str]]:
    """Those of docs/measured/flight.md."""
    found: dict[str, list[tuple[bool, bool]]] = {}
    for row in hangs():
        said = standing(dumps_of(row))
        truth = set() if row["name"] in PASSED | UNSEEN else culprits(row)
        first, _, rest = row["name"].partition("-")
        own = first if first in SETS and "-" in rest else ""
        wrong = said.level is lp.Level.LIKELY and not set(said.ranks) <= truth
        found.setdefault(own, []).append((set(said.ranks) == truth, wrong))
    found["all"] = [both for own in found.values() for both in own]
    rows = [
        (SETS.get(name, name), len(own), sum(right for right, _ in own), sum(wrong for _, wrong in own))
        for name, own in found.items()
    ]
    rows.append((f"on {ranks:,} ranks, where a replica is without fault", *large(ranks, seed)))
    return {
        "hangs": _page.table(("hangs", "n", "right", "wrong and likely"), rows),
        "logs": _page.table(("named", "hangs"), sorted(from_logs().items())),
        "stacks": _page.table(("read from", "hangs", *ANSWERS), stack_rows()),
    }


ANSWERS = ("right and likely", "right and possible", "nobody", "wrong and possible", "wrong and likely")
KINDS = {
    "py-spy": "stacks alone, by py-spy",
    "faulthandler": "stacks alone, by faulthandler",
    "log": "the watchdog's lines alone",
    "records": "flight records alone",
    "joined": "all in one folder",
}


def stack_rows() -> list[tuple[str, int, *tuple[int, ...]]]:
    """How often whom each kind of witness names is at fault, in the hangs of make_stacks.py."""
    rows = list[tuple[str, int, *tuple[int, ...]]]()
    for kind, title in KINDS.items():
        found = Counter(answered(row, kind) for row in stacked() if witnesses(row)[kind])
        rows.append((title, found.total(), *(found[answer] for answer in ANSWERS)))
    return rows


def answered(row: dict[str, Any], kind: str) -> str:
    """One of ANSWERS."""
    try:
        told = lp.explain(flight=of_bytes(witnesses(row)[kind]))
    except lp.LlamaparError:  # a log without a line of a hang
        return "nobody"
    ranks = set(getattr(told.flight, "ranks", ()))
    level = told.best.level if told.best else ""
    return f"{'right' if ranks <= {*row['ranks']} else 'wrong'} and {level}" if ranks else "nobody"


def from_logs() -> Counter[str]:
    """How often whom the watchdog's lines alone name is at fault, and how sure the answer is."""
    found = Counter[str]()
    for row in hangs():
        told = lp.explain(as_log(dumps_of(row)))
        ranks = set(getattr(told.flight, "ranks", ()))
        truth = set() if row["name"] in PASSED | UNSEEN else culprits(row)
        level = told.best.level if told.best and ranks else ""
        found[f"{'right' if ranks <= truth else 'wrong'} and {level}" if ranks else "nobody"] += 1
    return found


def large(ranks: int, seed: int) -> tuple[int, int, int]:
    """How many hangs can be made larger; of these right, and wrong though likely."""
    rows = [row for row in hangs() if row["name"] not in PASSED | UNSEEN and spare(row)]
    right, wrong = 0, 0
    for row in rows:
        large, moved, _ = many(row, ranks, seed)
        found, truth = standing(large), moved if culprits(row) else set()
        right += set(found.ranks) == truth
        wrong += found.level is lp.Level.LIKELY and not set(found.ranks) <= truth
    return len(rows), right, wrong


def rate(ranks: int, seed: int) -> None:
    """Print them; 1 below what is promised."""
    n, right, wrong = large(ranks, seed)
    print(f"{n} hangs on {ranks} ranks: {right} right, {wrong} wrong and likely")
    if wrong or right < 0.95 * n:
        raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--form", choices=("json", "pickle"), default="json")
    parser.add_argument("--hangs", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page", action="store_true", help="write docs/measured/flight.md")
    args = parser.parse_args()
    if args.page:
        _page.write(__file__, tables(args.ranks, args.seed))
        return
    if args.hangs:
        rate(args.ranks, args.seed)
        return
    with tempfile.TemporaryDirectory() as folder:
        for rank, dump in multiplied(args.ranks, args.entries, culprit=args.ranks // 3):
            data = json.dumps(dump).encode() if args.form == "json" else torchs_pickle(dump)
            Path(folder, f"rank_{rank}").write_bytes(data)
        files = sorted(Path(folder).iterdir())
        read = json.loads if args.form == "json" else pickle.loads
        for file in files:
            file.read_bytes()
        start = time.perf_counter()
        for file in files:
            read(file.read_bytes())
        alone = time.perf_counter() - start
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.perf_counter()
        found = lp.explain(flight=folder)
        took = time.perf_counter() - start
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{args.ranks} dumps of {args.entries} entries, {args.form}: alone {alone:.1f} s, ", end="")
    print(f"explained {took:.1f} s, {took / alone:.2f} times")
    print(f"at most {most / 2**20:.2f} GiB, {before / 2**20:.2f} before")
    print(found.best)
    if getattr(found.flight, "ranks", ()) != (args.ranks // 3,):
        raise SystemExit("another rank was named")


if __name__ == "__main__":
    main()
