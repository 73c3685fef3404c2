"""Panels and pictures at the widths that people have: nothing clipped, broken or covered, light and dark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from browser.lab import Lab, Notebook, scratch_notebook
from browser.panel import OUTSIDE

pytestmark = pytest.mark.browser

PANEL = "import llamapar as lp\npanel = lp.explorer('llama3.1-405b', tp=16, pp=16, dp=64)\npanel"
CELL = "lp.view(lp.heads('llama3.1-405b', {'tp': 16}))"
LONG_TITLE = "lp.view(lp.memory('llama3.1-405b', {'tp': 8, 'pp': 16, 'dp': 128}, seq_len=8192))"
CLINIC = "lp.clinic('n_kv_heads (8) must be divisible by tp (16)', model='llama3-70b')"

WORDS = r"""table => {
    const texts = document.createTreeWalker(table, NodeFilter.SHOW_TEXT);
    const broken = [];
    for (let node = texts.nextNode(); node; node = texts.nextNode()) {
        for (const word of node.data.matchAll(/[^\s\/-]+/g)) {
            const range = document.createRange();
            range.setStart(node, word.index);
            range.setEnd(node, word.index + word[0].length);
            if (new Set([...range.getClientRects()].map(r => r.top)).size > 1) broken.push(word[0]);
        }
    }
    return broken;
}"""
"""Words of a table that stand in more than one line."""

CHOICES = """panel => [...panel.querySelectorAll('select')].filter(box => box.clientWidth).flatMap(box => {
    const pen = document.createElement('canvas').getContext('2d');
    pen.font = getComputedStyle(box).font;
    const arrow = 24;
    return [...box.options].map(option => option.text)
        .filter(text => pen.measureText(text).width > box.clientWidth - arrow);
})"""
"""Texts of select boxes that are wider than their box, less its arrow."""

CLIPPED = "panel => [...panel.querySelectorAll('button')].filter(b => b.scrollWidth > b.clientWidth)"
"""Buttons that do not show their whole text."""


@pytest.fixture(scope="module")
def notebook(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    path = scratch_notebook(
        tmp_path_factory.mktemp("widths") / "widths.ipynb", PANEL, CELL, LONG_TITLE, CLINIC
    )
    with lab.open(path, height=1800) as opened:
        for cell in range(4):
            opened.run(cell)
        opened.cell(0).locator(".main-svg").first.wait_for()
        yield opened
        assert opened.console_errors() == []


def resize(notebook: Notebook, width: int, files: bool) -> None:
    """A window of `width`, with Lab's file browser or without."""
    notebook.page.set_viewport_size({"width": width, "height": 1800})
    notebook.page.evaluate(f"window.jupyterapp.shell.{'expand' if files else 'collapse'}Left()")
    notebook.page.wait_for_timeout(200)


def box_of(found: Locator) -> dict[str, float]:
    box: Any = found.bounding_box()
    assert box is not None
    return box  # type: ignore[no-any-return]


def apart(one: dict[str, float], other: dict[str, float]) -> bool:
    return any(
        a[place] + a[size] <= b[place]
        for place, size in (("x", "width"), ("y", "height"))
        for a, b in ((one, other), (other, one))
    )


@pytest.mark.parametrize(
    ("width", "files", "least"), [(1280, True, 500), (820, True, 330), (820, False, 550), (390, False, 250)]
)
def test_a_panel_lays_itself_out_by_its_own_width(
    notebook: Notebook, tmp_path: Path, width: int, files: bool, least: int
) -> None:
    resize(notebook, width, files)
    for cell in (0, 3):
        panel = notebook.cell(cell).locator(".llamapar").first
        panel.locator(".lp-figure").scroll_into_view_if_needed()
        assert box_of(panel.locator(".lp-main"))["width"] >= least
        assert panel.evaluate(OUTSIDE) == []
        assert panel.evaluate(CHOICES) == []
        picture = panel.locator(".lp-plot")
        assert box_of(picture)["width"] >= 520  # wider than the panel it scrolls, and nothing in it collides
        notebook.screenshot(tmp_path / f"{width}-{files}-{cell}.png", cell)
    tabs = notebook.cell(0).get_by_role("tab")
    for tab in (*range(1, tabs.count()), 0):
        tabs.nth(tab).click()
        expect(tabs.nth(tab)).to_have_attribute("aria-selected", "true")
        assert notebook.cell(0).locator(".llamapar").evaluate(CLIPPED) == []
        assert notebook.cell(0).locator(".llamapar").evaluate(OUTSIDE) == []


def test_a_narrow_window_shows_the_picture_with_what_is_moved_most(notebook: Notebook) -> None:
    panel = notebook.cell(0).locator(".llamapar")
    seq_len, finding = panel.locator("[data-control=seq_len]"), panel.locator("[data-code=LP104]")
    resize(notebook, 1280, False)
    for part in (seq_len, finding):
        expect(part).to_be_visible()
    expect(panel.locator(".lp-unfold").first).to_be_hidden()
    resize(notebook, 390, False)
    model, picture = box_of(panel.locator("[data-control=preset]")), box_of(panel.locator(".lp-plot"))
    for axis in ("tp", "cp", "pp", "dp"):
        slider = box_of(panel.locator(f"[data-control={axis}] input[type=range]"))
        assert model["y"] < slider["y"] < picture["y"]
    a_phone, bars_of_lab = 844, 120
    assert picture["y"] + picture["height"] - model["y"] < a_phone - bars_of_lab
    for name, part in (("all settings", seq_len), ("findings", finding)):
        unfold = panel.get_by_role("button", name=name)
        expect(part).to_be_hidden()
        unfold.press("Enter")
        expect(part).to_be_visible()
        unfold.press("Enter")
        expect(part).to_be_hidden()
    for name in ("Run", "Heads"):
        panel.get_by_role("tab", name=name).press("Enter")
        expect(panel.get_by_role("tab", name=name)).to_have_attribute("aria-selected", "true")
        tab, bar = box_of(panel.get_by_role("tab", name=name)), box_of(panel.locator(".lp-tabs"))
        assert bar["x"] - 1 <= tab["x"]
        assert tab["x"] + tab["width"] <= bar["x"] + bar["width"] + 1


@pytest.mark.parametrize(("width", "files"), [(1280, True), (820, True), (390, False)])
def test_the_clinic_s_box_comes_first_and_its_fields_are_in_line(
    notebook: Notebook, width: int, files: bool
) -> None:
    resize(notebook, width, files)
    clinic = notebook.cell(3).locator(".lp-clinic")
    fields = [box_of(clinic.locator(f"[data-control={name}] > input")) for name in ("model", "tp", "seq_len")]
    box, cause = (
        box_of(clinic.locator("textarea")),
        box_of(clinic.locator("[data-category] .lp-line > :last-child")),
    )
    assert len({field["x"] for field in fields}) == 1
    if width == 1280:
        assert fields[0]["x"] + fields[0]["width"] < box["x"]
    else:
        assert box["y"] + box["height"] < fields[0]["y"]
    assert cause["height"] < 3 * 16 + 8  # 16 px a line: not a narrow column beside the title


def test_a_table_of_frameworks_breaks_no_word_and_links_its_sources(notebook: Notebook) -> None:
    resize(notebook, 1280, True)
    finding = notebook.cell(0).locator("[data-code=LP104]")
    finding.locator("summary").first.click()
    table = finding.locator("table")
    for width in (1280, 390):
        resize(notebook, width, files=width == 1280)
        if width == 390:
            notebook.cell(0).get_by_role("button", name="findings").click()
        expect(table).to_be_visible()
        assert table.evaluate(WORDS) == []
    link = table.get_by_role("link", name="torchtitan/models/common/decoder.py:195-198")
    expect(link).to_have_attribute(
        "href",
        "https://github.com/pytorch/torchtitan/blob/b5bcd76c66d0acb1a08b176d9639425bc55e0b2a/"
        "torchtitan/models/common/decoder.py#L195-L198",
    )
    expect(link).to_have_attribute("rel", "noopener")
    finding.locator("summary").first.click()
    notebook.cell(0).get_by_role("button", name="findings").click()


def test_the_toolbar_covers_no_title_and_no_line_is_cut(notebook: Notebook, tmp_path: Path) -> None:
    for width, files in ((1280, True), (820, False)):
        resize(notebook, width, files)
        for cell in (1, 2):
            shown = notebook.cell(cell).locator(".jp-RenderedPlotly")
            shown.hover()
            bar, paper = box_of(shown.locator(".modebar")), box_of(shown.locator(".main-svg").first)
            for part in (".gtitle", ".gtitle-subtitle"):
                title = box_of(shown.locator(part))
                assert apart(title, bar), f"{part} at {width}"
                assert title["x"] + title["width"] <= paper["x"] + paper["width"], f"{part} at {width}"
        panel = notebook.cell(0).locator(".llamapar")
        panel.locator(".lp-plot").hover()
        assert apart(box_of(panel.locator(".lp-heading")), box_of(panel.locator(".modebar")))
        notebook.screenshot(tmp_path / f"{width}.png")


def test_text_reads_in_both_themes_and_is_alike_in_cell_and_panel(notebook: Notebook, tmp_path: Path) -> None:
    def colour(found: Locator, what: str) -> list[float]:
        text = found.evaluate(f"node => getComputedStyle(node)['{what}']")
        red, green, blue, *alpha = (float(n) for n in re.findall(r"[\d.]+", text))
        return [red, green, blue, *alpha]

    cell = notebook.cell(1).locator(".jp-RenderedPlotly")
    resize(notebook, 1280, True)
    seen = {}
    for theme in ("light", "dark"):
        notebook.set_theme(theme)  # type: ignore[arg-type]
        notebook.page.wait_for_timeout(300)
        assert colour(cell.locator(".gtitle"), "fill")[:3] == [33, 33, 33]
        assert colour(cell.locator(".main-svg").first, "background-color")[:3] == [255, 255, 255]
        label = notebook.cell(0).locator(".llamapar .xtick text").first
        seen[theme] = colour(label, "fill")
        notebook.screenshot(tmp_path / f"{theme}.png")
    notebook.set_theme("light")
    assert max(seen["light"][:3]) <= 33  # black on white, as in the cell
    assert min(seen["dark"][:3]) >= 200


def test_a_choice_of_a_problem_is_a_button(notebook: Notebook) -> None:
    resize(notebook, 1280, True)
    for cell, status in ((0, "tp=1 cp=1 pp=16"), (3, "A sharding problem")):
        panel = notebook.cell(cell).locator(".llamapar").first
        box = panel.locator("[data-control=tp] input[type=text]")
        before = box.input_value()
        box.fill("0")
        box.press("Enter")
        choice = panel.locator(".lp-choices").get_by_role("button", name="tp=1", exact=True)
        choice.click()
        expect(box).to_have_value("1")
        expect(panel.locator(".lp-choices")).to_have_count(0)
        if cell == 0:
            expect(panel.get_by_role("status")).to_contain_text(status)
        box.fill(before)
        box.press("Enter")
