"""A step of a job on its busiest rank: compute, the pipeline, data parallelism, the optimizer.

The work of the busiest rank is added up from its layers. The schedule's timeline, with the work of every
stage, then says how much longer the step takes than that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from llamapar.count.account import micro_batches_of
from llamapar.count.sizes import Sizes, StageHold
from llamapar.count.terms import Term, evaluated
from llamapar.describe.job import Job
from llamapar.describe.layout import Layout
from llamapar.describe.models import ModelConfig
from llamapar.place.orders import ORDERS
from llamapar.place.schedule import ends_of, own_name

from .layer import STREAM, Conditions, Pass, layer
from .rings import HOP, NET_HOP, START, Ring

STRAGGLING = 0.01
"""The share of a step by which the slowest of many machines lags.

Throughput varies by 1 to 2 % in a day (arXiv:2407.21783 section 3.3.4).
"""

STATES = 30
"""Bytes that AdamW moves for a parameter.

The float32 weight, two moments and the gradient are read, the first three written, and the parameter written
in 16 bits.
"""

LOSS = {"fused": 10, "eager": 26}
"""Kernels → bytes that the loss moves for a logit in its forward, and again in its backward.

The logit is read, written in float32, and read once more. Without fusion, log-softmax and its float32 copies
come on top.
"""

GRAD, ITEM = 4, 2
"""Bytes of a gradient when ranks sum it, and of a parameter when it is gathered."""

OfRank = tuple[int, float, float, tuple[float, float]]
"""A rank's parameters before ZeRO, micro-batches, layers, and a layer's forward and backward seconds."""

_ZERO = "arXiv:1910.02054 section 7; exposed: Scaling Llama 3 Training, ISCA 2025, section 7.3"


@dataclass(frozen=True)
class Ranks:
    """The ranks of a pipeline. durations: forward and backward seconds of each stage, first stage first.

    hold: what the busiest rank holds. busy: seconds of its work for a micro-batch.
    """

    durations: tuple[tuple[float, float], ...]
    hold: StageHold
    busy: float

    @classmethod
    def of(cls, sizes: Sizes, phases: tuple[float, float], ends: tuple[float, float]) -> Ranks:
        """The ranks, from forward and backward seconds of a layer (phases) and of the head (ends)."""
        counts = sizes.cut.stages.counts
        durations = []
        for stage, count in enumerate(counts):
            last = stage == len(counts) - 1
            durations.append((count * phases[0] + last * ends[0], count * phases[1] + last * ends[1]))
        busy = [sum(hold.layers) * sum(phases) + hold.head * sum(ends) for hold in sizes.stages]
        most = busy.index(max(busy))
        return cls(tuple(durations), sizes.stages[most], busy[most])


def head(how: Conditions, model: ModelConfig, layout: Layout, tokens: float) -> tuple[Term, Term]:
    """The head and the loss of a micro-batch, forward and backward."""
    inputs = {
        "tokens": tokens,
        "dim": model.dim,
        "vocab": model.vocab_size,
        "tp": layout.tp,
        "rate": how.gpu.sustains("bfloat16"),
        "memory": how.gpu.hbm_rate * STREAM,
        "moved": LOSS[how.kernels],
    }
    once = "2 * tokens * dim * vocab / tp / rate + moved * tokens * vocab / tp / memory"
    twice = "4 * tokens * dim * vocab / tp / rate + moved * tokens * vocab / tp / memory"
    return Term("head", once, inputs, "2 FLOPs a weight"), Term("head", twice, inputs, "2 FLOPs a weight")


def rings_of(how: Conditions, layout: Layout, copies: int) -> tuple[Ring, Ring]:
    """Two rings of ranks with the same parameters: those with other shards, and those with copies of one."""
    gpu, ways, stride = how.gpu, layout.dp // copies, layout.stride("dp")
    inside = Ring.of(gpu, layout.cp, layout.stride("cp")).inside * Ring.of(gpu, ways, stride).inside
    # The joint axis is on fast links as far as both of its parts are.
    return Ring(layout.cp * ways, inside), Ring.of(gpu, copies, stride * ways)


@dataclass(frozen=True)
class Sharing:
    """The time of data parallelism and of the optimizer, by the ranks that share parameters.

    shards: ranks that share the states. scatter, gather: seconds that one parameter's gradient, and the
    parameter itself, travels. memory: bytes/s. exposed: of EXPOSED_DP, EXPOSED_AFTER or EXPOSED_ALONE.
    slowed: of SLOWED_DP, or "". named: inputs that are the same for every rank. once: `Habits.reduces_once`.
    """

    shards: int
    scatter: float
    gather: float
    memory: float
    exposed: str
    slowed: str
    named: Mapping[str, float]
    once: bool

    @cached_property
    def together(self) -> str:
        """The formula of their sum."""
        return " + ".join(filter(None, (self.exposed, self.slowed, _OPTIMIZER)))

    @classmethod
    def of(cls, how: Conditions, layout: Layout, zero: int, replicas: int) -> Sharing:
        """The Sharing of a layout's degrees under conditions, with a ZeRO stage and copies of its shards."""
        shards, copies = rings_of(how, layout, replicas)
        habits = how.habits
        # Float8 weights are one byte each.
        gathered = ITEM
        if how.low_gather and zero == 3:
            gathered = 1
        # Copies of the shards all-reduce them: twice the ring, but only a shard each.
        grad = GRAD
        if habits.grads_in_dtype:
            grad = ITEM
        between = 2 * (copies.size - 1) / copies.size / shards.size * grad / copies.rate(how.gpu)
        along = (shards.size - 1) / shards.size / shards.rate(how.gpu)
        once = habits.reduces_once(layout.pp)
        # ZeRO 2 that reduces once a step communicates like ZeRO 1.
        like = zero
        if once and zero == 2:
            like = 1
        exposed = EXPOSED_DP[like]
        slowed = SLOWED_DP[like]
        tensors = 0
        if habits.reduces_after and zero == 1:
            exposed = EXPOSED_AFTER
            slowed = ""
            tensors = habits.reduces_after
        if habits.gathers_alone and zero == 3:
            exposed = EXPOSED_ALONE
            slowed = ""
            tensors = habits.gathers_alone
        if shards.size * copies.size == 1:
            exposed = slowed = ""
        named = {
            "latency": shards.latency * (shards.size > 1),
            # A slower network's collectives move fewer bytes in a second through the memory.
            "slowed": SLOWED * shards.rate(how.gpu) / (how.gpu.link_rate * how.gpu.link),
            # Of the two last formulas: a layer's tensors that are copied in a piece for each rank.
            "tensors": tensors,
            "ranks": shards.size,
            "launch": LAUNCH,
            # What is recomputed is gathered once more.
            "gathers": 3 if how.recompute == "full" else 2,
        }
        own = 1
        if zero:
            own = shards.size
        memory = how.gpu.hbm_rate * STREAM
        sent = along * grad + between, along * gathered
        return cls(own, *sent, memory, exposed, slowed, named, once)

    def seconds(self, *of_rank: *OfRank) -> float:
        """The sum of `terms`."""
        return evaluated(self.together, self._inputs(*of_rank))

    def terms(self, *of_rank: *OfRank) -> list[Term]:
        """What its collectives cost, beside compute and by slowing it; AdamW's step over a rank's share."""
        inputs = self._inputs(*of_rank)
        rows = (
            ("exposed DP", self.exposed, _ZERO),
            ("slowed by DP", self.slowed, "arXiv:2507.03114"),
            ("optimizer", _OPTIMIZER, "AdamW's states, read and written"),
        )
        return [Term(name, formula, inputs, source) for name, formula, source in rows if formula]

    def _inputs(
        self, numel: int, micro_batches: float, layers: float, phases: tuple[float, float]
    ) -> dict[str, float]:
        return {
            **self.named,
            "micro_batches": micro_batches,
            "reductions": 1.0 if self.once else micro_batches,
            "scatter": self.scatter * numel,
            "gather": self.gather * numel,
            "forward": layers * phases[0],
            "backward": layers * phases[1],
            "layers": max(1.0, layers),
            "copied": 4 * ITEM * numel / self.memory,
            "numel": float(numel),
            "shards": float(self.shards),
            "memory": self.memory,
        }


_OPTIMIZER = f"{STATES} * numel / shards / memory"

SLOWED = 0.189
"""Seconds that compute takes longer for a second of collectives over the fast link beside it.

Both use the same memory and cores. It is an average over models trained on A100, H100 and AMD's GPUs
(arXiv:2507.03114, abstract), and agrees with the rows of ZeRO 3, which take the longer the more is sent
beside their compute.
"""

_WEIGHTS = "(gather + layers * latency)"
_LAST = "(gather + scatter + 2 * layers * latency)"
EXPOSED_DP = {
    # twice the ring, beside the last micro-batch's backward
    0: "max((scatter + gather) / layers, scatter + gather - backward) + latency",
    1: "max(scatter / layers, scatter - backward) + max(gather / layers, gather - forward) + 2 * latency",
    2: "scatter / layers + reductions * max(0, scatter - backward)"
    " + max(gather / layers, gather - forward) + 2 * latency",
    3: f"(scatter + gather) / layers + 2 * latency + micro_batches * max(0, {_WEIGHTS} - forward)"
    f" + (micro_batches - reductions) * max(0, {_WEIGHTS} - backward)"
    f" + reductions * max(0, {_LAST} - backward)",
}
"""ZeRO stage → the time of gradients and parameters in flight that compute does not hide.

That is the last layer's reduction and the first layer's gather, and whatever takes longer than the compute of
the micro-batch beside it.
"""

SLOWED_DP = {
    0: "slowed * min(scatter + gather, backward)",
    1: "slowed * (min(scatter, backward) + min(gather, forward))",
    2: "slowed * (reductions * min(scatter, backward) + min(gather, forward))",
    3: f"slowed * (micro_batches * min({_WEIGHTS}, forward)"
    f" + (micro_batches - reductions) * min({_WEIGHTS}, backward) + reductions * min({_LAST}, backward))",
}
"""ZeRO stage → how much longer compute takes because of what it hides."""

EXPOSED_AFTER = "2 * scatter + gather + 3 * latency + layers * tensors * ranks * launch"
"""The same if nothing is hidden and gradients are reduced whole, which is two rings: see `Habits`."""

EXPOSED_ALONE = (
    "micro_batches * (gathers * gather + scatter"
    " + (gathers + 1) * (copied + layers * tensors * (latency + ranks * launch)))"
)
"""The same if every tensor travels alone with nothing beside it, and is copied rank by rank: see `Habits`.

copied: its buffer is filled with zeros, a second one takes what arrives, and that is read and written.
"""

LAUNCH = 1e-5
"""Seconds in which the host slices a tensor, views a buffer and copies one to the other.

Assumed: three calls of PyTorch of some 3 microseconds each. The seen rows of 128 ranks leave that much for
it.
"""


@dataclass(frozen=True)
class Step:
    """A step's terms, which add up to it, and the layer that they are made of. many: micro-batches."""

    terms: tuple[Term, ...]
    layer: Pass
    many: int

    @classmethod
    def of(cls, job: Job, how: Conditions, split: str | Sequence[int]) -> Step:
        """The step of a Job, with the timeline of its schedule. Raises LayoutError."""
        model = job.model
        lay = job.layout
        batch = job.micro_batch_size
        seq = job.seq_len or model.max_seq_len
        many = micro_batches_of(job)
        sizes = Sizes(
            model,
            lay,
            seq_len=seq,
            micro_batch=batch,
            kv_replication=job.kv_replication,
            layer_split=split,
            placement=ORDERS[job.schedule].placement,
        )
        each = layer(how, model, lay, seq, batch)
        tokens = batch * seq / lay.cp
        ends = head(how, model, lay, tokens)
        phases = each.seconds
        ranks = Ranks.of(sizes, phases, (ends[0].value, ends[1].value))
        named = {"micro_batches": float(many), "layers": float(sum(ranks.hold.layers))}
        terms = []
        for name, once in each.forward.items():
            inputs = named | {"forward": once.value, "backward": each.backward[name].value}
            formula = "micro_batches * layers * (forward + backward)"
            terms.append(Term(name, formula, inputs, once.source))
        # The busiest rank need not hold the head; only its own work counts here, and the timeline has the
        # others'.
        if ranks.hold.head:
            inputs = named | {"forward": ends[0].value, "backward": ends[1].value}
            terms.append(
                Term("head and loss", "micro_batches * (forward + backward)", inputs, ends[0].source)
            )
        busy = many * ranks.busy
        if lay.pp > 1:
            terms += _pipeline(job, how, ranks, many, tokens)
        numel, layers = _fullest(sizes)
        sharing = Sharing.of(how, lay, lay.zero, lay.dp_replicate)
        terms += sharing.terms(numel, float(many), float(layers), phases)
        # The share was observed over many machines, so a single one gets none.
        if lay.world > how.gpu.domain:
            inputs = {"busy": busy, "share": STRAGGLING}
            terms.append(Term("stragglers", "share * busy", inputs, "arXiv:2407.21783 section 3.3.4"))
        return cls(tuple(terms), each, many)


def _fullest(sizes: Sizes) -> tuple[int, int]:
    """Parameters and layers of the rank with most to share and to update, and least to hide it beside.

    The busiest rank would not do: which one it is depends on the GPU's speed, and a faster link would then
    slow a step.
    """
    # The negative number of layers makes max prefer the rank with fewer of them among equals.
    numel, fewer = max((sizes.params(hold, by_row=False), -sum(hold.layers)) for hold in sizes.stages)
    return numel, -fewer


def _pipeline(job: Job, how: Conditions, ranks: Ranks, many: int, tokens: float) -> list[Term]:
    """What the pipeline adds to the busiest rank's work: its timeline with and without transfers."""
    lay = job.layout
    # Two neighbours of the pipeline: a ring of two, on the fast link only if both are in its domain.
    ring = Ring.of(how.gpu, 2, lay.stride("pp"))
    hop = NET_HOP
    if ring.inside == ring.size:
        hop = HOP
    p2p = tokens * job.model.dim * ITEM / lay.sp_ways / ring.rate(how.gpu) + START + hop
    shape = (job.schedule, lay.pp, lay.virtual_stages, many, job.nc)
    bare, sent = _ends(*shape, ranks.durations, p2p)
    source = f"the timeline of {ORDERS[own_name(job.schedule, lay.virtual_stages)].title}"
    return [
        Term("pipeline idle", "end - busy", {"end": bare, "busy": many * ranks.busy}, source),
        Term("exposed P2P", "with_transfers - end", {"with_transfers": sent, "end": bare}, source),
    ]


@lru_cache(maxsize=256)
def _ends(
    name: str,
    pp: int,
    virtual_stages: int,
    many: int,
    nc: int | None,
    durations: tuple[tuple[float, float], ...],
    p2p: float,
) -> tuple[float, float]:
    """When the last rank of a schedule is done, without transfers and with them.

    Cached, because ZeRO stages differ only in other terms.
    """
    # A split backward is taken as two equal halves: matmuls compute as much for inputs as for weights.
    kinds = [{"F": forward, "B": back, "I": back / 2, "W": back / 2} for forward, back in durations]
    return ends_of(name, pp, virtual_stages, many, nc, kinds, p2p)
