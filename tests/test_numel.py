"""What the numbers of a collective can be: against the table of traffic, and the numbers of public logs."""

from hypothesis import given, settings
from hypothesis import strategies as st

import llamapar as lp
from llamapar.describe.layout import AXES
from llamapar.diagnosis.known import Known
from llamapar.hangs.numel import readings


def read(op, *numel, model="llama3-8b", axes="", **facts):
    degrees = {axis: facts.pop(axis) for axis in AXES if axis in facts}
    layout = lp.Layout.of({"dp": 2, **degrees}) if degrees else None
    return readings(op, (numel[0], numel[-1]), Known.of(model, layout, None, facts), axes)


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
    model, degrees, sequence_parallel, tokens, sequences
):
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
