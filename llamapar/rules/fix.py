"""A fix: a changed job, the words for its changes, and what they gain and cost in memory, time and GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from llamapar.count.terms import GIB, Memory
from llamapar.describe.job import Job
from llamapar.describe.layout import AXES, Layout
from llamapar.errors import LlamaparError
from llamapar.frameworks import Framework
from llamapar.late import late
from llamapar.records.tables import Plain, plural

from .memory_rule import Load, load_of, serving_load_of
from .repairs import Changes

WORTH_SAYING = 0.01
"""Smaller differences of time are not mentioned."""


@dataclass(frozen=True)
class Effect:
    """What a change of a job gains and costs. load: its memory afterwards; None if nothing can be counted.

    time: seconds for the same tokens as a multiple of those before; None if one of both cannot be timed.
    idle_gpus: available GPUs that stay idle. serves: whether the job only serves, so that `load` is of its
    weights alone.
    """

    load: Load | None
    time: float | None
    idle_gpus: int
    serves: bool = False

    @property
    def gain(self) -> str:
        """The expected memory of the worst rank: "61.30 GiB"; empty if every known GPU has that much.

        With its interval where the GPU has less than is expected: "56.7 (30.1 to 70.5) GiB, may fit".
        """
        if self.load is None or not self.load.matters:
            return ""
        held = self.load.memory.expected_bytes
        gpu = self.load.gpu
        doubtful = gpu is not None and held > gpu.hbm_bytes
        gib = f"{self.load.gib} GiB, may fit"
        if not doubtful:
            gib = f"{held / GIB:.2f} GiB"
        if self.serves:
            return f"{gib} of weights"
        if self.load.whole:
            return gib
        return f"{gib} before activations"

    @property
    def price(self) -> list[str]:
        """Time and GPUs in words: "12% slower", "3% less time", "takes 2.4 x the time", "4 GPUs idle"."""
        found = []
        if self.time is not None and self.time >= 2:
            found.append(f"takes {self.time:.1f} x the time")
        elif self.time is not None and abs(self.time - 1) >= WORTH_SAYING:
            found.append(f"{abs(self.time - 1):.0%} {'slower' if self.time > 1 else 'less time'}")
        if self.idle_gpus:
            found.append(f"{plural(self.idle_gpus, 'GPU')} idle")
        return found

    @property
    def text(self) -> str:
        """Gain and price in one line."""
        return ", ".join(filter(None, [self.gain, *self.price]))

    def as_dict(self) -> Plain:
        """Plain values for JSON; None for an unknown number."""
        memory = None
        if self.load:
            memory = self.load.memory.expected_bytes
        return {"memory_bytes": memory, "time": self.time, "idle_gpus": self.idle_gpus}


def effect(old: Job, new: Job, judge: Framework | None) -> Effect:
    """What the change from `old` to `new` gains and costs, as `memory` and `cost` count it."""
    # The judge may run other settings than a Job asks for, so both are compared as it would run them.
    if judge is not None:
        old = judge.runs(old)
        new = judge.runs(new)
    # Only GPUs that were there before count: a fix with more ranks leaves none of them idle.
    idle = max(0, (old.gpus or old.layout.world) - new.layout.world)
    if judge is not None and not judge.trains:  # `memory` and `cost` count training.
        return Effect(serving_load_of(new, judge), None, idle, serves=True)
    if new.model.experts:
        return Effect(None, None, idle)
    return Effect(load_of(new, judge), late("times_longer")(old, new, judge), idle)


_LAYOUT_FIELDS = Layout.__dataclass_fields__.keys()


def _differ(old: Job | Layout, new: Job | Layout) -> Iterator[tuple[str, object]]:
    """Name and new value of every field that differs."""
    for name in old.__dataclass_fields__:
        if getattr(old, name) != (value := getattr(new, name)):
            yield name, value


@dataclass(frozen=True, repr=False)
class Fix:
    """A job that passes, and the job that it mends; the judge of both."""

    job: Job
    old: Job
    judge: Framework | None = None

    @cached_property
    def changes(self) -> tuple[tuple[str, object], ...]:
        """Name and new value of every field that differs, those of the layout first."""
        # A layout is listed by its fields, and the field "layout" itself, which differs too, is dropped.
        changed = dict(_differ(self.old.layout, self.job.layout)) | dict(_differ(self.old, self.job))
        if "model" in changed:
            changed["model"] = self.job.model.name
        return tuple(pair for pair in changed.items() if pair[0] != "layout")

    @property
    def layout(self) -> Layout:
        return self.job.layout

    @property
    def text(self) -> str:
        """The changes in the judge's own settings: "tp_size=4 (4·1·1·2 = 8 ranks)"."""
        # A change without a setting in the judge has no words there; if none has, ours are shown.
        own = []
        if self.judge:
            own = [self.judge.setting(*change) for change in self.changes]
        words = " ".join(filter(None, own)) or " ".join(f"{name}={value}" for name, value in self.changes)
        if any(name in AXES for name, _ in self.changes):
            lay = self.layout
            words += f" ({lay.tp}·{lay.cp}·{lay.pp}·{lay.dp} = {lay.world} ranks)"
        if "model" in dict(self.changes):
            words += f" (its checkpoint stores {self.job.model.n_kv_heads} KV heads)"
        return words

    @cached_property
    def effect(self) -> Effect:
        """What the change gains and costs."""
        return effect(self.old, self.job, self.judge)

    @property
    def memory(self) -> Memory | None:
        """The memory of a rank afterwards; None if nothing can be counted."""
        if self.effect.load:
            return self.effect.load.memory
        return None

    def as_dict(self) -> Plain:
        """Plain values for JSON: the whole layout, all other changes, and their effect."""
        others = {name: value for name, value in self.changes if name not in AXES}
        for name in ("padding", "gpu"):
            if name in others:
                others[name] = str(others[name])
        degrees = {axis: getattr(self.layout, axis) for axis in AXES}
        return degrees | others | {"text": self.text, "effect": self.effect.as_dict()}

    def __str__(self) -> str:
        """The changes with what they gain and cost: "recompute=full: 61.30 GiB, 31% slower"."""
        return ": ".join(filter(None, [self.text, self.effect.text]))

    __repr__ = __str__


def changed_job(job: Job, changes: Changes) -> Job | None:
    """`job` with changes to its own fields or its layout's; None if they give no valid job."""
    of_layout = {name: value for name, value in changes.items() if name in _LAYOUT_FIELDS}
    of_job = {name: value for name, value in changes.items() if name not in _LAYOUT_FIELDS}
    try:
        # Validity is the constructors' affair: a Layout or Job that refuses these values was no
        # candidate.
        if of_layout:
            job = job.replace(layout=job.layout.replace(**of_layout))
        if of_job:
            return job.replace(**of_job)
        return job
    except LlamaparError:
        return None
