"""`llamapar course` and `llamapar explorer`, from a wheel that is installed where no checkout is."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from browser.lab import FLAGS, find_chromium
from test_wheel import PROJECT, Environment, built_wheel

pytestmark = [pytest.mark.browser, pytest.mark.deep]


class Door:
    """A server that a command became. process: it. said: its output. link: with its token."""

    def __init__(self, home: Path, *words: str) -> None:
        environment = {"HOME": str(home), "PATH": os.defpath, "LLAMAPAR_PROGRESS": "off"}
        self.process = subprocess.Popen(
            words, cwd=home, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.said, output = "", self.process.stdout
        assert output
        for line in output:
            self.said += line
            if found := re.search(r"http://127\.0\.0\.1:\d+/\S*token=\w+", line):
                self.link = found[0]
                break
        else:
            raise AssertionError(self.said)
        self._rest = threading.Thread(target=self._read_on, daemon=True)  # or the server would wait
        self._rest.start()

    def _read_on(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.said += line

    def __enter__(self) -> Door:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)
        self._rest.join(20)
        assert self.process.stdout
        self.process.stdout.close()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel with its extra `lab`, at the pinned releases."""
    wheel = built_wheel(tmp_path_factory.mktemp("wheel"))
    made = Environment(tmp_path_factory.mktemp("lab"), wheel)
    words = ["--python", str(made.bin / "python"), "install", "-q", "-c", str(PROJECT / "constraints.txt")]
    subprocess.run([sys.executable, "-m", "pip", *words, f"{wheel}[lab]"], check=True)
    return made


@pytest.fixture
def page() -> Iterator[Page]:
    """A page that asks no other host for anything."""
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium is installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page()
        asked: list[str] = []
        page.on("requestfinished", lambda request: asked.append(request.url))
        page.on("requestfailed", lambda request: asked.append(f"{request.failure} {request.url}"))
        yield page
        browser.close()
    others = [url for url in asked if not re.search(r"^(data|blob):|://(127\.0\.0\.1|localhost):", url)]
    assert [url for url in others if not url.startswith("csp ")] == []  # what the page was not let ask for


def test_the_course_of_a_wheel_opens_and_runs(installed: Environment, page: Page) -> None:
    words = (str(installed.bin / "llamapar"), "course", "mine", "--no-browser", "--port", "18889")
    with Door(installed.home, *words) as door:
        assert f"{installed.home / 'mine'}: " in door.said
        page.goto(door.link)
        page.locator(".jp-Notebook").wait_for(timeout=60_000)
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_text("Run All Cells", exact=True).click()
        expect(page.locator(".llamapar").first).to_be_visible(timeout=120_000)
        expect(page.get_by_text("Traceback")).to_have_count(0)
    assert (installed.home / "mine" / "notebooks" / "00_start_here.ipynb").is_file()


@pytest.mark.parametrize(
    ("words", "shows"),
    [((), "16,384"), (("llama3-70b", "--tp", "8", "--dp", "8", "--gpus", "64"), "64")],
)
def test_the_explorer_of_a_wheel_opens_alone(
    installed: Environment, page: Page, words: tuple[str, ...], shows: str
) -> None:
    command = (str(installed.bin / "llamapar"), "explorer", *words, "--no-browser", "--port", "18890")
    with Door(installed.home, *command) as door:
        page.goto(door.link)
        explorer = page.locator(".llamapar").first
        expect(explorer).to_be_visible(timeout=60_000)
        expect(
            explorer.locator(".lp-group:not([data-tab]) [data-control=gpus] input[type=text]").first
        ).to_have_value(shows)
        expect(page.locator(".jp-Editor, .cm-editor, .jp-InputArea")).to_have_count(0)
        # Without the token a stranger on this machine gets nothing.
        page.goto(re.sub(r"\?token=\w+", "", door.link).replace("127.0.0.1", "localhost"))
        expect(page.locator(".llamapar")).to_have_count(0)
