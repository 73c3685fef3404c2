"""docs/measured: each page is made by a benchmark, and says what it computes now."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import _page

PAGES = sorted(path.stem for path in _page.FOLDER.glob("*.md"))
ELSEWHERE = {"as_printed", "memory_rows", "paper_memory", "table4"}
"""Compared in test_cost_accuracy.py and test_memory_published.py, which score the same rows anyway."""


@pytest.mark.parametrize("name", PAGES)
def test_a_page_names_the_script_that_writes_its_tables(name: str) -> None:
    text = _page.page(name).read_text("utf-8")
    assert f"`benchmarks/{name}.py" in text.split("\n## ")[0]
    tables = re.findall(r"^<!-- (\w+) -->\n\n\|(?:.*\n)*?\n<!-- end -->$", text, re.MULTILINE)
    assert len(tables) == len(set(tables)) == text.count("<!-- end -->") > 0
    assert "--page" in importlib.import_module(name).__doc__


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted({*PAGES} - ELSEWHERE - {"recipes"}))
def test_a_page_has_what_its_script_computes(name: str) -> None:
    _compared(name)


@pytest.mark.deep
def test_the_page_of_recipes_has_what_its_script_computes() -> None:
    """It plans for each of 142 recipes, which takes five minutes."""
    _compared("recipes")


def _compared(name: str) -> None:
    script = importlib.import_module(name)
    computed = script.tables(1024, 0) if name == "flight" else script.tables()
    assert _page.page(name).read_text("utf-8") == _page.filled(name, computed), f"{name}.py --page"


def test_a_place_that_a_page_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_page, "FOLDER", tmp_path)
    page = tmp_path / "some.md"
    page.write_text("# A\n\n<!-- one -->\n<!-- end -->\n\nwords\n\n<!-- two -->\nold\n<!-- end -->\nlast\n")
    one, two = (_page.table(("a", "b"), [(name, 2)]) for name in ("x", "y"))
    text = _page.filled("some", {"one": one, "two": two})
    rows = "| a | b |\n| --- | --- |\n| {} | 2 |\n"
    assert text == (
        f"# A\n\n<!-- one -->\n\n{rows.format('x')}\n<!-- end -->\n\nwords\n\n"
        f"<!-- two -->\n\n{rows.format('y')}\n<!-- end -->\nlast\n"
    )
    page.write_text(text)
    assert _page.filled("benchmarks/some.py", {"one": one, "two": two}) == text
    with pytest.raises(ValueError, match=r"some\.md has 0 places for the table 'three', not 1"):
        _page.filled("some", {"three": one})
