"""What the notebook on attention heads asks: each question with its truth, hints and pictures.

Every truth is computed by the library when the question is asked; the words state what the question fixes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import llamapar as lp
from llamapar.panels.ladders_of_maps import MAPS

from .boards import dealt, order_as_text, placed_operations
from .boxes import Item
from .veils import covered, framed

_BIG = "llama3.1-405b"
_EXACT: dict[str, Any] = {"dtype": "float64", "device": "cpu"}


@cache
def _small(tp: int) -> lp.ModelConfig:
    """405B with all its heads, narrow enough for a CPU."""
    return lp.shrink(lp.model(_BIG), lp.Layout(tp=tp)).model


def _first_and_last() -> Item:
    record = lp.heads(_BIG, tp=8)
    own = record.rank(3).q_heads
    view = lp.view(record)
    ends = [own[0], own[-1]]

    def place(heads: list[float]) -> tuple[str, float, float]:
        if len(heads) == 2:
            return ("q", heads[0] / 128, (heads[1] + 1) / 128)
        return ("", 0, 0)

    return Item(
        "405B at TP 8: first and last query head of rank 3",
        ends,
        unit="query heads",
        hints=(
            "128 query heads are dealt to 8 ranks in order, the same number to each.",
            "Rank 0 holds query heads 0–15.",
        ),
        slips=(
            ([0, 15], "Those are the heads of rank 0."),
            ([48, 64], "Heads count from 0, so the last is one less."),
            ([49, 64], "Heads count from 0."),
            ([32, 47], "Ranks count from 0, too: those are rank 2's."),
        ),
        why="Ranks 0 to 2 hold 3 · 16 heads, so rank 3 begins at 48.",
        shows=view,
        veiled=covered(view, lambda lane, x: x > 1 / 8, "Which query heads has rank 3?"),
        marked=framed(view, ends, place, lambda heads: "–".join(f"{n:g}" for n in heads)),
    )


def _same_numbers() -> Item:
    layout = lp.Layout(tp=8, sequence_parallel=False)
    run = lp.run("attention", _small(8), layout, fault="drop_all_reduce", backward=False, **_EXACT)
    a = run.outputs[0]["out"]
    b = run.outputs[1]["out"]
    return Item(
        "After wo, do ranks 0 and 1 have the same numbers?",
        bool(a.equal(b)),
        hints=(
            "Which columns of wo did rank 0 multiply with, and which rank 1?",
            "Each rank multiplied its own heads by their columns. What would all heads have given?",
        ),
        why=f"Both are {list(a.shape)}, and each is a summand: the output is the sum over the ranks.",
    )


def _failing_line() -> Item:
    layout = lp.Layout(tp=16, sequence_parallel=False)  # as in Meta's code
    stopped = lp.tape("meta_attention", _BIG, layout, seq_len=8192)
    source = lp.programs.show_source("meta_attention").splitlines()
    lines = [line.strip() for line in source if "//" in line]
    assert stopped.failed is not None
    gives = ("128 // 16 = 8", "8 // 16 = 0", f"8 // 0: {stopped.errors[0]}")
    numbered = [f"{k}: {line}" for k, line in enumerate(lines, 1)]
    return Item(
        "128 and 8 heads at TP 16: which line fails, 1, 2 or 3?",
        1 + lines.index(stopped.failed.code),
        choices=tuple(zip(range(1, len(lines) + 1), numbered, gives, strict=True)),
        hints=("Work the three lines out for 16 ranks, one after the other.", "// rounds down."),
        slips=((2, "Line 2 makes the zero, and nothing complains there."),),
        why="The message comes from a line that is not to blame.",
    )


def _deal() -> Item:
    record = lp.heads(_BIG, tp=16, kv_replication=True)
    return Item(
        "405B at TP 16: which KV head does each rank store?",
        [record.rank(r).kv_heads.start for r in range(record.tp)],
        hints=(
            "16 query heads read a KV head. A rank has 8 of them.",
            "Query heads of one shade read the same KV head, so it belongs on their ranks.",
        ),
        slips=(
            (
                [*range(8), *range(8)],
                "That is tiled: 14 ranks would hold a KV head that their query heads do not read.",
            ),
        ),
        why="Copies of a KV head stand side by side, under the query heads that read it.",
        board=dealt(record),
        shows=lp.view(record),
    )


def _tiled() -> Item:
    record = lp.heads(_BIG, tp=16, kv_replication=True, interleave=False)
    view = lp.view(record)
    return Item(
        "Tiled: still the output of the model with 8 heads?",
        bool(_output("tile_kv")),
        hints=(
            "Query heads 0 to 15 read KV head 0. On which ranks are they?",
            "Tiled, rank 1 stores KV head 1.",
        ),
        why="14 of 16 ranks store a KV head that they do not read; every shape is right.",
        shows=view,
        veiled=covered(view, lambda lane, x: lane in ("kv", "link"), "KV heads tiled over 16 ranks."),
    )


def _output(fault: str) -> bool:
    """Whether the output of copied KV heads is right under a fault, to the tolerance of a run."""
    run = lp.run("attention", _small(8), {"tp": 16}, fault=fault, kv_replication=True, **_EXACT)
    return run.output_errors["out"] <= run.tolerance


def _above() -> Item:
    m = lp.model("llama3.2-3b")
    heads = MAPS["heads"]
    values = {"model": m.name, "tp": 1, "kv_replication": True, "interleave": True}
    rungs = [rung for rung in heads.ladder(values, "tp") if int(str(rung.value)) > m.n_kv_heads]
    notes = [f"{rung.gives} ✕ {rung.problem}" if rung.problem else rung.gives for rung in rungs]
    [works] = [
        tp for tp in range(m.n_kv_heads + 1, m.n_heads + 1) if lp.heads(m, tp=tp, kv_replication=True).ok
    ]
    return Item(
        "24 and 8 heads: which one TP above 8 works with copies?",
        works,
        choices=tuple(
            (rung.value, f"TP {rung.value}", note) for rung, note in zip(rungs, notes, strict=True)
        ),
        hints=(
            "Each of the 8 KV heads gets the same number of copies.",
            "Query heads are not copied: TP must still divide 24.",
        ),
        why="Copies need a multiple of 8, and whole query heads a divisor of 24.",
    )


def _forgotten() -> Item:
    return Item(
        "The sum is forgotten: is the forward still right?",
        _output("no_kv_grad_sum"),
        hints=("At which moment does a gradient exist: in the forward, or in the backward?",),
        why="Only the gradients of wk and wv are wrong: nothing shows until the copies have drifted apart.",
    )


def _ranks_of_a_head() -> Item:
    record = lp.heads(_BIG, tp=32, kv_replication=True)
    return Item(
        "405B at TP 32 with copies: whose gradients of KV head 5 must be summed?",
        list(record.shared()[5]),
        unit="ranks",
        hints=(
            "32 ranks for 8 KV heads are 4 copies of each.",
            "The copies stand side by side, under the query heads that read them.",
        ),
        slips=(
            ([5], "That is one copy. 32 ranks for 8 KV heads are 4 copies of each."),
            (
                [5, 13, 21, 29],
                "Those hold it where copies are tiled; here they stand side by side.",
            ),
        ),
        why="32 ranks for 8 KV heads are 4 copies of each, and those of head 5 stand side by side.",
        shows=lp.view(record),
    )


def _one_forward_one_backward() -> Item:
    shape = {"pp": 2, "micro_batches": 3}
    asked = lp.schedule("1f1b", **shape)
    gpipe = lp.schedule("gpipe", **shape)
    return Item(
        "Two ranks, three micro-batches: place 1F1B",
        order_as_text(asked),
        hints=(
            "Rank 1 turns each micro-batch round as soon as its forward is done.",
            "Rank 0 keeps at most 2 micro-batches in flight; then it waits for a backward.",
        ),
        slips=(
            (
                order_as_text(gpipe),
                "That is GPipe: rank 0 keeps 3 micro-batches in flight, 1F1B 2.",
            ),
        ),
        why="Both end at the same time, and 1F1B keeps 2 micro-batches where GPipe keeps 3.",
        board=placed_operations(asked),
        shows=lp.view(asked),
    )


PREDICTIONS: dict[str, Callable[[], Item]] = {
    "405B at TP 8: first and last query head of rank 3": _first_and_last,
    "After wo, do ranks 0 and 1 have the same numbers?": _same_numbers,
    "128 and 8 heads at TP 16: which line fails, 1, 2 or 3?": _failing_line,
    "405B at TP 16: which KV head does each rank store?": _deal,
    "Tiled: still the output of the model with 8 heads?": _tiled,
    "24 and 8 heads: which one TP above 8 works with copies?": _above,
    "The sum is forgotten: is the forward still right?": _forgotten,
    "Two ranks, three micro-batches: place 1F1B": _one_forward_one_backward,
}
"""By the question itself."""

EXERCISES: dict[str, Callable[[], Item]] = {"ranks with KV head 5": _ranks_of_a_head}
"""By the name of the exercise."""
