"""The picture of a rank's memory over its operations: bars that add up, the peak's curve, its collectives."""

from __future__ import annotations

import json
from typing import Any

import pytest

import llamapar as lp
from llamapar.figures import style
from llamapar.records.curve import MemoryCurve, OperationMemory, Span, readable_bytes, unit_of
from llamapar.records.trace import CollectiveEvent

GATHER = CollectiveEvent("all_gather", "tp", (0, 1), (4, 8), "float32", 128, "forward")
SUM = CollectiveEvent("all_reduce", "dp", (0, 2), (8,), "float32", 32, "gradients")

FORWARD = OperationMemory(
    (100, 340, 300), ((1, GATHER),), 340, "mm", {"workspace: mm": 340}, {"activations: MLP": 300}
)
BACKWARD = OperationMemory(
    (50, -300, -100), (), 50, "mm", {"workspace: mm": 50}, {"activations: MLP": -300, "gradients": 200}
)
SMALL = MemoryCurve(
    "llama, tp=2: memory of rank 0 over its operations",
    {"parameters": 2048, "inputs": 16},
    (
        Span("F of micro-batch 0 on stage 0", 2064, FORWARD),
        Span("B of micro-batch 0 on stage 0", 2364, BACKWARD),
        Span("F of micro-batch 1 on stage 0", 2264, FORWARD, measured=False),
        Span("sums of gradients over ranks", 2564, OperationMemory((32,), ((0, SUM),), 32, "all_reduce")),
    ),
)


def bars(record: MemoryCurve) -> dict[str, list[float]]:
    return {t["name"]: t["y"] for t in lp.view(record).spec["data"] if t["type"] == "bar"}


def test_the_peak_is_found_and_named() -> None:
    assert (SMALL.peak_at, SMALL.peak_bytes) == (2, 2604)
    assert SMALL.peak == "F of micro-batch 1 on stage 0, operation 3 of 4, in mm"
    assert SMALL.alive == {"parameters": 2048, "workspace: mm": 340, "gradients": 200, "inputs": 16}
    assert sum(SMALL.alive.values()) == SMALL.peak_bytes
    assert MemoryCurve("nothing", {"parameters": 4}, ()).peak_bytes == 4
    read = [readable_bytes(n) for n in (0, 1023, 1024, 3 * 2**29)]
    assert read == ["0 B", "1023 B", "1.00 KiB", "1.50 GiB"]


def test_bars_are_what_each_operation_holds_at_its_most_and_the_peak_has_its_collectives() -> None:
    found = bars(SMALL)
    assert list(found) == ["parameters", "gradients", "activations", "workspace"]
    tops = [sum(heights) for heights in zip(*found.values(), strict=True)]
    assert [round(1024 * top) for top in tops] == [2404, 2414, 2604, 2564], "a part is rounded to 0.0001 KiB"
    line, mark = (t for t in lp.view(SMALL).spec["data"] if t["type"] == "scatter")
    assert [round(1024 * y) for y in line["y"]] == [2264, 2364, 2604, 2564]
    assert (mark["x"], mark["marker"]["color"]) == ([1], style.COLOURS["tp"])
    assert mark["hovertext"] == ["all_gather over tp · 128 B"]
    assert (line["yaxis"], mark["yaxis"]) == ("y2", "y2")


def test_a_training_step_shows_what_the_optimizer_keeps() -> None:
    held = {"parameters": 1024, "optimizer states": 2048, "master weights": 1024}
    scale = OperationMemory((64,), (), 64, "mul", {"workspace: mul": 64})
    found = bars(MemoryCurve("step", held, (Span("norm, clipping and AdamW", 4096, scale),)))
    shown = {name: round(1024 * heights[0]) for name, heights in found.items()}
    assert shown == {"parameters": 1024, "optimizer": 3072, "workspace": 64}


def test_the_words_of_the_picture_and_of_the_record() -> None:
    assert lp.view(SMALL).summary == (
        "llama, tp=2: memory of rank 0 over its operations\n"
        "  F of micro-batch 0 on stage 0: 2.35 KiB: parameters 2.00 KiB, workspace 356 B\n"
        "  B of micro-batch 0 on stage 0: 2.36 KiB: parameters 2.00 KiB, activations 300 B, workspace 66 B\n"
        "  F of micro-batch 1 on stage 0: 2.54 KiB: parameters 2.00 KiB, gradients 200 B, workspace 356 B\n"
        "  sums of gradients over ranks: 2.54 KiB: parameters 2.00 KiB, gradients 200 B, activations 300 B, "
        "workspace 16 B\n"
        "peak 2.54 KiB at F of micro-batch 1 on stage 0, operation 3 of 4, in mm: parameters 2.00 KiB, "
        "workspace: mm 340 B, gradients 200 B, inputs 16 B"
    )
    assert str(SMALL).splitlines()[1:3] == [
        "   operation                      before, KiB  most  after  collectives",
        "1  F of micro-batch 0 on stage 0  2.02         2.35  2.31   1 all_gather tp",
    ]


def test_a_run_is_drawn_as_its_curve_and_a_long_one_stays_small() -> None:
    run: Any = lp.run("llama", "tiny", lp.Layout(tp=2, pp=2), engine="dry", micro_batches=300, rank=3)
    view = lp.view(run)
    assert view.summary == lp.view(run.curve).summary
    assert "a bar is the highest of 8 operations in a row, of 601" in view.summary
    assert len(json.dumps(view.spec, indent=1)) < 60_000
    heights = bars(run.curve)
    assert all(len(own) == 76 for own in heights.values())  # 601 / 8
    spans, highest = run.curve.spans, [sum(each) for each in zip(*heights.values(), strict=True)]
    for at, height in enumerate(highest):
        most = max(span.most for span in spans[8 * at : 8 * at + 8])
        assert height == pytest.approx(most / unit_of(run.curve.peak_bytes)[1], abs=1e-3)
