"""Walking a schedule's table as its ranks would: when each operation runs, or why it never does.

Which operation waits for which does not depend on how long they take. So a table is walked once, and `times`
and `ends` then put any durations on the walk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from llamapar.errors import LayoutError
from llamapar.records.tables import plural

from .orders import Action, Operation

Rows = Sequence[Sequence[Action]]
RankOf = Callable[[int], int]

Result = tuple[bool, int, int]
"""What an operation produces for others: (whether forward, stage, micro-batch). B and I produce the same."""

WORDS = {"F": "forward", "B": "backward", "I": "input gradients", "W": "weight gradients"}
"""Kind of an operation → its name in a sentence."""


def action_in_words(action: Action) -> str:
    """An operation in words: "0F3, the forward of micro-batch 3 at stage 0"."""
    return f"{action}, the {WORDS[action.kind]} of micro-batch {action.micro_batch} at stage {action.stage}"


def result_of(action: Action) -> Result:
    """What an operation produces for others; W produces nothing."""
    return action.kind == "F", action.stage, action.micro_batch


def needs(action: Action, last: int) -> tuple[Result, ...]:
    """The results that an operation waits for, in a pipeline whose last stage is `last`."""
    kind, stage, number = action
    if kind == "F":
        if stage:
            return ((True, stage - 1, number),)
        return ()
    # W takes its own stage's input gradient, which means only that I has run; its activations are there
    # then too.
    if kind == "W":
        return ((False, stage, number),)
    own = (True, stage, number)
    # A backward needs its own forward's activations and the gradient from the stage after it.
    if stage == last:
        return (own,)
    return (own, (False, stage + 1, number))


@dataclass(frozen=True)
class Walk:
    """An order in which the ranks' operations can run, as far as they get.

    Turns are numbered from 1; 0 is the start. before: for each turn, the turn before it on its rank. other:
    the turn on another rank that it waits for, or 0. works: 4 times its stage plus the index of its kind in
    WORDS. rows: for each rank, its turns; fewer than its operations if it is stuck. missing: stuck rank → the
    result that it waits for.
    """

    before: list[int]
    other: list[int]
    works: list[int]
    rows: list[list[int]]
    missing: dict[int, Result] = field(default_factory=dict)

    def _ends(self, durations: Sequence[Mapping[str, float]], p2p: float) -> list[float]:
        """The end of each turn: see `times`. A search asks for these alone, thousands of turns at a time."""
        every = [of_stage[kind] for of_stage in durations for kind in WORDS]
        ends = [0.0]
        for before, other, work in zip(self.before, self.other, self.works, strict=True):
            # A rank does one thing at a time, so the operation before is the floor, and the message from
            # another rank can only push it up.
            start = ends[before]
            if other:
                there = ends[other] + p2p
                if there > start:
                    start = there
            ends.append(start + every[work])
        return ends

    def times(
        self, durations: Sequence[Mapping[str, float]], p2p: float = 0.0
    ) -> tuple[list[float], list[float]]:
        """Start and end of each turn, if every operation runs as soon as what it waits for is there.

        durations: for each stage of the pipeline, by kind. p2p: time from the end of an operation to its use
        on another rank; no rank is busy meanwhile.
        """
        ends = self._ends(durations, p2p)
        # Turn 0 ends at 0, so without another rank's message the operation before decides.
        return [
            0.0,
            *(
                max(ends[own], ends[other] + p2p * bool(other))
                for own, other in zip(self.before, self.other, strict=True)
            ),
        ], ends

    def ends(self, durations: Sequence[Mapping[str, float]], p2p: float) -> tuple[float, float]:
        """When everything is done: with instant transfers, and with transfers of p2p each, as in `times`."""
        return max(self._ends(durations, 0.0)), max(self._ends(durations, p2p))


def walk(rows: Sequence[Sequence[Operation]], stages: int, micro_batches: int) -> Walk:
    """Runs each rank's row in order; an operation runs as soon as its `needs` are there.

    Here a forward's result is stage · micro_batches + micro_batch, and its backward's is the complement of
    that: integers are looked up faster than a Result.
    """
    last = stages - 1
    # Result → the turn that made it; and result → the ranks that stopped for want of it.
    made: dict[int, int] = {}
    waiting: dict[int, list[int]] = {}
    # By turn, the rank that took it. Turn 0 is the start, which no rank took.
    ran_by = [-1]
    walked = Walk([], [], [], [[] for _ in rows])
    # Each rank runs until it lacks something and is queued again by whoever makes that, so a row is read
    # once, not scanned at every step.
    ready = list(range(len(rows)))
    while ready:
        rank = ready.pop()
        row = rows[rank]
        numbers = walked.rows[rank]
        walked.missing.pop(rank, None)
        before = 0
        if numbers:
            before = numbers[-1]
        # `numbers` has a turn for each operation already run, so its length is where the rank stopped.
        for place in range(len(numbers), len(row)):
            kind, stage, micro_batch = row[place]
            # `own` is what this operation makes, `need` what it still waits for.
            own = need = stage * micro_batches + micro_batch
            other = 0
            if kind == "F":
                if stage:
                    # The same micro-batch, one stage earlier.
                    need -= micro_batches
                    other = made.get(need, -1)
                work = 4 * stage
            elif kind == "W":
                need = ~own
                other = made.get(need, -1)
                work = 4 * stage + 3
            else:
                other = made.get(own, -1)
                own = ~own
                if other >= 0 and stage != last:
                    # Complements count down, so the stage after this one is smaller by as much.
                    need = own - micro_batches
                    other = made.get(need, -1)
                work = 4 * stage + (1 if kind == "B" else 2)
            if other < 0:
                waiting.setdefault(need, []).append(rank)
                walked.missing[rank] = _result(need, micro_batches)
                break
            walked.before.append(before)
            # A result of the same rank needs no transfer, and `before` already orders the two.
            walked.other.append(0 if ran_by[other] == rank else other)
            walked.works.append(work)
            ran_by.append(rank)
            before = len(walked.before)
            numbers.append(before)
            if kind != "W":
                made[own] = before
                if own in waiting:
                    ready += waiting.pop(own)
    return walked


def _result(number: int, micro_batches: int) -> Result:
    """Back from `walk`'s integer to a Result: a complement is negative, so its sign says which pass it is."""
    return (number >= 0, *divmod(max(number, ~number), micro_batches))


def problem_of(
    rows: Rows, walked: Walk, rank_of: RankOf, pp: int, stages: int, micro_batches: int
) -> LayoutError | None:
    """Why a table is not a schedule, as an error to raise; None if it is one.

    Every operation must be there once, on the rank of its stage, and every rank must reach the end of its
    row.
    """
    if len(rows) != pp:
        return _refusal(f"a table of {plural(len(rows), 'row')}", f"pp={pp} ranks have a row each")
    problem = _misplaced(rows, rank_of, stages, micro_batches)
    return problem or _uncounted(rows, stages, micro_batches) or _stuck(rows, walked)


def _misplaced(rows: Rows, rank_of: RankOf, stages: int, micro_batches: int) -> LayoutError | None:
    for rank, row in enumerate(rows):
        for action in row:
            kind, stage, number = action
            if kind not in WORDS:
                return _refusal(f"rank {rank} has {action}: kind {kind!r} is none", "kinds are F, B, I and W")
            if not 0 <= stage < stages or not 0 <= number < micro_batches:
                there = f"stages are 0 to {stages - 1}, micro-batches 0 to {micro_batches - 1}"
                return _refusal(f"rank {rank} has {action}, but there is no such operation", there)
            if rank_of(stage) != rank:
                home = f"stage {stage} lies on rank {rank_of(stage)}"
                return _refusal(f"rank {rank} cannot run {action_in_words(action)}", home)
    return None


def _uncounted(rows: Rows, stages: int, micro_batches: int) -> LayoutError | None:
    """The error for an operation that is there twice or not at all; None if there is none."""
    found = Counter(action for row in rows for action in row)
    for stage in range(stages):
        for number in range(micro_batches):
            forward, whole, inputs, weights = (found[Action(kind, stage, number)] for kind in "FBIW")
            where = f"micro-batch {number} at stage {stage}"
            if forward != 1:
                return _refusal(f"{plural(forward, 'forward')} of {where}", "every operation runs once")
            if (whole, inputs, weights) not in ((1, 0, 0), (0, 1, 1)):
                counted = f"{whole} B, {inputs} I and {weights} W of {where}"
                return _refusal(counted, "a backward is one B, or one I and one W")
    return None


def _stuck(rows: Rows, walked: Walk) -> LayoutError | None:
    """The error for ranks that wait for ever: a ring of them, or one that has the operation later itself."""
    if not walked.missing:
        return None
    # Each result has exactly one maker: `_uncounted` ran before this and refused any other table.
    holder = {
        result_of(action): (rank, place)
        for rank, row in enumerate(rows)
        for place, action in enumerate(row)
        if action.kind != "W"
    }
    rank = min(walked.missing)
    chain: list[int] = []
    # Every stuck rank waits for another stuck rank or itself, so following them ends in a ring.
    while rank not in chain:
        chain.append(rank)
        rank = holder[walked.missing[rank]][0]
    ring = chain[chain.index(rank) :]
    if len(ring) == 1:
        late, early = _waits(rows, walked, holder, ring[0])
        what = f"rank {ring[0]} cannot run {action_in_words(late)} before {early}"
        return _refusal(what, f"its row has {early} after it")
    lines = []
    for one in ring:
        late, early = _waits(rows, walked, holder, one)
        lines.append(
            f"rank {one} cannot run {late} until rank {holder[walked.missing[one]][0]} has run {early}"
        )
    return _refusal(f"ranks {', '.join(map(str, ring))} wait for one another", "; ".join(lines))


def _waits(
    rows: Rows, walked: Walk, holder: dict[Result, tuple[int, int]], rank: int
) -> tuple[Action, Action]:
    """What a stuck rank would run next, and the operation that it waits for."""
    peer, place = holder[walked.missing[rank]]
    return rows[rank][len(walked.rows[rank])], rows[peer][place]


def _refusal(what: str, why: str) -> LayoutError:
    return LayoutError(what, why, field="ranks")


def flying(row: Sequence[Operation]) -> list[int]:
    """Chunks in flight on a rank during each operation of its row."""
    now = 0
    counts = list[int]()
    for kind, _, _ in row:
        now += kind == "F"
        # Counted after a forward has begun and before a backward has ended, for both hold the chunk
        # meanwhile.
        counts.append(now)
        now -= kind in "BW"
    return counts


def flying_at_peak(row: Sequence[Operation], stages: Sequence[int]) -> tuple[int, ...]:
    """Chunks in flight of each of a rank's stages, at the first moment when its row has the most."""
    counts = flying(row)
    # Operations up to the peak, and with it the one that runs at the peak.
    past = counts.index(max(counts)) + 1
    now = dict.fromkeys(stages, 0)
    for place, (kind, stage, _) in enumerate(row[:past], 1):
        now[stage] += kind == "F"
        # A backward that runs at the peak itself still holds its chunk.
        now[stage] -= kind in "BW" and place < past
    return tuple(now[stage] for stage in stages)
