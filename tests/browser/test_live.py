"""Live pictures in JupyterLab: pointing, stepping and playing, two of a job together, a random hand."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, expect

from browser.lab import Lab, Notebook, scratch_notebook, wait_until
from browser.panel import ASK, OUTSIDE, RESTART, plain

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
            opened.cell(cell).locator(".main-svg").first.wait_for()
        yield opened
        assert opened.console_errors() == []


def kernel(notebook: Notebook, code: str) -> str:
    return str(notebook.page.evaluate(ASK, code))


def live(notebook: Notebook, cell: int) -> Locator:
    return notebook.cell(cell).locator(".lp-live")


def rung(panel: Locator, value: int) -> Locator:
    return panel.locator(f".lp-rung[data-value='{value}']")


def agrees(notebook: Notebook, cell: int) -> bool:
    """Whether page and kernel show the same: the code, the rungs, the chosen one, and the picture's title."""
    panel, name = live(notebook, cell), NAMES[cell]
    layout = f"{name}.snapshot().spec['layout']"
    told = kernel(
        notebook,
        f"[{name}.code, [str(r['value']) for r in {name}.ladder], {name}._state.rung.name, "
        f"{layout}.get('title', {{}}).get('text')]",
    )
    title = panel.locator(".lp-name")
    shown = [
        panel.locator(".lp-code code").inner_text(),
        panel.locator(".lp-rung").evaluate_all("all => all.map(n => n.dataset.value)"),
        panel.locator(".lp-rung[aria-checked=true] b").inner_text(),
        title.inner_text() if title.is_visible() else None,
    ]
    code, values, chosen, said = eval(told)
    return shown == [code, values, chosen, said and plain(said)]


def settle(notebook: Notebook) -> None:
    for cell in range(len(NAMES)):
        wait_until(lambda cell=cell: agrees(notebook, cell), what=f"{NAMES[cell]} agrees with its kernel")


def test_a_rung_is_looked_at_and_taken(notebook: Notebook) -> None:
    heads, vocab = live(notebook, 0), live(notebook, 1)
    rung(heads, 16).hover()
    expect(heads.locator(".lp-says")).to_contain_text("TP 16 cuts through each of the 8 KV heads")
    expect(heads.locator(".lp-code code")).to_have_text("lp.heads('llama3.1-405b', tp=16)")
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


def test_play_goes_once_through_the_ladder_and_halts_where_it_breaks(notebook: Notebook) -> None:
    heads = live(notebook, 0)
    rung(heads, 2).click()
    heads.get_by_role("button", name="play TP").click()
    for value in (4, 8, 16):
        expect(rung(heads, value)).to_have_attribute("aria-checked", "true")
    notebook.page.wait_for_timeout(1500)
    expect(rung(heads, 16)).to_have_attribute("aria-checked", "true")
    expect(heads.get_by_role("button", name="play TP")).to_be_visible()
    heads.get_by_role("button", name="play TP").click()
    expect(rung(heads, 1)).to_have_attribute("aria-checked", "true")
    heads.get_by_role("button", name="stop").click()
    settle(notebook)


def test_another_knob_has_its_own_ladder(notebook: Notebook) -> None:
    memory, stages = live(notebook, NAMES.index("memory")), live(notebook, NAMES.index("stages"))
    memory.locator("[data-knob=pp]").press("Enter")
    expect(rung(memory, 32)).to_be_visible()
    expect(memory.locator("[data-knob=pp]")).to_be_focused()
    expect(memory.get_by_role("button", name="play PP")).to_be_visible()
    rung(memory, 32).click()
    expect(rung(stages, 32)).to_have_attribute("aria-checked", "true")
    memory.locator("[data-knob=recompute]").click()
    memory.locator(".lp-rung[data-value=full]").hover()
    expect(memory.locator(".lp-code code")).to_contain_text("pp=32, dp=128, recompute='full'")
    memory.locator(".lp-says").hover()
    settle(notebook)
    memory.locator("[data-knob=tp]").click()
    expect(memory.locator(".lp-rung[aria-checked=true]")).to_contain_text("TP")
    rung(memory, 1).click()
    expect(rung(memory, 1)).to_have_attribute("data-broken", "yes")
    memory.get_by_role("button", name="play TP").click()
    for value in (2, 4):  # it does not fit at first either: play goes on
        expect(rung(memory, value)).to_have_attribute("aria-checked", "true")
    memory.get_by_role("button", name="stop").click()
    settle(notebook)


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
    notebook.page.set_viewport_size({"width": 1280, "height": HEIGHT})


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(notebook: Notebook, theme: Any) -> None:
    notebook.set_theme(theme)
    options = {"resultTypes": ["violations"]}
    found = Axe().run(notebook.page, context={"include": [[".lp-live"]]}, options=options).response
    assert [one["id"] for one in found["violations"] if one["impact"] in ("serious", "critical")] == []
    notebook.set_theme("light")


def test_a_hand_that_moves_at_random_is_followed(notebook: Notebook, soak: bool) -> None:
    draw = random.Random(32)
    for _ in range(250 if soak else 25):
        cell = draw.randrange(len(NAMES))
        panel = live(notebook, cell)
        kind = draw.choice(
            ("rung", "rung", "rung", "key", "choose", "tick", "undo", "play", "kernel", "knob")
        )
        rungs = panel.locator(".lp-rung")
        if kind == "rung":
            for _ in range(draw.choice((1, 3))):  # faster than the kernel answers
                rungs.nth(draw.randrange(rungs.count())).click()
        elif kind == "key":
            panel.locator(".lp-rung[aria-checked=true]").press(
                draw.choice(("ArrowLeft", "ArrowRight", "Home", "End"))
            )
        elif kind == "knob" and panel.locator("[data-knob]").count():
            knobs = panel.locator("[data-knob]")
            rungs.nth(draw.randrange(rungs.count())).click()  # and another ladder before the kernel answers
            knobs.nth(draw.randrange(knobs.count())).click()
        elif kind == "choose" and panel.locator("select").count():
            box = panel.locator("select").first
            box.select_option(index=draw.randrange(box.locator("option").count()))
        elif kind == "tick" and panel.locator("input[type=checkbox]").count():
            panel.locator("input[type=checkbox]").first.click()
        elif kind == "undo" and panel.get_by_role("button", name="undo").is_enabled():
            panel.get_by_role("button", name="undo").click()
        elif kind == "play":
            panel.locator(".lp-play").click()
            panel.locator(".lp-play").click()
        elif kind == "kernel" and NAMES[cell] != "schedule":
            kernel(
                notebook,
                f"{NAMES[cell]}.set(model={draw.choice(('llama3-8b', 'llama3.2-3b', 'llama3.1-405b'))!r})",
            )
        notebook.page.mouse.move(2, 2)
        settle(notebook)


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
