"""docs/accuracy.md: benchmarks make its tables, and it says what they compute now."""

import importlib
import re

import pytest

import _page

WRITERS = {
    "as_printed": ["time"],
    "table4": ["table_4"],
    "memory_rows": ["memory"],
    "paper_memory": ["paper_memory", "paper_figures"],
    "recipes": ["recipes"],
    "settings_accuracy": ["settings"],
    "explain_accuracy": ["explain"],
    "live_facts": ["live_facts"],
    "cell_flows": ["cell_flows"],
    "unseen_slips": ["slips", "slips_explained"],
}
"""Benchmark → its tables, in the order of the page."""

SOAK, DEEP = pytest.mark.soak, pytest.mark.deep
LONG = {"recipes": DEEP, "explain_accuracy": SOAK, "settings_accuracy": SOAK}
"""Those that plan for 142 recipes, ask about 1,935 texts, and read 184 files."""

ELSEWHERE = {"as_printed", "memory_rows", "paper_memory", "table4"}
"""Compared in test_cost_accuracy.py and test_memory_rows.py, which score the same rows anyway."""


def test_each_table_has_one_script_that_is_named_above_it():
    text = _page.PAGE.read_text("utf-8")
    tables = re.findall(r"^<!-- (\w+) -->\n\n\|(?:.*\n)*?\n<!-- end -->$", text, re.MULTILINE)
    assert tables == [name for names in WRITERS.values() for name in names]
    assert text.count("<!-- end -->") == len(tables)
    for script, (first, *_) in WRITERS.items():
        above = text.partition(f"<!-- {first} -->")[0]
        assert re.findall(r"`benchmarks/(\w+)\.py`", above)[-1] == script
        assert "--page" in importlib.import_module(script).__doc__


def test_the_page_takes_ten_minutes():
    assert len(_page.PAGE.read_text("utf-8").split()) <= 2000


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=LONG.get(name, ())) for name in WRITERS if name not in ELSEWHERE]
)
def test_a_table_has_what_its_script_computes(name):
    tables = importlib.import_module(name).tables()
    assert list(tables) == WRITERS[name]
    assert _page.PAGE.read_text("utf-8") == _page.filled(tables), f"benchmarks/{name}.py --page"
