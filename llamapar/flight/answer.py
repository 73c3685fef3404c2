"""The explanation of a hang: the result of `lp.explain` for flight records, logs and stacks.

Each kind of witness is read by itself. The surest answer is given, with what the others say of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from llamapar.describe.layout import AXES, Layout
from llamapar.diagnosis.explanation import Diagnosis, Explanation
from llamapar.diagnosis.hypothesis import LIKELY, POSSIBLE
from llamapar.diagnosis.known import Known
from llamapar.diagnosis.vocabulary import NOT_SHARDING, SHARDING, UNKNOWN
from llamapar.errors import LlamaparError
from llamapar.records.tables import plural

from .drop import of_bytes, read_dumps
from .dumps import Folder
from .groups import rank_label
from .main_threads import StackHang, where_stacks_stand
from .program import LlamaStep
from .verdict import DID, RankPositions, standing
from .watchdog import LogHang, folder_of, size_of_group

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
    "cycle": "send first on one side and receive first on the other, or both at once by batch_isend_irecv",
    "few": "the log of every rank, or their stacks (py-spy dump) while it hangs",
}

ABSENT = ("late", "slow", "gone")
"""Kinds in which a rank has not come: nothing but its standing still tells a hang from a run that goes on."""

OPEN = ("tie", "cut", "few", "cycle")
"""Kinds that leave open which side is wrong."""

MOST_TOLD = 4
"""Most collectives that a sentence tells; the table has all."""

GOING_ON = "written while the run still went on, the records would look the same"


def explain_dumps(files: Iterable[tuple[str, bytes]]) -> Explanation:
    """Explain a hang from the bytes of each rank's dump; no layout is needed. Raises LlamaparError."""
    return explain_hang(standing(of_bytes(files)))


def explain_flight(source: object, known: Known) -> Explanation:
    """Explain a hang from flight records, logs and stacks; see `diagnosis.explain`.

    source: a folder of them, some files, or a folder that has been read.

    known: the layout, which gives every rank its coord, and the model, which names the layer of collectives.
    """
    hangs = [*_hangs(source if isinstance(source, Folder) else read_dumps(source), known)]
    if not hangs:
        raise LlamaparError("no flight records", "", ["one file a rank"], "flight")
    return _joined(hangs)


def explain_log(lines: Sequence[str], found: Explanation, known: Known) -> Explanation:
    """The answer from a log's lines that show a hang, unless its words name another cause.

    lines: what `WatchdogLines` kept. found: the answer from the log's words.
    """
    hangs = [*_hangs(Folder({}, lines=lines), known)]
    if not hangs or (found.best is not None and found.best.category != CATEGORY):
        return found
    answer = _joined(hangs)
    note = "; ".join(filter(None, [found.note, answer.note]))
    return replace(answer, note=note, line=found.line, ranks=found.ranks)


def _layout(known: Known) -> Layout | None:
    """The layout that is known, or that follows from known degrees."""
    degrees = {axis: number for axis in AXES if (number := known.get(axis))}
    world = known.get("world")
    # People often name tp and pp and leave dp to the number of GPUs.
    if degrees and world and "dp" not in degrees:
        degrees["dp"] = max(1, world // math.prod(degrees.values()))
    return known.layout or (Layout.of(degrees) if degrees else None)


def _hangs(folder: Folder, known: Known) -> Iterator[RankPositions]:
    """The hang as each kind of witness shows it: records, the watchdog's lines, stacks."""
    layout = _layout(known)
    if folder.dumps or folder.broken:
        program = None if known.model is None else LlamaStep(known.model, known.numbers, known.schedule)
        yield standing(folder, layout, program)
    if logged := folder_of(folder.lines):
        yield _of_log(logged, layout if layout and layout.world > max(logged.dumps) else None)
    if stacks := where_stacks_stand(folder.lines, layout):
        yield stacks


def _joined(hangs: Sequence[RankPositions]) -> Explanation:
    """The surest answer, with what the other witnesses say of it. What contradicts is said, and lowers it."""
    best = max(hangs, key=lambda one: (bool(one.ranks), one.kind not in ("few", "none"), one.level))
    level, notes, cause = best.level, list[str](), best.cause
    for other in (other for other in hangs if other is not best):
        said = "say"
        if other.ranks and best.ranks:
            said = "name the same" if {*other.ranks} & {*best.ranks} else "contradict this"
        notes.append(f"the {other.hang.folder.noun}s {said}: {other.cause}")
        # Of two sure witnesses one is wrong, and a stack outweighs none.
        if said == "contradict this" and (other.level is LIKELY or best.hang.folder.noun == "stack"):
            level = POSSIBLE
        if isinstance(other.hang, StackHang) and (ranks := [r for r in best.ranks if r in other.hang.dumps]):
            op, does, line = other.hang.of_rank(ranks[0])
            # A rank that did not come must not wait for others, and one that died has no stack.
            doubt = best.kind in ABSENT and (ranks[0] in other.hang.waits or best.kind == "gone")
            level = POSSIBLE if doubt else level
            cause += f"; {'but ' * doubt}by its stack rank {ranks[0]} {does}: {op} ({line})"
    answer = explain_hang(replace(best, cause=cause, level=level), notes)
    # Different calls are proof of a fault; a rank that has not come may just be on its way.
    going = best.kind in ABSENT and best.hang.folder.noun != "log line"
    return replace(answer, note="; ".join(filter(None, [answer.note, GOING_ON * going])))


def _of_log(folder: Folder, layout: Layout | None) -> RankPositions:
    """The hang by the watchdog's lines, as sure as they allow.

    A log may lack ranks that are there, so only calls that differ are proof of a fault, and only where the
    log names their group.
    """
    hang = standing(folder, layout, of=LogHang)
    group = hang.collective.group if hang.collective else ""
    differ = hang.kind in DID
    # A rank whose own line stands before the call is proof. One without a line there may wait in another
    # group, whose time-out has not come, or its line is lost.
    before = hang.kind == "late" and all(group in folder.dumps[rank].last for rank in hang.ranks)
    alone = len({name for dump in folder.dumps.values() for name in dump.last}) == 1
    whole = group and hang.group and hang.group.whole and len(hang.every) < 2 * len(folder.dumps)
    if differ and not group:
        cause = f"if these ranks are of one group, which the log does not name: {hang.cause}"
        hang = replace(hang, level=POSSIBLE, cause=cause)
    elif not differ and not before and not (alone and whole):
        hang = replace(hang, kind="few", ranks=(), level=POSSIBLE, cause=_waiting(folder))
    elif not differ and not (alone and before):
        hang = replace(hang, level=POSSIBLE)
    sized = [(c, n) for dump in folder.dumps.values() for c in dump.calls for n in size_of_group(c)]
    for call, many in sized[:1]:
        axes = " and ".join(axis for axis in AXES if layout and many > 1 and layout.size(axis) == many)
        sizes = f"{call.op} of {call.inputs[0][0]:,} to {call.outputs[0][0]:,} elements"
        cause = f"{hang.cause}; {sizes}: a group of {plural(many, 'rank')}{', as' * bool(axes)} {axes}"
        hang = replace(hang, cause=cause.rstrip())
    return hang


def _waiting(folder: Folder) -> str:
    """Who waits in which collective, in words."""
    where = dict[str, list[int]]()
    for rank, dump in folder.dumps.items():
        for at in dump.open:
            where.setdefault(f"{dump.calls[at].op} #{dump.numbers[at]}", []).append(rank)
    told = [
        f"{rank_label(None, ranks)} wait{'s' * (len(ranks) == 1)} in {call}" for call, ranks in where.items()
    ]
    return f"{'; '.join(told[:MOST_TOLD])}; for whom, the lines do not say"


def explain_hang(found: RankPositions, more: Iterable[str] = ()) -> Explanation:
    """The verdict of `lp.explain` on a hang. more: what else the note says."""
    folder = found.hang.folder
    notes = [*folder.notes]
    missing = [rank for rank in found.every if rank not in found.hang.dumps and rank not in folder.broken]
    if missing:
        notes.append(f"no {folder.noun} of {rank_label(None, missing)}")
    notes += [f"rank {rank}'s dump cannot be read: {why}" for rank, why in list(folder.broken.items())[:4]]
    if found.layout is not None:
        notes.append(f"layout {found.layout}, order {found.layout.order}")
    note = "; ".join([*notes, *more])
    if found.kind == "none":
        return Explanation(
            UNKNOWN, found.cause, (), note=note, known=Known(layout=found.layout), flight=found
        )
    verdicts: Mapping[str, str] = dict.fromkeys(("late", "slow", "gone", "inside"), NOT_SHARDING)
    verdict = verdicts.get(found.kind, UNKNOWN if found.kind in OPEN else SHARDING)
    reasons = {SHARDING: "ranks took different ways", NOT_SHARDING: "all ranks went the same way"}
    reason = reasons.get(verdict, f"the {folder.noun}s do not tell which side is wrong")
    # Only records show all ranks; a log proves calls that differ in a group that it names, a stack nothing.
    if folder.noun != "dump" and not (found.kind in DID and found.collective and found.collective.group):
        told = {"late": "a rank did not come", "gone": "perhaps a rank did not come"}
        verdict, reason = UNKNOWN, told.get(found.kind, f"the {folder.noun}s do not show who did not come")
    remedy = (ADVICE[found.kind],) if found.kind in ADVICE else ()
    diagnosis = Diagnosis(
        CATEGORY, None, found.cause, (), lambda: remedy, (), (), found.level, verdict == SHARDING
    )
    return Explanation(
        verdict,
        reason,
        (diagnosis,),
        note=note,
        known=Known(layout=found.layout),
        flight=found,
    )
