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


def test_a_place_that_a_page_lacks_is_named(tmp_path, monkeypatch):
    page = tmp_path / "some.md"
    monkeypatch.setattr(_page, "PAGE", page)
    page.write_text("# A\n\n<!-- one -->\n<!-- end -->\n\nwords\n\n<!-- two -->\nold\n<!-- end -->\nlast\n")
    one, two = (_page.table(("a", "b"), [(name, 2)]) for name in ("x", "y"))
    text = _page.filled({"one": one, "two": two})
    rows = "| a | b |\n| --- | --- |\n| {} | 2 |\n"
    assert text == (
        f"# A\n\n<!-- one -->\n\n{rows.format('x')}\n<!-- end -->\n\nwords\n\n"
        f"<!-- two -->\n\n{rows.format('y')}\n<!-- end -->\nlast\n"
    )
    page.write_text(text)
    assert _page.filled({"one": one, "two": two}) == text
    with pytest.raises(ValueError, match=r"some\.md has 0 places for the table 'three', not 1"):
        _page.filled({"three": one})
