"""What live facts say by themselves: ranks in no mesh, an index past a length, a plain tensor and a DTensor.

Each holds by the numbers that the frame has. Where a cut can only be supposed, the sentence says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from llamapar.records.frames import Held, is_exactly, raised_through, tensor_shape, torch_class

from .explanation import Explanation
from .hypothesis import LIKELY
from .live_facts import LiveFacts
from .vocabulary import NOT_SHARDING, SHARDING, UNKNOWN

_BEYOND = re.compile(r"index (\d+) is out of bounds for dimension \d+ with size (\d+)")
_MIXED = "got mixed torch.Tensor and DTensor"
_TABLES = {"embedding": ("input", "weight", 0), "cross_entropy": ("target", "input", 1)}
"""A function of torch → its indices and its table, by name, and the dim of the table that they count."""

_MOST = 2**20
"""Entries of an index that are looked at."""


def concluded(found: Explanation, error: BaseException, facts: LiveFacts) -> Explanation:
    """The explanation with what the facts say, as its sentence where nothing better is known."""
    if _MIXED in str(error) and (mixed := next(_mixed(facts), "")):
        return replace(found, verdict=SHARDING, reason=mixed, what=mixed, diagnoses=(), level=LIKELY)
    said = index_past(error, facts.degrees, {}) or facts.outside
    if not said:
        return found
    if found.verdict == NOT_SHARDING:
        return replace(found, reason=f"{found.reason}; {said}")
    is_open = found.verdict == UNKNOWN and not found.diagnoses
    if is_open:
        return replace(found, what=said)
    return replace(found, rivals=(*found.rivals, said))


def _mixed(facts: LiveFacts) -> Iterator[str]:
    """A plain tensor beside a DTensor, and how to make them meet."""
    plain = [one for one in facts.operands if not one.placement and one.shape]
    for other in (one for one in facts.operands if one.placement.startswith("DTensor")):
        mesh = f"{other.name}.device_mesh"
        whole = ", ".join(["Replicate()"] * other.placement.count(" over "))
        for one in plain:
            write = f"distribute_tensor({one.name}, {mesh}, [{whole}]), or {other.name}.to_local()"
            for cut in facts.cuts:
                if cut.operand == other.name and cut.part in one.shape and cut.whole not in one.shape:
                    write = f"DTensor.from_local({one.name}, {mesh}, [Shard({one.shape.index(cut.part)})])"
            yield f"{one.name} is a plain tensor and {other.name} a {other.placement}: write {write}"


def index_past(error: BaseException, degrees: Mapping[str, int], names: Mapping[str, Held]) -> str:
    """An index against the length that it is past; "" without one. names: among them that of all parts."""
    if (message := _BEYOND.search(str(error))) is not None:
        index = int(message[1])
        length = int(message[2])
    elif isinstance(error, IndexError):
        index, length = _of_table(error)
    else:
        return ""
    if not length <= index:
        return ""
    for axis, n in degrees.items():
        if index < length * n:
            # Another's value is only compared once it is known to be a number.
            called = [name for name, size in names.items() if type(size) is int and size == length * n]
            parts = f"equal parts of {called[0]} = {length * n}" if called else "equal parts"
            rank = index // length
            return f"index {index} of {length}: if these are one of {axis} = {n} {parts}, rank {rank} has it"
    return f"index {index} of {length}: the last one is {length - 1}"


def _of_table(error: BaseException) -> tuple[int, int]:
    """The largest index that a function of `_TABLES` was given, and the length of its table; else (-1, 0)."""
    frames = [at.tb_frame for at in raised_through(error)]
    if not frames or frames[-1].f_code.co_name not in _TABLES:
        return -1, 0
    indices, table, dim = _TABLES[frames[-1].f_code.co_name]
    ids: Held = frames[-1].f_locals.get(indices)
    shape = tensor_shape(frames[-1].f_locals.get(table)) or ()
    if not is_exactly(ids, torch_class("Tensor")) or len(shape) <= dim:
        return -1, 0
    if ids.device.type != "cpu" or ids.is_floating_point() or not 0 < ids.numel() <= _MOST:
        return -1, 0
    return int(ids.max()), shape[dim]
