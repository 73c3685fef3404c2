"""What kind of answer `lp.explain` gives to a text: never surer than its arithmetic, and always a way on."""

import json

from hypothesis import given
from hypothesis import strategies as st

import explain_accuracy as accuracy
import llamapar as lp
from llamapar.diagnosis import Level

CASES = [case for path in accuracy.known() for case in accuracy.read(path)]


@given(st.sampled_from(CASES), st.booleans())
def test_nothing_is_likely_without_an_equation_and_no_heading_is_surer(case, alone):
    told = lp.explain(case["message"], context=None if alone else case.get("context"))
    assert all(d.arithmetic for d in told.diagnoses if d.level is Level.LIKELY)
    if told.verdict != "unknown" and told.best and told.reason.startswith(told.best.cause):
        assert told.summary.startswith("Possibly ") == (told.best.level is not Level.LIKELY)
    assert told.diagnoses or told.next
    json.dumps(told.as_dict())
