"""Author's tool: takes README's film of lp.watch and its picture of the Explorer anew, in a real Chromium.

PYTHONPATH=tests .venv/bin/python tools/screenshot.py [--film]

The film needs Pillow, which nothing else here does: pip install pillow. Beside the pictures stands a hash of
how the panels opened when they were taken, and of what drew them; a test tells when either has changed since.
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
PICTURE, FILM, TAKEN = DOCS / "explorer.png", DOCS / "watch.webp", DOCS / "pictures.sha256"

PANEL = """\
import llamapar as lp
lp.explorer(job="paper-131k-tokens")"""
WATCHED = """\
import llamapar as lp
lp.watch("attention", tp=2, sequence_parallel=False)"""

RIGHT, BROKEN = "return row_output(partial, mesh, setting)", "return partial"
"""The line that the film breaks: each rank's summand is never summed."""

BEFORE = 2
"""Lines before the sum with which the film begins: the attention, then each rank's letters."""

FLIGHT = 5
"""Pictures of what moves between ranks, taken as fast as they come."""

Frame = tuple[bytes, int]
"""A PNG, and for how many milliseconds it stands."""


def shown() -> str:
    """A hash of what the two panels say as they open, and of the JavaScript and CSS that draw them.

    The Explorer's findings are left out: its picture does not show them, and a new rule adds words to them.
    """
    import llamapar as lp

    explorer = eval(PANEL.splitlines()[-1], {"lp": lp})
    watched = eval(WATCHED.splitlines()[-1], {"lp": lp})
    sentence, *_ = str(explorer.snapshot()).splitlines()
    texts = [sentence, str(watched.snapshot())]
    for panel in (explorer, watched):
        texts += [panel._esm, panel._css]
        panel.close()
    return hashlib.sha256("".join(texts).encode()).hexdigest()


@contextmanager
def opened(cell: str, shown: str, height: int) -> Iterator[tuple[Page, Locator]]:
    """JupyterLab's page on which a cell was run, and the panel that it made, once `shown` is there."""
    from browser.lab import Lab, scratch_notebook

    with tempfile.TemporaryDirectory() as folder, Lab() as lab:
        path = scratch_notebook(Path(folder) / "pictures.ipynb", cell)
        with lab.open(path, width=1280, height=height) as notebook:
            notebook.run(0)
            panel = notebook.page.locator(".llamapar")
            panel.locator(shown).first.wait_for()
            yield notebook.page, panel


def picture() -> None:
    with opened(PANEL, ".lp-map", height=1300) as (page, panel):
        page.wait_for_timeout(1000)
        panel.screenshot(path=PICTURE)
    print(f"{PICTURE.name}: {PICTURE.stat().st_size // 1024} KiB")


def film() -> None:
    """Some 20 seconds: two ranks write a word, a line of theirs is broken, and mended."""
    from PIL import Image

    with opened(WATCHED, ".lp-tile canvas", height=1300) as (page, panel):
        taken = [*frames(page, panel)]
    images = [Image.open(io.BytesIO(png)).convert("RGB") for png, _ in taken]
    height = max(image.height for image in images)
    sheets = [Image.new("RGB", (images[0].width, height), "white") for _ in images]
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
    """What the panel shows at each line, and while the sum travels: right, broken, and right again."""
    dots = panel.locator(".lp-dot")
    source = panel.locator("textarea")
    right = source.input_value()

    def shown(stands: int) -> Frame:
        page.wait_for_timeout(700)
        page.mouse.move(0, 0)
        return panel.screenshot(), stands

    def flight() -> Iterator[Frame]:
        dots.last.click()
        for _ in range(FLIGHT):
            yield panel.screenshot(), 140
        yield shown(2600)

    last = dots.count() - 1
    for step in range(last - BEFORE, last):
        dots.nth(step).click()
        yield shown(1200)
    yield from flight()
    source.fill(right.replace(RIGHT, BROKEN))
    panel.locator(".lp-copy-of-source > [data-fault=begins]").wait_for()
    yield shown(4200)
    panel.get_by_role("button", name="restore").click()
    panel.locator("[data-fault=begins]").first.wait_for(state="detached")
    dots.nth(last - 1).click()
    yield shown(1200)
    yield from flight()


if __name__ == "__main__":
    picture()
    if "--film" in sys.argv:
        film()
    TAKEN.write_text(shown() + "\n", encoding="utf-8")
