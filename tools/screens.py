"""Author's tool: every notebook after a run, every tab of the panels, at three widths, light and dark.

PYTHONPATH=tests .venv/bin/python tools/screens.py [NAME ...]

NAME is a notebook's, `explorer` or `clinic`; without one it takes all. What a window shows, however long,
stands in columns, in build/screens/NAME-THEME-WIDTH.png. Needs Pillow, which nothing else here does:
pip install pillow.
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    from PIL import Image
except ImportError:
    raise SystemExit("tools/screens.py puts screens together with Pillow: pip install pillow") from None

from llamapar.errors import LlamaparError, one_of
from llamapar.panels.controls import TABS

if TYPE_CHECKING:
    from browser.lab import Notebook

PROJECT = Path(__file__).resolve().parent.parent
SHEETS = PROJECT / "build" / "screens"
NOTEBOOKS = {path.stem: path for path in sorted((PROJECT / "notebooks").glob("*.ipynb"))}
PANELS = {
    "explorer": "lp.explorer(zero=1)",
    "clinic": "lp.clinic('n_kv_heads (8) must be divisible by tp (16)', model='llama3-70b')",
}
WIDTHS = (1280, 820, 390)
THEMES = ("light", "dark")
COLUMN = 3200
"""Pixels of a window after which a sheet's next column begins."""

SCALE = 0.5
"""Pixels of a sheet for one of the window."""

WIDEST = 2000
"""Pixels of a row of columns on a sheet."""

GAP = 8

FLOW = """async (outer, top) => {
    if (top != null) outer.scrollTop = top;
    await new Promise(done => setTimeout(done, 1200));
    return [outer.scrollTop, outer.clientHeight, outer.scrollHeight];
}"""
"""JupyterLab draws a cell, and a widget asks its kernel, only when it comes into view."""


def columns(notebook: Notebook) -> Iterator[Image.Image]:
    """A notebook from its first line to its last."""
    outer = notebook.page.locator(".jp-WindowedPanel-outer").first
    outer.evaluate(FLOW, 0)
    seen = 0
    while True:
        top, height, total = outer.evaluate(FLOW, seen)
        image = Image.open(io.BytesIO(outer.screenshot())).convert("RGB")
        image = image.crop((0, seen - top, image.width, min(image.height, total - top)))
        extrema: Any = image.getextrema()
        if any(low != high for low, high in extrema):  # else JupyterLab's blank space below the last cell
            yield image
        seen = top + height
        if seen >= total - 1:
            return


def tabs(notebook: Notebook) -> Iterator[Image.Image]:
    """A panel, in each of its tabs."""
    from browser.panel import open_tab

    panel = notebook.page.locator(".llamapar").first
    is_explorer = panel.locator(".lp-tabs").count()
    for tab in TABS if is_explorer else ("",):
        if tab:
            open_tab(panel, tab)
            notebook.run(1)  # waits for a search
        notebook.page.wait_for_timeout(700)
        yield Image.open(io.BytesIO(panel.screenshot())).convert("RGB")


def sheet(images: list[Image.Image]) -> Image.Image:
    """Images beside each other, smaller, in rows of at most WIDEST pixels."""
    made = [image.resize((int(image.width * SCALE), int(image.height * SCALE))) for image in images]
    rows: list[list[Image.Image]] = [[]]
    for one in made:
        if rows[-1] and sum(each.width + GAP for each in rows[-1]) + one.width > WIDEST:
            rows.append([])
        rows[-1].append(one)
    heights = [max(each.height for each in row) for row in rows]
    width = max(sum(each.width + GAP for each in row) for row in rows)
    whole = Image.new("RGB", (width, sum(heights) + GAP * len(rows)), "#888888")
    for row, top in zip(rows, accumulate(heights, lambda a, b: a + b + GAP, initial=0), strict=False):
        for one, left in zip(row, accumulate((each.width + GAP for each in row), initial=0), strict=False):
            whole.paste(one, (left, top))
    return whole


def take(notebook: Notebook, name: str) -> None:
    for theme in THEMES:
        notebook.set_theme(theme)  # type: ignore[arg-type]
        for width in WIDTHS:
            notebook.page.set_viewport_size({"width": width, "height": COLUMN})
            notebook.page.evaluate("window.jupyterapp.shell.collapseLeft()")
            notebook.page.wait_for_timeout(300)
            images = [*(tabs if name in PANELS else columns)(notebook)]
            path = SHEETS / f"{name}-{theme}-{width}.png"
            sheet(images).save(path)
            print(f"{path.relative_to(PROJECT)}: {len(images)} columns", flush=True)


def main(names: list[str]) -> None:
    from browser.lab import Lab, scratch_notebook

    for name in names:
        one_of("sheet", name, (*NOTEBOOKS, *PANELS), LlamaparError)
    SHEETS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Lab() as lab:
        for name in names or [*NOTEBOOKS, *PANELS]:
            cell = f"import llamapar as lp\npanel = {PANELS.get(name)}\npanel"
            path = NOTEBOOKS.get(name) or scratch_notebook(
                Path(folder) / f"{name}.ipynb", cell, "panel.snapshot();"
            )
            with lab.open(path, width=WIDTHS[0], height=COLUMN) as notebook:
                if name in PANELS:
                    notebook.run(0)
                else:
                    notebook.run_all()
                take(notebook, name)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except LlamaparError as problem:
        raise SystemExit(str(problem)) from None
