"""The Explorer alone, by Voilà: who may ask its server for what, and how long a page's kernel lives."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import psutil
import pytest
from jupyter_server._tz import utcnow
from playwright.sync_api import Browser, Page, expect
from traitlets.config.loader import PyFileConfigLoader

from browser.test_doors import Door

PROJECT = Path(__file__).resolve().parents[2]
WITHOUT_A_PAGE = 10
"""Seconds after which a kernel without a page ends here, so that no test waits for a minute."""

POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; object-src 'none'; base-uri 'self'; "
    "frame-ancestors 'self'"
)

Opened = Callable[[], tuple[Page, set[int]]]


class Server:
    """The server behind a door. host: its name and port. origin: the same with the scheme."""

    def __init__(self, door: Door) -> None:
        self.door = door
        self.link = door.link
        self.host = urlsplit(door.link).netloc
        self.origin = f"http://{self.host}"
        self.path = f"/?{urlsplit(door.link).query}"
        self._process = psutil.Process(door.process.pid)

    def kernels(self) -> set[int]:
        """The processes of the kernels that run."""
        running = set()
        for process in self._process.children(recursive=True):
            try:
                if "ipykernel_launcher" in process.cmdline():
                    running.add(process.pid)
            except psutil.Error:  # it has just ended
                continue
        return running

    def wait_for_the_end_of(self, kernels: set[int]) -> None:
        """Wait until none of these runs any longer."""
        deadline = time.monotonic() + 60
        while left := kernels & self.kernels():
            assert time.monotonic() < deadline, left
            time.sleep(0.1)

    def answer(self, path: str, method: str = "GET", body: str = "", **headers: str) -> tuple[int, str]:
        """The status and the policy of an answer; in names of headers, _ is -."""
        connection = HTTPConnection(self.host, timeout=20)
        try:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body or None, sent)
            answer = connection.getresponse()
            return answer.status, answer.getheader("Content-Security-Policy", "")
        finally:
            connection.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Voilà as `llamapar explorer` becomes it, but for the time after which it looks for kernels."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = tmp_path_factory.mktemp("home")
    words = [str(PROJECT / "jupyter" / "start.py"), "--state", str(home / "state"), "--alone"]
    words += [str(PROJECT / "jupyter" / "explorer.ipynb"), "--no-browser", f"--port={port}"]
    words += [f"--MappingKernelManager.cull_idle_timeout={WITHOUT_A_PAGE}"]
    words += ["--MappingKernelManager.cull_interval=1"]
    with Door(home, sys.executable, *words) as door:
        yield Server(door)


@pytest.fixture
def opened(browser: Browser, server: Server) -> Iterator[Opened]:
    """Opens a page, in a profile of its own: the page, whose Explorer is there, and its kernel's process."""
    contexts = []

    def opens() -> tuple[Page, set[int]]:
        before = server.kernels()
        contexts.append(browser.new_context())
        page = contexts[-1].new_page()
        page.goto(server.link)
        expect(page.locator(".llamapar").first).to_be_visible(timeout=60_000)
        kernels = server.kernels() - before
        assert len(kernels) == 1
        return page, kernels

    yield opens
    for context in contexts:
        context.close()


def kernel_of(page: Page) -> str:
    """The id of a page's kernel."""
    told = json.loads(page.locator("#jupyter-config-data").text_content() or "")
    return str(told["kernelId"])


@pytest.mark.soak
def test_a_dark_system_has_a_dark_page_and_a_large_screen_a_large_panel(
    browser: Browser, server: Server
) -> None:
    page = browser.new_page(viewport={"width": 1920, "height": 1080}, color_scheme="dark")
    page.goto(server.link)
    expect(page.locator(".lp-answers button").first).to_be_visible(timeout=60_000)
    expect(page.locator("body")).to_have_css("background-color", "rgb(28, 28, 31)")
    box = page.locator(".llamapar").bounding_box()
    assert box is not None
    assert 0.9 * 1080 < box["y"] + box["height"] < 1080
    assert box["width"] > 0.9 * 1920
    page.context.close()


# -- the settings --------------------------------------------------------------------------------


def test_a_kernel_without_a_page_ends_within_a_minute_and_one_with_a_page_never() -> None:
    config = PyFileConfigLoader("voila.py", str(PROJECT / "jupyter")).load_config()
    kernels = config.MappingKernelManager
    assert 0 < kernels.cull_idle_timeout + kernels.cull_interval < 60
    assert "cull_connected" not in kernels  # Jupyter culls no kernel with a page, unless it is told to.
    assert "AsyncMappingKernelManager" not in config


def test_the_time_without_a_page_begins_when_the_page_has_gone() -> None:
    """Jupyter's own counts from the last message: a page that was read for an hour may not lose its
    connection for a second."""
    config = PyFileConfigLoader("voila.py", str(PROJECT / "jupyter")).load_config()
    manager = config.VoilaConfiguration.multi_kernel_manager_class()
    before = utcnow()
    manager._kernels["read for an hour"] = kernel = SimpleNamespace(last_activity=None)
    manager._kernel_connections["read for an hour"] = 1
    manager.notify_disconnect("read for an hour")
    assert before <= kernel.last_activity <= utcnow()
    manager.notify_disconnect("ended before its page had gone")


# -- who may ask ---------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.0.0.1:1"])
def test_names_of_this_machine_are_answered(server: Server, host: str) -> None:
    assert server.answer("/login", Host=host) == (200, POLICY)
    assert server.answer("/", Host=host)[0] == 302  # to the question for the token


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example", "10.0.0.5"])
def test_a_foreign_name_is_refused(server: Server, host: str) -> None:
    """Or a name that is made to lead here would be this server's own origin to the browser."""
    kernels = server.kernels()
    for path in ("/", server.path, "/login", "/api/kernels/a-b-c-d-e", "/api/kernels/a-b-c-d-e/channels"):
        status, policy = server.answer(path, Host=host, Origin=f"http://{host}")
        assert (path, status) == (path, 403)
        assert policy.startswith(POLICY) or path.endswith("channels")
    assert server.kernels() == kernels


@pytest.mark.soak
@pytest.mark.browser
def test_a_foreign_origin_neither_talks_to_a_kernel_nor_ends_it(opened: Opened, server: Server) -> None:
    page, kernels = opened()
    kernel, cookies = kernel_of(page), {one["name"]: one["value"] for one in page.context.cookies()}
    has = {"Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())}
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Version": "13"}
    upgrade |= {"Sec_WebSocket_Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
    channels = f"/api/kernels/{kernel}/channels?session_id=one"
    assert server.answer(channels, **upgrade, **has, Origin=server.origin)[0] == 101
    assert server.answer(channels, **upgrade, **has, Origin="http://evil.example")[0] == 403
    assert server.answer(channels, **upgrade, Origin=server.origin)[0] == 403
    end = f"/voila/api/shutdown/{kernel}"
    form = has | {"Content_Type": "application/x-www-form-urlencoded"}
    proof = f"_xsrf={cookies['_xsrf']}"
    # A form of another server on this machine comes with the cookies, but cannot repeat one of them.
    assert server.answer(end, "POST", **form, Origin=server.origin)[0] == 403
    assert server.answer(end, "POST", "_xsrf=2|00000000|00|1", **form, Origin=server.origin)[0] == 403
    assert server.answer(end, "POST", proof, **form, Origin="http://evil.example")[0] == 404
    assert kernels <= server.kernels()
    assert server.answer(end, "POST", proof, **form, Origin=server.origin)[0] == 204
    server.wait_for_the_end_of(kernels)


@pytest.mark.soak
@pytest.mark.browser
def test_a_page_asks_its_own_server_and_nobody_else(opened: Opened, server: Server) -> None:
    page, _ = opened()
    own = f"ws://{server.host}/api/kernels/{kernel_of(page)}/channels"
    others = ["ws://evil.example/", "ws://127.0.0.1:9/"]
    refused = page.evaluate(
        """async (addresses) => {
            const refused = [];
            document.addEventListener("securitypolicyviolation", (event) => refused.push(event.blockedURI));
            for (const address of addresses) try { new WebSocket(address); } catch {}
            await fetch("http://127.0.0.1:9/").catch(() => {});
            await new Promise((done) => setTimeout(done, 100));
            return refused;
        }""",
        [own, *others],
    )
    assert sorted(refused) == sorted(["http://127.0.0.1:9/", *others])


@pytest.mark.soak
@pytest.mark.browser
def test_no_other_site_frames_it(browser: Browser, server: Server) -> None:
    page = browser.new_context().new_page()
    page.set_content(f'<iframe src="{server.link}"></iframe>')
    page.wait_for_load_state("networkidle")
    assert page.frames[1].url.startswith("chrome-error:")
    page.context.close()


# -- how long a kernel lives ---------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.browser
def test_a_page_that_is_left_ends_its_kernel(opened: Opened, server: Server) -> None:
    page, first = opened()
    names = [kernel_of(page)]
    before = server.kernels()
    page.reload()
    expect(page.locator(".llamapar").first).to_be_visible(timeout=60_000)
    second = server.kernels() - before
    assert len(second) == 1
    names.append(kernel_of(page))
    server.wait_for_the_end_of(first)
    page.close(run_before_unload=True)
    server.wait_for_the_end_of(second)
    culled = [line for line in server.door.said.splitlines() if "Culling" in line]
    assert [name for name in names if name in " ".join(culled)] == []  # The page itself asked for it.


@pytest.mark.soak
@pytest.mark.browser
def test_a_kernel_without_a_page_ends_and_that_of_an_idle_page_stays(opened: Opened, server: Server) -> None:
    """The idle page is the oldest, so nobody has touched it for longer than any other."""
    idle, stays = opened()
    killed, gone = opened()
    before = server.kernels()
    assert server.answer(server.path)[0] == 200  # Nobody opens what it answers.
    unopened = server.kernels() - before
    assert len(unopened) == 1
    killed.close()  # without a word to its server
    server.wait_for_the_end_of(gone | unopened)
    assert stays <= server.kernels()
    gpus = idle.locator(".lp-group:not([data-tab]) [data-control=gpus] input[type=text]").first
    gpus.fill("32768")
    gpus.press("Enter")
    expect(idle.locator(".lp-product")).to_contain_text("= 32,768 GPUs")
