"""Answer boxes in JupyterLab: a reader who guesses wrongly first, takes a hint, then answers rightly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from browser.access import serious, unreached
from browser.lab import Lab, Notebook, scratch_notebook
from browser.panel import ASK, OUTSIDE, RESTART

pytestmark = pytest.mark.browser

HEADS, LINE, DEAL, TILED, LADDER, PLACE, EXERCISE, NUMBER, TEXT = range(1, 10)
START = """import os
from llamapar.course import exercises
from llamapar.course.exercises import check, predict
from llamapar.course.questions import Quiz
ask = Quiz(0).ask
os.environ["LLAMAPAR_PROGRESS"] = os.path.abspath("progress.json")"""
CELLS = (
    START,
    'predict("405B at TP 8: first and last query head of rank 3")',
    'predict("128 and 8 heads at TP 16: which line fails, 1, 2 or 3?")',
    'predict("405B at TP 16: which KV head does each rank store?")',
    'predict("Tiled: still the output of the model with 8 heads?")',
    'predict("24 and 8 heads: which one TP above 8 works with copies?")',
    'predict("Two ranks, three micro-batches: place 1F1B")',
    'check("ranks with KV head 5")',
    'predict("How many of the 16,384 GPUs does the printed row use?")',
    'ask("a layout for a machine")',
)


@pytest.fixture(scope="module")
def notebook(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    path = scratch_notebook(tmp_path_factory.mktemp("boxes") / "scratch.ipynb", *CELLS)
    with lab.open(path, height=5200) as opened:
        for cell in range(len(CELLS)):
            opened.run(cell)
        opened.cell(HEADS).locator(".lp-bands").first.wait_for()
        yield opened
        assert opened.console_errors() == []


def box(notebook: Notebook, cell: int) -> Locator:
    return notebook.standing(cell).locator(".lp-quiz")


def says(notebook: Notebook, cell: int) -> Locator:
    return box(notebook, cell).locator(".lp-verdict")


def press(notebook: Notebook, cell: int, name: str) -> None:
    box(notebook, cell).get_by_role("button", name=name, exact=True).click()


def slot(notebook: Notebook, cell: int, row: int, column: int) -> Locator:
    return box(notebook, cell).locator(f"[data-at='{row}-{column}']")


# The reader comes to each box once, in the order of these tests.


def test_a_prediction_wrong_then_right(notebook: Notebook) -> None:
    heads = box(notebook, HEADS)
    expect(heads.locator(".lp-texts")).to_contain_text("?")
    assert heads.locator(".lp-bands .veil").count() == 1, "the veil"
    press(notebook, HEADS, "a hint")
    expect(heads.locator(".lp-hints li")).to_have_text(
        "128 query heads are dealt to 8 ranks in order, the same number to each."
    )
    heads.locator("input").fill("a few")
    heads.locator("input").press("Enter")
    expect(heads.locator(".lp-problem")).to_contain_text("'a few' is not a list of numbers")
    expect(heads.locator("input")).to_have_value("a few")
    assert notebook.page.evaluate(ASK, "exercises.progress()") == "None", "nothing was kept"
    heads.locator("input").fill("40, 55")
    heads.locator("input").press("Enter")
    expect(says(notebook, HEADS)).to_contain_text("Not quite: you said [40, 55], it is [48, 63].")
    expect(heads.locator(".lp-texts")).to_contain_text("you said 40–55")
    expect(heads.locator(".lp-texts")).to_contain_text("it is 48–63")
    expect(heads.locator(".lp-problem")).to_have_count(0)
    assert heads.locator(".lp-bands :is(.truth, .guess)").count() == 2
    heads.locator("input").fill("48–63")
    press(notebook, HEADS, "check")
    expect(says(notebook, HEADS)).to_contain_text("That is it: [48, 63]. Your first guess was [40, 55].")


@pytest.mark.soak
def test_choices_are_marked_with_what_was_said_and_what_is(notebook: Notebook) -> None:
    for cell, wrong, right in ((LINE, 1, 2), (TILED, 0, 1), (LADDER, 1, 2)):
        choices = box(notebook, cell).locator(".lp-choice")
        assert "✕" not in "".join(choices.all_inner_texts()), "what each gives is veiled"
        choices.nth(wrong).click()
        expect(choices.nth(wrong)).to_contain_text("✕ you said")
        expect(choices.nth(right)).to_contain_text("✓ it is")
    expect(box(notebook, LADDER).locator(".lp-choice").nth(1)).to_contain_text(
        "1.50 query heads ✕ tp=16 does"
    )
    expect(box(notebook, TILED).locator(".lp-map-says")).to_contain_text("14 of 16 ranks")


@pytest.mark.soak
def test_heads_are_dealt_and_a_third_copy_is_refused(notebook: Notebook) -> None:
    deal = box(notebook, DEAL)
    for rank in range(16):
        deal.get_by_role("radio", name=str(rank % 8), exact=True).click()
        slot(notebook, DEAL, 0, rank).click()
        expect(slot(notebook, DEAL, 0, rank)).to_have_text(str(rank % 8))
    deal.get_by_role("radio", name="0", exact=True).click()
    slot(notebook, DEAL, 0, 1).click()
    expect(deal.locator(".lp-problem")).to_contain_text("KV head 0 is on rank 0 and rank 8 already")
    expect(slot(notebook, DEAL, 0, 1)).to_have_text("1")
    press(notebook, DEAL, "check")
    expect(says(notebook, DEAL)).to_contain_text("That is tiled")
    expect(deal.locator("[data-wrong=yes]")).to_have_count(14)
    assert deal.locator(".lp-true td").all_inner_texts() == [str(rank // 2) for rank in range(16)]
    expect(deal.locator(".lp-map-says")).to_contain_text("Each KV head is stored on 2 ranks")


@pytest.mark.soak
def test_a_schedule_is_placed_by_keys_and_an_early_operation_is_refused(notebook: Notebook) -> None:
    place = box(notebook, PLACE)
    slot(notebook, PLACE, 1, 0).click()
    expect(place.locator(".lp-problem")).to_contain_text("it needs F0 of rank 0, which is not placed")
    slot(notebook, PLACE, 0, 0).focus()
    notebook.page.keyboard.press("Enter")
    expect(slot(notebook, PLACE, 0, 0)).to_have_text("F0")
    expect(slot(notebook, PLACE, 0, 0)).to_be_focused()
    notebook.page.keyboard.press("ArrowDown")
    notebook.page.keyboard.press("ArrowRight")
    expect(slot(notebook, PLACE, 1, 1)).to_be_focused()
    notebook.page.keyboard.press("Space")
    expect(slot(notebook, PLACE, 1, 1)).to_have_text("F0")
    expect(place.get_by_role("radio", name="F1", exact=True)).to_be_checked()  # F0 stands everywhere
    rest = "F1 0 1, F1 1 4, B0 1 2, B0 0 4, F2 0 6, B1 1 5, F2 1 7, B1 0 7, B2 1 8, B2 0 10"
    for one in rest.split(", "):
        name, row, column = one.split()
        place.get_by_role("radio", name=name, exact=True).click()
        slot(notebook, PLACE, int(row), int(column)).click()
        expect(slot(notebook, PLACE, int(row), int(column))).to_have_text(name)
    press(notebook, PLACE, "check")
    expect(says(notebook, PLACE)).to_contain_text("That is it.")
    expect(place.locator(".lp-true")).to_have_count(0)


def test_an_exercise_wrong_a_hint_then_right(notebook: Notebook) -> None:
    task = box(notebook, EXERCISE)
    task.locator("input").fill("5, 13")
    press(notebook, EXERCISE, "check")
    expect(says(notebook, EXERCISE)).to_have_text(
        "Not yet. 2 entries, expected 4. 32 ranks for 8 KV heads are 4 copies of each."
    )
    expect(task.get_by_role("button", name="show the answer")).to_be_visible()
    expect(task.locator(".lp-figure")).to_be_hidden()
    press(notebook, EXERCISE, "a hint")
    expect(task.locator(".lp-hints li")).to_have_text("32 ranks for 8 KV heads are 4 copies of each.")
    task.locator("input").fill("20–23")
    press(notebook, EXERCISE, "check")
    expect(says(notebook, EXERCISE)).to_contain_text("That is it: [20, 21, 22, 23].")
    expect(task.locator(".lp-figure .lp-bands").first).to_be_visible()
    told = notebook.page.evaluate(ASK, "exercises.progress().rows[-1][1:3]")
    assert eval(told)[1].endswith("1 right")


@pytest.mark.soak
def test_a_number_is_marked_on_a_line_and_words_stay_words(notebook: Notebook) -> None:
    number = box(notebook, NUMBER)
    number.locator("input").fill("500")
    number.locator("input").press("Enter")
    expect(number.locator(".lp-scale")).to_contain_text("you said 500")
    marks = [number.locator(f".lp-at.lp-{kind}").bounding_box() for kind in ("guess", "truth")]
    assert marks[0]
    assert marks[1]
    assert marks[0]["x"] < marks[1]["x"]
    text = box(notebook, TEXT)
    text.locator("input").fill("<img src=x onerror=alert(1)>")
    press(notebook, TEXT, "check")
    expect(text.locator(".lp-problem")).to_contain_text("'<img src=x onerror=alert(1)>' is not a layout")
    assert text.locator("img").count() == 0


@pytest.mark.soak
@pytest.mark.parametrize("shown", [*product(("light", "dark"), (390, 820, 1280))])
def test_nothing_sticks_out_and_axe_finds_nothing_serious(notebook: Notebook, shown: Any) -> None:
    theme, width = shown
    notebook.set_theme(theme)
    notebook.page.set_viewport_size({"width": width, "height": 5200})
    notebook.page.evaluate(f"window.jupyterapp.shell.{'expand' if width == 1280 else 'collapse'}Left()")
    notebook.page.wait_for_timeout(400)
    for cell in range(1, len(CELLS)):
        assert box(notebook, cell).evaluate(OUTSIDE) == [], CELLS[cell]
    assert serious(notebook, ".lp-quiz") == []
    notebook.page.set_viewport_size({"width": 1280, "height": 5200})
    notebook.set_theme("light")


@pytest.mark.soak
def test_the_keyboard_reaches_every_control(notebook: Notebook) -> None:
    for cell in range(1, len(CELLS)):
        assert unreached(box(notebook, cell)) == [], CELLS[cell]


def test_a_cell_that_is_run_again_opens_with_the_guess_that_stands(notebook: Notebook) -> None:
    notebook.run(HEADS)
    expect(says(notebook, HEADS)).to_contain_text("Not quite: you said [40, 55], it is [48, 63].")
    notebook.run(EXERCISE)
    expect(says(notebook, EXERCISE)).to_have_text("You have solved this before.")


def test_what_is_saved_is_the_folded_answer_and_no_widget(notebook: Notebook) -> None:
    saved = json.loads(notebook.save().read_text())
    for cell in saved["cells"][1:]:
        (output,) = cell["outputs"]
        assert set(output["data"]) == {"text/plain", "text/html"}
        assert "".join(output["data"]["text/html"]).startswith("<details><summary><b>")
        assert output["metadata"] == {}
    assert "widgets" not in saved["metadata"]


@pytest.mark.soak
def test_what_follows_is_folded_until_the_answer_or_a_click(lab: Lab, tmp_path: Any) -> None:
    folded = "<details><summary>After your guess</summary>\n\nwhy it is so\n\n</details>"
    cells = (START, CELLS[LINE], "print('line 3')", folded, CELLS[TILED], "6 * 7", "## Next", "print('seen')")
    with lab.open(scratch_notebook(tmp_path / "folds.ipynb", *cells), height=2400) as opened:
        opened.run_all()
        shown = {cell: opened.standing(cell).locator(".jp-OutputArea-output") for cell in (2, 5, 7)}
        text = opened.standing(3).locator("p")
        skips = [opened.standing(cell).get_by_role("button", name="skip") for cell in (1, 4)]
        expect(skips[1]).to_be_visible()
        for hidden in (shown[2], text, shown[5]):
            expect(hidden).not_to_be_visible()
        expect(shown[7]).to_be_visible()  # of the next section
        opened.standing(1).locator(".lp-choice").first.click()
        for seen in (shown[2], text):
            expect(seen).to_be_visible()
        expect(skips[0]).not_to_be_visible()
        expect(shown[5]).not_to_be_visible()  # the other question is open
        skips[1].click()
        expect(shown[5]).to_have_text("42")
        expect(shown[5]).to_be_visible()
        opened.run(4)  # asked anew
        expect(shown[5]).not_to_be_visible()
        opened.run(1)  # which stands in the progress
        expect(shown[2]).to_be_visible()
        assert opened.console_errors() == []


@pytest.mark.soak
def test_a_kernel_that_is_gone_is_said_in_the_box(notebook: Notebook) -> None:
    notebook.page.evaluate(RESTART)
    number = box(notebook, NUMBER)
    expect(number.locator(".lp-problem")).to_contain_text("the kernel of this panel is gone", timeout=20_000)
    number.locator("input").fill("8192")
    number.locator("input").press("Enter")
    expect(number.locator(".lp-problem")).to_contain_text("run this cell again")
