"""JupyterLab opens as `make lab` promises, and the driver sees what goes wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from browser.lab import Lab, LabError, scratch_notebook, wait_until

pytestmark = pytest.mark.browser

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
def test_the_driver_sees_what_goes_wrong(lab: Lab, tmp_path: Path) -> None:
    with lab.open(scratch_notebook(tmp_path / "faults.ipynb", FAULTS, FAILS)) as notebook:
        assert notebook.console_errors() == []
        notebook.run(0)
        for told in ("seen on the console", "seen uncaught"):
            wait_until(lambda told=told: any(told in e for e in notebook.console_errors()), what=told)
        for run, told in (
            (lambda: notebook.run(FAILS), "cell 1 failed: ZeroDivisionError: division by zero"),
            (notebook.run_all, "cell 1 failed: ZeroDivisionError"),
            (lambda: notebook.run("no such text"), "0 cells hold 'no such text'; one should"),
            (lambda: notebook.run(2), "there is no cell 2: the notebook has 2"),
        ):
            with pytest.raises(LabError, match=told):
                run()
