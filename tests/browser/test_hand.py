"""One hand over the Explorer, beside `llamapar check`, and over every lesson's widgets, beside their code."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator

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
from browser.lab import WIDGET, Lab, Notebook, scratch_notebook, wait_until
from browser.panel import Panel
from browser.test_walk import NOTEBOOKS, walked
from browser.walk import OPENED, Act, Walk, acts, controls
from llamapar.panels.controls import CLINIC

pytestmark = pytest.mark.browser

LESSONS = [path for path in NOTEBOOKS if path.stem != "14_twenty_questions"]  # whose answers stand in cells
BY_ID = "__import__('ipywidgets').widgets.widget._instances['ID']"


@pytest.mark.soak
def test_a_hand_over_the_explorer_says_what_check_says(
    lab: Lab, tmp_path: Path, run: Run, counts: Any
) -> None:
    compared: Counter[bool] = Counter()
    with lab.open(scratch_notebook(tmp_path / "explorer.ipynb", OPENED), height=3600) as notebook:
        notebook.run(0)
        notebook.page.locator(".llamapar .js-plotly-plot .main-svg").first.wait_for()
        panel = Panel(notebook, 0, "panel")
        panel.settle()
        walk = Walk(panel, 33, lambda panel: compared.update([in_time(lambda: check_agrees(panel, run))]))
        walk.go(counts(4, 16, 1_000))
        panel.root.locator(
            ".lp-status"
        ).first.click()  # the focus leaves a box, which sends what was typed last
        panel.settle()
        panel.kernel("panel.cancel()\npanel.set(**start)\npanel.set(tp=16)")
        panel.settle()
        assert check_agrees(panel, run)
        panel.kernel("panel.payload = {**panel.payload, 'findings': panel.payload['findings'][1:]}")
        with pytest.raises(AssertionError, match="--tp 16"):
            check_agrees(panel, run)
        assert notebook.console_errors() == []
    assert compared[True] > walk.moves / 2
    print(walk, dict(compared))


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


@pytest.mark.parametrize("path", [walked(path) for path in LESSONS])
def test_a_hand_over_a_lesson_shows_what_its_code_gives(lab: Lab, path: Path, run: Run, deep: bool) -> None:
    begun = time.monotonic()
    with lab.open(path, height=1400) as notebook:
        notebook.page.emulate_media(reduced_motion="reduce")
        for index in range(len(notebook.cells())):
            notebook.run(index)
        lesson = Lesson(notebook, run, path.stem)
        for _ in range(67 if deep else 12):
            lesson.move()
        assert notebook.page.locator(".lp-problem", has_text="not done").count() == 0
        assert notebook.console_errors() == []
    print(f"{path.stem}: {dict(lesson.moves)} in {time.monotonic() - begun:.0f} s")
