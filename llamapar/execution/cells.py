"""`%%ranks`: a notebook's cell on real ranks, with what each line made on each rank.

The ranks are the processes of the kept pool, and what a cell names stays there for the next one. A name that
the cell reads and that the notebook has is copied to the ranks, again only when its value has changed. Lines
are followed by Python's tracing, in the cell and in every file that is not a library's.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import pickle
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from types import CodeType, FrameType, FunctionType
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._pytree import tree_leaves, tree_map_only

from llamapar.describe.layout import Layout
from llamapar.errors import LlamaparError
from llamapar.records.frames import is_library
from llamapar.records.tables import Plain
from llamapar.records.trace import CollectiveEvent
from llamapar.spmd import compat
from llamapar.spmd.compat import Arguments, OpOverload

from .engines.rank import Context, dumps
from .following import Untraced
from .line_by_line import Assignment, Follower, Key, line_of

CELLS = ("<cell on ranks", "<ipython-input")
"""How the names of cells begin; other names in "<>" are of nobody's own code."""

MOST_LINES, MOST_TEXT, MOST_NUMBERS = 500, 2000, 2048
"""Lines of a rank that are kept, characters of a last value's text, and numbers of a tensor."""


class Line(NamedTuple):
    """A line of the cell or of a function of the user's: "cell:3", its text, and how often it ran before."""

    where: str
    code: str
    times: int = 0


NO_LINE = Line("", "")


class Made(NamedTuple):
    """A tensor that a line named or changed: "[4, 8] float32", its numbers if they are few, and what the line
    read.
    """

    what: str
    value: Tensor | None = None
    reads: tuple[str, ...] = ()


class LineDone(NamedTuple):
    """What a line did on a rank: name → tensor, and its collectives."""

    made: dict[str, Made]
    events: list[CollectiveEvent]


@dataclass(frozen=True)
class Cell:
    """A cell for the ranks. names: pickled values of the notebook by name."""

    source: str
    file: str
    layout: Layout
    names: Mapping[str, bytes]


@dataclass(frozen=True)
class CellReport:
    """What a cell did on a rank, in order. value: the last expression's, if it can be sent; text: its repr.

    stopped: the line that raised, and read: what it read, by name. kept: pickled values of names that earlier
    cells left on the rank, of those that a cell which raised has read.
    """

    done: Mapping[Line, LineDone] = field(default_factory=dict)
    value: object = None
    text: str = ""
    stopped: Line | None = None
    read: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, bytes] = field(default_factory=dict)


# -- in the kernel ---------------------------------------------------------------------------------


def read_names(source: str) -> list[str]:
    """The names that a cell reads and Python does not have. Raises LlamaparError for what is no Python."""
    try:
        tree = ast.parse(source)
    except SyntaxError as problem:
        what = f"line {problem.lineno} cannot be read: {problem.msg}"
        raise LlamaparError(what, "a cell on the ranks is plain Python", field="cell") from None
    names = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    return [name for name in dict.fromkeys(names) if not hasattr(builtins, name)]


def copied(names: list[str], notebook: Mapping[str, object]) -> tuple[dict[str, bytes], dict[str, str]]:
    """Name → pickled value, of those that the notebook has; and name → why it cannot be copied."""
    found = dict[str, bytes]()
    refused = dict[str, str]()
    for name in names:
        if name in notebook and name not in GIVEN:
            try:
                found[name] = dumps(notebook[name])
            except Exception as problem:  # pickling calls the value's own code
                refused[name] = f"{type(notebook[name]).__name__}: {problem}"
    return found, refused


# -- on a rank -------------------------------------------------------------------------------------

GIVEN = ("rank", "world", "mesh", "dist", "torch")
"""Names that a cell has besides the notebook's and its own."""

_names: dict[str, object] = {"__name__": "__main__", "__builtins__": builtins}
_digests: dict[str, bytes] = {}


@cache
def is_own(file: str) -> bool:
    """Whether a file is no library's."""
    return file.startswith(CELLS) or not (file[:1] == "<" or is_library(file))


class CellRecorder(Untraced):
    """A recorder that adds each collective to the user's line. kept: what `done` has of all lines."""

    def __init__(self, context: Context) -> None:
        super().__init__(context.rank, note=context.note)
        self.done: dict[Line, LineDone] = {}
        self.kept = 0
        self._written = Counter[int]()

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: Arguments = (), kwargs: Plain | None = None
    ) -> object:
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if func.namespace == "c10d":  # torch.distributed's own write into their first argument
            self._written.update(id(t) for t in tree_leaves(args[0]))
        return out

    def version(self, t: Tensor) -> tuple[int, int]:
        """How often operations and collectives have written into a tensor."""
        return t._version, self._written[id(t)]

    def at(self, line: Line) -> LineDone:
        """Where the next that a line did is kept."""
        self.kept += 1
        return self.done.setdefault(line, LineDone({}, []))

    def _add(self, r: int, event: CollectiveEvent) -> None:
        super()._add(r, event)
        frame: FrameType | None = sys._getframe()
        while frame is not None and not is_own(frame.f_code.co_filename):
            frame = frame.f_back
        line = NO_LINE if frame is None else _line(line_of(frame, frame.f_lineno))
        self.at(line).events.append(event)


def names_given(context: Context, mesh: DeviceMesh) -> dict[str, object]:
    """The names that a cell has on this rank besides the notebook's and its own."""
    return dict(zip(GIVEN, (context.rank, context.world, mesh, dist, torch), strict=True))


@cache
def receive_on(device: torch.device) -> None:
    """Let tensors that were on a GPU of the notebook's arrive on this rank's own device."""

    def restored(storage: torch.UntypedStorage, location: str) -> torch.UntypedStorage | None:
        if location.startswith("cuda"):
            return storage.to(device=device)
        return None

    torch.serialization.register_package(0, lambda storage: None, restored)  # type: ignore[arg-type]


def sent_value(data: bytes, given: Mapping[str, object]) -> object:
    """A value of the notebook, whose functions see the names that are given to the cell."""
    value = pickle.loads(data)
    owner = value if isinstance(value, type) else type(value)
    # A function of the notebook, or those of a class or a module's class from there.
    for each in (value, *vars(owner).values()):
        if isinstance(each, FunctionType) and each.__module__ == "__main__":
            for name, own in given.items():
                each.__globals__.setdefault(name, own)
    return value


def run_cell(context: Context, cell: Cell) -> CellReport:
    """Run the cell on this rank. An error carries the report of what came before it."""
    from .engines.processes import mesh_of  # which a page without processes does not have

    receive_on(context.device)
    mesh = mesh_of(cell.layout, context.device.type)
    given = names_given(context, mesh)
    _names.update(given)
    for name, data in cell.names.items():
        digest = hashlib.sha256(data).digest()
        if _digests.get(name) != digest or name not in _names:
            _digests[name], _names[name] = digest, sent_value(data, given)
    recorder = CellRecorder(context)
    recorder.axes = compat.axis_names(mesh)

    def add(key: Key, value: Tensor, moment: Assignment) -> None:
        if key.code != "argument" and recorder.kept < MOST_LINES:
            made = Made(described(value), _numbers(value), tuple(moment.read))
            recorder.at(_line(key)).made[key.name] = made

    def wanted(code: CodeType, frame: FrameType) -> bool:
        return is_own(code.co_filename)

    before = dict(_names)
    follower = Follower(wanted, add, tick=context.moved, version=recorder.version)
    text = ""
    value = None
    body, last = _parts(cell)

    try:
        with recorder, follower, context.device if context.device.type == "cuda" else nullcontext():
            exec(body, _names)
            value = None
            if last is not None:
                value = eval(last, _names)
        text = "" if value is None else repr(value)[:MOST_TEXT]
    except BaseException as error:
        at = follower.ended_at(error)
        read = follower.read_at_end
        stopped = None
        if at.code:
            stopped = _line(at)
        operands = {name: described(t) for name, t in read.items()}
        own = [name for name in read_names(cell.source) if name not in cell.names]
        kept, _ = copied(own, before)
        vars(error)["cell_report"] = CellReport(recorder.done, None, "", stopped, operands, kept)
        raise
    value = tree_map_only(Tensor, Tensor.cpu, value)  # The notebook may have no such GPU.
    try:
        dumps(value)
    except Exception:  # it stays on the rank
        value = None
    return CellReport(recorder.done, value, text)


def described(t: Tensor) -> str:
    """A tensor's shape and dtype; of a DTensor the whole shape, the one here, and the placements."""
    dtype = str(t.dtype).removeprefix("torch.")
    local = getattr(t, "_local_tensor", None)
    if local is None:
        return f"{list(t.shape)} {dtype}"
    names = t.device_mesh.mesh_dim_names or ()  # type: ignore[attr-defined]
    placed = ", ".join(f"{n}: {p}" for n, p in zip(names, t.placements, strict=False))  # type: ignore[attr-defined]
    return f"{list(local.shape)} of {list(t.shape)} {dtype}, {placed}"


def _numbers(t: Tensor) -> Tensor | None:
    """A copy of a tensor's numbers in host memory, of a DTensor those here; None if they are many."""
    t = compat.of_rank(getattr(t, "_local_tensor", t), 0)
    if t.numel() <= MOST_NUMBERS:
        return t.detach().cpu().clone()
    return None


def _line(key: Key) -> Line:
    where = f"cell:{key.line + 1}" if key.function == "<module>" else f"{key.function}:{key.line}"
    return Line(where, key.code, key.times)


def _parts(cell: Cell) -> tuple[CodeType, CodeType | None]:
    """The cell, and its last expression apart, if it ends with one."""
    tree = ast.parse(cell.source, cell.file)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
    body = compile(tree, cell.file, "exec")
    return body, None if last is None else compile(last, cell.file, "eval")
