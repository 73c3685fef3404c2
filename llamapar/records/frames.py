"""The code that raised an error, and the values that it names, found without calling anything.

A traceback leads to the innermost frame of the user's own code, and CPython's positions to the expression
that raised there. Names are looked up in the frame, attributes where an object stores them: in `__dict__`,
in slots, and in the tables of a torch module. A property, `__getattr__` and `__repr__` are never called, so
a value that only they can give is not found. Sums of integers, and the shape of a torch tensor or of a slice
of one, are worked out here.
"""

from __future__ import annotations

import ast
import linecache
import operator
import sys
import sysconfig
from collections import ChainMap, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import FrameType, GetSetDescriptorType, MemberDescriptorType, TracebackType
from typing import Any

_PACKAGE = Path(__file__).parent.parent
_INSTALLED = map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))
LIBRARIES = (*(f"{folder}/" for folder in (*_INSTALLED, _PACKAGE)), "<frozen")
"""Where code lies that nobody wrote for a run."""

Held = Any
"""A value of the user's program, of whatever class."""

MISSING = object()
_LONGEST = 2**20
"""Characters of a file that is parsed, at most."""

_TABLES = ("_parameters", "_buffers", "_modules")
"""Where a torch module stores what it calls its attributes."""


_SUMS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def is_library(file: str) -> bool:
    """Whether a file is a library's, ours among them."""
    return file.startswith(LIBRARIES) or "-packages" in file


def classes(value: object) -> Iterator[tuple[type, Mapping[str, Held]]]:
    """The classes of a value, as Python resolves names, each with what it defines; no metaclass is asked."""
    # Through type's own descriptors: an object's class may define __mro__ or __dict__ as something that
    # runs code.
    for kind in type.__dict__["__mro__"].__get__(type(value)):
        yield kind, type.__dict__["__dict__"].__get__(kind)


def is_a(value: object, kind: type | None) -> bool:
    """Whether a value is of a class or a subclass; unlike isinstance, this never reads `__class__`."""
    return any(found is kind for found, _ in classes(value))


def is_exactly(value: object, *kinds: type | None) -> bool:
    """Whether a value is of one of these classes and of no subclass; unlike ==, this asks no metaclass."""
    return any(type(value) is kind for kind in kinds)


def stored(value: object) -> dict[str, Held]:
    """What an object stores under names: its `__dict__`, unless its class has made that a property."""
    for _, defined in classes(value):
        found = defined.get("__dict__")
        if found is not None:
            # Only the interpreter's own descriptor is read; a property called __dict__ would be code of
            # the user's.
            native = is_exactly(found, GetSetDescriptorType, MemberDescriptorType)
            rows = None
            if native:
                rows = found.__get__(value)
            if type(rows) is dict:
                return rows
            return {}
    return {}


def attribute(value: object, name: str) -> Held:
    """An attribute as the object or its class stores it, or MISSING.

    A method, a property or torch's own x.shape is no stored value: it would have to be called.
    """
    own = stored(value)
    for rows in (own, *(own.get(table) for table in _TABLES)):
        if (type(rows) is dict or type(rows) is OrderedDict) and name in rows:
            return rows[name]
    found = next((defined[name] for _, defined in classes(value) if name in defined), MISSING)
    if type(found) is MemberDescriptorType:  # A slot, which may be empty.
        try:
            return found.__get__(value)
        except AttributeError:
            return MISSING
    # A class attribute with __get__ is a method or a property, which would have to be called.
    if any("__get__" in defined for _, defined in classes(found)):
        return MISSING
    return found


def torch_class(name: str, module: str = "torch") -> Held:
    """A class of torch, if its module has been imported."""
    return getattr(sys.modules.get(module), name, None)


def is_foreign(tensor: object) -> bool:
    """Whether a class outside torch decides what operations on its tensors do, even reading their shape."""
    own = (defined for _, defined in classes(tensor) if "__torch_dispatch__" in defined)
    return str(next(own, {"__module__": "torch"})["__module__"]).partition(".")[0] != "torch"


def tensor_shape(tensor: object) -> tuple[int, ...] | None:
    """The shape of a tensor that is torch's own; None of anything else."""
    kind = torch_class("Tensor")
    if not is_a(tensor, kind) or is_foreign(tensor):
        return None
    with sys.modules["torch"]._C.DisableTorchFunctionSubclass():
        return tuple(kind.shape.__get__(tensor))


@dataclass(frozen=True, eq=False)
class SlicedTensor:
    """A slice of a tensor, of which only the shape is worked out."""

    base: Held
    shape: tuple[int, ...]


def _is_place(at: Held) -> bool:
    """Whether an index is an integer, or a forward slice between integers."""
    if type(at) is not slice:
        return type(at) is int
    plain = all(is_exactly(n, int, type(None)) for n in (at.start, at.stop, at.step))
    return plain and (at.step is None or at.step > 0)


def _sliced(tensor: object, index: object) -> Held:
    """A plain tensor at integers and slices, as its shape; MISSING for an index of another kind."""
    places: list[Held] = [*index] if type(index) is tuple else [index]
    if not is_exactly(tensor, torch_class("Tensor"), torch_class("Parameter", "torch.nn")):
        return MISSING
    sizes = tensor_shape(tensor) or ()
    shape = list[int]()
    if len(places) > len(sizes) or not all(map(_is_place, places)):
        return MISSING
    for size, at in zip(sizes, places, strict=False):
        if type(at) is slice:
            shape.append(len(range(*at.indices(size))))
        elif not -size <= at < size:
            return MISSING
    return SlicedTensor(tensor, (*shape, *sizes[len(places) :]))


def item(value: object, key: object) -> Held:
    """An item of a list, tuple, dict, ModuleList or ModuleDict, or a slice of a tensor; else MISSING."""
    rows = stored(value).get("_modules", MISSING)
    holder: Held = value if rows is MISSING else rows
    # torch stores the layers of a ModuleList under "0", "1", ….
    if rows is not MISSING:
        key = str(key)
    try:
        if is_exactly(holder, dict, OrderedDict) and is_exactly(key, str, int):
            return holder.get(key, MISSING)
        listed = is_exactly(holder, list, tuple, torch_class("Size")) and type(key) is int
        if listed:
            return holder[key]
        return _sliced(holder, key)
    except IndexError:
        return MISSING


def value_of(node: ast.AST | None, names: Mapping[str, Held]) -> Held:
    """What a name, or a chain of attributes and items that begins with one, refers to; else MISSING."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return names.get(node.id, MISSING)
    if isinstance(node, ast.BinOp):
        return _sum(node, names)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = value_of(node.operand, names)
        if type(number) is int:
            return -number
        return MISSING
    if not isinstance(node, ast.Attribute | ast.Subscript):
        return MISSING
    held = value_of(node.value, names)
    if held is MISSING:
        return MISSING
    if isinstance(node, ast.Attribute):
        shape = None
        if node.attr == "shape":
            shape = tensor_shape(held)
        if shape is None:
            return attribute(held, node.attr)
        return shape
    # What is stored into a slice is of the tensor, and the slice may not be there.
    stores = isinstance(node.ctx, ast.Store) and tensor_shape(held) is not None
    if stores:
        return MISSING
    return item(held, _index(node.slice, names))


def _sum(node: ast.BinOp, names: Mapping[str, Held]) -> Held:
    """A sum, product or quotient of two integers; else MISSING."""
    one = value_of(node.left, names)
    other = value_of(node.right, names)
    work = _SUMS.get(type(node.op))
    if work is None or not (type(one) is type(other) is int) or not abs(one) < 2**40 > abs(other):
        return MISSING
    divides = isinstance(node.op, ast.FloorDiv | ast.Mod)
    if divides and other == 0:
        return MISSING
    return work(one, other)


def _index(node: ast.AST, names: Mapping[str, Held]) -> Held:
    """What stands between brackets: a value, a slice, or several of them."""
    if isinstance(node, ast.Tuple):
        return tuple(_index(each, names) for each in node.elts)
    if isinstance(node, ast.Slice):
        ends = [value_of(end, names) if end else None for end in (node.lower, node.upper, node.step)]
        return slice(*ends)
    return value_of(node, names)


@dataclass(frozen=True, eq=False)
class FailingCode:
    """The expression that raised, in the innermost frame of the user's code.

    frames: those of the user's code in the traceback, the innermost last. node: the smallest part of the
    source with the failing instruction's position; None if the source is not there. text: its source on one
    line.
    """

    frames: tuple[FrameType, ...]
    line: int
    node: ast.AST | None
    text: str

    def value(self, node: ast.AST) -> Held:
        """What a name, or a chain of attributes and items that begins with one, refers to; else MISSING."""
        frame = self.frames[-1]
        return value_of(node, ChainMap(frame.f_locals, frame.f_globals))

    def values(self) -> dict[str, Held]:
        """Every name and chain of the expression that refers to a value, by its source, as it reads."""
        found: dict[str, Held] = {}
        for node in self._named(self.node):
            value = self.value(node)
            if value is not MISSING and not isinstance(node, ast.Constant):
                found.setdefault(ast.unparse(node), value)
        return found

    def _named(self, node: ast.AST | None) -> Iterator[ast.AST]:
        """The longest chains that refer to something; of x.shape x alone, of x.shape[0] both."""
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
            if self.value(node) is not MISSING and not self._is_shape(node):
                yield node
            if isinstance(node, ast.Name):
                return
        # A chain that is found stands for its beginnings, but not for the index in layers[i].
        chain = isinstance(node, ast.Attribute | ast.Subscript) and self.value(node) is not MISSING
        begins = None
        if chain and not self._is_shape(node):
            begins = getattr(node, "value", None)
        for child in ast.iter_child_nodes(node) if node is not None else ():
            if child is not begins or self._is_shape(begins):
                yield from self._named(child)

    def _is_shape(self, node: ast.AST | None) -> bool:
        """Whether a chain is the shape of a tensor, which stands beside the tensor anyway."""
        named = isinstance(node, ast.Attribute) and node.attr == "shape"
        return named and tensor_shape(self.value(node.value)) is not None  # type: ignore[union-attr]


def raised_through(error: BaseException) -> Iterator[TracebackType]:
    """The links of an error's traceback, the outermost first."""
    at = error.__traceback__
    while at is not None:
        yield at
        at = at.tb_next


def position_of(at: TracebackType) -> tuple[int | None, ...]:
    """First line, last line, first and last column of what raised in a frame; None for what is not known."""
    # An instruction takes two bytes, so the byte offset halved is its number.
    return next(islice(at.tb_frame.f_code.co_positions(), at.tb_lasti // 2, None), (None,) * 4)


def failing_code(error: BaseException) -> FailingCode | None:
    """Where an error was raised in the user's own code; None if no frame of the traceback is the user's."""
    own = [at for at in raised_through(error) if not is_library(at.tb_frame.f_code.co_filename)]
    # What a string or `%time` runs has no source: the line that called it says more.
    own = [tb for tb in own if linecache.getlines(tb.tb_frame.f_code.co_filename)] or own
    if not own:
        return None
    code = own[-1].tb_frame.f_code
    number = own[-1].tb_lineno
    source = "".join(linecache.getlines(code.co_filename))
    node = _at(source, position_of(own[-1]))
    text = ""
    if node is not None:
        text = " ".join((ast.get_source_segment(source, node) or "").split())
    line = next(islice(source.splitlines(), number - 1, None), "").strip()
    return FailingCode(tuple(tb.tb_frame for tb in own), number, node, text or line)


def _at(source: str, where: tuple[int | None, ...]) -> ast.AST | None:
    """The smallest expression, or else statement, that begins and ends around a position.

    A `raise` gives the condition that it stands under, and names that cannot be filled give the value.
    """
    try:
        tree = ast.parse(source if len(source) <= _LONGEST else "")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    first, last, begin, end = where
    if None in where:
        return None
    best: ast.AST | None = None
    parents: dict[ast.AST, ast.AST] = {}
    for node in ast.walk(tree):
        parents.update((child, node) for child in ast.iter_child_nodes(node))
        if isinstance(node, ast.expr | ast.stmt):
            starts = (node.lineno, node.col_offset)
            ends = (node.end_lineno, node.end_col_offset)
            if starts <= (first, begin) and ends >= (last, end):
                best = node  # A walk goes from the outside in.
    above = None
    if best is not None:
        above = parents.get(best)
    if isinstance(best, ast.Raise) and isinstance(above, ast.If):
        return above.test
    if isinstance(above, ast.Assign) and isinstance(best, ast.Tuple | ast.List) and best in above.targets:
        return above.value
    return best
