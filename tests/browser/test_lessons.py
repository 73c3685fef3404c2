"""A lesson of the page in Chromium: pictures that come alive, guesses that stay, links that carry a state."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from browser.test_site import WAIT, Watched, address

__all__ = ["address"]  # the site, built once for this file

pytestmark = [pytest.mark.browser, pytest.mark.deep]

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
ROWS = "At TP 16, how many of the 1,024 rows of wk does a rank get?"
OPEN_AFTER_GUESSES = (
    "() => document.querySelectorAll('details').forEach("
    "(d) => { if (d.firstElementChild.textContent === 'After your guess') d.open = true; })"
)
"""What stands behind a guess is made once it is in sight."""


def test_a_lesson_comes_alive_keeps_its_guesses_and_asks_nobody_else(browser: Browser, address: str) -> None:
    watched = Watched(browser)
    page = watched.page
    page.goto(f"{address}notebooks/00_start_here.html")
    ready = page.locator("#python")
    expect(page.locator(".alive .lp-explorer")).to_be_visible(timeout=WAIT)
    page.locator("[data-kind=box]").first.scroll_into_view_if_needed()
    asked = page.get_by_role("group", name=ROWS)
    follows = page.locator("details:has(> summary:text-is('After your guess'))").first
    expect(follows).not_to_have_attribute("open", "")
    asked.get_by_role("textbox").fill("128")  # before Python is there: it waits
    asked.get_by_role("button", name="check").click()
    expect(asked).to_contain_text("you said 128 rows, it is 64 rows", timeout=WAIT)
    expect(follows).to_have_attribute("open", "")
    expect(asked.get_by_role("button", name="skip")).not_to_be_visible()
    expect(ready).to_have_text("Python is ready")
    kept = json.loads(page.evaluate("localStorage.getItem('llamapar.progress')"))
    assert kept["predictions"][ROWS] == {"right": False, "guess": "128"}

    page.evaluate(OPEN_AFTER_GUESSES)
    page.mouse.move(2, 2)
    for _ in range(40):  # down to the end, so that all of it was in sight
        page.mouse.wheel(0, 700)
        page.wait_for_timeout(60)
    expect(page.locator("[data-key]")).to_have_count(0, timeout=WAIT)
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    assert not re.search(r"run (this|the) (cell|notebook)", page.locator("main").inner_text(), re.IGNORECASE)
    assert watched.serious() == []
    page.locator("[rel=next]").click()
    expect(page.locator("h1")).to_contain_text("Which GPUs talk to which?")
    assert page.locator("[rel=prev]").count() == 1
    page.goto(f"{address}index.html")
    read = page.locator("[data-chapter='00_start_here']")
    expect(read).to_have_attribute("data-read", re.compile(r"✓ read · 1 of \d+ questions, 0 right"))
    page.goto(f"{address}notebooks/00_start_here.html")
    page.locator("[data-kind=box]").first.scroll_into_view_if_needed()
    expect(asked).to_contain_text("you said 128 rows, it is 64 rows", timeout=WAIT)

    watched.require_quiet(address)


def test_pictures_and_ranks_of_a_lesson_move_and_a_link_opens_their_state(
    browser: Browser, address: str
) -> None:
    watched = Watched(browser)
    page = watched.page
    page.goto(f"{address}notebooks/03_attention_heads.html")
    picture = page.locator(".alive .lp-live").first
    picture.scroll_into_view_if_needed(timeout=WAIT)
    picture.get_by_role("radio", name="TP 8 1 KV head").click()
    link = picture.get_by_role("link", name="open this state")
    expect(link).to_have_attribute(
        "href", re.compile(r"live\.html#lp\.live\(lp\.heads\(.*tp%3D8"), timeout=WAIT
    )
    ranks = page.locator(".alive .lp-watch").first
    ranks.scroll_into_view_if_needed(timeout=WAIT)
    expect(ranks.locator(".lp-tile")).to_have_count(4)
    ranks.get_by_role("radio", name="backward").click()
    expect(ranks.locator(".lp-at")).to_contain_text("backward", timeout=WAIT)  # which PyTorch recorded
    to_ranks = ranks.get_by_role("link", name="open this state").get_attribute("href")
    link.click()
    watched.ready()
    expect(page.get_by_role("radio", name="TP 8 1 KV head")).to_be_checked()
    page.get_by_role("radio", name="TP 4 2 KV heads").click()
    expect(page).to_have_url(re.compile(r"tp%3D4\)\)$"))
    page.goto(str(to_ranks))
    watched.ready()
    expect(page.locator(".lp-watch .lp-code code")).to_have_text("lp.watch('attention', tp=4)")
    page.goto(f"{address}live.html#__import__('os')")
    page.reload()
    expect(page.locator("#python")).to_contain_text("cannot be read", timeout=WAIT)
    expect(page.locator(".lp-live")).to_be_visible()
    assert watched.errors == []


def test_every_lesson_s_panels_come_alive(browser: Browser, address: str) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{address}index.html")
    chapters = page.locator("[data-chapter]")
    names = [one.get_attribute("data-chapter") for one in chapters.all()]
    assert names == sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
    for name in names:
        watched = Watched(browser, 820, 4000)
        watched.page.goto(f"{address}notebooks/{name}.html")
        there = watched.page.locator("[data-key]").count()
        assert there, name
        watched.page.evaluate(OPEN_AFTER_GUESSES)
        for _ in range(30):
            watched.page.mouse.wheel(0, 3000)
            watched.page.wait_for_timeout(60)
        expect(watched.page.locator("[data-key]")).to_have_count(0, timeout=WAIT)
        watched.ready()
        assert watched.page.locator(".alive .llamapar").count() >= there, name
        assert watched.errors == [], name
        watched.page.close()
