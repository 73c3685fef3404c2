"""Gradients of a run held against those that torch's own way of doing the same makes, rank by rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from llamapar.execution.engines import pool, processes
from llamapar.execution.result import Result


def check_gradients(result: Result, by_torch: Callable[..., Any], rtol: float) -> None:
    """by_torch(context, task) on each rank of the run: (gradients by name, times)."""
    assert result.ok, str(result)
    ranks = pool.pool(result.layout.world, preload=processes.PRELOAD)
    for answer in ranks.run(by_torch, result.task, timeout=60):
        assert answer.error is None, answer.traceback
        theirs, _ = answer.value
        ours = result.gradients[answer.rank]
        assert set(theirs) == set(ours)
        for name, gradient in ours.items():
            torch.testing.assert_close(theirs[name], gradient, rtol=rtol, atol=1e-15)
