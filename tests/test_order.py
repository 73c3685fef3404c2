"""The order of what a rank sends, against the traces of runs, which the same formulas do not know of."""

from __future__ import annotations

from typing import Any

import pytest

import llamapar as lp
from llamapar.count.wire import sending
from llamapar.flight.order import collectives_in_order

RUNS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("llama", {"tp": 2, "cp": 2}, {}),
    ("llama", {"tp": 2, "sequence_parallel": False}, {}),
    ("llama", {"tp": 2, "cp": 2}, {"cp_method": "ring"}),
    ("step", {"tp": 2, "pp": 2, "dp": 2, "zero": 3}, {"micro_batches": 4}),
    ("step", {"pp": 2, "cp": 2, "tp": 2}, {"micro_batches": 4, "schedule": "gpipe"}),
    ("step", {"tp": 2, "dp": 2, "zero": 1}, {"micro_batches": 2}),
    ("llama", {"tp": 2, "pp": 2}, {"micro_batches": 4, "schedule": "interleaved-zero-bubble"}),
    ("step", {"tp": 2, "pp": 2, "dp": 2}, {"micro_batches": 4, "schedule": "interleaved-1f1b"}),
    ("step", {"tp": 2, "pp": 2, "dp": 2, "zero": 2}, {"micro_batches": 4, "schedule": "zbv"}),
    ("step", {"tp": 2, "pp": 2, "zero": 1}, {"micro_batches": 4, "schedule": "looped-bfs"}),
]


@pytest.mark.parametrize(
    ("program", "layout", "options"),
    [*RUNS[:1], *(pytest.param(*run, marks=pytest.mark.soak) for run in RUNS[1:])],
    ids=str,
)
def test_the_order_is_that_of_a_run(program: str, layout: dict[str, Any], options: dict[str, Any]) -> None:
    model = lp.model("tiny") if layout.get("pp", 1) > 1 else lp.model("tiny").replace(n_layers=2)
    sequences = layout.get("dp", 1) * options.get("micro_batches", 1)
    options = {"global_batch": sequences, **options}
    traces = lp.run(program, model, layout, seq_len=16, **options).traces
    for rank in (0, len(traces) - 1):
        found = collectives_in_order(sending(program, model, layout, 16, rank=rank, **options))
        for axis in ("tp", "cp", "dp"):
            ran = [(e.kind, e.bytes, e.phase) for e in traces[rank].events if e.axis == axis]
            assert [(one.kind, one.bytes, one.phase) for one in found if one.axis == axis] == ran


def test_a_collective_says_what_it_belongs_to() -> None:
    whole = collectives_in_order(sending("llama", "tiny", {"tp": 2}, 16))
    assert [str(one) for one in whole[:4]] == [
        "the embedding, forward",
        "layer 0's attention, forward",
        "layer 0's attention, forward",
        "layer 0's MLP, forward",
    ]
    passes = [str(one) for one in whole if one.phase != "gradients"]
    assert passes[-3:] == ["layer 0's attention, backward"] * 2 + ["the embedding, backward"]
    assert {str(one) for one in whole} >= {"the loss, forward", "the output layer, backward", "the gradients"}
    steps = collectives_in_order(sending("step", "tiny", {"tp": 2, "pp": 2}, 16, rank=2, micro_batches=2))
    assert str(steps[0]) == "layer 2's attention, forward, micro-batch 0"
    assert str(steps[-1]) == "the norm of the gradients"
