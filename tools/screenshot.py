"""Author's tool: takes README's picture of the Explorer and its film anew, in a real JupyterLab and Chromium.

PYTHONPATH=tests .venv/bin/python tools/screenshot.py [--film]

The film needs Pillow, which nothing else here does: pip install pillow. Beside the pictures stands what the
panels' sources were when they were taken; a test tells when they have changed since.
"""

from __future__ import annotations

import hashlib
import io
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

PROJECT = Path(__file__).resolve().parent.parent
DOCS = PROJECT / "docs"
PICTURE, FILM, TAKEN = DOCS / "explorer.png", DOCS / "explorer.webp", DOCS / "explorer.sha256"

PANEL = """\
import llamapar as lp
lp.explorer(job="paper-131k-tokens")"""
OPENING = """\
import llamapar as lp
lp.explorer("llama3.1-405b", tp=8, cp=16, pp=16, dp=8, gpus=16384, seq_len=131072)"""

HEIGHT = 1040
"""Pixels of the film, which cuts off what stands below."""

Frame = tuple[bytes, int]
"""A PNG, and for how many milliseconds it stands."""


def sources() -> str:
    """A hash of what the panel is made of."""
    found = hashlib.sha256()
    for path in sorted((PROJECT / "llamapar" / "panels").glob("*.*")):
        if path.suffix in (".py", ".js", ".css"):
            found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()


@contextmanager
def opened(cell: str, height: int) -> Iterator[tuple[Page, Locator]]:
    """JupyterLab's page on which a cell was run, and the panel that it made, once its picture is there."""
    from browser.lab import Lab, scratch_notebook

    with tempfile.TemporaryDirectory() as folder, Lab() as lab:
        path = scratch_notebook(Path(folder) / "explorer.ipynb", cell)
        with lab.open(path, width=1280, height=height) as notebook:
            notebook.run(0)
            panel = notebook.page.locator(".llamapar")
            panel.locator(".lp-map").first.wait_for()
            yield notebook.page, panel


def picture() -> None:
    with opened(PANEL, height=1300) as (page, panel):
        page.wait_for_timeout(1000)
        panel.screenshot(path=PICTURE)
    print(f"{PICTURE.name}: {PICTURE.stat().st_size // 1024} KiB")


def film() -> None:
    """Some 20 seconds: one degree too far, a fix, and what else a layout is asked."""
    from PIL import Image

    with opened(OPENING, height=1800) as (page, panel):
        taken = [*frames(page, panel)]
    images = [Image.open(io.BytesIO(png)).convert("RGB") for png, _ in taken]
    sheets = [Image.new("RGB", (images[0].width, HEIGHT), "white") for _ in images]
    for sheet, image in zip(sheets, images, strict=True):
        sheet.paste(image)
    sheets[0].save(
        FILM,
        save_all=True,
        append_images=sheets[1:],
        duration=[stands for _, stands in taken],
        loop=0,
        quality=55,
        method=6,
    )
    seconds = sum(stands for _, stands in taken) / 1000
    print(f"{FILM.name}: {len(sheets)} frames, {seconds:.0f} s, {FILM.stat().st_size // 1024} KiB")


def frames(page: Page, panel: Locator) -> Iterator[Frame]:
    """What the panel shows between one hand's movement and the next."""
    from browser.panel import open_tab

    def shown(stands: int) -> Frame:
        page.wait_for_timeout(700)
        page.mouse.move(0, 0)
        return panel.screenshot(), stands

    def tab(name: str) -> None:
        open_tab(panel, name)

    def slide(axis: str, key: str) -> None:
        panel.locator(f".lp-group:not([data-tab]) [data-control={axis}] input[type=range]").first.press(key)

    yield shown(1800)
    slide("tp", "ArrowRight")
    yield shown(2600)
    panel.locator(".lp-repairs button").first.click()
    yield shown(1800)
    for name, stands in (("sequence", 1600), ("ranks", 2000), ("memory", 1800)):
        tab(name)
        yield shown(stands)
    tab("time")
    yield shown(1400)
    panel.locator(".lp-compare > summary").click()
    panel.locator("[data-step=pin]").click()
    for axis, key in (("pp", "ArrowLeft"), ("dp", "ArrowRight")):
        slide(axis, key)
        yield shown(1500)
    tab("pipeline")
    yield shown(1600)
    panel.get_by_role("button", name="reset", exact=True).click()
    tab("heads")
    yield shown(1500)


if __name__ == "__main__":
    picture()
    if "--film" in sys.argv:
        film()
    TAKEN.write_text(sources() + "\n", encoding="utf-8")
