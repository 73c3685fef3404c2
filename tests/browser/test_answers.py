"""Every message of a page is answered, whatever the kernel changed before, a change of nothing included."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle, product

import pytest
from playwright.sync_api import expect

from browser.lab import Lab, Notebook, scratch_notebook, wait_until
from browser.panel import RESTART, Panel
from browser.walk import OPENED, Walk
from inputs import TEN_KV_HEADS
from test_bringing import FILES

pytestmark = pytest.mark.browser

AGAIN = "panel  # once more"
CLINIC = "visit = lp.clinic(model='llama3-8b')\nvisit"
KV = "RuntimeError: shape '[1, 8192, -1, 128]' is invalid for input of size 524288"
CONFIG = {"name": "config.json", "mimeType": "application/json"}


@pytest.fixture(scope="module")
def notebook(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    path = tmp_path_factory.mktemp("answers") / "panels.ipynb"
    with lab.open(scratch_notebook(path, OPENED, AGAIN, CLINIC), height=3600) as opened:
        opened.run(0)
        opened.page.locator(".llamapar .js-plotly-plot .main-svg").first.wait_for()
        yield opened
        assert opened.console_errors() == []


@pytest.fixture
def explorer(notebook: Notebook) -> Panel:
    panel = Panel(notebook, 0, "panel")
    panel.kernel("panel.set(**start)")
    panel.settle()
    return panel


# -- what the kernel changes -----------------------------------------------------------------------


def by_fix(panel: Panel) -> None:
    panel.kernel("PANEL.set(tp=16)")
    panel.root.locator("[data-code=LP104]").get_by_title("apply this fix").first.click()
    panel.settle("tp", lambda tp: tp == 8)


def by_remedy(panel: Panel) -> None:
    panel.kernel("PANEL.set(tab='memory', micro_batch=2)")
    panel.root.get_by_title("make this change").first.click()
    expect(panel.root.locator(".lp-remedies")).not_to_be_visible()


def by_set(panel: Panel) -> None:
    panel.kernel("PANEL.set(tp=4)")


def by_load(panel: Panel) -> None:
    panel.kernel(f"PANEL.load({TEN_KV_HEADS!r})")


def by_files(panel: Panel) -> None:
    panel.kernel(
        f"from llamapar.configs.reader import settings_of_texts as read\nPANEL.bring(read({FILES!r}))"
    )


def by_steps(panel: Panel) -> None:
    panel.kernel("PANEL.pin()\nPANEL.set(tp=4)\nPANEL.undo()\nPANEL.swap()")


KERNEL = [by_fix, by_remedy, by_set, by_load, by_files, by_steps]


# -- what a hand does then: first what changes nothing, and what does at once after it ---------------


def slide(panel: Panel, name: str) -> None:
    slider, before = panel.control(name, "input[type=range]"), panel.value(name)
    slider.dispatch_event("input")
    slider.press("ArrowLeft" if before > 1 else "ArrowRight")
    panel.settle(name, lambda now: now == (before // 2 if before > 1 else 2))


def type_in(panel: Panel, name: str) -> None:
    box, before = panel.control(name), panel.value(name)
    box.fill("" if before is None else str(before))
    box.press("Enter")
    box.fill("32")
    box.press("Enter")
    panel.settle(name, lambda now: now == 32)


def choose(panel: Panel, name: str) -> None:
    select, before = panel.control(name, "select"), panel.value(name)
    at = select.evaluate("select => select.selectedIndex")
    select.select_option(index=at)
    select.select_option(index=0 if at else 1)
    panel.settle(name, lambda now: now != before)


def tick(panel: Panel, name: str) -> None:
    before = panel.value(name)
    panel.control(name, "input").dispatch_event("change")
    panel.control(name, "input").click()
    panel.settle(name, lambda now: now is not before)


def click_tab(panel: Panel, _: str) -> None:
    panel.root.locator(".lp-tabs [data-door][aria-selected=true]").click()
    panel.open_tab("vocab")
    panel.settle("tab", lambda tab: tab == "vocab")


def load(panel: Panel, name: str) -> None:
    chooser = panel.control(name, "input")
    for _ in range(2):
        chooser.set_input_files({**CONFIG, "buffer": json.dumps(TEN_KV_HEADS).encode()})
    panel.settle("n_kv_heads", lambda n: n == 10)
    chooser.set_input_files({**CONFIG, "buffer": b"{"})
    expect(panel.answer).to_contain_text("'config.json' is not JSON")
    type_in(panel, "n_kv_heads")
    expect(panel.answer).to_be_empty()


def bring(panel: Panel, _: str) -> None:
    chooser = panel.root.locator(".lp-own input[type=file]")
    for _again in range(2):
        chooser.set_input_files({**CONFIG, "name": "train.toml", "buffer": FILES[0][1].encode()})
    panel.settle("pp", lambda pp: pp == 2)
    chooser.set_input_files({**CONFIG, "buffer": b"{"})
    expect(panel.answer).to_contain_text("config.json")


def step(panel: Panel, name: str) -> None:
    before = panel.value("dp")
    panel.root.locator("[data-step=pin]").click()
    panel.kernel("PANEL.set(dp=64)")
    panel.root.locator("[data-step=undo]").click()
    panel.settle("dp", lambda dp: dp == before)
    panel.root.locator("[data-step=redo]").click()
    panel.settle("dp", lambda dp: dp == 64)


def answer(panel: Panel, name: str) -> None:
    for tab in ("memory", "time"):
        panel.root.locator(f".lp-answers [data-opens={tab}]").click()
        panel.settle("tab", lambda now, tab=tab: now == tab)  # type: ignore[misc]


def copy(panel: Panel, name: str) -> None:
    for export, words in (("CLI", "llamapar"), ("Python", "import llamapar")):
        panel.root.get_by_role("button", name=export, exact=True).click()
        expect(panel.root.locator(".lp-copied")).to_contain_text(words)
    click_tab(panel, name)


Change = Callable[[Panel], None]
Act = tuple[Callable[[Panel, str], None], str]

HANDS: list[Act] = [
    *((slide, "tp"), (type_in, "pp"), (choose, "framework"), (tick, "kv_replication"), (click_tab, "")),
    *((load, "config"), (copy, ""), (bring, ""), (step, ""), (answer, "")),
]
"""One of each kind of control."""

ALIKE: list[Act] = [(type_in, "seq_len"), (type_in, "gpus"), (choose, "preset")]
"""More of kinds that are above, for the soak."""


def answers_after(explorer: Panel, pairs: Iterable[tuple[Change, Act]]) -> None:
    for change, (act, name) in pairs:
        explorer.kernel("panel.set(**start)")
        change(explorer)
        act(explorer, name)


@pytest.mark.soak
def test_any_control_answers_after_any_change_of_the_kernel(explorer: Panel, soak: bool) -> None:
    """One of each kind of control, in turn after one change of each kind, or after all of them."""
    every = product(KERNEL, [*HANDS, *ALIKE])
    answers_after(explorer, every if soak else zip(cycle(KERNEL), HANDS, strict=False))


@pytest.mark.soak
def test_a_hand_that_moves_at_random_is_followed(
    explorer: Panel, counts: Callable[[int, int, int], int]
) -> None:
    """Left and right agree after every move, and nothing freezes; the fixture looks at the console."""
    walk = Walk(explorer, seed=17)
    moves = counts(4, 40, 2_000)
    walk.go(moves)
    print(walk)


def test_a_fix_then_the_open_tab_then_anything_else(explorer: Panel) -> None:
    box = explorer.control("tp")
    box.fill("16")
    explorer.settle("tp", lambda tp: tp == 16)
    explorer.root.locator("[data-code=LP104]").get_by_title("apply this fix").first.click()
    explorer.settle("tp", lambda tp: tp == 8)
    explorer.open_tab("heads")
    explorer.control("preset", "select").select_option("llama3.1-8b")
    explorer.settle("preset", lambda preset: preset == "llama3.1-8b")
    expect(explorer.root.get_by_role("status")).to_contain_text(re.compile("^8 · "))


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
    explorer.root.get_by_title("make this change").first.click(
        delay=200
    )  # the focus leaves the box as the press begins
    wait_until(lambda: explorer.kernel("panel.payload['fits']") == "True", what="a job that fits", seconds=10)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (
            "panel.set(tp=10**5000)",
            "tp=an integer of 16610 bits: tp must be a whole number from 1 to 1048576",
        ),
        (r"panel.set(padding='\ud800')", r"padding='\ud800'"),
        ("panel.set(tp=2**53 + 1)", "tp=9007199254740993: tp must be"),
    ],
)
def test_what_no_page_can_hold_is_told(explorer: Panel, code: str, told: str) -> None:
    explorer.kernel(code)
    expect(explorer.root.locator(".lp-finding").first).to_contain_text(told)
    if "tp=" in code:
        assert explorer.control("tp").input_value() in told
    explorer.control("preset", "select").select_option("llama3.1-8b")
    explorer.settle("preset", lambda preset: preset == "llama3.1-8b")


def test_a_fault_of_ours_is_told_and_the_page_goes_on(explorer: Panel) -> None:
    explorer.kernel(
        "whole = type(panel._state).outcome\ntype(panel._state).outcome = property(lambda state: 1 / 0)"
    )
    explorer.control("dp", "input[type=range]").press("ArrowRight")
    expect(explorer.answer).to_contain_text("not done: ZeroDivisionError: 'division by zero'")
    explorer.settle()
    assert explorer.control("dp").input_value() == "128"
    explorer.kernel("type(panel._state).outcome = whole")
    slide(explorer, "dp")
    expect(explorer.answer).to_be_empty()


@pytest.mark.soak
def test_the_clinic_answers_after_any_change_of_the_kernel(notebook: Notebook) -> None:
    notebook.run(2)
    clinic = Panel(notebook, 2, "visit")
    box = clinic.root.locator("textarea")
    box.fill(KV)
    clinic.settle("tp", lambda tp: tp == 16)
    clinic.kernel("visit.set(tp=16)")
    type_in(clinic, "tp")
    clinic.kernel(r"visit.set(tp=None, model='\ud800')")
    expect(clinic.root.locator(".lp-finding").first).to_contain_text(r"model='\ud800' is not known")
    clinic.control("model").fill("llama3-8b")
    clinic.settle("model", lambda model: model == "llama3-8b")
    clinic.root.get_by_title("open the Explorer on this layout").first.click()
    opened = notebook.page.locator(".lp-opened")
    expect(opened.get_by_role("status")).to_contain_text(re.compile("^8 · "))
    expect(opened.locator("[data-control=preset] select")).to_have_value("llama3-8b")
    load(clinic, "config")
    clinic.kernel("visit.set(framework='torchtitan')")
    choose(clinic, "framework")
    clinic.kernel(f"visit.set(text={KV!r})")
    box.fill(f"{KV} \ud800")
    box.fill(f"{KV} again")
    wait_until(lambda: "again" in clinic.kernel("visit.text"), what="the last text", seconds=10)
    clinic.settle()


@pytest.mark.soak
def test_two_views_of_a_panel_answer_each_its_own(explorer: Panel) -> None:
    explorer.notebook.run(1)
    second = Panel(explorer.notebook, 1, "panel")
    for view, other in ((second, explorer), (explorer, second)):
        type_in(view, "pp")
        other.settle("pp", lambda pp: pp == 32)
        view.control("config", "input").set_input_files({**CONFIG, "buffer": b"{"})
        expect(view.answer).to_contain_text("'config.json' is not JSON")
        assert other.answer.inner_text() == ""
        click_tab(other, "")
        view.kernel("panel.set(**start)")
        expect(view.answer).to_be_empty()


@pytest.mark.soak
def test_a_page_whose_kernel_is_gone_says_so_and_waits_for_nothing(explorer: Panel) -> None:
    """The last one here: it ends the kernel's memory."""
    explorer.kernel("panel.set(tp=0)")
    expect(explorer.root.locator(".lp-figure.lp-kept")).to_have_css("opacity", "0.5")
    explorer.notebook.page.evaluate(RESTART)
    expect(explorer.answer).to_contain_text("the kernel of this panel is gone")
    dimmed = explorer.root.locator(".lp-columns.lp-kept")
    expect(dimmed).to_have_css("opacity", "0.5")
    expect(dimmed.locator(".lp-figure.lp-kept")).to_have_css("opacity", "1")  # not dimmed twice
    explorer.control("preset", "select").select_option("llama3.1-8b")
    expect(explorer.control("preset", "select")).to_have_value("llama3.1-405b")  # as the answers
    expect(explorer.answer).to_contain_text("run this cell again")
    expect(dimmed).to_be_visible()
    explorer.notebook.run(0)
    renewed = Panel(explorer.notebook, 0, "panel")
    renewed.control("preset", "select").select_option("llama3.1-8b")
    renewed.settle("preset", lambda preset: preset == "llama3.1-8b")
