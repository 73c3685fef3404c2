"""The Explorer as a person meets it: JupyterLab, Chromium, a keyboard and a mouse; its Run tab, too."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from browser.lab import Lab, Notebook, scratch_notebook
from browser.panel import open_tab
from llamapar.panels.controls import MAIN_TABS, TIMES

pytestmark = pytest.mark.browser

CREATE = """\
import llamapar as lp
at_8k = dict(tp=8, pp=16, dp=128, zero=2, seq_len=8192, rank=6043)
panel = lp.explorer("llama3.1-405b", **at_8k)
panel"""
MISFIT = (
    'panel.set(preset="llama3.2-1b", tp=2, cp=1, pp=3, dp=1, gpus=12, gpus_per_node=1, '
    "seq_len=8192, batch_tokens=2**16, batch_per_dp=4)"
)
"""Six findings on few GPUs, where a search for fixes is soon over."""
LAYOUT = "str(panel.job.layout)"
TINY = 'panel.set(preset="tiny", tp=2, cp=1, pp=1, dp=1, seq_len=1024)'
FITS_NOWHERE = 'panel.set(preset="llama3-70b", tp=3, cp=1, pp=1, dp=1, gpus=3, seq_len=None, tab="memory")'
KV_HEADS = 'panel.set(preset="llama3.1-8b", tp=16)'
LONG = 'panel.set(preset="llama3.1-8b", tp=8, cp=4, dp=2, program="llama")'
STATE = "panel.running['state']"
HEIGHT = 1700
SLOW = 120_000
"""Milliseconds: the first run imports torch, on a machine that may be busy."""


@pytest.fixture(scope="module")
def opened(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    path = tmp_path_factory.mktemp("explorer") / "explorer.ipynb"
    cells = (CREATE, MISFIT, LAYOUT, TINY, FITS_NOWHERE, KV_HEADS, LONG, STATE)
    with lab.open(scratch_notebook(path, *cells), height=HEIGHT) as notebook:
        yield notebook


@pytest.fixture
def notebook(opened: Notebook) -> Iterator[Notebook]:
    """The notebook with a new panel in it."""
    opened.page.set_viewport_size({"width": 1280, "height": HEIGHT})
    opened.set_theme("light")
    opened.run(CREATE)
    opened.page.locator(".llamapar .lp-map").first.wait_for()
    yield opened
    assert opened.console_errors() == []


def panel_of(notebook: Notebook) -> Locator:
    return notebook.page.locator(".llamapar")


def status(notebook: Notebook) -> Locator:
    return panel_of(notebook).locator(".lp-status")


def sentence(notebook: Notebook) -> Locator:
    return panel_of(notebook).locator(".lp-sentence")


def test_a_slider_moves_by_keyboard_and_a_click_mends_the_layout(notebook: Notebook) -> None:
    panel = panel_of(notebook)
    expect(panel.locator(".lp-product")).to_have_text("8 · 1 · 16 · 128 = 16,384 GPUs")
    expect(sentence(notebook)).to_have_text(re.compile("^Rank 6,043 computes 16 of 128 query heads in 8 of"))
    slider = panel.get_by_label("TP, in steps")
    slider.focus()
    notebook.page.keyboard.press("ArrowRight")
    expect(status(notebook)).to_have_text("DP went from 128 to 64, so the job keeps its 16,384 GPUs.")
    expect(sentence(notebook)).to_have_text(
        "tp=16 does not divide n_kv_heads=8: a rank would need half a KV head."
    )
    legal, *others = panel.locator(".lp-answered").all()
    expect(legal).to_have_attribute("data-verdict", "no")
    for other in others:
        expect(other).to_have_css("opacity", "0.5")
    panel.locator(".lp-found > summary").click()
    finding = panel.locator("[data-code=LP104]")
    expect(finding.get_by_title("apply this fix")).to_have_count(1)  # one line: the rest folds
    finding.get_by_text("why, ").click()
    expect(finding).to_contain_text("a rank would need half a KV head")
    panel.locator(".lp-repairs").get_by_title("apply this fix").first.focus()
    notebook.page.keyboard.press("Enter")
    expect(panel.locator(".lp-product")).to_have_text(re.compile("^8 · "))
    expect(status(notebook)).to_be_focused()  # the button is gone, and hands the focus on
    notebook.run(LAYOUT)
    assert notebook.outputs(LAYOUT)[0]["data"]["text/plain"] == "'tp=8 cp=2 pp=16 dp=64'"


@pytest.mark.soak
def test_dims_move_in_steps_and_the_model_is_no_preset_then(notebook: Notebook) -> None:
    panel = panel_of(notebook)
    preset = panel.locator("[data-control=preset] select")
    kv_heads, box = panel.get_by_label("KV heads, in steps"), panel.locator("[data-control=n_kv_heads] input")
    kv_heads.press("ArrowRight")
    expect(box.last).to_have_value("16")
    expect(preset.locator("option:checked")).to_have_text("no preset")
    panel.get_by_label("TP, in steps").press("ArrowRight")
    expect(sentence(notebook)).to_have_text(re.compile("^Rank 6,043 computes 8 of 128 query heads"))
    typed = panel.locator("[data-control=tp] input[type=text]")
    typed.fill("6")
    typed.press("Enter")
    expect(sentence(notebook)).to_have_text(re.compile("^tp=6 does not divide n_heads=128"))
    expect(typed).to_have_value("6")  # stays, though no step of the slider is 6
    expect(panel.get_by_label("TP, in steps")).to_have_attribute("aria-valuetext", "6")
    panel.get_by_role("tab", name="Memory").click()  # of which there is none: the reason stays as it is
    expect(panel.locator(".lp-reason")).to_have_text("nothing to draw")
    expect(sentence(notebook)).to_have_text(re.compile("^tp=6 does not divide n_heads=128"))
    expect(panel.locator(".lp-remedies")).to_be_hidden()
    panel.get_by_role("tab", name="Heads").click()


@pytest.mark.soak
def test_tabs_walk_by_keyboard_and_each_has_its_picture(notebook: Notebook) -> None:
    seen = []
    panel = panel_of(notebook)
    expect(panel.locator(".lp-tabs [data-tab=heads]")).to_have_attribute("aria-selected", "true")
    for name in [*MAIN_TABS][1:] + [*TIMES][1:]:
        if name == "pipeline":  # the first of those that stand in the tab Time, besides its own
            open_tab(panel, "time")
        bar = panel.locator(".lp-inner" if name in TIMES and name != "time" else ".lp-tabs").first
        bar.locator("[aria-selected=true]").focus()
        notebook.page.keyboard.press("ArrowRight")
        tab = bar.locator(f"[data-tab={name}]")
        expect(tab).to_be_focused()
        expect(tab).to_have_attribute("aria-selected", "true")
        if name == "plan":  # it searches in the background, and goes on while others are looked at
            expect(panel.locator(".lp-search")).to_contain_text("16,384 h100-80gb")
            continue
        summary = panel.locator(".lp-summary").first
        if name == "run":  # 405B is not quick: nothing runs before it is asked for
            expect(panel.locator(".lp-verdict")).to_have_text("Nothing has run yet.")
            continue
        if name == "layer":
            walk = panel.locator(".lp-main").get_by_label("cursor at step, in steps")
            walk.focus()
            notebook.page.keyboard.press("End")
            expect(walk).to_have_attribute("aria-valuetext", "22")
        expect(summary).not_to_have_text(seen[-1] if seen else "")
        seen.append(summary.text_content())
    assert len(set(seen)) == 8
    open_tab(panel_of(notebook), "plan")
    panel_of(notebook).get_by_role("button", name="Stop").click()
    expect(panel_of(notebook).get_by_role("button", name="Search again")).to_be_enabled()


@pytest.mark.soak
def test_a_click_makes_it_fit(notebook: Notebook) -> None:
    panel = panel_of(notebook)
    zero = panel.locator("[data-control=zero] select")  # here and in the settings
    answer = panel.get_by_role("button", name="Does it fit?")
    expect(answer).to_have_attribute("data-verdict", "unsure")  # nobody has named the trainer
    answer.click()  # the door to its tab
    expect(panel.locator(".lp-tabs [data-tab=memory]")).to_have_attribute("aria-selected", "true")
    expect(zero).to_have_count(2)
    zero.first.select_option("1")
    expect(zero.last).to_have_value("1")  # what is drawn anew while a button is down gets no click
    offered = panel.locator(".lp-remedies button")
    expect(offered.first).to_have_text("recompute=full")
    offered.first.click()
    expect(answer).to_have_attribute("data-verdict", "yes")
    expect(panel.locator(".lp-remedies")).to_have_text("It fits.")
    recompute = panel.locator("[data-tab=memory] [data-control=recompute] select")
    expect(recompute).to_have_value("full")
    zero.first.select_option("3")
    expect(zero.last).to_have_value("3")
    open_tab(panel, "heads")
    expect(recompute).not_to_be_visible()


@pytest.mark.soak
def test_a_click_on_the_grid_shows_that_rank(notebook: Notebook) -> None:
    open_tab(panel_of(notebook), "ranks")
    title = panel_of(notebook).locator(".lp-name").first
    expect(title).to_have_text(re.compile("^Rank 6,043 of 16,384.*dp"))
    grid = panel_of(notebook).locator(".nsewdrag").first
    box = grid.bounding_box()
    assert box is not None
    grid.click(position={"x": box["width"] * 0.61, "y": box["height"] * 0.7})
    expect(panel_of(notebook).locator(".lp-name").first).not_to_contain_text("Rank 6,043 of")
    row, column = divmod(
        int(panel_of(notebook).locator("[id$=-Rank-rank]").input_value().replace(",", "")), 128
    )
    assert abs(row - 0.7 * 128) <= 2
    assert abs(column - 0.61 * 128) <= 2


@pytest.mark.soak
def test_a_click_on_the_timeline_puts_a_cursor_there(notebook: Notebook) -> None:
    panel = panel_of(notebook)
    open_tab(panel, "pipeline")
    expect(panel.locator(".lp-name").first).to_contain_text("bubble")
    expect(panel.locator("[data-control=time] input")).to_have_value("")
    panel.locator(".nsewdrag").first.click()
    expect(panel.locator("[data-control=time] input")).not_to_have_value("")
    expect(panel.locator(".lp-summary").first).to_contain_text("at time")


@pytest.mark.soak
def test_a_press_on_a_map_s_rank_chooses_it_and_a_step_is_drawn_before_its_answer(notebook: Notebook) -> None:
    panel = panel_of(notebook)
    ranks = panel.locator(".lp-map [role=button]")
    expect(ranks).to_have_count(8)
    ranks.nth(5).click()
    expect(sentence(notebook)).to_have_text(
        re.compile("^Rank 6,045 computes")
    )  # TP rank 3 of 6,043 is 5 there
    slider = panel.get_by_label("TP, in steps")
    slider.focus()
    notebook.page.wait_for_timeout(1500)  # the scenes of the steps beside it come
    seen = slider.evaluate("""slider => {
        slider.value = Number(slider.value) + 1;
        slider.dispatchEvent(new Event("input", { bubbles: true }));
        return document.querySelectorAll(".lp-map [role=button]").length;
    }""")
    assert seen == 16
    expect(sentence(notebook)).to_have_text(re.compile("^tp=16 does not divide"))
    expect(ranks).to_have_count(16)


@pytest.mark.soak
def test_the_picture_follows_the_window(notebook: Notebook) -> None:
    picture = panel_of(notebook).locator(".lp-map").first
    wide = picture.bounding_box()
    notebook.page.set_viewport_size({"width": 1600, "height": 1000})
    notebook.page.wait_for_function(
        "(was) => document.querySelector('.lp-map').getBoundingClientRect().width > was + 100",
        arg=wide["width"] if wide else 0,
    )


@pytest.mark.soak
def test_findings_fold_under_the_picture_with_what_trainers_say(notebook: Notebook) -> None:
    notebook.run(MISFIT)
    panel = panel_of(notebook)
    expect(panel.locator(".lp-product")).to_have_text("2 · 1 · 3 · 1 = 6 of 12 GPUs")
    fold = panel.locator(".lp-found > summary")
    expect(fold).to_have_text("6 findings")
    fold.click()
    cards = panel.locator(".lp-findings > .lp-finding")
    expect(cards).to_have_count(6)
    for card in cards.all():
        box = card.bounding_box()
        assert box is not None
        assert box["height"] < 90
        assert box["x"] + box["width"] <= 1280
    panel.locator("[data-code=LP001] summary").first.click()
    verdicts = panel.locator("[data-code=LP001] table")
    expect(verdicts).to_contain_text("Invalid parallel dims: dp_replicate(1) * dp_shard(1) * cp(1)")
    expect(verdicts).to_contain_text("pytorch/torchtitan: torchtitan/distributed/parallel_dims.py")


@pytest.mark.soak
def test_a_number_as_people_write_it_is_understood_and_a_wrong_one_is_refused(
    notebook: Notebook,
) -> None:
    panel = panel_of(notebook)

    def write(box: Locator, text: str) -> None:
        box.fill(text)
        box.press("Tab")

    seq_len = panel.locator("[data-control=seq_len] input[type=text]").first
    write(seq_len, "128k")
    expect(seq_len).to_have_value("131,072")
    panel.locator(".lp-settings > summary").click()
    wrong = panel.locator("[data-control=virtual_stages] input").last
    write(wrong, "1,02")
    told = panel.locator(".lp-answer").get_by_text("virtual_stages='1,02': a whole number is needed")
    expect(told).to_have_count(1)
    expect(wrong).to_have_value("1")  # as it was: what is no number changes nothing
    picture = panel.locator(".lp-figure").bounding_box()
    panel.locator(".lp-answer").get_by_role("button", name="virtual_stages=1", exact=True).click()
    expect(told).to_have_count(0)
    assert panel.locator(".lp-figure").bounding_box() == picture  # what was told stood over the head


@pytest.mark.soak
def test_a_map_needs_no_plotly_and_little_over_the_wire(notebook: Notebook, tmp_path: Path) -> None:
    first = notebook.websocket_bytes()
    assert first < 8_000_000  # of several panels and their moves, with one plotly
    notebook.run(CREATE)
    notebook.page.locator(".llamapar .lp-map").first.wait_for()
    assert notebook.websocket_bytes() - first < 200_000
    light = notebook.screenshot(tmp_path / "light.png").read_bytes()
    notebook.set_theme("dark")
    color = "() => getComputedStyle(document.querySelector('.llamapar .lp-map text.lane')).fill"
    notebook.page.wait_for_function(f"({color})().match(/\\d+/g).slice(0, 3).every(c => c > 127)")
    assert notebook.screenshot(tmp_path / "dark.png").read_bytes() != light


# -- its Run tab: a run at each move, a bar and a way out of a long one ----------------------------

REACHED = """(bar, share) => new Promise(done => {
    const over = () => !bar.getClientRects().length || bar.position >= share;
    const look = () => over() ? done(document.activeElement.innerText) : setTimeout(look, 10);
    look();
})"""
"""Waits in the page, where a busy machine does not look too late, and tells what has the focus."""


@pytest.fixture
def runs(notebook: Notebook) -> Notebook:
    """The notebook with a small job on the Run tab; the kernel imports torch once."""
    notebook.run(TINY)
    open_tab(panel_of(notebook), "run")
    return notebook


def button(notebook: Notebook, name: str) -> Locator:
    return panel_of(notebook).get_by_role("button", name=name, exact=True)


@pytest.mark.soak
def test_a_move_runs_and_the_genuine_error_stands_in_the_tape(runs: Notebook) -> None:
    verdict = panel_of(runs).locator(".lp-verdict")
    expect(verdict).to_contain_text("equal to the unsharded model", timeout=SLOW)
    tape = panel_of(runs).locator("[data-table=tape]")
    expect(tape).to_contain_text("[2, 64, 8, 8]", timeout=SLOW)
    expect(panel_of(runs).locator(".lp-name").first).to_contain_text("Rank 0: 4 collectives")
    slider = panel_of(runs).get_by_label("TP, in steps")
    slider.focus()
    runs.page.keyboard.press("ArrowRight")
    expect(verdict).to_contain_text("(4 ranks, engine local", timeout=SLOW)
    expect(tape).to_contain_text("[2, 64, 4, 8]", timeout=SLOW)
    runs.run(KV_HEADS)
    expect(verdict).to_have_text("ranks 0–15 of 16 raised RuntimeError (engine local on cpu)", timeout=SLOW)
    expect(tape.locator(".lp-wrong")).to_contain_text("k = split_heads(x @ wk.mT", timeout=SLOW)
    expect(tape.locator(".lp-wrong")).to_be_in_viewport(ratio=0.3)
    box = tape.locator("..").bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= 1280
    open_tab(panel_of(runs), "heads")
    expect(panel_of(runs).locator(".lp-map-says").first).to_contain_text("TP 16")
    expect(tape).not_to_be_visible()
    expect(panel_of(runs).locator("[data-control=fault]")).not_to_be_visible()


@pytest.mark.soak
def test_a_long_run_shows_how_far_it_is_and_is_cancelled(
    runs: Notebook, sample: Callable[[Any, int], list[float]]
) -> None:
    runs.run(LONG)
    verdict = panel_of(runs).locator(".lp-verdict")
    expect(verdict).to_have_text("Nothing has run yet.", timeout=SLOW)
    for share in sample([0, 0.1, 0.2, 0.4, 0.6], 1):
        button(runs, "Run").focus()
        runs.page.keyboard.press("Enter")
        bar = panel_of(runs).get_by_role("progressbar")
        bar.wait_for()
        expect(panel_of(runs).locator(".lp-run .lp-phase")).to_contain_text("%", timeout=SLOW)
        assert bar.evaluate(REACHED, share) == "Cancel"
        runs.page.keyboard.press("Enter")
        expect(panel_of(runs).locator(".lp-run:not(.lp-search)")).to_contain_text("cancelled", timeout=10_000)
        expect(bar).not_to_be_visible()
        expect(button(runs, "Run")).to_be_focused()
    runs.run(STATE)
    # a cancel that came while the shape tape was written keeps the result
    assert runs.outputs(STATE)[0]["data"]["text/plain"] in ("'cancelled'", "'done'")
    slider = panel_of(runs).get_by_label("DP, in steps")  # the page still answers
    slider.focus()
    runs.page.keyboard.press("ArrowLeft")
    expect(status(runs)).to_contain_text("The job now has 32 GPUs instead of 64.")


@pytest.mark.soak
def test_where_no_fix_fits_a_degree_that_divides_is_offered(notebook: Notebook) -> None:
    panel = panel_of(notebook)
    notebook.run(FITS_NOWHERE)
    expect(panel.locator(".lp-head .lp-problem")).to_contain_text("tp=3 does not divide n_heads=64")
    panel.locator(".lp-head .lp-choices button").get_by_text("tp=1", exact=True).click()
    expect(sentence(notebook)).to_have_text(re.compile("^Rank . computes all 64 query heads"))
