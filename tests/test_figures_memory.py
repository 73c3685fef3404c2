"""Pictures of bytes: bars that add up to the record, lines at the limit, steps that lead to each total."""

from itertools import pairwise

import numpy as np
import pytest

import llamapar as lp
from inputs import words
from llamapar.count.reconciliation import by_step
from llamapar.figures import memory, style
from llamapar.figures.draw import Rows
from llamapar.frameworks import FRAMEWORKS
from llamapar.records.curve import MemoryCurve, OperationMemory, Span
from llamapar.records.tables import readable_bytes
from llamapar.records.trace import CollectiveEvent
from test_figures import layout_of_good_form

GIB = 2**30
PAPER = lp.Layout(tp=8, pp=16, dp=128)
DEEP = lp.model("tiny").replace(n_layers=512)

MEMORY = {
    "405b": lp.memory("llama3.1-405b", PAPER, seq_len=8192),
    "405b fits": lp.memory("llama3.1-405b", PAPER, seq_len=8192, recompute="full", gpu="h200-141gb"),
    "8b": lp.memory("llama3.1-8b", {"tp": 2, "dp": 4}, seq_len=8192),
    "fsdp": lp.memory("llama3.1-70b", lp.Layout(tp=8, dp=32, pp=2, zero=3), seq_len=8192),
    "interleaved": lp.memory("llama3.1-70b", lp.Layout(pp=8, virtual_stages=5), seq_len=512),
    "deep": lp.memory(DEEP, {"pp": 512}, seq_len=64),
}
LOADED = {
    "incident": lp.loading("llama3.1-405b-mp16", nodes=4),
    "70b": lp.loading("llama3.1-70b", nodes=2, memory_gib=32),
    "8b": lp.loading("llama3.1-8b"),
    "tiny": lp.loading("tiny", memory_gib=0.5),
    "shards": lp.loading("llama3.1-405b", format="bf16", nodes=8, memory_gib=128),
    "many": lp.loading("llama3.1-8b", nodes=4096, memory_gib=1),
}
EVERY = {
    **{f"memory {name}": record for name, record in MEMORY.items()},
    **{f"loading {name}": record for name, record in LOADED.items()},
}


def bars(record):
    return [trace for trace in lp.view(record).spec["data"] if trace["type"] == "bar"]


# -- memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MEMORY)
def test_stacked_bars_are_the_stages_totals(name):
    record = MEMORY[name]
    drawn = [record.stages[s] for s in Rows(len(record.stages), memory.DRAWN).drawn]
    for i, stage in enumerate(drawn):
        assert sum(t["y"][i] for t in bars(record)) == pytest.approx(stage.total_bytes / GIB, abs=1e-3)
    known = [name for _, names in memory.PARTS.values() for name in names]
    assert {name.partition(":")[0] for name in record.names} <= set(known)
    assert len(known) == len(set(known)), "a term belongs to one part"


@pytest.mark.parametrize("name", MEMORY)
def test_marks_are_the_high_end_of_eight_in_ten_runs(name):
    record = MEMORY[name]
    marks = [trace for trace in lp.view(record).spec["data"] if trace["type"] == "scatter"]
    assert bool(marks) == (record.high_bytes > record.worst.total_bytes)
    for trace in marks:
        drawn = [record.stages[s] for s in Rows(len(record.stages), memory.DRAWN).drawn]
        share = record.high_bytes / record.expected_bytes
        assert trace["y"] == pytest.approx([s.total_bytes * share / GIB for s in drawn], rel=1e-3, abs=1e-3)
        gib = f"{drawn[-1].total_bytes * share / GIB:,.2f} GiB"
        assert trace["hovertext"][-1] == f"stage {drawn[-1].stage}: nine of ten runs stay below {gib}"


def test_the_line_is_the_hbm_and_the_note_the_verdict():
    for record in MEMORY.values():
        layout = lp.view(record).spec["layout"]
        [line] = layout["shapes"]
        assert line["y0"] == line["y1"] == record.hbm_bytes / GIB
        said = words(layout["title"]["subtitle"]["text"])
        assert said.startswith(f"Stage {record.worst.stage} needs ")
        needs = record.figure()
        assert record.published or said.endswith(f"{needs.low / GIB:.1f} to {needs.high / GIB:.1f} GiB.")
        assert ("color" in layout["title"]["subtitle"]["font"]) is not record.fits
        assert layout["yaxis"]["range"][1] > max(record.hbm_bytes, record.high_bytes) / GIB
    [note] = lp.view(MEMORY["8b"]).spec["layout"]["annotations"]
    assert note["text"] == "h100-80gb: 79.65 GiB"


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_term_of_a_trainer_is_drawn_and_reconciled(name):
    for layout in (lp.Layout(dp=8, zero=3), lp.Layout(dp=8, pp=2)):
        found = lp.memory("llama3.1-8b", layout, seq_len=512, framework=name)
        for stage in found.stages:
            drawn = sum(stage.bytes(*names) for _, names in memory.PARTS.values())
            assert drawn == stage.total_bytes == sum(by_step(stage).values())


def test_a_bar_lists_its_terms():
    hover = next(t for t in bars(MEMORY["8b"]) if t["name"] == "optimizer")["hovertext"]
    assert hover == ["stage 0 · optimizer 11.22 GiB<br>master weights 3.74 GiB<br>optimizer states 7.48 GiB"]


# -- loading ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOADED)
def test_bars_are_the_nodes_bytes(name):
    record = LOADED[name]
    shown = [record.nodes[i] for i in Rows(record.n_nodes, 32).drawn]
    drawn = np.sum([t["y"] for t in bars(record)], axis=0)
    assert drawn == pytest.approx([node.total_bytes / GIB for node in shown], abs=1e-6)
    [line] = lp.view(record).spec["layout"]["shapes"]
    assert line["y0"] == record.memory_gib


@pytest.mark.parametrize("name", ["incident", "70b", "8b", "shards"])
def test_counters_are_numpys(name):
    lines = {t["name"]: t["y"] for t in lp.view(LOADED[name]).spec["data"] if t["type"] == "scatter"}
    totals = [c.value for c in LOADED[name].counts() if c.what == "total"][: len(lines["bytes read"])]
    assert lines["bytes read"] == [round(n / GIB, 3) for n in totals]
    sizes = np.diff([0, *totals])
    for kind in ("uint32", "int32"):
        kept = np.cumsum(sizes.astype(kind), dtype=kind)  # wraps at each sum, as a counter does
        assert lines[f"in {kind}"] == [round(int(n) / GIB, 3) for n in kept]
    assert any(a > b for a, b in pairwise(lines["in uint32"])) is (totals[-1] > 2**32)


# -- over the operations of a rank -------------------------------------------------------------------

GATHER = CollectiveEvent("all_gather", "tp", (0, 1), (4, 8), "float32", 128, "forward")
SUM = CollectiveEvent("all_reduce", "dp", (0, 2), (8,), "float32", 32, "gradients")

FORWARD = OperationMemory((GATHER,), 340, "mm", {"workspace: mm": 340}, {"activations: MLP": 300})
BACKWARD = OperationMemory((), 50, "mm", {"workspace: mm": 50}, {"activations: MLP": -300, "gradients": 200})
SMALL = MemoryCurve(
    "llama, tp=2: memory of rank 0 over its operations",
    {"parameters": 2048, "inputs": 16},
    (
        Span("F of micro-batch 0 on stage 0", 2064, FORWARD),
        Span("B of micro-batch 0 on stage 0", 2364, BACKWARD),
        Span("F of micro-batch 1 on stage 0", 2264, FORWARD, measured=False),
        Span("sums of gradients over ranks", 2564, OperationMemory((SUM,), 32, "all_reduce")),
    ),
)


def test_the_peak_is_found_and_named():
    assert (SMALL.peak_at, SMALL.peak_bytes) == (2, 2604)
    assert SMALL.peak == "F of micro-batch 1 on stage 0, operation 3 of 4, in mm"
    assert SMALL.alive == {"parameters": 2048, "workspace: mm": 340, "gradients": 200, "inputs": 16}
    assert sum(SMALL.alive.values()) == SMALL.peak_bytes
    assert MemoryCurve("nothing", {"parameters": 4}, ()).peak_bytes == 4
    read = [readable_bytes(n) for n in (0, 1023, 1024, 3 * 2**29)]
    assert read == ["0 B", "1023 B", "1.00 KiB", "1.50 GiB"]


def test_the_words_of_the_record():
    words = str(SMALL).splitlines()
    assert words[1:3] == [
        "   operation                      before, KiB  most  after  collectives",
        "1  F of micro-batch 0 on stage 0  2.02         2.35  2.31   1 all_gather tp",
    ]
    assert words[-1] == (
        "peak 2.54 KiB at F of micro-batch 1 on stage 0, operation 3 of 4, in mm: parameters 2.00 KiB, "
        "workspace: mm 340 B, gradients 200 B, inputs 16 B"
    )


# -- the form of every picture ---------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_form(name):
    layout = layout_of_good_form(EVERY[name], 80 if "deep" in name else 40)
    assert len(lp.view(EVERY[name]).summary.splitlines()) <= 42
    inner = layout["height"] - layout["margin"]["t"] - layout["margin"]["b"]
    assert inner == style.HEIGHT - style.TOP - style.BOTTOM
    assert layout["uirevision"] == name.split()[0]
    for axis in ("xaxis", "yaxis", "xaxis2", "yaxis2"):
        assert axis not in layout or layout[axis]["title"]["text"]


def test_colours_of_parts_are_no_axis_colours():
    used = {colour for colour, _ in memory.PARTS.values()}
    assert not used & set(style.COLOURS.values())
    assert len({colour for colour, _ in memory.PARTS.values()}) == len(memory.PARTS)
