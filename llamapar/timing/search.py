"""Every layout of some GPUs with an estimate of its step, by which `plan` ranks them first.

Layers, data parallelism and the optimizer use `step`'s own formulas. Two things are closed forms. One is the
bubble of equal stages (arXiv:2104.04473 section 2.2). The other is a lower bound on `lp.memory`: parameters,
gradients and states, shared by ZeRO as evenly as possible, and what the first rank's layers keep of the
micro-batches in flight.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from llamapar.count.account import memory
from llamapar.count.in_flight import in_flight
from llamapar.count.terms import SHARES
from llamapar.describe.job import Job
from llamapar.describe.layout import Layout, divisors
from llamapar.describe.models import ModelConfig
from llamapar.describe.splits import LAYER_SPLITS
from llamapar.errors import LlamaparError
from llamapar.frameworks import Framework
from llamapar.place.orders import ORDERS
from llamapar.place.schedule import SEVERAL
from llamapar.rules.memory_rule import layers_numel, least_bytes

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

MOST_MICRO_BATCH = 8
"""The most sequences of a micro-batch that are tried."""

LONG = 64
"""How many times longer the sequence is for which a layer's kept bytes are counted, and then divided.

They are in proportion to it; with a long one the worst moment is that of activations, not the optimizer's
step.
"""


class Candidate(NamedTuple):
    """A layout of the search. Candidates are ordered by the estimated seconds of a step."""

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
    """Empty for the trainer's own split."""

    def job(self, job: Job) -> Job:
        """The Job with this layout, and another Job's model and facts."""
        layout = job.layout.replace(
            tp=self.tp,
            cp=self.cp,
            pp=self.pp,
            dp=self.dp,
            virtual_stages=self.virtual_stages,
            zero=self.zero,
            dp_replicate=1,
        )
        return job.replace(
            layout=layout,
            micro_batch=self.micro_batch,
            recompute=self.recompute,
            schedule=self.schedule,
            layer_split=self.layer_split or None,
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
def stages_of(n_layers: int, pp: int, virtual_stages: int, split: str) -> Stages | None:
    """The Stages of a split; None if the split refuses."""
    try:
        counts = LAYER_SPLITS[split](n_layers, pp * virtual_stages)
    except LlamaparError:
        return None
    # Loop placement: every pp-th stage lies on the same rank.
    ranks = [sum(counts[rank::pp]) for rank in range(pp)]
    return Stages(max(counts), max(ranks), ranks[-1], tuple(counts[::pp]))


@lru_cache(maxsize=256)
def kept_bytes(
    model: ModelConfig, tp: int, seq: int, recompute: str, copies: bool, judge: Framework | None
) -> float:
    """Lower bound on the activations that a layer keeps of a sequence until its backward, at cp = 1."""
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
    return min(two.bytes("activations") - one.bytes("activations") for two, one in ways) / LONG


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


def candidates(
    job: Job, how: Conditions, gpus: int, most_tp: int, judge: Framework | None = None
) -> Iterator[Candidate]:
    """Layouts of exactly `gpus` ranks with even shards, and with weights and states that a GPU may hold.

    job: a model, seq_len, global_batch and a schedule; its layout gives what is not searched. judge: its
    layer splits, ZeRO stages and virtual stages are tried; without one, all.
    """
    model, seq, batch = job.model, job.seq_len or job.model.max_seq_len, job.global_batch or 1
    ways = divisors(gpus)
    # TP beyond the KV heads is tried only if they may be copied.
    heads = model.n_heads if job.kv_replication else model.n_kv_heads
    tps = [tp for tp in ways if heads % tp == 0 and tp <= most_tp]
    for tp, cp in itertools.product(tps, ways):
        if gpus % (tp * cp) or seq % (tp * (2 * cp if cp > 1 else 1)):
            continue
        # TP and CP alone decide a layer's time, so layouts that differ only in the rest share a cache
        # entry.
        own = job.layout.replace(tp=tp, cp=cp, pp=1, dp=1, virtual_stages=1, dp_replicate=1, zero=1)
        for pp in divisors(gpus // (tp * cp)):
            dp = gpus // (tp * cp * pp)
            # Embedding and head count as a layer each, so there may be two stages more than layers.
            if pp <= model.n_layers + 2 and batch % dp == 0:
                yield from _of_degrees(job, how, own, pp, dp, judge)


def _of_degrees(
    job: Job, how: Conditions, own: Layout, pp: int, dp: int, judge: Framework | None
) -> Iterator[Candidate]:
    """Every micro-batch size, number of virtual stages, ZeRO stage and recomputation.

    own: the layout of TP and CP alone, which determine a layer's time.
    """
    model, sequences = job.model, (job.global_batch or 1) // dp
    seq = job.seq_len or model.max_seq_len
    shards, room = own.cp * dp, how.gpu.hbm_bytes
    zeros = judge.zero if judge else range(4)
    # Nothing is shared with one rank, so ZeRO's stages are one and the same; one stands for all.
    if shards == 1:  # then stages are alike
        zeros = (min(1, max(zeros)),)
    splits = splits_of(judge) if pp > 1 else splits_of(judge)[:1]
    shared = {zero: Sharing.of(how, own.replace(pp=pp, dp=dp, zero=zero)) for zero in zeros}
    numel = layers_numel(model) / model.n_layers / own.tp
    for batch in (n for n in divisors(min(sequences, MOST_MICRO_BATCH)) if sequences % n == 0):
        many = sequences // batch
        # Filled at most once for each micro-batch size: name, bytes kept, and seconds forward, backward
        # and of the head.
        kinds: list[tuple[str, float, float, float, float]] = []
        exposed: dict[tuple[int, int, str], float] = {}
        ways = _virtual(model, pp, many, job.schedule, judge)
        for v, split in itertools.product(ways, splits):
            made = stages_of(model.n_layers, pp, v, split)
            flying = chunks_of(job.schedule, pp, v, many)
            if made is None or flying is None:
                continue
            chunks = sum(layers * n for layers, n in zip(made.first, flying, strict=True)) * batch / own.cp
            named = {"micro_batches": many, "layers": made.rank}
            params = int(made.rank * numel)
            # Seconds without what ZeRO sends, which the ZeRO stages below share.
            alone: dict[str, float] = {}
            for zero, sharing in shared.items():
                # Both tests are lower bounds, so a layout that fails one certainly does not fit; the
                # exact count comes later.
                if least_bytes(made.rank * numel, zero, shards, judge) > room:
                    continue
                held = least_bytes(sum(made.first) * numel, zero, shards, judge, many > 1)
                # Made only if some layout survives the bound on states, because counting a layer is the slow
                # part.
                kinds = kinds or [
                    (
                        name,
                        kept_bytes(model, own.tp, seq, name, job.kv_replication, judge),
                        *_seconds(how, name, model, own, seq, batch),
                    )
                    for name in RECOMPUTE
                ]
                for name, kept, forward, backward, ends in kinds:
                    if max(held, (held + chunks * kept) * SHARES["needs"][0]) > room:
                        continue
                    if name not in alone:
                        each = forward + backward
                        stage = made.longest * forward, made.longest * backward
                        # The busiest rank has most layers, or fewer and the head.
                        busy = many * max(made.rank * each, made.last * each + ends)
                        alone[name] = busy + waits_of(job.schedule, pp, v, many, *stage)
                    alike = zero, made.rank, name
                    if alike not in exposed:
                        terms = sharing.terms(params, named, (forward, backward))
                        exposed[alike] = sum(term.value for term in terms)
                    seconds = alone[name] + exposed[alike]
                    other = "" if split == splits[0] else split
                    yield Candidate(
                        *(seconds, own.tp, own.cp, pp, dp, batch, v, zero, name, job.schedule, other)
                    )


def splits_of(judge: Framework | None) -> tuple[str, ...]:
    """How a trainer may split layers over stages, its own way first."""
    return (judge and judge.layer_split) or "balanced ends", *(judge.layer_splits if judge else ())


def _virtual(model: ModelConfig, pp: int, many: int, schedule: str, judge: Framework | None) -> Iterator[int]:
    """Numbers of virtual stages to try: the schedule's own; else 1, equal stages, and powers of two."""
    if ORDERS[schedule].virtual_stages is not None and schedule not in SEVERAL:
        # ZBV and DualPipeV fix two stages a rank. 1f1b and gpipe fix one, but have looped forms for
        # several.
        yield ORDERS[schedule].virtual_stages or 1
        return
    yield 1
    if pp == 1 or many % max(1, many // pp) or (judge and not judge.interleaves):
        return
    # Equal stages, with or without the ends counted as layers; powers of two besides, as people choose
    # them.
    counted = model.n_layers, model.n_layers + 2
    for v in range(2, counted[1] // pp + 1):
        if v & (v - 1) == 0 or any(n % (pp * v) == 0 for n in counted):
            yield v


@lru_cache(maxsize=8192)
def _seconds(
    how: Conditions, recompute: str, model: ModelConfig, own: Layout, seq: int, batch: int
) -> tuple[float, float, float]:
    """Seconds of a layer forward and backward, and of the head in both."""
    how = replace(how, recompute=recompute)
    forward, backward = layer(how, model, own, seq, batch).seconds
    ends = head(how, model, own, batch * seq / own.cp)
    return forward, backward, ends[0].value + ends[1].value
