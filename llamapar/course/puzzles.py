"""What the reader writes: `puzzle(name, function)` runs it on real ranks and judges what each of them has.

Every rank is a process of its own and calls the function with its own tensors, and with a `Comm` for what
ranks tell one another. The truth is what one process computes of the whole tensors, by torch alone.
"""

from __future__ import annotations

import dis
import inspect
import traceback
from collections import Counter
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

import llamapar as lp
from llamapar.errors import one_of
from llamapar.execution.engines.pool import pool
from llamapar.execution.engines.rank import Context

from .progress import keep
from .puzzle_book import PUZZLES
from .puzzle_forms import NOT_FINITE, UNEVEN, WORLD, Given, Made, Puzzle, with_gradients

TOLERANCE = 1e-9
"""Of the largest number of the truth: the tensors are in float64."""

WAIT = 10.0
"""Seconds without a sign of life after which ranks are given up."""


class UnevenShapes(ValueError):
    """Ranks gave one collective tensors of different shapes, which gloo answers with an error of its own."""


class Comm:
    """What a rank knows of the others, and tells them: `rank`, `world`, and messages.

    Tensors that go in stay as they are. A rank that receives what nobody sends waits until it is given up.
    """

    def __init__(self, context: Context, calls: Sequence[str]) -> None:
        self.rank = context.rank
        self.world = context.world
        self._context = context
        self._calls = calls

    def send(self, t: Tensor, to: int) -> None:
        """Send a tensor to another rank."""
        self._do("send", f"a send to rank {to}", lambda: dist.send(t.contiguous(), to), to)

    def recv(self, like: Tensor, source: int) -> Tensor:
        """What another rank sends, a tensor of the shape of `like`."""
        got = torch.empty_like(like).contiguous()
        self._do("recv", f"a recv from rank {source}", lambda: dist.recv(got, source), source)
        return got

    def shift(self, t: Tensor) -> Tensor:
        """Round a ring: the tensor goes to the next rank, and that of the rank before comes."""
        got = torch.empty_like(t).contiguous()
        there = (self.rank + 1) % self.world
        here = (self.rank - 1) % self.world

        def both() -> None:
            sent = dist.isend(t.contiguous(), there)
            dist.recv(got, here)
            assert sent is not None
            sent.wait()

        self._do("shift", "a shift round the ring", both)
        return got

    def all_reduce(self, t: Tensor, op: str = "sum") -> Tensor:
        """The sum of the ranks' tensors, or with op="max" the greatest; on every rank."""
        total = t.clone().contiguous()
        how = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}[op]
        self._do(
            "all_reduce",
            f"an all_reduce of {list(t.shape)}",
            lambda: dist.all_reduce(total, how),
            shape=t.shape,
        )
        return total

    def all_gather(self, t: Tensor) -> Tensor:
        """The ranks' tensors one below the other, [world · rows, …]; on every rank."""
        parts = [torch.empty_like(t).contiguous() for _ in range(self.world)]
        what = f"an all_gather of {list(t.shape)}"
        self._do("all_gather", what, lambda: dist.all_gather(parts, t.contiguous()), shape=t.shape)
        return torch.cat(parts)

    def reduce_scatter(self, t: Tensor) -> Tensor:
        """The sum of the ranks' tensors, of which each rank gets its rows: [rows / world, …]."""
        own = torch.empty_like(t.chunk(self.world)[self.rank]).contiguous()
        what = f"a reduce_scatter of {list(t.shape)}"
        self._do(
            "reduce_scatter", what, lambda: dist.reduce_scatter_tensor(own, t.contiguous()), shape=t.shape
        )
        return own

    def summed(self, t: Tensor) -> Tensor:
        """The sum of the ranks' tensors, on every rank. Its backward passes the gradient on as it is."""
        return t + (self.all_reduce(t.detach()) - t).detach()

    def copied(self, t: Tensor, copies: int = WORLD) -> Tensor:
        """The tensor as it is. Its backward sums the gradients of so many neighbours that hold a copy."""
        first = self.rank // copies * copies
        t = t.view_as(t)
        t.register_hook(lambda own: self.all_gather(own[None])[first : first + copies].sum(0))
        return t

    def _do(
        self,
        name: str,
        what: str,
        message: Callable[[], object],
        other: int | None = None,
        shape: torch.Size | None = None,
    ) -> None:
        if name not in self._calls:
            allowed = f"comm.{' and comm.'.join(self._calls)}" if self._calls else "no message at all"
            raise PermissionError(f"this puzzle is to be solved with {allowed}, not comm.{name}")
        self._context.note(what, None if other is None else (self.rank, other))
        if shape is not None:
            self._require_one_shape(name, shape)
        message()
        self._context.note("")

    def _require_one_shape(self, name: str, shape: torch.Size) -> None:
        """Raises UnevenShapes on every rank where one has another shape than rank 0."""
        shapes: list[object] = [None] * self.world
        dist.all_gather_object(shapes, list(shape))
        odd = [rank for rank, other in enumerate(shapes) if other != shapes[0]]
        if odd:
            each = f"rank 0 gives {shapes[0]}, rank {odd[0]} gives {shapes[odd[0]]}"
            raise UnevenShapes(f"{name} wants one shape on all ranks: {each}")


_tries: Counter[str] = Counter()


def puzzle(name: str, function: Callable[..., object]) -> None:
    """Runs what the reader wrote on four ranks: not answered yet, wrong with a hint that grows, or right."""
    chosen = PUZZLES[one_of("puzzle", name, PUZZLES, lp.LlamaparError)]
    if not is_written(function):
        print("not answered yet")
        return
    wrong, hint = fault_in(chosen, function)
    keep("puzzles", name, right=not wrong)
    if not wrong:
        print(f"right: {chosen.right}")
        return
    print(f"wrong: {wrong}")
    if hint is None:
        return
    if not hint:
        hint = chosen.hints[min(_tries[name], len(chosen.hints) - 1)]
        _tries[name] += 1
    print(f"hint: {hint}")


def is_written(function: Callable[..., object]) -> bool:
    """Whether a function does more than return None, as a body of `...` does."""
    steps = [step for step in dis.get_instructions(function) if step.opname not in ("RESUME", "NOP", "CACHE")]
    return len(steps) > 2 or steps[0].argval is not None


def fault_in(chosen: Puzzle, function: Callable[..., object]) -> tuple[str, str | None]:
    """What is wrong, and the hint for a slip that is known; both empty where all is right.

    The hint is None where an answer has not the form that can be compared, which costs no hint. What ranks
    print is shown.
    """
    given = chosen.given()
    expected = chosen.truth(given)
    try:
        answers = pool(WORLD, threads=1).run(
            _on_rank, function, given, chosen.calls, chosen.backward, timeout=WAIT
        )
    except lp.RankFailure as failure:
        where = "\n       ".join(line.strip() for line in failure.why.splitlines()[:WORLD])
        return f"it does not end. {where}", ""
    for answer in answers:
        print("".join(f"rank {answer.rank}: {line}\n" for line in answer.output.splitlines()), end="")
    # A rank that was waiting when another raised says only that.
    for answer in sorted(answers, key=lambda answer: isinstance(answer.error, lp.PeerError)):
        if answer.error is not None:
            hint = chosen.when.get(UNEVEN) if isinstance(answer.error, UnevenShapes) else None
            return f"rank {answer.rank} raised {type(answer.error).__name__}: {answer.error}", hint
    own = [answer.value for answer in answers]
    problem = next(filter(None, map(_form, own, expected, [chosen.names] * WORLD, range(WORLD))), "")
    if problem:
        return problem, None
    for name, tensors in zip(chosen.names, zip(*own, strict=True), strict=True):
        for rank, t in enumerate(tensors):
            if not bool(t.isfinite().all()):
                return f"{name} of rank {rank} has numbers that are not finite", chosen.when.get(
                    NOT_FINITE, ""
                )
    if chosen.judge and not chosen.judge(own):
        return "", ""
    wrong = _difference(own, expected, chosen.names)
    same = [name for name, slip in chosen.slips.items() if wrong and _same(own, slip(given))]
    return wrong, chosen.of_slips[same[0]] if same else ""


def _on_rank(
    context: Context,
    function: Callable[..., object],
    given: list[Given],
    calls: tuple[str, ...],
    backward: bool,
) -> object:
    """On a rank: what the function makes of the rank's own tensors; with `backward` their gradients, too."""
    own = [t.clone().requires_grad_(backward) if isinstance(t, Tensor) else t for t in given[context.rank]]
    try:
        made = function(Comm(context, calls), *own)
        if backward and isinstance(made, Tensor):
            made = with_gradients(made, own)
    except Exception as error:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.name == function.__name__]
        first = inspect.unwrap(function).__code__.co_firstlineno
        where = f" (line {lines[-1] - first + 1} of {function.__name__})" if lines and lines[-1] else ""
        raise type(error)(f"{error}{where}") from None
    return tuple(made) if isinstance(made, (tuple, list)) else (made,)


def _form(own: object, expected: Made, names: tuple[str, ...], rank: int) -> str:
    """Why a rank's answer cannot be compared; empty where it can."""
    assert isinstance(own, tuple)
    if len(own) != len(names):
        return f"rank {rank} returns {len(own)} of {len(names)}: {', '.join(names)}"
    for name, t, right in zip(names, own, expected, strict=True):
        if not isinstance(t, Tensor):
            return f"{name} of rank {rank} is of type {type(t).__name__}, and a tensor is needed"
        if t.shape != right.shape:
            return f"{name} of rank {rank} is {list(t.shape)}, and should be {list(right.shape)}"
    return ""


def _off(t: Tensor, right: Tensor) -> float:
    """How far a tensor is off, in the unit of the largest number of the truth."""
    if not right.numel():
        return 0.0
    size = max(float(right.abs().max()), 1e-30)
    return float((t.double() - right.double()).abs().max()) / size


def _same(own: Sequence[Made], other: Sequence[Made]) -> bool:
    pairs = [pair for one, two in zip(own, other, strict=True) for pair in zip(one, two, strict=True)]
    return all(t.shape == right.shape and _off(t, right) <= TOLERANCE for t, right in pairs)


def _difference(own: Sequence[Made], expected: Sequence[Made], names: tuple[str, ...]) -> str:
    """Which tensor differs, on which ranks, and by how much; empty where none does."""
    for place, name in enumerate(names):
        off = [_off(t[place], right[place]) for t, right in zip(own, expected, strict=True)]
        ranks = [rank for rank, by in enumerate(off) if by > TOLERANCE]
        if ranks:
            worst = max(ranks, key=lambda rank: off[rank])
            where = "every rank" if len(ranks) == WORLD else f"rank {', '.join(map(str, ranks))}"
            return f"{name} differs on {where}; on rank {worst} by {off[worst]:.2g} times its largest number"
    return ""
