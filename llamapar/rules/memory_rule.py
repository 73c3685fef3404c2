"""Memory as a rule: what a job needs on its worst rank beside what a GPU has, as a finding.

It is judged after the rules of arithmetic, and only when somebody asks, because counting memory takes a
hundred times as long as all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from llamapar.count.account import memory
from llamapar.count.terms import FITS, GIB, TOO_MUCH, UNDECIDED, Breakdown, Memory
from llamapar.describe.hardware import DEFAULT_GPU, HARDWARE, OFFERED, Gpu
from llamapar.describe.job import Job
from llamapar.errors import LlamaparError
from llamapar.frameworks import FRAMEWORKS, Framework, as_run
from llamapar.records.tables import Plain, cut

from .repairs import ERROR, NOTE, WARNING

TOO_LITTLE_MEMORY, OPEN, NO_ACTIVATIONS = "LP511", "LP512", "LP513"
"""The codes of the rules that are judged here."""

LARGEST, SHOWN = 3, 3
"""How many terms, and how many stages, a finding names."""


def memory_of(job: Job, judge: Framework | None = None, **options: object) -> Memory:
    """The `memory` of a Job as its judge would run it. options: arguments that a Job does not hold.

    Without a sequence length, the model's longest counts. Raises LayoutError.
    """
    job = as_run(judge, job)
    # `memory` asks for a global batch, a Job may know its micro-batches instead; one follows from the
    # other.
    many = job.n_micro_batches
    batch = job.micro_batch_size
    settings: Plain = {"gpu": job.gpu or DEFAULT_GPU, **options}
    return memory(
        job.model,
        job.layout,
        seq_len=job.seq_len or job.model.max_seq_len,
        micro_batch=batch,
        global_batch=many * batch * job.layout.dp if many else job.global_batch,
        recompute=job.recompute,
        schedule=job.schedule,
        nc=job.nc,
        kv_replication=job.kv_replication,
        padding=job.padding,
        layer_split=job.layer_split,
        grad_dtype=job.grad_dtype,
        saves=job.saves,
        cp_method=job.cp_method,
        framework=judge,
        **settings,
    )


@dataclass(frozen=True)
class Load:
    """What a job needs on its worst rank. gpu: the GPU that the job names, or None.

    whole: True if activations are counted; without a sequence length only terms that do not grow with it are.
    """

    memory: Memory
    whole: bool
    gpu: Gpu | None = None

    @property
    def matters(self) -> bool:
        """Whether a GPU is named, or some GPU that is proposed has too little memory."""
        offers = self.memory.high_bytes > OFFERED[0].hbm_bytes and not self.memory.not_counted
        return self.gpu is not None or offers

    def outcome(self, gpu: Gpu) -> str:
        """FITS, UNDECIDED or TOO_MUCH."""
        return self.memory.within(gpu.hbm_bytes)

    @property
    def gib(self) -> str:
        """The expected figure in GiB, with its interval: "61.3 (55.2 to 70.5)"; or a lower bound."""
        if self.memory.not_counted:
            return f"at least {self.memory.low_bytes / GIB:.1f}"
        return str(self.memory.figure())


def account(job: Job, judge: Framework | None = None) -> Load:
    """The Load of a job; without a sequence length, of what does not grow with it. Raises LayoutError."""
    if job.seq_len is None:
        shortest = memory_of(job.replace(seq_len=job.token_unit), judge)
        constant = replace(
            shortest,
            stages=tuple(map(_constant, shortest.stages)),
            ways=lambda: [replace(way, worst=_constant(way.worst)) for way in shortest.others],
            how="no seq_len: what grows with it is not counted",
        )
        return Load(constant, whole=False, gpu=job.gpu)
    return Load(memory_of(job, judge), whole=True, gpu=job.gpu)


GROWING = ("activations", "logits and loss", "backward workspace", "pipeline buffers")
"""The terms that grow with a sequence, by their names before a colon."""


def _constant(stage: Breakdown) -> Breakdown:
    """A stage without them."""
    return replace(
        stage, terms=tuple(term for term in stage.terms if term.name.partition(":")[0] not in GROWING)
    )


@lru_cache(maxsize=256)
def load_of(job: Job, judge: Framework | None = None) -> Load | None:
    """The Load of a job, cached; None if nothing can be counted."""
    try:
        return account(job, judge)
    except LlamaparError:
        return None


def serving_load_of(job: Job, judge: Framework | None) -> Load | None:
    """The bytes of a rank that only serves: its weights, to the byte; None if they cannot be counted."""
    found = load_of(job, judge)
    if found is None:
        return None
    stages = [
        Breakdown(stage.stage, tuple(term for term in stage.terms if term.name == "parameters"))
        for stage in found.memory.stages
    ]
    weights = replace(found.memory, stages=tuple(stages), open_facts=(), published=True)
    return Load(weights, whole=False, gpu=job.gpu)


WEIGHT, MOMENTS = 2, 4
"""Bytes of a 16-bit parameter, and of its two moments in 16 bits.

Sums of gradients may be as narrow; moments beside a master weight are in float32.
"""


def least_bytes(numel: float, zero: int, shards: int, judge: Framework | None, reduced: bool = True) -> float:
    """A lower bound on the bytes of a rank with `numel` parameters. shards: ranks that share its states.

    reduced: the bound after a backward; the first backward of a step finds no sums of gradients.
    """
    weights = WEIGHT * numel / (shards if zero == 3 else 1)
    sums = WEIGHT * numel / (shards if zero >= 2 else 1) * reduced
    states = MOMENTS
    if _has_masters(judge, zero):
        states = 2 * (WEIGHT + MOMENTS)
    return weights + sums + states * numel / (shards if zero else 1)


@lru_cache(maxsize=64)
def _has_masters(judge: Framework | None, zero: int) -> bool:
    """Whether states are in float32; without a judge, whether those of every trainer with the stage are."""
    every = [judge] if judge else [one for one in FRAMEWORKS.values() if one.trains and zero in one.zero]
    return all(one.habits.master_weights for one in every)


def least_of(job: Job, judge: Framework | None) -> float:
    """A lower bound on a rank's bytes, of its layers' states alone: it stands even where tp cuts a head."""
    lay = job.layout
    # Embedding and head are left out, for which stage holds them is the split's affair.
    numel = job.model.n_layers * job.model.layer_params / lay.tp / lay.pp
    return least_bytes(numel, lay.zero, lay.dp_shard * lay.cp, judge)


def nothing_holds(job: Job, judge: Framework | None) -> str:
    """Why no layout of its GPUs holds the job's model, in words; empty if some layout may."""
    if job.gpu is None or job.saves or (judge is not None and not judge.trains):
        return ""
    gpus = job.gpus or job.layout.world
    room = job.gpu.hbm_bytes
    # One copy of everything, summed over all GPUs: no layout can need less.
    numel = job.model.n_layers * job.model.layer_params + job.model.expert_params
    least = least_bytes(numel, 3, 1, judge)
    if least <= room * gpus:
        return ""
    return (
        f"no layout of {gpus} {job.gpu} holds {job.model.name}: shared over all of them, weights, gradients "
        f"and optimizer states still take {least / gpus / GIB:.2f} GiB of the {room / GIB:.2f} of a GPU; "
        f"at least {math.ceil(least / room)} GPUs are needed"
    )


def holding(found: Load, outcome: str) -> list[str]:
    """The GPUs with an outcome, smallest first: those that are proposed, or if it is none of them, all."""
    every = (OFFERED, sorted(HARDWARE.values(), key=lambda gpu: gpu.hbm_bytes))
    return next(filter(None, ([g.name for g in gpus if found.outcome(g) == outcome] for gpus in every)), [])


def has_room(job: Job, judge: Framework | None = None) -> bool:
    """Whether the shown estimate fits the job's GPU, or without one the largest known GPU.

    True if nothing can be counted.
    """
    found = load_of(job, judge)
    return found is None or found.memory.expected_bytes <= (job.gpu or OFFERED[-1]).hbm_bytes


def finding_of(job: Job, judge: Framework | None = None) -> tuple[str, str] | None:
    """Code and severity of the finding about a job's memory; None if nothing can be counted, or said.

    With a GPU it is an error, a warning if the estimate straddles the GPU's memory, or a note that
    activations are not counted. Without one it is a note, if the choice of the GPU matters.
    """
    found = load_of(job, judge)
    trains = judge is None or judge.trains
    if found is None or not found.matters:
        return None
    if job.gpu is None:
        return TOO_LITTLE_MEMORY, NOTE
    outcome = found.outcome(job.gpu)
    if outcome == UNDECIDED and found.memory.not_counted:
        return None  # LP109 says that nobody knows
    if outcome == FITS:
        if found.whole:
            return None
        return (NO_ACTIVATIONS, NOTE)
    if outcome == TOO_MUCH:
        return TOO_LITTLE_MEMORY, ERROR if trains else NOTE
    return OPEN, WARNING if trains else NOTE


# -- words -----------------------------------------------------------------------------------------


def template_values(job: Job, judge: Framework | None = None) -> Plain:
    """Values for the templates of these rules, beside `Job.numbers`."""
    found = load_of(job, judge) or account(job, judge)  # which raises why nothing is counted
    worst = found.memory.worst
    stages = found.memory.stages
    terms = sorted(worst.terms, key=lambda term: -term.bytes)[:LARGEST]
    largest = ", ".join(f"{term.name} {term.bytes / GIB:.2f}" for term in terms)
    by_stage = [f"{stages[i].total_bytes / GIB:.2f}" for i in cut(len(stages), SHOWN)]
    by_stage[-1:-1] = ["…"] * (len(stages) > SHOWN)
    several = ""
    if len(stages) > 1:
        several = f"by stage {', '.join(by_stage)} GiB; "
    again = ", no recompute given"
    if job.recompute:
        again = f" recompute={job.recompute}"
    counted = f"seq_len={job.seq_len} micro_batch={job.micro_batch_size}{again}"
    decides = _narrows(found)
    if "zero" in job.saves:
        decides = "the stage of ZeRO would decide it, in the file that sets it"
    serves = ""
    if not (judge is None or judge.trains):
        serves = f", of training, which {judge.title} does not do"
    return {
        "stage": worst.stage,
        "needs": f"{'at most ' * bool(job.saves)}{found.gib} GiB a rank"
        f"{'' if found.whole else ' before any activation'}",
        "there": _there(found, job.gpu),
        "terms": f"{several}largest in stage {worst.stage}: {largest}",
        "counted": f"with {counted if found.whole else 'no seq_len'}{serves}",
        "decides": decides,
    }


def _narrows(found: Load) -> str:
    """The open fact that narrows a range most."""
    return found.memory.narrows or "an estimate is no nearer than that"


WIDE = 2
"""How many times its low end the high end of a range may be, for GPUs to be named that hold it."""


def _there(found: Load, gpu: Gpu | None) -> str:
    """What the named GPU has, or which known GPUs would do."""
    if gpu is not None:
        return f"{gpu} has {gpu.hbm_bytes / GIB:.2f}"
    fits, perhaps = (", ".join(holding(found, outcome)) for outcome in (FITS, UNDECIDED))
    if not fits and not perhaps:
        return "no GPU that is known holds that"
    figure = found.memory.figure()
    if figure.high > WIDE * figure.low:
        return f"that range is too wide to name GPUs: {_narrows(found)}"
    if fits:
        return f"that fits {fits}" + (f", perhaps {perhaps}" if perhaps else "")
    return f"that may fit {perhaps}"
