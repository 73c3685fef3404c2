"""A new user walks through the course, and a hand moves its widgets, beside what their own code gives."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator

from browser.access import serious, unreached
from browser.hands import (
    Run,
    box_anew,
    check_agrees,
    in_time,
    kernel,
    live_agrees,
    live_anew,
    move_box,
    move_live,
    move_watch,
    watch_agrees,
    watch_anew,
)
from browser.lab import PROJECT, WIDGET, Lab, Notebook, wait_until
from browser.panel import Panel
from browser.walk import Act, Walk, acts, controls
from llamapar.panels.controls import CLINIC

pytestmark = pytest.mark.browser

NOTEBOOKS = sorted((PROJECT / "notebooks").glob("*.ipynb"))
IN_THE_SOAK = "00_start_here"
UNANSWERED = re.compile(r'(predict\(\s*"(?:[^"\\]|\\.)*",\s*)None\b')
GUESSES = ("0", "2", "8.5", "True", '"yes"', "[1, 2]")
WIDGETS = "__import__('ipywidgets').widgets.widget._instances.values()"
LAST = f"[each for each in {WIDGETS} if type(each).__name__ == 'KIND'][-1]"
BY_ID = "__import__('ipywidgets').widgets.widget._instances['ID']"
ANSWERED_IN_CELLS = "15_twenty_questions"
SET_SOURCE = "cells[given[0]].sharedModel.setSource(given[1]);"


def walked(path: Path) -> Any:
    """A notebook as a parameter of `make deep`; the first one is walked in `make soak`, too."""
    marks = [pytest.mark.deep, *([pytest.mark.soak] if path.stem == IN_THE_SOAK else [])]
    return pytest.param(path, marks=marks, id=path.stem)


def require_access(notebook: Notebook, index: int) -> None:
    panels = notebook.cell(index).locator(".llamapar")
    panels.first.wait_for()
    for panel in panels.all():
        assert unreached(panel) == [], f"cell {index}"
    assert serious(notebook) == [], f"cell {index}"


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
    # As the notebook had it, for its next cell; and then an Explorer's first "try".
    if not explorer:
        emptied = {name: value or None for name, value in at_first.items()}
        walk.move("back", lambda: panel.kernel(f"PANEL.set(**{emptied!r})"))
    else:
        walk.move("back", lambda: panel.kernel(f"PANEL.cancel()\nPANEL.set(**{at_first!r})"))
        fix = panel.root.get_by_title(re.compile("apply this fix|make this change"))
        if fix.count():
            walk.move("try", fix.first.click)
    return walk.moves


class Lesson:
    """A lesson that was run, and a hand on its widgets."""

    def __init__(self, notebook: Notebook, run: Run, seed: str) -> None:
        self.notebook, self.run_command, self.draw = notebook, run, random.Random(seed)
        self.moves: Counter[str] = Counter()
        self.widgets: dict[str, list[tuple[int, int, str]]] = {}
        for index in range(len(notebook.cells())):
            views = [
                output["data"][WIDGET]
                for output in notebook.outputs(index)
                if WIDGET in output.get("data", {})
            ]
            for nth, view in enumerate(views):
                name = BY_ID.replace("ID", view["model_id"])
                kind = kernel(notebook, f"type({name}).__name__")
                self.widgets.setdefault(kind, []).append((index, nth, name))

    def move(self) -> None:
        """One move of any widget, after which it must show what its own line of code gives."""
        kind = self.draw.choice([*self.widgets])
        index, nth, name = self.draw.choice(self.widgets[kind])
        root = self.notebook.cell(index).locator(".llamapar").nth(nth)
        root.wait_for()
        try:
            getattr(self, kind.lower())(root, name, index, nth)
        except Exception as failed:
            raise AssertionError(f"cell {index}, {kind}, move {self.moves.total()}: {failed}") from failed
        self.moves[kind] += 1

    def live(self, root: Locator, name: str, *_: int) -> None:
        move_live(self.notebook, root, name, self.draw)
        wait_until(lambda: live_agrees(self.notebook, root, name), what="a picture as its kernel has it")
        in_time(lambda: live_anew(self.notebook, root, name))

    def watch(self, root: Locator, name: str, *_: int) -> None:
        root.locator(".lp-tile canvas").first.wait_for()
        move_watch(self.notebook, root, self.draw)
        wait_until(lambda: watch_agrees(self.notebook, root, name), what="ranks as their kernel has them")
        in_time(lambda: watch_anew(self.notebook, root, name))

    def box(self, root: Locator, name: str, *_: int) -> None:
        move_box(root, self.draw)
        in_time(lambda: box_anew(self.notebook, root, name))

    def explorer(self, _: Locator, name: str, index: int, nth: int) -> None:
        self._panel(
            name, index, nth, acts(), lambda panel: in_time(lambda: check_agrees(panel, self.run_command))
        )

    def clinic(self, _: Locator, name: str, index: int, nth: int) -> None:
        self._panel(name, index, nth, [*controls(CLINIC)], lambda panel: None)

    def _panel(self, name: str, index: int, nth: int, choices: list[Act], also: Any) -> None:
        panel = Panel(self.notebook, index, name, nth)
        panel.settle()
        Walk(panel, self.draw.randrange(2**32), also).act(self.draw.choice(choices))


@pytest.mark.parametrize("path", [walked(path) for path in NOTEBOOKS])
def test_a_new_user_walks_a_notebook_and_a_hand_moves_what_is_there(
    lab: Lab, path: Path, run: Run, deep: bool
) -> None:
    """Each cell is run, each guess made, each fold opened, each picture and control moved; then any widget.

    What comes is in reach of the Tab key, and axe-core finds nothing serious in it."""
    draw = random.Random(path.stem)
    moves, begun = 0, time.monotonic()
    with lab.open(path, height=1400) as notebook:
        sources = notebook.cells()
        for index, source in enumerate(sources):
            guessed = UNANSWERED.sub(lambda found: found[1] + draw.choice(GUESSES), source)
            if guessed != source:
                notebook._ask(SET_SOURCE, [index, guessed])
            notebook.run(index)
            if any(WIDGET in output.get("data", {}) for output in notebook.outputs(index)):
                require_access(notebook, index)
            moves += 1 + (guessed != source) + look(notebook, index)
            moves += answer(notebook, index, draw) + step_ladder(notebook, index)
            moves += step_through(notebook, index)
            if notebook.cell(index).locator(".llamapar:not(.lp-quiz, .lp-live, .lp-watch)").count():
                moves += walk_panel(notebook, index, draw)
        notebook.page.emulate_media(reduced_motion="reduce")
        lesson = Lesson(notebook, run, path.stem)
        if path.stem != ANSWERED_IN_CELLS:
            for _ in range(67 if deep else 12):
                lesson.move()
        assert notebook.page.locator(".lp-problem", has_text="not done").count() == 0
        assert notebook.dialogs() == []
        assert notebook.popups() == []
        assert notebook.console_errors() == []
    print(f"{path.stem}: {moves} moves and {dict(lesson.moves)} in {time.monotonic() - begun:.0f} s")
