"""JupyterLab opens as `make lab` promises, shows widgets, and the driver sees what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Browser

from browser.lab import Lab, LabError, scratch_notebook

pytestmark = pytest.mark.browser

SLIDER = """\
import ipywidgets
ipywidgets.IntSlider(value=3, min=0, max=8)"""
ANYWIDGET = '''\
import anywidget, traitlets
class Doubler(anywidget.AnyWidget):
    value = traitlets.Int(4).tag(sync=True)
    _esm = """export default { render({ model, el }) {
        const button = document.createElement("button");
        const show = () => { button.textContent = "value " + model.get("value"); };
        const double = () => model.set("value", 2 * model.get("value"));
        button.onclick = () => { double(); model.save_changes(); };
        model.on("change:value", show); show(); el.append(button);
    } }"""
doubler = Doubler()
doubler'''
READ_BACK = "doubler.value"
FAULTS = """\
from IPython.display import Javascript, display
display(Javascript("console.error('seen on the console')"))
display(Javascript("setTimeout(() => { throw new Error('seen uncaught') })"))"""
FAILS = "1 / 0"


def test_lab_listens_on_loopback_asks_for_its_token_and_leaves_nothing(
    browser: Browser, tmp_path: Path
) -> None:
    with Lab(browser) as lab:
        assert lab.url.startswith("http://127.0.0.1:")
        assert len(lab.token) >= 32
        page = lab.browser.new_page()
        page.goto(f"{lab.url}lab")
        assert page.get_by_text("Token authentication is enabled").first.is_visible()
        page.close()
        with lab.open(scratch_notebook(tmp_path / "plain.ipynb", "6 * 7")) as notebook:
            notebook.run(0)
            server = psutil.Process(lab.server.pid)
            started = [server.pid, *(process.pid for process in server.children(recursive=True))]
            assert len(started) > 1, "a kernel"
        folder = lab._folder
    assert not [pid for pid in started if psutil.pid_exists(pid)]
    assert not folder.exists()


@pytest.mark.soak
def test_widgets_show_and_answer(lab: Lab, tmp_path: Path) -> None:
    path = scratch_notebook(tmp_path / "widgets.ipynb", SLIDER, ANYWIDGET, READ_BACK)
    with lab.open(path) as notebook:
        assert notebook.dialogs() == []
        notebook.run(SLIDER)
        notebook.cell(SLIDER).locator(".widget-slider .widget-readout").get_by_text("3").wait_for()
        before = notebook.websocket_bytes()
        notebook.run(ANYWIDGET)
        button = notebook.cell(ANYWIDGET).get_by_role("button", name="value 4")
        button.click()
        notebook.cell(ANYWIDGET).get_by_role("button", name="value 8").wait_for()
        assert notebook.websocket_bytes() > before
        notebook.run(-1)
        assert notebook.outputs(-1)[0]["data"]["text/plain"] == "8"
        light = notebook.screenshot(tmp_path / "light.png").read_bytes()
        notebook.set_theme("dark")
        dark = notebook.screenshot(tmp_path / "dark.png").read_bytes()
        assert light != dark
        assert notebook.page.viewport_size == {"width": 1280, "height": 900}
        assert notebook.popups() == []
        assert notebook.console_errors() == []


@pytest.mark.soak
def test_driver_sees_what_goes_wrong(lab: Lab, tmp_path: Path) -> None:
    path = scratch_notebook(tmp_path / "faults.ipynb", FAULTS, FAILS)
    with lab.open(path, theme="dark") as notebook:
        notebook.run(FAULTS)
        notebook.page.wait_for_timeout(200)
        errors = notebook.console_errors()
        assert [e for e in errors if "seen on the console" in e]
        assert [e for e in errors if "seen uncaught" in e]
        with pytest.raises(LabError, match="cell 1 failed: ZeroDivisionError: division by zero"):
            notebook.run(FAILS)
        with pytest.raises(LabError, match="cell 1 failed: ZeroDivisionError"):
            notebook.run_all()
        with pytest.raises(LabError, match="0 cells hold 'no such text'; one should"):
            notebook.run("no such text")
        with pytest.raises(LabError, match="there is no cell 2: the notebook has 2"):
            notebook.run(2)
        notebook.page.evaluate(
            "window.jupyterapp.commands.execute('apputils:notify',"
            " {message: 'some news', type: 'info', options: {autoClose: false}})"
        )
        notebook.page.locator(".Toastify__toast").wait_for()
        assert notebook.popups() == ["some news"]


@pytest.mark.soak
def test_a_notebook_without_a_kernel_name_shows_its_dialog(lab: Lab, tmp_path: Path) -> None:
    path = scratch_notebook(tmp_path / "nameless.ipynb", READ_BACK)
    content = json.loads(path.read_text())
    del content["metadata"]["kernelspec"]
    path.write_text(json.dumps(content))
    with lab.open(path) as notebook:
        assert [text for text in notebook.dialogs() if "Select Kernel" in text]
        # light again, though the notebook before had made the server's theme dark
        assert notebook.page.locator("body").get_attribute("data-jp-theme-light") == "true"


@pytest.mark.soak
def test_news_and_update_checks_are_off(lab: Lab, tmp_path: Path) -> None:
    with lab.open(scratch_notebook(tmp_path / "empty.ipynb", "")) as notebook:
        schema = notebook.page.evaluate(
            "async () => (await window.jupyterapp.serviceManager.settings.fetch("
            "'@jupyterlab/apputils-extension:notification')).schema"
        )
    assert schema["properties"]["fetchNews"]["default"] == "false"
    assert schema["properties"]["checkForUpdates"]["default"] is False
