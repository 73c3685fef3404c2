"""A module that a plan cut, as a tape: what its submodules give, the gradients of that, and of parameters."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial

from torch import Tensor

from llamapar.errors import LlamaparError
from llamapar.records.tables import Plain, plural
from llamapar.records.trace import Tape, TapeStep

from .engines import local
from .module_reading import FIT, call_reading
from .module_rows import judged
from .module_run import Key, ModuleOutcome, run_module_rank
from .module_task import ModuleTask, sequences
from .recorder import Recorder
from .result import Result
from .rows import GRADIENT

NO_NAME = "the module itself"
"""Of the outermost module."""


def on_local_ranks(
    task: ModuleTask, recorder: Recorder | None = None, device: str = "cpu"
) -> dict[int, ModuleOutcome]:
    """rank → its outcome, of all ranks in this process."""
    layout = task.layout
    recorder = recorder or Recorder(world=layout.world)
    with closing(local.LocalRanks(layout, partial(sequences, task), device, aliased=True)) as ranks, ranks:
        builtins.__place__ = ranks.mesh["tp"].get_local_rank()  # type: ignore[attr-defined]

        def share(t: Tensor) -> Tensor:
            return ranks.cut("", lambda: t).detach()

        return run_module_rank(task, ranks.mesh, share, recorder, device)


def module_tapes(*results: Result) -> Iterator[Tape]:
    """Of results of modules, run once more in float64 from the first one's inputs, and from its weights where
    a module has the same names.
    """
    first = results[0].ran
    for result in results:
        task = result.ran
        assert isinstance(first, ModuleTask)
        assert isinstance(task, ModuleTask)
        dp = task.layout.dp
        if first.batch % dp:
            what = f"the first run's {plural(first.batch, 'sequence')} over dp={dp}: they do not divide"
            raise LlamaparError(what, "both runs get the first one's inputs", field="plan")
        task = replace(task, given=first.given, batch=first.batch)
        if task.state.keys() == first.state.keys():
            task = replace(task, state=first.state, targets=first.targets)
        task = task.in_float64()
        alone = run_module_rank(task, None)[0]
        outcomes = on_local_ranks(task)
        steps = [*_of_calls(task, alone, outcomes)]
        for row in judged(replace(result, tolerance=FIT), task, alone, outcomes).rows:
            if row.kind == GRADIENT:
                where = row.name.rpartition(".")[0] or NO_NAME
                code = f"{row.name}.grad"
                shapes = dict.fromkeys(outcomes, row.here)
                whole = alone.gradient.get(row.name)
                how: Plain = {"phase": "gradients", "whole": whole, "agrees": row.ok}
                steps.append(TapeStep(where, code, code, row.whole, shapes, **how))
        yield Tape(result.name, str(task.layout), tuple(steps), len(outcomes), len(outcomes))


def _of_calls(
    task: ModuleTask, one: ModuleOutcome, outcomes: Mapping[int, ModuleOutcome]
) -> Iterator[TapeStep]:
    """The outputs of calls as they end, then their gradients, from the last call back. An output is made of
    those of the calls inside its call, and their gradients of its gradient.
    """
    of_ranks = {rank: {call.key: call.tensors for call in of.calls} for rank, of in outcomes.items()}
    count = 0
    for phase, what in (("forward", "output"), ("backward", "output's gradient")):
        backward = phase == "backward"
        calls = one.calls
        if backward:
            calls = one.calls[::-1]
        made = dict[Key | None, tuple[int, ...]]()
        for call in calls:
            ends = [call.key, call.caller]
            if backward:
                ends.reverse()
            for i, whole in call.tensors.get(what, {}).items():
                found = {rank: of.get(call.key, {}).get(what, {}).get(i) for rank, of in of_ranks.items()}
                owns = {rank: t for rank, t in found.items() if t is not None}
                if len(owns) < len(found):
                    continue  # A plan may call something else.
                agrees = call_reading(owns, whole, task.layout, backward).fits
                where = call.key[0] or NO_NAME
                name = f"{what} of {where}"
                shapes = {rank: tuple(t.shape) for rank, t in owns.items()}
                how: Plain = {
                    "phase": phase,
                    "whole": whole,
                    "agrees": agrees,
                    "reads": made.get(ends[0], ()),
                }
                yield TapeStep(where, name, name, tuple(whole.shape), shapes, values=owns, **how)
                made[ends[1]] = (*made.get(ends[1], ()), count)
                count += 1
