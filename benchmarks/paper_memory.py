"""Memory of the Llama 3 paper's runs, and of figures in "Scaling Llama 3 Training ..." (ISCA 2025), counted.

    .venv/bin/python benchmarks/paper_memory.py [--page]    # --page writes docs/accuracy.md

The figures show differences between ranks and between schedules in GB. They print neither dp nor, of the
second, layers and batch, so only differences can be compared. Ours are those of Llama 3's trainer's row.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import _page
import llamapar as lp
from llamapar.count import Memory
from llamapar.describe.jobs import JOBS
from llamapar.describe.options import Values
from llamapar.frameworks import FRAMEWORKS, Framework
from llamapar.rules.memory_rule import memory_of

GB = 10**9
PAPER = {
    "Fig. 9(b), flexible (`nc=6`) over 1F1B: 12 chunks": 4.0,
    "Fig. 10(a), a rank over the next: 2 chunks": 0.7,
    "Fig. 9(b), all forwards first (ZeRO 2) over 1F1B (ZeRO 1)": 6.7,
    "Fig. 10(a), first rank over the second, as many layers each": 5.5,
    "Fig. 10(a), the same with a layer less at both ends": -7.0,
    "Fig. 10(a), last rank over the one before, as many layers each": 5.5,
    "Fig. 10(a), the last rank with a layer less at both ends": -2.7,
}
"""What the figures compare → GB, read off them."""

TRAINER = FRAMEWORKS["llama3-trainer"]


KEPT: dict[str, dict[str, bool]] = {
    "gathered inputs of matmuls": {"regather": False},
    "outputs of norms, SwiGLU's product": {"elementwise_kept": True},
    "SiLU's output": {"silu_kept": True},
}
"""What a layer may keep → how a trainer's row says that it does."""


def keeping(kept: dict[str, bool]) -> Framework:
    """Llama 3's trainer, if its layers kept more."""
    return replace(TRAINER, habits=replace(TRAINER.habits, **Values(kept)))


@cache
def fig9(schedule: str, zero: int, nc: int | None = None, everything: bool = False) -> Memory:
    """26 layers on pp=4, so seven stages a rank less one at both ends; dp is not printed."""
    model = lp.model("llama3.1-405b").replace(n_layers=26, name="26 layers")
    layout = lp.Layout(tp=8, pp=4, virtual_stages=7, dp=16, zero=zero)
    return lp.memory(
        model,
        layout,
        seq_len=8192,
        global_batch=12 * layout.dp,
        recompute="none",
        schedule=schedule,
        nc=nc,
        framework=keeping({n: v for kept in KEPT.values() for n, v in kept.items()} if everything else {}),
    )


@cache
def fig10(balanced: bool) -> list[float]:
    """GB by rank: pp=8 with a layer a stage; layers and batch are not printed."""
    layers = [0, *[1] * 14, 0] if balanced else [1] * 16
    model = lp.model("llama3.1-405b").replace(n_layers=sum(layers), name="")
    layout = lp.Layout(tp=8, pp=8, virtual_stages=2, dp=16)
    found = lp.memory(
        model,
        layout,
        seq_len=8192,
        global_batch=32 * layout.dp,
        recompute="none",
        schedule="interleaved-1f1b",
        layer_split=layers,
        framework=TRAINER,
    )
    return [stage.total_bytes / GB for stage in found.stages]


def differences() -> dict[str, float]:
    """Ours of each of PAPER, in GB."""
    early = fig9("interleaved-1f1b", 1).expected_bytes
    equal, balanced = fig10(False), fig10(True)
    found = (
        (fig9("flexible", 1, 6).expected_bytes - early) / GB,
        equal[1] - equal[2],
        (fig9("looped-bfs", 2).expected_bytes - early) / GB,
        equal[0] - equal[1],
        balanced[0] - balanced[1],
        equal[-1] - equal[-2],
        balanced[-1] - balanced[-2],
    )
    return dict(zip(PAPER, found, strict=True))


def chunk() -> tuple[float, float]:
    """GB of a chunk, one layer of one micro-batch: with as little kept as possible, and with everything."""
    flexible, early = (fig9(*one, True) for one in (("flexible", 1, 6), ("interleaved-1f1b", 1, None)))
    most = (flexible.expected_bytes - early.expected_bytes) / GB / 12
    return next(iter(differences().values())) / 12, most


def tables() -> dict[str, list[str]]:
    """That of docs/accuracy.md."""
    lines = []
    for name, published in JOBS.items():
        found = memory_of(published.job, TRAINER)
        lines.append((f"`{name}`", str(found.figure()), found.outcome))
    figures = [(what, f"{PAPER[what]:.1f}", f"{own:.1f}") for what, own in differences().items()]
    return {
        "paper_memory": _page.table(("job", "a rank of the worst stage, GiB", "on H100 of 80 GB"), lines),
        "paper_figures": _page.table(("GB", "published", "llamapar"), figures),
    }


def main() -> None:
    if "--page" in sys.argv:
        _page.write(tables())
        return
    for name, lines in tables().items():
        print(name, *lines, sep="\n")


if __name__ == "__main__":
    main()
