"""The published pipeline schedules: for each rank, the order of its operations as a table.

Each follows its paper in the form that torch 2.13 gives it (torch/distributed/pipelining/schedules.py),
except Llama 3's, which torch does not have. Pauses are left out: a rank waits for its next operation's input.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, repeat, zip_longest
from typing import NamedTuple


def pipeline_in_words(pp: int, virtual_stages: int) -> str:
    """The ranks of a pipeline, and the stages of each where it has several: "pp=4", "pp=4·2"."""
    if virtual_stages == 1:
        return f"pp={pp}"
    return f"pp={pp}·{virtual_stages}"


class Action(NamedTuple):
    """One operation of a rank on one micro-batch at one of its stages.

    kind: F forward, B whole backward, or its two halves: I (gradients of the inputs) and W (of the weights).
    """

    kind: str
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


@dataclass(frozen=True)
class ScheduleNumbers:
    """The numbers that a schedule is made for. round: micro-batches that a stage takes in a row."""

    pp: int
    virtual_stages: int
    micro_batches: int
    round: int

    def stages(self, rank: int) -> range:
        """The stages of a rank in loop placement."""
        return range(rank, self.pp * self.virtual_stages, self.pp)

    def hops(self, rank: int) -> int:
        """How many ranks follow this one."""
        return self.pp - 1 - rank

    def in_rounds(self, kind: str, stages: Iterable[int]) -> Row:
        """Operations round by round; within a round, stage by stage."""
        many = self.micro_batches
        held = list(stages)
        row: Row = []
        for first in range(0, many, self.round):
            for stage in held:
                row += zip(repeat(kind), repeat(stage), range(first, min(first + self.round, many)))
        return row


Operation = tuple[str, int, int]
"""An Action as a plain tuple, which is several times as fast to create."""

Row = list[Operation]


def _gpipe(plan: ScheduleNumbers, rank: int) -> Row:
    """All forwards, then all backwards (arXiv:1811.06965)."""
    return [(kind, rank, number) for kind in "FB" for number in range(plan.micro_batches)]


def _looped_bfs(plan: ScheduleNumbers, rank: int) -> Row:
    """Breadth first: a stage takes all micro-batches before the rank's next stage does (arXiv:2211.05953)."""
    forward = [("F", stage, n) for stage in plan.stages(rank) for n in range(plan.micro_batches)]
    # The last forward's activations are the first to be needed, so the backward mirrors the forward.
    return forward + [("B", stage, n) for _, stage, n in reversed(forward)]


def _alternating(plan: ScheduleNumbers, rank: int, warm_up: int, kind: str = "B") -> Row:
    """`warm_up` forwards, then one forward and one backward in turn, then the remaining backwards.

    kind: "I" splits the backwards. Weight gradients then lag by as many backwards as the rank's number, which
    fills the pauses at the end.
    """
    forward = plan.in_rounds("F", plan.stages(rank))
    backward = plan.in_rounds(kind, reversed(plan.stages(rank)))
    turns: list[Iterable[Operation | None]] = [forward[warm_up:], backward]
    if kind == "I":
        turns.append(chain(repeat(None, rank), (("W", stage, number) for _, stage, number in backward)))
    return forward[:warm_up] + list(filter(None, chain.from_iterable(zip_longest(*turns))))


def _one_f_one_b(plan: ScheduleNumbers, rank: int) -> Row:
    """One forward, one backward, as soon as there is a backward (arXiv:2006.09503)."""
    return _alternating(plan, rank, plan.hops(rank))  # until the first gradient can come back


def _interleaved(plan: ScheduleNumbers, rank: int) -> Row:
    """1F1B over several stages a rank, in rounds (arXiv:2104.04473 section 2.2)."""
    # All stages but one take a round first; forwards also fill the way to the last rank and back, 2 · hops.
    return _alternating(plan, rank, (plan.virtual_stages - 1) * plan.round + 2 * plan.hops(rank))


def _interleaved_zero_bubble(plan: ScheduleNumbers, rank: int) -> Row:
    """Interleaved 1F1B with each backward split in two: ZB-H1 (arXiv:2401.10241)."""
    return _alternating(plan, rank, (plan.virtual_stages - 1) * plan.round + plan.hops(rank), "I")


def _flexible(plan: ScheduleNumbers, rank: int) -> Row:
    """Llama 3's schedule: rounds of nc micro-batches ("Scaling Llama 3 Training", ISCA 2025, section 3.1.1).

    Rounds shorter than the pipeline leave nothing to alternate: all forwards, then all backwards. Warm-up
    forwards are Megatron-LM's; the paper prints (v-1)·nc + 2(pp - r·v - 1), negative for late ranks.
    """
    if plan.round < plan.pp:
        whole = ScheduleNumbers(plan.pp, plan.virtual_stages, plan.micro_batches, plan.micro_batches)
        return _alternating(whole, rank, plan.virtual_stages * plan.micro_batches)
    return _interleaved(plan, rank)


def _numbered(words: Iterable[str], plan: ScheduleNumbers, rank: int) -> Row:
    """A rank's operations on a V, from words: "F0" is a forward of its first stage, on its next micro-batch.

    "W" computes the weights of the oldest waiting input gradients, "W0" those of the oldest of the first
    stage. A schedule uses one of the two forms.
    """
    row: Row = []
    stages = rank, 2 * plan.pp - 1 - rank  # down the V, and up
    numbers = {"F0": 0, "F1": 0, "0": 0, "1": 0}  # next micro-batch: forwards F0, F1; backwards 0, 1
    waiting: dict[str, deque[tuple[int, int]]] = {"": deque(), "0": deque(), "1": deque()}
    for word in words:
        kind = word[0]
        chunk = word[1:]
        if kind != "W":
            counted = chunk
            if kind == "F":
                counted = word
            one = stages[chunk == "1"], numbers[counted]
            numbers[counted] += 1
            if kind == "I":
                waiting[""].append(one)
                waiting[chunk].append(one)
        elif waiting[chunk]:
            one = waiting[chunk].popleft()
        else:
            continue
        row.append((kind, *one))
    # ZBV is made for at least a full pipeline; micro-batches beyond the real ones are dropped here.
    return [each for each in row if each[2] < plan.micro_batches]


def _zbv(plan: ScheduleNumbers, rank: int) -> Row:
    """Zero bubble on a V of two stages a rank (arXiv:2401.10241 section 6), for a full pipeline.

    With fewer micro-batches than fill it, operations on the missing ones are dropped.
    """
    left, many = plan.pp - rank, max(2 * plan.pp - 1, plan.micro_batches)  # 2·pp - 1 fill the V
    words = ["F0"] * (2 * left - 1) + ["F1", "F0"] * rank + ["F1", "I1", "W1"] * left
    for turn in range(many - plan.pp):
        if turn < many - plan.pp - left + 1:
            words.append("F0")
        words += ["I0", "W0", "F1", "I1", "W1"]
    words += ["I0", "I1"] * rank + ["I0", "W0"] * left + ["W1"] * rank + ["W0"] * rank
    return _numbered(words, plan, rank)


def _dualpipev(plan: ScheduleNumbers, rank: int) -> Row:
    """DeepSeek's schedule on a V of two stages a rank (arXiv:2412.19437; github.com/deepseek-ai/DualPipe).

    A forward and a backward that overlap are two entries side by side.
    """
    hops = plan.hops(rank)
    half = rank + 1
    words = ["F0"] * (2 * hops) + ["F0", "F1"] * half + ["I1", "W", "F1"] * hops
    words += ["F0", "B1", "F1", "B0"] * (plan.micro_batches - 2 * plan.pp + half)
    words += ["B1", "F1", "B0"] * hops
    ending = ["B1", "B0"] * half
    words += ending[:half] + [word.replace("B", "I") for word in ending[half:]]
    words += ["W", "I0"] * hops + ["W"] * half
    return _numbered(words, plan, rank)


@dataclass(frozen=True)
class Order:
    """A schedule's rule for one rank, and what it is made for.

    virtual_stages: the stages of a rank that it requires; None for any number.
    """

    title: str
    row: Callable[[ScheduleNumbers, int], Row]
    virtual_stages: int | None = None
    placement: str = "loop"


ORDERS = {
    "gpipe": Order("GPipe", _gpipe, 1),
    "1f1b": Order("1F1B", _one_f_one_b, 1),
    "interleaved-1f1b": Order("interleaved 1F1B", _interleaved),
    "looped-bfs": Order("looped breadth-first", _looped_bfs),
    "interleaved-zero-bubble": Order("interleaved zero bubble", _interleaved_zero_bubble),
    "zbv": Order("ZBV", _zbv, 2, "v"),
    "dualpipev": Order("DualPipeV", _dualpipev, 2, "v"),
    "flexible": Order("Llama 3's flexible schedule", _flexible),
}
"""Every schedule, by its name in Python, in the command and in the panels."""

ALL_FORWARD_FIRST = ("gpipe", "looped-bfs")
"""Schedules in which all micro-batches pass forward through a stage before any passes backward."""
