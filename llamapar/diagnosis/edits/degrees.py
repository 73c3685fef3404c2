"""Numbers of ranks in reach of a failing line: names, attributes, keys, meshes, the process group.

An object's attributes are read where it stores them, so nothing of the user's is called.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from types import ModuleType
from typing import NamedTuple

from llamapar.diagnosis.known import Known
from llamapar.diagnosis.live_facts import mesh_axes
from llamapar.diagnosis.meetings import DifferingSizes
from llamapar.diagnosis.observations import Matmul, Pair, ViewCall, shape_observations
from llamapar.diagnosis.reading import Reading
from llamapar.records.frames import MISSING, Held, attribute, classes, is_a, stored, torch_class

_SPELLINGS = {
    "tp": "tp tp_size tp_degree tp_world_size mp mp_size tensor_parallel tensor_parallel_size "
    "tensor_model_parallel_size world world_size n_ranks num_ranks n_shards num_shards",
    "cp": "cp cp_size cp_degree context_parallel_size sp sp_size",
    "dp": "dp dp_size dp_degree data_parallel_size",
    "pp": "pp pp_size pp_degree pipeline_parallel_size n_stages num_stages",
    "ep": "ep ep_size expert_parallel_size",
}
AXIS = {name: axis for axis, names in _SPELLINGS.items() for name in (*names.split(), *names.upper().split())}
"""Name of a number of ranks → its axis."""

RATIO = "ratio"
"""The axis of a degree that only two clashing sizes suggest."""

_LARGEST_RATIO = 64


class Degree(NamedTuple):
    """A number of ranks: how the code writes it, its value, and its axis."""

    text: str
    n: int
    axis: str

    @property
    def root(self) -> str:
        """The name with which the code's text begins."""
        return re.split(r"\W", self.text)[0]


def holds_degrees(value: Held) -> list[str]:
    """The names of numbers of ranks that an object, its class, or a dict has."""
    if type(value) is dict:
        return [name for name in AXIS if name in value]
    if value is None or isinstance(value, type | ModuleType) or is_a(value, torch_class("Tensor")):
        return []
    names = AXIS.keys() & stored(value).keys()
    for _, defined in classes(value):
        names |= AXIS.keys() & defined.keys()
    return sorted(names)


def degree_in(value: Held, name: str) -> int | None:
    """A number of ranks that an object or a dict has under a name; None if it is no integer."""
    n = value[name] if type(value) is dict else attribute(value, name)
    if type(n) is int:
        return n
    return None


def _in_names(names: Mapping[str, Held]) -> Iterator[Degree]:
    """The degrees that names refer to, and those of the objects they refer to."""
    for name, axis in AXIS.items():
        if type(n := names.get(name)) is int:
            yield Degree(name, n, axis)
    for name, value in list(names.items()):
        if name.startswith("_"):
            continue
        for key in holds_degrees(value):
            n = degree_in(value, key)
            text = f'{name}["{key}"]' if type(value) is dict else f"{name}.{key}"
            if n is not None:
                yield Degree(text, n, AXIS[key])
        for axis, n in mesh_axes(value).items():
            yield Degree(f'{name}["{axis}"].size()', n, AXIS.get(axis, axis))


def degrees_in_reach(
    message: str, near: Collection[str], *scopes: Mapping[str, Held]
) -> tuple[list[Degree], bool]:
    """The degrees above 1, those of the innermost names first, and whether the failing lines rest on them.

    near: the names on which these lines rest. Where none of them is a degree, all in reach are given, and
    without any the ratio of the two sizes that clash.
    """
    everything = [degree for names in scopes for degree in _in_names(names) if degree.n > 1]
    # Another number of ranks in a notebook has nothing to do with these lines.
    mine = [degree for degree in everything if degree.root in near]
    found: dict[tuple[str, int], Degree] = {}
    for degree in mine or everything:
        found.setdefault((degree.axis, degree.n), degree)
    if (n := group_size()) > 1:
        found.setdefault(("tp", n), Degree("dist.get_world_size()", n, "tp"))
    if not found:
        reading = Reading.of(message)
        sizes = (seen for seen in shape_observations(reading) if isinstance(seen, ViewCall | Matmul | Pair))
        # How often one of two sizes that should be equal contains the other.
        ratio = next((DifferingSizes.of(seen, reading, Known()).ratio for seen in sizes), 0)
        if 1 < ratio <= _LARGEST_RATIO:
            found[RATIO, ratio] = Degree(str(ratio), ratio, RATIO)
    return list(found.values()), bool(mine)


def group_size() -> int:
    """The ranks of the process group; 1 without one."""
    dist: Held = sys.modules.get("torch.distributed")
    grouped = dist is not None and dist.is_available() and dist.is_initialized()
    if grouped:
        return dist.get_world_size()
    return 1


def own_rank(axis: str, names: Mapping[str, Held]) -> tuple[str, int]:
    """How the code writes this rank's number on an axis, and what it is; ("0", 0) if no name says."""
    me = names.get("self", MISSING)
    for name in (f"{axis}_rank", "rank"):
        if type(n := names.get(name)) is int:
            return name, n
        if type(n := attribute(me, name)) is int:
            return f"self.{name}", n
    return "0", 0


def named_degree(node: ast.AST) -> bool:
    """Whether an expression is a name, an attribute or a key of a number of ranks."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value in AXIS
    return getattr(node, "id", getattr(node, "attr", "")) in AXIS
