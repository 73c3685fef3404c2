"""A tape with numbers in the form of `lp.watch`'s page: tensors as small pictures, and steps.

The words for a line come from its operation and from the placement of its tensors before and after it, never
from a particular program, so they also fit your own code.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import permutations

from llamapar.errors import whole
from llamapar.figures.wording import listed
from llamapar.place.sequence_map import in_runs
from llamapar.records.tables import Plain, plural
from llamapar.records.trace import CollectiveEvent, Tape, TapeStep, grouped, some

from .folds import folds
from .piece_words import dims, out_of_order, place_words, rows_and_columns, unit

KINDS = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "send": "send",
}
"""Collectives in words."""


def film(tape: Tape) -> Plain:
    """The page's data: ranks, tensors, and steps; a step is one line with everything it made."""
    made = [step for step in tape.steps if step.values]
    number = {id(step): n for n, step in enumerate(made)}
    tensors = [_tensor(step, tape) for step in made]
    indexes = {n: number[id(step)] for n, step in enumerate(tape.steps) if step.values}
    steps = []
    for line in _lines(tape.steps):
        step = line[0]
        own = [number[id(other)] for other in line if other.values]
        reads = [indexes[n] for n in dict.fromkeys(n for other in line for n in other.reads) if n in indexes]
        event = next((other.event for other in line if other.event), None)
        steps.append(
            {
                "line": _source_line(step, tape),
                "depth": step.depth,
                "where": step.where,
                "code": step.code,
                "phase": step.phase,
                "axis": event.axis if event else "",
                "reads": reads,
                "made": own,
                "event": _event(event, line) if event else None,
                "moves": _moves(event, [made[n] for n in reads], [made[n] for n in own], number)
                if event
                else [],
                "caption": caption(tape, line, [made[n] for n in reads]),
                "fault": min((other.fault for other in line if other.fault), default=""),
                "why": next((_why(other) for other in line if other.why), ""),
                "error": {str(rank): text for rank, text in step.error.items()},
            }
        )
    axes = {axis: 1 + max(coord[axis] for coord in tape.coords.values()) for axis in ("tp", "cp", "pp", "dp")}
    return {
        "ranks": [{"rank": rank, "coord": dict(coord)} for rank, coord in tape.coords.items()],
        "world": tape.world,
        "axes": axes,
        "source": tape.source,
        "folds": folds(tape.source, {step["line"] for step in steps}),
        "tensors": tensors,
        "steps": steps,
    }


def _lines(steps: Sequence[TapeStep]) -> list[list[TapeStep]]:
    """Steps grouped by the line that made them; all arguments are one line."""
    found: list[list[TapeStep]] = []
    for step in steps:
        last = found[-1][-1] if found else None
        same = last is not None and all(
            getattr(last, name) == getattr(step, name) for name in ("where", "phase", "depth", "reads")
        )
        names = [other.name for other in found[-1]] if found else []
        if same and step.phase in ("forward", "update") and step.name not in names:
            found[-1].append(step)
        else:
            found.append([step])
    return found


def _source_line(step: TapeStep, tape: Tape) -> int:
    """The line in the tape's source, counted from 1; 0 for arguments and for lines elsewhere."""
    name, _, line = step.where.partition(":")
    if name == "cell":  # of `%%ranks`: it has no first line of a function
        return int(line)
    own = f"def {name.split(' ')[-1]}(" in tape.source  # in a pipeline the operation stands before it
    return int(line) + 1 if own and int(line) else 0


# -- a tensor ----------------------------------------------------------------------------------


def _tensor(step: TapeStep, tape: Tape) -> Plain:
    whole = step.global_shape
    scale = max(
        (float(t.double().abs().nan_to_num(0, 0, 0).max()) for t in step.values.values() if t.numel()),
        default=0,
    )
    rows, columns = rows_and_columns(whole or next(iter(step.local.values())))
    return {
        "name": step.name,
        "dims": dims(step, tape),
        "whole": list(whole or ()),
        "scale": scale,
        "rows": rows,
        "columns": columns,
        "ranks": {str(rank): _of_rank(step, tape, rank, scale) for rank in step.values},
    }


def _of_rank(step: TapeStep, tape: Tape, rank: int, scale: float) -> Plain:
    t = step.values[rank]
    at = step.at.get(rank)
    rows, columns = rows_and_columns(t.shape)
    steps = (t.double().nan_to_num(0, 0, 0) / (scale or 1) * 127 + 128).round().clamp(0, 255)
    data = bytes(steps.byte().flatten().tolist())
    return {
        "shape": list(t.shape),
        "rows": rows,
        "columns": columns,
        "data": base64.b64encode(data).decode(),
        "number": float(t) if t.numel() == 1 and bool(t.isfinite().all()) else None,
        "kinds": {axis: place.kind for axis, place in step.places.items()},
        "place": place_words(step, tape, rank),
        "at": _thumbnail(step.global_shape, at) if at is not None and step.global_shape else None,
        "differs": bool(step.fault),
    }


def _thumbnail(whole: Sequence[int], at: Sequence[Sequence[range]]) -> Plain:
    """The rows and columns that a rank holds in the picture of the whole, as half-open ranges."""
    # Dims that become rows: none of a vector, one of a matrix, else two.
    down = min(2, max(0, len(whole) - 1))
    return {"rows": _flat(whole[:down], at[:down]), "columns": _flat(whole[down:], at[down:])}


def _flat(sizes: Sequence[int], at: Sequence[Sequence[range]]) -> list[list[int]]:
    """Ranges of the flattened index of some dims."""
    indexes = [0]
    for size, ranges in zip(sizes, at, strict=True):
        indexes = [i * size + j for i in indexes for part in ranges for j in part if j < size]
    return [[run.start, run.stop] for run in in_runs(range(i, i + 1) for i in indexes)]


# -- a collective ------------------------------------------------------------------------------


def _event(event: CollectiveEvent, line: Iterable[TapeStep]) -> Plain:
    """The first collective of a line. bytes: what a rank sends in all of the line's collectives."""
    groups = list(
        dict.fromkeys(events[0].group for step in line for events in step.events.values() if events)
    )
    first = next(step for step in line if step.event)
    sent = max(sum(e.sent for e in events) for events in first.events.values())
    return {"kind": event.kind, "axis": event.axis, "groups": [list(g) for g in groups], "bytes": sent}


def _moves(
    event: CollectiveEvent, reads: Sequence[TapeStep], made: Sequence[TapeStep], number: Mapping[int, int]
) -> list[Plain]:
    """The rows and columns that move from one rank to another, and their position there."""
    found: list[Plain] = []
    for target in made:
        source = next((step for step in reads if _goes_into(step, target, event)), None)
        if source is None or source.global_shape is None:
            continue
        events = [e for step in made for events in step.events.values() for e in events]
        for here, there in dict.fromkeys(pair for e in events for pair in _ways(e)):
            # Of a pipeline's send the one rank has the source alone, and the other the target.
            if here in source.at and there in target.at:
                found += _parts(source, here, target, there, number)
    return found


def _ways(event: CollectiveEvent) -> Iterable[tuple[int, ...]]:
    """The pairs of ranks of which the first sends to the second."""
    if event.kind in ("send", "recv"):
        if event.kind == "recv":
            return [event.group[::-1]]
        return [event.group]
    return permutations(event.group, 2)


def _goes_into(source: TapeStep, target: TapeStep, event: CollectiveEvent) -> bool:
    """Whether a collective turns one tensor into the other: the same whole, placed differently on its
    axis.
    """
    if event.kind == "send":
        return True  # what arrives was made of what was sent
    places = [(source.places.get(axis), target.places.get(axis)) for axis in event.axis.split("-")]
    return source.global_shape == target.global_shape and any(
        before is not None and after is not None and before != after for before, after in places
    )


def _parts(
    source: TapeStep, here: int, target: TapeStep, there: int, number: Mapping[int, int]
) -> Iterator[Plain]:
    """The rectangles of `here`'s picture that lie in `there`'s, each with its place in both."""
    whole = source.global_shape or ()
    first = _thumbnail(whole, source.at[here])
    second = _thumbnail(whole, target.at[there])
    for rows, at in _common(first["rows"], second["rows"]):
        for columns, at_columns in _common(first["columns"], second["columns"]):
            place = {"rows": rows, "columns": columns, "at": at, "at_columns": at_columns}
            yield {
                "from": here,
                "to": there,
                "tensor": number[id(source)],
                "into": number[id(target)],
                **place,
            }


def _common(
    ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]
) -> Iterator[tuple[list[int], list[int]]]:
    """Each run of indexes of the whole that both have, as a range of each."""
    before = 0
    for start, stop in ours:
        past = 0
        for other, end in theirs:
            first = max(start, other)
            last = min(stop, end)
            if first < last:
                own = before + first - start
                their = past + first - other
                yield [own, own + last - first], [their, their + last - first]
            past += end - other
        before += stop - start


# -- words -------------------------------------------------------------------------------------


def caption(tape: Tape, line: Sequence[TapeStep], reads: Sequence[TapeStep]) -> str:
    """What a line does, from its operation and its tensors' placement before and after."""
    step = line[0]
    if step.error:
        ranks = some(sorted(step.error))
        if step.why:
            each = (f"{_upper(some(own))}: {text}" for text, own in grouped(step.error))
            return f"{_upper(step.why)}. {'; '.join(each)}."
        return f"The line raises an error on {ranks}: {next(iter(step.error.values()))}"
    names = " and ".join(f"`{other.name}`" for other in line)
    wrong = [f"{_BROKEN[other.fault]} {_why(other)}." for other in line if other.fault][:1]
    # A tensor of too many numbers has none, and then nothing says who made it.
    who = "each rank" if len(step.values) in (0, len(tape.coords)) else some(sorted(step.values))
    if step.code == "argument" and step.phase == "forward":
        verb = "is"
        if who.startswith("ranks"):
            verb = "are"
        given = f"{_upper(who)} {verb} given {listed([f'`{other.name}`' for other in line])}."
        return " ".join([given, *wrong])
    event = next((other.event for other in line if other.event), None)
    words = []
    if event is None or step.phase == "backward":
        words.append(_computation(line, reads, names, who))
    if event is not None:
        words.append(_communication(event, line, reads))
    words += [_held(other, tape) for other in line[:2] if other.places]
    return " ".join([*words, *wrong])


_BROKEN = {"begins": "Here it breaks:", "spreads": "It was broken before this line:"}


def _why(step: TapeStep) -> str:
    """What is wrong with a step; for one that stopped, only the reason."""
    if not step.values:
        return step.why
    verb = "holds" if step.why.startswith(("other", "another")) else "is"
    return f"`{step.name}` {verb} {step.why}"


def _communication(event: CollectiveEvent, line: Sequence[TapeStep], reads: Sequence[TapeStep]) -> str:
    text = f"{_upper(KINDS.get(event.kind, event.kind))} over {event.axis.upper()}"
    backward = line[0].phase == "backward"
    # A backward sends gradients. What a line of the forward read is there only for its place.
    reads = [step for step in reads if step.name.endswith(".grad") or not backward]
    source = next((step for step in reads for made in line if _goes_into(step, made, event)), None)
    sent = max(sum(e.sent for e in events) for step in line for events in step.events.values())
    sends = f"A rank sends {sent:,} bytes."
    kinds = []
    if source is not None:
        kinds = [place.kind for axis, place in source.places.items() if axis in event.axis.split("-")]
    if event.kind in ("send", "recv"):
        pairs = [pair for events in line[0].events.values() for e in events for pair in _ways(e)]
        here, there = (some(sorted({*side})) for side in zip(*pairs, strict=True))
        if here == there:  # a ring, of which the line may read what stays, such as the queries
            times = max(sum(e.kind == "send" for e in events) for events in line[0].events.values())
            often = plural(times, "time")
            return f"Ring over {event.axis.upper()}: each rank sends to the next one, {often}. {sends}"
        name = line[0].name if source is None else source.name
        text += f": `{name}` goes from {here} to {there}."
        if event.kind == "recv":
            return text
    elif source is None:
        where = "on the way to it" if backward else "inside this line"
        text += f" {where}, in groups of {plural(len(event.group), 'rank')}."
    elif event.kind == "all_to_all":
        text += f": each rank cuts `{source.name}` into a piece for each rank, and joins the pieces it gets."
    elif "summand" in kinds or event.kind == "reduce_scatter":
        text += f": `{source.name}` is a summand on each rank, and the sum over the group completes it."
    elif event.kind == "all_reduce" and "own" in kinds:  # of a cell; nothing says that it is a sum
        text += f": each rank gives its own `{source.name}`, and all get what the group makes of them."
    else:
        text += f": each rank has a piece of `{source.name}`, and the group puts the pieces together."
    return f"{text} {sends}"


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _computation(line: Sequence[TapeStep], reads: Sequence[TapeStep], names: str, who: str) -> str:
    if line[0].phase == "backward":
        return f"The backward makes {names}, the gradient of `{line[0].name.removesuffix('.grad')}`."
    operation = line[0].where.removesuffix(":0")
    runs = "run" if who.startswith("ranks") else "runs"
    if line[0].code.startswith(f"{operation}, "):  # of a pipeline; its lines stand inside it
        return f"{_upper(who)} {runs} {line[0].code}."
    made = [step.name for step in line]
    read = [f"`{step.name}`" for step in reads if step.name not in made]
    new = ""
    if len(read) < len(reads):  # `q = rope(q)`
        several = len(line) > 1
        new = "new " if several else "a new "
        read.insert(0, "the old ones" if several else "the old one")
    source = f" from {listed(read)}" if read else ""
    makes, sends = ("make", "send") if who.startswith("ranks") else ("makes", "sends")
    return f"{_upper(who)} {makes} {new}{names}{source}, and {sends} nothing."


_HOW = {
    "copy": ", the same as the other ranks of ",
    "summand": ", as a summand over ",
    "own": ", with numbers of its own over ",
}
"""How ranks hold a tensor over some axes."""


def _held(step: TapeStep, tape: Tape) -> str:
    """ "Each rank has its own tokens (CP) of `partial`, as a summand over TP." """
    own = [f"its own {unit(step, tape, dim)} ({'·'.join(axes).upper()})" for dim, axes in step.cut.items()]
    over: dict[str, str] = {}
    for kind in _HOW:
        over[kind] = " and ".join(axis.upper() for axis, place in step.places.items() if place.kind == kind)
    words = f"Each rank has {' and '.join(own) or 'all'} of `{step.name}`"
    for kind, said in _HOW.items():
        if over[kind]:
            words += said + over[kind]
    for dim, _ in out_of_order(step, min(step.values)):
        words += f", with {unit(step, tape, dim)} in the order of the ranks that sent them"
    return f"{words}."


def phase_of(step: Plain) -> str:
    """ "forward" or "backward": the end of a step of training stands with its backward."""
    if step["phase"] == "forward":
        return "forward"
    return "backward"


def view_of(steps: list[Plain], before: Plain, changes: Plain, phase: str) -> Plain:
    """The step that stands, and its phase: as asked; where a fault begins that is new; or else, in the phase,
    the line that stood `before`, or the first.
    """
    if not steps:
        return {"step": 0, "phase": phase}
    begins = [n for n, step in enumerate(steps) if step["fault"] == "begins" and not step["depth"]]
    if "step" in changes:
        at = whole("step", changes["step"], 0, len(steps) - 1)
    elif begins and changes.keys() & {"case", "source"}:
        at = begins[0]
    else:
        own = [n for n, step in enumerate(steps) if not step["depth"] and step["code"] != "argument"]
        own = [n for n in own if phase_of(steps[n]) == phase] or [0]
        at = min(own, key=lambda n: [steps[n][name] != before.get(name) for name in ("code", "line")])
    return {"step": at, "phase": phase_of(steps[at])}
