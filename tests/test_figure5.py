"""The Llama 3 paper's Figure 5: 16 GPUs, every axis 2, as the layout and the picture have it."""

from __future__ import annotations

import json
from pathlib import Path

import llamapar as lp

FIXTURE = Path(__file__).parent / "oracles" / "figure5.json"


def test_gpu_0_has_the_peers_that_the_paper_draws() -> None:
    (case,) = json.loads(FIXTURE.read_text(encoding="utf-8"))["cases"]
    layout = lp.Layout(**case["layout"])
    assert (layout.order, layout.world) == (case["order"], case["world"])
    record = lp.ranks(layout, case["rank"])
    assert {axis: list(group) for axis, group in record.peers.items()} == case["groups"]
    summary = lp.view(record).summary
    for axis, group in case["groups"].items():
        line = next(line for line in summary.splitlines() if f"{axis.upper()} group" in line)
        assert ", ".join(map(str, group)) in line
