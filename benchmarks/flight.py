"""Flight records of a large run: explained, beside the time that parsing the same files alone takes.

    python benchmarks/flight.py [--ranks 1024] [--entries 2000] [--form pickle]
    python benchmarks/flight.py --hangs [--ranks 1024] [--seed 0]

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
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import llamapar as lp
from flights import hangs, many, multiplied, spare, torchs_pickle
from llamapar.flight.verdict import standing
from test_flight import PASSED, UNSEEN, culprits


def rate(ranks: int, seed: int) -> None:
    """Right, and wrong though likely, of the hangs that can be made larger; 1 below what is promised."""
    rows = [row for row in hangs() if row["name"] not in PASSED | UNSEEN and spare(row)]
    right, wrong = 0, 0
    for row in rows:
        large, moved, _ = many(row, ranks, seed)
        found, truth = standing(large), moved if culprits(row) else set()
        right += set(found.ranks) == truth
        wrong += found.level is lp.Level.LIKELY and not set(found.ranks) <= truth
    print(f"{len(rows)} hangs on {ranks} ranks: {right} right, {wrong} wrong and likely")
    if wrong or right < 0.95 * len(rows):
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
    args = parser.parse_args()
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
