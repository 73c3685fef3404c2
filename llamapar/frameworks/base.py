"""The form of what is known about a framework."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape

from llamapar.describe.job import Job
from llamapar.describe.splits import NO_PADDING, Padding

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
"""What a framework does with a layout that a rule speaks of, from best to worst, then the unknown."""

FAILS = frozenset((CLEAR, INIT, FORWARD, SAVE, SILENT))
"""Verdicts after which a run cannot be trusted or does not start."""


_FILE = re.compile(r"(?P<path>[^\s:;]+)(?::(?P<first>\d+)(?:-(?P<last>\d+))?)?[^;]*")

GITHUB = "https://github.com/"


@dataclass(frozen=True)
class Source:
    """Where evidence stands: files of a public repository, with lines, at a commit or version."""

    repo: str
    path: str
    at: str

    def __str__(self) -> str:
        return f"{self.repo}: {self.path} @{self.at[:10]}"

    @property
    def links(self) -> list[tuple[str, str]]:
        """(text, permanent address below GITHUB) of each file; the texts together are the source as text."""
        found = list(_FILE.finditer(self.path))
        made = []
        for file in found:
            text, lines = file.group().strip(), [n for n in file.group("first", "last") if n]
            text = f"{self.repo}: {text}" if file is found[0] else text
            text = f"{text} @{self.at[:10]}" if file is found[-1] else f"{text};"
            anchor = "#" + "-".join(f"L{n}" for n in lines) if lines else ""
            made.append((text, f"{self.repo}/blob/{self.at}/{file['path']}{anchor}"))
        return made

    def _repr_html_(self) -> str:
        return " ".join(
            f'<a href="{GITHUB}{escape(to)}" rel="noopener">{escape(text)}</a>' for text, to in self.links
        )


@dataclass(frozen=True)
class Case:
    """One piece of evidence: what the framework does where a rule applies and `when` holds.

    message: what it says, word for word; {names} are filled from `Job.numbers`.
    path: file and lines in the framework's repository at its commit.
    note: what happens, in our words, where the message does not say it.
    """

    verdict: str
    message: str = ""
    path: str = ""
    note: str = ""
    when: Callable[[Job], bool] = lambda job: True
    repo: str = ""
    at: str = ""
    """Repository and commit or version of `path` where they are not the framework's own."""


def evidence(**cases: Case | tuple[Case, ...]) -> dict[str, tuple[Case, ...]]:
    """Evidence by the rule's code; of several cases the first whose `when` holds counts."""
    return {code: (case,) if isinstance(case, Case) else case for code, case in cases.items()}


def uneven_vocab(job: Job) -> bool:
    """Whether the vocabulary itself does not divide over tp."""
    return job.model.vocab_size % job.layout.tp != 0


def torn_kv_heads(job: Job) -> bool:
    """Whether Q can be viewed by heads and K cannot: rank 0's columns end inside a KV head."""
    m, tp = job.model, job.layout.tp
    return m.n_heads % tp == 0 and -(-m.kv_dim // tp) % m.head_dim != 0


def pads(own: Padding) -> Callable[[Job], bool]:
    """Whether the padding that was asked for, or else the framework's `own`, adds a row."""
    return lambda j: (j.padding or own).padded(j.model.vocab_size, j.layout.tp) != j.model.vocab_size


def torch_case(verdict: str, message: str, path: str, when: Callable[[Job], bool], note: str) -> Case:
    """Evidence from torch itself, for the frameworks that stand on it."""
    return Case(verdict, message, path, note, when, "pytorch/pytorch", "v2.13.0")


_SCHEDULES = "torch/distributed/pipelining/schedules.py"


def _off_rounds(job: Job) -> bool:
    count = job.n_micro_batches or 0
    return count % max(1, count // job.layout.pp) != 0


TORCH_1F1B = torch_case(
    CLEAR,
    "Number of microbatches ({micro_batches}) must be greater than or equal to the number of "
    "stages ({stages}).",
    _SCHEDULES,
    lambda j: j.layout.virtual_stages == 1,
    "Schedule1F1B; ScheduleGPipe accepts it",
)
TORCH_ROUNDS = torch_case(
    CLEAR,
    "Interleaved 1F1B requires the number of microbatches to be a multiple of the number of "
    "rounds ({rounds}), but got {micro_batches}.",
    _SCHEDULES,
    _off_rounds,
    "ScheduleInterleaved1F1B",
)
TORCH_ROUNDS_FIT = torch_case(
    WORKS,
    "",
    _SCHEDULES,
    lambda j: not _off_rounds(j),
    "ScheduleInterleaved1F1B needs a multiple of its rounds, here {rounds}",
)


@dataclass(frozen=True)
class Verdict:
    """What one framework does with one finding, its message filled in."""

    framework: str
    verdict: str
    message: str = ""
    note: str = ""
    source: Source | None = None

    @property
    def fails(self) -> bool:
        return self.verdict in FAILS

    def as_dict(self) -> dict[str, str]:
        """Plain values for JSON."""
        return {
            "verdict": self.verdict,
            "message": self.message or self.note,
            "source": str(self.source or ""),
        }


@dataclass(frozen=True, eq=False)
class Framework:
    """A framework's habits, and its evidence by rule code.

    order: its rank order, fastest axis first. layer_split: a name of `splits.LAYER_SPLITS`, or None
    where it has no pipeline or its rule is not one of those. chunking: how CP cuts the sequence.
    trains: whether it does; one that only serves needs none of what training keeps in memory.
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
    trains: bool = True
    cases: dict[str, tuple[Case, ...]] = field(default_factory=dict)

    def case(self, code: str, job: Job) -> Case | None:
        """The evidence on rule `code` that fits `job`, or None."""
        return next((case for case in self.cases.get(code, ()) if case.when(job)), None)

    def judge(self, code: str, job: Job) -> Verdict:
        """The verdict on rule `code` for `job`; "not known" where no evidence fits."""
        case = self.case(code, job)
        if case is None:
            return Verdict(self.name, UNKNOWN)
        numbers = job.numbers(self.padding)
        return Verdict(
            self.name,
            case.verdict,
            case.message.format_map(numbers),
            case.note.format_map(numbers),
            self.source(case),
        )

    def source(self, case: Case) -> Source:
        """Where a piece of its evidence stands."""
        return Source(case.repo or self.repo, case.path, case.at or self.commit)
