"""What kind of answer `lp.explain` gives to a text: never surer than its arithmetic, and always a way on."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import explain_accuracy as accuracy
import llamapar as lp
from explaining import VIEW
from llamapar.diagnosis import Level


def test_each_error_line_is_judged_by_itself():
    lines = [VIEW.format([2, 256, 32, 128], 2 * 256 * 8 * 128), VIEW.format([1, 640, 32, 128], 640 * 8 * 128)]
    alone = [lp.explain(line, "llama3-8b", tp=1) for line in lines]
    both = lp.explain("\n".join(lines), "llama3-8b", tp=1)
    assert (both.verdict, both.reason) == (alone[0].verdict, alone[0].reason)
    assert both.best.equations == alone[0].best.equations
    assert both.rivals == (f"by itself, {lines[1]}: the same",)
    whole = VIEW.format([1, 640, -1, 128], 640 * 64)
    other = lp.explain(f"{lines[0]}\n{whole}", "llama3-8b", tp=1)
    assert other.rivals == (f"by itself, {whole}: {lp.explain(whole, 'llama3-8b', tp=1).summary}",)


@pytest.mark.parametrize(
    ("text", "category"),
    [
        ("aten.bmm.default got mixed torch.Tensor and DTensor, need to convert all", "other"),
        ("AssertionError: tensor model parallel group is not initialized", "other"),
        ("Detected mismatch between collectives on ranks. Rank 1 is running BARRIER", "rank_mapping_hang"),
        ("Assertion `missingBytes == 0' failed.", "counter_overflow"),
        ("ZeroDivisionError: integer division or modulo by zero", "kv_heads_lt_tp"),
    ],
)
def test_a_sentence_of_a_framework_without_numbers_is_possible(text, category):
    told = lp.explain(text)
    assert (told.best.category, str(told.best.level), told.best.equations) == (category, "possible", ())
    assert told.summary.startswith(("Possibly ", "Not known; possibly "))


CASES = [case for path in accuracy.known() for case in accuracy.read(path)]


@given(st.sampled_from(CASES), st.booleans())
def test_nothing_is_likely_without_an_equation_and_no_heading_is_surer(case, alone):
    told = lp.explain(case["message"], context=None if alone else case.get("context"))
    assert all(d.arithmetic for d in told.diagnoses if d.level is Level.LIKELY)
    if told.verdict != "unknown" and told.best and told.reason.startswith(told.best.cause):
        assert told.summary.startswith("Possibly ") == (told.best.level is not Level.LIKELY)
    assert told.diagnoses or told.next
    json.dumps(told.as_dict())
