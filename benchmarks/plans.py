"""Layouts that others chose, beside the fastest that `lp.plan` finds for the same job.

    .venv/bin/python benchmarks/plans.py [--speed] [--fixes] [--small]
    .venv/bin/python benchmarks/plans.py --page    # writes docs/measured/plans.md, in some two minutes

--fixes instead draws 200 layouts, seeded, and counts the fixes of those that fail where a plan finds one.
--speed instead says how long plans of 16,384 GPUs take, schedule by schedule, in processor time.

Of zhebrak's optimizer (tests/oracles/plans.json), of the Llama 3 paper, and of the run configurations in
tests/oracles/run_configs.jsonl that say their GPUs, sequence length and batch. Each is timed and counted as
it stands, with what its file says of micro-batches, ZeRO and recomputation; the plan is free to change
all of it but the batch. The GPUs of a configuration are H100 where nobody says which.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import _page
import llamapar as lp
from llamapar.count.terms import FITS
from llamapar.describe.jobs import JOBS
from llamapar.place.orders import ORDERS
from settings_cases import ORACLES, cases, read

MANY = 400
"""Layouts that pass, among which those with the paper's CP are looked for."""

ZEROS = {"fsdp": 3, "zero1": 1}


@dataclass(frozen=True)
class Choice:
    """A layout that somebody chose, and the plan for its job. why: what it loses by."""

    name: str
    seconds: float | None
    plan: lp.Plan
    why: str

    @property
    def over(self) -> float:
        """Its step over the fastest one's, less one."""
        return (self.seconds or 0.0) / self.plan.best.cost.step_seconds - 1


@cache
def planned(model: str | lp.ModelConfig, gpus: int, seq_len: int, global_batch: int) -> lp.Plan:
    return lp.plan(model, gpus=gpus, seq_len=seq_len, global_batch=global_batch)


def judged(name: str, plan: lp.Plan, layout: lp.Layout, known: dict[str, Any]) -> Choice:
    """known: seq_len, global_batch, micro_batch, recompute and perhaps a schedule."""
    why = plan.why(layout, known.get("micro_batch", 1), known.get("recompute"))
    try:
        seconds = lp.cost(plan.model, layout, **known).step_seconds
    except lp.LlamaparError:
        seconds = None
    return Choice(name, seconds, plan, why)


def optimizer(gpus: int | None = None) -> Iterator[Choice]:
    """zhebrak's, where it found something that fits by its own count. gpus: of those jobs alone."""
    for row in json.loads((ORACLES / "plans.json").read_text())["rows"]:
        if not row["success"] or gpus not in (None, row["gpus"]):
            continue
        tp, cp, pp = row["tp"], row["cp"], row["pp"]
        zero = next(stage for word, stage in ZEROS.items() if row["strategy"].startswith(word))
        layout = lp.Layout(tp=tp, cp=cp, pp=pp, dp=row["gpus"] // (tp * cp * pp), zero=zero)
        layout = layout.replace(virtual_stages=row["virtual_stages"] if pp > 1 else 1)
        known = {name: row[name] for name in ("seq_len", "global_batch", "micro_batch", "recompute")}
        name = f"{row['model']} on {row['gpus']} from {row['start']}"
        plan = planned(row["model"], row["gpus"], row["seq_len"], row["global_batch"])
        yield judged(name, plan, layout, known)


def paper() -> Iterator[Choice]:
    """Table 4's, beside the fastest with their CP that need no more memory than they, by the same account.

    What those runs kept is not published, so that the upper end of `lp.memory` is past their GPUs.
    """
    for name, published in JOBS.items():
        job = published.job
        known: dict[str, Any] = {"seq_len": job.seq_len, "global_batch": job.global_batch}
        schedule = "1f1b" if job.layout.zero == 1 else "gpipe"
        needs = lp.memory(job.model, job.layout, recompute="none", schedule=schedule, **known).high_bytes
        gpu = {"base": "h100-80gb", "hbm_bytes": needs}
        plan = lp.plan(job.model, gpus=job.layout.world, gpu=gpu, schedule=schedule, top=MANY, **known)
        plan = replace(plan, layouts=tuple(one for one in plan.layouts if one.outcome == FITS))
        same = tuple(one for one in plan.layouts if one.layout.cp == job.layout.cp)
        known |= {"schedule": schedule, "recompute": "none"}
        yield judged(f"{name} among all CP", plan, job.layout, known)
        yield judged(f"{name} among its CP", replace(plan, layouts=same), job.layout, known)


def configured() -> Iterator[Choice]:
    """Run configurations that train, and say enough."""
    for name, row in cases().items():
        try:
            settings = read(row)
            model, layout, facts = settings.model_config(), settings.to_layout(), settings.facts()
        except lp.LlamaparError:
            continue
        known: dict[str, Any] = {key: facts.get(key) for key in ("seq_len", "global_batch", "micro_batch")}
        if None in known.values() or layout.world < 8:
            continue
        known["recompute"] = facts.get("recompute") or "none"
        try:
            plan = planned(model, layout.world, known["seq_len"], known["global_batch"])
        except lp.LlamaparError:
            continue
        if plan.layouts:
            yield judged(name, plan, layout, known)


def speed() -> None:
    """405B on 16,384 GPUs, each schedule in its own process, so that nothing is remembered."""
    for name in ORDERS:
        asked = f'"llama3.1-405b", gpus=16384, seq_len=8192, global_batch=2048, schedule="{name}"'
        code = f"import time, llamapar as lp; t = time.process_time(); found = lp.plan({asked}); "
        code += "print(f'{time.process_time() - t:.2f} s for {found.considered:,} layouts')"
        said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        print(f"{name:24}{said.stdout.strip()}")


SIZES = [("llama3-8b", 16), ("llama3-8b", 64), ("llama3.1-70b", 64), ("llama3.1-70b", 256)]
SIZES += [("llama3.1-405b", 1024)]


def random_layouts(many: int) -> Iterator[dict[str, Any]]:
    """Arguments of `lp.check`, with degrees as people try them; some do not divide anything."""
    rng = random.Random(1)
    for _ in range(many):
        model, gpus = rng.choice(SIZES)
        tp, cp, pp = (
            rng.choice((1, 2, 4, 8, 16, 3)),
            rng.choice((1, 1, 2, 4, 3)),
            rng.choice((1, 1, 2, 4, 8, 3)),
        )
        dp, micro_batch = max(1, gpus // (tp * cp * pp)), rng.choice((1, 2, 4, 8))
        yield {
            "model": model,
            "layout": lp.Layout(tp=tp, cp=cp, pp=pp, dp=dp, zero=rng.choice(range(4))),
            "seq_len": rng.choice((4096, 8192)),
            "micro_batch": micro_batch,
            "global_batch": gpus * rng.choice((1, 2, 4)),
            "recompute": rng.choice(("none", "selective", "full")),
            "framework": rng.choice((None, None, "torchtitan", "megatron")),
            "gpus": gpus,
            "gpu": rng.choice(("h100-80gb", "a100-80gb")),
        }


def fixes(many: int) -> None:
    """How many findings get fixes, and whether each fix passes, fits and keeps GPUs and batch."""
    counted: Counter[str] = Counter()
    held = ("gpus", "gpu", "seq_len", "global_batch")
    for asked in random_layouts(many):
        report = lp.check(**asked)
        counted["layouts"] += 1
        if report.ok:
            continue
        counted["refused"] += 1
        known = {name: asked[name] for name in (*held, "framework")}
        if not lp.plan(asked["model"], **known, top=1).layouts:
            continue
        counted["of these, a plan finds a layout"] += 1
        for finding in report.errors:
            counted["errors of them"] += 1
            counted["errors without a fix"] += not finding.fixes
            for fix in finding.fixes:
                job = fix.job
                counted["fixes"] += 1
                same = (str(getattr(job, name)) == str(asked[name]) for name in held)
                kept = job.layout.world == asked["gpus"] and all(same)
                counted["on other GPUs, lengths or batches"] += not kept
                changes = {name: getattr(job, name) for name, _ in fix.changes if hasattr(job, name)}
                again = {**asked, **changes, "model": job.model, "layout": job.layout}
                counted["that do not pass or fit"] += not lp.check(**again).ok
    for what, number in counted.items():
        print(f"{number:6} {what}")


def tables() -> dict[str, list[str]]:
    """Those of docs/measured/plans.md."""
    found: dict[str, list[Choice]] = {}
    for row in optimizer():
        found.setdefault(row.name.partition(" from ")[0], []).append(row)
    others = []
    for job, rows in found.items():
        behind = sorted(row.over for row in rows)
        span = (
            f"{behind[0]:.0%}"
            if f"{behind[0]:.0%}" == f"{behind[-1]:.0%}"
            else f"{behind[0]:.0%} to {behind[-1]:.0%}"
        )
        others.append((job, len(rows), span, f"`{rows[0].plan.best.layout}`"))
    published = [(row.name, f"{row.over:.1%}", f"`{row.plan.best.layout}`", row.why) for row in paper()]
    configs = []
    for row in sorted(configured(), key=lambda row: -row.over):
        best = row.plan.best
        chosen = f"`{best.layout}` micro_batch={best.job.micro_batch} zero={best.layout.zero}"
        chosen += f" recompute={best.job.recompute}"
        configs.append((row.name, row.plan.gpus, f"{row.over:.1%}", chosen, row.why))
    return {
        "optimizer": _page.table(("job", "answers", "behind the plan", "the plan's fastest"), others),
        "paper": _page.table(("job", "behind the plan", "the plan's fastest", "why"), published),
        "configurations": _page.table(
            ("configuration", "GPUs", "behind the plan", "the plan's fastest", "why"), configs
        ),
    }


def main() -> None:
    if "--page" in sys.argv:
        _page.write(__file__, tables())
        return
    most = 2 if "--small" in sys.argv else None
    if "--fixes" in sys.argv:
        fixes(20 if most else 200)
        return
    if "--speed" in sys.argv:
        speed()
        return
    for title, rows in (("zhebrak's optimizer", optimizer()), ("Table 4", paper())):
        print(title)
        for row in islice(rows, most):
            print(f"  {row.over:+7.1%}  {row.name}: {row.why}; {row.plan.best.layout}")
    print("run configurations, the furthest down first")
    found = sorted(islice(configured(), most), key=lambda row: -row.over)
    for row in found:
        best = row.plan.best
        print(f"  {row.over:+7.1%}  {row.name}: {row.why}; best {best.layout} mbs {best.job.micro_batch}")
        size = f"ZeRO {best.layout.zero}, {best.job.recompute} recomputed, {best.cost.mfu:.0%} MFU"
        print(f"           {row.plan.model.name}, {row.plan.gpus} GPUs; {size}")


if __name__ == "__main__":
    main()
