"""axe-core and the Tab key on both panels and on every lesson's widgets: nothing serious or out of reach."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser.access import serious, unreached
from browser.lab import WIDGET, Lab, Notebook, scratch_notebook
from browser.panel import OPEN, open_tab
from browser.test_walk import NOTEBOOKS
from inputs import few
from test_bringing import FILES

pytestmark = pytest.mark.browser

EXPLORER = "import llamapar as lp\npanel = lp.explorer('llama3-8b', tp=16, pp=1, dp=4)\npanel.pin()\npanel"
CLINIC = "visit = lp.clinic('n_kv_heads (8) must be divisible by tp (16)', model='llama3-70b')\nvisit"
BRING = f"""from llamapar.configs.reader import settings_of_texts as read
for shown in (visit, panel):
    shown.bring(read({FILES!r}))"""


@pytest.fixture(scope="module")
def notebook(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    path = scratch_notebook(tmp_path_factory.mktemp("axe") / "axe.ipynb", EXPLORER, CLINIC, BRING)
    with lab.open(path, height=2400) as opened:
        for cell in (0, 1):
            opened.run(cell)
        opened.cell(0).locator(".main-svg").first.wait_for()
        yield opened
        assert opened.console_errors() == []


@pytest.mark.soak
def test_axe_would_find_a_button_without_a_name(notebook: Notebook) -> None:
    panel = notebook.cell(0).locator(".llamapar").first
    panel.evaluate("node => node.append(document.createElement('button'))")
    assert [found.split(":")[0] for found in serious(notebook)] == ["button-name"]
    panel.evaluate("node => node.lastChild.remove()")


@pytest.mark.parametrize("theme", few(["light", "dark"], 1))
def test_axe_finds_nothing_serious(notebook: Notebook, theme: Any, soak: bool) -> None:
    notebook.set_theme(theme)
    wide = notebook.page.viewport_size
    assert wide is not None
    notebook.run(0)
    notebook.cell(0).locator(".main-svg").first.wait_for()
    assert serious(notebook) == []
    if theme == "light" or soak:  # what a width changes is the same in both
        notebook.page.set_viewport_size({"width": 390, "height": 844})
        notebook.page.wait_for_timeout(300)
        assert serious(notebook) == [], "narrow"
        notebook.page.set_viewport_size(wide)
    notebook.run(2)
    names = ["time", "plan"]
    if soak:
        names += ["vocab", "sequence", "stages", "pipeline", "ranks", "layer", "memory", "run"]
    for name in names:
        open_tab(notebook.cell(0).locator(".llamapar").first, name)
        notebook.page.wait_for_timeout(400)
        assert serious(notebook) == [], name


def test_the_keyboard_reaches_every_control(notebook: Notebook) -> None:
    for cell in (0, 1):
        panel = notebook.cell(cell).locator(".llamapar").first
        panel.evaluate(OPEN)
        assert unreached(panel) == []


@pytest.mark.deep
@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_every_widget_of_a_lesson(lab: Lab, path: Path) -> None:
    with lab.open(path, height=1400) as opened:
        for index in range(len(opened.cells())):
            opened.run(index)
            if not any(WIDGET in output.get("data", {}) for output in opened.outputs(index)):
                continue
            panels = opened.cell(index).locator(".llamapar")
            panels.first.wait_for()
            for panel in panels.all():
                assert unreached(panel) == [], f"cell {index}"
            assert serious(opened) == [], f"cell {index}"
