"""What live facts say by themselves: ranks in no mesh, an index past a length, a plain tensor and a DTensor.

Each holds by the numbers that the frame has. Where a cut can only be supposed, the sentence says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from llamapar.records.frames import Held, is_exactly, tensor_shape, torch_class

from .explanation import Explanation
from .hypothesis import LIKELY
from .live_facts import LiveFacts
from .vocabulary import NOT_SHARDING, SHARDING, UNKNOWN

_BEYOND = re.compile(r"index (\d+) is out of bounds for dimension \d+ with size (\d+)")
_MIXED = "got mixed torch.Tensor and DTensor"
_MOST = 2**20
"""Entries of an index that are looked at."""


def concluded(found: Explanation, error: BaseException, facts: LiveFacts) -> Explanation:
    """The explanation with what the facts say, as its sentence where nothing better is known."""
    if _MIXED in str(error) and (mixed := next(_mixed(facts), "")):
        return replace(found, verdict=SHARDING, reason=mixed, what=mixed, diagnoses=(), level=LIKELY)
    said = _index(error, facts) or facts.outside
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


def _index(error: BaseException, facts: LiveFacts) -> str:
    """An index against the length that it is past; "" without one."""
    if (message := _BEYOND.search(str(error))) is not None:
        index = int(message[1])
        length = int(message[2])
    elif isinstance(error, IndexError):
        index, length = _of_embedding(error)
    else:
        return ""
    if not length <= index:
        return ""
    for axis, n in facts.degrees.items():
        if index < length * n:
            rank = index // length
            return (
                f"index {index} of {length}: if these are one of {axis} = {n} equal parts, rank {rank} has it"
            )
    return f"index {index} of {length}: the last one is {length - 1}"


def _of_embedding(error: BaseException) -> tuple[int, int]:
    """The largest index that torch's embedding was given, and the rows of its table; (-1, 0) of another."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    names = trace.tb_frame.f_locals if trace is not None else {}
    ids: Held = names.get("input")
    shape = tensor_shape(names.get("weight"))
    name = trace.tb_frame.f_code.co_name if trace is not None else ""
    tensor = torch_class("Tensor")
    if name != "embedding" or not is_exactly(ids, tensor) or not shape:
        return -1, 0
    if ids.device.type != "cpu" or not 0 < ids.numel() <= _MOST:
        return -1, 0
    return int(ids.max()), shape[0]
