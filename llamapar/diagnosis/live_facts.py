"""Live facts: what the process holds at the moment of an error.

The failing expression, each tensor in it with shape, dtype and placement, the integers in it, names for the
sizes, and what the process is. All of it is read from the frame and from torch's own objects; nothing of the
user's is called (`records.frames`). The facts decide where they can. One process, in which nothing is cut,
has no sharding problem. And where a number in the expression is the whole of a dim of which a rank holds a
part, that is the cause. Left out: what a sub-expression would return, because that takes a call.
"""

from __future__ import annotations

import contextlib
import itertools
import linecache
import math
import os
import re
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import FrameType

from llamapar.describe.layout import AXES, Layout
from llamapar.describe.models import ModelConfig
from llamapar.describe.options import Values
from llamapar.records.frames import (
    Held,
    SlicedTensor,
    attribute,
    failing_code,
    is_a,
    is_exactly,
    is_foreign,
    stored,
    tensor_shape,
    torch_class,
)

from .known import FACTS
from .size_names import DEGREE, CutDim, NamedSize, SizeNames

_MOST = 12
"""Operands that are listed."""

_LONGEST = 200
"""Characters of the failing expression that are shown."""

_KEPT = "llamapar_facts"
"""Where an error that travels has the facts of its frame."""

HEAD = ("name", "on this rank", "which is", "whole")
"""The head of the operands' table."""

_FEWEST = 3
"""Fields with a model's names that make an object a model's config."""


@dataclass(frozen=True)
class Operand:
    """A tensor of the failing expression. placement, whole: "" and () if it is no part of a larger one."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    placement: str = ""
    names: tuple[NamedSize, ...] = ()
    whole: tuple[int, ...] = ()


@dataclass(frozen=True)
class WholeBesidePart:
    """A number in the failing expression that is the whole of a dim which is cut. text: its source.

    name: the factor of it that ranks divide, "" if none does; n: its value.
    """

    text: str
    name: str
    n: int
    ranks: int
    cut: CutDim

    @property
    def remedy(self) -> str:
        """What to write instead: "write heads // 4 = 8"; "" without such a factor."""
        if self.name:
            return f"write {self.name} // {self.ranks} = {self.n // self.ranks}"
        return ""


@dataclass(frozen=True)
class LiveFacts:
    """What a process holds where an error was raised; see the module.

    line: of the source; function: with its file, "" for a cell's own lines. numbers: the integers of the
    expression by their source. degrees: numbers of ranks above 1, as far as a mesh, a layout or a name in the
    frames tells. alone: one process, and nothing that is cut or would cut. facts: what else the frame says of
    model and layout, as keywords of `explain`. outside: that a mesh leaves ranks out, "" if none does.
    """

    expression: str
    line: int
    operands: tuple[Operand, ...]
    numbers: Mapping[str, int | tuple[int, ...]]
    process: str
    cuts: tuple[CutDim, ...] = ()
    alone: bool = False
    facts: Values = field(default_factory=dict)
    degrees: Mapping[str, int] = field(default_factory=dict)
    function: str = ""
    outside: str = ""

    @property
    def sizes(self) -> set[int]:
        """The sizes of the operands, and the integers of the expression."""
        single = {n for n in self.numbers.values() if isinstance(n, int) and n > 0}
        return single.union(*(one.shape for one in self.operands))

    def shards(self) -> Iterator[CutDim]:
        """The cuts that may be a rank's: of a slice, those whose size divides the whole."""
        yield from (cut for cut in self.cuts if cut.part and cut.whole % cut.part == 0)

    @property
    def place(self) -> str:
        """The failing expression with its function, if it has one, and its line."""
        where = f"line {self.line}: {self.expression[:_LONGEST]}"
        if self.function:
            return f"{self.function}, {where}"
        return where

    def rows(self) -> Iterator[tuple[str, ...]]:
        """The operands and the numbers as a table, below `HEAD`."""
        for one in self.operands:
            names = dict.fromkeys(f"{size.n} = {size.name}" for size in one.names)
            is_ = ", ".join(filter(None, (one.placement, *names)))
            yield one.name, f"{list(one.shape)} {one.dtype}", is_, str(list(one.whole)) if one.whole else ""
        for name, n in self.numbers.items():
            yield name, str(n), "", ""

    def wholes_beside_parts(self, said: list[int]) -> Iterator[WholeBesidePart]:
        """The numbers in the expression that are the whole of a cut dim.

        said: the numbers of the message, which must have the part.
        """
        for cut in self.shards():
            ranks = cut.whole // cut.part
            if ranks == 1 or cut.part not in said:
                continue
            for text, factors in self._products():
                if math.prod(factors.values()) == cut.whole:
                    name = next((name for name, factor in factors.items() if factor % ranks == 0), "")
                    yield WholeBesidePart(text, name, factors.get(name, 0), ranks, cut)

    def _products(self) -> Iterator[tuple[str, dict[str, int]]]:
        """The numbers of the expression and the products of a few of them, with their factors."""
        single = {name: n for name, n in self.numbers.items() if isinstance(n, int) and n > 1}
        for count in (1, 2, 3):
            for names in itertools.combinations(list(single)[:6], count):
                yield "·".join(names), {name: single[name] for name in names}


def keep_facts(error: BaseException, *others: BaseException) -> None:
    """Store the facts of an error's frame on it and on others, for where its frames are not: a rank dies."""
    with contextlib.suppress(Exception):  # The error itself says more than an error of reading it.
        facts = live_facts(error)
        for each in (error, *others):
            vars(each)[_KEPT] = facts


def live_facts(error: BaseException) -> LiveFacts | None:
    """The facts of the innermost frame of user code; None without such a frame."""
    kept = stored(error).get(_KEPT)
    if type(kept) is LiveFacts:
        return kept
    code = failing_code(error)
    if code is None:
        return None
    values = code.values()
    tensors = dict(itertools.islice(_tensors(values), _MOST))
    # A ModuleList is not called, so what it holds is no operand.
    lists = torch_class("ModuleList", "torch.nn"), torch_class("ModuleDict", "torch.nn")
    called = {name: value for name, value in values.items() if not is_exactly(value, *lists)}
    tensors = tensors or dict(itertools.islice(_tensors(called, nested=True), _MOST))
    numbers = {name: n for name, value in values.items() if (n := _whole(value)) is not None}
    seen = {name: value for frame in code.frames for name, value in _names(frame).items()}
    known = (*tensors.values(), *seen.values(), *_of_self(seen))
    mesh = next((m for m in map(mesh_axes, known) if m), {})
    facts = _facts(seen, mesh)
    sizes = SizeNames(numbers, seen, facts, mesh)
    operands = []
    cuts = []
    for name, tensor in tensors.items():
        operand, parts = _operand(name, tensor, sizes)
        operands.append(operand)
        cuts += parts
    process, single = _process(mesh)
    degrees = {name: n for name, n in sizes.degrees.items() if n > 1}
    # One process may play one rank of several: then some number of ranks is not far.
    spaces = (seen, *(frame.f_globals for frame in code.frames), *map(stored, seen.values()))
    near = itertools.chain.from_iterable(space.items() for space in spaces)
    held = any(DEGREE.search(str(name).lower()) and (_whole(n) or 1) != 1 for name, n in near)
    alone = single and not (cuts or degrees or held or facts.keys() & {"layout"})
    found = tuple(operands), numbers, process, tuple(cuts), alone, facts, degrees
    outside = next(filter(None, map(_outside, known)), "")
    return LiveFacts(code.text, code.line, *found, _function(code.frames[-1]), outside)


# -- what a frame names ----------------------------------------------------------------------------


def _names(frame: FrameType) -> Values:
    """The locals of a frame, and the globals that its code names; of a notebook what the cell names."""
    if frame.f_locals is not frame.f_globals:
        used = {name: frame.f_globals[name] for name in frame.f_code.co_names if name in frame.f_globals}
        return {**used, **frame.f_locals}
    # A notebook compiles each statement of a cell by itself, so the code of the failing one names too little.
    words = re.findall(r"[^\W\d]\w*", "".join(linecache.getlines(frame.f_code.co_filename)))
    return {name: frame.f_globals[name] for name in dict.fromkeys(words) if name in frame.f_globals}


def _function(frame: FrameType) -> str:
    """The file and the function of a frame, as far as they have names that a reader knows."""
    file = frame.f_code.co_filename
    name = frame.f_code.co_qualname.rpartition("<locals>.")[2]
    words = [] if file.startswith("<") or "ipykernel" in file else [file.rpartition("/")[2]]
    if not name.startswith("<"):
        words += [name]
    return ", ".join(words)


def _of_self(seen: Values) -> list[Held]:
    """What the object of a method stores."""
    if "self" in seen:
        return list(stored(seen["self"]).values())
    return []


def _whole(value: Held) -> int | tuple[int, ...] | None:
    """A value as an integer, or a few of them."""
    if type(value) is int:
        return value
    items: tuple[Held, ...] = ()
    if is_exactly(value, tuple, list, torch_class("Size")):
        items = tuple(value)
    if 0 < len(items) < 9 and all(type(n) is int for n in items):
        return items
    return None


def _facts(seen: Values, mesh: Mapping[str, int]) -> Values:
    """What the names of a frame say of model and layout: by a ModelConfig, a Layout, a config, a degree."""
    facts: Values = {}
    for value in (*seen.values(), *_of_self(seen)):
        if type(value) is ModelConfig:
            facts["model"] = value
        elif type(value) is Layout:
            facts["layout"] = value
        else:
            rows = {FACTS[n]: v for n, v in stored(value).items() if n in FACTS and type(v) is int and v > 0}
            if len(rows.keys() & {"n_heads", "dim", "n_layers", "n_kv_heads", "vocab_size"}) >= _FEWEST:
                facts |= {name: n for name, n in rows.items() if name not in AXES}
    own = {*AXES, "n_heads", "n_kv_heads", "head_dim"}
    facts |= {n: v for n, v in seen.items() if n in own and type(v) is int and v > 0}
    return facts | {axis: n for axis, n in mesh.items() if axis in AXES}


# -- torch's objects -------------------------------------------------------------------------------


def _tensors(values: Values, nested: bool = False) -> Iterator[tuple[str, Held]]:
    """The tensors and arrays among values, and the parameters of the modules that are called.

    nested: also those of the modules in them, and of dicts.
    """
    kinds = (torch_class("Tensor"), torch_class("ndarray", "numpy"))
    for name, value in values.items():
        if type(value) is SlicedTensor or any(is_a(value, kind) for kind in kinds):
            yield name, value
        elif nested and is_exactly(value, dict, OrderedDict):
            rows = [(key, row) for key, row in itertools.islice(value.items(), _MOST) if type(key) is str]
            yield from ((f'{name}["{key}"]', row) for key, row in rows if is_a(row, kinds[0]))
        elif is_exactly(value, list, tuple):
            few = enumerate(value[:_MOST])
            yield from ((f"{name}[{i}]", item) for i, item in few if is_a(item, kinds[0]))
        elif is_a(value, torch_class("Module", "torch.nn")) and name != "self":
            own, inner = (stored(value).get(table) or {} for table in ("_parameters", "_modules"))
            yield from ((f"{name}.{key}", weight) for key, weight in own.items() if is_a(weight, kinds[0]))
            if nested:
                yield from _tensors({f"{name}.{key}": module for key, module in inner.items()}, nested)


def mesh_axes(value: object) -> dict[str, int]:
    """The axes of torch's own DeviceMesh, or of a DTensor's, with their ranks."""
    if is_a(value, torch_class("DTensor", "torch.distributed.tensor")):
        value = attribute(attribute(value, "_spec"), "mesh")
    if type(value) is not torch_class("DeviceMesh", "torch.distributed.device_mesh"):
        return {}  # A subclass has its own ways, such as to list no ranks.
    mesh: Held = value
    sizes = tuple(mesh.shape)
    names = mesh.mesh_dim_names or tuple(f"axis {i}" for i in range(len(sizes)))
    return dict(zip(names, sizes, strict=True))


def _operand(name: str, tensor: Held, sizes: SizeNames) -> tuple[Operand, list[CutDim]]:
    """An operand with its placement, and the dims of which this process holds a part."""
    if type(tensor) is SlicedTensor:
        base_operand, _ = _operand(name, tensor.base, sizes)
        names = sizes.named(tensor.shape)
        return replace(base_operand, shape=tensor.shape, placement="", names=names, whole=()), []
    if is_foreign(tensor):
        return Operand(
            name,
            (),
            type.__dict__["__name__"].__get__(type(tensor)),
            "a class with operations of its own: not read",
        ), []
    if not is_a(tensor, torch_class("Tensor")):
        shape: tuple[int, ...] = ()
        if is_exactly(tensor, torch_class("ndarray", "numpy")):
            shape = tuple(tensor.shape)
        return Operand(name, shape, str(tensor.dtype) if shape else "array", "", sizes.named(shape)), []
    torch = sys.modules["torch"]
    if is_a(tensor, torch_class("DTensor", "torch.distributed.tensor")):
        spec = attribute(tensor, "_spec")
        whole = tuple(spec.shape)
        local = tuple(torch.Tensor.shape.__get__(attribute(tensor, "_local_tensor")))
        axes = list(mesh_axes(tensor).items())
        cuts = []
        words = []
        for (axis, ranks), placement in zip(axes, spec.placements, strict=True):
            dim = getattr(placement, "dim", None)
            kind = type(placement).__name__.strip("_") + ("" if dim is None else f"({dim})")
            words.append(f"{kind} over {axis}={ranks}")
            if dim is not None and ranks > 1:
                cuts.append(CutDim(name, dim, local[dim], whole[dim], f"{axis}={ranks}"))
        placement = f"DTensor, {', '.join(words)}"
        dtype = str(spec.tensor_meta.dtype).removeprefix("torch.")
        return Operand(name, local, dtype, placement, sizes.named(local, cuts), whole), cuts
    with torch._C.DisableTorchFunctionSubclass():
        dtype = str(torch.Tensor.dtype.__get__(tensor))
        base = torch.Tensor._base.__get__(tensor)
    shape = tensor_shape(tensor) or ()
    whole = tensor_shape(base) or ()
    parts: list[CutDim] = []
    if len(whole) == len(shape) and sum(a != b for a, b in zip(shape, whole, strict=True)) == 1:
        dim = next(i for i, (a, b) in enumerate(zip(shape, whole, strict=True)) if a != b)
        parts = []
        if shape[dim] < whole[dim]:
            parts = [CutDim(name, dim, shape[dim], whole[dim])]
    placement = ""
    if parts:
        placement = "a slice"
    names = sizes.named(shape, parts)
    return Operand(name, shape, dtype.removeprefix("torch."), placement, names, whole if parts else ()), parts


def _outside(value: object) -> str:
    """That a mesh leaves ranks out: "1·8 = 8 of 16 ranks are in the mesh; rank 15 is in none"."""
    dist: Held = sys.modules.get("torch.distributed")
    kind = torch_class("DeviceMesh", "torch.distributed.device_mesh")
    if kind is None or type(value) is not kind or not dist.is_initialized():
        return ""
    # A mesh of one axis has part of the ranks; the mesh that it was taken from has them all.
    mesh: Held = value
    root = mesh._get_root_mesh()
    sizes = tuple(root.shape)
    world = dist.get_world_size()
    if math.prod(sizes) >= world:
        return ""
    words = f"{'·'.join(map(str, sizes))} = {math.prod(sizes)} of {world} ranks are in the mesh"
    if root.get_coordinate() is not None:
        return words
    return f"{words}; rank {dist.get_rank()} is in none"


def _process(mesh: Mapping[str, int]) -> tuple[str, bool]:
    """What the process is, in words, and whether it is alone."""
    dist: Held = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        rank = os.environ.get("RANK", "")
        world = os.environ.get("WORLD_SIZE", "")
        if rank.isdecimal() and world.isdecimal() and int(world) > 1:
            return (
                f"rank {int(rank)} of {int(world)} by its environment, torch.distributed not initialised",
                False,
            )
        return "one process, torch.distributed not initialised", True
    axes = ""
    if mesh:
        axes = f", mesh {' '.join(f'{axis}={n}' for axis, n in mesh.items())}"
    fake = ""
    if dist.get_backend() == "fake":
        fake = ", a fake process group"
    return f"rank {dist.get_rank()} of {dist.get_world_size()}{axes}{fake}", dist.get_world_size() == 1
