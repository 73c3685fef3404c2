"""JupyterLab opens as `make lab` promises, shows widgets, and the driver sees what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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


def test_lab_listens_on_loopback_asks_for_its_token_and_for_no_news(lab: Lab, tmp_path: Path) -> None:
    """That nothing it started outlives it is asked at the end of all these tests, by `Lab` itself."""
    assert lab.url.startswith("http://127.0.0.1:")
    assert len(lab.token) >= 32
    page = lab.browser.new_page()
    page.goto(f"{lab.url}lab")
    assert page.get_by_text("Token authentication is enabled").first.is_visible()
    page.close()
    with lab.open(scratch_notebook(tmp_path / "plain.ipynb", "6 * 7")) as notebook:
        notebook.run(0)
        lab._note_processes()
        assert len(lab._seen) >= 1, "a kernel"
        schema = notebook.page.evaluate(
            "async () => (await window.jupyterapp.serviceManager.settings.fetch("
            "'@jupyterlab/apputils-extension:notification')).schema"
        )
    assert schema["properties"]["fetchNews"]["default"] == "false"
    assert schema["properties"]["checkForUpdates"]["default"] is False


@pytest.mark.soak
def test_widgets_show_and_answer_and_the_driver_sees_what_goes_wrong(lab: Lab, tmp_path: Path) -> None:
    path = scratch_notebook(tmp_path / "widgets.ipynb", SLIDER, ANYWIDGET, READ_BACK, FAULTS, FAILS)
    with lab.open(path) as notebook:
        assert notebook.dialogs() == []
        notebook.run(SLIDER)
        notebook.cell(SLIDER).locator(".widget-slider .widget-readout").get_by_text("3").wait_for()
        before = notebook.websocket_bytes()
        notebook.run(ANYWIDGET)
        notebook.cell(ANYWIDGET).get_by_role("button", name="value 4").click()
        notebook.cell(ANYWIDGET).get_by_role("button", name="value 8").wait_for()
        assert notebook.websocket_bytes() > before
        notebook.run(2)
        assert notebook.outputs(2)[0]["data"]["text/plain"] == "8"
        light = notebook.screenshot(tmp_path / "light.png").read_bytes()
        notebook.set_theme("dark")
        assert light != notebook.screenshot(tmp_path / "dark.png").read_bytes()
        assert notebook.page.viewport_size == {"width": 1280, "height": 900}
        assert notebook.popups() == []
        assert notebook.console_errors() == []

        notebook.run(FAULTS)
        notebook.page.wait_for_timeout(200)
        errors = notebook.console_errors()
        assert [e for e in errors if "seen on the console" in e]
        assert [e for e in errors if "seen uncaught" in e]
        for run, told in (
            (lambda: notebook.run(FAILS), "cell 4 failed: ZeroDivisionError: division by zero"),
            (notebook.run_all, "cell 4 failed: ZeroDivisionError"),
            (lambda: notebook.run("no such text"), "0 cells hold 'no such text'; one should"),
            (lambda: notebook.run(5), "there is no cell 5: the notebook has 5"),
        ):
            with pytest.raises(LabError, match=told):
                run()
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
