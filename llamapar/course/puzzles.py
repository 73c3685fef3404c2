"""What the reader writes: `puzzle(name, function)` runs it on real ranks and judges what each of them has.

Every rank is a process of its own and calls the function with its own tensors. What it has to tell the others
it says by `torch.distributed`, as on any cluster, so the function can be carried away. The truth is what one
process computes of the whole tensors, by torch alone.
"""

from __future__ import annotations

import dis
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from IPython.display import display
from torch import Tensor

import llamapar as lp
from llamapar.diagnosis import Explanation
from llamapar.errors import PeerError, one_of
from llamapar.execution.cell_run import cell_on_ranks
from llamapar.execution.module_reading import gap, largest
from llamapar.execution.patterns import FIT, Axis, Pieces, pattern_of, place_in_words
from llamapar.execution.result import Result
from llamapar.records.tables import plural
from llamapar.records.trace import some

from .progress import keep
from .puzzle_book import PUZZLES
from .puzzle_forms import NOT_FINITE, UNEVEN, WORLD, Made, Puzzle, with_gradients

WAIT = 10.0
"""Seconds without a sign of life after which ranks are given up."""

LONGEST = 30
"""Seconds after which a rank is stopped that still moves on, and so is never given up for its silence."""

_ON_RANK = """
import signal

def stop(number, frame):
    raise TimeoutError(f"after {longest} seconds it has not returned")

signal.signal(signal.SIGALRM, stop)
signal.alarm(longest)
own = [t.clone() if isinstance(t, torch.Tensor) else t for t in given[rank]]
for t in own:
    if backward and isinstance(t, torch.Tensor) and t.is_floating_point():
        t.requires_grad_()
try:
    made = function(*own)
    if backward and isinstance(made, torch.Tensor) and made.requires_grad:
        made = with_gradients(made, own)
finally:
    signal.alarm(0)
tuple(made) if isinstance(made, (tuple, list)) else (made,)
"""
"""The cell that each rank runs."""

_DIMS = {0: (), 1: ("place",), 2: ("row", "column"), 3: ("sequence", "row", "column")}
"""What the dims of a tensor are, in the words of a pattern, by their number."""

_tries: Counter[str] = Counter()


def puzzle(name: str, function: Callable[..., object]) -> None:
    """Runs what the reader wrote on four ranks: not answered yet, wrong with a hint that grows, or right.

    Where ranks raise, the card of the shape debugger follows. Where numbers differ, it says in which pattern.
    """
    chosen = PUZZLES[one_of("puzzle", name, PUZZLES, lp.LlamaparError)]
    # A body of `...` does no more than return None.
    steps = [step for step in dis.get_instructions(function) if step.opname not in ("RESUME", "NOP", "CACHE")]
    if len(steps) <= 2 and steps[0].argval is None:
        print("not answered yet")
        return
    wrong, hint, card = fault_in(chosen, function)
    keep("puzzles", name, right=not wrong)
    if not wrong:
        print(f"right: all {WORLD} ranks have what one process computes")
        return
    print(f"wrong: {wrong}")
    if hint == "":
        hint = chosen.hints[min(_tries[name], len(chosen.hints) - 1)]
        _tries[name] += 1
    if hint:
        print(f"hint: {hint}")
    if card is not None:
        display(card)


def fault_in(chosen: Puzzle, function: Callable[..., object]) -> tuple[str, str | None, Explanation | None]:
    """What is wrong, "" for nothing; the hint for a slip that is known; and the card of what ranks raised.

    The hint is None where an answer has not the form that can be compared, which costs no hint. What ranks
    print is shown.
    """
    given = chosen.given()
    layout = lp.Layout.of({chosen.axis: WORLD})
    names = {
        "function": function,
        "given": given,
        "backward": chosen.backward,
        "longest": LONGEST,
        "with_gradients": with_gradients,
    }
    try:
        result = cell_on_ranks(_ON_RANK, layout, names, "cpu", WAIT)
    except lp.RankFailure as failure:
        where = "\n       ".join(line.strip() for line in failure.why.splitlines()[:WORLD])
        return f"it does not end. {where}", "", None
    assert result.cell is not None
    for answer in result.cell.answers:
        print("".join(f"rank {answer.rank}: {line}\n" for line in answer.output.splitlines()), end="")
    for rank, error in result.errors.items():
        return _raised(chosen, result, rank, error)
    sent = {event.kind for trace in result.traces.values() for event in trace.events}
    if other := sorted(sent.difference(chosen.calls)):
        allowed = " and ".join(chosen.calls)
        return f"this puzzle is to be solved with {allowed}, not with {other[0]}", None, None
    expected = chosen.truth(given)
    own = [result.out[rank] for rank in range(WORLD)]
    problem = next(filter(None, map(partial(_form, chosen), range(WORLD), own, expected)), "")
    if problem:
        return problem, None, None
    made: list[Made] = own  # type: ignore[assignment]
    for place, name in enumerate(chosen.names):
        odd = [rank for rank in range(WORLD) if not bool(made[rank][place].isfinite().all())]
        if odd:
            hint = chosen.when.get(NOT_FINITE if place == 0 else name, "")
            return f"{name} of rank {odd[0]} has numbers that are not finite", hint, None
    place, wrong = _difference(chosen, made, expected)
    same = [name for name, slip in chosen.slips.items() if wrong and _same(made, slip(given), place)]
    if same:
        return wrong, chosen.of_slips[same[0]], None
    return wrong, chosen.when.get(chosen.names[place], ""), None


def _raised(
    chosen: Puzzle, result: Result, rank: int, error: BaseException
) -> tuple[str, str | None, Explanation | None]:
    """What ranks raised, the first of them: an error of the library, or of the clock, says what is wrong."""
    wrong = f"rank {rank} raised {type(error).__name__}: {error}"
    if isinstance(error, PeerError | TimeoutError):
        return wrong, "", None
    if isinstance(error, lp.LlamaparError):
        return wrong, chosen.when.get(UNEVEN), None
    return wrong, None, replace(result, repair=None).explanation


def _form(chosen: Puzzle, rank: int, own: object, expected: Made) -> str:
    """Why a rank's answer cannot be compared; empty where it can."""
    names = chosen.names
    if chosen.backward:
        names = names[:1]
    if not isinstance(own, tuple):
        return f"what rank {rank} returns cannot be sent"
    many = sum(value is not None for value in own)
    if many not in (len(names), len(expected)):
        found = plural(many, "value")
        return f"rank {rank} returns {found}, and should return {len(names)}: {', '.join(names)}"
    for name, t, right in zip(chosen.names, own, expected, strict=False):
        if not isinstance(t, Tensor):
            return f"{name} of rank {rank} is of type {type(t).__name__}, and a tensor is needed"
        if t.shape != right.shape:
            return f"{name} of rank {rank} is {list(t.shape)}, and should be {list(right.shape)}"
    if len(own) < len(expected):
        return f"{names[0]} of rank {rank} has no backward: autograd did not see what it was made of"
    return ""


def _same(own: Sequence[Made], slip: Sequence[Made], last: int) -> bool:
    """Whether ranks have what a slip makes, up to the first tensor that differs from the truth."""
    if len(slip[0]) <= last:
        return False
    pairs = [
        pair for one, two in zip(own, slip, strict=True) for pair in zip(one[: last + 1], two, strict=False)
    ]
    return all(gap(t.double(), right.double()) <= FIT * largest(right) for t, right in pairs)


def _difference(chosen: Puzzle, own: Sequence[Made], expected: Sequence[Made]) -> tuple[int, str]:
    """The place of the first tensor that differs; on which ranks, by how much, in which pattern, or ""."""
    layout = lp.Layout.of({chosen.axis: WORLD})
    for i, name in enumerate(chosen.names):
        t = _pieces(name, chosen.cuts.get(name), *([of[i] for of in made] for made in (own, expected)))
        if t.ranks:
            off = {rank: gap(mine, right) for rank, (mine, right) in t.pairs.items()}
            worst = max(t.ranks, key=lambda rank: off[rank])
            where = some(t.ranks)
            if len(t.ranks) == WORLD:
                where = "every rank"
            by = f"on rank {worst} by {off[worst] / largest(t.whole):.2g} times its largest number"
            place = place_in_words(t).removeprefix(f"on {some(t.ranks)}").removeprefix(", ")
            if t.axes[0].unit == "rank" and t.whole.shape[0] > 1:  # The ranks are named already.
                place = ""
            pattern = "; ".join(filter(None, [place, pattern_of(t, layout, {"ranks": WORLD})]))
            text = f"{name} differs on {where}; {by}"
            if pattern:
                text += f"\npattern: {pattern}"
            return i, text
    return 0, ""


def _pieces(name: str, dim: int | None, own: Sequence[Tensor], right: Sequence[Tensor]) -> Pieces:
    """A tensor of all ranks beside the whole: cut along `dim`, the same on all, or one of each rank's own."""
    axes = [Axis(unit) for unit in _DIMS[right[0].dim()]]
    firsts = [next(n for n, t in enumerate(right) if t.equal(other)) for other in right]
    if dim is None:
        axes = [Axis("rank"), *axes]
        own = [t[None] for t in own]
        right = [t[None] for t in right]
    dim = dim or 0
    starts = dict[int, int]()
    at = 0
    for n in dict.fromkeys(firsts):
        starts[n] = at
        at += right[n].shape[dim]
    parts = {}
    for rank, t in enumerate(right):
        part = [range(size) for size in t.shape]
        part[dim] = range(starts[firsts[rank]], starts[firsts[rank]] + t.shape[dim])
        parts[rank] = tuple(part)
    whole = torch.cat([right[n] for n in starts], dim)
    return Pieces("output", name, whole, axes, dict(enumerate(own)), parts)
