"""Saving in the JupyterLab that `make lab` starts: a notebook that nobody changed stays the same file."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from browser.lab import PROJECT, WIDGET, Lab, Notebook, scratch_notebook
from llamapar.course.exercises import PREDICTIONS
from llamapar.panels.page import A_PICTURE

pytestmark = pytest.mark.browser

NOTEBOOKS = sorted((PROJECT / "notebooks").glob("*.ipynb"))
IN_THE_SOAK = "12_shape_debugger"
"""A clinic, a watched run, cards under failing cells, and answer boxes; `make deep` runs all notebooks."""

SENTENCE = (
    ".lp-sentence, .lp-says, .lp-watch .lp-code code, .lp-asks, .lp-clinic .lp-status, p:first-child > b"
)
"""What a panel says: Explorer, live picture, call of a watched run, question, clinic, failing cell's card."""

START = PROJECT / "notebooks" / "00_start_here.ipynb"
PANEL = "lp.explorer("
OURS = "import llamapar as lp\nlp.explorer('tiny', tp=2, tab='ranks')"
A_MAP = "lp.explorer('tiny', tp=2)"
ANOTHER_S = "import ipywidgets\nipywidgets.IntSlider(3)"
PLOTLY = "application/vnd.plotly.v1+json"


def outputs_in(file: Path) -> list[list[dict[str, Any]]]:
    content = json.loads(file.read_text(encoding="utf-8"))
    return [cell["outputs"] for cell in content["cells"] if cell["cell_type"] == "code"]


def soaked(path: Path) -> Any:
    """A notebook as a parameter."""
    marks = [pytest.mark.deep, *([pytest.mark.soak] if path.stem == IN_THE_SOAK else [])]
    return pytest.param(path, marks=marks, id=path.stem)


ASKED = re.compile(r"""^ *(?:predict|check|ask)\("(.+?)"\)""", re.MULTILINE)
HIDES = ":is(.jp-OutputArea-output, details > p)"
IN_SIGHT = """() => [...document.querySelectorAll(".jp-Notebook .jp-Cell")].map((cell) =>
    [...cell.querySelectorAll(".jp-OutputArea-output, details > :not(summary)")].some(
        (one) => one.checkVisibility({ visibilityProperty: true })))"""
"""Of each cell: whether an output is seen, or a text that was folded."""


def folds(path: Path) -> dict[int, range]:
    """Where each prediction stands → the cells that it folds, down to the next question or section."""
    sources = ["".join(cell["source"]) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]
    ends = [n for n, source in enumerate(sources) if ASKED.search(source) or source.startswith("## ")]
    return {
        asks: range(asks + 1, end)
        for asks, end in pairwise([*ends, len(sources)])
        if ASKED.findall(sources[asks])[:1] and ASKED.findall(sources[asks])[0] in PREDICTIONS
    }


@pytest.mark.parametrize("path", [soaked(path) for path in NOTEBOOKS])
def test_opening_running_and_answering_in_any_notebook_leaves_its_file_as_it_was(
    lab: Lab, path: Path
) -> None:
    with lab.open(path) as notebook:
        assert not notebook.modified
        assert notebook.save().read_bytes() == path.read_bytes()
        notebook.run_all()
        assert notebook.save().read_bytes() == path.read_bytes()
        # A cell further down may have moved a panel: each still says what its cell claims in the file.
        panels = 0
        for place, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
            shown = [WIDGET in output.get("data", {}) for output in notebook.outputs(place)]
            if cell["metadata"].get("collapsed"):  # its question is open
                expect(notebook.cell(place).locator(".jp-OutputArea").first).not_to_be_visible()
            for number, claimed in enumerate(cell.get("outputs", ())):
                claim = "".join(claimed.get("data", {}).get("text/plain", ""))
                if not shown[number] or claim.startswith("VBox("):  # of ipywidgets, with panels inside
                    continue
                panel = notebook.cell(place).locator(".jp-OutputArea-child").nth(number)
                sentence = panel.locator(SENTENCE).first
                expect(sentence, claim).to_have_text(re.compile(r"\S"))
                assert " ".join((sentence.text_content() or "").split()) in " ".join(claim.split())
                panels += 1
        assert panels, "each lesson has some"
        answered_and_skipped(lab, notebook, path)


def answered_and_skipped(lab: Lab, notebook: Notebook, path: Path) -> None:
    """Nothing behind a question is seen until a wrong answer or a click, and the file is as it was."""
    questions = {asks: behind for asks, behind in folds(path).items() if behind}
    seen = notebook.page.evaluate(IN_SIGHT)
    assert [n for behind in questions.values() for n in behind if seen[n]] == []
    if len(questions) < 2:
        return
    *rest, skipped = questions
    notebook.cell(skipped).get_by_role("button", name="skip").click()
    answered = next(n for n in rest if notebook.standing(n).locator(":is(.lp-choice, .lp-typed)").count())
    box = notebook.cell(answered).locator(".lp-quiz")
    item = PREDICTIONS[ASKED.findall(notebook.cells()[answered])[0]]()
    if item.kind == "choice":
        wrong = next(n for n, (value, *_) in enumerate(item.choices) if value != item.truth)
        box.locator(".lp-choice").nth(wrong).click()
    else:
        sevens = [7] * len(item.answer) if isinstance(item.answer, list) else [7]
        box.locator(".lp-typed").fill(", ".join(map(str, sevens)))
        box.get_by_role("button", name="check").click()
    expect(box.locator(".lp-verdict")).to_contain_text("Not quite")
    for n in (*questions[answered], *questions[skipped]):
        unfolded = notebook.standing(n).locator(HIDES)
        if unfolded.count():
            expect(unfolded.first).to_be_visible()
    seen = notebook.page.evaluate(IN_SIGHT)
    others = questions.keys() - {answered, skipped}
    assert [n for asks in others for n in questions[asks] if seen[n]] == []
    assert notebook.save().read_bytes() == path.read_bytes()
    with lab.open(notebook.file) as again:  # as stored: what says an answer is folded for all
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        for n in (n for behind in questions.values() for n in behind):
            if cells[n]["cell_type"] == "markdown" or "collapsed" in cells[n]["metadata"]:
                expect(again.cell(n).locator(HIDES).first).not_to_be_visible()


@pytest.mark.soak
def test_opened_run_and_saved_the_file_stays_and_a_panel_is_a_picture_until_it_is_run(lab: Lab) -> None:
    committed = START.read_bytes()
    with lab.open(START) as notebook:
        assert not notebook.modified  # by being opened
        panel = notebook.cell(PANEL)
        picture = panel.locator(".jp-OutputArea-output img")
        picture.wait_for()
        picture.evaluate("(image) => image.decode()")
        assert picture.bounding_box()["width"] == 700
        stored = outputs_in(START)[0][0]["data"]["image/png"]  # where no SVG is shown
        assert int.from_bytes(b64decode(stored)[16:20]) > 900
        assert panel.locator(".llamapar").count() == 0
        assert notebook.save().read_bytes() == committed

        notebook.run_all()
        panel = notebook.cell(PANEL)
        panel.locator(".llamapar .lp-map").first.wait_for()
        assert panel.locator(".jp-OutputArea-output img").count() == 0
        assert notebook.save().read_bytes() == committed
        assert not notebook.modified

        # Saved in the middle of a run, when JupyterLab has cleared the cells that wait.
        notebook.page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
        assert [] in outputs_in(notebook.save())[-5:]
        notebook.run_all()
        assert notebook.save().read_bytes() == committed


@pytest.mark.soak
def test_a_new_panel_is_saved_as_its_figure_and_another_s_widget_as_it_is(lab: Lab, tmp_path: Path) -> None:
    with lab.open(scratch_notebook(tmp_path / "panels.ipynb", OURS, ANOTHER_S, A_MAP)) as notebook:
        notebook.run_all()
        notebook.cell(0).locator(".llamapar .js-plotly-plot").wait_for()
        notebook.cell(2).locator(".llamapar .lp-map").first.wait_for()
        (ours,), (another_s,), (a_map,) = outputs_in(notebook.save())
        assert set(a_map["data"]) == {"text/plain", "text/html"}
        assert set(ours["data"]) == {"text/plain", PLOTLY}
        assert set(another_s["data"]) == {"text/plain", WIDGET}
        with lab.open(notebook.file) as again:  # with a kernel that knows of no panel
            again.cell(0).locator(".js-plotly-plot").get_by_text(A_PICTURE).wait_for()
            again.cell(2).locator(".jp-OutputArea-output img").evaluate("(image) => image.decode()")
            for cell in (0, 2):
                assert "widget" not in again.cell(cell).inner_text()
