"""Published recipes that ran, as `check`, `memory`, `cost` and `plan` judge them: none may be refused.

    .venv/bin/python benchmarks/recipes.py [--small] [--only WORD]
    .venv/bin/python benchmarks/recipes.py --page    # writes docs/measured/recipes.md, in some minutes

Recipes are those of tests/oracles/recipes.json, which says what each states and where. Every function is
given what the recipe states, as far as it has an option for it, and nothing else; the trainer too where the
library knows it. The plan is asked for the same GPUs, batch and trainer, and a recipe is in its list where a
layout agrees with all that the recipe states.
"""

from __future__ import annotations

import inspect
import json
import os
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import _page
import llamapar as lp

RECIPES = Path(__file__).resolve().parent.parent / "tests" / "oracles" / "recipes.json"

LISTED = 200
"""Layouts that a plan is asked for: of the largest jobs each takes up to 30 ms."""

FAR = 0.25
"""Part of the first layout's step; a recipe that is predicted to lose more counts as placed badly."""

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


@dataclass(frozen=True)
class Verdict:
    """What the library says of a recipe.

    refusals: command → why it refuses what ran. trainer: whether the library knows it.
    seconds, measured: the predicted and the published step. low, high, expected: of `memory`, in bytes;
    peak: published. place: in the plan's list of `listed`; 0 where it is not there. over: its predicted step
    over the first's, less one.
    """

    recipe: dict[str, Any]
    refusals: dict[str, str]
    trainer: bool
    seconds: float = 0.0
    measured: float = 0.0
    outcome: str = ""
    low: int = 0
    high: int = 0
    expected: int = 0
    peak: float = 0.0
    place: int = 0
    listed: int = 0
    over: float | None = None
    why: str = field(default="", repr=False)

    @property
    def name(self) -> str:
        return str(self.recipe["name"])

    @property
    def maker(self) -> str:
        return next(title for prefix, title in MAKERS.items() if self.name.startswith(prefix))

    @property
    def layout(self) -> str:
        """The degrees that it states, in short."""
        named = {"virtual_stages": "v", "dp_replicate": "rep", "micro_batch": "mbs", "zero": "zero"}
        numbers = {named.get(name, name): self.recipe.get(name) for name in ("tp", "cp", "pp", "dp", *named)}
        return " ".join(f"{name}{n}" for name, n in numbers.items() if n not in (None, 1) or name == "dp")

    @property
    def step_error(self) -> float | None:
        return self.seconds / self.measured - 1 if self.seconds and self.measured else None

    @property
    def peak_error(self) -> float | None:
        return self.expected / self.peak - 1 if self.expected and self.peak else None


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


def seconds_of(recipe: dict[str, Any], cost: lp.Cost) -> float:
    """The published step; from FLOP/s with half of attention's square, as its source counts them."""
    published = recipe["published"]
    if "step_seconds" in published:
        return float(published["step_seconds"])
    if "tokens_per_s_per_gpu" in published:
        return cost.tokens / float(published["tokens_per_s_per_gpu"]) / cost.layout.world
    if "tflops_per_gpu" in published:
        return cost.flops / (float(published["tflops_per_gpu"]) * 1e12) / cost.layout.world
    return 0.0


@dataclass
class Asked:
    """The plan for a job, and what it was asked with."""

    plan: lp.Plan | None
    problem: str = ""


def planned(recipe: dict[str, Any]) -> Asked:
    try:
        return Asked(answer(lp.plan, recipe, **trainer_of(recipe), top=LISTED))
    except lp.LlamaparError as problem:
        return Asked(None, problem.what)


def place_of(recipe: dict[str, Any], plan: lp.Plan) -> int:
    """Place of the first layout that agrees with all that a recipe states; 0 where none does."""
    degrees, facts = ({name: recipe[name] for name in names if name in recipe} for names in (STATED, FACTS))
    for place, one in enumerate(plan.layouts, 1):
        if one.layout == one.layout.replace(**degrees) and one.job == one.job.replace(**facts):
            return place
    return 0


def missing(recipe: dict[str, Any], plan: lp.Plan) -> str:
    """The stated values that none of a plan's layouts has; in words."""
    found = []
    for name in (name for name in (*STATED, *FACTS) if name in recipe):
        tried = {getattr(one.layout if name in STATED else one.job, name) for one in plan.layouts}
        found += [f"{name}={recipe[name]}"] if recipe[name] not in tried else []
    return f"none of its {len(plan.layouts)} has {' or '.join(found) or 'all that is stated'}"


def judged(recipe: dict[str, Any], planning: Asked) -> Verdict:
    """What every command says of a recipe."""
    trainer = trainer_of(recipe)
    refusals: dict[str, str] = {}
    found: dict[str, Any] = {}
    for command, options in {"check": {}, "check --framework": trainer}.items():
        if options or command == "check":
            try:
                report = answer(lp.check, recipe, **options)
                errors = [f"{one.code} {one.message}" for one in report.findings if one.severity == "error"]
            except lp.LlamaparError as problem:
                errors = [problem.what]
            refusals |= {command: errors[0]} if errors else {}
    try:
        memory = answer(lp.memory, recipe, **trainer)
        found |= {"outcome": memory.outcome, "low": memory.low_bytes, "high": memory.high_bytes}
        found["expected"] = getattr(memory, "expected_bytes", memory.worst.total_bytes)
        if memory.outcome == "does not fit":
            refusals["memory"] = f"at least {memory.low_bytes / GIB:.1f} GiB"
    except lp.LlamaparError as problem:
        refusals["memory"] = problem.what
    published = recipe["published"]
    found["peak"] = published.get("peak_gib", 0) * GIB or published.get("peak_gb", 0) * GB
    try:
        cost = answer(lp.cost, recipe, **trainer)
        found |= {"seconds": cost.step_seconds, "measured": seconds_of(recipe, cost)}
    except lp.LlamaparError as problem:
        refusals["cost"] = problem.what
    plan = planning.plan
    if plan is None or not plan.layouts:
        refusals["plan"] = planning.problem or "no layout passes and fits"
        return Verdict(recipe, refusals, bool(trainer), **found)
    found |= {"place": place_of(recipe, plan), "listed": len(plan.layouts)}
    layout = {name: recipe[name] for name in STATED if name in recipe}
    known = (recipe.get(name) for name in ("micro_batch", "recompute", "schedule"))
    try:
        found["why"] = str(plan.why(layout, *known))
    except lp.LlamaparError as problem:
        found["why"] = problem.what
    if "seconds" in found or found["place"]:
        own = plan.layouts[found["place"] - 1].cost.step_seconds if found["place"] else found["seconds"]
        found["over"] = own / plan.best.cost.step_seconds - 1
    # The list ends at a time: a layout that is faster would stand in it if it had been searched and passed.
    slowest = plan.layouts[-1].cost.step_seconds
    whole = len(plan.layouts) < LISTED
    if not found["place"] and (whole or found.get("seconds", 0.0) < slowest):
        refusals["plan"] = f"{missing(recipe, plan)}: {found['why']}"
    return Verdict(recipe, refusals, bool(trainer), **found)


def together(rows: Sequence[dict[str, Any]]) -> list[Verdict]:
    """The recipes of one job: its plan is made once."""
    planning = planned(rows[0])
    return [judged(row, planning) for row in rows]


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


def middle(numbers: Sequence[float | None]) -> str:
    """Median of the absolute values that are known."""
    known = [abs(number) for number in numbers if number is not None]
    return f"{statistics.median(known):.1%} of {len(known)}" if known else "–"


def cell(text: str) -> str:
    """A text as it may stand in a table."""
    return "; ".join(line.strip() for line in text.splitlines()).replace("|", "/")


def where(one: Verdict) -> str:
    """Its place in the plan's list, in words."""
    if one.place:
        return f"{one.place} of {one.listed}{'+' * (one.listed == LISTED)}"
    return "no" if "plan" in one.refusals else f"past {one.listed}"


def summary(found: Sequence[Verdict]) -> list[str]:
    groups = {"all": list(found)}
    for one in found:
        groups.setdefault(one.maker, []).append(one)
    rows = []
    for title, own in groups.items():
        refused = [one for one in own if one.refusals]
        overs = [one.over for one in own if one.over is not None]
        outcomes = Counter(one.outcome for one in own if one.outcome)
        rows.append(
            (
                *(title, len(own), len(refused)),
                sum(1 for one in own if one.place),
                sum(1 for one in own if not one.place and "plan" not in one.refusals),
                share(statistics.median(overs) if overs else None),
                middle([one.step_error for one in own]),
                middle([one.peak_error for one in own]),
                " · ".join(f"{n} {outcome}" for outcome, n in outcomes.items()),
            )
        )
    head = ("maker", "recipes", "refused by something", "in the plan's list", "further down")
    more = ("over the plan's first, median", "error of the step", "error of the peak", "`memory` says")
    return _page.table((*head, *more), rows)


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


def far(found: Sequence[Verdict]) -> list[str]:
    """Recipes that the plan thinks much slower than its first layout."""
    rows = [one for one in found if one.over is not None and one.over > FAR]
    return _page.table(
        ("recipe", "stated", "over the first", "place", "why"),
        ((f"`{one.name}`", one.layout, share(one.over), where(one), cell(one.why)) for one in by_over(rows)),
    )


def by_over(rows: Sequence[Verdict]) -> list[Verdict]:
    return sorted(rows, key=lambda one: -(one.over or 0.0))


def every(found: Sequence[Verdict]) -> list[str]:
    rows = []
    for one in found:
        steps = [f"{number:.3g}" if number else "–" for number in (one.measured, one.seconds)]
        sizes = [f"{number / GIB:.1f}" if number else "–" for number in (one.peak, one.expected)]
        span = f"{one.low / GIB:.0f} to {one.high / GIB:.0f}, {one.outcome}" if one.outcome else "–"
        placed = where(one), share(one.over)
        steps.append(share(one.step_error))
        rows.append((f"`{one.name}`", one.recipe["gpus"], one.layout, *steps, *sizes, span, *placed))
    head = ("recipe", "GPUs", "stated", "step, s", "predicted", "error", "peak, GiB", "shown")
    return _page.table((*head, "`memory`, GiB", "place", "over the first"), rows)


def tables(found: Sequence[Verdict] | None = None) -> dict[str, list[str]]:
    """Those of docs/measured/recipes.md."""
    found = verdicts(recipes()) if found is None else found
    return {"summary": summary(found), "refused": refused(found), "far": far(found), "recipes": every(found)}


def main() -> None:
    write = partial(_page.write, __file__)
    if "--page" in sys.argv:
        write(tables())
        return
    only = sys.argv[sys.argv.index("--only") + 1] if "--only" in sys.argv else ""
    for name, lines in tables(verdicts(recipes("--small" in sys.argv, only))).items():
        print(name, *lines, "", sep="\n")


if __name__ == "__main__":
    main()
