"""The tape of a followed pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from llamapar.describe.layout import Layout
from llamapar.errors import LlamaparError
from llamapar.records.trace import CollectiveEvent, Tape
from llamapar.spmd import compat
from llamapar.spmd.setting import kind

from .body import Task, asked_shapes, inputs, uncut, unpiped
from .engines import local
from .following import Untraced, ranks_of
from .line_by_line import NOWHERE, Key
from .pipeline_rank import run_pipeline
from .replies import RankFailure
from .staging import BACKWARD, Log, Received, WatchedRank
from .steps import Steps, numbered, values_of


def follow_stages(
    task: Task,
    tick: Callable[[], None],
    sums: bool,
    alone: bool = False,
) -> Log:
    """Run the task's pipeline on the ranks of a stage.

    alone: as in `following.ranks_of`.
    """
    log = Log(sums)
    recorders = local.recorders(task.setting, tick, Untraced)
    watched = partial(WatchedRank, log=log)
    with ranks_of(task, alone) as (mesh, cut):
        try:
            run_pipeline(mesh, task, recorders, cut, rank=watched)
        except RankFailure as failure:
            log.error_at = Key("schedule", 0, failure.what)
            log.why = failure.what
            log.errors = {
                rank: state
                for pp_rank, state in failure.ranks.items()
                for rank in recorders[pp_rank].places.values()
            }
        except LlamaparError:
            raise
        except Exception as error:
            found = local.errors_of(recorders, error)
            log.errors = {rank: f"{type(raised).__name__}: {raised}" for rank, raised in found.items()}
            ended = (follower.ended_at(error) for follower in log.followers)
            log.error_at = next((key for key in ended if key is not NOWHERE), NOWHERE)
        for recorder in recorders:
            traces = recorder.traces
            log.events.append({place: traces[r].events for r, place in recorder.places.items()})
    return log


def one_process(task: Task) -> Task:
    """The same schedule with one rank a stage; the sequences are in the order of the micro-batches."""
    setting = task.setting
    layout = task.setting.layout
    one = Layout(
        pp=layout.pp, virtual_stages=layout.virtual_stages, sequence_parallel=layout.sequence_parallel
    )
    cut = (layout.dp, setting.micro_batches, setting.micro_batch)
    sequences = [name for name in asked_shapes(task) if kind(name) == "tokens"]
    whole = inputs(task, uncut, wanted=sequences)
    given = {name: t.unflatten(0, cut).transpose(0, 1).flatten(0, 2) for name, t in whole.items()}
    alone = replace(setting, layout=one.replace(zero=layout.zero))  # ZeRO's lines are there too
    return replace(task, setting=alone, fault=None, given={**task.given, **given})


def stages_tape(task: Task, right: Tape | None, tick: Callable[[], None]) -> Tape:
    """The tape of a pipeline; arguments as in `watching.watched`."""
    layout = task.setting.layout
    sums = task.setting.of_one_stage.world > 1
    alone = follow_stages(one_process(task), tick, sums, alone=True)
    here = follow_stages(task, tick, sums)
    coords = {rank: layout.coord_of(rank) for rank in range(layout.world)}
    maker = Steps(unpiped(task).setting, coords, right)
    whole = dict(zip(numbered([n.named for n in _in_time(alone)]), _in_time(alone), strict=True))
    wholes: list[Tensor | None] = []
    notes = _in_time(here)
    names = {i: named for named, i in numbered([note.named for note in notes]).items()}
    at = {id(note): i for i, note in enumerate(notes)}
    steps = []
    for i, note in enumerate(notes):
        other = whole.get(names[i])
        reads = [at[id(here.notes[n])] for n in note.reads]
        if other is None:  # one process has it already: it is what it was made of, held otherwise
            wholes.append(next((wholes[n] for n in reads if notes[n].name == note.name), None))
        elif note.phase == BACKWARD:  # The mean of a dp way covers only its own sequences.
            wholes.append(compat.first_of(other.value) * layout.dp)
        else:
            wholes.append(compat.first_of(other.value))
        places = list(here.events[note.pp_rank])
        steps.append(
            maker.make(
                note.key,
                note.name,
                values_of(note.value, places),
                wholes[i],
                phase=note.phase,
                reads=tuple(reads),
                events=_events(note, here),
                depth=note.depth,
            )
        )
    if here.errors:
        # The steps whose tensors the raising line read.
        pairs = [(pp_rank, t) for pp_rank, f in enumerate(here.followers) for t in f.read_at_end.values()]
        found = (here.numbers.get((pp_rank, id(t))) for pp_rank, t in pairs)
        read = dict.fromkeys(at[id(here.notes[n])] for n in found if n is not None)
        steps.append(maker.error(here.error_at, here.errors, here.why, tuple(read)))
    function = task.program.stage
    assert function is not None
    return maker.tape(task, steps, function)


def _in_time(log: Log) -> list[Received]:
    return sorted(log.notes, key=lambda note: note.time)


def _events(note: Received, log: Log) -> Mapping[int, Sequence[CollectiveEvent]]:
    """Collectives of a note by rank; a send counts for the rank that receives it."""
    pp_rank, since, until = note.span
    found = {rank: events[since:until] for rank, events in log.events[pp_rank].items()}
    if pp_rank == note.pp_rank:
        return found
    return {event.group[1]: (event,) for events in found.values() for event in events}
