"""Live pictures of a job's costs: schedule, memory, ZeRO, time, traffic, and the inside of a layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from llamapar.count import Memory, memory
from llamapar.count.reconciliation import by_step
from llamapar.count.terms import GIB, TOO_MUCH, UNDECIDED
from llamapar.count.wire import Traffic, traffic
from llamapar.count.zero_map import ZeroMap, zero
from llamapar.describe.hardware import DEFAULT_GPU
from llamapar.describe.options import OPTIONS
from llamapar.figures.memory import needs_in_words
from llamapar.figures.wording import listed
from llamapar.place.orders import ORDERS
from llamapar.place.pipeline import Schedule
from llamapar.place.schedule import schedule
from llamapar.place.shards import SHARED_FROM
from llamapar.records.tables import human, plural, three_digits
from llamapar.timing.cost import Cost, cost
from llamapar.timing.inside import BACKWARD, FORWARD, LayerSteps, inside

from .ladders import Subject, degrees, of_model

NAMED = 3
"""Terms of a step that a sentence names, the largest."""

_TRAINED = {"model": "llama3-8b", "tp": 1, "cp": 1, "pp": 1, "dp": 1}
_TP = of_model("n_heads", 64)
_PP = of_model("n_layers", 64)
_CP = degrees(64)


# -- schedule --------------------------------------------------------------------------------------


def _schedule_says(record: Schedule) -> str:
    line = record.timeline()
    several = f" of {record.virtual_stages} stages" if record.virtual_stages > 1 else ""
    return (
        f"{plural(record.micro_batches, 'micro-batch')} over {plural(record.pp, 'rank')}{several}: a rank is "
        f"idle {line.idle_share:.1%} of the step, and holds the activations of at most "
        f"{plural(max(record.in_flight), 'forward')} at a time."
    )


# -- memory ----------------------------------------------------------------------------------------


def _memory_mark(outcome: str) -> Callable[[Memory], str]:
    """The words beside the mark of a rung with this outcome; "" for the others."""

    def words(record: Memory) -> str:
        needs = f"{record.low_bytes / GIB:.1f} to {record.high_bytes / GIB:.1f} GiB"
        has = f"{record.gpu} has {record.hbm_bytes / GIB:.1f} GiB"
        return f"{needs}, and {has}" if record.outcome == outcome else ""

    return words


def _memory_says(record: Memory) -> str:
    parts = by_step(record.worst)
    return (
        f"{needs_in_words(record)} Weights, gradients and optimizer states take "
        f"{parts['states'] / GIB:.1f} GiB, activations {parts['activations'] / GIB:.1f} GiB."
    )


# -- ZeRO ------------------------------------------------------------------------------------------


def _held(record: ZeroMap) -> dict[str, int]:
    """Bytes on the first rank of the group, which is the fullest."""
    return {what: record.held(what, 0) for what in SHARED_FROM}


def _zero_says(record: ZeroMap) -> str:
    parts = []
    for what, size in _held(record).items():
        shared = record.cut.shards.cuts(what) and record.ways > 1
        part = f"1/{record.ways}" if shared else "all"
        parts.append(f"{part} of the {what} ({human(size)})")
    sent = sum(move.bytes for move in record.moves)
    travels = f"it sends {human(sent)} in a step" if sent else "nothing travels"
    return f"A rank holds {listed(parts)}; {travels}."


# -- time ------------------------------------------------------------------------------------------


def _cost_says(record: Cost) -> str:
    shares = Counter({name: n / record.step_seconds for name, n in record.seconds.items()})
    most = listed([f"{name} {part:.0%}" for name, part in shares.most_common(NAMED)])
    return (
        f"A step of {record.tokens:,} tokens takes {three_digits(record.step_seconds)} s on "
        f"{plural(record.layout.world, 'GPU')} ({record.spread.told(record.step_seconds)}): {most}."
    )


# -- traffic ---------------------------------------------------------------------------------------


def _traffic_says(record: Traffic) -> str:
    if not record.terms:
        return "Nothing travels: no axis of more than one rank communicates here."
    axes = listed([f"{human(n)} over {axis.upper()}" for axis, n in record.by_axis.items()])
    times = sum(term.count for term in record.terms)
    return f"A rank takes part in {plural(times, 'collective')} and sends {axes}."


# -- inside a layer --------------------------------------------------------------------------------


def _waits(record: LayerSteps) -> dict[str, float]:
    """Axis → the part of a layer's time that a rank waits for its group."""
    whole = record.seconds(FORWARD) + record.seconds(BACKWARD)
    by = {axis: sum(s.seconds for s in record.steps if s.axis == axis) / whole for axis in ("tp", "cp")}
    return {axis: part for axis, part in by.items() if part}


def _inside_gives(record: LayerSteps) -> str:
    milliseconds = 1e3 * (record.seconds(FORWARD) + record.seconds(BACKWARD))
    return f"{milliseconds:.3g} ms, {sum(_waits(record).values()):.0%} waiting"


def _inside_says(record: LayerSteps) -> str:
    forward, backward = (1e3 * record.seconds(phase) for phase in (FORWARD, BACKWARD))
    said = f"A layer takes {forward:.3g} ms forward and {backward:.3g} ms backward on {record.gpu}"
    waits = [f"{part:.0%} of the time for its {axis.upper()} group" for axis, part in _waits(record).items()]
    return f"{said}; a rank waits {listed(waits)}." if waits else f"{said}; nobody waits."


JOBS = {
    "schedule": Subject(
        schedule,
        {"name": "1f1b", "pp": 4, "micro_batches": 8, "virtual_stages": None, "nc": None},
        {"name": tuple(ORDERS), "pp": degrees(16), "micro_batches": degrees(64)},
        lambda record: f"idle {record.timeline().idle_share:.0%}, {max(record.in_flight)} in flight",
        _schedule_says,
    ),
    "memory": Subject(
        memory,
        {**_TRAINED, "zero": 1, "recompute": "selective", "seq_len": 8192, "micro_batch": 1}
        | {"gpu": DEFAULT_GPU, "framework": None},
        {"tp": _TP, "pp": _PP, "zero": range(4), "recompute": OPTIONS["recompute"].choices},
        lambda record: f"{record.expected_bytes / GIB:.1f} GiB",
        _memory_says,
        _memory_mark(TOO_MUCH),
        doubt=_memory_mark(UNDECIDED),
        legend="no mark: nine of ten runs fit; ? may fit; ✕ does not fit",
    ),
    "zero": Subject(
        zero,
        {"model": "llama3-8b", "zero": 1, "dp": 1, "tp": 1, "cp": 1, "pp": 1},
        {"zero": range(4), "dp": degrees(128)},
        lambda record: human(sum(_held(record).values())),
        _zero_says,
    ),
    "cost": Subject(
        cost,
        {**_TRAINED, "recompute": "selective", "seq_len": 8192, "micro_batch": 1, "gpu": DEFAULT_GPU},
        {"tp": _TP, "pp": _PP, "recompute": OPTIONS["recompute"].choices},
        lambda record: f"{three_digits(record.step_seconds)} s, MFU {record.mfu:.0%}",
        _cost_says,
    ),
    "traffic": Subject(
        traffic,
        {"program": "block", **_TRAINED, "seq_len": 8192},
        {"tp": _TP, "cp": _CP, "program": OPTIONS["program"].choices},
        lambda record: human(record.bytes()),
        _traffic_says,
    ),
    "inside": Subject(
        inside,
        {"model": "llama3-8b", "tp": 1, "cp": 1, "cp_method": "all_gather", "seq_len": 8192}
        | {"micro_batch": 1, "gpu": DEFAULT_GPU},
        {"tp": _TP, "cp": _CP, "cp_method": OPTIONS["cp_method"].choices},
        _inside_gives,
        _inside_says,
    ),
}
"""Name of the function → its live picture."""
