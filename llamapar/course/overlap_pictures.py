"""What hides behind what: four layers of Llama 3 8B on a clock, and the two limits of one layer.

`lp.course.overlap(tokens=8192, tp=1, zero=3)` and `lp.course.roofline(tokens=8192)` are the records,
`.live()` the pictures with knobs. Every duration is that of `lp.cost`, for 64 groups of `tp` H100s, each
group with other sequences of `tokens` tokens. Left out: the embedding, the head, the optimizer, and how much
messages slow the compute that hides them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from llamapar.describe.arguments import checked_options
from llamapar.figures import draw, style
from llamapar.figures.chart import Chart
from llamapar.figures.style import Spec
from llamapar.records.tables import Record
from llamapar.timing.cost import Cost, cost

LAYERS = 4
GROUPS = 64
"""Data-parallel groups: enough that their messages cross the network."""

COLOURS = {
    "forward": "#5D5FB8",
    "backward": "#88CCEE",
    "waits for TP": style.COLOURS["tp"],
    "weights arrive": style.COLOURS["dp"],
    "gradients are added up": "#AA4499",
    "computing takes": "#5D5FB8",
    "moving bytes takes": "#44AA99",
}

Spans = dict[str, list[tuple[float, float, float]]]
"""A name of COLOURS → its bars: row, beginning and length, in seconds."""


@dataclass(frozen=True, repr=False)
class _Clock(Record):
    """Bars over milliseconds, made from the cost of a step."""

    cost: Cost
    micro_batches: int

    rows: ClassVar[tuple[str, ...]] = ("computes", "sends")
    width = 0.8

    @property
    def spans(self) -> Spans:
        raise NotImplementedError

    @property
    def sentence(self) -> str:
        raise NotImplementedError

    @property
    def title(self) -> str:
        """What the picture is of."""
        return f"Llama 3 8B, tp={self.cost.layout.tp}, {self.micro_batches} × {self.cost.seq_len:,} tokens"

    def seconds(self, *names: str) -> float:
        """Of all bars with these names, together."""
        return sum(long for name in names for _, _, long in self.spans.get(name, ()))

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        rows: list[list[object]] = [[name, f"{1e3 * self.seconds(name):.3g} ms"] for name in self.spans]
        return self.title, ["what", "takes"], rows, ""

    def picture(self) -> tuple[Spec, str]:
        """A trace for each name."""
        found = []
        for name, spans in self.spans.items():
            bars = []
            for row, start, long in spans:
                hover = f"{name}: {1e3 * long:.3g} ms"
                bars.append(draw.Bar(row, 1e3 * start, 1e3 * (start + long), hover))
            edge = {"width": 1, "color": style.PAPER}
            look = {"color": COLOURS[name], "line": edge}
            if bars:
                legend = draw.legend(name)
                found.append(draw.bars(bars, len(self.rows), look, width=self.width, **legend))
        return Chart(
            kind="clock",
            title=self.title,
            data=found,
            layout={
                "height": 320,
                "widest": self.rows[0],
                "legend": {"entrywidth": 150},
                "xaxis": draw.axis("ms"),
                "yaxis": draw.named(self.rows),
            },
            head=str(self),
        ).drawn()


class Overlap(_Clock):
    """Forward and backward of four layers: what a GPU computes, and what travels meanwhile."""

    @cached_property
    def spans(self) -> Spans:
        """Row 0 is what is computed, row 1 what travels. A layer's weights travel during the one before."""
        passes = (self.cost.layer.forward, self.cost.layer.backward)
        travels = next(term.inputs for term in self.cost.terms if term.name == "exposed DP")
        zero = self.cost.layout.zero
        layer = passes[0]["GEMMs"].inputs["weights"] / self.cost.layout.tp / travels["numel"]
        gather = travels["gather"] * layer + travels["latency"]
        reduce = travels["scatter"] * layer + travels["latency"]
        if zero == 0:
            reduce += gather  # an all-reduce hands the sums round as well
        spans: Spans = {name: [] for name in COLOURS}

        def take(name: str, row: int, start: float, long: float) -> float:
            spans[name].append((row, start, long))
            return start + long

        now = free = begun = arrived = 0.0
        ready = False  # whether gradients of the layer before can travel
        for at in range(2 * LAYERS * self.micro_batches):
            batch, layers_done = divmod(at, 2 * LAYERS)
            back = layers_done >= LAYERS
            # ZeRO 1 and 2 hand the weights round once, after their update.
            if zero == 3 or (zero and at < LAYERS):
                free = arrived = take("weights arrive", 1, max(free, begun), gather)
            if ready:
                free = take("gradients are added up", 1, max(free, now), reduce)
            ready = back and (zero > 1 or batch == self.micro_batches - 1)
            begun = max(now, arrived)
            terms = {name: term.value for name, term in passes[back].items()}
            waits = terms.pop("exposed TP", 0.0)
            now = take("backward" if back else "forward", 0, begun, sum(terms.values()))
            if waits:
                now = take("waits for TP", 0, now, waits)
        take("gradients are added up", 1, max(free, now), reduce)
        return {name: each for name, each in spans.items() if each}

    @property
    def waiting(self) -> float:
        """The share of the time in which the GPU computes nothing."""
        end = max(start + long for spans in self.spans.values() for _, start, long in spans)
        return 1 - self.seconds("forward", "backward") / end

    @property
    def sentence(self) -> str:
        busy = self.seconds("forward", "backward")
        sent = self.seconds(*self.spans) - busy
        return (
            f"Four layers compute for {1e3 * busy:.3g} ms, and their messages take {1e3 * sent:.3g} ms. "
            f"For {self.waiting:.0%} of the time nothing is computed."
        )


class Roofline(_Clock):
    """The forward of one layer: how long its operations take at a GPU's peak, and how long its bytes."""

    rows = ("matrix products", "attention", "norms")
    width = 0.38

    @cached_property
    def spans(self) -> Spans:
        """Two bars for each row, in bfloat16, with each tensor moved once. The longer is what it takes."""
        once = self.cost.layer.forward
        n = once["GEMMs"].inputs
        wide = n["q"] + n["k"]
        moved = once["elementwise"].value * n["memory"]
        work = (2 * n["tokens"] * n["weights"], 2 * n["tokens"] ** 2 * n["q"], moved / 2)
        through = 2 * n["tokens"] * (7 * n["dim"] + 2 * wide + 3 * n["ffn"])
        sizes = (2 * n["weights"] + through, 4 * n["tokens"] * wide, moved)
        gpu = self.cost.gpu
        return {
            "computing takes": [(row - 0.2, 0.0, size / gpu.bfloat16) for row, size in enumerate(work)],
            "moving bytes takes": [(row + 0.2, 0.0, size / gpu.hbm_rate) for row, size in enumerate(sizes)],
        }

    @property
    def limited(self) -> list[str]:
        """The rows that memory limits."""
        pairs = zip(self.rows, *self.spans.values(), strict=True)
        return [name for name, computing, moving in pairs if moving[2] > computing[2]]

    @property
    def sentence(self) -> str:
        return f"Memory limits {', '.join(self.limited)}."


@checked_options
def overlap(tokens: int = 8192, tp: int = 1, zero: int = 3, micro_batches: int = 1) -> Overlap:
    """Four layers on a clock: tokens of a sequence, TP, ZeRO's stage, micro-batches of a sequence each."""
    layout = {"tp": tp, "dp": GROUPS, "zero": zero}
    batch = GROUPS * micro_batches
    timed = cost("llama3-8b", layout, seq_len=tokens, global_batch=batch, recompute="none")
    return Overlap(timed, micro_batches)


@checked_options
def roofline(tokens: int = 8192) -> Roofline:
    """One layer's forward under an H100's two limits, for some tokens."""
    return Roofline(cost("llama3-8b", {}, seq_len=tokens, global_batch=1, recompute="none"), 1)
