"""The page without an install, in Chromium: picture, Python, slider, clinic; and nothing leaves it."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, BrowserType, Page, expect

from browser.lab import FLAGS, find_chromium
from browser.panel import open_tab
from test_site import building

pytestmark = [pytest.mark.browser, pytest.mark.deep]

WAIT = 60_000  # ms: the machine may be busy, so that budgets are of processor time
COLD, SETTLED = 15, 5  # processor seconds of all the browser's processes until Python is ready
MESSAGE = "n_kv_heads (8) must be divisible by tp (16)"
EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


class Quiet(SimpleHTTPRequestHandler):
    """A server that knows files and MIME types."""

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(root: Path) -> Iterator[str]:
    """The address of a folder, over plain http."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A site under a path."""
    root = tmp_path_factory.mktemp("served")
    try:
        building.build(root / "below" / "site")
    except building.NoNpm as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))
    with served(root) as found:
        yield f"{found}below/site/"


@contextmanager
def visiting(kind: BrowserType, profile: Path) -> Iterator[tuple[BrowserContext, Callable[[], float]]]:
    """A browser on a profile, and its processor seconds so far."""
    browser = kind.launch_persistent_context(
        profile, executable_path=find_chromium(), args=FLAGS, viewport={"width": 1280, "height": 900}
    )
    (first,) = [one for one in psutil.Process().children(recursive=True) if is_first(one, profile)]
    try:
        yield browser, lambda: sum(map(seconds, [first, *first.children(recursive=True)]))
    finally:
        browser.close()


def is_first(process: psutil.Process, profile: Path) -> bool:
    """Whether it is the browser's own process, which started the others."""
    words = process.cmdline()
    return f"--user-data-dir={profile}" in words and not any(word.startswith("--type=") for word in words)


def seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def opened(page: Page, address: str) -> dict[str, float]:
    """Seconds from the start of navigation to each mark of the page."""
    page.goto(address)
    page.wait_for_function("() => document.documentElement.dataset.python", timeout=WAIT)
    expect(page.locator("#python")).to_have_text("Python is ready")
    found: list[Any] = page.evaluate(
        "() => performance.getEntriesByType('mark').map(({ name, startTime }) => [name, startTime / 1000])"
    )
    return dict(found)


class Watched:
    """A new page and all that it asked for or complained of."""

    def __init__(self, browser: Browser, width: int = 1280, height: int = 900) -> None:
        page = browser.new_page(viewport={"width": width, "height": height})
        self.page, self.asked, self.errors = page, list[str](), list[str]()
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def ready(self) -> None:
        """Waits until the page's Python answers."""
        said = self.page.locator("#python")
        expect(said).to_have_text(re.compile("is ready|did not"), timeout=WAIT)
        expect(said).to_have_text("Python is ready")

    def require_quiet(self, address: str) -> None:
        """Nobody else was asked for anything, and nothing was complained of."""
        own = (address, "data:", "blob:")
        assert [url for url in self.asked if not url.startswith(own)] == []
        assert self.errors == []

    def serious(self) -> list[str]:
        found: Any = Axe().run(self.page, options={"resultTypes": ["violations"]}).response
        return [
            f"{one['id']}: {node['target']}"
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"]
        ]


def test_the_page_answers_and_asks_nobody_else(browser: Browser, address: str) -> None:
    watched = Watched(browser)
    page = watched.page
    page.goto(f"{address}index.html")
    assert watched.serious() == []
    page.get_by_role("link", name="I am reading the paper").click()
    page.locator(".lp-map").first.wait_for(timeout=WAIT)
    slider = page.locator("input[data-axis=tp]").first
    slider.press("ArrowRight")  # before Python is there: it waits
    watched.ready()
    expect(page.locator(".lp-product")).to_have_text(re.compile("^16 · 16 · 16 · 4 = "), timeout=WAIT)
    slider.press("ArrowLeft")
    expect(page.locator(".lp-product")).to_have_text(re.compile("^8 · 16 · 16 · 8 = "), timeout=WAIT)
    slider.press("ArrowLeft")
    expect(page.locator(".lp-product")).to_have_text(re.compile("^4 · 16 · 16 · 16 = "), timeout=WAIT)
    expect(page).to_have_url(re.compile("--tp%204"))  # the line comes with the answers, after the picture
    open_tab(page.locator(".llamapar").first, "plan")
    search = page.locator(".lp-search")
    expect(search).to_contain_text("layouts judged", timeout=WAIT)  # the page's Python answers meanwhile
    search.get_by_role("button", name="Stop").click()
    expect(search).to_contain_text("considered in", timeout=WAIT)
    expect(page.locator(".lp-summary").first).to_contain_text("stopped")
    open_tab(page.locator(".llamapar").first, "run")
    page.locator(".lp-start").click()
    expect(page.locator(".lp-run")).to_contain_text("a run needs PyTorch and threads")
    assert watched.serious() == []
    page.reload()
    expect(page.locator(".lp-product")).to_have_text(re.compile("^4 · 16 · 16 · 16 = "), timeout=WAIT)

    page.get_by_role("link", name="Clinic").click()
    watched.ready()
    expect(page.locator("main")).to_contain_text("What you paste stays in this page")
    page.locator("textarea").first.fill(EVIL)
    expect(page.locator(".lp-status").first).not_to_have_text("nothing pasted yet", timeout=WAIT)
    page.locator("[data-control=model] input").fill("llama3-8b")
    page.locator("textarea").first.fill(MESSAGE)
    page.locator("[data-category] .lp-fix button").first.click(timeout=WAIT)
    opened = page.locator(".lp-opened .lp-explorer [data-control=preset] select")
    expect(opened).to_have_value("llama3-8b", timeout=WAIT)
    page.locator(".lp-opened .lp-map").first.wait_for(timeout=WAIT)
    assert page.title() != "owned"
    assert page.locator(".llamapar :is(img, script)").count() == 0
    assert watched.serious() == []

    page.goto(f"{address}notebooks/00_start_here.html")
    page.locator("[data-end]").scroll_into_view_if_needed()
    assert watched.serious() == []
    page.locator("[data-end] a[rel=next]").click()
    page.goto(f"{address}index.html")
    page.locator("[data-chapter='00_start_here'][data-read]").wait_for()

    watched.require_quiet(address)


def test_ranks_are_watched_stepped_and_edited_without_torch(browser: Browser, address: str) -> None:
    watched = Watched(browser)
    page = watched.page
    page.goto(f"{address}index.html")
    page.get_by_role("link", name="Watch", exact=True).click()
    panel, place, caption = (page.locator(f".lp-watch{name}") for name in ("", " .lp-at", " .lp-caption"))
    expect(panel.locator(".lp-tile")).to_have_count(4, timeout=WAIT)  # the first film is in the page
    watched.ready()
    assert not any(url.endswith("plotly.min.js") for url in watched.asked[1:])
    before = place.text_content()
    panel.get_by_role("button", name="the next step").click()
    expect(place).not_to_have_text(str(before))
    panel.get_by_role("radio", name="backward").click()
    expect(place).to_contain_text("backward")
    expect(caption).to_contain_text("the gradient of")
    assert watched.serious() == []

    source = panel.locator("textarea")
    summed = "return row_output(partial, mesh, setting)"
    assert summed in source.input_value()
    source.fill(source.input_value().replace(summed, "return partial"))
    expect(caption).to_contain_text("Here it breaks", timeout=WAIT)
    expect(caption).to_contain_text("Forward only")
    expect(place).to_contain_text("it breaks at step")
    expect(panel.get_by_role("radio", name="backward")).to_have_count(0)
    source.fill(source.input_value().replace("return partial", "return torch.einsum('bsd->bs', partial)"))
    expect(caption).to_contain_text("torch.einsum is not in this page's stand-in of torch", timeout=WAIT)

    panel.locator("[data-control=program] select").select_option("llama")
    expect(caption).to_contain_text("This run is a recording", timeout=WAIT)
    source.fill(f"{source.input_value()}    # edited")
    expect(panel).to_contain_text("llama cannot be edited on this page", timeout=WAIT)
    panel.locator("[data-control=program] select").select_option("mlp")
    panel.locator("[data-control=tp]").get_by_role("radio", name="4").click()
    expect(panel.locator(".lp-tile")).to_have_count(8, timeout=WAIT)
    assert watched.serious() == []
    watched.require_quiet(address)


LINK = "explorer.html#--model%20llama3-8b%20--tp%204"


def test_a_link_shows_its_own_job_alone_or_says_that_it_cannot_be_read(
    browser: Browser, address: str
) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.add_init_script(
        """window.seen = []; new MutationObserver(() => {
            const status = document.querySelector("#panel:not([hidden]) .lp-product");
            if (status) window.seen.push(status.textContent);
        }).observe(document, { childList: true, subtree: true, attributes: true, characterData: true });"""
    )
    page.goto(f"{address}{LINK}")
    said, status = page.locator("#python"), page.locator(".lp-product")
    expect(said).to_have_text("Python is loading, and then what this link says")
    expect(status).to_be_visible(timeout=WAIT)
    expect(said).to_have_text("Python is ready")
    expect(status).to_have_text("4 · 1 · 1 · 1 = 4 GPUs")
    assert [text for text in page.evaluate("window.seen") if "16,384" in text] == []
    for wrong, told in (("--tq%204", "option='tq' is not known"), ("%E0%A4%A", "'%E0%A4%A' sets nothing")):
        page.goto("about:blank")
        page.goto(f"{address}explorer.html#{wrong}")
        expect(said).to_contain_text(told, timeout=WAIT)
        expect(said).to_contain_text("The panel shows something else.")
        expect(status).to_contain_text("16,384 GPUs")
    page.evaluate("location.hash = '--model llama3-8b --tp 2'")
    expect(status).to_have_text("2 · 1 · 1 · 1 = 2 GPUs", timeout=WAIT)
    expect(said).to_have_text("Python is ready")


def test_a_visit_costs_little_processor_time(browser: Browser, address: str, tmp_path: Path) -> None:
    """The third visit finds what two others left in the browser's profile."""
    spent = []
    for _ in range(3):
        with visiting(browser.browser_type, tmp_path) as (visitor, processor_seconds):
            page = visitor.new_page()
            page.wait_for_timeout(1000)  # the browser's own start
            before = processor_seconds()
            assert set(opened(page, f"{address}explorer.html")) >= {"picture", "python"}
            spent.append(processor_seconds() - before)
    assert spent[0] < COLD
    assert spent[2] < SETTLED


def test_opened_as_a_file_a_page_says_what_it_needs(browser: Browser, tmp_path: Path) -> None:
    building.build(tmp_path / "site", npm=False)
    page = browser.new_page()
    page.goto((tmp_path / "site" / "explorer.html").as_uri())
    expect(page.locator("#python")).to_be_visible()
    expect(page.locator("#python")).to_contain_text("python -m http.server")
