"""Author's tool: takes README's picture of the Explorer anew, in a real JupyterLab and Chromium.

PYTHONPATH=tests .venv/bin/python tools/screenshot.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from browser.lab import Lab, scratch_notebook

PANEL = """\
import llamapar as lp
lp.explorer("llama3.1-405b", tp=16, cp=1, pp=16, dp=64, gpus=16384)"""
PICTURE = Path(__file__).resolve().parent.parent / "docs" / "explorer.png"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Lab() as lab:
        path = scratch_notebook(Path(folder) / "explorer.ipynb", PANEL)
        with lab.open(path, width=1280, height=1300) as notebook:
            notebook.run(0)
            panel = notebook.page.locator(".llamapar")
            panel.locator(".js-plotly-plot .main-svg").first.wait_for()
            notebook.page.wait_for_timeout(1000)
            panel.screenshot(path=PICTURE)
    print(f"{PICTURE.name}: {PICTURE.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
