"""Drive a real JupyterLab in a real Chromium, for the browser tests and the benchmarks.

    with Lab() as lab, lab.open("notebooks/00_start_here.ipynb", theme="dark") as notebook:
        notebook.run("lp.explorer(")              # the cell that holds this text; or its index
        notebook.cell("lp.explorer(").locator("input").first.press("ArrowRight")
        notebook.screenshot("explorer.png")
        assert notebook.console_errors() == []

`Lab` starts the server the way `make lab` does (`jupyter/start.py`, so with the project's
settings, loopback only, with its token), keeps all it writes in a temporary folder, and ends every
process it started, or says which ones it had to kill. A notebook is opened as a copy, so nothing
that runs here changes the file. Both give playwright's own objects (`page`, locators) for
everything else. Playwright starts one Chromium at a time in a process; several Labs may share it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import nbformat
import psutil
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, WebSocket, sync_playwright

PROJECT = Path(__file__).resolve().parents[2]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
START_SECONDS = 90.0
RUN_SECONDS = 120.0
WIDGET = "application/vnd.jupyter.widget-view+json"
"""The kind of an output that is a widget."""

Theme = Literal["light", "dark"]


class LabError(Exception):
    """JupyterLab or a cell did not do what it was asked; the text says what happened instead."""


def find_chromium() -> str | None:
    """The Chromium to drive: `$LLAMAPAR_CHROMIUM`, else the first found on the path, else None."""
    named = os.environ.get("LLAMAPAR_CHROMIUM")
    if named:
        return shutil.which(named)
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless Chromium with a new, empty profile."""
    executable = find_chromium()
    if executable is None:
        raise LabError(f"no Chromium: install one ({', '.join(NAMES)}) or name it in LLAMAPAR_CHROMIUM")
    with tempfile.TemporaryDirectory(prefix="llamapar-chromium-") as home, sync_playwright() as playwright:
        own = {"XDG_CONFIG_HOME": home, "XDG_CACHE_HOME": home}  # nothing lands in the user's folders
        browser = playwright.chromium.launch(
            executable_path=executable, args=FLAGS, env={**os.environ, **own}
        )
        try:
            yield browser
        finally:
            browser.close()


def scratch_notebook(path: Path, *sources: str) -> Path:
    """Write a notebook with one cell per source, and the kernel named as in the workbook."""
    notebook = nbformat.v4.new_notebook()
    for source in sources:
        of_text = source.startswith(("<details>", "## "))
        made = nbformat.v4.new_markdown_cell if of_text else nbformat.v4.new_code_cell
        notebook.cells.append(made(source))
    notebook.metadata.kernelspec = {
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "name": "python3",
    }
    nbformat.write(notebook, path)
    return path


class Lab:
    """One JupyterLab server and a Chromium; `open` notebooks in it, one by one or at once.

    browser: a Chromium that others use too; without one the Lab starts its own.
    """

    def __init__(self, browser: Browser | None = None) -> None:
        self.url = ""
        self.token = ""
        self._chromium = chromium() if browser is None else nullcontext(browser)
        self._opened = ExitStack()
        self.server: subprocess.Popen[bytes] | None = None
        self._seen: dict[int, psutil.Process] = {}

    def __enter__(self) -> Lab:
        self._folder = Path(tempfile.mkdtemp(prefix="llamapar-lab-"))
        try:
            self.browser = self._opened.enter_context(self._chromium)
            self._context = self.browser.new_context()  # of all pages: JupyterLab's scripts are fetched once
            self._opened.callback(self._context.close)
            self.server = self._start_server()
            self._wait_for(self.server)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        survivors = self._end()
        if survivors and error is None:
            raise LabError("still running after JupyterLab had stopped: " + "; ".join(survivors))

    @contextmanager
    def open(
        self,
        notebook: str | Path,
        *,
        theme: Theme = "light",
        width: int = 1280,
        height: int = 900,
    ) -> Iterator[Notebook]:
        """Open a copy of a notebook, with the files beside it, and wait until its kernel is ready.

        `notebook` is a path, relative to the project if not absolute. The page is `width`
        × `height` CSS pixels. The kernel ends with the block.
        """
        source = PROJECT / notebook
        folder = Path(tempfile.mkdtemp(prefix="", dir=self._folder / "served"))
        shutil.copytree(source.parent, folder, dirs_exist_ok=True)
        page = self._context.new_page()
        page.set_viewport_size({"width": width, "height": height})
        try:
            # A workspace of its own: JupyterLab would bring back the tabs of the last one.
            path = f"{folder.name}/{source.name}"
            url = f"{self.url}lab/workspaces/{folder.name}/tree/{path}?token={self.token}"
            opened = Notebook(page, url, folder / source.name, path)
            opened.set_theme(theme)  # the server remembers the last one
            yield opened
            self._note_processes()
            opened._shut_down()
        finally:
            page.close()

    def log(self) -> str:
        """What the server printed so far."""
        return (self._folder / "server.log").read_text(errors="replace")

    def _start_server(self) -> subprocess.Popen[bytes]:
        state, served = self._folder / "state", self._folder / "served"
        served.mkdir()
        start = [sys.executable, str(PROJECT / "jupyter" / "start.py")]
        options = ["--no-browser", "--expose-app-in-browser", "--ServerApp.port=0"]
        with (self._folder / "server.log").open("wb") as log:
            return subprocess.Popen(
                [*start, "--state", str(state), "--root", str(served), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait_for(self, server: subprocess.Popen[bytes]) -> None:
        record = self._folder / "state" / "runtime" / f"jpserver-{server.pid}.json"
        deadline = time.monotonic() + START_SECONDS
        while not self._answers(record):
            if server.poll() is not None or time.monotonic() > deadline:
                raise LabError(f"JupyterLab did not start; it printed:\n{self.log()}")
            time.sleep(0.1)

    def _answers(self, record: Path) -> bool:
        """Whether the server has written how to reach it, and answers there."""
        try:
            info = json.loads(record.read_text())
            self.url, self.token = info["url"], info["token"]
            question = urllib.request.Request(
                f"{self.url}api/status", headers={"Authorization": f"token {self.token}"}
            )
            with urllib.request.urlopen(question, timeout=5):
                return True
        except (OSError, ValueError):  # no file, half a file, or nobody listening yet
            return False

    def _note_processes(self) -> None:
        """Keeps in mind what the server has started by now; what outlives it has another parent."""
        if self.server is not None and self.server.poll() is None:
            for process in psutil.Process(self.server.pid).children(recursive=True):
                self._seen.setdefault(process.pid, process)

    def _end(self) -> list[str]:
        """Stop everything that was started; the processes that had to be killed, in words."""
        self._note_processes()
        if self.server is not None:
            self.server.terminate()  # JupyterLab then ends its kernels
            try:
                self.server.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.server.kill()
                self.server.wait()
        self._opened.close()
        _, alive = psutil.wait_procs(list(self._seen.values()), timeout=10)
        survivors = []
        for process in alive:
            try:
                survivors.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(alive, timeout=10)
        shutil.rmtree(self._folder, ignore_errors=True)
        return survivors


class Notebook:
    """One notebook in one page; `page` is playwright's own, `file` the copy that is open.

    A `cell` is an index among all cells (a negative one counts from the end), or a text that
    exactly one cell's source holds.
    """

    def __init__(self, page: Page, url: str, file: Path, path: str) -> None:
        self.page = page
        self.file = file
        self._errors: list[str] = []
        self._bytes = 0
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self._errors.append(f"uncaught: {error}"))
        page.on("websocket", self._on_websocket)
        page.goto(url)
        page.wait_for_function("window.jupyterapp !== undefined", timeout=START_SECONDS * 1000)
        self._ask(
            """
            const pause = () => new Promise(done => setTimeout(done, 50));
            await app.restored;
            while (app.shell.currentWidget?.context?.path !== given) await pause();
            const widget = app.shell.currentWidget;
            await widget.revealed;
            const status = () => widget.sessionContext.kernelDisplayStatus;
            while (status() !== 'idle' && !document.querySelector('.jp-Dialog')) await pause();
            """,
            path,
            seconds=START_SECONDS,
        )
        self._wait_for_splash()

    def cells(self) -> list[str]:
        """The source of every cell, in order."""
        return self._ask("return cells.map(cell => cell.sharedModel.getSource());")

    def index(self, cell: int | str) -> int:
        """The index of a cell given by its index or by a text that only it holds."""
        sources = self.cells()
        if isinstance(cell, int):
            if not -len(sources) <= cell < len(sources):
                raise LabError(f"there is no cell {cell}: the notebook has {len(sources)}")
            return cell % len(sources)
        found = [i for i, source in enumerate(sources) if cell in source]
        if len(found) != 1:
            raise LabError(f"{len(found)} cells hold {cell!r}; one should: {found}")
        return found[0]

    def cell(self, cell: int | str) -> Locator:
        """The cell on the page, scrolled into view (JupyterLab takes far cells off the page)."""
        index = self.index(cell)
        self._ask("await content.scrollToItem(given);", index)
        return self.standing(index)

    def standing(self, index: int) -> Locator:
        """The same where the page is high enough for all cells: nothing is asked and nothing scrolls."""
        return self.page.locator(f".jp-Cell[data-windowed-list-index='{index}']")

    def run(self, cell: int | str, *, seconds: float = RUN_SECONDS) -> float:
        """Run one cell to its end; the seconds from the request until the kernel was done.

        Raises LabError with the traceback's last line when the cell fails, or after `seconds`.
        """
        index = self.index(cell)
        begun = time.monotonic()
        self._ask(
            """
            content.activeCellIndex = given;
            content.deselectAll();
            await app.commands.execute('notebook:run-cell');
            """,
            index,
            seconds=seconds,
        )
        took = time.monotonic() - begun
        self._require_success([index])
        return took

    def run_all(self, *, seconds: float = 10 * RUN_SECONDS) -> float:
        """Run every cell from the top; the seconds it took. Raises LabError when a cell fails."""
        begun = time.monotonic()
        self._ask(
            """
            await app.commands.execute('notebook:run-all-cells');  // done early where a cell fails
            await app.shell.currentWidget.sessionContext.session.kernel.requestKernelInfo();
            """,
            seconds=seconds,
        )
        took = time.monotonic() - begun
        self._require_success(range(len(self.cells())))
        return took

    def outputs(self, cell: int | str) -> list[dict[str, Any]]:
        """A cell's outputs as the notebook file would hold them; empty for a cell of text."""
        return self._ask("return cells[given].outputs?.toJSON() ?? [];", self.index(cell))

    def save(self) -> Path:
        """Save as the menu does; the file that the server wrote."""
        self._ask("await app.commands.execute('docmanager:save');")
        return self.file

    @property
    def modified(self) -> bool:
        """Whether JupyterLab marks the notebook as modified."""
        return bool(self._ask("return content.model.dirty;"))

    def set_theme(self, theme: Theme) -> None:
        """Switch JupyterLab to its light or dark theme and wait until the page wears it."""
        worn = self.page.locator(f"body[data-jp-theme-light='{str(theme == 'light').lower()}']")
        if worn.count():
            return
        self._ask(
            "await app.commands.execute('apputils:change-theme', {theme: given});",
            f"JupyterLab {theme.capitalize()}",
        )
        worn.wait_for(state="attached")
        self._wait_for_splash()

    def screenshot(self, path: str | Path, cell: int | str | None = None) -> Path:
        """A PNG of the page as it is, or of one cell with its output."""
        target: Page | Locator = self.page if cell is None else self.cell(cell)
        target.screenshot(path=path)
        return Path(path)

    def console_errors(self) -> list[str]:
        """Every `console.error` and uncaught error of the page so far."""
        self._settle()
        return list(self._errors)

    def websocket_bytes(self) -> int:
        """Bytes that the page has received from its kernel so far (payload of the frames)."""
        self._settle()
        return self._bytes

    def dialogs(self) -> list[str]:
        """The text of each dialog that stands open, the kernel choice among them."""
        return self.page.locator(".jp-Dialog").all_inner_texts()

    def _ask(self, body: str, given: object = None, *, seconds: float = 30.0) -> Any:
        """Run JavaScript that sees `app`, `content` (the notebook), `cells` (models), `given`."""
        script = """async ([given, milliseconds]) => {
            const app = window.jupyterapp;
            const content = app.shell.currentWidget?.content;
            const cells = content?.model ? Array.from(content.model.cells) : [];
            const late = new Promise((_, fail) => {
                setTimeout(() => fail(new Error('too late')), milliseconds);
            });
            return await Promise.race([(async () => { BODY })(), late]);
        }""".replace("BODY", body)
        try:
            return self.page.evaluate(script, [given, seconds * 1000])
        except Exception as error:
            if "too late" not in str(error):
                raise
            shown = self.dialogs()
            dialog = f"; a dialog stands open: {shown}" if shown else ""
            raise LabError(f"JupyterLab was not done after {seconds:g} s{dialog}") from None

    def _settle(self) -> None:
        """Let playwright hand over the events that already happened on the page."""
        self.page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done, 0)))")

    def _wait_for_splash(self) -> None:
        """JupyterLab's moons stay over the page a little after it starts or changes its theme."""
        self.page.locator("#jupyterlab-splash").wait_for(state="detached")

    def _require_success(self, indices: range | list[int]) -> None:
        may_fail = self._ask(
            "const tags = cell => cell.sharedModel.getMetadata('tags') ?? [];"
            "return cells.map(cell => tags(cell).includes('raises-exception'));"
        )
        for index in indices:
            for output in self.outputs(index):
                if output["output_type"] == "error" and not may_fail[index]:
                    raise LabError(f"cell {index} failed: {output['ename']}: {output['evalue']}")

    def _shut_down(self) -> None:
        self._ask("await app.shell.currentWidget.sessionContext.shutdown();")

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            where = message.location.get("url", "")
            self._errors.append(f"{message.text} ({where})")

    def _on_websocket(self, socket: WebSocket) -> None:
        if "/channels" in socket.url:  # a kernel's; the others carry server events

            def count(payload: str | bytes) -> None:
                self._bytes += len(payload if isinstance(payload, bytes) else payload.encode())

            socket.on("framereceived", count)


def wait_until(done: Callable[[], bool], *, what: str, seconds: float = 30.0) -> None:
    """Wait until `done()` is true; LabError naming `what` was waited for otherwise."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise LabError(f"{what}: not after {seconds:g} s")
        time.sleep(0.05)
