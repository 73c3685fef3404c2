"""Every layout of some GPUs with an estimate of its step, by which `plan` ranks them first.

Layers, data parallelism and the optimizer use `step`'s own formulas. Two things are closed forms. One is the
bubble, in `stagings`. The other is a lower bound on `lp.memory`: parameters, gradients and states, shared by
ZeRO as evenly as possible, and what the layers of rank 0 or 1 keep of the micro-batches in flight.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import chain
from typing import NamedTuple

from llamapar.count.account import memory
from llamapar.count.exact import ALLOCATOR, CONTEXT
from llamapar.count.terms import SHARES
from llamapar.describe.cp_methods import CpMethod
from llamapar.describe.job import Job
from llamapar.describe.layout import AXES, Layout, divisors
from llamapar.describe.models import ModelConfig
from llamapar.frameworks import FRAMEWORKS, Framework, as_run, split_of
from llamapar.rules.memory_rule import least_bytes

from .layer import Conditions, layer
from .stagings import Staging, stagings_of, waits_of
from .step import GRAD, ITEM, Sharing, head

RECOMPUTE = ("none", "selective", "full")
MOST_MICRO_BATCH = 16
"""The most sequences of a micro-batch that are tried."""

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


Row = tuple[object, ...]
"""The fields of a Candidate. A search makes thousands, and the garbage collector passes over plain tuples."""


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
        said = job.micro_batch is not None or self.micro_batch != job.micro_batch_size
        return job.replace(
            layout=layout,
            micro_batch=self.micro_batch if said else None,
            batch_per_dp=share if job.batch_per_dp and share else job.batch_per_dp,
            micro_batches=many if job.micro_batches else None,
            recompute=job.recompute if self.recompute == usual else self.recompute,
            schedule=self.schedule,
            layer_split=self.layer_split or job.layer_split,
        )


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


def candidates(job: Job, how: Conditions, gpus: int, judge: Framework | None = None) -> Iterator[Row]:
    """Layouts of exactly `gpus` ranks with even shards, and with weights and states that a GPU may hold.

    job: a model and a schedule, and if known seq_len and a batch; its layout gives what is not searched.
    judge: its layer splits, ZeRO stages, virtual stages and HSDP are tried; without one, all.
    """
    zeros = judge.zero if judge else range(4)
    every = degrees_of(job, gpus, judge)
    return chain.from_iterable(of_degrees(job, how, degrees, judge, zeros) for degrees in every)


def degrees_of(job: Job, gpus: int, judge: Framework | None = None) -> Iterator[Degrees]:
    """Degrees of TP, CP, PP and DP with the product `gpus` that divide heads, sequence and batch."""
    seq, batch, layout = job.seq_len, job.sequences, job.layout
    ways = divisors(gpus)
    heads = job.model.n_heads
    kv = job.model.n_kv_heads
    # TP beyond the KV heads is tried only if they may be copied, each as often as the others.
    copies = as_run(judge, job.replace(layout=Layout(tp=2 * kv))).kv_replication
    whole = [tp for tp in ways if kv % tp == 0 or (copies and heads % tp == tp % kv == 0)]
    if job.model.norms_width:
        whole = whole[:1]  # what TP sends of them is not known
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


class Shares(NamedTuple):
    """A ZeRO stage with a number of copies of its shards, and bytes of a parameter on a rank.

    least: a lower bound. held: the same after a backward. likely: as expected, with float32 states and sums.
    """

    zero: int
    copies: int
    least: float
    held: float
    likely: float
    sharing: Sharing


class Kind(NamedTuple):
    """A mode of recomputation: bytes that a layer keeps, the least and as expected, and its seconds."""

    recompute: str
    least: float
    expected: float
    forward: float
    backward: float
    ends: float
    """Of the head."""


def of_degrees(
    job: Job, how: Conditions, degrees: Degrees, judge: Framework | None, zeros: Collection[int]
) -> list[Row]:
    """Every micro-batch size, number of virtual stages, ZeRO stage, HSDP and recomputation of degrees."""
    tp, cp, pp, dp = degrees
    own = job.layout.replace(tp=tp, cp=cp, pp=pp, dp=dp, virtual_stages=1, dp_replicate=1, zero=1)
    # Where the batch is not known, the least that the layout can take.
    sequences = job.sequences // dp if job.sequences else 2 * pp * job.micro_batch_size
    # Nothing is shared with one rank, so ZeRO's stages are one and the same; one stands for all.
    if cp * dp == 1:
        zeros = [job.layout.zero if job.layout.zero in zeros else min(1, max(zeros))]
    splits = tuple(dict.fromkeys((split_of(judge, job.layer_split), *splits_of(judge))))
    sizes = {*divisors(min(sequences, MOST_MICRO_BATCH)), job.micro_batch_size}
    found: list[Row] = []
    shares: dict[bool, list[Shares]] = {}
    for batch in sorted(n for n in sizes if sequences % n == 0):
        many = sequences // batch
        if (many > 1) not in shares:
            shares[many > 1] = shares_of(job, how, judge, own, zeros, many > 1)
        one = OfBatch(job, how, judge, own, batch, many, shares[many > 1])
        for staging in stagings_of(job, pp, many, splits if pp > 1 else splits[:1], judge):
            found += one.candidates(staging)
    return found


def shares_of(
    job: Job, how: Conditions, judge: Framework | None, own: Layout, zeros: Collection[int], several: bool
) -> list[Shares]:
    """Each ZeRO stage and number of copies, least memory first. several: a step has several micro-batches."""
    grad = GRAD
    if how.habits.grads_in_dtype:
        grad = ITEM
    waits = several and how.habits.reduces_once(own.pp)
    found = []
    for zero in zeros:
        for copies in divisors(own.dp) if zero and (judge is None or judge.hsdp) else [1]:
            shards = own.cp * own.dp // copies
            if shards == 1 and copies not in (1, job.layout.dp_replicate):
                continue
            least = least_bytes(1.0, zero, shards, judge)
            held = least_bytes(1.0, zero, shards, judge, several)
            # Where no trainer is named, states are expected in float32, as nearly all have them.
            states = least_bytes(1.0, zero, shards, judge or FRAMEWORKS["torchtitan"], reduced=False)
            likely = states + grad / (shards if zero >= 2 and not waits else 1)
            found.append(Shares(zero, copies, least, held, likely, Sharing.of(how, own, zero, copies)))
    return sorted(found, key=lambda one: one.held)


@dataclass
class OfBatch:
    """The layouts of some degrees and a micro-batch size. many: micro-batches of a step.

    sent: (layers, recompute) → seconds of what each of the shares sends, which virtual stages have in common.
    """

    job: Job
    how: Conditions
    judge: Framework | None
    own: Layout
    batch: int
    many: int
    shares: list[Shares]
    sent: dict[tuple[int, str], dict[int, float]] = field(default_factory=dict)

    def candidates(self, staging: Staging) -> Iterator[Row]:
        """The layouts of a pipeline's stages."""
        own, many, layout = self.own, self.many, self.job.layout
        v, split, stages, kept, layers = staging
        room = self.how.gpu.hbm_bytes
        numel = self.job.model.layer_params / own.tp
        params = int(stages.rank * numel)
        # Without layers no bytes are there, so any number of parameters does.
        held_params = layers * numel or 1.0
        # All tests of memory are lower bounds, so a layout that fails one certainly does not fit; the exact
        # count comes later. Layers are counted only if some layout passes the first.
        shares = [each for each in enumerate(self.shares) if each[1].least * stages.rank * numel <= room]
        for kind in self.kinds if shares else ():
            phases = kind.forward, kind.backward
            same = kind.recompute, self.job.schedule, split
            # The busiest rank has most layers, or fewer and the head. What ZeRO sends comes on top.
            busy = many * max(stages.rank * sum(phases), stages.last * sum(phases) + kind.ends)
            longest = stages.longest * kind.forward, stages.longest * kind.backward
            alone = busy + waits_of(self.job.schedule, own.pp, v, many, *longest)
            # Bytes that are there for a parameter, at most and as expected.
            most = min(room, room / SHARES["needs"][0] - kept * kind.least) / held_params
            free = (room * (1 - HEADROOM) - ALLOCATOR - CONTEXT - kept * kind.expected) / held_params
            sent = self.sent.setdefault((stages.rank, kind.recompute), {})
            # Copies of the shards take memory, so more of them are kept only where they are faster.
            fastest: dict[int, float] = {}
            alike = (own.tp, own.cp, own.pp, own.dp, self.batch, v)
            for place, (zero, copies, _, held, likely, sharing) in shares:
                if held > most:
                    break  # the others need more
                if place not in sent:
                    sent[place] = sharing.seconds(params, many, stages.rank, phases)
                seconds = alone + sent[place]
                # The first of a stage has one copy.
                if zero not in fastest or seconds < fastest[zero]:
                    fastest[zero] = seconds
                elif copies != layout.dp_replicate:
                    continue
                yield (likely > free, seconds, *alike, zero, *same, copies)

    @cached_property
    def kinds(self) -> list[Kind]:
        """Each mode of recomputation."""
        job, own = self.job, self.own
        # Where the length is not known, the least that the layout can take.
        seq = job.seq_len or own.tp * 2 * own.cp
        # TP and CP alone decide a layer's time, so layouts that differ only in the rest share a cache entry.
        alike = own.replace(pp=1, dp=1)
        found = []
        for name in RECOMPUTE:
            kept = kept_bytes(job.model, own.tp, seq, name, job.kv_replication, self.judge)
            least, expected = (each * self.batch / own.cp for each in kept)
            seconds = _seconds(self.how, name, job.model, alike, seq, self.batch)
            found.append(Kind(name, least, expected, *seconds))
        return found


def unsearched(job: Job, asked: Job, how: Conditions, judge: Framework | None) -> str:
    """Why the search does not try a job that passes, in words; empty if it does."""
    lay = job.layout
    own = asked.layout
    if judge and lay.zero not in judge.zero and lay.dp_shard * lay.cp > 1:
        return f"{judge.title} has no ZeRO {lay.zero}, but {', '.join(map(str, judge.zero))}"
    if judge and lay.dp_replicate > 1 and not judge.hsdp:
        return f"{judge.title} has no HSDP, so dp_replicate={lay.dp_replicate} is not there"
    if job.micro_batch_size > MOST_MICRO_BATCH:
        return f"micro-batches of at most {MOST_MICRO_BATCH} sequences are tried"
    if job.schedule != asked.schedule:
        return f"only {asked.schedule} is searched"
    kept = [name for name in ("order", "sequence_parallel") if getattr(lay, name) != getattr(own, name)]
    if kept:
        return f"{kept[0]} stays {getattr(own, kept[0])} in the search"
    every = of_degrees(job.replace(layout=own), how, Degrees(*map(lay.size, AXES)), judge, [lay.zero])
    key = (job.micro_batch, lay.virtual_stages, lay.zero, job.recompute, lay.dp_replicate)
    there = any(
        (c.micro_batch, c.virtual_stages, c.zero, c.recompute, c.dp_replicate) == key
        for c in map(Candidate._make, every)
    )
    if there:
        return ""
    return "another layout of these degrees takes less memory or stages and is as fast"


def splits_of(judge: Framework | None) -> tuple[str, ...]:
    """How a trainer may split layers over stages, its own way first."""
    return split_of(judge), *(judge.layer_splits if judge else ())


@lru_cache(maxsize=8192)
def _seconds(
    how: Conditions, recompute: str, model: ModelConfig, own: Layout, seq: int, batch: int
) -> tuple[float, float, float]:
    """Seconds of a layer forward and backward, and of the head in both."""
    how = replace(how, recompute=recompute)
    forward, backward = layer(how, model, own, seq, batch).seconds
    ends = head(how, model, own, batch * seq / own.cp)
    return forward, backward, ends[0].value + ends[1].value
