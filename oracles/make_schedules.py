"""schedules.json: the order of operations of torch's pipeline schedules, a digest for each case.

    pip install torch==2.13.0
    python oracles/make_schedules.py

Each schedule class of torch.distributed.pipelining is made with stages that hold nothing, as rank 0 makes it,
and its table of actions for all ranks is read. Pauses and the closing REDUCE_GRAD are left out, an overlapped
pair is its two halves. A case is [schedule, pp, stages of a rank, micro-batches, digest or torch's refusal].

torch's listing of Schedule1F1B is wrong by itself: the last rank's forwards are numbered 1 to M. Its
execution counts them from 0 (`_step_microbatches`), so the listing is corrected here.
"""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

from torch.distributed.pipelining import schedules

from fixture import write

CLASSES = {
    "gpipe": schedules.ScheduleGPipe,
    "1f1b": schedules.Schedule1F1B,
    "interleaved-1f1b": schedules.ScheduleInterleaved1F1B,
    "looped-bfs": schedules.ScheduleLoopedBFS,
    "interleaved-zero-bubble": schedules.ScheduleInterleavedZeroBubble,
    "zbv": schedules.ScheduleZBVZeroBubble,
    "dualpipev": schedules.ScheduleDualPipeV,
}
PP = (2, 3, 4, 5, 8, 11, 16)
MICRO_BATCHES = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 20, 24, 31, 32, 33, 48, 63, 64)
STAGES = {"gpipe": (1,), "1f1b": (1,), "zbv": (2, 3), "dualpipev": (2, 3)}


def digest(rows: list[list[str]]) -> str:
    """The first 16 hexadecimal digits of SHA-256 over the rows, one a line."""
    text = "\n".join(" ".join(row) for row in rows)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def table(name: str, pp: int, v: int, many: int) -> list[list[str]]:
    """torch's own rows, as texts such as "0F0"; raises what torch raises."""
    held = [
        SimpleNamespace(group_size=pp, group_rank=0, num_stages=pp * v, stage_index=s, submod=None)
        for s in range(v)
    ]
    made: Any = CLASSES[name](held[0] if name in ("gpipe", "1f1b") else held, many)
    rows = []
    for rank in range(pp):
        actions = [part for a in made.pipeline_order[rank] if a for part in (a.sub_actions or (a,))]
        kept = [a for a in actions if a.is_compute_op]
        if name == "1f1b" and rank == pp - 1:
            late = [a.microbatch_index for a in kept if a.computation_type == schedules.FORWARD]
            if late != list(range(1, many + 1)):
                raise AssertionError(f"the listing of Schedule1F1B has changed: {late}")
            kept = [
                a._replace(microbatch_index=a.microbatch_index - 1)
                if a.computation_type == schedules.FORWARD
                else a
                for a in kept
            ]
        rows.append([f"{a.stage_index}{a.computation_type.value}{a.microbatch_index}" for a in kept])
    return rows


def case(name: str, pp: int, v: int, many: int) -> list[Any]:
    try:
        return [name, pp, v, many, digest(table(name, pp, v, many))]
    except (ValueError, AssertionError) as refusal:
        return [name, pp, v, many, " ".join(str(refusal).split())]


if __name__ == "__main__":
    cases = [
        case(name, pp, v, many)
        for name in CLASSES
        for pp in PP
        for v in STAGES.get(name, (2, 3, 4))
        for many in MICRO_BATCHES
    ]
    write(__file__, cases, packages=("torch",))
