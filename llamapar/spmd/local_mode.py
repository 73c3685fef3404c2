"""torch's mode that runs operations rank by rank in one process, and what is replaced in torch while it does.

There all ranks share one Python. A rank's number is a torch.SymInt with a value for each rank: it can be
added, multiplied and sliced with, but `if rank == 0:` would go one way for all ranks, without a word. So a
branch on it is refused.
"""

from __future__ import annotations

import linecache
import operator
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _local_tensor
from torch.distributed._local_tensor import (
    LocalIntNode,
    LocalTensorMode,
    enabled_local_tensor_mode,
)
from torch.fx.experimental._constant_symnode import ConstantIntNode
from torch.overrides import TorchFunctionMode

from llamapar.errors import Choice, LlamaparError
from llamapar.records.tables import Plain
from llamapar.records.trace import some

from .compat import Arguments, LocalTensor, OpOverload, by_rank, group_named, of_rank, translates


class _FlatMatmul(TorchFunctionMode):
    """x [..., n] @ w [n, m] as one mm, because matmul before torch 2.13 requires sizes that are plain
    integers.
    """

    def __torch_function__(
        self, func: Callable[..., Tensor], types: object, args: Arguments = (), kwargs: Plain | None = None
    ) -> Tensor:
        if func in (Tensor.matmul, torch.matmul) and len(args) == 2:  # @ is the first
            x, w = args
            if isinstance(w, LocalTensor) and w.dim() == 2 and x.dim() > 2:
                return torch.mm(x.reshape(-1, w.shape[0]), w).view(*x.shape[:-1], w.shape[1])
        return func(*args, **(kwargs or {}))


_local: Any = _local_tensor
_aliased: Callable[..., object] = _local.return_and_correct_aliasing


def _unaliased(func: OpOverload, args: Arguments, kwargs: Plain, out: object) -> object:
    """The result of an operation on LocalTensors, without torch's aliasing, unless the operation changes an
    argument.

    torch gives a view the storage of its base, for compilers. A LocalTensor's own storage is empty: the
    numbers are in the ranks' tensors, whose views share storage as usual. The aliasing took a third of a run
    (measured).
    """
    if func._schema.is_mutable:
        return _aliased(func, args, kwargs, out)
    return out


_all_gather_of_torch: Callable[..., object] = _local._c10d._local_all_gather_


def _all_gather_by_group(made: list[list[Tensor]], sent: list[Tensor], *group: torch.ScriptObject) -> object:
    """dist.all_gather on LocalTensors; torch's own leaves the last group's tensors on every rank."""
    found = _all_gather_of_torch(made, sent, *group)
    own = tuple(dist.get_process_group_ranks(group_named(group[0])))
    # The group that torch passes is rank 0's; the other groups of its axis are the same ranks, shifted.
    for rank, ranks in translates(own, len(by_rank(sent[0]) or own)).items():
        for output, source in zip(made[0], ranks, strict=True):
            of_rank(output, rank).copy_(of_rank(sent[0], source))
    return found


# -- numbers that each rank has its own of ---------------------------------------------------------

Number: TypeAlias = LocalIntNode | ConstantIntNode

_OPERATORS = ("torch", "torch.fx.experimental.sym_node")
"""Modules of torch whose functions are the operators of SymInt: `==`, `<`, bool, int, an index."""


def _asker() -> tuple[FrameType, str, bool]:
    """The frame that asks for a comparison or a rank, its module, and whether it asks by an operator.

    Slices of tensors compare numbers too, in C++ and rightly, and no operator's frame stands between.
    """
    # Frame 0 is this function and 1 the patch that asks, so 2 is whoever called the patch.
    frame = sys._getframe(2)
    is_operator = False
    while frame.f_back is not None and frame.f_globals.get("__name__") in _OPERATORS:
        frame = frame.f_back
        is_operator = True
    return frame, str(frame.f_globals.get("__name__", "")), is_operator


def _one_python(frame: FrameType, why: str) -> LlamaparError:
    """The refusal of a frame's line, which it shows: "train.py:12  if rank:"."""
    file = frame.f_code.co_filename
    line = frame.f_lineno
    name = "cell"
    if "ipykernel_" not in file:
        name = os.path.basename(file)
    what = f"a branch on the rank: {name}:{line}  {linecache.getline(file, line).strip()}"
    reason = f"{why}; the local engine runs one Python for all ranks, so a line goes one way for all of them"
    return LlamaparError(what, reason, [Choice.of(engine="processes")], "engine")


def _decided(name: str) -> Callable[[LocalIntNode, Number], object]:
    """A comparison of numbers that each rank has its own of, refused where the ranks' answers differ.

    torch answers == by False and != by True without a word, and its own code may rely on that.
    """
    right, compare = getattr(LocalIntNode, name), getattr(operator, name)

    def compared(self: LocalIntNode, other: Number) -> object:
        numbers = self._local_ints
        # The other side is a number of each rank, or one constant for all.
        others = other._local_ints if isinstance(other, LocalIntNode) else dict.fromkeys(numbers, other.val)
        answers = {rank: compare(number, others[rank]) for rank, number in numbers.items()}
        if len(set(answers.values())) > 1:
            frame, module, is_operator = _asker()
            # torch's own code may compare such numbers, and goes on as it would without us.
            if is_operator and not module.startswith("torch."):
                yes = [rank for rank, answer in answers.items() if answer]
                raise _one_python(frame, f"it holds on {some(yes)} alone")
        return right(self, other)

    return compared


def _one_number(self: LocalIntNode) -> int:
    """What int(), range() and an index of a list ask for; torch would say that it lacks an attribute."""
    raise _one_python(_asker()[0], "each rank has its own number there")


def _rank_of_each(group: dist.ProcessGroup | None = None) -> int | torch.SymInt:
    """dist.get_rank of the local engine, where torch has 0 for all ranks: a number for each of them."""
    mode = enabled_local_tensor_mode()
    first = _get_rank(group)
    if mode is None:
        return first
    frame, module, _ = _asker()
    # Inside torch and this library the number finds a group or a coord and decides no branch, so they
    # keep the plain one.
    if module.startswith(("torch.", "llamapar.")):
        return first
    if group is not None:
        raise _one_python(frame, "a group here is rank 0's; mesh.get_local_rank(axis) has each rank's number")
    return torch.SymInt(LocalIntNode({rank: rank for rank in mode.ranks}))


# -- the mode --------------------------------------------------------------------------------------

_get_rank = dist.get_rank
# Not among the patches: torch's class has no int_, so there is nothing to put back.
LocalIntNode.int_ = _one_number  # type: ignore[attr-defined]

_PATCHES: list[tuple[object, str, object]] = [
    (_local, "return_and_correct_aliasing", _unaliased),
    (_local._c10d, "_local_all_gather_", _all_gather_by_group),
    (dist, "get_rank", _rank_of_each),
    *((LocalIntNode, name, _decided(name)) for name in ("eq", "ne", "lt", "le", "gt", "ge")),
]
"""What is replaced while the mode is active: owner, name, by what. The aliasing comes first."""


class LocalMode(LocalTensorMode):
    """torch's mode that runs operations rank by rank; here uneven pieces can be multiplied in every torch
    version, and a branch on the rank is refused.

    aliased: keep torch's aliasing, for code that waits for a view of a collective's result, as DTensor does.
    """

    aliased = False

    def __enter__(self) -> LocalMode:
        # All of torch's own are noted before the first is replaced, so that leaving the mode restores
        # everything.
        self._torchs = [(owner, name, getattr(owner, name)) for owner, name, _ in _PATCHES]
        # True counts as 1 and skips the first patch, which is the aliasing.
        for owner, name, ours in _PATCHES[self.aliased :]:
            setattr(owner, name, ours)
        # Comparing texts is enough, for 2.11 is the oldest torch that llamapar takes.
        self._matmul = _FlatMatmul() if torch.__version__ < "2.13" else None
        if self._matmul is not None:
            self._matmul.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for owner, name, torchs in self._torchs:
            setattr(owner, name, torchs)
        if self._matmul is not None:
            self._matmul.__exit__(*error)
