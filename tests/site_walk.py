"""A seeded walk over the Explorer's controls, on the page's stand-ins: a digest of each step.

Runs in any Python: python tests/site_walk.py 100 7, with site/standins on the path.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys

import page_python

COUNTS = [None, 0, 1, 2, 3, 7, 8, 16, 64, 1000, 8192, 16384, 10**9, "12k", "eight"]
NOT_WALKED = {"plan", "run"}  # a search says how long it took, and a run needs torch


def value(rng: random.Random, control: dict[str, object]) -> object:
    """Something that a hand may set a control to."""
    kind = control["kind"]
    if kind == "choice":
        return rng.choice([choice for choice, _ in control["options"]])  # type: ignore[attr-defined]
    if kind == "bool":
        return rng.random() < 0.5
    return 2 ** rng.randrange(9) if kind == "slider" else rng.choice(COUNTS)


def close(shown: object) -> object:
    """Without the last digits of fractions: from Python 3.12 on, sum() rounds better than before."""
    return json.loads(json.dumps(shown), parse_float=lambda text: f"{float(text):.9g}")


def walk(steps: int, seed: int) -> list[str]:
    """Digests of payload, answers and remedies, one for each step."""
    heard: dict[str, object] = {}
    receive = page_python.begin("explorer", lambda text: heard.update(json.loads(text).get("state", {})))
    groups: list[dict[str, list[dict[str, object]]]] = heard["schema"]  # type: ignore[assignment]
    kinds = ("choice", "bool", "slider", "int")
    controls = [one for group in groups for one in group["controls"] if one["kind"] in kinds]
    titled: list[tuple[str, str]] = [*heard["tabs"], *heard["times"]]  # type: ignore[misc]
    tabs = [name for name, _ in titled if name not in NOT_WALKED]
    rng, digests = random.Random(seed), []
    for step in range(steps):
        one = rng.choice(controls)
        changes = {str(one["name"]): value(rng, one)} if rng.random() < 0.8 else {"tab": rng.choice(tabs)}
        if step % 100 == 99:
            receive(json.dumps({"to": "w0", "content": {"kind": "reset"} | {"seq": 0, "id": str(step)}}))
        receive(json.dumps({"to": "w0", "content": {"kind": "set", "changes": changes, "id": str(step)}}))
        shown = json.dumps(close([heard[name] for name in ("payload", "answers", "offered")]), sort_keys=True)
        digests.append(hashlib.sha256(shown.encode()).hexdigest()[:16])
    return digests


if __name__ == "__main__":
    print(json.dumps(walk(*map(int, sys.argv[1:]))))
