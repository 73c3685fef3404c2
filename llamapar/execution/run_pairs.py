"""Two runs of a program side by side, line by line: on the ranks of a layout, and on one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from torch import Tensor

from llamapar.describe.layout import Layout
from llamapar.describe.splits import NO_PADDING
from llamapar.records.trace import Tape, TapeStep

from .body import Task
from .following import Followed, Seen, backward, follow
from .line_by_line import NOWHERE, Key
from .steps import Named, Steps, numbered, values_of

MOST_RANKS = 16
"""Ranks whose numbers are kept."""


def run_pairs(
    task: Task, right: Tape | None, tick: Callable[[], None], exact: bool = False, padded: bool = True
) -> RunPairs:
    """Follow a task on its ranks and on one process. right, exact: as in `watched`. padded: whether one
    process pads its vocabulary as the ranks do.
    """
    layout = task.setting.layout
    # ZeRO's own lines are on the tape as well.
    alone_in = Layout(sequence_parallel=layout.sequence_parallel, zero=layout.zero)
    padding = NO_PADDING
    if padded:
        padding = task.setting.padding
    one = replace(task.setting, layout=alone_in, padding=padding)
    then = None
    if task.backward:
        then = backward
    alone = follow(replace(task, setting=one, fault=None), tick, then, alone=True)
    here = follow(task, tick, then)
    coords = {rank: layout.coord_of(rank) for rank in range(layout.world)}
    return RunPairs(task, alone, here, Steps(task.setting, coords, right, exact))


class RunPairs:
    """Combines two runs: the steps of the ranks, each beside the tensor of one process."""

    def __init__(self, task: Task, alone: Followed, here: Followed, steps: Steps) -> None:
        self.task = task
        self.alone = alone
        self.here = here
        self.steps = steps
        numbers = {i: seen for seen, i in numbered([_named(seen) for seen in alone.seen]).items()}
        self.number = {i: seen for seen, i in numbered([_named(seen) for seen in here.seen]).items()}
        self.whole = {numbers[i]: seen.value for i, seen in enumerate(alone.seen)}
        of_tensor = {id(alone.seen[i].value): g for i, (g, *_) in alone.gradients.items()}
        self.whole_gradients = {
            numbers[i]: of_tensor[id(seen.value)]  # A tensor can have several names.
            for i, seen in enumerate(alone.seen)
            if id(seen.value) in of_tensor
        }
        communicates = [before < after for (before, _), (after, _) in here.calls]
        self.shown = [
            i
            for i, seen in enumerate(here.seen)
            if not seen.moment.depth or (communicates[seen.moment.call] and seen.key.line)
        ]
        """Of the lines in helpers those of calls that communicate, without their arguments."""

    def tape(self) -> Tape:
        at = {i: n for n, i in enumerate(self.shown)}
        steps = []
        for i in self.shown:
            seen = self.here.seen[i]
            span = (seen.moment.since[0], seen.until[0])
            whole = self.whole.get(self.number[i])
            reads = self.reads(seen, i)
            own = seen.key, _shown_name(seen), seen.value, whole
            steps.append(self._make("forward", *own, span, reads=reads, depth=seen.moment.depth))
        if self.here.errors:
            words = {rank: f"{type(error).__name__}: {error}" for rank, error in self.here.errors.items()}
            reads = self._read(self.here.error_read, 0, len(self.here.seen))  # 0: the program's own call
            steps.append(self.steps.error(self.here.error_at, words, reads=reads))
        gradients: dict[str, int] = {}
        made: dict[int, int] = {}  # a step → that of its gradient
        forward = len(steps)
        for i, (gradient, since, until) in self.here.gradients.items():
            if i not in at:
                continue
            seen = self.here.seen[i]
            name = f"{_shown_name(seen)}.grad"
            readers = [made[n] for n, step in enumerate(steps[:forward]) if at[i] in step.reads and n in made]
            gradients[name] = made[at[i]] = len(steps)
            reads = tuple(readers) or (at[i],)  # a gradient is made from those of what read the tensor
            whole = self.whole_gradients.get(self.number[i])
            span = since, until
            own = seen.key, name, gradient, whole
            steps.append(self._make("backward", *own, span, reads=reads, depth=seen.moment.depth))
        for name, (gradient, since, until, _) in self.here.reduced.items():
            alone = self.alone.reduced.get(name)
            code = f"{name}.grad = reduce_gradients({name}.grad)"
            key = Key("reduce_gradients", 0, code, f"{name}.grad")
            reads = ()
            if key.name in gradients:
                reads = (gradients[key.name],)
            whole = None if alone is None else alone[0]
            own = key, key.name, gradient, whole
            steps.append(self._make("gradients", *own, (since, until), reads=reads))
        return self.steps.tape(self.task, steps, self.task.program.function)

    def before_sums(self, name: str) -> TapeStep:
        """What the sums over ranks made a gradient of, which no line of the program names."""
        *_, own = self.here.reduced[name.removesuffix(".grad")]
        *_, whole = self.alone.reduced[name.removesuffix(".grad")]
        return self._make("backward", NOWHERE, name, own, whole, (0, 0))

    def _make(
        self,
        phase: str,
        key: Key,
        name: str,
        value: Tensor,
        whole: Tensor | None,
        span: tuple[int, int],
        reads: tuple[int, ...] = (),
        depth: int = 0,
    ) -> TapeStep:
        """A step. Its collectives are those between two lengths of each rank's trace."""
        own = values_of(value, range(self.task.setting.layout.world))
        events = {rank: sent[slice(*span)] for rank, sent in self.here.events.items()}
        return self.steps.make(key, name, own, whole, phase=phase, reads=reads, events=events, depth=depth)

    def reads(self, seen: Seen, i: int) -> tuple[int, ...]:
        """The steps whose tensors a line read."""
        return self._read(seen.moment.read, seen.moment.call, i)

    def _read(self, read: Mapping[str, Tensor], call: int, i: int) -> tuple[int, ...]:
        """For each tensor, the last step before `i` that has it, in the same call if possible."""
        found = []
        for name, t in read.items():
            same = [n for n, k in enumerate(self.shown) if k < i and self.here.seen[k].value is t]
            others = [self.here.seen[self.shown[n]] for n in same]
            own = [
                n
                for n, other in zip(same, others, strict=True)
                if (other.key.name, other.moment.call) == (name, call)
            ]
            found += (own or same)[-1:]
        return tuple(dict.fromkeys(found))


def _shown_name(seen: Seen) -> str:
    """The name shown: "out" for a returned tensor, as in a run; the parameter's name for a tensor that ZeRO
    gathers.
    """
    if seen.key.name == "return":
        return "out"
    return seen.moment.parameter or seen.key.name


def _named(seen: Seen) -> Named:
    """Function and name of a tensor."""
    return seen.key.function, seen.key.name
