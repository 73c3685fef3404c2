"""The form in which a framework's habits and evidence are recorded, and how a verdict follows from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby
from math import gcd

from llamapar.describe.configfile import Values
from llamapar.describe.job import Job
from llamapar.describe.layout import AXES, Layout
from llamapar.describe.splits import NO_PADDING, Padding
from llamapar.records.tables import Plain

from .citation import LAST, Change, Source
from .trainer import USUAL, Habits

WORKS = "works"
ADAPTS = "works by replicating or padding"
CLEAR = "clear error"
INIT = "crash at init"
FORWARD = "crash in forward"
SAVE = "crash at save"
SILENT = "silent wrong result"
NA = "not applicable"
UNKNOWN = "not known"

VERDICTS = (WORKS, ADAPTS, CLEAR, INIT, FORWARD, SAVE, SILENT, NA, UNKNOWN)
"""All verdicts on a layout to which a rule applies, from best to worst; then the unknown."""

_OF_SPLITS = ("LP301", "LP303")
"""The rules on how layers divide over stages."""

FAILS = frozenset((CLEAR, INIT, FORWARD, SAVE, SILENT))
"""Verdicts after which a run does not start or cannot be trusted."""


@dataclass(frozen=True)
class Evidence:
    """One piece of evidence: what the framework does where a rule applies and `when` holds.

    message: its own message, word for word; {names} are filled from `Job.numbers`.
    path: file and lines in the framework's repository at its commit. line: its source line that fails there.
    note: what happens, in our words, if the message does not say it.
    since: the change that brought this behaviour, if known. It replaces all cases of the same part listed
    after the cases of that change. A case without `since` that is listed first holds in every version.
    """

    verdict: str
    message: str = ""
    path: str = ""
    note: str = ""
    when: Callable[[Job], bool] = lambda job: True
    repo: str = ""
    at: str = ""
    """Repository and commit or version of `path`, if they are not the framework's own."""
    since: Change | None = None
    line: str = ""


def evidence(**cases: Evidence | tuple[Evidence, ...]) -> dict[str, tuple[Evidence, ...]]:
    """Evidence by the code of a rule; of several cases, the first one with a true `when` counts."""
    return {code: (case,) if isinstance(case, Evidence) else case for code, case in cases.items()}


def tp_alone(path: str) -> dict[str, Evidence]:
    """Evidence for a framework in which every rank is a TP rank: rules of other axes do not apply."""
    none = Evidence(
        NA,
        path=path,
        note="cuts by TP alone: cp, pp and dp do not exist there",
        when=lambda job: job.layout.world > job.layout.tp,
    )
    return dict.fromkeys(("LP201", "LP202", "LP301", "LP302", "LP303", "LP304", "LP501"), none)


def keywords(**own: str) -> tuple[tuple[None, dict[str, str]]]:
    """Our field names → a framework's own settings, for a framework that never renamed them."""
    return ((None, own),)


def uneven_vocab(job: Job) -> bool:
    """Whether tp does not divide the unpadded vocabulary."""
    return job.model.vocab_size % job.layout.tp != 0


def uneven_chunks(job: Job) -> bool:
    """Whether the sequence does not divide into two chunks for each CP rank."""
    return (job.seq_len or 0) % (2 * job.layout.cp) != 0


def torn_heads(job: Job) -> bool:
    """Whether Q cannot be viewed as heads, because rank 0's columns end inside a head."""
    # Rank 0's share, rounded up as torch.chunk does; later ranks fail on the same line or have less.
    return -(-job.model.q_dim // job.layout.tp) % job.model.head_dim != 0


def torn_kv_heads(job: Job) -> bool:
    """Whether Q can be viewed as heads but K cannot, because rank 0's columns end inside a KV head."""
    m = job.model
    tp = job.layout.tp
    return m.n_heads % tp == 0 and -(-m.kv_dim // tp) % m.head_dim != 0


def takes_what_is_left(job: Job) -> Job:
    """The job with the dp that a framework derives from the GPUs, gpus / (tp·cp·pp), if that is whole."""
    lay = job.layout
    dp, left = divmod(job.gpus or lay.world, lay.model_ranks)
    if left or dp == lay.dp:
        return job
    # dp_replicate must divide the new dp. Pure replication stays pure replication.
    copies = dp if 1 < lay.dp_replicate == lay.dp else gcd(dp, lay.dp_replicate)  # all copies stay so
    return job.replace(layout=lay.replace(dp=dp, dp_replicate=copies))


def pads(own: Padding) -> Callable[[Job], bool]:
    """A condition: the padding that the job asks for, or else the framework's `own`, adds a row."""
    return lambda j: (j.padding or own).padded(j.model.vocab_size, j.layout.tp) != j.model.vocab_size


@dataclass(frozen=True)
class Verdict:
    """What one framework does about one finding, with its message filled in."""

    framework: str
    verdict: str
    message: str = ""
    note: str = ""
    source: Source | None = None
    part: str = ""
    """The part of the framework that judges ("arguments", "core"), if several parts judge a layout."""
    others: tuple[Verdict, ...] = ()
    """The verdicts of its other parts on the same finding."""
    since: Change | None = None
    """The change that brought this behaviour, if the version in use may or may not have it."""
    before: Verdict | None = None
    """The verdict before that change; UNKNOWN without evidence."""

    @property
    def fails(self) -> bool:
        return self.verdict in FAILS

    @property
    def versions(self) -> tuple[Verdict, ...]:
        """This verdict, and the earlier ones that it replaced, newest first."""
        return (self, *(self.before.versions if self.before else ()))

    @property
    def dated(self) -> str:
        """The date, as " (since 2026-03-15)", if older versions do or may do otherwise; else ""."""
        if self.since and self.before and self.before.verdict != self.verdict:
            return f" (since {self.since.day})"
        return ""

    @property
    def words(self) -> str:
        """The message or note; of several parts each with its name; then what older versions did."""
        named = self.message or self.note
        if self.part and named:
            named = f"its {self.part}: {named}"
        earlier = self.before and ": ".join(filter(None, (self.before.verdict, self.before.words)))
        dated = []
        if earlier:
            dated = [f"before {self.since} {earlier}"]
        return "; ".join([*filter(None, [named]), *dated, *(other.words for other in self.others)])

    def as_dict(self) -> Plain:
        """Plain values for JSON.

        part and others are present only for a framework with parts, since and before only if versions differ.
        """
        plain: Plain = {
            "verdict": self.verdict,
            "message": self.message or self.note,
            "source": str(self.source or ""),
        }
        if self.part:
            plain |= {"part": self.part, "others": [other.as_dict() for other in self.others]}
        if self.before:
            plain |= {"since": str(self.since), "before": self.before.as_dict()}
        return plain


@dataclass(frozen=True, eq=False)
class Framework:
    """A framework's habits, and its evidence by the code of a rule.

    order: its rank order, fastest axis first. chunking: how CP cuts the sequence.
    layer_split: a name of `splits.LAYER_SPLITS`; None without a pipeline, or if its rule is not one of those.
    axes: the axes that it can cut by. layer_splits: further splits that a setting selects. zero: its ZeRO
    stages. interleaves: whether a pipeline rank may have several stages. hsdp: whether groups of DP ranks may
    each hold all shards. sources: of the row, by field name.
    trains: False if it only serves, and so needs no memory for training.
    parts: folder → the part of the framework whose code it holds, if parts judge a layout separately.
    runs: the job that it really runs, if it silently changes the layout; LP001 reports that.
    keywords: (the change since which they hold, our field → its setting), newest first; "" if the value
        follows from other settings.
    habits: what it does unasked; until: (a change, the habits that it replaced), newest first.
    paper: whether the paper's own semantics judge, because no evidence is recorded of how it judges.
    since, before: the changes between which its version lies, as far as known (`of_version`).
    """

    name: str
    title: str
    repo: str
    commit: str
    aliases: tuple[str, ...] = ()
    order: str | None = None
    padding: Padding = NO_PADDING
    layer_split: str | None = None
    chunking: str | None = None
    layer_splits: tuple[str, ...] = ()
    axes: tuple[str, ...] = AXES
    zero: tuple[int, ...] = (0, 1, 2, 3)
    interleaves: bool = True
    hsdp: bool = True
    sources: Mapping[str, Source] = field(default_factory=dict)
    trains: bool = True
    parts: Mapping[str, str] = field(default_factory=dict)
    runs: Callable[[Job], Job] = lambda job: job
    cases: dict[str, tuple[Evidence, ...]] = field(default_factory=dict)
    keywords: tuple[tuple[Change | None, Mapping[str, str]], ...] = ()
    habits: Habits = USUAL
    until: tuple[tuple[Change, Mapping[str, object]], ...] = ()
    paper: bool = False
    since: Change | None = None
    before: Change | None = None

    def job_of(self, code: str, job: Job) -> Job:
        """The job that rule `code` judges: what really runs.

        LP001 compares the given layout with the GPUs, so it judges the given one.
        """
        if code == "LP001":
            return job
        ran = self.runs(job)
        if code in _OF_SPLITS and self.layer_split == "equal" and ran.layer_split is None:
            return ran.replace(layer_split="equal")
        return ran

    def as_paper(self, code: str) -> bool:
        """Whether the paper's own semantics judge a rule, because nothing is known of this framework's."""
        return self.paper and code not in self.cases

    @property
    def days(self) -> str:
        """The day of its version, or the first and the last that it may have, "2025-03-01..2025-03-31"."""
        if not self.since or not self.before or self.since.name != LAST:
            return ""
        until = ""
        if self.since != self.before:
            until = f"..{self.before.day}"
        return f"{self.since.day}{until}"

    @property
    def spelled(self) -> str:
        """Its name, with the days of its version if they are given: "torchtitan@2025-06-01"."""
        if self.days:
            return f"{self.name}@{self.days}"
        return self.name

    def settled(self, layout: Layout) -> Layout:
        """The layout as it runs: with a ZeRO stage that the trainer has, and without SP if it has none."""
        # The largest stage up to the one that is asked for. FSDP has no stage below 2; it keeps parameters
        # gathered in a pipeline, and else gathers them again.
        below = [stage for stage in self.zero if stage <= layout.zero]
        least = max(self.zero)
        if layout.pp > 1:
            least = min(self.zero)
        settled = layout.replace(zero=max(below, default=least))
        if settled.sp and not self.habits.sp:
            return settled.replace(sequence_parallel=False)
        return settled

    def case(self, code: str, job: Job) -> Evidence | None:
        """The evidence on rule `code` that fits `job`, or None. Of several parts, the first that fails."""
        # A run stops at the first part that refuses it, whatever the others accept.
        newest = [cases[0] for cases in self._fitting(code, self.job_of(code, job))]
        return next((case for case in newest if case.verdict in FAILS), next(iter(newest), None))

    def _fitting(self, code: str, job: Job) -> list[list[Evidence]]:
        """For each part of the framework, its fitting cases in all versions that it may be, newest first."""
        cases = self.cases.get(code, ())
        parts = {part: [c for c in cases if self.part(c) == part] for part in map(self.part, cases)}
        found = [held for own in parts.values() if (held := self._by_version(own, job))]
        # Parts come in the order in which their cases are listed, whichever version of each fits.
        return sorted(found, key=lambda held: cases.index(held[0]))

    def _by_version(self, cases: list[Evidence], job: Job) -> list[Evidence]:
        """Of one part's cases, the fitting one of each version, newest first, as far back as is known."""
        found: list[Evidence] = []
        end = None
        # Cases are listed newest change first, so one pass walks back in time: each group holds from its own
        # change until `end`, the change of the group before it.
        for since, group in groupby(cases, key=lambda case: case.since):
            case = next((case for case in group if case.when(job)), None)
            if since is None and end is None and case is None:
                continue  # of what holds in every version nothing fits
            # Changes after the version in use, and groups that ended before it, say nothing about it.
            later = self.before and since and since >= self.before
            if not later and not (self.since and end and end <= self.since):
                if case is None:
                    break
                found.append(case)
            if since is None:
                break
            end = since
        return found

    def judge(self, code: str, job: Job) -> Verdict:
        """The verdict on rule `code` for `job`; "not known" if no evidence fits."""
        job = self.job_of(code, job)
        case = self.case(code, job)
        parts = sorted(self._fitting(code, job), key=lambda cases: cases[0] is not case)
        verdict, *others = [self._verdict(cases, job) for cases in parts or [[]]]
        return replace(verdict, others=tuple(others))

    def _verdict(self, cases: list[Evidence], job: Job) -> Verdict:
        """The verdict of the first and newest case, followed by those of the cases that it replaced."""
        if not cases:
            return Verdict(self.name, UNKNOWN)
        case, *older = cases
        numbers = job.numbers(self.padding)
        message = case.message.format_map(numbers)
        note = case.note.format_map(numbers)
        verdict = Verdict(self.name, case.verdict, message, note, self.source(case), self.part(case))
        # The version in use certainly has this change, so earlier behaviour does not matter.
        if case.since is None or (self.since and case.since <= self.since):
            return verdict
        return replace(verdict, since=case.since, before=self._verdict(older, job))

    def setting(self, name: str, value: object) -> str:
        """A value as the framework's own setting, "tp_size=8"; with our field name if its own is not known.

        "" if the value follows from other settings.
        """
        end = self.before
        # Newest first, without those that came after the version in use.
        held = [names for since, names in self.keywords if not (end and since and since >= end)]
        own = next((names[name] for names in held if name in names), name)
        if isinstance(value, Padding):
            if value.per_tp == self.padding.per_tp:
                return f"{own}={value.multiple}"
            return f"{name}={value}"
        return own and f"{own}={value}"

    def part(self, case: Evidence) -> str:
        """The part of the framework that the evidence comes from; "" for a framework without parts."""
        return next((part for folder, part in self.parts.items() if case.path.startswith(folder)), "")

    def source(self, case: Evidence) -> Source:
        """Where a piece of evidence can be read."""
        return Source(case.repo or self.repo, case.path, case.at or self.commit)


@cache
def of_version(framework: Framework, since: Change | None, before: Change | None) -> Framework:
    """A framework as it was from one change on and until another; None leaves that end open."""
    if not (since or before):
        return framework
    habits = framework.habits
    for change, old in framework.until:
        if before and before <= change:
            habits = replace(habits, **Values(old))
    found = replace(framework, habits=habits, since=since, before=before)
    ends = (("since", since), ("before", before))
    said = f"of {found.days}" if found.days else " ".join(f"{word} {end}" for word, end in ends if end)
    return replace(found, title=f"{framework.title} {said}")
