"""The proof of an edit: every rank of the edited program beside one process, in children.

One process runs the program with the degree 1 and without the cut. Each rank then runs it with the edit, on
the same random numbers, cut where its shapes are smaller. What a rank computes must be its part of what one
process computes, or the same, or the ranks must sum or average to it. Only statements that rest on the
degree run again.
"""

from __future__ import annotations

import ast
import builtins
import random
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType

import torch
from torch.distributed import distributed_c10d as c10d
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from llamapar.records.frames import Held

from .candidates import SEE
from .degrees import AXIS, RATIO, Degree, degree_in, group_size, holds_degrees, named_degree
from .editing import Edits, places, swap_code, with_edits_in
from .program import Names, Program, Step, assignments

PROVED, RUNS, FURTHER, DIFFERS = "proved", "runs", "runs further", "differs"
"""States of an answer: equal to one process; not comparable; meets another failure; other numbers."""

BIASED = "but for a bias"
PLAIN, OPEN = "plain", "open"
"""One process fails in the same way; nothing to compare with."""

MOST_RANKS = 8
"""Ranks that are all run; instead of more than these two and four are."""

_CLOSE = 1e-5
"""Largest difference relative to the largest number, for float32; a sum's order changes less."""

_DRAWS = re.compile(
    "rand|normal|uniform|bernoulli|kaiming|xavier|trunc_|orthogonal|dropout|multinomial|exponential"
)

Outcome = tuple[list[torch.Tensor], list[torch.Tensor]]
"""The random numbers that a run drew, and the tensors that its last statement made."""


@dataclass(frozen=True)
class Compared:
    """What a comparison says: a state, and why in words."""

    state: str
    why: str


class Draws(TorchFunctionMode):
    """The same random numbers in one process and on ranks: recorded whole, replayed as the rank's part."""

    def __init__(self, whole: list[torch.Tensor] | None, rank: int, ranks: int) -> None:
        super().__init__()
        self.whole = whole
        self.rank = rank
        self.ranks = ranks
        self.drawn: list[torch.Tensor] = []

    def __torch_function__(self, func: Held, types: object, args: Held = (), kwargs: Held = None) -> Held:
        out = func(*args, **(kwargs or {}))
        if _DRAWS.match(getattr(func, "__name__", "")) and isinstance(out, torch.Tensor):
            if self.whole is not None:
                part = self.whole[len(self.drawn)]
                for dim, (n, here) in enumerate(zip(part.shape, out.shape, strict=True)):
                    if n != here:
                        rank = self.rank if n // here == self.ranks else 0
                        part = part.narrow(dim, rank * here, here)
                out.detach().copy_(part)
            self.drawn.append(out.detach().clone())
        return out


class _SetDegrees(ast.NodeTransformer):
    """A degree that the code itself sets, tp = 4 or Config(tp=4), set to n. count: how often it does."""

    def __init__(self, degree: Degree, n: int) -> None:
        self.degree = degree
        self.n = n
        self.count = 0

    def _constant(self, name: object, value: ast.AST | None) -> None:
        if not isinstance(value, ast.Constant) or name not in AXIS:
            return
        if _is_degree(str(name), value.value, self.degree):
            value.value = self.n
            self.count += 1

    def visit(self, node: ast.AST) -> Held:
        for target, value in assignments(node):
            self._constant(getattr(target, "id", getattr(target, "attr", "")), value)
        if isinstance(node, ast.keyword):
            self._constant(node.arg, node.value)
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                self._constant(getattr(key, "value", ""), value)
        return self.generic_visit(node)


@dataclass
class ProofRuns:
    """A program beside itself in one process, under edits of one axis.

    degree: as the code has it. roots: names that hold degrees. again: statements that rest on them. has_loop:
    whether the last cell goes over the ranks, so that its names are not those of one of them.
    """

    program: Program
    degree: Degree
    roots: list[str]
    again: list[Step]
    has_loop: bool

    @classmethod
    def of(cls, program: Program, degree: Degree, edits: Edits) -> ProofRuns | None:
        """What has to run; None if no name of a degree can be set to 1."""
        roots = [name for name, value in program.before.items() if _is_root(name, value, degree)]
        setter = _SetDegrees(degree, degree.n)
        setter.visit(program.tree(program.last))
        if not roots and not setter.count:
            return None
        steps = [step for step in program.steps(set(roots), places(edits)) if step[0] != program.last]
        again = []
        for file, number in steps:
            bound = Names.of(program.tree(file).body[number]).bound
            # One that binds the degree would set it back, and one that bound nothing failed when it ran.
            if not bound & set(roots) & AXIS.keys() and bound & program.before.keys():
                again.append((file, number))
        nodes = ast.walk(program.tree(program.last))
        loops = [node for node in nodes if isinstance(node, ast.For | ast.comprehension)]
        has_loop = any(named_degree(node) for loop in loops for node in ast.walk(loop.iter))
        return cls(program, degree, roots, again, has_loop)

    def run(self, edits: Edits, n: int, rank: int, tape: list[torch.Tensor] | None) -> Outcome | str:
        """In a child: the program as a rank of n, or what it raises. n = 1: one process."""
        try:
            return self._run(edits, n, rank, tape)
        except BaseException as error:
            return f"{type(error).__name__}: {str(error)[:80]}"

    def _run(self, edits: Edits, n: int, rank: int, tape: list[torch.Tensor] | None) -> Outcome:
        program = self.program

        def put(name: str, value: Held) -> Held:
            if _is_degree(name, value, self.degree):
                return n
            return value

        degree = self.degree._replace(n=n)
        names = program.names
        swap_code(program, edits, rank, degree)
        names.clear()
        names.update(program.before)
        given = {name: dict(_degrees_of(program.before[name])) for name in self.roots if name not in AXIS}

        def bind() -> None:
            for name in self.roots:
                if name in AXIS:
                    names[name] = put(name, program.before[name])
                for key, value in given.get(name, {}).items():
                    holder = names.get(name)
                    if type(holder) is dict:
                        names[name] = {**holder, key: put(key, value)}
                    else:
                        object.__setattr__(holder, key, put(key, value))
            for name in ("rank", f"{self.degree.axis}_rank"):
                if name in program.before:
                    names[name] = rank

        bind()
        _regroup(self.degree.n, n, rank)
        seen: list[torch.Tensor] = []

        def see(value: Held) -> Held:
            seen.extend(each.detach().clone() for each in _tensors(value))
            return value

        setattr(builtins, SEE, see)
        random.seed(0)
        torch.manual_seed(0)
        setter = _SetDegrees(self.degree, n)
        with Draws(tape, rank, self.degree.n if n == 1 else n) as draws:
            for file, number in self.again:
                body = with_edits_in(program, file, [number], edits, rank, degree)
                with suppress(Exception):  # What failed when it ran fails again.
                    program.execute(file, [setter.visit(statement) for statement in body])
                bind()
            count = len(program.tree(program.last).body)
            body = with_edits_in(program, program.last, range(count), edits, rank, degree)
            body = [setter.visit(statement) for statement in body]
            last = body[-1]
            if isinstance(last, ast.Expr):
                target = ast.Name("__value__", ast.Store())
                body[-1] = ast.fix_missing_locations(
                    ast.copy_location(ast.Assign([target], last.value), last)
                )
            program.execute(program.last, body)
        # A script's last line prints; then what the failing line made is compared.
        made = _made(body[-1:], names) or seen or _made(body, names)
        return draws.drawn, made


def _regroup(ranks: int, n: int, rank: int) -> None:
    """Of a fake process group, the one that a program of n ranks instead has."""
    if (world := group_size()) > 1:
        c10d.destroy_process_group()
        c10d.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world // ranks * n or 1)


def _is_degree(name: str, value: Held, degree: Degree) -> bool:
    """Whether a name has this number of ranks; another of the same axis belongs to other code."""
    return type(value) is int and value == degree.n and degree.axis in (AXIS[name], RATIO)


def _is_root(name: str, value: Held, degree: Degree) -> bool:
    """Whether a name refers to the degree, or to an object with it that is no tensor, module or class."""
    if name.startswith("_"):
        return False
    if name in AXIS:
        return _is_degree(name, value, degree)
    built = isinstance(value, ModuleType | torch.Tensor | torch.nn.Module | type)
    return not built and any(_is_degree(key, n, degree) for key, n in _degrees_of(value))


def _degrees_of(value: Held) -> list[tuple[str, int]]:
    found = [(name, degree_in(value, name)) for name in holds_degrees(value)]
    return [(name, n) for name, n in found if n is not None]


def _made(statements: list[ast.stmt], names: dict[str, Held]) -> list[torch.Tensor]:
    """The tensors that statements bound."""
    bound: set[str] = set()
    for statement in statements:
        bound |= Names.of(statement).bound
    return [each.detach().clone() for name in sorted(bound) for each in _tensors(names.get(name))]


def _tensors(value: Held) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors(each)


# -- the comparison of what was computed -----------------------------------------------------------


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference of two tensors; infinite if they are not of one shape."""
    if one.shape != other.shape:
        return float("inf")
    if not one.numel():
        return 0.0
    difference = float((one.to(torch.complex128) - other.to(torch.complex128)).abs().amax())
    if difference != difference:
        return float("inf")
    return difference


def compare_ranks(whole: list[torch.Tensor], ranks: list[list[torch.Tensor]], n: int) -> Compared:
    """The tensors of n ranks beside those of one process."""
    if not whole or any(len(made) != len(whole) for made in ranks):
        return Compared(RUNS, "no tensors to compare")
    if any(each.is_meta for each in whole):
        return Compared(RUNS, "tensors without numbers, on which only shapes are tried")
    farthest = 0.0
    words: list[str] = []
    for one, *parts in zip(whole, *ranks, strict=True):
        ways = dict(_ways(one, parts, n))
        size = max(1.0, float(one.to(torch.complex128).abs().amax()) if one.numel() else 0.0)
        near = _CLOSE
        if one.is_floating_point():
            near = max(_CLOSE, 4 * torch.finfo(one.dtype).eps)
        fits = [way for way, difference in ways.items() if difference <= near * size]
        if not fits:
            if excess := _bias(one, parts, near * size):
                return Compared(BIASED, excess)
            shape = list(parts[0].shape)
            return Compared(DIFFERS, f"{shape} on a rank is no part of the {list(one.shape)} of one process")
        farthest = max(farthest, ways[fits[0]] / size)
        words.append(fits[0])
    how = ", ".join(dict.fromkeys(words))
    return Compared(PROVED, f"equals one process, largest difference {farthest:.0g}, on {n} ranks: {how}")


def _ways(one: torch.Tensor, parts: list[torch.Tensor], n: int) -> Iterable[tuple[str, float]]:
    """The ways in which ranks' tensors may be one process's, and how far they are from it."""
    shape = list(parts[0].shape)
    for dim in range(one.dim() if one.dim() == len(shape) else 0):
        if list(one.shape) == [*shape[:dim], shape[dim] * n, *shape[dim + 1 :]]:
            wholes = one.chunk(n, dim)
            pairs = zip(parts, wholes, strict=False)
            yield f"each rank has its part of dim {dim}", max(apart(part, own) for part, own in pairs)
            # Code that takes part 0 on every rank computes rank 0's part everywhere.
            if len(wholes) == n and not any(apart(part, parts[0]) for part in parts):
                yield f"rank 0 has its part of dim {dim}", apart(parts[0], wholes[0])
    yield "every rank has the same", max(apart(part, one) for part in parts)
    if one.is_floating_point() and all(part.shape == one.shape for part in parts):
        total = torch.stack(parts).sum(0)
        yield "the ranks add up to it", apart(total, one)
        yield "the mean of the ranks is it", apart(total / n, one)


def _bias(one: torch.Tensor, parts: list[torch.Tensor], near: float) -> str:
    """Words for ranks that add up to one process, but for a bias that each of them adds; else ""."""
    if not one.is_floating_point() or one.dim() < 2 or any(part.shape != one.shape for part in parts):
        return ""
    excess = torch.stack(parts).sum(0) - one
    rows = excess.reshape(-1, one.shape[-1])
    if len(rows) < 2 or apart(rows, rows[:1].expand_as(rows)) > near:
        return ""
    count = len(parts)
    return f"the ranks add up to one process, but each of the {count} adds the bias: sum them, with one bias"
