"""Boards of the course's answer boxes: heads that are dealt to ranks, operations that are placed in time."""

from __future__ import annotations

from collections.abc import Sequence

import llamapar as lp
from llamapar.errors import shown
from llamapar.panels.box_panel import Board, Cells
from llamapar.place import HeadMap
from llamapar.place.pipeline import Timeline
from llamapar.records.tables import plural, span

FORWARD, BACKWARD = 1, 2
"""How long an operation takes on the board, in columns."""

SPARE = 2
"""Columns after the end of the schedule that is asked for, for one that waits longer, unless said."""


def _with(cells: Cells, row: int, column: int, things: Sequence[int]) -> Cells:
    """The same cells, but for one."""
    line = (*cells[row][:column], tuple(things), *cells[row][column + 1 :])
    return (*cells[:row], line, *cells[row + 1 :])


# -- heads -----------------------------------------------------------------------------------------


def dealt(record: HeadMap) -> Board:
    """Every rank is dealt the KV head that it stores. A guess is a list, the head of each rank.

    A head of which all copies are dealt is refused. `record` has one KV head a rank.
    """
    n, ranks = record.model.n_kv_heads, range(record.tp)

    def move(cells: Cells, row: int, rank: int, head: int) -> Cells:
        if head in cells[row][rank]:
            return _with(cells, row, rank, ())
        owners = [r for r in ranks if head in cells[row][r]]
        if len(owners) >= record.replicas:
            raise lp.LlamaparError(
                f"KV head {head} is on {' and '.join(f'rank {r}' for r in owners)} already",
                f"with {record.tp} ranks for {n} KV heads each is stored {record.replicas} times",
                ["pressing one of those, which takes it off"],
            )
        return _with(cells, row, rank, (head,))

    def put(guess: object) -> Cells:
        heads = list(guess) if isinstance(guess, list | tuple | range) else []
        if len(heads) != len(ranks):
            raise lp.LlamaparError(
                f"{shown(guess)}: a list of {len(ranks)} KV heads is needed", "nothing was kept"
            )
        for rank, head in enumerate(heads):
            if type(head) is not int or not 0 <= head < n:
                raise lp.LlamaparError(f"rank {rank}: {shown(head)} is no KV head", f"they are 0 to {n - 1}")
        return (tuple((head,) for head in heads),)

    def read(cells: Cells) -> object:
        empty = [r for r in ranks if not cells[0][r]]
        if empty:
            what = f"ranks without a KV head: {len(empty)} of {record.tp}"
            raise lp.LlamaparError(what, f"the first is rank {empty[0]}; nothing was kept")
        return [cell[0] for cell in cells[0]]

    names = tuple(map(str, range(n)))
    tints = tuple(head % 2 for head in range(n))
    columns = tuple(map(str, ranks))
    # The lane of query heads above the ranks; its tint is that of the KV head that they read.
    own = [record.rank(r).q_heads for r in ranks]
    lane = tuple((span(heads), heads.start // record.model.group_size % 2) for heads in own)
    above = (("query heads", lane),)
    return Board(("KV head",), columns, names, tints, move, read, put, "TP rank", above)


# -- schedules -------------------------------------------------------------------------------------


def placed_operations(asked: lp.Schedule, spare: int = SPARE) -> Board:
    """The operations of a schedule, placed in time. A guess is a text for each rank: "F0 F1 B0 B1".

    An operation is refused where its slot is taken, or before what it needs has ended. `asked` has one stage
    a rank and whole backwards; its micro-batches, ranks and end make the board. spare: columns after its end.
    """
    many, ranks = asked.micro_batches, range(asked.pp)
    names = tuple(f"{kind}{k}" for kind in "FB" for k in range(many))
    spans = (FORWARD,) * many + (BACKWARD,) * many
    columns = range(int(_timeline(asked).end) + spare)

    def starts(cells: Cells, rank: int) -> dict[int, int]:
        return {cell[0]: column for column, cell in enumerate(cells[rank]) if cell}

    def need(rank: int, thing: int) -> tuple[int, int]:
        """What an operation waits for: a rank, and the operation there."""
        if thing < many:
            return rank - 1, thing
        if rank + 1 < asked.pp:
            return rank + 1, thing
        return rank, thing - many

    def legal(cells: Cells) -> None:
        for rank in ranks:
            end = 0
            before = -1
            for thing, start in starts(cells, rank).items():
                if start < end:
                    why = f"{names[before]} runs there until {end}"
                    raise _illegal(names[thing], rank, start, why, end)
                end = start + spans[thing]
                before = thing
                if end > len(columns):
                    why = f"the board ends at {len(columns)}, and it takes {spans[thing]}"
                    raise _illegal(names[thing], rank, start, why, None)
                other, needed = need(rank, thing)
                if other < 0:
                    continue
                there = starts(cells, other).get(needed)
                if there is None:
                    why = f"it needs {names[needed]} of rank {other}, which is not placed"
                    raise _illegal(names[thing], rank, start, why, None)
                ready = there + spans[needed]
                if start < ready:
                    why = f"it needs {names[needed]} of rank {other}, which ends at {ready}"
                    raise _illegal(names[thing], rank, start, why, ready)

    def move(cells: Cells, rank: int, column: int, thing: int) -> Cells:
        here = [at for at, one in enumerate(cells[rank]) if one and at <= column < at + spans[one[0]]]
        made = cells
        if here:
            made = _with(made, rank, here[0], ())
        else:
            before = starts(made, rank).get(thing)
            if before is not None:
                made = _with(made, rank, before, ())
            made = _with(made, rank, column, (thing,))
        legal(made)
        return made

    def put(guess: object) -> Cells:
        line = _timeline(schedule_of_guess(guess, asked.pp).check())
        if line.end > len(columns):
            what = f"it ends at {line.end:g}, and the board at {len(columns)}"
            raise lp.LlamaparError(what, f"{asked.title} ends at {_timeline(asked).end:g}; nothing was kept")
        cells: Cells = (((),) * len(columns),) * len(ranks)
        for rank in ranks:
            for action, start, _ in line.runs(rank):
                cells = _with(cells, rank, int(start), (names.index(f"{action.kind}{action.micro_batch}"),))
        return cells

    def read(cells: Cells) -> object:
        left = [(rank, names[t]) for rank in ranks for t in range(2 * many) if t not in starts(cells, rank)]
        if left:
            rank, name = left[0]
            what = f"{plural(len(left), 'operation')} of {2 * many * asked.pp} not placed yet"
            raise lp.LlamaparError(what, f"the first is {name} on rank {rank}; nothing was kept")
        return [" ".join(names[cell[0]] for cell in row if cell) for row in cells]

    tints = (2,) * many + (3,) * many
    above = tuple(f"rank {rank}" for rank in ranks)
    return Board(above, tuple(map(str, columns)), names, tints, move, read, put, "time", spans=spans)


def _timeline(schedule: lp.Schedule) -> Timeline:
    return schedule.timeline(forward=FORWARD, inputs=BACKWARD / 2, weights=BACKWARD / 2)


def _illegal(name: str, rank: int, start: int, why: str, ready: int | None) -> lp.LlamaparError:
    choose = [f"{ready} or later"] if ready is not None else []
    return lp.LlamaparError(f"{name} cannot start at {start} on rank {rank}", why, choose)


def schedule_of_guess(guess: object, ranks: int) -> lp.Schedule:
    """The schedule of a guess, as `order` writes one. Raises LlamaparError."""
    rows = list(guess) if isinstance(guess, list | tuple) else []
    if len(rows) != ranks or not all(isinstance(row, str) for row in rows):
        raise lp.LlamaparError(f"{shown(guess)}: a text for each of {ranks} ranks", "such as 'F0 B0'")
    return lp.Schedule.read([" ".join(f"{r}{one}" for one in row.split()) for r, row in enumerate(rows)])


def order_as_text(schedule: lp.Schedule) -> list[str]:
    """A schedule as a guess says it: a text for each rank, without the numbers of stages."""
    return [" ".join(f"{a.kind}{a.micro_batch}" for a in row) for row in schedule.ranks]
