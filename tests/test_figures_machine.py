"""The machine's picture: nodes and groups where the layout puts them, at any size."""

from __future__ import annotations

import json
import random

import llamapar as lp
from llamapar.describe.layout import AXES
from llamapar.figures.machine import WINDOW, Machine, picture


def test_markers_stand_in_the_nodes_of_the_groups_and_frames_are_nodes() -> None:
    draw = random.Random(5)
    for _ in range(60):
        tp, cp, pp, dp = (2 ** draw.randrange(5) for _ in AXES)
        layout = lp.Layout(tp=tp, cp=cp, pp=pp, dp=dp)
        rank, node = draw.randrange(layout.world), draw.choice([1, 4, 8, 72])
        machine = Machine(lp.ranks(layout, rank), node)
        spec, summary = picture(machine)
        marks = {trace["name"].split(" ")[0]: trace for trace in spec["data"] if trace["type"] == "scatter"}
        boxes = [trace for trace in spec["data"] if trace["type"] == "bar"]
        for axis in AXES:
            group = layout.group(axis, rank)
            if len(group) == 1:
                continue
            tiles = {rank // machine.tile for rank in group}
            trace = marks[axis.upper()]
            seen = {(x + y) // machine.tile for x, y in zip(trace["x"], trace["y"], strict=True)}
            assert seen <= tiles
            assert len(seen) == len(tiles) or "drawn" in trace["name"]
            assert f"{axis.upper()} group: {len(group)} ranks" in summary
        shown = [box["customdata"] for box in boxes]
        assert all(rank in members and len(members) <= WINDOW for members in shown)
        frames = sum(len({member // node for member in members}) for members in shown)
        assert len(spec["layout"]["shapes"]) == frames  # members ascend: a node's stand side by side
        assert f"stands in node {rank // node} of" in summary


def test_a_million_ranks_are_one_small_picture() -> None:
    machine = Machine(lp.ranks(lp.Layout(tp=8, cp=64, pp=16, dp=128), 2**19 + 77), 8)
    spec, _ = picture(machine)
    assert machine.tiles <= 2**11
    said = spec["layout"]["title"]["subtitle"]["text"].replace("<br>", " ")
    assert "one tile is a block of 64 nodes, 512 ranks" in said
    small, _ = picture(Machine(lp.ranks(tp=8, dp=4), 8))
    assert "one tile is a node, 8 ranks" in small["layout"]["title"]["subtitle"]["text"].replace("<br>", " ")
    assert len(json.dumps(spec)) < 40 * 1024
