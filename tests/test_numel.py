"""What the numbers of a collective can be: against the table of traffic, and the numbers of public logs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llamapar as lp
from llamapar.describe.layout import AXES
from llamapar.diagnosis.known import Known
from llamapar.hangs.numel import readings


def read(op: str, *numel: int, model: str | None = "llama3-8b", axes: str = "", **facts: int) -> list[str]:
    degrees = {axis: facts.pop(axis) for axis in AXES if axis in facts}
    layout = lp.Layout.of({"dp": 2, **degrees}) if degrees else None
    return readings(op, (numel[0], numel[-1]), Known.of(model, layout, None, facts), axes)


STREAM = "33,554,432 = 8,192 · 4,096: tokens of the residual stream, over tp"
CASES: list[tuple[str, tuple[int, ...], dict[str, Any], list[str]]] = [
    ("all_reduce", (33_554_432,), {"tp": 8}, [STREAM]),
    ("all_reduce", (33_554_432,), {}, []),  # over which axis follows from no layout
    ("all_reduce", (33_554_432,), {"tp": 8, "seq_len": 8192}, [STREAM]),
    ("all_reduce", (33_554_432,), {"tp": 8, "seq_len": 5000}, []),
    ("all_reduce", (33_554_432,), {"tp": 8, "seq_len": 4096, "micro_batch": 1}, []),
    ("all_reduce", (33_554_432,), {"tp": 1}, []),
    ("all_reduce", (33_554_432,), {"tp": 8, "axes": "dp"}, []),
    ("all_reduce", (1,), {}, ["1 = a norm, a loss or a flag"]),
    ("all_reduce", (1,), {"model": None}, ["1 = a norm, a loss or a flag"]),
    ("all_reduce", (33_554_432,), {"model": None}, []),
    ("barrier", (0,), {}, []),
    # a weight's gradient is as many numbers as a few tokens
    (
        "all_reduce",
        (2_097_152,),
        {"tp": 8},
        [
            "2,097,152 = 512 · 4,096: tokens of the residual stream, over tp",
            "2,097,152 = 512 · 4,096: wq of a rank, over dp",
            "2,097,152 = 4,096 · 512: wo of a rank, over dp",
        ],
    ),
    (
        "all_reduce",
        (2_097_152,),
        {"tp": 8, "dp": 2, "axes": "tp"},
        ["2,097,152 = 512 · 4,096: tokens of the residual stream, over tp"],
    ),
    # sequence parallelism: a shard comes in, the whole goes out
    (
        "_all_gather_base",
        (4_194_304, 33_554_432),
        {"tp": 8, "cp": 1},
        [STREAM, "33,554,432 / 4,194,304 = 8 ranks in the group, as tp"],
    ),
    ("reduce_scatter", (64, 8), {"model": None}, ["64 / 8 = 8 ranks in the group"]),
    (
        "all_gather",
        (131_072, 1_048_576),
        {"tp": 8, "cp": 8, "seq_len": 8192, "axes": "cp"},
        ["1,048,576 = 8,192 · 128: tokens of K or V, over cp"],
    ),
    (
        "all_reduce",
        (8192,),
        {"tp": 8, "seq_len": 8192, "axes": "tp"},
        ["8,192 = 8,192 · 1: tokens of the loss, over tp"],
    ),
    (
        "recv 1<-0",
        (33_554_432,),
        {"tp": 8, "pp": 4, "cp": 1},
        ["33,554,432 = 8,192 · 4,096: tokens of the residual stream, over pp"],
    ),
    ("all_reduce", (33_554_432,), {"tp": 3}, []),  # a TP that does not divide the heads
]


@pytest.mark.parametrize(("op", "numel", "known", "expected"), CASES)
def test_what_numbers_can_be(
    op: str, numel: tuple[int, ...], known: dict[str, Any], expected: list[str]
) -> None:
    assert read(op, *numel, **known) == expected


@given(
    model=st.sampled_from(("llama3-8b", "llama3.1-405b", "tiny", "qwen2.5-7b")),
    degrees=st.sampled_from(
        ({"tp": 2}, {"tp": 4, "cp": 2}, {"tp": 2, "cp": 2, "dp": 2}, {"dp": 4, "zero": 3}, {"cp": 4})
    ),
    sequence_parallel=st.booleans(),
    tokens=st.sampled_from((16, 64, 96)),
    sequences=st.integers(1, 3),
)
@settings(max_examples=40, deadline=None)
def test_every_collective_of_a_layer_is_read_over_its_axis(
    model: str, degrees: dict[str, int], sequence_parallel: bool, tokens: int, sequences: int
) -> None:
    """`lp.traffic` agrees with traced runs: what it says a program sends is among the readings."""
    layout = lp.Layout.of({**degrees, "sequence_parallel": sequence_parallel and degrees.get("tp", 1) > 1})
    batch = sequences * layout.dp
    sent = lp.traffic("llama", model, layout, seq_len=tokens, global_batch=batch, dtype="float32")
    known = Known.of(model, layout, None, {"seq_len": tokens, "micro_batch": sequences})
    for term in sent.terms:
        size = term.payload // 4
        if size <= 4 or term.part == "norm" or term.axis not in ("tp", "cp", "dp"):
            continue
        found = readings(term.kind, (size, size), known, term.axis)
        assert found, (term, layout)
        assert all(text.endswith(f", over {term.axis}") for text in found)
        name = {"column input": "residual", "row output": "residual", "K and V": "K or V"}.get(
            term.part, term.part
        )
        assert any(name in text for text in found), (term, found)
