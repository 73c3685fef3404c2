"""What the ranks of a run sent, beside what the formulas say of it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import llamapar as lp
from llamapar.count.wire import Traffic
from llamapar.records.trace import Trace


def said_of(result: Any, rank: int = 0) -> Traffic:
    """What `lp.traffic` says of a rank of a run, or of a dry run."""
    setting = result.task.setting
    pipeline: dict[str, Any] = {"schedule": setting.schedule, "micro_batches": setting.micro_batches}
    return lp.traffic(
        result.task.program.name,
        setting.model,
        setting.layout,
        seq_len=setting.seq_len,
        global_batch=setting.global_batch,
        dtype=setting.dtype,
        kv_replication=setting.kv_replication,
        padding=setting.padding,
        cp_method=setting.cp_method,
        reshard_after_forward=setting.reshard_after_forward,
        rank=rank,
        **(pipeline if setting.schedule else {}),
    )


def agree(trace: Trace, said: Traffic, steps: int = 1) -> None:
    """The same collectives in each of the steps, hence the same bytes however they are added up."""
    formulas = Counter[tuple[str, str, str, int, int]]()
    for t in said.terms:
        formulas[t.phase, t.axis, t.kind, t.payload, t.sent // t.count] += steps * t.count
    found = Counter((e.phase, e.axis, e.kind, e.payload, e.sent) for e in trace.events)
    assert found == formulas, f"rank {trace.rank} sent {found - formulas} and not {formulas - found}"
    assert steps * sum(said.by_axis.values()) == trace.bytes() == steps * said.bytes()
    assert {axis: steps * size for axis, size in said.by_axis.items()} == trace.by_axis
    sent = {(e.phase, e.axis): trace.bytes(e.axis, e.phase) for e in trace.events}
    assert sent == {key: steps * size for key, size in said.by_phase.items()}


def check_sent(result: Any, steps: int = 1) -> None:
    """Every rank sent what the formulas say of it."""
    for rank, trace in result.traces.items():
        agree(trace, said_of(result, rank), steps)
