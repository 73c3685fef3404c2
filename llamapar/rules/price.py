"""What a change of a job gains and costs: memory, recomputed FLOPs, bytes on the wire, idle GPUs.

The collectives of tensor and context parallelism are those of `count.wire`. Other sources: pipelines and
their waiting arXiv:2104.04473 section 2.2, ZeRO arXiv:1910.02054 section 7. The wire leaves out the embedding
and the head, which are a small share. To gather or to scatter a tensor, a rank in a ring of n sends (n - 1)/n
of it, and twice that to reduce it to all.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from llamapar.count.terms import GIB
from llamapar.count.wire import block_rounds
from llamapar.describe.job import Job
from llamapar.describe.layout import Layout
from llamapar.describe.models import ModelConfig
from llamapar.errors import LlamaparError
from llamapar.frameworks import Framework
from llamapar.frameworks.habits import habits_of
from llamapar.place.schedule import of_layout
from llamapar.records.tables import Plain, plural

from .memory_rule import Load, load_of

ITEM, GRAD = 2, 4
"""Bytes of a bfloat16 parameter or activation, and of a float32 gradient when it is summed."""

WORTH_SAYING = 0.01
"""Costs smaller than this share are not mentioned."""

AGAIN = {
    "none": frozenset[str](),
    "selective": frozenset({"wk", "wo", "w3"}),
    "full": frozenset({"wq", "wk", "wv", "wo", "w1", "w2", "w3", "attention"}),
}
"""Recomputation → the parts of a layer that are computed again.

Selective is torchtitan's: every second matmul (pytorch/torchtitan,
torchtitan/parallelisms/parallelize_llama.py @004b3148a9); attention's output is kept.
"""


@lru_cache(maxsize=256)
def layer_numel(model: ModelConfig) -> Counter[str]:
    """Parameters of one layer, by key; both norms share a key."""
    found = Counter[str]()
    for p in model.replace(n_layers=1).parameters():
        if p.layer is not None:
            found[p.key] += p.numel
    return found


def flops_a_token(model: ModelConfig, seq_len: int, recompute: str) -> float:
    """FLOPs of a step per token: forward, backward, and recomputation.

    A matmul takes 2 FLOPs a parameter; causal attention 2·seq_len·q_dim in all, half of the square. The
    backward takes twice the forward (arXiv:2104.04473 appendix).
    """
    matmuls = ("wq", "wk", "wv", "wo", "w1", "w2", "w3")
    layer: dict[str, float] = {key: 2.0 * layer_numel(model)[key] for key in matmuls}
    layer["attention"] = 2.0 * seq_len * model.q_dim
    again = sum(layer[key] for key in AGAIN[recompute])
    return model.n_layers * (3 * sum(layer.values()) + again) + 6.0 * model.dim * model.vocab_size


def sequences_of(job: Job) -> int:
    """Sequences of a step; if unknown, as many as `memory` counts with."""
    batch = job.micro_batch or 1
    if job.global_batch is not None:
        return job.global_batch
    if job.batch_per_dp is not None:
        return job.batch_per_dp * job.layout.dp
    return (job.n_micro_batches or job.layout.usual_micro_batches) * batch * job.layout.dp


def wire_bytes(job: Job, seq_len: int, sequences: float, judge: Framework | None = None) -> dict[str, float]:
    """Axis → bytes that a rank sends in a step of `sequences`, over a ring; sources: see the module."""
    m, lay = job.model, job.layout
    full = job.recompute == "full"
    rounds = block_rounds(lay.sp, full)
    layers, own = m.n_layers / lay.pp, sequences / lay.dp
    stream = own * seq_len / lay.cp * m.dim * ITEM  # the residual stream of a step, whole over tp
    keys = own * seq_len * m.kv_dim / lay.tp * job.kv_replicas * ITEM
    boundaries = (lay.stages - 1) / lay.pp
    return {
        "tp": layers * rounds["tp"] * _ring(lay.tp) * stream,
        "cp": layers * rounds["cp"] * _ring(lay.cp) * keys,
        "pp": 2 * boundaries * stream / (lay.tp if lay.sp else 1),
        "dp": _states(job, layers, own / (job.micro_batch or 1), judge),
    }


def _states(job: Job, layers: float, micro_batches: float, judge: Framework | None) -> float:
    """Bytes of gradients and parameters between the ranks that share them, by ZeRO stage."""
    lay = job.layout
    numel = layers * sum(layer_numel(job.model).values()) / lay.tp
    shard, copies = lay.dp_shard * lay.cp, lay.dp_replicate
    if lay.zero == 0:
        return 2 * _ring(shard * copies) * numel * GRAD
    rounds = 1 if lay.zero == 1 or habits_of(judge).reduces_once(lay.pp) else micro_batches
    gathers = 2 * micro_batches if lay.zero == 3 else 1
    between_copies = 2 * _ring(copies) * numel / shard * GRAD
    return _ring(shard) * numel * (rounds * GRAD + gathers * ITEM) + between_copies


def _ring(ranks: int) -> float:
    return (ranks - 1) / ranks


CHUNKS = 512
"""The most passes of a micro-batch through a stage for which a schedule is walked.

That takes a hundredth of a second; a longer schedule's idle share is not given.
"""


def idle_share(job: Job, sequences: float) -> float | None:
    """The share of a step in which a rank waits for the pipeline (`Timeline.idle_share`); None if unknown.

    It is (pp - 1)/(v·m + pp - 1) for 1F1B and GPipe. Any other schedule is walked, with a backward twice as
    long as a forward.
    """
    lay = job.layout
    many = max(1.0, sequences / lay.dp / (job.micro_batch or 1))
    if lay.pp == 1 or job.schedule in ("1f1b", "gpipe"):
        return (lay.pp - 1) / (lay.virtual_stages * many + lay.pp - 1)
    # A table needs a whole number of micro-batches; the closed form above does not.
    if many != int(many) or lay.stages * many > CHUNKS:
        return None
    return _walked(job.schedule, lay, int(many))


@lru_cache(maxsize=256)
def _walked(schedule: str, layout: Layout, micro_batches: int) -> float | None:
    try:
        return of_layout(schedule, layout, micro_batches)[0].timeline().idle_share
    except LlamaparError:  # the schedule is not defined for so many
        return None


# -- a change --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Effect:
    """What a change of a job gains and costs. load: its memory afterwards; None if nothing can be counted.

    flops, wire: of all ranks, for the same tokens, as a multiple of the old value; None if unknown.
    idle_gpus: available GPUs that stay idle. idle_share: the share of a step in which ranks wait for the
    pipeline, before and after; None if unknown.
    """

    load: Load | None
    flops: float | None
    wire: float | None
    idle_gpus: int
    idle_share: tuple[float, float] | None

    @property
    def gain(self) -> str:
        """The memory of the worst rank afterwards: "61.30 GiB"; empty if every known GPU has that much.

        For an unknown trainer, "at most 61.30 GiB".
        """
        if self.load is None or not self.load.matters:
            return ""
        held = self.load.memory
        most = "at most " if held.high_bytes > held.worst.total_bytes else ""
        gib = f"{most}{held.high_bytes / GIB:.2f} GiB"
        return gib if self.load.whole else f"{gib} before activations"

    @property
    def price(self) -> list[str]:
        """Everything that costs more than before, in words."""
        found = [_more(self.flops, "FLOPs"), _more(self.wire, "bytes on the wire")]
        if self.idle_share and self.idle_share[1] - self.idle_share[0] >= WORTH_SAYING:
            before, after = self.idle_share
            found.append(f"GPUs idle {after:.0%} of a step in the pipeline, {before:.0%} before")
        if self.idle_gpus:
            found.append(f"{plural(self.idle_gpus, 'GPU')} idle")
        return [words for words in found if words]

    @property
    def text(self) -> str:
        """Gain and price in one line."""
        return ", ".join(filter(None, [self.gain, *self.price]))

    def as_dict(self) -> Plain:
        """Plain values for JSON; None for an unknown number."""
        return {
            "memory_bytes": self.load.memory.high_bytes if self.load else None,
            "flops": self.flops,
            "wire": self.wire,
            "idle_share": self.idle_share[1] if self.idle_share else None,
            "idle_gpus": self.idle_gpus,
        }


def _more(ratio: float | None, what: str) -> str:
    """A ratio in words: "31 % more FLOPs", "2.4 x the FLOPs", or nothing."""
    if ratio is None or ratio < 1 + WORTH_SAYING:
        return ""
    return f"{ratio - 1:.0%} more {what}" if ratio < 2 else f"{ratio:.1f} x the {what}"


def effect(old: Job, new: Job, judge: Framework | None) -> Effect:
    """What the change from `old` to `new` gains and costs.

    `new` gets as many sequences in a step as `old`, unless it states a batch itself. FLOPs and bytes need a
    sequence length.
    """
    old, new = (old, new) if judge is None else (judge.runs(old), judge.runs(new))
    there = old.gpus or old.layout.world
    idle = max(0, there - new.layout.world)
    held = load_of(new, judge) if judge is None or judge.trains else None  # the account is one of training
    if old.seq_len is None or new.seq_len is None:
        return Effect(held, None, None, idle, None)
    before = sequences_of(old)
    is_said = any((new.global_batch, new.batch_per_dp, new.micro_batches))
    after = sequences_of(new) if is_said else before
    again = flops_a_token(new.model, new.seq_len, new.recompute)
    flops = again / flops_a_token(old.model, old.seq_len, old.recompute)
    sent = _sent(old, old.seq_len, before, judge)
    wire = _sent(new, new.seq_len, after, judge) / sent if sent else None
    waits = None
    if (
        is_said
        and (first := idle_share(old, before)) is not None
        and (then := idle_share(new, after)) is not None
    ):
        waits = first, then
    return Effect(held, flops, wire, idle, waits)


def _sent(job: Job, seq_len: int, sequences: int, judge: Framework | None) -> float:
    """Bytes that all ranks send for one sequence."""
    return sum(wire_bytes(job, seq_len, sequences, judge).values()) * job.layout.world / sequences
