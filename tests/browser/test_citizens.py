"""Panels beside other widgets, in boxes and linked, in one walk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from browser.hands import kernel
from browser.lab import Lab, Notebook, scratch_notebook, wait_until

pytestmark = [pytest.mark.browser, pytest.mark.soak]

MAKE = """import llamapar as lp
import ipywidgets as w
def two():
    return [lp.live("heads", tp=2), lp.live("vocab", tp=4)]"""
BOXES = {
    "lives": "w.HBox(two())",
    "own width": "a, b = two(); a.layout.flex = '0 0 300px'; w.HBox([a, b])",
    "explorers": "w.HBox([lp.explorer('llama3-8b', tp=2), lp.explorer('llama3-8b', tp=4)])",
    "live and watch": "w.HBox([lp.live('heads', tp=2), lp.watch('mlp', tp=2)])",
    "output": """out = w.Output()
with out:
    display(lp.live("heads", tp=2))
w.HBox([out, lp.live("vocab", tp=4)])""",
    "column": "w.VBox(two())",
    "grid": "w.GridBox(two(), layout=w.Layout(grid_template_columns='repeat(2, 1fr)'))",
    "tab": "w.Tab(two())",
    "accordion": "w.Accordion(two(), selected_index=0)",
}
LINKED = """panel, other = lp.explorer('llama3-8b', tp=2), lp.live('heads', tp=1)
slider, seen = w.IntSlider(2, 0, 16, description='linked'), []
w.jslink((slider, 'value'), (panel, 'tp'))
w.link((panel, 'tp'), (other, 'tp'))
panel.observe(lambda change: seen.append(change.new), 'tp')
w.VBox([slider, panel, other])"""
HELD = "(panel.tp, other.tp, panel.payload['values']['tp'])"
WIDTHS = """cell => [...cell.querySelectorAll('.llamapar')]
    .map(one => Math.round(one.getBoundingClientRect().width)).filter(Boolean)"""


@pytest.fixture(scope="module")
def notebook(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    path = tmp_path_factory.mktemp("citizens") / "citizens.ipynb"
    with lab.open(scratch_notebook(path, MAKE, *BOXES.values(), LINKED), height=1400) as opened:
        opened.run(0)
        yield opened
        assert opened.console_errors() == []


def widths(notebook: Notebook, cell: int) -> Any:
    """Of the panels that are seen; another tab's is painted, too."""
    expect(notebook.cell(cell).locator(".llamapar[data-painted]")).to_have_count(2)
    return notebook.cell(cell).evaluate(WIDTHS)


def test_panels_share_a_row_and_fill_a_column(notebook: Notebook) -> None:
    found = {}
    for cell, name in enumerate(BOXES, 1):
        notebook.run(cell)
        found[name] = widths(notebook, cell)
    whole = found["column"][0]
    assert whole > 800
    for name in ("lives", "explorers", "live and watch", "grid"):
        assert all(abs(one - whole / 2) < 20 for one in found[name]), (name, found)
    assert abs(found["own width"][0] - 300) < 20
    assert sum(found["own width"]) > whole - 40
    assert min(found["output"]) > 300
    assert found["column"] == [whole, whole]
    assert min(found["tab"] + found["accordion"]) > whole - 80


def test_a_link_in_the_browser_moves_a_panel_and_springs_back(notebook: Notebook) -> None:
    cell = len(BOXES) + 1
    notebook.run(cell)
    widths(notebook, cell)
    number = notebook.cell(cell).locator(".widget-readout").first
    for typed, shown in (("8", "8"), ("3", "3"), ("0", "3")):
        number.fill(typed)
        number.press("Enter")
        expect(number).to_have_text(shown)
        wait_until(
            lambda shown=shown: kernel(notebook, HELD) == (int(shown),) * 3, what=f"tp={shown} on both"
        )
    expect(notebook.cell(cell).locator(".lp-problem").first).to_contain_text("tp must be a whole number")
    assert kernel(notebook, "seen") == [8, 3]


def test_a_page_that_is_loaded_anew_shows_its_panels_and_they_still_move(notebook: Notebook) -> None:
    cell = len(BOXES) + 1
    notebook.run(cell)
    widths(notebook, cell)
    notebook.save()
    notebook.page.reload()
    opened = "window.jupyterapp?.shell.currentWidget?.content?.model?.cells.length"
    notebook.page.wait_for_function(f"{opened} > {cell}")
    widths(notebook, cell)
    number = notebook.cell(cell).locator(".widget-readout").first
    number.fill("4")
    number.press("Enter")
    wait_until(lambda: kernel(notebook, HELD) == (4,) * 3, what="tp=4 on both, by the kernel that lives on")
    expect(notebook.cell(cell).locator(".lp-sentence").first).to_contain_text("8 of 32 query heads")
