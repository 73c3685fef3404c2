"""The Run tab as a person meets it: a run at each move, a bar and a way out of a long one, no errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from browser.lab import Lab, Notebook, scratch_notebook
from browser.panel import open_tab

pytestmark = pytest.mark.browser

CREATE = 'import llamapar as lp\npanel = lp.explorer("tiny", tp=2, cp=1, pp=1, dp=1, seq_len=1024)\npanel'
KV = 'panel.set(preset="llama3.1-8b", tp=16)'
LONG = 'panel.set(preset="llama3.1-8b", tp=8, cp=4, dp=2, program="llama")'
REACHED = """(bar, share) => new Promise(done => {
    const over = () => !bar.getClientRects().length || bar.position >= share;
    const look = () => over() ? done(document.activeElement.innerText) : setTimeout(look, 10);
    look();
})"""
"""Waits in the page, where a busy machine does not look too late, and tells what has the focus."""
SLOW = 120_000
"""Milliseconds: the first run imports torch, on a machine that may be busy."""


@pytest.fixture(scope="module")
def opened(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    path = tmp_path_factory.mktemp("run") / "run.ipynb"
    with lab.open(
        scratch_notebook(path, CREATE, KV, LONG, "panel.running['state']"), height=1700
    ) as notebook:
        yield notebook


@pytest.fixture
def notebook(opened: Notebook) -> Iterator[Notebook]:
    """The notebook with a new panel in it, on its Run tab; the kernel has imported torch once."""
    opened.run(0)
    opened.page.locator(".llamapar .js-plotly-plot .main-svg").first.wait_for()
    open_tab(opened.page.locator(".llamapar"), "run")
    yield opened
    assert opened.console_errors() == []


def panel_of(notebook: Notebook) -> Locator:
    return notebook.page.locator(".llamapar")


def button(notebook: Notebook, name: str) -> Locator:
    return panel_of(notebook).get_by_role("button", name=name, exact=True)


def test_a_move_runs_and_the_genuine_error_stands_in_the_tape(notebook: Notebook) -> None:
    verdict = panel_of(notebook).locator(".lp-verdict")
    expect(verdict).to_contain_text("equal to the unsharded model", timeout=SLOW)
    tape = panel_of(notebook).locator("[data-table=tape]")
    expect(tape).to_contain_text("[2, 64, 8, 8]", timeout=SLOW)
    expect(panel_of(notebook).locator(".lp-name").first).to_contain_text("Rank 0: 4 collectives")
    slider = panel_of(notebook).get_by_label("TP in powers of two")
    slider.focus()
    notebook.page.keyboard.press("ArrowRight")
    expect(verdict).to_contain_text("(4 ranks, engine local", timeout=SLOW)
    expect(tape).to_contain_text("[2, 64, 4, 8]", timeout=SLOW)
    notebook.run(1)
    expect(verdict).to_have_text("ranks 0–15 of 16 raised RuntimeError (engine local on cpu)", timeout=SLOW)
    expect(tape.locator(".lp-wrong")).to_contain_text("k = split_heads(x @ wk.mT", timeout=SLOW)
    expect(tape.locator(".lp-wrong")).to_be_in_viewport(ratio=0.3)
    box = tape.locator("..").bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= 1280
    open_tab(panel_of(notebook), "heads")
    expect(panel_of(notebook).locator(".lp-name").first).to_contain_text("tp=16")
    expect(tape).not_to_be_visible()
    expect(panel_of(notebook).locator("[data-control=fault]")).not_to_be_visible()


@pytest.mark.soak
def test_a_long_run_shows_how_far_it_is_and_is_cancelled(
    notebook: Notebook, sample: Callable[[Any, int], list[float]]
) -> None:
    notebook.run(2)
    verdict = panel_of(notebook).locator(".lp-verdict")
    expect(verdict).to_have_text("not run yet", timeout=SLOW)
    for share in sample([0, 0.1, 0.2, 0.4, 0.6], 1):
        button(notebook, "Run").focus()
        notebook.page.keyboard.press("Enter")
        bar = panel_of(notebook).get_by_role("progressbar")
        bar.wait_for()
        expect(panel_of(notebook).locator(".lp-phase")).to_contain_text("%", timeout=SLOW)
        assert bar.evaluate(REACHED, share) == "Cancel"
        notebook.page.keyboard.press("Enter")
        expect(panel_of(notebook).locator(".lp-run:not(.lp-search)")).to_contain_text(
            "cancelled", timeout=10_000
        )
        expect(bar).not_to_be_visible()
        expect(button(notebook, "Run")).to_be_focused()
    notebook.run(3)
    # a cancel that came while the shape tape was written keeps the result
    assert notebook.outputs(3)[0]["data"]["text/plain"] in ("'cancelled'", "'done'")
    slider = panel_of(notebook).get_by_label("DP in powers of two")  # the page still answers
    slider.focus()
    notebook.page.keyboard.press("ArrowLeft")
    expect(panel_of(notebook).get_by_role("status")).to_contain_text("dp 2 → 1; 64 → 32 GPUs")
