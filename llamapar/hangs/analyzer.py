"""torch's own analyzer of flight records, which compares the calls of a group's ranks.

`torch.distributed.flight_recorder` is what `torchfrtrace` runs. Its reader unpickles a file, and its table of
groups evaluates a text of the file, so both execute what a hostile dump says. Here it gets neither: calls are
values that `dumps` has read, and the members of a group are a set of ints.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from llamapar.errors import install, printable
from llamapar.records.tables import Plain

from .dumps import VERSION, CollectiveCall, Dump
from .groups import Group

if TYPE_CHECKING:
    from torch.distributed.flight_recorder.components.types import Collective

MOST_CALLS = 256
"""Most calls of a rank in a group that are compared, its last ones. NCCL hangs at the first that differs."""

_SPEAKER = logging.getLogger("Flight Recorder")


class CannotCompare(Exception):
    """The analyzer is not installed, or stops; the message says which."""


def differing_calls(groups: Mapping[str, Group], dumps: Mapping[int, Dump]) -> dict[str, str]:
    """Group's name → the first of its calls in which ranks differ, as torch's analyzer says.

    Raises CannotCompare.
    """
    found = dict[str, str]()
    calls = defaultdict[tuple[str, int], list[Plain]](list)
    for rank, dump in dumps.items():
        for call, number, _ in dump.calls:
            if not call.point:
                calls[call.group, rank].append(_entry(call, number))
    _SPEAKER.disabled = True  # it logs what it finds, and asks for packages
    try:
        from torch.distributed.flight_recorder.components import builder, types, utils

        for name, group in groups.items():
            last = {rank: calls[name, rank][-MOST_CALLS:] for rank in group.ranks if rank in dumps}
            # Ring buffers may have lost their beginnings, so the first call is one that all have.
            entries = utils.align_trace_from_beginning(last)
            table = {name: types.Group(id=name, desc=group.label, size=len(group.ranks))}
            of_rank = {(name, rank): name for rank in entries}
            members = {name: {*group.ranks}}
            _, made, _ = builder.build_collectives(entries, table, members, of_rank, f"{VERSION}.10")
            wrong = (one for one in made if one.missing_ranks or one.mismatch_collectives)
            if first := next(wrong, None):
                found[name] = _in_words(first)
    except ImportError:
        what = "torch's analyzer of flight records, which compares calls, is not installed"
        raise CannotCompare(f"{what}: {install('run')}") from None
    except Exception as problem:  # It asserts, and indexes, what it expects of a record.
        words = printable(str(problem))[:200]
        raise CannotCompare(f"torch's analyzer stops: {type(problem).__name__}: {words}") from None
    finally:
        _SPEAKER.disabled = False
    return found


def _entry(call: CollectiveCall, number: int) -> Plain:
    # The analyzer compares a list of outputs only under the other name.
    op = call.op
    if op == "all_gather":
        op = "all_gather_v"
    return {
        "process_group": (call.group, call.label),
        "profiling_name": f"nccl:{op}",
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "record_id": number,
        "is_p2p": False,
        "input_sizes": [*map(list, call.inputs)],
        "output_sizes": [*map(list, call.outputs)],
        "input_dtypes": [*call.dtypes],
        "output_dtypes": [*call.dtypes],
        "state": "",  # a call that has ended on some ranks only is no other call
        "time_created_ns": 0,
    }


def _in_words(call: Collective) -> str:
    """What the analyzer says of a collective whose ranks differ."""
    told = dict.fromkeys(call.missing_ranks or (), "MISSING")
    for rank, other in (call.mismatch_collectives or {}).items():
        if kind := other.type_of_mismatch:
            told[rank] = kind.state.name
    op = call.collective_name.removeprefix("nccl:").replace("all_gather_v", "all_gather")
    ranks = ", ".join(f"rank {rank} {told[rank]}" for rank in sorted(told)[:8])
    return f"{op} #{call.collective_seq_id}: {ranks}"
