"""Maps that move, in a page without a kernel: where intervals start, and what a hand does in between."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

import llamapar as lp
from browser.access import serious
from llamapar.panels.page import for_browser, source, style

pytestmark = pytest.mark.browser

SHOW = """async ([script, css, scene]) => {
    document.head.appendChild(document.createElement("style")).textContent = css;
    const whole = new Blob([script + "\\nexport { drawMap };"], { type: "text/javascript" });
    const url = URL.createObjectURL(whole);
    const { drawMap } = await import(url);
    const root = document.body.appendChild(document.createElement("div"));
    root.className = "llamapar";
    root.style.width = "800px";
    window.pressed = [];
    window.map = drawMap(root, scene, { pick: (rank) => window.pressed.push(rank) });
}"""
LEFTS = """(scene) => {
    if (scene) map.update(scene);
    const lefts = [...document.querySelectorAll(".lp-bands .tp0")].map((one) => one.getBBox().x);
    return lefts.sort((a, b) => a - b);
}"""
"""Where the bands of one shade stand, at once after an update to a scene if there is one."""

WATCH = """() => {
    window.shifts = 0;
    const seen = (list) => { window.shifts += list.getEntries().length; };
    new PerformanceObserver(seen).observe({ type: "layout-shift" });
}"""
WALK = """async ([scenes, moves]) => {
    for (let k = 0; k < moves; k++) {
        map.update(scenes[k % scenes.length]);
        await new Promise(requestAnimationFrame);
    }
    map.update(scenes[0]);
    await new Promise((done) => setTimeout(done, 500));
    return document.querySelectorAll("*").length;
}"""


def heads(tp: int) -> Any:
    return for_browser(lp.view(lp.heads("llama3.1-405b", tp=tp)).spec)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with browser.new_context(viewport={"width": 900, "height": 600}) as context:
        opened = context.new_page()
        opened.set_content("<main></main>")
        opened.evaluate(SHOW, [source("page.js", "map.js").replace("export default", ""), style(), heads(4)])
        yield opened


def moved(page: Page, tp: int) -> None:
    page.evaluate("(scene) => map.update(scene)", heads(tp))


def lefts(tp: int) -> Any:
    """Where the bands of one shade belong, in pixels."""
    return pytest.approx(sorted(722 * one[4][0] for one in heads(tp)["shapes"] if one[5] == "tp0"), abs=0.2)


def test_an_interval_starts_where_its_rows_stood_and_ends_where_the_scene_says(page: Page) -> None:
    page.wait_for_timeout(400)
    assert page.evaluate(LEFTS, heads(8)) == lefts(4)
    page.wait_for_timeout(500)
    assert page.evaluate(LEFTS, None) == lefts(8)


def test_a_move_in_the_middle_of_a_move_ends_where_the_last_one_says(page: Page) -> None:
    for tp in (16, 2, 128, 8):
        moved(page, tp)
        page.wait_for_timeout(60)
    page.wait_for_timeout(600)
    expect(page.locator(".lp-bands path")).to_have_count(len(heads(8)["shapes"]))
    assert page.locator(".lp-hits rect").count() == 8
    expect(page.locator("h3")).to_have_text(heads(8)["says"])


def test_without_motion_it_is_there_at_once(page: Page) -> None:
    page.emulate_media(reduced_motion="reduce")
    assert page.evaluate(LEFTS, heads(16)) == lefts(16)


def test_a_cut_head_is_torn_and_says_whom_its_parts_go_to(page: Page) -> None:
    moved(page, 16)
    page.locator(".lp-hits rect").nth(1).hover()
    expect(page.locator(".lp-exact")).to_have_text(heads(16)["ranks"][1][2])
    assert page.locator(".lp-bands .far").count() == 16
    assert page.locator(".tear").get_attribute("d").count("M") == 16
    expect(page.locator(".lp-looks")).to_contain_text("needed from another rank")


def test_ranks_are_walked_and_pressed_with_the_keyboard(page: Page) -> None:
    page.locator(".lp-hits rect").first.focus()
    for key in ("ArrowRight", "End", "ArrowLeft", "Enter"):
        page.keyboard.press(key)
    expect(page.locator(".lp-exact")).to_contain_text("TP rank 2: query heads 64–95")
    assert page.evaluate("() => pressed") == [2]
    assert page.locator(".lp-hits [tabindex='0']").count() == 1
    assert serious(SimpleNamespace(page=page)) == []  # type: ignore[arg-type]


def test_at_16384_ranks_there_are_few_elements_and_the_rest_is_a_count(page: Page) -> None:
    for record in (lp.heads("llama3.1-405b", tp=16384), lp.vocab("llama3.1-405b", tp=16384)):
        page.evaluate("(scene) => map.update(scene)", for_browser(lp.view(record).spec))
        page.wait_for_timeout(400)
        assert page.locator(".lp-map *").count() <= 2000
        expect(page.locator(".lp-looks")).to_contain_text(
            "drawn are the first 127 of 16,384 ranks, and the last"
        )


def test_moves_leave_nothing_behind_and_nothing_shifts(page: Page, counts: Any) -> None:
    scenes = [heads(2**k) for k in range(6)]
    page.evaluate(WATCH)
    before = page.evaluate(WALK, [scenes, counts(6, 30, 60)])
    assert page.evaluate(WALK, [scenes, counts(24, 120, 300)]) == before
    assert page.evaluate("() => shifts") == 0
