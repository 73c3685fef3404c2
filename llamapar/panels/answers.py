"""The four answers about a layout: is it legal, does it fit, how long does a step take, what travels.

Every function here is pure: it reads the values of controls and returns plain data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache

from llamapar.count.account import micro_batches_of
from llamapar.count.terms import FITS, GIB, TOO_MUCH
from llamapar.count.wire import Traffic, traffic
from llamapar.describe.cp_methods import CpMethod
from llamapar.describe.job import Job
from llamapar.describe.layout import AXES, SHARDING
from llamapar.describe.options import Values
from llamapar.describe.typed_numbers import parse_number
from llamapar.errors import Choice, LayoutError, LlamaparError
from llamapar.errors import whole as whole_number
from llamapar.figures.machine import Machine
from llamapar.frameworks import FRAMEWORKS, UNKNOWN, Framework, split_of
from llamapar.place import HeadMap, RankGrid, TradeMap, ranks, sequence
from llamapar.place.schedule import schedule_of
from llamapar.place.sequence_map import MAX_DOCUMENTS, SequenceMap
from llamapar.records.tables import Plain, human, plural
from llamapar.rules.memory_rule import copies_heads, load_of
from llamapar.rules.report import Finding, Report
from llamapar.rules.table import MEMORY, NOTE
from llamapar.timing.cost import Cost, cost_of
from llamapar.timing.inside import LayerSteps, inside_of
from llamapar.timing.layer import Conditions

MOST_OPERATIONS = 2**14
"""Of a schedule that is timed at each move: some 60 ms of a laptop."""

YES, NO, UNSURE = "yes", "no", "unsure"

_TABS = {"LP0": "ranks", "LP1": "heads", "LP2": "sequence", "LP3": "stages", "LP4": "pipeline"}
_TABS |= {"LP105": "vocab", "LP106": "vocab"}
"""The beginning of a rule's code → the tab that shows what it is about."""


@dataclass(frozen=True)
class Answer:
    """One of the four answers: a few words, further sentences, and the tab that shows it."""

    question: str
    tab: str
    text: str
    note: str = ""
    verdict: str = ""

    def as_dict(self) -> Plain:
        """Plain values for the browser."""
        return asdict(self)


def answers(report: Report | None, values: Values) -> tuple[Answer, ...]:
    """All four answers in order; none if the controls describe no job. Never raises."""
    if report is None:
        return ()
    return (
        legal(report),
        fits(report),
        _asked("how fast?", "time", lambda: _fast(step_cost(report.job, report.judge))),
        _asked("what travels?", "ranks", lambda: _travels(report, values)),
    )


def _asked(question: str, tab: str, answer: Callable[[], tuple[str, str]]) -> Answer:
    try:
        return Answer(question, tab, *answer())
    except LlamaparError as problem:
        return Answer(question, tab, "not known", problem.what, UNSURE)


def legal(report: Report) -> Answer:
    """Whether the rules pass the layout, with the first rule that fails."""
    errors, findings = [f for f in report.arithmetic if f.severity == "error"], report.arithmetic
    if errors:
        code = errors[0].code
        tab = _TABS.get(code) or _TABS.get(code[:3], "heads")
        return Answer("legal?", tab, f"no: {plural(len(errors), 'error')}", errors[0].message, NO)
    kinds = ((severity, sum(f.severity == severity for f in findings)) for severity in ("warning", "note"))
    said = ", ".join(plural(n, kind) for kind, n in kinds if n)
    return Answer("legal?", "heads", "yes", said or "every rule passes", YES)


def fits(report: Report) -> Answer:
    """Whether the worst stage fits the GPU."""
    found = load_of(report.job, report.judge)
    if found is None:
        return Answer("fits?", "memory", "not known", "this layout cannot be counted", UNSURE)
    memory, gpu = found.memory, report.job.gpu
    if gpu is None:
        return Answer("fits?", "memory", f"{found.gib} GiB", "no GPU is chosen", UNSURE)
    outcome = found.outcome(gpu)
    sure = {FITS: YES if found.whole else UNSURE, TOO_MUCH: NO}  # Activations come on top of this.
    part = "" if found.whole else ", without activations: no sequence length"
    where = f"{outcome}; stage {memory.worst.stage} of {gpu}{part}"
    total = f"{found.gib} of {memory.hbm_bytes / GIB:.1f} GiB"
    return Answer("fits?", "memory", total, where, sure.get(outcome, UNSURE))


# -- time and traffic --------------------------------------------------------------------------


def with_batch(job: Job) -> Job:
    """The same job with its micro-batch, and with the sequences of a step if any fact gives them."""
    many, batch = job.n_micro_batches, job.micro_batch or 1
    sequences = many * batch * job.layout.dp if many else job.sequences
    return job.replace(micro_batch=batch, global_batch=sequences)


def with_timed_schedule(job: Job) -> Job:
    """The same job with a schedule that can be timed at each move. Raises LayoutError."""
    job, lay = with_batch(job), job.layout
    operations = 2 * lay.pp * lay.virtual_stages * micro_batches_of(job)
    if operations > MOST_OPERATIONS:
        what = f"a schedule of {operations:,} operations"
        raise LayoutError(what, f"at most {MOST_OPERATIONS:,} are timed here", ["lp.cost"], "micro_batches")
    return job


@lru_cache(maxsize=512)
def step_cost(job: Job, judge: Framework | None) -> Cost:
    """The time of a step, cached. Raises LlamaparError."""
    copies = job.kv_replication or copies_heads(job, judge)
    return cost_of(
        with_timed_schedule(job).replace(kv_replication=copies),
        Conditions.of_job(job, judge),
        split_of(judge, job.layer_split),
        job.nc,
    )


@lru_cache(maxsize=512)
def traffic_of(job: Job, judge: Framework | None, rank: int) -> Traffic:
    """The bytes that a rank sends in a step, cached. Raises LlamaparError."""
    job, lay = with_timed_schedule(job), job.layout
    many = micro_batches_of(job)
    table = schedule_of(job.schedule, lay.pp, lay.virtual_stages, many, job.nc)
    return traffic(
        "llama",
        job.model,
        lay,
        seq_len=job.seq_len or job.model.max_seq_len,
        global_batch=job.global_batch or many * lay.dp,
        dtype="bfloat16",
        kv_replication=job.kv_replication or copies_heads(job, judge),
        padding=job.padding or (judge.padding if judge else None),
        cp_method=job.cp_method or "all_gather",
        schedule=table,
        micro_batches=many,
        rank=rank,
    )


def documents_of(said: object, seq_len: int) -> object:
    """Lengths of documents from text: "1000, 5000, 2192", or one length that repeats. Raises LayoutError."""
    if not isinstance(said, str):
        return said
    found = [parse_number("documents", word).value for word in said.split(",")]
    if len(found) > 1:
        return found
    length = whole_number("length of a document", found[0])
    if seq_len > length * MAX_DOCUMENTS:
        what = f"documents of {length:,} tokens in a sequence of {seq_len:,}"
        nearest = Choice.of(documents=(-(-seq_len // MAX_DOCUMENTS),))
        raise LayoutError(what, f"at most {MAX_DOCUMENTS:,} are told apart", [nearest], "documents")
    rest = seq_len % length
    return [length] * (seq_len // length) + [rest] * bool(rest)


def sequence_map(report: Report, values: Values) -> SequenceMap | TradeMap:
    """The sequence with its documents; for a ring, at the step of the controls. Raises LayoutError.

    For Ulysses, the tokens and heads that CP ranks trade.
    """
    job, lay = report.job, report.job.layout
    seq_len = job.seq_len or job.model.max_seq_len
    apart = documents_of(values["documents"], seq_len)
    found = sequence(lay, seq_len, chunking=values["chunking"], documents=apart)  # type: ignore[arg-type]
    if CpMethod.of(job.cp_method or "all_gather", lay.cp).heads > 1:
        copies = job.kv_replication or copies_heads(job, report.judge)
        return HeadMap(job.model, lay.tp, copies).traded(found, job.cp_method or "")
    step = values["step"] if job.cp_method == "ring" else 0
    return found.at(min(step, lay.cp) - 1) if step and lay.cp > 1 else found


def layer_steps(report: Report, values: Values) -> LayerSteps:
    """The inside of a layer, for the group of the controls' rank, up to their step. Raises LlamaparError."""
    job, judge = report.job, report.judge
    found = inside_of(
        job.model,
        job.layout,
        job.seq_len or job.model.max_seq_len,
        job.micro_batch or 1,
        Conditions.of_job(job, judge),
        job.kv_replication or copies_heads(job, judge),
        values["rank"],
    )
    return found.at(min(values["step"] or 0, len(found.steps)))


def _fast(cost: Cost) -> tuple[str, str]:
    idle = cost.seconds.get("pipeline idle", 0.0) / cost.step_seconds
    of = f"{cost.tokens // cost.seq_len:,} × {cost.seq_len:,} tokens"
    takes = f"{cost.step_seconds:.3g} s ({cost.interval[0]:.3g} to {cost.interval[1]:.3g}) a step of {of}"
    fast = f"{cost.tokens_per_second_per_gpu:,.0f} tokens/s a GPU · {cost.mfu:.0%} MFU"
    return fast, f"{takes}; idle {idle:.0%} of it in the pipeline"


def _travels(report: Report, values: Values) -> tuple[str, str]:
    job, rank = report.job, values["rank"]
    found = traffic_of(job, report.judge, rank if isinstance(rank, int) else 0)
    texts = [f"{axis.upper()} {human(n)}" for axis, n in found.by_axis.items()]
    leaving = [axis.upper() for axis in AXES if job.leaves_node(axis)]
    where = f"{', '.join(leaving)} between nodes" if leaving else "all inside a node"
    return " · ".join(texts) or "nothing", f"sent by rank {rank} in a step; {where}"


def machine_view(report: Report, values: Values) -> Machine:
    """The controls' rank among all ranks, with the bytes on its groups if known."""
    grid = ranks(report.job.layout, values["rank"])
    try:
        found = traffic_of(report.job, report.judge, grid.rank).by_axis
    except LlamaparError:
        found = {}
    shared = found.get(SHARDING, 0)
    said = {axis: f"{human(n)} sent a step" for axis, n in found.items() if axis in AXES}
    if shared:
        said["dp"] = f"{human(shared)} sent a step, with CP"
    return Machine(grid, report.job.gpus_per_node, said)


def block_view(report: Report, values: Values) -> RankGrid:
    """The part of a step that the controls' rank works on. Raises LlamaparError."""
    job, judge = report.job, report.judge
    return ranks(
        job.layout,
        values["rank"],
        model=job.model,
        seq_len=job.seq_len,
        global_batch=job.sequences,
        chunking=values["chunking"],
        layer_split=split_of(judge, job.layer_split),
        kv_replication=job.kv_replication or copies_heads(job, judge),
    )


def plain_finding(finding: Finding) -> dict[str, object]:
    """A finding as plain values for the browser; fixes about memory follow later."""
    return {
        "code": finding.code,
        "severity": finding.severity,
        "message": finding.message,
        "why": finding.why,
        "fixes": [] if finding.rule in MEMORY else [[fix.text, fix.effect.text] for fix in finding.fixes],
        "later": finding.rule in MEMORY and finding.severity != NOTE,
        "verdicts": [
            [FRAMEWORKS[name].title + v.dated, v.verdict, v.message, v.note, v.source.links]
            for name, v in finding.frameworks.items()
            if v.source
        ],
        "unknown": [] if finding.rule in MEMORY else finding.by_verdict().get(UNKNOWN, []),
    }
