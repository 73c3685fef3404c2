"""Every message of a page is answered, whatever the kernel changed before: a hand, and known freezes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import expect

from browser.hands import Run, check_agrees, in_time
from browser.lab import Lab, Notebook, scratch_notebook, wait_until
from browser.panel import ASK, RESTART, Panel
from browser.walk import BAD_CONFIG, OPENED, Walk

pytestmark = [pytest.mark.browser, pytest.mark.soak]

AGAIN = "panel  # once more"
CLINIC = "visit = lp.clinic(model='llama3-8b')\nvisit"


@pytest.fixture(scope="module")
def notebook(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    path = tmp_path_factory.mktemp("answers") / "panels.ipynb"
    with lab.open(scratch_notebook(path, OPENED, AGAIN, CLINIC), height=3600) as opened:
        opened.run(0)
        opened.page.locator(".llamapar .lp-map").first.wait_for()
        yield opened
        assert opened.console_errors() == []


@pytest.fixture
def explorer(notebook: Notebook) -> Panel:
    panel = Panel(notebook, 0, "panel")
    panel.kernel("panel.set(**start)")
    panel.settle()
    return panel


def type_in(panel: Panel, name: str) -> None:
    box = panel.control(name)
    box.fill("32")
    box.press("Enter")
    panel.settle(name, lambda now: now == 32)


def test_a_hand_that_moves_at_random_is_followed_and_says_what_check_says(
    explorer: Panel, run: Run, counts: Callable[[int, int, int], int]
) -> None:
    """Left and right agree after every move, and nothing freezes; the fixture looks at the console."""
    compared: Counter[bool] = Counter()
    walk = Walk(explorer, 17, lambda panel: compared.update([in_time(lambda: check_agrees(panel, run))]))
    walk.go(counts(4, 25, 2_000))
    # The focus leaves a box, which sends what was typed last. What was refused may stand over the status.
    explorer.root.locator(".lp-status").first.focus()
    explorer.settle()
    explorer.kernel("panel.cancel()\npanel.set(**start)\npanel.set(tp=16)")
    explorer.settle()
    assert check_agrees(explorer, run)
    explorer.kernel("panel.payload = {**panel.payload, 'findings': panel.payload['findings'][1:]}")
    with pytest.raises(AssertionError, match="--tp 16"):
        check_agrees(explorer, run)
    assert compared[True] > walk.moves / 2
    print(walk, dict(compared))


def test_a_fix_then_the_open_tab_then_anything_else(explorer: Panel) -> None:
    box = explorer.control("tp")
    box.fill("16")
    explorer.settle("tp", lambda tp: tp == 16)
    explorer.root.locator(".lp-repairs").get_by_title("apply this fix").first.click()
    explorer.settle("tp", lambda tp: tp == 8)
    explorer.open_tab("heads")
    explorer.control("preset", "select").select_option("llama3.1-8b")
    explorer.settle("preset", lambda preset: preset == "llama3.1-8b")
    expect(explorer.root.locator(".lp-product")).to_have_text(re.compile("^8 · "))


def test_a_line_with_a_word_too_many_is_mended_by_its_button(explorer: Panel) -> None:
    line = explorer.root.locator(".lp-state")
    line.fill("llamapar check llama3-8b --tp 4 --dp 2")
    line.blur()
    explorer.answer.get_by_role("button", name="--model llama3-8b --tp 4").click()
    explorer.settle("preset", lambda preset: preset == "llama3-8b")
    expect(explorer.answer).to_be_empty()


def test_a_turn_is_pressed_right_after_typing(explorer: Panel) -> None:
    explorer.kernel("panel.set(tab='memory')")
    explorer.control("micro_batch").fill("2")
    explorer.settle("micro_batch", lambda n: n == 2)
    # the focus leaves the box as the press begins
    explorer.root.get_by_title("make this change").first.click(delay=200)
    wait_until(lambda: explorer.kernel("panel.payload['fits']") == "'It fits.'", what="it fits", seconds=10)


def test_knobs_that_move_while_the_kernel_is_busy_go_together(explorer: Panel) -> None:
    """The focus of each asks for maps ahead, which must not keep the changes apart."""
    before = explorer.kept()["seq"]
    explorer.notebook.page.evaluate(f"code => void ({ASK})(code)", "import time; time.sleep(3)")
    for knob in ("TP", "PP", "layers", "dim", "vocabulary"):
        explorer.root.get_by_label(f"{knob}, in steps").press("ArrowLeft")
    explorer.settle("vocab_size", lambda size: size < 128256)
    assert explorer.kept()["seq"] <= before + 2
    assert explorer.value("tp") == 4


def test_two_views_of_a_panel_answer_each_its_own(explorer: Panel) -> None:
    explorer.notebook.run(1)
    second = Panel(explorer.notebook, 1, "panel")
    ids = explorer.notebook.page.evaluate(
        "[...document.querySelectorAll('.llamapar [id]')].map(({ id }) => id)"
    )
    assert len(ids) == len(set(ids)) > 100, "a label names a control of its own view"
    for view, other in ((second, explorer), (explorer, second)):
        type_in(view, "pp")
        other.settle("pp", lambda pp: pp == 32)
        view.root.locator(".lp-own input[type=file]").set_input_files(BAD_CONFIG)
        expect(view.answer).to_contain_text("config.json, line 1: no JSON")
        assert other.answer.inner_text() == ""
        other.open_tab("vocab")
        other.settle("tab", lambda tab: tab == "vocab")
        view.kernel("panel.set(**start)")
        expect(view.answer).to_be_empty()


def test_a_page_whose_kernel_is_gone_says_so_and_waits_for_nothing(explorer: Panel) -> None:
    """The last one here: it ends the kernel's memory."""
    explorer.notebook.page.evaluate(RESTART)
    expect(explorer.answer).to_contain_text("the kernel of this panel is gone")
    dimmed = explorer.root.locator(".lp-columns.lp-kept")
    expect(dimmed).to_have_css("opacity", "0.5")
    explorer.control("preset", "select").select_option("llama3.1-8b")
    expect(explorer.control("preset", "select")).to_have_value("llama3.1-405b")  # as the answers
    expect(explorer.answer).to_contain_text("run this cell again")
    expect(dimmed).to_be_visible()
    explorer.notebook.run(0)
    renewed = Panel(explorer.notebook, 0, "panel")
    renewed.control("preset", "select").select_option("llama3.1-8b")
    renewed.settle("preset", lambda preset: preset == "llama3.1-8b")
