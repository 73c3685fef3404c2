"""The four answers about a layout: is it legal, does it fit, how long does a step take, what travels.

Every function here is pure: it reads the values of controls and returns plain data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from llamapar.count.account import micro_batches_of
from llamapar.count.terms import FITS, GIB, TOO_MUCH
from llamapar.count.wire import Traffic, traffic
from llamapar.describe.cp_methods import CpMethod
from llamapar.describe.job import Job
from llamapar.describe.jobs import JOBS
from llamapar.describe.layout import AXES, SHARDING, Layout, divisors
from llamapar.describe.options import Values
from llamapar.describe.typed_numbers import parse_number
from llamapar.errors import Choice, LayoutError, LlamaparError
from llamapar.errors import whole as whole_number
from llamapar.figures import View
from llamapar.figures.cost import cost_bars
from llamapar.figures.memory import ENDS
from llamapar.figures.rank_grid import all_ranks
from llamapar.figures.wording import listed
from llamapar.frameworks import FRAMEWORKS, UNKNOWN, Framework, as_run, split_of
from llamapar.place import HeadMap, TradeMap, ranks, sequence
from llamapar.place.schedule import MAX_ACTIONS, fewer_micro_batches, schedule_of
from llamapar.place.sequence_map import MAX_DOCUMENTS, SequenceMap
from llamapar.records.tables import human, plural, three_digits
from llamapar.rules.memory_rule import Load, account, load_of
from llamapar.rules.report import BATCH_FACTS, Finding, Report, refuse_as_check
from llamapar.rules.table import MEMORY, NOTE
from llamapar.timing.cost import Cost, cost_of
from llamapar.timing.inside import LayerSteps, inside_of
from llamapar.timing.layer import Conditions

from .controls import CUSTOM

MOST_OPERATIONS = 2**14
"""Of a schedule that is timed at each move: some 60 ms of a laptop."""

YES = "yes"
NO = "no"
UNSURE = "unsure"

_TABS = {"LP0": "ranks", "LP1": "heads", "LP2": "sequence", "LP3": "stages", "LP4": "pipeline"}
_TABS |= {"LP105": "vocab", "LP106": "vocab"}
"""The beginning of a rule's code → the tab that shows what it is about."""

_DEGREE = re.compile(r"\b((?:tp|cp|pp|dp)=\d+)\b")


@dataclass(frozen=True)
class Answer:
    """One of the four answers: a few words, a few more, all there is to say, and the tab that shows it."""

    question: str
    tab: str
    text: str
    note: str = ""
    verdict: str = YES
    more: str = ""


def answers(report: Report | None, values: Values) -> tuple[Answer, ...]:
    """All four answers in order; none if the controls describe no job. Never raises."""
    if report is None:
        return ()

    def asked(question: str, tab: str, answer: Callable[[], tuple[str, ...]]) -> Answer:
        try:
            return Answer(question, tab, *answer())
        except LlamaparError as problem:
            # Why, and the way out, stand beside a rule that refuses the layout; else they stand here.
            if first.verdict == NO:
                return Answer(question, tab, "not known", "", UNSURE)
            return Answer(question, tab, "not known", problem.what, UNSURE, problem.line)

    first = legal(report)
    return (
        first,
        asked("Does it fit?", "memory", lambda: _fits(report)),
        asked("How fast?", "time", lambda: _fast(report)),
        asked("What travels?", "ranks", lambda: _travels(report, values)),
    )


def legal(report: Report) -> Answer:
    """Whether the rules pass the layout, with the first rule that fails."""
    errors = [f for f in report.arithmetic if f.severity == "error"]
    findings = report.arithmetic
    if errors:
        code = errors[0].code
        tab = _TABS.get(code) or _TABS.get(code[:3], "heads")
        note = f"{plural(len(errors), 'error')}, {code}"
        return Answer("Is it legal?", tab, "No", note, NO, errors[0].message)
    kinds = ((severity, sum(f.severity == severity for f in findings)) for severity in ("warning", "note"))
    said = ", ".join(plural(n, kind) for kind, n in kinds if n)
    if report.job.model.experts:
        said = "its experts are not judged"
    memory = report.memory
    every = "every rule passes"
    if memory and memory.severity != NOTE:
        every = f"every rule passes but {memory.code}"
    return Answer("Is it legal?", "heads", "Yes", said or every)


def _fits(report: Report) -> tuple[str, str, str, str]:
    """Whether the worst stage fits the GPU. Raises LlamaparError."""
    found = load(report)
    memory = found.memory
    gpu = report.job.gpu
    if gpu is None:
        return f"{found.gib} GiB", "no GPU is chosen", UNSURE, ""
    outcome = found.outcome(gpu)
    verdict = {FITS: YES, TOO_MUCH: NO}.get(outcome, UNSURE)
    if verdict == NO:
        # A shorter sequence than the one that is assumed may fit, unless what needs none is already too much.
        least = load_of(report.job, report.judge)
        if least and least.outcome(gpu) != TOO_MUCH:
            verdict = UNSURE
    # Without a length the answer is of the one that "how fast?" takes too.
    length = "" if report.job.seq_len else f" with {sequence_of(report.job):,} tokens{_assumed(report.job)}"
    more = f"Stage {memory.worst.stage} needs {found.gib} GiB{length}: it {ENDS[outcome]} an {gpu}"
    if memory.not_counted and outcome != TOO_MUCH:
        return "not known", f"{found.gib} GiB, without its experts", UNSURE, memory.not_counted
    low, expected, high = (f"{n / GIB:.1f}" for n in memory.figure())
    note = ENDS[outcome]
    if low != high:
        note += f"; {low} to {high}"
    if memory.not_counted:
        expected = found.gib
    return f"{expected} of {memory.hbm_bytes / GIB:.1f} GiB", note, verdict, more


# -- the one sequence length ---------------------------------------------------------------------


def sequence_of(job: Job) -> int:
    """The sequence length of all answers and pictures: the job's own, or the model's longest."""
    return job.seq_len or job.model.max_seq_len


def load(report: Report) -> Load:
    """What the job needs on its worst rank, with that sequence length. Raises LlamaparError."""
    refuse_as_check(report, BATCH_FACTS)
    job = report.job.replace(seq_len=sequence_of(report.job))
    return load_of(job, report.judge) or account(job, report.judge)  # which raises why nothing is counted


def _assumed(job: Job) -> str:
    """What stands behind the tokens of a sequence that the job does not say."""
    return "" if job.seq_len else " (no length is set: the model's longest)"


# -- time and traffic --------------------------------------------------------------------------


def with_batch(job: Job) -> Job:
    """The same job with its micro-batch, and with the sequences of a step if any fact gives them."""
    many = job.n_micro_batches
    batch = job.micro_batch_size
    sequences = many * batch * job.layout.dp if many else job.sequences
    return job.replace(micro_batch=batch, global_batch=sequences)


def with_timed_schedule(job: Job) -> Job:
    """The same job with a schedule that can be timed at each move. Raises LayoutError."""
    job = with_batch(job)
    lay = job.layout
    many = micro_batches_of(job)
    operations = 2 * lay.stages * many
    ways: list[object] = [*_shorter_schedule(job, operations)]
    if 1.5 * operations <= MAX_ACTIONS:  # which counts a third one for each stage and micro-batch
        ways.append("lp.cost in a cell, which takes longer")
    refuse_longer(lay, many, MOST_OPERATIONS, "timed at each move", ways)
    return job


def refuse_longer(layout: Layout, many: int, most: int, done: str, ways: Sequence[object]) -> None:
    """Raises LayoutError for a schedule of more than `most` operations, which are `done`."""
    operations = 2 * layout.stages * many
    if operations > most:
        why = f"{plural(many, 'micro-batch')} through {plural(layout.stages, 'stage')} and back"
        why += f", and at most {most:,} operations are {done}"
        raise LayoutError(f"a schedule of {operations:,} operations", why, ways, "micro_batches")


def _shorter_schedule(job: Job, operations: int) -> list[Choice]:
    """Fewer micro-batches, with more sequences each where the batch determines how many there are."""
    if job.micro_batches or not job.global_batch:
        return fewer_micro_batches(MOST_OPERATIONS // 2, job.layout.pp, job.layout.virtual_stages)
    size = job.micro_batch_size
    share = job.global_batch // job.layout.dp
    enough = [n for n in divisors(share) if operations * size <= MOST_OPERATIONS * n]
    return [Choice.of(micro_batch=n) for n in enough[:1]]


@lru_cache(maxsize=512)
def step_cost(job: Job, judge: Framework | None) -> Cost:
    """The time of a step, cached. Raises LlamaparError."""
    return cost_of(with_timed_schedule(as_run(judge, job)), Conditions.of_job(job, judge))


@lru_cache(maxsize=512)
def traffic_of(job: Job, judge: Framework | None, rank: int) -> Traffic:
    """The bytes that a rank sends in a step, cached. Raises LlamaparError."""
    job = with_timed_schedule(as_run(judge, job))
    lay = job.layout
    many = micro_batches_of(job)
    table = schedule_of(job.schedule, lay.pp, lay.virtual_stages, many, job.nc)
    return traffic(
        "llama",
        job.model,
        lay,
        seq_len=sequence_of(job),
        global_batch=job.global_batch,
        dtype="bfloat16",
        kv_replication=job.kv_replication,
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
    job = report.job
    lay = report.job.layout
    seq_len = sequence_of(job)
    apart = documents_of(values["documents"], seq_len)
    found = sequence(lay, seq_len, chunking=values["chunking"], documents=apart)  # type: ignore[arg-type]
    if CpMethod.of(job.cp_method or "all_gather", lay.cp).heads > 1:
        copies = as_run(report.judge, job).kv_replication
        return HeadMap(job.model, lay.tp, copies).traded(found, job.cp_method or "")
    step = values["step"] if job.cp_method == "ring" else 0
    return found.at(min(step, lay.cp) - 1) if step and lay.cp > 1 else found


def layer_steps(report: Report, values: Values) -> LayerSteps:
    """The inside of a layer, for the group of the controls' rank, up to their step. Raises LlamaparError."""
    job = report.job
    judge = report.judge
    found = inside_of(
        job.model,
        job.layout,
        sequence_of(job),
        job.micro_batch_size,
        Conditions.of_job(job, judge),
        as_run(judge, job).kv_replication,
        values["rank"],
    )
    return found.at(min(values["step"] or 0, len(found.steps)))


def _fast(report: Report) -> tuple[str, str, str, str]:
    cost = step_cost(report.job, report.judge)
    idle = cost.seconds.get("pipeline idle", 0.0) / cost.step_seconds
    of = f"{cost.tokens // cost.seq_len:,} × {cost.seq_len:,} tokens{_assumed(report.job)}"
    low, expected, high = map(three_digits, (cost.interval[0], cost.step_seconds, cost.interval[1]))
    takes = f"A step of {of} takes {expected} s ({low} to {high})"
    each = f"{cost.tokens_per_second_per_gpu:,.0f} tokens/s a GPU"
    if idle:
        takes += f"; a rank is idle for {idle:.0%} of it"
    return f"{cost.mfu:.0%} MFU", each, YES, takes


def _travels(report: Report, values: Values) -> tuple[str, str, str, str]:
    job = report.job
    rank = values["rank"] if isinstance(values["rank"], int) else 0
    found = traffic_of(job, report.judge, rank)
    sent = found.by_axis
    if not sent:
        return "nothing", "no rank sends anything", YES, ""
    texts = [f"{human(n)} for {axis.upper()}" for axis, n in sent.items()]
    most = max(sent, key=lambda axis: sent[axis])
    leaving = [axis.upper() for axis in AXES if job.leaves_node(axis)]
    where = "all of it stays inside a node"
    if leaving:
        where = f"{listed(leaving)} {'leave' if leaving[1:] else 'leaves'} the node"
    note = f"{most.upper()} sends {human(sent[most])}"
    more = f"Rank {rank:,} sends {listed(texts)} in a step; {where}"
    return f"{human(sum(sent.values()))} a step", note, YES, more


def times_view(report: Report, pinned: Report | None) -> View:
    """The terms of a step, beside those of the pinned layout if it has any. Raises LlamaparError."""
    costs = {"now": step_cost(report.job, report.judge)}
    if pinned:
        with suppress(LlamaparError):  # its bar is then not there
            costs["pinned"] = step_cost(pinned.job, pinned.judge)
    return View(*cost_bars(list(costs.values()), list(costs)))


def ranks_view(report: Report, values: Values) -> View:
    """The controls' rank among all ranks: the nodes of its groups, and the bytes on them if known."""
    record = ranks(report.job.layout, values["rank"])
    node = report.job.gpus_per_node
    try:
        sent = traffic_of(report.job, report.judge, record.rank).by_axis
    except LlamaparError:
        sent = {}
    spanned = {axis: len({rank // node for rank in group}) for axis, group in record.peers.items()}
    said = {axis: f"in {plural(n, 'node')}" for axis, n in spanned.items()}
    for axis in spanned:
        if axis in sent:
            said[axis] += f", {human(sent[axis])} sent a step"
    if SHARDING in sent:
        said["dp"] += f", {human(sent[SHARDING])} sent a step, with CP"
    counts = ", ".join(f"{axis.upper()} {n:,}" for axis, n in spanned.items())
    return View(*all_ranks(record, said, f"; nodes of a group: {counts}"))


def judge_name(report: Report) -> str | None:
    """The framework whose rules judge, by its name; None for the paper's."""
    return report.judge.name if report.judge else None


def job_in_words(report: Report, published: str) -> str:
    """The model and its GPUs, in a few words. published: the name of a published job, or ""."""
    if published:
        return f"Llama 3 405B trains as its paper ran it: {JOBS[published].short}."
    job = report.job
    name = job.model.name
    if name == CUSTOM:
        name = "A model without a preset"
    said = f"{name} trains on {plural(job.gpus or job.layout.world, 'GPU')}"
    if job.gpu:
        said += f" ({job.gpu.name})"
    return f"{said}."


def sentence_of(report: Report, values: Values) -> list[tuple[str, str]]:
    """What the controls' rank works on, or why the layout is refused, in pieces; each has its axis or ""."""
    errors = [finding for finding in report.arithmetic if finding.severity == "error"]
    if errors:
        first = errors[0]
        reason = first.message.removesuffix(f" ({report.job.model.name})")
        if first.why:
            reason += f": {first.why.partition(';')[0]}"
        pieces = _DEGREE.split(f"{reason}.")
        return [(piece, piece[:2] if _DEGREE.fullmatch(piece) else "") for piece in pieces]
    job = report.job
    judge = report.judge
    record = ranks(
        job.layout,
        values["rank"],
        model=job.model,
        seq_len=job.seq_len,
        global_batch=job.sequences,
        chunking=values["chunking"],
        layer_split=split_of(judge, job.layer_split),
        kv_replication=as_run(judge, job).kv_replication,
    )
    assert record.share is not None  # of a model
    return record.share.phrases(record.rank)


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
