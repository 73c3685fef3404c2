"""The explanation of a hang: who waits in which group of the layout, who is behind, and what was to be sent.

Beside how the calls of ranks differ it says what a layout knows: axes, coordinates, and the tensor that a
number of numbers can be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from llamapar.describe.layout import AXES, Layout
from llamapar.diagnosis.explanation import Diagnosis, Explanation
from llamapar.diagnosis.hypothesis import POSSIBLE, Level, likely_if
from llamapar.diagnosis.known import Known
from llamapar.diagnosis.vocabulary import UNKNOWN
from llamapar.records.equations import Stated
from llamapar.records.tables import AsDict, cut

from .differing import MISSING, differing_calls
from .dump_files import read_dumps
from .dumps import NAMELESS
from .groups import match_groups, named_ranks
from .numel import readings
from .waits import Waiting, free_ranks, waiting_calls
from .watchdog import dumps_of_log

CATEGORY = "rank_mapping_hang"

_MOST = 6
"""Most lines of one kind in an answer."""

_GOING_ON = "records of a run that still goes on look the same"
_OPEN = "not known: why a rank did not come, or came with another call"
_RECORD = "flight records of every rank: docs/explain.md says how to record them"
_LOOK = "the stack of every rank that is behind (py-spy dump)"
_COMPARE = "one order of calls on every rank of a group: look for a branch, or a loop that ends early"


@dataclass(frozen=True, repr=False)
class Hang(AsDict):
    """Every call that has not ended. differ: group → its first that differs."""

    json_names = ("behind", "waits", "differ")
    waits: Sequence[Waiting]
    differ: Mapping[str, str]

    @cached_property
    def behind(self) -> list[int]:
        """Ranks that others wait for and that wait for nobody."""
        return free_ranks(self.waits)

    def rows(self) -> list[tuple[str, ...]]:
        """What has not ended, as a table whose head is the first row."""
        head = ("group", "collective", "of", "waits there", "behind")
        calls = map(self.waits.__getitem__, cut(len(self.waits)))
        return [
            head,
            *(
                (
                    one.where,
                    f"{one.op} #{one.number}",
                    one.shape,
                    named_ranks(one.ranks),
                    named_ranks(one.behind),
                )
                for one in calls
            ),
        ]


def explain_dumps(
    source: str | Path | Iterable[tuple[str, bytes]], known: Known | None = None
) -> Explanation:
    """Explain a hang from flight records: a folder of them, or (name, bytes) of files. Raises LlamaparError.

    known: the layout, which gives groups their axes, and the model, which says what is sent.
    """
    dumps, broken = read_dumps(source)
    top = max([*dumps, *broken])
    known = _laid_out(known or Known(), top + 1)
    groups, layout = match_groups(dumps, broken, known.layout)
    waits = waiting_calls(dumps, groups)
    world = layout.world if layout else known.get("world") or 0
    missing = sorted({*range(max(world, top))} - dumps.keys() - broken.keys())
    notes = []
    if missing:
        notes = [f"no dump of {named_ranks(missing)}"]
    notes += [f"rank {rank}'s dump cannot be read: {why}" for rank, why in [*broken.items()][:_MOST]]
    # A call that some have not joined yet says less than one that they made otherwise.
    found = sorted(differing_calls(groups, dumps).items(), key=lambda one: MISSING in one[1])
    differ = {groups[name].where: told for name, told in found}
    hang = Hang(waits, differ)
    # One rank whose own dump shows it in no collective, while the calls of all are alike, is who is missed.
    alike = world and not notes and all(MISSING in told for told in differ.values())
    level = likely_if(alike and len(hang.behind) == 1)
    return _explained(hang, replace(known, layout=layout), level, [*notes, _GOING_ON])


def explain_log(lines: Sequence[str], found: Explanation, known: Known) -> Explanation:
    """The answer from the watchdog's lines of a log, unless its words name another cause.

    lines: what `diagnosis.hang_lines.WatchdogLines` kept. found: the answer from the log's words.
    """
    dumps = dumps_of_log(lines)
    if not dumps or (found.best is not None and found.best.category != CATEGORY):
        return found
    layout = _laid_out(known, max(dumps) + 1).layout
    groups, layout = match_groups(dumps, (), layout if layout and layout.world > max(dumps) else None)
    waits = []
    for one in waiting_calls(dumps, groups):
        # A rank without a line may wait in another group, whose time-out has not come: only own lines count.
        behind = [rank for rank in one.behind if rank in dumps and one.name in dumps[rank].last]
        waits.append(replace(one, behind=behind if one.name != NAMELESS else []))
    if not waits:
        return found
    answer = _explained(Hang(waits, {}), replace(known, layout=layout), POSSIBLE, [])
    return replace(answer, line=found.line, ranks=found.ranks, rivals=found.rivals)


def _laid_out(known: Known, world: int) -> Known:
    """With the layout that follows from known degrees; DP takes what they leave of the ranks."""
    degrees = {axis: number for axis in AXES if (number := known.get(axis))}
    if known.layout is not None or not degrees:
        return known
    rest = -(-(known.get("world") or world) // math.prod(degrees.values()))
    return replace(known, layout=Layout.of({"dp": rest, **degrees}))


def _explained(hang: Hang, known: Known, level: Level, notes: Iterable[str]) -> Explanation:
    """The explanation of calls that have not ended, or that differ."""
    rivals = tuple(notes)
    if not hang.waits and not hang.differ:
        return Explanation(UNKNOWN, "no rank waits: every collective has ended", rivals=rivals, known=known)
    told = [f"{where}: {words}" for where, words in hang.differ.items()][:_MOST]
    calls = dict.fromkeys((one.op, one.numel, one.axes) for one in hang.waits[:_MOST])
    read = [f"{op} of {text}" for op, numel, axes in calls for text in readings(op, numel, known, axes)]
    if known.model is not None and known.layout is not None and not read:
        read = [
            f"no tensor of {known.model.name} fits; a bucket of gradients, or a number a token, has any size"
        ]
    advice = _RECORD
    if hang.differ:
        advice = _COMPARE
    if hang.behind:
        advice = _LOOK
    # Where a rank is missed, all other waiting follows from it.
    cause = "; ".join(_waits(one, hang, known.layout) for one in hang.waits[: 1 if hang.behind else 3])
    given = {"model": known.model, "tp": known.layout}
    needs = tuple(name for name, value in given.items() if value is None)
    equations = tuple(map(Stated, told + read[:_MOST]))
    cause = cause or "calls that have ended differ"
    best = Diagnosis(CATEGORY, cause, level, equations, parallel=None, needs=needs)
    table = None
    if hang.waits:
        table = hang
    return Explanation(
        UNKNOWN,
        _OPEN,
        (best,),
        what=cause,
        known=known,
        hang=table,
        rivals=(_OPEN, *rivals),
        next=(advice,),
    )


def _waits(one: Waiting, hang: Hang, layout: Layout | None) -> str:
    """Who waits in a call, and for whom, in words."""
    call = f"{one.op} #{one.number}"
    if one.shape:
        call += f", {one.shape}"
    waits = f"{named_ranks(one.ranks)} wait{'' if len(one.ranks) > 1 else 's'}"
    if not one.behind:
        return f"{one.where}: {waits} in {call}"
    missed = f"{one.where}: {named_ranks(one.behind, layout)} never entered {call}; {waits}"
    if not {*one.behind} <= {*hang.behind}:
        return missed
    return f"{missed}; {'they are' if len(one.behind) > 1 else 'it is'} in no collective, or gone"
