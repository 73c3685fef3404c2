"""Live pictures in JupyterLab: pointing, stepping and playing, two of a job together, a random hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from browser.access import serious, unreached
from browser.hands import kernel, live_agrees
from browser.lab import Lab, Notebook, scratch_notebook, wait_until
from browser.panel import OUTSIDE, RESTART

pytestmark = pytest.mark.browser

HEADS = "import llamapar as lp\nheads = lp.live('heads', 'llama3.1-405b', tp=8)\nheads"
VOCAB = "vocab = lp.live('vocab', 'llama3.1-405b', tp=8)\nvocab"
STAGES = "stages = lp.live('stages', 'llama3.1-405b', pp=16)\nstages"
TWIN = "twin = lp.live('stages', 'llama3-8b', pp=4)\ntwin"
MEMORY = "memory = lp.live('memory', 'llama3.1-405b', tp=8, pp=16, dp=128)\nmemory"
LAYER = "layer = lp.live('inside', 'llama3-8b', tp=4, cp=2)\nlayer"
SCHEDULE = "schedule = lp.live('schedule', pp=4, micro_batches=8)\nschedule"
CELLS = (HEADS, VOCAB, STAGES, TWIN, MEMORY, LAYER, SCHEDULE)
HEIGHT = 5200
NAMES = ("heads", "vocab", "stages", "twin", "memory", "layer", "schedule")


@pytest.fixture(scope="module")
def notebook(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    path = scratch_notebook(tmp_path_factory.mktemp("live") / "live.ipynb", *CELLS)
    with lab.open(path, height=HEIGHT) as opened:
        for cell in range(len(NAMES)):
            opened.run(cell)
            opened.cell(cell).locator(".main-svg, .lp-bands").first.wait_for()
        yield opened
        assert opened.console_errors() == []


def live(notebook: Notebook, cell: int) -> Locator:
    return notebook.standing(cell).locator(".lp-live")


def rung(panel: Locator, value: int) -> Locator:
    return panel.locator(f".lp-rung[data-value='{value}']")


RECORD = """panel => {
    const chosen = () => panel.querySelector(".lp-rung[aria-checked=true]")?.dataset.value;
    panel.chosen = [chosen()];
    const note = () => { if (chosen() !== panel.chosen.at(-1)) panel.chosen.push(chosen()); };
    new MutationObserver(note).observe(panel, { subtree: true, childList: true, attributes: true });
}"""
"""Records the rungs as they are chosen: one that plays by may be gone before a busy machine looks."""


def played(panel: Locator, *values: int) -> Callable[[], bool]:
    """Whether the rungs chosen since RECORD, and the one before, began with these."""
    return lambda: panel.evaluate("panel => panel.chosen")[: len(values)] == [str(value) for value in values]


def settle(notebook: Notebook) -> None:
    for cell in range(len(NAMES)):
        wait_until(
            lambda cell=cell: live_agrees(notebook, live(notebook, cell), NAMES[cell]),
            what=f"{NAMES[cell]} agrees with its kernel",
        )


def test_a_rung_is_looked_at_and_taken(notebook: Notebook) -> None:
    heads, vocab = live(notebook, 0), live(notebook, 1)
    rung(heads, 16).hover()
    expect(heads.locator(".lp-says")).to_contain_text("TP 16 cuts through each of the 8 KV heads")
    expect(heads.locator(".lp-code code")).to_have_text("lp.heads('llama3.1-405b', tp=8)")
    # A longer line above the ladder would move the rung away from the pointer, and back, for ever.
    assert "tp=8" in kernel(notebook, "heads.code"), "to look at a rung changes nothing"
    heads.locator(".lp-says").hover()
    expect(heads.locator(".lp-code code")).to_have_text("lp.heads('llama3.1-405b', tp=8)")
    rung(heads, 4).click()
    expect(rung(vocab, 4)).to_have_attribute("aria-checked", "true")
    rung(heads, 4).press("ArrowRight")
    expect(rung(heads, 8)).to_be_focused()
    rung(heads, 8).press("End")
    expect(rung(heads, 128)).to_be_focused()
    settle(notebook)
    heads.get_by_role("button", name="undo").click()
    settle(notebook)
    assert "tp=8" in kernel(notebook, "vocab.code")


@pytest.mark.soak
def test_play_goes_once_through_the_ladder_and_halts_where_it_breaks(notebook: Notebook) -> None:
    heads = live(notebook, 0)
    rung(heads, 2).click()
    heads.evaluate(RECORD)
    heads.get_by_role("button", name="play TP").click()
    wait_until(played(heads, 2, 4, 8, 16), what="TP plays from 2 to 16")
    expect(heads.get_by_role("button", name="play TP")).to_be_visible()
    notebook.page.wait_for_timeout(1500)
    expect(rung(heads, 16)).to_have_attribute("aria-checked", "true")
    heads.evaluate(RECORD)
    heads.get_by_role("button", name="play TP").click()
    wait_until(played(heads, 16, 1), what="TP plays from its start")
    heads.get_by_role("button", name="stop").click()
    settle(notebook)


@pytest.mark.soak
def test_a_value_that_is_refused_says_why_and_stands(notebook: Notebook) -> None:
    layer = live(notebook, NAMES.index("layer"))
    rung(layer, 16).click()
    expect(layer.locator(".lp-says")).to_have_text(
        "tp=16 does not divide n_kv_heads=8: a rank computes with whole heads."
    )
    expect(layer.locator(".lp-plot")).to_be_hidden()
    settle(notebook)
    rung(layer, 16).press("ArrowLeft")
    expect(layer.locator(".lp-plot")).to_be_visible()
    settle(notebook)


@pytest.mark.soak
@pytest.mark.parametrize("width", [1280, 820, 390])
def test_nothing_sticks_out_and_the_chosen_rung_is_in_sight(notebook: Notebook, width: int) -> None:
    notebook.page.set_viewport_size({"width": width, "height": HEIGHT})
    notebook.page.evaluate(f"window.jupyterapp.shell.{'expand' if width == 1280 else 'collapse'}Left()")
    heads = live(notebook, 0)
    rung(heads, 128).click()
    settle(notebook)
    inside: Any = """node => { const [a, b] = [node, node.parentNode].map(n => n.getBoundingClientRect());
        return a.left >= b.left - 1 && a.right <= b.right + 1; }"""
    assert rung(heads, 128).evaluate(inside)
    for cell in range(len(NAMES)):
        assert live(notebook, cell).evaluate(OUTSIDE) == []
        ladder = live(notebook, cell).locator(".lp-ladder")
        assert width < 1280 or ladder.evaluate("node => node.scrollWidth <= node.clientWidth"), "all in sight"
    notebook.page.set_viewport_size({"width": 1280, "height": HEIGHT})


@pytest.mark.soak
def test_axe_finds_nothing_serious_and_the_keyboard_reaches_every_control(notebook: Notebook) -> None:
    for theme in ("dark", "light"):
        notebook.set_theme(theme)
        assert serious(notebook, ".lp-live") == []
    for cell in range(len(NAMES)):
        assert unreached(live(notebook, cell)) == []


@pytest.mark.soak
def test_a_picture_whose_kernel_is_gone_says_so(notebook: Notebook) -> None:
    """The last one here: it ends the kernel's memory."""
    heads = live(notebook, 0)
    expect(heads.locator(".lp-kept")).to_have_count(0)
    notebook.page.evaluate(RESTART)
    expect(heads.locator(".lp-answer")).to_contain_text("the kernel of this panel is gone")
    expect(heads.locator(".lp-answer")).to_contain_text("run this cell again")
    expect(heads.locator(".lp-stage.lp-kept")).to_have_css("opacity", "0.5")
    notebook.run(0)
    expect(live(notebook, 0).locator(".lp-answer")).to_be_empty()
    expect(live(notebook, 0).locator(".lp-kept")).to_have_count(0)
