"""What each framework does with the failing example of each rule, as its source was read: the one table.

A framework that is added gets a row here. `test_verdicts.py` holds the rows against what `lp.check` says;
tests of a report's text read the table, so that none of them lists the frameworks again.
"""

from __future__ import annotations

from collections import defaultdict

from llamapar.frameworks import ADAPTS, CLEAR, FORWARD, INIT, JUDGES, NA, SAVE, SILENT, UNKNOWN, WORKS

ROWS: dict[str, dict[str, str]] = {
    "llama-models": {
        NA: "LP001 LP106 LP201 LP202 LP301 LP302 LP303 LP304 LP501",
        INIT: "LP101 LP103 LP104 LP105",
        CLEAR: "LP203",
    },
    "torchtitan": {
        CLEAR: "LP001 LP101 LP104 LP201 LP202 LP203 LP205 LP302 LP304 LP305 LP306 LP401",
        WORKS: "LP103 LP301 LP303",
        FORWARD: "LP105",
        NA: "LP106",
    },
    "megatron-lm": {
        NA: "LP001",
        CLEAR: "LP101 LP201 LP204 LP301 LP302 LP303 LP306 LP307 LP309 LP401",
        INIT: "LP103",
        ADAPTS: "LP104 LP105",
        WORKS: "LP106",
        FORWARD: "LP202 LP206",
    },
    "colossalai": {
        NA: "LP001 LP503",
        CLEAR: "LP101 LP104 LP204 LP308",
        INIT: "LP103",
        ADAPTS: "LP105",
        SAVE: "LP106",
        FORWARD: "LP201",
        WORKS: "LP301",
    },
    "distributed-llama": {
        INIT: "LP101 LP103 LP105",
        CLEAR: "LP104",
        NA: "LP106 LP201 LP202 LP301 LP302 LP303 LP304 LP501",
    },
    "transformers": {FORWARD: "LP101 LP104", WORKS: "LP103 LP105 LP301", NA: "LP106 LP501"},
    "picotron": {CLEAR: "LP001", INIT: "LP101 LP103 LP104 LP105", NA: "LP106 LP503", WORKS: "LP201 LP301"},
    "nanotron": {
        CLEAR: "LP001 LP101 LP104",
        INIT: "LP103",
        ADAPTS: "LP105 LP503",
        FORWARD: "LP201",
        WORKS: "LP301",
    },
    "vllm": {CLEAR: "LP101 LP107", INIT: "LP103", ADAPTS: "LP104 LP105", WORKS: "LP301"},
    "dtensor": {
        SILENT: "LP001 LP201",
        FORWARD: "LP101 LP103 LP104 LP108",
        WORKS: "LP105",
        NA: "LP106",
        CLEAR: "LP305 LP306",
    },
}
"""Framework → verdict → rules. What stands nowhere is not known."""

TABLE: dict[str, dict[str, str]] = {
    name: {code: verdict for verdict, codes in row.items() for code in codes.split()}
    for name, row in ROWS.items()
}
"""Framework → rule → verdict."""


def verdict_of(name: str, code: str) -> str:
    return TABLE[name].get(code, UNKNOWN)


def by_verdict(code: str) -> dict[str, list[str]]:
    """Verdict → titles of the frameworks that give it to a rule's example, "not known" left out."""
    groups = defaultdict(list)
    for name, framework in JUDGES.items():
        groups[verdict_of(name, code)].append(framework.title)
    groups.pop(UNKNOWN, None)
    return dict(groups)
