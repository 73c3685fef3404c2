"""Published recipes that ran, as `check`, `memory`, `cost` and `plan` judge them: none may be refused.

    .venv/bin/python benchmarks/recipes.py [--small] [--only WORD]
    .venv/bin/python benchmarks/recipes.py --page    # writes docs/accuracy.md, in some minutes

Recipes are those of tests/oracles/recipes.json, which says what each states and where. Every function is
given what the recipe states, as far as it has an option for it, and nothing else; the trainer too where the
library knows it. The plan is asked for the same GPUs, batch and trainer, and a recipe is in its list where a
layout agrees with all that the recipe states.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import _page
import llamapar as lp
from llamapar.count.terms import TOO_MUCH
from llamapar.rules.table import ERROR
from llamapar.timing.cost import Cost
from llamapar.timing.plan import Plan

RECIPES = Path(__file__).resolve().parent.parent / "tests" / "oracles" / "recipes.json"

LISTED = 100
"""Layouts that a plan is asked for: of the largest jobs each takes up to 30 ms."""

COMPARED = re.compile(r"([\d.]+)% (slower|faster)")
"""How `plan.why` compares a layout with the first; without it, it refuses the layout."""

UNSEARCHED = "not searched"
"""Words with which it says that the search leaves a layout out."""

GIB, GB = 2**30, 10**9

MAKERS = {
    "meta": "Meta: the Llama 3 paper",
    "mlperf": "NVIDIA for MLPerf",
    "dgxc": "NVIDIA DGX Cloud",
    "mbridge": "NVIDIA Megatron-Bridge",
    "nemo": "NVIDIA NeMo",
    "torchtitan": "torchtitan",
    "fms": "IBM fms-fsdp",
    "smollm": "Hugging Face SmolLM",
    "ultrascale": "Ultra-Scale Playbook",
}
"""Beginning of a recipe's name → its maker."""

STATED = ("tp", "cp", "pp", "dp", "dp_replicate", "virtual_stages", "zero")
FACTS = ("micro_batch", "recompute")


Spread = tuple[float, float, float]
"""An expected figure between the ends that hold eight of ten runs."""

NONE: Spread = (0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Verdict:
    """What the library says of a recipe.

    refusals: command → why it refuses what ran. trainer: whether the library knows it. step, held: predicted,
    in seconds and in bytes; measured, peak: what was published, 0 where nothing was. place: in the plan's
    list of `listed`, 0 where it is not there. over: its step over the first's by the plan, less one.
    """

    recipe: dict[str, Any]
    refusals: dict[str, str]
    trainer: bool
    step: Spread = NONE
    measured: float = 0.0
    held: Spread = NONE
    peak: float = 0.0
    place: int = 0
    listed: int = 0
    over: float | None = None

    @property
    def name(self) -> str:
        return str(self.recipe["name"])

    def scored(self, what: str) -> tuple[float, bool, float] | None:
        """Error of the step or the peak, whether the interval holds it, and its high end over its low one.

        None without both figures.
        """
        (low, expected, high), true = (self.step, self.measured) if what == "step" else (self.held, self.peak)
        return (expected / true - 1, low <= true <= high, high / low) if expected and true else None


def recipes(small: bool = False, only: str = "") -> list[dict[str, Any]]:
    """The fixture's rows. small: the first of each maker. only: those whose name has this word."""
    rows: list[dict[str, Any]] = json.loads(RECIPES.read_text(encoding="utf-8"))["rows"]
    if small:
        rows = [next(row for row in rows if row["name"].startswith(maker)) for maker in MAKERS]
    return [row for row in rows if only in row["name"]]


def model_of(recipe: dict[str, Any]) -> str | lp.ModelConfig:
    said: Any = recipe["model"]
    return said if isinstance(said, str) else lp.ModelConfig(**said)


def asked(function: Callable[..., Any], recipe: dict[str, Any]) -> dict[str, Any]:
    """Those of a recipe's facts that a function has options for."""
    return {name: recipe[name] for name in inspect.signature(function).parameters if name in recipe}


def answer(function: Callable[..., Any], recipe: dict[str, Any], **more: Any) -> Any:
    """What a function of the library says of a recipe. Raises LlamaparError."""
    return function(**asked(function, recipe) | {"model": model_of(recipe)} | more)


def trainer_of(recipe: dict[str, Any]) -> dict[str, str]:
    """The recipe's trainer as an option; nothing where the library does not know it."""
    try:
        lp.check("tiny", tp=1, framework=recipe["trainer"])
    except lp.LlamaparError:
        return {}
    return {"framework": recipe["trainer"]}


def seconds_of(recipe: dict[str, Any], cost: Cost) -> float:
    """The published step; from FLOP/s with half of attention's square, as its source counts them."""
    published = recipe["published"]
    if "step_seconds" in published:
        return float(published["step_seconds"])
    if "tokens_per_s_per_gpu" in published:
        return cost.tokens / float(published["tokens_per_s_per_gpu"]) / cost.layout.world
    if "tflops_per_gpu" in published:
        return cost.flops / (float(published["tflops_per_gpu"]) * 1e12) / cost.layout.world
    return 0.0


def peak_of(recipe: dict[str, Any]) -> tuple[str, float]:
    """Which counter showed the published peak, and its bytes; all that is needed where none is named."""
    published = recipe["published"]
    if "max_reserved_gib" in published:
        return "max_reserved", published["max_reserved_gib"] * GIB
    return "needs", published.get("peak_gb", 0) * GB


def planned(recipe: dict[str, Any]) -> Plan | str:
    """The plan for a recipe's job, or why there is none."""
    try:
        plan: Plan = answer(lp.plan, recipe, **trainer_of(recipe), top=LISTED)
    except lp.LlamaparError as problem:
        return problem.what
    return plan if plan.layouts else "no layout passes and fits"


def place_of(recipe: dict[str, Any], plan: Plan) -> tuple[int, bool]:
    """Place of the first layout with all that a recipe states, else with its degrees; and whether it is all.

    0 where there is neither. Of equal degrees a plan may list the fastest alone.
    """
    stated, facts = ({name: recipe[name] for name in names if name in recipe} for names in (STATED, FACTS))
    if recipe.get("cp", 1) * recipe["dp"] == 1:
        stated.pop("zero", None)  # every stage is the same where there is nothing to shard
    degrees = tuple(recipe.get(axis, 1) for axis in lp.AXES)
    near = 0
    for place, one in enumerate(plan.layouts, 1):
        if one.degrees == degrees:
            if one.layout == one.layout.replace(**stated) and one.job == one.job.replace(**facts):
                return place, True
            near = near or place
    return near, False


def missing(recipe: dict[str, Any], plan: Plan) -> str:
    """The stated values that none of a plan's layouts has; in words."""
    found = []
    for name in (name for name in (*STATED, *FACTS) if name in recipe):
        tried = {getattr(one.layout if name in STATED else one.job, name) for one in plan.layouts}
        found += [f"{name}={recipe[name]}"] if recipe[name] not in tried else []
    return f"none of its {len(plan.layouts)} has {' or '.join(found) or 'all that is stated'}"


def placed(recipe: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """Where a recipe stands in a plan, as fields of a Verdict; "refused" is why it does not."""
    place, exact = place_of(recipe, plan)
    steps = [one.cost.step_seconds for one in plan.layouts]
    stated, known = ({name: recipe[name] for name in names if name in recipe} for names in (STATED, FACTS))
    try:
        why = str(plan.why(stated, **known, schedule=recipe.get("schedule")))
    except lp.LlamaparError as problem:
        why = problem.what
    said = COMPARED.search(why)
    over = float(said[1]) / 100 * (1 if said[2] == "slower" else -1) if said else None
    if exact:
        over = steps[place - 1] / steps[0] - 1
    found: dict[str, Any] = {"place": place, "listed": len(steps), "over": over}
    # A layout faster than the slowest one listed would be there if it had been searched and had passed.
    if not place and (over is None or UNSEARCHED in why or over < max(steps) / steps[0] - 1):
        found["refused"] = f"{missing(recipe, plan)}: {why}"
    return found


def judged(recipe: dict[str, Any], plan: Plan | str) -> Verdict:
    """What every command says of a recipe. plan: for its job, or why there is none."""
    trainer = trainer_of(recipe)
    refusals: dict[str, str] = {}
    found: dict[str, Any] = {}

    def tried(command: str, function: Callable[..., Any], **more: Any) -> Any:
        try:
            return answer(function, recipe, **more)
        except lp.LlamaparError as problem:
            refusals[command] = problem.what
            return None

    ways: dict[str, dict[str, str]] = {"check": {}}
    if trainer:
        ways["check --framework"] = trainer
    for command, options in ways.items():
        report = tried(command, lp.check, **options)
        for one in report.findings if report else ():
            if one.severity == ERROR:
                refusals.setdefault(command, f"{one.code} {one.message}")
    shown, peak = peak_of(recipe)
    memory = tried("memory", lp.memory, **trainer)
    if memory:
        found |= {"held": memory.figure(shown), "peak": peak}
        if memory.outcome == TOO_MUCH:
            refusals["memory"] = f"at least {memory.low_bytes / GIB:.1f} GiB"
    cost = tried("cost", lp.cost, **trainer)
    if cost:
        low, high = cost.interval
        found |= {"step": (low, cost.step_seconds, high), "measured": seconds_of(recipe, cost)}
    place = {"refused": plan} if isinstance(plan, str) else placed(recipe, plan)
    if "refused" in place:
        refusals["plan"] = place.pop("refused")
    return Verdict(recipe, refusals, bool(trainer), **found, **place)


def together(rows: Sequence[dict[str, Any]]) -> list[Verdict]:
    """The recipes of one job: its plan is made once."""
    plan = planned(rows[0])
    return [judged(row, plan) for row in rows]


def verdicts(rows: Sequence[dict[str, Any]]) -> list[Verdict]:
    """Every recipe judged, in the order of the fixture, on all processors."""
    jobs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        asking = asked(lp.plan, row) | {"model": str(row["model"]), "trainer": row["trainer"]}
        jobs[json.dumps(asking, sort_keys=True)].append(row)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = {one.name: one for many in pool.map(together, jobs.values()) for one in many}
    return [found[row["name"]] for row in rows]


def share(number: float | None, form: str = "+.0%") -> str:
    return "–" if number is None else format(number, form)


def score(found: Sequence[Verdict], what: str) -> tuple[str, str]:
    """Median size of the errors that are known; how many of the intervals hold what was published, and how
    wide they are.
    """
    known = [scored for one in found if (scored := one.scored(what))]
    if not known:
        return "–", "–"
    errors, inside, widths = zip(*known, strict=True)
    held = f"{sum(inside)} of {len(known)}, × {statistics.median(widths):.2f}"
    return f"{statistics.median(map(abs, errors)):.1%}", held


def cell(text: str) -> str:
    """A text as it may stand in a table."""
    return "; ".join(line.strip() for line in text.splitlines()).replace("|", "/")


def summary(found: Sequence[Verdict]) -> list[str]:
    """One row for all of them."""
    overs = [one.over for one in found if one.over is not None]
    row = (
        *(len(found), sum(1 for one in found if one.refusals)),
        sum(1 for one in found if one.place),
        share(statistics.median(overs) if overs else None),
        *(*score(found, "step"), *score(found, "peak")),
    )
    head = ["recipes", "refused", "in the plan's list", "over its first, median"]
    for what in ("step", "peak"):
        head += [f"error of the {what}", f"its interval holds the {what}"]
    return _page.table(head, [row])


def refused(found: Sequence[Verdict]) -> list[str]:
    """Refusals by command and reason, most recipes first; one reason may differ in numbers and details."""
    by: dict[tuple[str, str], list[Verdict]] = defaultdict(list)
    for one in found:
        for command, reason in one.refusals.items():
            by[command, "".join("#" if c.isdigit() else c for c in reason.partition(":")[0])].append(one)
    rows = []
    for (command, _), many in sorted(by.items(), key=lambda pair: -len(pair[1])):
        names = ", ".join(f"`{one.name}`" for one in many)
        rows.append((f"`{command}`", len(many), cell(many[0].refusals[command]), names))
    return _page.table(("command", "recipes", "reason, of the first", "which"), rows)


def tables() -> dict[str, list[str]]:
    """That of docs/accuracy.md."""
    return {"recipes": summary(verdicts(recipes()))}


def main() -> None:
    if "--page" in sys.argv:
        _page.write(tables())
        return
    only = sys.argv[sys.argv.index("--only") + 1] if "--only" in sys.argv else ""
    found = verdicts(recipes("--small" in sys.argv, only))
    print(*summary(found), "", *refused(found), sep="\n")


if __name__ == "__main__":
    main()
