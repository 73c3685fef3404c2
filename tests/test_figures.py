"""The pictures: summaries whole, bars that add up to what the record says, plain and small JSON."""

from __future__ import annotations

import base64
import itertools
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

import llamapar as lp
from inputs import models, oracle, words
from llamapar.describe.layout import MAX_WORLD, ORDERS
from llamapar.describe.splits import LAYER_SPLITS
from llamapar.errors import MAX_SIZE
from llamapar.figures import draw, scenes, style
from llamapar.place import HeadMap, SequenceMap, VocabMap
from llamapar.records.tables import cut
from llamapar.records.trace import PHASES
from test_imports import HEAVY, loaded

MIME = "application/vnd.plotly.v1+json"
BIG = "llama3.1-405b"
PAPER = lp.Layout(tp=8, cp=16, pp=16, dp=8)

REALISTIC = {
    "heads tp=8": lp.heads(BIG, lp.Layout(tp=8)),
    "heads tp=16": lp.heads(BIG, lp.Layout(tp=16)),
    "heads copied": lp.heads(BIG, lp.Layout(tp=16), kv_replication=True),
    "heads tiled": lp.heads(BIG, lp.Layout(tp=16), kv_replication=True, interleave=False),
    "heads 8b tp=6": lp.heads("llama3-8b", lp.Layout(tp=6)),
    "heads tp=128": lp.heads(BIG, lp.Layout(tp=128)),
    "heads tp=128 copied": lp.heads(BIG, lp.Layout(tp=128), kv_replication=True),
    "heads tp=128 tiled": lp.heads(BIG, lp.Layout(tp=128), kv_replication=True, interleave=False),
    "vocab colossalai": lp.vocab("llama3-70b", lp.Layout(tp=8), padding="colossalai"),
    "vocab megatron": lp.vocab("llama3-70b", lp.Layout(tp=8), padding="megatron"),
    "vocab none": lp.vocab("llama3-70b", lp.Layout(tp=8)),
    "vocab tp=7": lp.vocab("llama3-70b", lp.Layout(tp=7)),
    "vocab tp=128": lp.vocab(BIG, lp.Layout(tp=128), padding="megatron"),
    "sequence": lp.sequence(PAPER, 131072),
    "sequence contiguous": lp.sequence(PAPER, 131072, chunking="contiguous"),
    "sequence cp=1": lp.sequence(lp.Layout(), 131072),
    "sequence uneven": lp.sequence(lp.Layout(cp=4), 8191),
    "traded": lp.heads("llama3-8b", tp=2).traded(lp.sequence(cp=4, seq_len=8192)),
    "traded in groups": lp.heads(BIG, tp=8, kv_replication=True).traded(
        lp.sequence(cp=16, seq_len=131072), "ulysses:4"
    ),
    "stages": lp.stages(BIG, lp.Layout(pp=16)),
    "stages last": lp.stages(BIG, lp.Layout(pp=16), layer_split="remainder last"),
    "stages refused": lp.stages(BIG, lp.Layout(pp=16), layer_split="megatron"),
    "stages virtual": lp.stages(BIG, lp.Layout(pp=16, virtual_stages=8)),
    "ranks": lp.ranks(PAPER, 12345),
    "ranks 16": lp.ranks(lp.Layout(tp=2, cp=2, pp=2, dp=2), 5),
    "ranks long dp": lp.ranks(lp.Layout(tp=8, pp=16, dp=128), 12345),
    "ranks 1": lp.ranks(lp.Layout()),
    "block": lp.ranks(PAPER, 4711, model=BIG, seq_len=131072, global_batch=128),
    "block virtual": lp.ranks(PAPER.replace(virtual_stages=8), 4711, model=BIG, global_batch=128),
    "block wide dp": lp.ranks(tp=8, pp=16, dp=128, rank=6043, model=BIG, seq_len=8192, global_batch=2048),
    "block uneven": lp.ranks(tp=3, pp=5, cp=2, rank=22, model="llama3-8b", global_batch=7, seq_len=99),
    "block 1": lp.ranks(tp=1, model="llama3-8b"),
    "traffic block": lp.traffic("block", "llama3-8b", tp=8, cp=2, dp=4, seq_len=8192),
    "traffic step": lp.traffic("step", BIG, PAPER.replace(zero=2), seq_len=131072),
    "traffic none": lp.traffic("mlp", "tiny", tp=1, seq_len=64),
    "zero 0": lp.zero("tiny", lp.Layout(dp=4, zero=0)),
    "zero 2": lp.zero(BIG, PAPER.replace(zero=2), rank=12345),
    "zero 3": lp.zero("tiny", lp.Layout(dp=4, dp_replicate=2, cp=3, zero=3), parameter="norm"),
}
"""What the course and the panels show."""

ABSURD = {
    "heads": lp.heads(BIG, lp.Layout(tp=2**20)),
    "heads tiled": lp.heads(
        lp.model("tiny").replace(n_heads=2**16, n_kv_heads=2, head_dim=1),
        lp.Layout(tp=2**16),
        kv_replication=True,
        interleave=False,
    ),
    "heads many": lp.heads(
        lp.model("tiny").replace(n_heads=2**16, n_kv_heads=2**16, head_dim=1), lp.Layout()
    ),
    "vocab": lp.vocab(BIG, lp.Layout(tp=2**20), padding="megatron"),
    "sequence": lp.sequence(lp.Layout(cp=2**16), 2**30),
    "stages": lp.stages(lp.model("tiny").replace(n_layers=2**14), lp.Layout(pp=2**14)),
    "stages refused": lp.stages(BIG, lp.Layout(pp=2**20, virtual_stages=2**20)),
    "ranks": lp.ranks(lp.Layout(dp=2**20), 700000),
    "block": lp.ranks(lp.Layout(tp=2**8, cp=2**8, dp=2**8), 2**24 - 1, model="tiny"),
    "block cp": lp.ranks(lp.Layout(cp=2**16, pp=2**8), 70000, model="tiny", seq_len=2**30),
    "zero": lp.zero("tiny", lp.Layout(dp=2**16, zero=3), rank=70),
    "ranks square": lp.ranks(lp.Layout(tp=64, cp=64, pp=64, dp=64), 2**24 - 1),
}
EVERY = {**REALISTIC, **{f"absurd {name}": record for name, record in ABSURD.items()}}

CARTESIAN = {"scatter", "bar", "box", "heatmap", "histogram", "histogram2d", "histogram2dcontour", "image"}
CARTESIAN |= {"pie", "scatterternary", "violin", "contour"}
"""The kinds of traces in plotly.js-cartesian-dist-min, the page's, by its README."""


def test_the_page_without_an_install_can_draw_every_kind_of_trace() -> None:
    drawn = {
        trace.get("type", "scatter")
        for record in REALISTIC.values()
        for trace in lp.view(record).spec.get("data", [])
    }
    assert {"heatmap", "bar", "scatter"} <= drawn <= CARTESIAN


def stored_size(view: Any) -> int:
    """Bytes that the picture takes in a notebook's file."""
    kind = "text/html" if view.is_map else MIME
    notebook = {"cells": [{"outputs": [{"data": {kind: view._repr_mimebundle_()[kind]}}]}]}
    return len(json.dumps(notebook, indent=1, ensure_ascii=False).encode())


def traces(record: Any, **wanted: Any) -> list[dict[str, Any]]:
    return [t for t in lp.view(record).spec["data"] if all(t.get(k) == v for k, v in wanted.items())]


def total(found: list[dict[str, Any]]) -> float:
    return sum(sum(trace["x"]) for trace in found)


def plain(value: Any) -> bool:
    """Whether a value is made of dicts with text keys, lists, text, numbers and None, nothing else."""
    if type(value) is dict:
        return all(type(key) is str and plain(item) for key, item in value.items())
    if type(value) is list:
        return all(map(plain, value))
    return value is None or type(value) in (str, int, float, bool)


@pytest.mark.parametrize("name", [name for name in REALISTIC if name.startswith("traffic")])
def test_bars_of_traffic_are_as_long_as_its_bytes(name: str) -> None:
    record = REALISTIC[name]
    for axis in ("tp", "cp", "pp", "dp", "dp-cp"):
        assert total(traces(record, name=axis.upper())) == record.bytes(axis)
    for trace in traces(record):
        assert trace["marker"]["color"] == style.COLOURS[trace["name"].lower().partition("-")[0]]
    phases = lp.view(record).spec["layout"]["yaxis"]["ticktext"]
    assert phases == [phase for phase in PHASES if record.bytes(phase=phase)] or not record.bytes()


# -- summaries ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("heads tiled", "  …"),
        ("absurd vocab", "  rank 1048575: rows 134,217,600–134,217,727 (128), 128 pad rows"),
        ("absurd vocab", "pad rows are on ranks 1,002–1,048,575"),
        ("absurd vocab", "drawn are the first 127 of 1,048,576 ranks, and the last"),
        ("block", "  TP rank 7 of 8: 1/8 of the heads, heads 112–127"),
        ("block", "  CP rank 12 of 16: 1/16 of the tokens, tokens 49,152–53,247, 77,824–81,919"),
        ("block", "  DP rank 2 of 8: 1/8 of the batch, sequences 32–47"),
        ("traffic block", "  backward: tp 234,881,024 B, cp 4,194,304 B"),
        ("block virtual", "  PP rank 4 of 16: 8 of 126 layers, layers 3, 19, 35, …, 115"),
    ],
)
def test_a_long_summary_has_its_line(name: str, line: str) -> None:
    assert line in lp.view(EVERY[name]).summary.splitlines()


def test_a_refused_split_has_its_reason_and_no_layers() -> None:
    scene = lp.view(REALISTIC["stages refused"]).spec
    assert {shape[0] for shape in scene["shapes"]} == {"card"}
    assert (scene["says"], scene["warn"]) == ("126 layers do not divide over 16 stages.", True)
    empty = lp.view(lp.stages("llama3.1-405b", lp.Layout(pp=16, virtual_stages=8))).spec
    assert empty["says"] == "126 layers over 128 stages leave 2 stages without a layer."
    twice = lp.stages("llama3.1-405b", lp.Layout(pp=4, virtual_stages=2))
    assert "over pp=4 × 2 virtual, " in lp.view(twice).summary
    even = lp.view(lp.stages("llama3-8b", lp.Layout(pp=16), layer_split="equal")).spec
    assert even["says"] == "Each of the 16 stages holds 2 layers."
    assert empty["ranks"][0][2].startswith("PP rank 0: stage 0 has the embedding, stage 16 has")
    assert lp.view(REALISTIC["sequence"]).spec["says"].endswith("All ranks have the same work: nobody waits.")


# -- second witnesses: what is drawn adds up to the record -------------------------------------


def lane(record: Any, name: str) -> list[tuple[float, float, list[float], str]]:
    """(from, to, band, look) of the shapes of a lane, in order."""
    shapes = [tuple(shape[1:3] + shape[4:]) for shape in lp.view(record).spec["shapes"] if shape[0] == name]
    return sorted(shapes)  # type: ignore[arg-type]


def filled(record: Any, name: str) -> float:
    """The part of its lane that all shapes are."""
    return sum(stop - start for start, stop, *_ in lane(record, name))


def columns_of(record: Any) -> dict[int, tuple[float, float]]:
    return {rank: (left, right) for left, right, _, rank in lp.view(record).spec["ranks"]}


@pytest.mark.parametrize("tp", [1, 3, 8, 16, 24, 128])
@pytest.mark.parametrize("name", ["llama3.1-405b", "llama3.2-3b"])
def test_each_rank_has_its_heads_in_its_column_and_torn_edges_where_they_are_cut(name: str, tp: int) -> None:
    record = lp.heads(name, tp=tp)
    m, columns = record.model, columns_of(record)
    for rows_of, lane_name, whole in (("q_rows", "q", m.q_dim), ("kv_rows", "kv", m.kv_dim)):
        shapes = lane(record, lane_name)
        assert (shapes[0][0], shapes[-1][1]) == (0, 1)
        assert [one[0] for one in shapes[1:]] == [one[1] for one in shapes[:-1]]
        for start, stop, band, _ in shapes:
            [owner] = [
                r.rank
                for r in record.ranks
                if getattr(r, rows_of).start <= (start + stop) / 2 * whole < getattr(r, rows_of).stop
            ]
            assert columns[owner][0] - 1e-4 <= band[0] <= band[1] <= columns[owner][1] + 1e-4
    edges = [r.q_rows.start for r in record.ranks] + [r.q_rows.stop for r in record.ranks]
    edges += [r.kv_rows.start for r in record.ranks] + [r.kv_rows.stop for r in record.ranks]
    torn = sum(bool(edge % m.head_dim) for edge in edges)
    assert len(lp.view(record).spec["cuts"]) == (torn if tp <= scenes.TORN else 0)


def test_copies_wrong_ones_and_cut_heads_are_drawn_as_such() -> None:
    copied, tiled, cut = (REALISTIC[f"heads {name}"] for name in ("copied", "tiled", "tp=16"))
    assert {look for *_, look in lane(copied, "kv")} == {"tp0 copy", "tp1 copy"}
    numbers = [label[2] for label in lp.view(copied).spec["labels"] if "copy" in label[4]]
    assert numbers == [str(rank.kv_heads.start) for rank in copied.ranks]
    places = {
        rank: band
        for *_, band, look in lane(tiled, "kv")
        for rank, (a, b) in columns_of(tiled).items()
        if a <= band[0] < b and look == "wrong"
    }
    assert sorted(places) == tiled.wrong_ranks
    words = {rank: said for *_, said, rank in lp.view(tiled).spec["ranks"]}
    assert all(f"needs KV head {tiled.kv_needed(rank).start}, " in words[rank] for rank in tiled.wrong_ranks)
    # Each rank of a pair has a thread to the half of the other, and a band to its own.
    threads = [(one[3], one[5]) for one in lp.view(cut).spec["shapes"] if one[0] == "link"]
    assert sorted(threads) == sorted([(0, "link")] * 16 + [(1, "link far"), (-1, "link far")] * 8)
    assert words[1].startswith("TP rank 1: query heads 8–15, wq rows 1,024–2,047; KV head 1, needs KV head 0")


@pytest.mark.parametrize("name", [name for name in REALISTIC if name.startswith("vocab")])
def test_vocab_bars_are_all_rows(name: str) -> None:
    record = REALISTIC[name]
    rows, whole = lane(record, "rows"), lane(record, "whole")
    assert [one[:2] for one in rows] == [one[:2] for one in whole]
    assert filled(record, "rows") == pytest.approx(1, abs=1e-4)
    pads = sum(stop - start for start, stop, _, look in rows if look == "pad")
    assert pads * record.padded == pytest.approx(record.pad_rows, abs=1)
    for _, _, band, look in rows:
        assert band[1] - band[0] >= (0.1 * 0.88 / record.tp if look == "pad" else 0), "pads are seen"


@pytest.mark.parametrize("name", [name for name in REALISTIC if name.startswith("sequence")])
def test_triangle_and_bars_are_the_whole_work(name: str) -> None:
    record = REALISTIC[name]
    pixels = 84 / record.seq_len  # of a token, upwards
    area = sum(
        (x1 - x0) * (base - (left + right) / 2)
        for *_, (x0, x1, left, _, _, base, right), _ in lane(record, "pairs")
    )
    assert area * record.seq_len / pixels == pytest.approx(record.seq_len**2 / 2, rel=2e-3)
    assert filled(record, "chunks") == pytest.approx(1, abs=1e-4)
    bars = [band[1] - band[0] for *_, band, _ in lane(record, "work")]
    assert max(bars) / sum(bars) * record.cp == pytest.approx(record.imbalance, rel=5e-3)


def contrast(*colours: str) -> float:
    """Between two colours "#rrggbb", by WCAG 2.2."""
    lights = []
    for colour in colours:
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        lights.append(sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True)))
    return (max(lights) + 0.05) / (min(lights) + 0.05)


@pytest.mark.parametrize("axis", style.RAMPS)
@pytest.mark.parametrize("n", [2, 3, 4, 5, 16, 64])
def test_neighbours_are_told_apart_without_colour(axis: str, n: int) -> None:
    """By lightness alone, and no two ranks look the same."""
    shades = [style.alternate(axis, i, n) for i in range(n)]
    assert len(set(shades)) == n
    assert min(itertools.starmap(contrast, itertools.pairwise(shades))) >= 1.4


DOCUMENTS = lp.sequence({"cp": 4}, 8192, documents=(1000, 5000, 2192))


@pytest.mark.parametrize("chunking", ["head-tail", "contiguous"])
@pytest.mark.parametrize("documents", [None, (1000, 5000, 2192), (1,) * 64 + (8128,)])
def test_the_steps_of_a_ring_are_its_whole_work(chunking: str, documents: Any) -> None:
    """Every (query, key) pair, counted one by one, is met once, at the step that the ring's order says."""
    record = lp.sequence({"cp": 4}, 8192, chunking=chunking, documents=documents)
    steps = [record.at(step) for step in range(4)]
    for rank in range(4):
        parts = [step.rank(rank).pairs for step in steps]
        assert sum(parts) == record.rank(rank).pairs
    assert sum(rank.pairs for rank in record.ranks) == record.pairs
    for step in steps:
        for rank in step.ranks:
            theirs = [p for chunk in record.rank((rank.rank - step.ring_step) % 4).chunks for p in chunk]
            assert {keys.start in theirs for _, keys in rank.meets} <= {True}
        met = {copy for lane, _, _, copy, *_ in lp.view(step).spec["shapes"] if lane == "pairs"}
        assert met == {keys.start for rank in step.ranks for _, keys in rank.meets}


def test_seconds_of_a_long_step_have_no_exponent() -> None:
    step = lp.cost("llama3.1-70b", dp=8, recompute="full", seq_len=8192, global_batch=512)
    labels = [trace["text"][0] for trace in lp.view(step).spec["data"] if trace["type"] == "bar"]
    assert step.step_seconds > 100
    assert all(re.fullmatch(r"(\d+(\.\d+)? s)?", label) for label in labels)
    assert any(labels)


def test_documents_look_back_to_their_first_token_and_cost_less() -> None:
    slopes = [
        (round(8192 * x0), base)
        for x0, _, left, _, _, base, _ in (one[2] for one in lane(DOCUMENTS, "pairs"))
        if left == base
    ]
    assert slopes == [
        (0, 88),
        (1000, pytest.approx(88 - 84 * 1000 / 8192, abs=1e-3)),
        (6000, pytest.approx(88 - 84 * 6000 / 8192, abs=1e-3)),
    ]
    assert DOCUMENTS.pairs == sum(n * (n + 1) // 2 for n in (1000, 5000, 2192))
    assert "3 documents" in lp.view(DOCUMENTS).summary
    assert DOCUMENTS.imbalance == pytest.approx(max(r.pairs for r in DOCUMENTS.ranks) * 4 / DOCUMENTS.pairs)
    with pytest.raises(lp.LayoutError, match=r"^documents of 8 tokens in all for seq_len=8192"):
        lp.sequence({"cp": 4}, 8192, documents=(8,))


@pytest.mark.parametrize("name", ["stages", "stages last", "stages virtual"])
def test_stage_bars_are_all_layers(name: str) -> None:
    record = REALISTIC[name]
    layers = lane(record, "layers")
    assert [round(start * record.model.n_layers) for start, *_ in layers] == list(
        range(record.model.n_layers)
    )
    columns = columns_of(record)
    for stage in record.stages:
        left, right = columns[stage.rank]
        assert all(left <= layers[n][2][0] < layers[n][2][1] <= right for n in stage.layers)
    assert [label[2] for label in lp.view(record).spec["labels"] if label[4] == "pad"] == [
        "embedding",
        "head",
    ]


def test_the_layers_of_the_fullest_rank_fill_its_column_and_all_are_equally_wide() -> None:
    scene = lp.view(lp.stages("llama3.1-405b", {"pp": 16})).spec
    layers = [band for lane, *_, band, _ in scene["shapes"] if lane == "layers"]
    columns = [(left, right) for left, right, *_ in scene["ranks"]]
    held = [sum(b[1] - b[0] for b in layers if left < b[0] < right) for left, right in columns]
    wide = [right - left for left, right in columns]
    assert held[7] == pytest.approx(0.88 * wide[7], rel=0.01), "8 layers, and a margin on both sides"
    assert held[0] / 7 == pytest.approx(held[7] / 8, rel=0.01), "7 layers beside the embedding"


def test_rows_of_ranks_are_bands_of_an_axis_only_where_it_changes_at_the_end_of_a_row() -> None:
    record = lp.ranks({"cp": 509, "dp": 2})
    assert (record.cols, 509 % record.cols) == (32, 29)
    assert lp.view(record).spec["layout"]["yaxis"]["title"]["text"] == "first rank of the row"
    assert lp.view(lp.ranks({"cp": 512, "dp": 2})).spec["layout"]["yaxis"]["title"]["text"] == "dp index"


def test_words_on_a_map_are_left_out_where_they_have_no_room() -> None:
    drawing = scenes.Drawing("heads", 1, 209)
    wide = scenes.WIDTH - scenes.GUTTER - 2
    for text, pixels in (("fits", scenes.LETTER * 4 + 3), ("none", scenes.LETTER * 4 + 1)):
        drawing.label((0.5, 0.5 + pixels / wide), 50, text, "tp0")
    for text in ("8", "100000"):  # where one number has no room, it is every second that stands
        drawing.label((0.5, 0.5 + (scenes.LETTER * 4 + 6) / wide), 50, text, "rank")
    svg = scenes.svg(drawing.scene("", False, [], str, []))
    assert re.findall('<text class="tp0"[^>]*>([^<]*)<', svg) == ["fits"]
    assert re.findall('<text class="rank"[^>]*>([^<]*)<', svg) == ["8"]


def test_rank_cells_and_peers() -> None:
    record = REALISTIC["ranks"]
    cells, *peers, chosen = lp.view(record).spec["data"]
    assert cells["z"]["shape"] == "128, 128"
    assert len(base64.b64decode(cells["z"]["bdata"])) == record.layout.world
    assert [t["name"] for t in peers] == ["TP · 8 ranks", "CP · 16 ranks", "PP · 16 ranks", "DP · 8 ranks"]
    for axis, trace in zip(lp.AXES, peers, strict=True):
        drawn = [x + y for x, y in zip(trace["x"], trace["y"], strict=True)]
        assert drawn == [rank for rank in record.peers[axis] if rank != record.rank]
        assert trace["marker"]["color"] == style.COLOURS[axis]
    assert chosen["x"][0] + chosen["y"][0] == 12345
    assert chosen["text"] == ["rank 12345 · tp 1 cp 7 pp 0 dp 6 · chosen"]
    assert peers[1]["text"][7] == "12353 · tp 1 cp 8 pp 0 dp 6"
    shades = base64.b64decode(cells["z"]["bdata"])
    for rank in range(0, PAPER.world, 37):
        coord = PAPER.coord_of(rank)
        assert shades[rank] == (coord.cp + coord.dp) % 2
    for name in ("ranks", "ranks square"):
        assert all(len(trace["x"]) <= 128 for trace in traces(ABSURD[name], type="scatter"))
    [many] = [t for t in traces(ABSURD["ranks"], type="scatter") if t["name"].startswith("DP")]
    assert len(set(many["x"])) == 128  # not all in one column


def test_the_peers_of_a_rank_are_those_of_the_llama_3_papers_figure_5() -> None:
    """16 GPUs, every axis 2."""
    [case] = oracle("figure5")
    layout = lp.Layout(**case["layout"])
    assert (layout.order, layout.world) == (case["order"], case["world"])
    record = lp.ranks(layout, case["rank"])
    assert {axis: list(group) for axis, group in record.peers.items()} == case["groups"]
    for axis, group in case["groups"].items():
        assert re.search(f"{axis.upper()} group.*{', '.join(map(str, group))}", lp.view(record).summary)


@pytest.mark.parametrize("name", [name for name in EVERY if "block" in name and "traffic" not in name])
def test_a_ranks_share_has_the_places_of_its_maps(name: str) -> None:
    record = EVERY[name]
    for axis, part in record.share.parts.items():
        own = [band[:2] for *_, band, _ in lane(record, f"own {axis}")]
        pieces = [part.pieces[i] for i in cut(len(part.pieces), 64)]
        assert [x0 for x0, _ in own] == pytest.approx(
            [piece.start / part.whole for piece in pieces], abs=1e-4
        )
        for (x0, x1), piece in zip(own, pieces, strict=True):
            assert x1 - x0 == pytest.approx(max(0.003, len(piece) / part.whole), abs=2e-4)
        if part.splits:
            assert filled(record, axis) == pytest.approx(1, abs=1e-4)
            assert min(len(part.splits), 16) <= len(lane(record, axis)) <= 64
    assert len(lp.view(record).spec["labels"]) == 4


# -- the form of every picture -----------------------------------------------------------------


def fonts(value: Any) -> list[int]:
    if isinstance(value, list):
        return [size for item in value for size in fonts(item)]
    if not isinstance(value, dict):
        return []
    own = [v["size"] for k, v in value.items() if k in ("font", "tickfont") and "size" in v]
    return own + [size for item in value.values() for size in fonts(item)]


def layout_of_good_form(record: Any, kib: int) -> Any:
    """The layout of a picture that is plain, small, the same each time, readable, and plotly's too."""
    view = lp.view(record)
    assert plain(view.spec)
    assert stored_size(view) <= kib * 1024
    assert view == lp.view(record)
    assert set(view.spec) == {"data", "layout"}
    assert len(view.figure.data) == len(view.spec["data"])
    full = {name: value for name, value in view.spec["layout"].items() if value != []}
    assert view.figure.to_plotly_json()["layout"] == full
    assert min(fonts(view.spec["layout"])) >= 11
    return view.spec["layout"]


def is_good_scene(view: Any) -> None:
    """Of one height, within its edges, few elements, looks that the style has, and SVG that parses."""
    scene = view.spec
    assert scene["height"] == 209
    drawn = ElementTree.fromstring(view.svg)
    assert len(list(drawn.iter())) <= 1000
    assert len(scene["shapes"]) + len(scene["ranks"]) + len(scene["labels"]) <= 1500
    for _, start, stop, copy, band, look in scene["shapes"]:
        assert 0 <= start <= stop <= 64
        assert type(copy) is int
        assert all(-0.01 <= band[k] <= 1.01 for k in (0, 1, 3, 4))
        assert all(0 <= y <= 209 for y in (band[2], *band[5:]))
        assert all(f".{word}" in scenes.STYLE for word in look.split())
    keys = [tuple(shape[:4]) for shape in scene["shapes"]]
    assert len(keys) == len(set(keys)), "each shape is found again"
    with pytest.raises(lp.LayoutError, match="a map is no plotly figure"):
        _ = view.figure


@pytest.mark.parametrize("name", EVERY)
def test_every_picture_has_a_good_form_and_follows_its_page(name: str) -> None:
    view = lp.view(EVERY[name])
    assert plain(view.spec)
    assert view == lp.view(EVERY[name])
    assert len(view.summary.splitlines()) <= 12
    assert stored_size(view) <= (60 if view.is_map else 40 if name in REALISTIC else 80) * 1024
    if view.is_map:
        is_good_scene(view)
        return
    layout = layout_of_good_form(EVERY[name], 40 if name in REALISTIC else 80)
    shared = layout["template"]["layout"]
    assert shared["paper_bgcolor"] == shared["plot_bgcolor"] == "rgba(0,0,0,0)"
    assert shared["font"]["color"] == style.LINE
    assert shared["modebar"]["orientation"] == "v"  # in the right margin, not over the title
    titles = layout["title"]["text"].split("<br>")
    notes = layout["title"].get("subtitle", {"text": ""})["text"].split("<br>")
    assert max(len(words(line)) for line in titles) <= 44, "a narrow cell has no room"
    assert max(len(words(line)) for line in notes) <= 56, "a narrow cell has no room"
    assert (
        layout["height"] - layout["margin"]["t"] == style.HEIGHT - style.TOP
    )  # more lines, not less picture
    assert "width" not in layout
    assert layout["uirevision"] == name.removeprefix("absurd ").split()[0]
    for axis in ("xaxis", "yaxis", "xaxis2"):
        if layout.get(axis, {}).get("visible", True) and axis in layout:
            assert layout[axis]["title"]["text"] or layout[axis]["ticktext"]


def test_what_is_done_to_a_picture_is_not_done_to_the_next() -> None:
    for record in {type(record): record for record in REALISTIC.values()}.values():
        view = lp.view(record)
        if view.is_map:
            view.spec["shapes"].clear()
        else:
            view.spec["layout"]["template"]["layout"]["font"]["color"] = "red"
        for trace in view.spec.get("data", []):
            trace.setdefault("marker", {}).clear()
        assert view != lp.view(record)
        assert lp.view(record) == lp.view(record)


def test_absurd_degrees_are_not_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    for kind in (HeadMap, VocabMap, SequenceMap):
        of = kind.rank
        monkeypatch.setattr(kind, "rank", lambda self, r, of=of: (asked.append(r), of(self, r))[1])
    for record in ABSURD.values():
        asked.clear()
        lp.view(record)
        assert len(asked) <= 2000


@pytest.mark.parametrize(
    ("colour", "least", "pages"),
    [
        (style.TEXT, 7, [style.PAPER]),  # of a stored PNG
        (style.WARN, 3.5, [style.PAPER, "#111111"]),
        (style.LINE, 4.3, [style.PAPER, "#111111"]),  # more has no one colour on both
        (style.LIT, 4, [style.PAPER, "#111111"]),
    ],
)
def test_text_and_lines_have_contrast_where_they_stand(colour: str, least: float, pages: list[str]) -> None:
    assert min(contrast(colour, page) for page in pages) >= least


def test_style_sheets_have_the_colours_of_pictures() -> None:
    """plotly.js writes a colour as rgb(…) into each text; our JupyterLab finds the text by that."""
    css = (Path(lp.__file__).parent / "panels" / "watch.css").read_text()
    assert re.findall(r"--lp-lit: (#\w+)", css) == [style.LIT.lower()]
    sheet = (Path(__file__).parent.parent / "jupyter" / "custom.css").read_text()
    red, green, blue = (int(style.LINE[k : k + 2], 16) for k in (1, 3, 5))
    assert f'text[style*="fill: rgb({red}, {green}, {blue})"] {{ fill: var(--jp-ui-font-color1)' in sheet


def test_a_map_in_a_notebook_is_an_image_that_no_script_needs() -> None:
    view = lp.view(lp.heads(lp.model("tiny").replace(name="<b>&"), tp=2))
    bundle = view._repr_mimebundle_()
    assert list(bundle) == ["text/plain", "text/html"]
    tag = ElementTree.fromstring(bundle["text/html"].replace('">', '"/>'))
    kind, _, data = tag.attrib["src"].partition(",")
    assert (tag.tag, tag.attrib["alt"], kind) == ("img", view.spec["says"], "data:image/svg+xml")
    assert ElementTree.canonicalize(unquote(data)) == ElementTree.canonicalize(view.svg)
    panel = lp.live("heads", "tiny")._repr_mimebundle_()[0]["text/html"]
    assert "press Shift-Enter on this cell to move it" in unquote(panel)
    with pytest.raises(lp.LayoutError, match="a chart has no SVG of its own"):
        _ = lp.view(REALISTIC["ranks"]).svg


def test_mime_bundle() -> None:
    view = lp.view(REALISTIC["ranks"])
    bundle = view._repr_mimebundle_(include=None, exclude=None)
    assert list(bundle) == ["text/plain", MIME]
    assert bundle["text/plain"] == view.summary == repr(view)
    assert set(bundle[MIME]) == {"data", "layout", "config"}
    assert plain(bundle[MIME])
    assert "sendChartToCloud" in bundle[MIME]["config"]["modeBarButtonsToRemove"]
    assert "responsive" not in bundle[MIME]["config"]  # shrinks the first picture of a page in Lab


def test_names_cannot_write_markup() -> None:
    model = lp.model("tiny").replace(name="<a href='x'>\n&amp;" + "y" * 100)
    for record in (lp.heads(model, lp.Layout()), lp.vocab(model, lp.Layout()), lp.stages(model, lp.Layout())):
        assert lp.view(record).summary.startswith("<a href='x'> &amp;yyyyyyyyyyyyy…: ")
    evil = lp.View({**lp.view(record).spec, "says": "<script>", "rest": "</text><a>"}, "")
    assert "<script>" not in evil.svg
    assert "<a>" not in evil.svg
    assert "<script>" not in evil._repr_mimebundle_()["text/html"]


EVIL = "<a href='https://elsewhere.example'>here</a>"


def test_a_gpu_of_ones_own_cannot_write_a_link() -> None:
    model = lp.model("llama3-8b").replace(name=EVIL)
    gpu = {"base": "h100-80gb", "name": EVIL, "memory_gib": 60}
    asked = {"model": model, "tp": 4, "seq_len": 8192, "gpu": gpu}
    for record in (
        lp.memory(**asked, zero=3),
        lp.cost(**asked),
        lp.inside(model, tp=2, cp=2, seq_len=8192, gpu=gpu),
        lp.plan(model, gpus=8, seq_len=8192, global_batch=8, gpu=gpu),
        lp.loading(model, memory_gib=60),
        lp.stages(model, pp=40),
    ):
        spec = json.dumps(lp.view(record).spec)
        assert "<a " not in spec, type(record)
    marks = json.dumps(lp.view(lp.memory(**asked)).spec["layout"]["annotations"])
    assert marks.count("&lt;a href='https://elsewhere.example'&gt;here&lt;/a&gt;") == 1
    assert "&amp;lt;" not in marks


def test_other_values_have_no_picture() -> None:
    with pytest.raises(lp.LayoutError, match="3 has no picture") as caught:
        lp.view(3)
    assert str(caught.value) == (
        "3 has no picture\n"
        "  why  pictures are made of HeadMap, VocabMap, SequenceMap, TradeMap, StageMap, LayerSteps, "
        "RankGrid, ZeroMap, Traffic, Trace, Memory, Cost, Plan, "
        "Explanation, DifferenceMap, LossCurve, Schedule, Timeline, Timelines, Moment, Loading\n"
        "  try  lp.view(lp.heads(model, layout))"
    )


def test_building_pictures_imports_no_third_party_package() -> None:
    drawn = """
import llamapar as lp
lay = lp.Layout(tp=8, cp=2, pp=2)
for record in (lp.heads("llama3-8b", lay), lp.vocab("llama3-8b", lay), lp.sequence(lay, 8192),
               lp.stages("llama3-8b", lay), lp.ranks(lay)):
    lp.view(record)._repr_mimebundle_()
"""
    assert loaded(drawn, *HEAVY) == set()


# -- any layout gives a picture ----------------------------------------------------------------

degrees = st.one_of(st.integers(1, 40), st.sampled_from([64, 127, 128, 129, 1000, 2**12, 2**20]))


@st.composite
def layouts(draw: st.DrawFn) -> lp.Layout:
    left, sizes = MAX_WORLD, {}
    for axis in draw(st.permutations(lp.AXES)):
        sizes[axis] = min(draw(degrees), left)
        left //= sizes[axis]
    virtual = draw(st.sampled_from([1, 1, 2, 3, 8, 2**20]))
    return lp.Layout(**sizes, virtual_stages=virtual, order=draw(st.sampled_from(ORDERS)))


def is_picture(record: Any) -> None:
    view = lp.view(record)
    assert plain(view.spec)
    assert stored_size(view) <= 120 * 1024
    assert 1 <= len(view.summary.splitlines()) <= 12
    assert all(len(line) <= 160 for line in view.summary.splitlines())


@given(models(), layouts(), st.booleans(), st.booleans())
def test_any_heads(model: lp.ModelConfig, layout: lp.Layout, copies: bool, interleave: bool) -> None:
    record = lp.heads(model, layout, kv_replication=copies, interleave=interleave)
    is_picture(record)
    if layout.tp <= draw.SHOWN:
        for name, rows in (
            ("q", sum(len(held.q_rows) for held in record.ranks) / model.q_dim),
            ("kv", sum(len(held.kv_rows) for held in record.ranks) / model.kv_dim),
        ):
            assert filled(record, name) == pytest.approx(rows, abs=1e-3)


@given(models(), layouts(), st.integers(1, 2**20), st.booleans())
def test_any_vocab(model: lp.ModelConfig, layout: lp.Layout, multiple: int, per_tp: bool) -> None:
    padding = lp.Padding(multiple, per_tp)
    if padding.padded(model.vocab_size, layout.tp) > MAX_SIZE:
        with pytest.raises(lp.LayoutError, match="rows, more than 2147483647"):
            lp.vocab(model, layout, padding=padding)
        return
    record = lp.vocab(model, layout, padding=padding)
    is_picture(record)
    if layout.tp <= draw.SHOWN:
        assert filled(record, "rows") == pytest.approx(1, abs=1e-3)


@given(
    st.integers(1, 2**12) | st.just(2**16),
    st.integers(1, 10_000) | st.just(2**31 - 1),
    st.sampled_from(["head-tail", "contiguous"]),
)
def test_any_sequence(cp: int, seq_len: int, chunking: str) -> None:
    is_picture(lp.sequence(lp.Layout(cp=cp), seq_len, chunking=chunking))


@given(models(), layouts(), st.sampled_from(list(LAYER_SPLITS)))
def test_any_stages(model: lp.ModelConfig, layout: lp.Layout, split: str) -> None:
    record = lp.stages(model, layout, layer_split=split)
    is_picture(record)
    if record.ok and len(record.counts) <= draw.SHOWN:
        assert filled(record, "layers") == pytest.approx(1, abs=1e-3)


@given(layouts(), st.data())
def test_any_ranks(layout: lp.Layout, data: st.DataObject) -> None:
    record = lp.ranks(layout, data.draw(st.integers(0, layout.world - 1)))
    is_picture(record)
    if layout.cp <= 2**12:
        batch, seq_len = data.draw(st.integers(1, 5000)), data.draw(st.integers(1, 2**20))
        is_picture(
            lp.ranks(layout, record.rank, model=data.draw(models()), seq_len=seq_len, global_batch=batch)
        )
    cells = traces(record, type="heatmap")
    drawn = sum(len(base64.b64decode(t["z"]["bdata"])) for t in cells)
    assert drawn == -(-layout.world // record.block)
    for trace in traces(record, type="scatter"):
        for x, y in zip(trace["x"], trace["y"], strict=True):
            assert record.cell(x + y) == (y // (record.block * record.cols), x // record.block)
