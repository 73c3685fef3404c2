"""Two live pictures, two watched programs and two answer boxes in one notebook, and one hand."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from browser.hands import boxes_agree, live_agrees, move_box, move_live, move_watch, watch_agrees
from browser.lab import Lab, Notebook, course_notebook, wait_until

pytestmark = pytest.mark.browser

START = """import os, llamapar as lp
from llamapar.course.exercises import predict
from llamapar.panels.watch_panel import watch
os.environ["LLAMAPAR_PROGRESS"] = os.path.abspath("progress.json")"""
LIVE = {1: "heads", 2: "stages"}
WATCH = {3: "four", 4: "two"}
BOXES = (5, 6)
CELLS = (
    START,
    "heads = lp.live('heads', 'llama3.1-405b', tp=8)\nheads",
    "stages = lp.live('stages', 'llama3.1-405b', pp=16)\nstages",
    "four = watch('attention', tp=2, cp=2)\nfour",
    "two = watch('mlp', tp=2)\ntwo",
    'predict("405B at TP 16: which KV head does each rank store?")',
    'predict("405B at TP 8: first and last query head of rank 3")',
)


@pytest.fixture(scope="module")
def notebook(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    with lab.open(course_notebook(tmp_path_factory.mktemp("instruments"), *CELLS), height=5200) as opened:
        opened.page.emulate_media(reduced_motion="reduce")
        for cell in range(len(CELLS)):
            opened.run(cell)
        for cell in WATCH:
            opened.cell(cell).locator(".lp-tile canvas").first.wait_for()
        for cell in LIVE:
            opened.cell(cell).locator(".main-svg").first.wait_for()
        expect(opened.page.locator(".lp-quiz")).to_have_count(len(BOXES))
        yield opened
        assert opened.console_errors() == []


def settle(notebook: Notebook) -> None:
    """Wait until every panel shows what its kernel has."""
    at = notebook.standing

    def agree() -> bool:
        live = (live_agrees(notebook, at(n).locator(".lp-live"), name) for n, name in LIVE.items())
        watched = (watch_agrees(notebook, at(n).locator(".lp-watch"), name) for n, name in WATCH.items())
        return all(live) and all(watched) and boxes_agree(notebook)

    wait_until(agree, what="every panel agrees with its kernel")


@pytest.mark.soak
def test_one_hand_over_two_of_each(notebook: Notebook, deep: bool) -> None:
    """In `make test` each kind has a hand of its own: in test_live, test_watch and test_boxes."""
    draw = random.Random(1000)
    for step in range(1000 if deep else 100):
        cell = draw.randrange(1, len(CELLS))
        if cell in LIVE:
            move_live(notebook, notebook.standing(cell).locator(".lp-live"), LIVE[cell], draw)
        elif cell in WATCH:
            move_watch(notebook, notebook.standing(cell).locator(".lp-watch"), draw)
        else:
            move_box(notebook.standing(cell).locator(".lp-quiz"), draw)
        if step % 3 == 2:  # two moves of any panels before an answer
            settle(notebook)
    settle(notebook)
    assert notebook.page.locator(".lp-problem", has_text="not done").count() == 0
