"""Trials: a user's code run again with one thing changed, and where it fails then.

A trial runs `attempt(model, layout)` as one rank of torch's fake process group, which sends nothing, on meta
tensors, which have shapes and no numbers. So it costs milliseconds at any size, and what it tells is whether
shapes fit. What meta tensors cannot show, such as an index out of range, is tried on real tensors, if they
are small. Left out: values that come from other ranks, and hangs.
"""

from __future__ import annotations

import copy
import io
import logging
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import NamedTuple

from llamapar.describe.layout import AXES, Layout
from llamapar.describe.models import ModelConfig
from llamapar.errors import LlamaparError, printable
from llamapar.late import late
from llamapar.records.frames import Held, is_library, stored

Attempt = Callable[[Held, Layout], object]
"""The user's code, as a function of its sizes and a Layout."""

PASSES, FAILS, ELSEWHERE = "passes", "fails", "fails elsewhere"
"""Outcomes: without an error; with the first trial's error, at its line; with another one."""

LARGEST = 2**28
"""An attempt that makes more bytes of tensors is run on meta tensors alone."""

_OF_VALUES = ("IndexError", "RuntimeError", "TypeError")
"""Errors of operators. Others may come from values that a fake group did not send."""


class Failure(NamedTuple):
    """The kind of an error, the line of the user's own code that it came from, and the first of its words."""

    kind: str
    file: str
    line: int
    words: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """The failure of an error that was raised in the user's code or in what that calls."""
        at, file, line = error.__traceback__, "", 0
        while at is not None:
            if not is_library(at.tb_frame.f_code.co_filename):
                file, line = at.tb_frame.f_code.co_filename, at.tb_lineno
            at = at.tb_next
        return cls(type(error).__name__, file, line, printable(str(error).strip().partition("\n")[0][:300]))

    @property
    def place(self) -> tuple[str, str, int]:
        """What two trials that fail in the same way have in common."""
        return self.kind, self.file, self.line


@dataclass(frozen=True)
class Trial:
    """One run of the attempt. change: "tp 4 → 2", or "" as given. outcome: PASSES, FAILS or ELSEWHERE."""

    change: str
    layout: Layout
    sizes: Mapping[str, int]
    outcome: str
    failure: Failure | None


class Way(NamedTuple):
    """How trials are run. device: None for the attempt's own. grouped: in a fake process group."""

    device: str | None
    grouped: bool
    words: str


META = Way("meta", True, "meta tensors, as one rank of a fake process group")
REAL = Way("cpu", True, "real tensors, as one rank of a fake process group")
_AS_IT_IS = Way(None, False, "the attempt's own ranks")


def sizes_of(model: Held) -> dict[str, int]:
    """The positive integers that a ModelConfig, a mapping, a config or another object stores, by name."""
    if isinstance(model, Mapping):
        rows = dict(model)
    elif is_dataclass(model) and not isinstance(model, type):
        rows = {field.name: getattr(model, field.name) for field in fields(model) if field.init}
    else:
        rows = stored(model)
    return {str(name): n for name, n in rows.items() if type(n) is int and n > 0}


def with_sizes(model: Held, changed: Mapping[str, int]) -> Held:
    """A copy of the model with other sizes. Raises what a class raises that refuses them."""
    if isinstance(model, ModelConfig):
        return model.replace(**changed)
    if is_dataclass(model) and not isinstance(model, type):
        return replace(model, **changed)
    changed_model = dict(model) if isinstance(model, Mapping) else copy.copy(model)
    if isinstance(changed_model, dict):
        return {**changed_model, **changed}
    for name, n in changed.items():
        setattr(changed_model, name, n)
    return changed_model


def run_once(
    attempt: Attempt, model: Held, layout: Layout, rank: int, way: Way
) -> tuple[object, BaseException | None]:
    """What an attempt returns and what it raises, as a rank of a layout. Its prints are dropped."""
    import torch

    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(io.StringIO()))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.ERROR)
        stack.enter_context(torch.random.fork_rng(devices=[]))
        torch.manual_seed(0)
        if way.grouped:
            stack.enter_context(late("fake_world")(layout.world, rank))
        if way.device:
            stack.enter_context(torch.device(way.device))
        try:
            result = attempt(model, layout)
        except (Exception, SystemExit) as error:
            return None, error
    # A run of ours raises nothing when its ranks compute something else than one process.
    if type(result).__module__.startswith("llamapar.") and not getattr(result, "ok", True):
        return result, LlamaparError(str(result).partition("\n")[0])
    return result, None


def error_of(attempt: Attempt, model: Held, layout: Layout, rank: int, way: Way) -> BaseException | None:
    """What an attempt raises as a rank of a layout; None if it passes."""
    return run_once(attempt, model, layout, rank, way)[1]


class Bench:
    """Runs the trials of one attempt, each once, until the time is used up.

    first: the error of the attempt as it was given, None if it passes; rank: the rank that raised it. way:
    how trials are run.
    """

    def __init__(self, attempt: Attempt, model: Held, layout: Layout, deadline: float) -> None:
        self.attempt, self.model, self.layout = attempt, model, layout
        self.sizes, self.rank, self.way = sizes_of(model), 0, META
        self.trials: list[Trial] = []
        self.out_of_time = False
        self._done: dict[object, Trial | None] = {}
        self.first = self._first()
        # The first run also imports what torch imports at its first use, so the clock starts after it.
        self._began, self._deadline = time.monotonic(), deadline
        self.place = self.first and Failure.of(self.first).place
        if self.first is not None:
            self.trial()

    @property
    def seconds(self) -> float:
        """Seconds since the attempt ran as given."""
        return time.monotonic() - self._began

    def _first(self) -> BaseException | None:
        """The error as given, in the first way and on the first rank that shows one."""
        for rank in some_ranks(self.layout):
            error = error_of(self.attempt, self.model, self.layout, rank, META)
            if isinstance(error, LlamaparError) and self._makes_ranks():
                self.way = _AS_IT_IS
                return error_of(self.attempt, self.model, self.layout, 0, self.way)
            if error is not None and "meta" not in str(error).lower():
                self.rank = rank
                return error
            if error is not None:
                break
        if bytes_made(self.attempt, self.model, self.layout) > LARGEST:
            return None
        error = error_of(self.attempt, self.model, self.layout, 0, REAL)
        self.way = REAL
        return error if type(error).__name__ in _OF_VALUES else None

    def _makes_ranks(self) -> bool:
        """Whether the attempt is a run of ours, which makes a process group of its own."""
        error = error_of(self.attempt, self.model, Layout(), 0, META)
        return isinstance(error, LlamaparError) and error.field == "engine"

    def by_rank(self) -> dict[int, str]:
        """rank → outcome of the attempt as given, for some of the ranks."""
        ranks = some_ranks(self.layout) if self.way.grouped else []
        return {rank: self._outcome(self.model, self.layout, [rank])[0] for rank in ranks}

    def trial(self, layout: Layout | None = None, **sizes: int) -> Trial | None:
        """The attempt in another layout, or with other sizes; None without time, or if a size is refused.

        It passes if it does on some ranks: the one that failed, the first, the last and others.
        """
        layout = self.layout if layout is None else layout
        changed = {name: n for name, n in sizes.items() if self.sizes[name] != n}
        key = (layout, *sorted(changed.items()))
        if key not in self._done:
            if self.seconds > self._deadline:
                self.out_of_time = True
                return None
            self._done[key] = found = self._run(layout, changed)
            self.trials += [found] if found else []
        return self._done[key]

    def _run(self, layout: Layout, changed: Mapping[str, int]) -> Trial | None:
        try:
            model = with_sizes(self.model, changed) if changed else self.model
        except (LlamaparError, ValueError, TypeError):
            return None  # A config of this size is refused before anything runs.
        ranks = dict.fromkeys([min(self.rank, layout.world - 1), *some_ranks(layout)])
        outcome, failure = self._outcome(model, layout, ranks if self.way.grouped else [0])
        steps = [
            f"{axis} {getattr(self.layout, axis)} → {getattr(layout, axis)}"
            for axis in AXES
            if getattr(layout, axis) != getattr(self.layout, axis)
        ]
        steps += [f"{name} {self.sizes[name]} → {n}" for name, n in changed.items()]
        return Trial(", ".join(steps), layout, {**self.sizes, **changed}, outcome, failure)

    def _outcome(self, model: Held, layout: Layout, ranks: Iterable[int]) -> tuple[str, Failure | None]:
        """The outcome on some ranks: that of the first that fails."""
        for rank in ranks:
            error = error_of(self.attempt, model, layout, rank, self.way)
            if error is not None:
                failure = Failure.of(error)
                return FAILS if failure.place == self.place else ELSEWHERE, failure
        return PASSES, None


def some_ranks(layout: Layout) -> list[int]:
    """The first and the last rank of each axis through rank 0, and the last of all."""
    ranks = [0, layout.world - 1]
    for axis in AXES:
        ranks += [layout.stride(axis) * (layout.size(axis) - 1)] if layout.size(axis) > 1 else []
    return sorted(set(ranks))


def bytes_made(attempt: Attempt, model: Held, layout: Layout) -> int:
    """Bytes of all tensors that an attempt makes, counted on meta tensors up to its end or its error."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Counting(TorchDispatchMode):
        total = 0

        def __torch_dispatch__(self, func: Held, types: object, args: Held = (), kwargs: Held = None) -> Held:
            out = func(*args, **(kwargs or {}))
            self.total += sum(getattr(t, "nbytes", 0) for t in tree_leaves(out))
            return out

    counting = Counting()

    def counted(model: Held, layout: Layout) -> object:
        with counting:
            return attempt(model, layout)

    error_of(counted, model, layout, 0, META)
    return counting.total
