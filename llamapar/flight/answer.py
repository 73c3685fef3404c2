"""The explanation of flight records: the result of `lp.explain` for a folder of dumps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from llamapar.describe.layout import AXES, Layout
from llamapar.diagnosis.explanation import Diagnosis, Explanation
from llamapar.diagnosis.known import Known
from llamapar.diagnosis.vocabulary import NOT_SHARDING, SHARDING, UNKNOWN

from . import dumps
from .groups import rank_label
from .program import LlamaStep
from .verdict import RankPositions, standing

CATEGORY = "rank_mapping_hang"

ADVICE = {
    "size": "the same shape on every rank of the group: print it before the call",
    "operation": "the same call on every rank: look for a branch around the line",
    "order": "one order of collectives on all ranks",
    "skip": "every rank of a group calls each of its collectives: look for a branch or a shorter loop",
    "group": "the group that the other ranks pass at this line",
    "extra": "no collective under a condition that only some ranks meet",
    "branch": "no collective under a condition that only some ranks meet",
    "late": "the rank's own log and stack: it was outside of any collective",
    "slow": "the rank's data loading, clocks and neighbours on its machine",
    "gone": "the rank's own log, and the system's: how it ended",
    "cut": "the whole dump of that rank",
    "tie": "which of the two sides is meant to call what",
}

ABSENT = ("late", "slow", "gone")
"""Kinds in which a rank has not come: nothing but its standing still tells a hang from a run that goes on."""

GOING_ON = "written while the run still went on, the records would look the same"


def explain_dumps(files: Iterable[tuple[str, bytes]]) -> Explanation:
    """Explain a hang from the bytes of each rank's dump; no layout is needed. Raises LlamaparError."""
    return explain_hang(standing(dumps.of_bytes(files)))


def explain_flight(source: object, known: Known) -> Explanation:
    """Explain a hang from flight records; see `diagnosis.explain`.

    source: a folder of dumps, some files, or dumps that have been read.

    known: the layout, which gives every rank its coord, and the model, which names the layer of collectives.
    """
    folder = source if isinstance(source, dumps.Folder) else dumps.read_dumps(source)
    degrees = {axis: number for axis in AXES if (number := known.get(axis))}
    world = known.get("world")
    # People often name tp and pp and leave dp to the number of GPUs.
    if degrees and world and "dp" not in degrees:
        degrees["dp"] = max(1, world // math.prod(degrees.values()))
    layout = known.layout or (Layout.of(degrees) if degrees else None)
    program = None if known.model is None else LlamaStep(known.model, known.numbers, known.schedule)
    found = standing(folder, layout, program)
    answer = explain_hang(found)
    # Different calls are proof of a fault; a rank that has not come may just be on its way.
    if found.kind not in ABSENT:
        return answer
    return replace(answer, note="; ".join(filter(None, [answer.note, GOING_ON])))


def explain_hang(found: RankPositions) -> Explanation:
    """The verdict of `lp.explain` on a hang."""
    folder = found.hang.folder
    notes = []
    missing = [rank for rank in found.every if rank not in found.hang.dumps and rank not in folder.broken]
    if missing:
        notes.append(f"no dump of {rank_label(None, missing)}")
    notes += [f"rank {rank}'s dump cannot be read: {why}" for rank, why in list(folder.broken.items())[:4]]
    if found.layout is not None:
        notes.append(f"layout {found.layout}, order {found.layout.order}")
    note = "; ".join(notes)
    if found.kind == "none":
        return Explanation(
            UNKNOWN, found.cause, (), note=note, known=Known(layout=found.layout), flight=found
        )
    verdicts: Mapping[str, str] = dict.fromkeys(("late", "slow", "gone", "inside"), NOT_SHARDING)
    verdict = verdicts.get(found.kind, UNKNOWN if found.kind in ("tie", "cut") else SHARDING)
    remedy = (ADVICE[found.kind],) if found.kind in ADVICE else ()
    diagnosis = Diagnosis(
        CATEGORY, None, found.cause, (), lambda: remedy, (), (), found.level, verdict == SHARDING
    )
    reason = {SHARDING: "ranks took different ways", NOT_SHARDING: "all ranks went the same way"}
    return Explanation(
        verdict,
        reason.get(verdict, "the dumps do not tell which side is wrong"),
        (diagnosis,),
        note=note,
        known=Known(layout=found.layout),
        flight=found,
    )
