"""How often `lp.explain` finds the cause: accuracy on cases in the form of tests/oracles/error-cases.jsonl.

    .venv/bin/python benchmarks/explain_accuracy.py [FILE.jsonl] [--half even|odd]

A case holds message, context, category, subtype, parallel_caused, self_explaining and diagnosable_from.
Each is asked twice, with the message alone and with its context. Printed are how often its category comes
first (top-1: strict and fair) and among the first three (top-3), the mean reciprocal rank (MRR) and, of the
look-alikes, how many were not called "sharding".

strict: the category itself must come first. fair: a case that says of itself that its text cannot decide
(diagnosable_from other than "text") is also right without its context when the answer is "unknown" or has
the category among the first three, and names what is missing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import llamapar as lp  # noqa: E402

CASES = ROOT / "tests" / "oracles" / "error-cases.jsonl"
Case = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """One case, asked once."""

    case: Case
    told: Any
    alone: bool
    seconds: float

    @property
    def rank(self) -> int:
        """Place of the case's category, from 1; 0 where it does not come up."""
        names = list(dict.fromkeys(d.category for d in self.told.diagnoses))
        return names.index(self.case["category"]) + 1 if self.case["category"] in names else 0

    @property
    def strict(self) -> bool:
        if self.case["category"] == "none":
            return bool(self.told.verdict != "sharding")
        return self.rank == 1

    @property
    def fair(self) -> bool:
        if self.strict:
            return True
        undecided = self.alone and self.case["diagnosable_from"] != "text"
        return undecided and bool(self.told.needs) and (self.told.verdict == "unknown" or 1 <= self.rank <= 3)

    @property
    def spared(self) -> bool:
        """Whether a look-alike is not blamed on sharding."""
        return bool(self.told.verdict != "sharding")


def ask(cases: Iterable[Case], alone: bool) -> list[Answer]:
    answers = []
    for case in cases:
        start = time.perf_counter()
        told = lp.explain(case["message"], context=None if alone else case.get("context"))
        answers.append(Answer(case, told, alone, time.perf_counter() - start))
    return answers


def look_alike(case: Case) -> bool:
    return case["parallel_caused"] is False


GROUPS: dict[str, Callable[[Case], bool]] = {
    "all": lambda c: True,
    "self-explaining": lambda c: not look_alike(c) and c["self_explaining"] is True,
    "cryptic": lambda c: not look_alike(c) and c["self_explaining"] is False,
    "observed shape": lambda c: not look_alike(c) and c["self_explaining"] is None,
    "look-alike": look_alike,
    **{
        f"from {source}": lambda c, source=source: c["diagnosable_from"] == source  # type: ignore[misc]
        for source in ("text", "text+known_numbers", "text+model", "text+layout", "text+model+layout", "no")
    },
}
"""The four kinds by who can tell the cause, and the six sources that a diagnosis needs."""


def table(answers: list[Answer]) -> list[str]:
    """One line a group: strict, fair and top-3 hits, MRR; and of look-alikes those spared."""
    rows = [f"{'':<24}{'strict':>9}{'fair':>9}{'top-3':>9}{'MRR':>7}"]
    for name, belongs in GROUPS.items():
        group = [a for a in answers if belongs(a.case)]
        if not group:
            continue
        n = len(group)
        counts = [
            sum(a.strict for a in group),
            sum(a.fair for a in group),
            sum(1 <= a.rank <= 3 for a in group),
        ]
        mrr = sum(1 / a.rank for a in group if a.rank) / n
        shown = "".join(f"{f'{count}/{n}':>9}" for count in counts)
        spared = (
            f"   not blamed on sharding {sum(a.spared for a in group)}/{n}" if name == "look-alike" else ""
        )
        rows.append(f"{name:<24}{shown}{mrr:>7.3f}{spared}")
    return rows


def misses(answers: list[Answer]) -> list[str]:
    rows = []
    for a in answers:
        blamed = look_alike(a.case) and not a.spared
        if a.strict and not blamed:
            continue
        got = ", ".join(f"{d.title} {d.confidence:.0%}" for d in a.told.diagnoses[:3]) or "nothing"
        rows.append(
            f"  {a.case['id']}  {' '.join(a.case['message'].split())[:100]}\n"
            f"      is {a.case['category']} ({a.case['diagnosable_from']}); said {a.told.verdict}: {got}"
            + (f"; asks for {', '.join(a.told.needs)}" if a.told.needs else "")
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="?", type=Path, default=CASES)
    parser.add_argument("--half", choices=("even", "odd"), help="only cases of even or odd place, from 0")
    args = parser.parse_args()
    cases = [json.loads(line) for line in args.file.read_text("utf-8").splitlines() if line.strip()]
    if args.half:
        cases = cases[args.half == "odd" :: 2]
    lp.explain("AssertionError: 25 is not divisible by 4")  # the first call compiles the patterns
    for alone in (False, True):
        answers = ask(cases, alone)
        print(f"\n{len(cases)} cases, {'message alone' if alone else 'with context'}")
        print("\n".join(table(answers)))
        took = [a.seconds * 1e3 for a in answers]
        print(f"median {statistics.median(took):.2f} ms, longest {max(took):.1f} ms")
        missed = misses(answers)
        print(f"{len(missed)} misses" + (":" if missed else ""))
        print("\n".join(missed))


if __name__ == "__main__":
    main()
