"""The card under a failing cell in JupyterLab: find the edit, put it into the cell, run the cell, save."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import expect

from browser.lab import Lab, LabError, scratch_notebook

pytestmark = [pytest.mark.browser, pytest.mark.soak]

SETUP = "import torch\n%load_ext llamapar\ntp, heads, w = 4, 8, torch.ones(32, 6)"
FAILS = "h = torch.ones(3, 6) @ w.chunk(tp)[0].T\nfor _ in range(1):\n    q = h.view(3, heads, 4)"
AGAIN = "h.view(3, heads, 4)"
TABLE = """(table) => [
    table.getBoundingClientRect().left - table.closest(".jp-OutputArea-output").getBoundingClientRect().left,
    parseFloat(getComputedStyle(table.querySelector("td")).paddingLeft),
]"""
"""How far from the left edge of the output a table begins, and the room beside a cell's words, in pixels."""


def test_from_a_failing_cell_to_one_that_runs(lab: Lab, tmp_path: Path) -> None:
    with lab.open(scratch_notebook(tmp_path / "cell.ipynb", SETUP, FAILS, AGAIN), height=1400) as notebook:
        notebook.run(0)
        for number, cell in ((1, notebook.cell(1)), (2, notebook.cell(2))):
            with pytest.raises(LabError, match=r"is invalid for input of size 24"):
                notebook.run(number)
            cell.get_by_role("button", name="find the edit").click()
            put = cell.get_by_role("button", name="put it into the cell")
            expect(put).to_be_visible(timeout=30_000)
            expect(cell.get_by_text("proved: equals one process")).to_be_visible()
            left, room = cell.locator("table").last.evaluate(TABLE)
            assert left < 40, "the table stands on the left, where the card's words begin"
            assert room >= 4, "its columns do not touch"
            if number == 2:  # The reader has changed the cell since.
                notebook._ask("cells[2].sharedModel.setSource('h.sum()');")
            put.click()
            told = "the cell is changed: run it again" if number == 1 else "no cell above has the old line"
            expect(cell.get_by_role("status")).to_contain_text(told)
            if number == 1:
                assert notebook.cells()[1] == FAILS.replace("heads", "heads // tp")
                notebook.run(1)
        assert notebook.cells()[2] == "h.sum()"
        stored = json.loads(notebook.save().read_text())["cells"][2]["outputs"][-1]
        assert stored["data"].keys() == {"text/html", "text/plain"}
        assert notebook.console_errors() == []
