"""What the ranks of a run sent, beside what the formulas say of it."""

from __future__ import annotations

from typing import Any

import llamapar as lp
from llamapar.execution.run_result import RunResult


def check_bytes(result: RunResult, steps: int = 1) -> None:
    """Every rank sent what `lp.traffic` says, phase by phase and axis by axis, in each of the steps."""
    program, setting = result.task.program.name, result.task.setting
    pipeline: dict[str, Any] = {"schedule": setting.schedule, "micro_batches": setting.micro_batches}
    for rank, trace in result.traces.items():
        said = lp.traffic(
            program,
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
        sent = {(e.phase, e.axis): trace.bytes(e.axis, e.phase) for e in trace.events}
        assert sent == {key: steps * size for key, size in said.by_phase.items()}, (setting.layout, rank)
