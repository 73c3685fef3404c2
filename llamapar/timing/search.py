"""Every layout of some GPUs with an estimate of its step, by which `plan` ranks them first.

Layers, data parallelism and the optimizer use `step`'s own formulas. Two things are closed forms. One is the
bubble of equal stages (arXiv:2104.04473 section 2.2). The other is a lower bound on `lp.memory`: parameters,
gradients and states, shared by ZeRO as evenly as possible, and what the first rank's layers keep of the
micro-batches in flight.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from llamapar.count.account import memory
from llamapar.count.in_flight import in_flight
from llamapar.count.terms import SHARES
from llamapar.describe.cp_methods import CpMethod
from llamapar.describe.job import Job
from llamapar.describe.layout import AXES, Layout, divisors
from llamapar.describe.models import ModelConfig
from llamapar.describe.splits import LAYER_SPLITS
from llamapar.errors import LlamaparError
from llamapar.frameworks import FRAMEWORKS, Framework, as_run, split_of
from llamapar.place.orders import ORDERS
from llamapar.place.schedule import SEVERAL
from llamapar.rules.memory_rule import least_bytes

from .layer import Conditions, layer
from .step import Sharing, head

RECOMPUTE = ("none", "selective", "full")
SPLIT = ("interleaved-zero-bubble", "zbv", "dualpipev")
"""Schedules that split backwards."""

EVERY_SCHEDULE = ("1f1b", "gpipe", *SPLIT)
"""The schedules that differ in a search.

Over several stages the first two are interleaved and looped breadth-first. The flexible one with rounds of
the pipeline's length is interleaved 1F1B.
"""

MOST_MICRO_BATCH = 16
"""The most sequences of a micro-batch that are tried."""

HIDDEN = 0.005
"""A pipeline's bubble, as a share of the step, below which no more virtual stages are tried."""

HEADROOM = 0.08
"""The share of a GPU's memory that should stay free: allocators keep more than is in use."""

LONG = 64
"""How many times longer the sequence is for which a layer's kept bytes are counted, and then divided.

They are in proportion to it; with a long one the worst moment is that of activations, not the optimizer's
step.
"""


class Degrees(NamedTuple):
    """The degrees of the four axes."""

    tp: int
    cp: int
    pp: int
    dp: int


class Candidate(NamedTuple):
    """A layout of the search. Candidates are ordered by the estimated seconds of a step.

    tight: by the estimate its GPU holds it only if its trainer needs less than is expected; these come last.
    """

    tight: bool
    seconds: float
    tp: int
    cp: int
    pp: int
    dp: int
    micro_batch: int
    virtual_stages: int
    zero: int
    recompute: str
    schedule: str
    layer_split: str
    """Empty for the job's own split, or else the trainer's."""
    dp_replicate: int = 1

    def job(self, job: Job, usual: str = "") -> Job:
        """The Job with this layout, and another Job's model and facts; the batch is the same.

        usual: the mode of recomputation that stays unsaid if the other Job does not say one.
        """
        names = (*AXES, "virtual_stages", "zero", "dp_replicate")
        layout = job.layout.replace(**{name: getattr(self, name) for name in names})
        # What the given facts say of a DP group's share of the batch follows the new dp.
        share = (job.sequences or 0) // self.dp
        many = share // self.micro_batch or job.micro_batches
        said = job.micro_batch is not None or self.micro_batch > 1
        return job.replace(
            layout=layout,
            micro_batch=self.micro_batch if said else None,
            batch_per_dp=share if job.batch_per_dp and share else job.batch_per_dp,
            micro_batches=many if job.micro_batches else None,
            recompute=job.recompute if self.recompute == usual else self.recompute,
            schedule=self.schedule,
            layer_split=self.layer_split or job.layer_split,
        )


@dataclass(frozen=True)
class Stages:
    """Layers of a pipeline. longest: of the longest stage. rank: of the rank with the most.

    last: of the rank with the head. first: of each of rank 0's stages, which keep the most activations.
    """

    longest: int
    rank: int
    last: int
    first: tuple[int, ...]


@lru_cache(maxsize=4096)
def stages_of(model: ModelConfig, pp: int, virtual_stages: int, split: str) -> Stages | None:
    """The Stages of a split; None if the split refuses."""
    try:
        counts = LAYER_SPLITS[split](model.n_layers, pp * virtual_stages, model.head_layers)
    except LlamaparError:
        return None
    # Loop placement: every pp-th stage lies on the same rank.
    ranks = [sum(counts[rank::pp]) for rank in range(pp)]
    return Stages(max(counts), max(ranks), ranks[-1], tuple(counts[::pp]))


@lru_cache(maxsize=256)
def kept_bytes(
    model: ModelConfig, tp: int, seq: int, recompute: str, copies: bool, judge: Framework | None
) -> tuple[float, float]:
    """Activations that a layer keeps of a sequence, at cp = 1: the least of any trainer, and as expected."""
    counted = [
        memory(
            model.replace(n_layers=n),
            Layout(tp=tp),
            seq_len=seq * LONG,
            global_batch=1,
            recompute=recompute,
            kv_replication=copies,
            framework=judge,
        )
        for n in (2, 1)
    ]
    # The difference of two and one layers leaves out the embedding, the head and the loss.
    ways = zip(*([one.worst, *(way.worst for way in one.others)] for one in counted), strict=True)
    kept = [(two.bytes("activations") - one.bytes("activations")) / LONG for two, one in ways]
    return min(kept), kept[0]


def bubble_of(pp: int, virtual_stages: int, many: int) -> int:
    """The bubble of 1F1B and GPipe in forwards plus backwards of a stage, with any number of stages a rank.

    It is pp - 1. With fewer micro-batches than ranks, every further stage of a rank also waits until the
    round is full.
    """
    return pp - 1 + (virtual_stages - 1) * max(0, pp - many)


def waits_of(
    schedule: str, pp: int, virtual_stages: int, many: int, forward: float, backward: float
) -> float:
    """Seconds that ranks wait for a pipeline with stages of `forward` and `backward` seconds.

    With split backwards, a full pipeline waits for one forward for each further rank, or for one half of a
    backward if that is longer. The schedule's table says the same if they are equal.
    """
    # A V has two stages a rank and is full with twice as many micro-batches.
    full = 2 * pp if ORDERS[schedule].placement == "v" else pp
    if schedule in SPLIT and many >= full:
        return (pp - 1) * max(forward, backward / 2)
    return bubble_of(pp, virtual_stages, many) * (forward + backward)


@lru_cache(maxsize=4096)
def chunks_of(schedule: str, pp: int, virtual_stages: int, many: int) -> tuple[int, ...] | None:
    """Micro-batches in flight on each of rank 0's stages; None if the schedule is not defined."""
    try:
        return in_flight(schedule, 0, pp, virtual_stages, many)
    except LlamaparError:
        return None


def candidates(job: Job, how: Conditions, gpus: int, judge: Framework | None = None) -> Iterator[Candidate]:
    """Layouts of exactly `gpus` ranks with even shards, and with weights and states that a GPU may hold.

    job: a model and a schedule, and if known seq_len and a batch; its layout gives what is not searched.
    judge: its layer splits, ZeRO stages, virtual stages and HSDP are tried; without one, all.
    """
    for degrees in degrees_of(job, gpus, judge):
        yield from of_degrees(job, how, degrees, judge, judge.zero if judge else range(4))


def degrees_of(job: Job, gpus: int, judge: Framework | None = None) -> Iterator[Degrees]:
    """Degrees of TP, CP, PP and DP with the product `gpus` that divide heads, sequence and batch."""
    seq, batch, layout = job.seq_len, job.sequences, job.layout
    ways = divisors(gpus)
    heads = job.model.n_heads
    kv = job.model.n_kv_heads
    # TP beyond the KV heads is tried only if they may be copied, each as often as the others.
    copies = as_run(judge, job.replace(layout=Layout(tp=2 * kv))).kv_replication
    whole = [tp for tp in ways if kv % tp == 0 or (copies and heads % tp == tp % kv == 0)]
    whole = whole[:1] if job.model.norms_width else whole  # what TP sends of them is not known
    for tp, cp in itertools.product(whole, ways):
        unit = (1 if layout.sequence_parallel is False else tp) * (2 * cp if cp > 1 else 1)
        method = CpMethod.of(job.cp_method or "all_gather", cp)
        if gpus % (tp * cp) or (seq and seq % unit) or method.refusal(job.model, tp, copies):
            continue
        for pp in divisors(gpus // (tp * cp)):
            dp = gpus // (tp * cp * pp)
            # Embedding and head count as a layer each, so there may be two stages more than layers.
            if pp <= job.model.n_layers + 2 and not (batch and batch % dp):
                yield Degrees(tp, cp, pp, dp)


def of_degrees(
    job: Job, how: Conditions, degrees: Degrees, judge: Framework | None, zeros: Collection[int]
) -> Iterator[Candidate]:
    """Every micro-batch size, number of virtual stages, ZeRO stage, HSDP and recomputation of degrees."""
    model, (tp, cp, pp, dp) = job.model, degrees
    # TP and CP alone decide a layer's time, so layouts that differ only in the rest share a cache entry.
    own = job.layout.replace(tp=tp, cp=cp, pp=1, dp=1, virtual_stages=1, dp_replicate=1, zero=1)
    # Where neither the length nor the batch is known, the least that the layout can take.
    seq = job.seq_len or tp * 2 * cp
    sequences = job.sequences // dp if job.sequences else 2 * pp * (job.micro_batch or 1)
    room = how.gpu.hbm_bytes
    # Nothing is shared with one rank, so ZeRO's stages are one and the same; one stands for all.
    if cp * dp == 1:
        zeros = [job.layout.zero if job.layout.zero in zeros else min(1, max(zeros))]
    splits = tuple(dict.fromkeys((split_of(judge, job.layer_split), *splits_of(judge))))
    splits = splits if pp > 1 else splits[:1]
    shared = [
        (
            zero,
            copies,
            cp * dp // copies,
            Sharing.of(how, own.replace(pp=pp, dp=dp, zero=zero, dp_replicate=copies)),
        )
        for zero in zeros
        for copies in (divisors(dp) if zero and (judge is None or judge.hsdp) else (1,))
        if copies in (1, job.layout.dp_replicate) or copies < cp * dp
    ]
    numel = model.layer_params / tp
    sizes = {*divisors(min(sequences, MOST_MICRO_BATCH)), job.micro_batch or 1}
    for batch in sorted(n for n in sizes if sequences % n == 0):
        many = sequences // batch
        # Filled at most once for each micro-batch size: name, bytes kept, and seconds forward, backward
        # and of the head.
        kinds: list[tuple[str, tuple[float, float], float, float, float]] = []
        exposed: dict[tuple[int, int, int, str], float] = {}
        for v, split, made in _stagings(job, pp, many, splits, judge):
            flying = chunks_of(job.schedule, pp, v, many)
            if flying is None:
                continue
            chunks = sum(layers * n for layers, n in zip(made.first, flying, strict=True)) * batch / cp
            named = {"micro_batches": many, "layers": made.rank}
            params = int(made.rank * numel)
            # Seconds without what ZeRO sends, which the ZeRO stages below share.
            alone: dict[str, float] = {}
            # Copies of the shards take memory, so more of them are kept only where they are faster.
            fastest: dict[tuple[int, str], float] = {}
            for zero, copies, shards, sharing in shared:
                # Both tests are lower bounds, so a layout that fails one certainly does not fit; the
                # exact count comes later.
                if least_bytes(made.rank * numel, zero, shards, judge) > room:
                    continue
                states = sum(made.first) * numel, zero, shards
                # Where no trainer is named, states are expected in float32, as nearly all have them.
                likely = least_bytes(*states, judge or FRAMEWORKS["torchtitan"])
                held = least_bytes(*states, judge, many > 1)
                # Made only if some layout survives the bound on states, because counting a layer is the slow
                # part.
                kinds = kinds or [
                    (
                        name,
                        kept_bytes(model, tp, seq, name, job.kv_replication, judge),
                        *_seconds(how, name, model, own, seq, batch),
                    )
                    for name in RECOMPUTE
                ]
                for name, kept, forward, backward, ends in kinds:
                    least, expected = (chunks * each for each in kept)
                    if max(held, (held + least) * SHARES["needs"][0]) > room:
                        continue
                    if name not in alone:
                        each = forward + backward
                        # The busiest rank has most layers, or fewer and the head.
                        busy = many * max(made.rank * each, made.last * each + ends)
                        alone[name] = busy + waits_of(
                            job.schedule, pp, v, many, made.longest * forward, made.longest * backward
                        )
                    alike = zero, copies, made.rank, name
                    if alike not in exposed:
                        terms = sharing.terms(params, named, (forward, backward))
                        exposed[alike] = sum(term.value for term in terms)
                    seconds = alone[name] + exposed[alike]
                    before = fastest.setdefault((zero, name), seconds)
                    if copies == 1 or seconds < before or copies == job.layout.dp_replicate:
                        fastest[zero, name] = min(before, seconds)
                        other = "" if split == splits[0] else split
                        yield Candidate(
                            likely + expected > room * (1 - HEADROOM),
                            seconds,
                            *degrees,
                            batch,
                            v,
                            zero,
                            name,
                            job.schedule,
                            other,
                            copies,
                        )


def unsearched(
    job: Job, asked: Job, how: Conditions, schedules: tuple[str, ...], judge: Framework | None
) -> str:
    """Why the search does not try a job that passes, in words; empty if it does."""
    lay = job.layout
    own = asked.layout
    title = judge.title if judge else ""
    if judge and lay.zero not in judge.zero and lay.dp_shard * lay.cp > 1:
        return f"{title} has no ZeRO {lay.zero}, but {', '.join(map(str, judge.zero))}"
    if judge and lay.dp_replicate > 1 and not judge.hsdp:
        return f"{title} has no HSDP, so dp_replicate={lay.dp_replicate} is not there"
    if judge and lay.virtual_stages > 1 and not judge.interleaves:
        return f"{title} gives a rank one stage"
    if (job.micro_batch or 1) > MOST_MICRO_BATCH:
        return f"micro-batches of at most {MOST_MICRO_BATCH} sequences are tried"
    if job.schedule not in schedules:
        return f"only {', '.join(schedules)} is searched"
    kept = [name for name in ("order", "sequence_parallel") if getattr(lay, name) != getattr(own, name)]
    if kept:
        return f"{kept[0]} stays {getattr(own, kept[0])} in the search"
    heads = job.model.n_heads if as_run(judge, job).kv_replication else job.model.n_kv_heads
    if heads % lay.tp:
        return f"tp={lay.tp} does not divide {heads} KV heads, and kv_replication is off"
    degrees = Degrees(*(lay.size(axis) for axis in AXES))
    found = of_degrees(job.replace(layout=own), how, degrees, judge, [lay.zero])
    key = (job.micro_batch, lay.virtual_stages, lay.zero, job.recompute, lay.dp_replicate)
    there = any((c.micro_batch, c.virtual_stages, c.zero, c.recompute, c.dp_replicate) == key for c in found)
    return "" if there else "another layout of these degrees takes less memory or stages and is as fast"


def splits_of(judge: Framework | None) -> tuple[str, ...]:
    """How a trainer may split layers over stages, its own way first."""
    return split_of(judge), *(judge.layer_splits if judge else ())


def _stagings(
    job: Job, pp: int, many: int, splits: tuple[str, ...], judge: Framework | None
) -> Iterator[tuple[int, str, Stages]]:
    """Numbers of virtual stages with layer splits.

    Uneven stages are left out where neither the longest of them nor the fullest rank has fewer layers.
    """
    own = ORDERS[job.schedule].virtual_stages
    ways: Iterable[int] = range(1, max(1, (job.model.n_layers + 2) // pp) + 1)
    if own is not None and job.schedule not in SEVERAL:
        # ZBV and DualPipeV fix two stages a rank. 1f1b and gpipe fix one, but have looped forms for several.
        ways = (own,)
    elif pp == 1 or many % max(1, many // pp) or (judge and not judge.interleaves):
        ways = (1,)
    for split in splits:
        found: list[Stages] = []
        hidden = 1
        for v in ways:
            made = stages_of(job.model, pp, v, split)
            if made is None:
                continue
            # The bubble is (pp - 1) / (v · many) of the step; once a smaller v hides it, more gain nothing.
            shorter = all(made.longest < old.longest or made.rank < old.rank for old in found)
            gains = not found or (pp - 1) > HIDDEN * hidden * many
            even = any(layers % (pp * v) == 0 for layers in (job.model.n_layers, job.model.n_layers + 2))
            if ((shorter or even) and gains) or v == job.layout.virtual_stages:
                found.append(made)
                hidden = v
                yield v, split, made


@lru_cache(maxsize=8192)
def _seconds(
    how: Conditions, recompute: str, model: ModelConfig, own: Layout, seq: int, batch: int
) -> tuple[float, float, float]:
    """Seconds of a layer forward and backward, and of the head in both."""
    how = replace(how, recompute=recompute)
    forward, backward = layer(how, model, own, seq, batch).seconds
    ends = head(how, model, own, batch * seq / own.cp)
    return forward, backward, ends[0].value + ends[1].value
