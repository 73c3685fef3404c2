"""What real trainers do, as data: a row of `trainers.toml` for each, and a module for how it judges a layout.

`check`, `memory`, `cost`, `plan`, settings and pictures read the same row. Every case of evidence names
repository, path and commit. Without evidence there is no case, and the verdict is "not known". Reading a
run's files is not done here, but in `configs`.
"""

from __future__ import annotations

from calendar import monthrange
from datetime import date, timedelta

from llamapar.describe.job import Job
from llamapar.describe.options import offer
from llamapar.describe.splits import NO_PADDING, Padding
from llamapar.errors import LayoutError, one_of, shown

from .base import (
    ADAPTS,
    CLEAR,
    FAILS,
    FORWARD,
    INIT,
    NA,
    SAVE,
    SILENT,
    UNKNOWN,
    VERDICTS,
    WORKS,
    Evidence,
    Framework,
    Verdict,
    of_version,
)
from .citation import LAST, Change, Source
from .colossalai import COLOSSALAI
from .distributed_llama import DISTRIBUTED_LLAMA
from .dtensor import DTENSOR
from .megatron import MEGATRON
from .meta import META
from .nanotron import NANOTRON
from .picotron import PICOTRON
from .torchtitan import TORCHTITAN
from .trainer import USUAL, Habits
from .trainers import ROWS
from .trainers import trainer as of_row
from .transformers import TRANSFORMERS
from .vllm import VLLM

JUDGES: dict[str, Framework] = {
    f.name: f
    for f in (
        *(META, TORCHTITAN, MEGATRON, COLOSSALAI, DISTRIBUTED_LLAMA, TRANSFORMERS, PICOTRON, NANOTRON),
        *(VLLM, DTENSOR),
    )
}
"""Name → a framework with evidence of how it judges a layout."""

FRAMEWORKS: dict[str, Framework] = {**JUDGES, **{n: of_row(n) for n in ROWS if n not in JUDGES}}
"""Name → a framework or trainer: what it can do, what it does unasked, and its evidence, if there is any."""

offer("framework", FRAMEWORKS)

_BY_ALIAS = {alias: f for f in FRAMEWORKS.values() for alias in (f.name, f.title.lower(), *f.aliases)}


def framework(name: str | Framework) -> Framework:
    """The framework called `name`, in any usual spelling; "torchtitan@2025-06-01" is its code of that day.

    A date may be a month, a year or a range: "torchtitan@2025-03", "torchtitan@2025..2026-02". Raises
    LayoutError with the nearest names.
    """
    if isinstance(name, Framework):
        return name
    word, dated, day = name.partition("@") if isinstance(name, str) else (name, "", "")
    found = None
    if isinstance(word, str):
        found = _BY_ALIAS.get(word.strip().lower())
    found = found or FRAMEWORKS[one_of("framework", word, FRAMEWORKS)]
    if not dated:
        return found
    try:
        return of_version(found, *_days(day))
    except ValueError:
        why = "the part after @ is the date of its code: 2025-06-01, 2025-06, or 2025-06..2026-01"
        raise LayoutError(
            f"framework={shown(name)}: {shown(day)} is no date",
            why,
            [f"{found.name}@2025-06-01"],
            "framework",
        ) from None


def judge_of(name: str | Framework | None) -> Framework | None:
    """The framework that judges a job by the option `framework`; None for the paper's own rules."""
    if name is None:
        return None
    return framework(name)


def _days(text: str) -> tuple[Change, Change]:
    """The first and the last day of a date, which may be a month, a year or a range. Raises ValueError."""
    start, _, end = text.strip().partition("..")
    end = end or start
    if len(end) == len("2025"):
        end += "-12"
    if len(end) == len("2025-12"):
        end += f"-{monthrange(int(end[:4]), int(end[5:]))[1]}"
    first = date.fromisoformat((start + "-01-01")[: len("2025-01-01")])
    last = date.fromisoformat(end)
    if last < first:
        raise ValueError(text)
    return Change(str(first), LAST), Change(str(last), LAST)


def versions_of(judge: Framework) -> tuple[Framework, ...]:
    """Of each version that it may be and that has other habits, newest first, as it was on one day."""
    since, before = judge.since, judge.before
    changes = [
        change
        for change, _ in judge.until
        if (not since or since < change) and (not before or change < before)
    ]
    if not changes:
        return (judge,)
    days = [changes[0].day]
    days += [str(date.fromisoformat(change.day) - timedelta(days=1)) for change in changes]
    return tuple(of_version(judge, at, at) for at in (Change(day, LAST) for day in days))


def habits_of(judge: Framework | None) -> Habits:
    """What a trainer does unasked; USUAL without one."""
    if judge:
        return judge.habits
    return USUAL


UNSAID = "selective"
"""The recomputation that is counted where neither a call nor the trainer's row says one."""


def recompute_of(judge: Framework | None, said: str | None) -> str:
    """The mode of recomputation: what a call says, else the trainer's usual one, else UNSAID."""
    return said or habits_of(judge).recompute or UNSAID


def split_of(judge: Framework | None, said: str | None = None) -> str:
    """How layers are divided over stages: what a call says, else as the framework does, else as the paper."""
    return said or (judge and judge.layer_split) or "balanced ends"


def as_run(judge: Framework | None, job: Job) -> Job:
    """The job that memory and time are counted of: what its trainer really runs.

    That is with the DP that it derives, and with KV heads copied where it copies them. Unless
    the trainer is known to refuse it, an interleaved pipeline takes any number of micro-batches, as Llama 3's
    flexible schedule does.
    """
    ran = job
    if judge is not None:
        ran = judge.runs(job)
        # The case on KV heads is asked for only where they could be copied.
        case = None
        if ran.kv_replicas > 1:
            case = judge.case("LP104", ran)
        if case and case.verdict == ADAPTS:
            ran = ran.replace(kv_replication=True)
    lay = ran.layout
    many = ran.n_micro_batches
    if not many or ran.schedule != "1f1b" or lay.virtual_stages == 1 or lay.pp == 1:
        return ran
    in_rounds = many % max(1, many // lay.pp) == 0
    refused = judge is not None and judge.case("LP306", ran) is not None
    if in_rounds or refused:
        return ran
    # A last round that is shorter than the pipeline would make ranks wait for one another.
    whole = next(n for n in range(lay.pp, many + 1) if many % n == 0 or many % n >= lay.pp)
    return ran.replace(schedule="flexible", nc=whole)


def padding_rule(value: str | Padding | None) -> Padding:
    """A Padding from a Padding, None or "none", a text such as "64" or "32*tp", or a framework's name."""
    if value is None or value == "none":
        return NO_PADDING
    if isinstance(value, Padding):
        return value
    # "64" and "64*tp" are numbers; every other word has to be a framework's name.
    number, per_tp, rest = value.partition("*tp") if isinstance(value, str) else ("", "", "")
    if number.isdecimal() and len(number) < 10 and not rest:
        return Padding(int(number), per_tp=bool(per_tp))
    try:
        return framework(value).padding
    except LayoutError:
        one_of("padding", value, ("none", "64", "64*tp", *FRAMEWORKS))
        raise


__all__ = [
    "ADAPTS",
    "CLEAR",
    "FAILS",
    "FORWARD",
    "FRAMEWORKS",
    "INIT",
    "JUDGES",
    "NA",
    "SAVE",
    "SILENT",
    "UNKNOWN",
    "USUAL",
    "VERDICTS",
    "WORKS",
    "Change",
    "Evidence",
    "Framework",
    "Habits",
    "Source",
    "Verdict",
    "framework",
    "habits_of",
    "judge_of",
    "of_version",
    "padding_rule",
    "recompute_of",
    "split_of",
    "versions_of",
]
