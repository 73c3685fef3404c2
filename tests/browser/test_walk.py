"""A new user walks through the course: each cell run, guess made, fold opened, picture and control moved."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path
from typing import Any

import pytest

from browser.lab import PROJECT, Lab, Notebook
from browser.panel import Panel
from browser.walk import Walk, acts, controls
from llamapar.panels.controls import CLINIC

pytestmark = pytest.mark.browser

NOTEBOOKS = sorted((PROJECT / "notebooks").glob("*.ipynb"))
IN_THE_SOAK = "00_start_here"
UNANSWERED = re.compile(r'(predict\(\s*"(?:[^"\\]|\\.)*",\s*)None\b')
GUESSES = ("0", "2", "8.5", "True", '"yes"', "[1, 2]")
WIDGETS = "__import__('ipywidgets').widgets.widget._instances.values()"
LAST = f"[each for each in {WIDGETS} if type(each).__name__ == 'KIND'][-1]"
SET_SOURCE = "cells[given[0]].sharedModel.setSource(given[1]);"


def walked(path: Path) -> Any:
    """A notebook as a parameter of `make deep`; the first one is walked in `make soak`, too."""
    marks = [pytest.mark.deep, *([pytest.mark.soak] if path.stem == IN_THE_SOAK else [])]
    return pytest.param(path, marks=marks, id=path.stem)


def look(notebook: Notebook, index: int) -> int:
    """Open what is folded in a cell, point at what is drawn there; how many moves that were."""
    cell = notebook.cell(index)
    folds = cell.locator(".jp-RenderedHTML details > summary, .jp-RenderedMarkdown details > summary")
    for fold in folds.all():
        if fold.is_visible():
            fold.click()
    pictures = cell.locator(".jp-RenderedPlotly .nsewdrag:visible")
    for picture in pictures.all():
        picture.hover(force=True)
    return folds.count() + pictures.count()


def answer(notebook: Notebook, index: int, draw: random.Random) -> int:
    """Take a hint in each box of a cell and guess something; how many moves that were."""
    moves = 0
    for box in notebook.cell(index).locator(".lp-quiz").all():
        for node in (".lp-hint:visible", ".lp-choice", ".lp-slot"):
            if found := box.locator(node).count():
                box.locator(node).nth(draw.randrange(found)).click()
                moves += 1
        if box.locator(".lp-typed").count():
            box.locator(".lp-typed").fill(draw.choice(GUESSES).strip('"'))
            box.locator(".lp-typed").press("Enter")
            moves += 1
        box.locator(".lp-verdict:visible, .lp-problem, .lp-slot[data-tint]").first.wait_for()
    return moves


def step_ladder(notebook: Notebook, index: int) -> int:
    """Each rung of a live picture once; how many moves that were."""
    rungs = notebook.cell(index).locator(".lp-live .lp-rung")
    for rung in rungs.all():
        rung.click()
    return rungs.count()


def step_through(notebook: Notebook, index: int) -> int:
    """Each step of watched ranks once, forward and then backward; how many moves that were."""
    moves = 0
    for watched in notebook.cell(index).locator(".lp-watch").all():
        watched.locator(".lp-tile canvas").first.wait_for()
        for phase in watched.locator("[data-control=phase] [role=radio]").all():
            phase.click()
            dots = watched.locator(".lp-dot")
            for dot in dots.all():
                dot.click()
            moves += 1 + dots.count()
    return moves


def walk_panel(notebook: Notebook, index: int, draw: random.Random) -> int:
    """Everything once in the panel of a cell; how many moves that were."""
    explorer = notebook.cell(index).locator(".lp-explorer").count()
    notebook.cell(index).locator(".llamapar").first.wait_for()
    if explorer:
        notebook.cell(index).locator(".llamapar .js-plotly-plot .main-svg").first.wait_for()
    kind = "Explorer" if explorer else "Clinic"
    panel = Panel(notebook, index, LAST.replace("KIND", kind))
    panel.settle()
    walk = Walk(panel, draw.randrange(2**32))
    at_first = panel.kept()["values"]
    for act in acts() if explorer else controls(CLINIC):
        walk.act(act)
    if explorer:  # as the notebook had it, for its next cell; and then its first "try"
        walk.move("back", lambda: panel.kernel(f"PANEL.cancel()\nPANEL.set(**{at_first!r})"))
        fix = panel.root.get_by_title(re.compile("apply this fix|make this change"))
        if fix.count():
            walk.move("try", fix.first.click)
    return walk.moves


@pytest.mark.parametrize("path", [walked(path) for path in NOTEBOOKS])
def test_a_new_user_walks_a_notebook(lab: Lab, path: Path) -> None:
    draw = random.Random(path.stem)
    moves, begun = 0, time.monotonic()
    with lab.open(path, height=1200) as notebook:
        sources = notebook.cells()
        for index, source in enumerate(sources):
            guessed = UNANSWERED.sub(lambda found: found[1] + draw.choice(GUESSES), source)
            if guessed != source:
                notebook._ask(SET_SOURCE, [index, guessed])
            notebook.run(index)
            moves += 1 + (guessed != source) + look(notebook, index)
            moves += answer(notebook, index, draw) + step_ladder(notebook, index)
            moves += step_through(notebook, index)
            if notebook.cell(index).locator(".llamapar:not(.lp-quiz, .lp-live, .lp-watch)").count():
                moves += walk_panel(notebook, index, draw)
        assert notebook.dialogs() == []
        assert notebook.popups() == []
        assert notebook.console_errors() == []
    print(f"{path.stem}: {moves} moves in {time.monotonic() - begun:.0f} s")
