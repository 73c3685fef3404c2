"""The table of the frameworks' verdicts on each rule's failing example is what `lp.check` says."""

import pytest

from llamapar.frameworks import JUDGES
from test_rules import EXAMPLES, asked
from verdicts import TABLE, verdict_of


def test_every_framework_has_a_row_of_rules_that_are_there():
    told = "what a framework does stands in ROWS of tests/verdicts.py, in the order of JUDGES"
    assert list(TABLE) == list(JUDGES), told
    assert {code for row in TABLE.values() for code in row} <= set(EXAMPLES)


@pytest.mark.parametrize("name", TABLE)
def test_a_framework_does_with_each_example_what_the_table_says(name):
    jobs = {code: asked(code, framework=name).job for code in EXAMPLES}
    said = {code: JUDGES[name].judge(code, job).verdict for code, job in jobs.items()}
    assert said == {code: verdict_of(name, code) for code in EXAMPLES}
