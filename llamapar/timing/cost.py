"""`cost`: how long a step takes and why, as terms; each shown formula is the one that is evaluated.

Besides the layers, which `layer` covers, there are three parts. The pipeline's schedule with these durations
leaves a bubble. Gradients and parameters travel between the ranks that share them (ZeRO, arXiv:1910.02054
section 7); of these the first gather and the last reduction are exposed ("Scaling Llama 3 Training", ISCA
2025, section 7.3). The optimizer reads and writes its states.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Unpack

from llamapar.count.flops import flops_a_token
from llamapar.count.terms import GIB, TOO_MUCH, Memory, Term
from llamapar.describe.arguments import checked_options
from llamapar.describe.hardware import Gpu, hardware
from llamapar.describe.job import Job
from llamapar.describe.keywords import CostKeywords, CostSettings
from llamapar.describe.layout import Layout, LayoutLike
from llamapar.describe.models import ModelConfig, ModelLike
from llamapar.describe.options import Values, offer
from llamapar.errors import real
from llamapar.frameworks import as_run, judge_of, split_of
from llamapar.frameworks.settings import takes_settings
from llamapar.records.tables import Plain, Record, three_digits
from llamapar.rules.memory_rule import memory_of
from llamapar.rules.report import check_job, refuse_as_check

from .layer import CONDITIONS, FLASH, Conditions, Pass
from .profiles import Spread, spread_of
from .step import Step

CONVENTIONS = ("causal", "full", "recomputed")
"""Which FLOPs MFU counts: half of attention's square, all of it, or half plus what is recomputed."""

MOST_UNEVEN = 1e3

offer("flops", CONVENTIONS)

offer("flash", ("fa3", *FLASH))


@dataclass(frozen=True)
class StepInputs:
    """The inputs of a step: a job under conditions."""

    job: Job
    how: Conditions


@dataclass(frozen=True, repr=False)
class Cost(Record):
    """How long a step takes on the busiest rank: terms in seconds, which add up to it.

    layer: the formulas of one layer and one micro-batch, from which the terms are made. tokens: of a step.
    flops: of a step, by `convention`. MFU compares them with the GPUs' bfloat16 peak.
    """

    model: ModelConfig
    layout: Layout
    gpu: Gpu
    how: str
    terms: tuple[Term, ...]
    layer: Pass
    tokens: int
    flops: float
    convention: str
    asked: StepInputs = field(repr=False)

    @cached_property
    def step_seconds(self) -> float:
        return sum(term.value for term in self.terms)

    @property
    def spread(self) -> Spread:
        """How far measured steps of this kind are from the expected ones, and how many they are."""
        how = self.asked.how
        rate = how.precision, how.gpu.name
        return spread_of(how.judge.name if how.judge else "", how.profile, self.layout, self.seq_len, rate)

    @property
    def interval(self) -> tuple[float, float]:
        """Seconds between which the runs of this kind are that `spread` tells of."""
        return self.step_seconds * self.spread.low, self.step_seconds * self.spread.high

    @cached_property
    def memory(self) -> Memory:
        """The memory of the same job on the same GPU. Raises LayoutError."""
        return memory_of(self.asked.job.replace(gpu=self.gpu), self.asked.how.judge)

    @property
    def fits(self) -> bool:
        """False if the step cannot run, because eight of ten runs need more memory than the GPU has."""
        return self.memory.outcome != TOO_MUCH

    @property
    def tokens_per_second_per_gpu(self) -> float:
        return self.tokens / self.step_seconds / self.layout.world

    @property
    def flops_per_second(self) -> float:
        """FLOP/s of a GPU, by `convention`."""
        return self.flops / self.step_seconds / self.layout.world

    @property
    def mfu(self) -> float:
        """FLOP/s of a GPU over its dense bfloat16 peak."""
        return self.flops_per_second / self.gpu.bfloat16

    @property
    def seq_len(self) -> int:
        return self.asked.job.seq_len or self.model.max_seq_len

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step."""
        return self.tokens // (self.seq_len * self.layout.dp * self.asked.job.micro_batch_size)

    def changed(self, **changes: object) -> Cost:
        """The cost with some fields of layout, job or conditions changed. Raises LayoutError."""
        # A name that Job and Conditions share, such as `recompute`, is set in the Conditions, by which
        # the step is timed.
        job = self.asked.job
        layout = {name: value for name, value in changes.items() if name in Layout.__dataclass_fields__}
        own = {name: value for name, value in changes.items() if name in Conditions.__dataclass_fields__}
        others = {name: value for name, value in changes.items() if name not in layout | own}
        job = job.replace(layout=job.layout.replace(**layout), **others)
        return cost_of(job, replace(self.asked.how, **own), flops=self.convention)  # type: ignore[arg-type]

    @property
    def seconds(self) -> dict[str, float]:
        """Name of a term → its seconds."""
        return {term.name: term.value for term in self.terms}

    @property
    def title(self) -> str:
        return f"{self.model.name}, {self.layout}, {self.how}"

    @property
    def verdict(self) -> str:
        """The step in one line."""
        peak = f"of {self.gpu.bfloat16 / 1e12:g} TFLOP/s"
        return (
            f"about {three_digits(self.step_seconds)} s a step; {self.spread.told(self.step_seconds)}; "
            f"{self.tokens_per_second_per_gpu:,.0f} tokens/s and {self.flops_per_second / 1e12:.0f} TFLOP/s "
            f"a GPU, MFU {self.mfu:.1%} ({self.convention} FLOPs, {peak})"
        )

    @property
    def too_much(self) -> str:
        """That the job does not fit, in one line; "" if it does or may."""
        has = f"{self.gpu} has {self.memory.hbm_bytes / GIB:.2f}"
        if self.fits:
            return ""
        return f"it does not fit: a rank needs {self.memory.figure()} GiB of memory, and {has}"

    def as_dict(self) -> Plain:
        """Plain values for JSON."""
        return {
            "step_seconds": self.step_seconds,
            "interval": list(self.interval),
            "readings": self.spread.readings,
            "caveat": self.spread.why,
            "fits": self.fits,
            "mfu": self.mfu,
            "tokens_per_second_per_gpu": self.tokens_per_second_per_gpu,
            "terms": self.seconds,
            "flops": self.convention,
            "tflops_per_gpu": self.flops_per_second / 1e12,
        }

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        rows: list[list[object]] = []
        for term in self.terms:
            inputs = ", ".join(f"{k}={v:.4g}" for k, v in term.used.items())
            share = f"{term.value / self.step_seconds:.1%}"
            rows.append([term.name, f"{term.value:.4g}", share, term.formula, inputs, term.source])
        head = ["term", "seconds", "share", "formula", "inputs", "source"]
        return self.title, head, rows, "\n".join(filter(None, (self.verdict, self.too_much, self.spread.why)))


@takes_settings(CostSettings)
@checked_options
def cost(
    model: ModelLike,
    layout: LayoutLike | None = None,
    **options: Unpack[CostKeywords],
) -> Cost:
    """How long a step takes, term by term, from published constants alone; with a range.

    model: as in `check`; the result of `read_settings` also gives layout, facts and framework.
    gpus: available GPUs; they must equal the layout's ranks.
    seq_len, micro_batch, global_batch, recompute, schedule, nc, kv_replication, layer_split, cp_method,
        float8_all_gather: as in `memory`.
    framework: a trainer, whose usual recompute, kernels and cp_method hold where they are not given.
    gpu: a name of `HARDWARE` ("h100" is "h100-80gb"), or your own: a dict {"base": a name, "memory_gib": its
        memory, field: value}, that as JSON text, or a .toml or .json file with it.
    precision: of the layers' matmuls: "bfloat16", "float8", or on GPUs with measured runs "mxfp8" or
        "nvfp4". kernels: of everything else, "fused" or "eager".
    flash: attention's kernel: "fa3" (or cuDNN's; on other GPUs their own), "fa2", or "unfused".
    overlap_tp: under sequence parallelism, TP's collectives run beside matmuls, which leaves half of their
        time; None: as the trainer does.
    imbalance: attention work of the busiest rank over an even share of whole sequences: above 1 if document
        masks make ranks uneven, below 1 if documents are shorter than sequences.
    profile: numbers fitted to a trainer's runs, a term of their own; None takes those of `framework`, if it
        has any, and "none" leaves them out.
    flops: which FLOPs MFU counts: "causal" attention, "full", or "recomputed" (causal plus recomputation).

    Raises LayoutError for bad input, and if shards do not divide; LlamaparError for bad hardware.
    """
    found = hardware(options["gpu"])
    judge = judge_of(options["framework"])
    how = Conditions.of(
        judge,
        found,
        options["recompute"],
        imbalance=real("imbalance", options["imbalance"], 1 / MOST_UNEVEN, MOST_UNEVEN),
        low_gather=options["float8_all_gather"],
        **Values({name: options[name] for name in CONDITIONS}),  # type: ignore[literal-required]
    )
    facts = Values({name: options[name] for name in _JOB})  # type: ignore[literal-required]
    job = as_run(judge, Job.of(model, layout, recompute=options["recompute"], **facts))
    if job.gpus is not None and job.gpus != job.layout.world:
        refuse_as_check(check_job(job, judge), {"LP001": "gpus"})
    return cost_of(job, how, flops=options["flops"])


_JOB = ("gpus", "seq_len", "micro_batch", "global_batch", "schedule", "nc", "kv_replication", "layer_split")
"""Options of `cost` that its job has as they are given."""


def cost_of(
    job: Job,
    how: Conditions,
    flops: str = "causal",
) -> Cost:
    """The cost of a Job under conditions, as its trainer runs it: with the ZeRO stage that it has, as in
    `memory`, and with the job's own split of the layers, or else the trainer's. Raises LayoutError, and
    ModelError for a mixture of experts.
    """
    job = as_run(how.judge, job)
    m = job.model
    m.require_judged("the time of a step")
    lay = job.layout
    if how.judge:
        lay = how.judge.settled(job.layout)
    as_another = ""
    if lay.zero != job.layout.zero:
        as_another = f", ZeRO {lay.zero}"
    job = job.replace(layout=lay)
    step = Step.of(job, how, split_of(how.judge, job.layer_split))
    seq = job.seq_len or m.max_seq_len
    tokens = step.many * job.micro_batch_size * lay.dp * seq
    each = flops_a_token(m, seq, how.recompute if flops == "recomputed" else "none")
    if flops == "full":
        # The causal count has half of attention's square, so the other half is as much again.
        each += 6.0 * m.n_layers * seq * m.q_dim
    said = (
        f"{step.many} x {job.micro_batch_size} sequences of {seq:,} a DP group, {how.precision} on "
        f"{how.gpu.name} of {how.gpu.watts:g} W, recompute {how.recompute}{as_another}"
    )
    if how.overlap_tp and lay.sp:
        said += ", TP overlapped"
    return Cost(
        m, lay, how.gpu, said, step.terms, step.layer, tokens, each * tokens, flops, StepInputs(job, how)
    )
