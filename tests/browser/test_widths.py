"""Panels and pictures at any width, light and dark, by the Tab key and as axe-core sees them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from browser.access import serious, unreached
from browser.hands import kernel
from browser.lab import Lab, Notebook, scratch_notebook, wait_until
from browser.panel import OPEN, OUTSIDE, PATIENCE, open_tab
from llamapar.panels.controls import TABS
from test_bringing import FILES

pytestmark = [pytest.mark.browser, pytest.mark.soak]

PANEL = "import llamapar as lp\npanel = lp.explorer('llama3.1-405b', tp=16, pp=16, dp=64)\npanel"
CELL = "lp.view(lp.ranks(tp=16, rank=3))"
LONG_TITLE = "lp.view(lp.memory('llama3.1-405b', {'tp': 8, 'pp': 16, 'dp': 128}, seq_len=8192))"
CLINIC = "visit = lp.clinic('n_kv_heads (8) must be divisible by tp (16)', model='llama3-70b')\nvisit"
BRING = f"""from llamapar.configs.reader import settings_of_texts as read
panel.pin()
for shown in (visit, panel):
    shown.bring(read({FILES!r}))"""


CHOICES = """panel => [...panel.querySelectorAll('[data-control] select')].flatMap(box => {
    if (!box.checkVisibility()) return [];
    const pen = document.createElement('canvas').getContext('2d');
    pen.font = getComputedStyle(box).font;
    const arrow = 24;
    return [...box.options].map(option => option.text)
        .filter(text => pen.measureText(text).width > box.clientWidth - arrow);
})"""
"""Texts of controls' select boxes that are wider than their box, less its arrow."""

CLIPPED = "panel => [...panel.querySelectorAll('button')].filter(b => b.scrollWidth > b.clientWidth)"
"""Buttons that do not show their whole text."""


@pytest.fixture(scope="module")
def notebook(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    path = scratch_notebook(
        tmp_path_factory.mktemp("widths") / "widths.ipynb", PANEL, CELL, LONG_TITLE, CLINIC, BRING
    )
    with lab.open(path, height=1800) as opened:
        for cell in range(4):
            opened.run(cell)
        opened.cell(0).locator(".lp-map").first.wait_for()
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


def assert_whole(panel: Locator) -> None:
    """Nothing of it is clipped or sticks out."""
    assert panel.evaluate(CLIPPED) == []
    assert panel.evaluate(OUTSIDE) == []
    assert panel.evaluate(CHOICES) == []


@pytest.mark.parametrize(
    ("width", "files", "least"),
    [
        (1280, True, 500),
        (820, True, 330),
        (820, False, 550),
        (390, False, 250),
    ],
)
def test_a_panel_lays_itself_out_by_its_own_width(
    notebook: Notebook, tmp_path: Path, width: int, files: bool, least: int
) -> None:
    resize(notebook, width, files)
    open_tab(notebook.cell(0).locator(".llamapar"), "heads")  # the picture that it opens on may be narrower
    for cell in (0, 3):
        panel = notebook.cell(cell).locator(".llamapar").first
        panel.locator(".lp-figure:visible").first.scroll_into_view_if_needed()
        main = box_of(panel.locator(".lp-main"))["width"]
        assert main >= least
        assert panel.evaluate(OUTSIDE) == []
        assert panel.evaluate(CHOICES) == []
        picture = box_of(panel.locator(".lp-map-box:visible"))  # with the names of its lanes, as a chart is
        assert max(250, main - 24) <= picture["width"] <= main
        notebook.screenshot(tmp_path / f"{width}-{files}-{cell}.png", cell)
    panel = notebook.cell(0).locator(".llamapar")
    for tab in (*TABS, "heads"):
        open_tab(panel, tab)
        expect(panel.locator(f".lp-tabs [data-tab={tab}]").last).to_have_attribute("aria-selected", "true")
        assert_whole(panel)
        if tab == "ranks":  # a chart, which scrolls where it is wider
            assert box_of(panel.locator(".lp-plot:visible"))["width"] >= 520
    panel.locator(".lp-settings > summary").click()
    assert_whole(panel)
    notebook.screenshot(tmp_path / f"{width}-{files}-settings.png", 0)
    panel.locator(".lp-settings > summary").click()


@pytest.mark.parametrize("code", ["lp.explorer()", "lp.explorer(tp=16)"])
def test_the_panel_is_in_sight_after_the_first_shift_enter(lab: Lab, tmp_path: Path, code: str) -> None:
    """At 1280 by 800, with the file browser open: all of it, its knobs beside the picture."""
    path = scratch_notebook(tmp_path / "first.ipynb", f"import llamapar as lp\n{code}")
    with lab.open(path, height=800) as first:
        first.page.keyboard.press("Escape")
        first.page.locator(".jp-Cell").first.click()
        first.page.keyboard.press("Shift+Enter")
        panel = first.page.locator(".llamapar")
        panel.locator(".lp-figure svg").first.wait_for()
        expect(panel).to_be_in_viewport(ratio=1)
        assert box_of(panel)["height"] <= 610
        picture = box_of(panel.locator(".lp-figure"))
        answers = [box_of(one) for one in panel.locator(".lp-answers > .lp-answered").all()]
        assert len(answers) == 4
        assert len({one["y"] for one in answers}) == 1
        for knob in panel.locator(".lp-side .lp-row").all():
            assert box_of(knob)["x"] + box_of(knob)["width"] < picture["x"]
        assert panel.evaluate(OUTSIDE) == []


def test_a_narrow_window_shows_the_picture_with_what_is_moved_most(notebook: Notebook) -> None:
    panel = notebook.cell(0).locator(".llamapar")
    heads, tokens = (
        panel.locator("[data-control=n_heads]").first,
        panel.locator("[data-control=seq_len]").first,
    )
    resize(notebook, 1280, False)
    for part in (heads, tokens):
        expect(part).to_be_visible()
    expect(panel.locator(".lp-unfold").first).to_be_hidden()
    resize(notebook, 390, False)
    top, picture = box_of(panel), box_of(panel.locator(".lp-figure"))
    assert picture["y"] - top["y"] < 450
    for axis in ("tp", "cp", "pp", "dp"):
        slider = box_of(panel.locator(f"[data-control={axis}] input[type=range]"))
        assert slider["y"] < picture["y"]
        assert slider["width"] > 80
    fix = box_of(panel.locator(".lp-repairs").get_by_title("apply this fix").first)
    assert fix["y"] < picture["y"]
    for name, part in (("The model", heads), ("The job", tokens)):
        unfold = panel.get_by_role("button", name=name)
        expect(part).to_be_hidden()
        unfold.press("Enter")
        expect(part).to_be_visible()
        unfold.press("Enter")
        expect(part).to_be_hidden()
    for name in ("Run", "Heads"):
        tab = panel.get_by_role("tab", name=name)
        tab.press("Enter")
        expect(tab).to_have_attribute("aria-selected", "true")
        shown, bar = box_of(tab), box_of(panel.locator(".lp-tabs").first)
        assert bar["x"] - 1 <= shown["x"]
        assert shown["x"] + shown["width"] <= bar["x"] + bar["width"] + 1


MOVED = """root => {
    window.moved = [];
    const ours = ({ sources }) => sources.map(({ node }) => node).filter(node => root.contains(node));
    const told = node => node.className?.baseVal ?? node.className ?? node.nodeName;
    new PerformanceObserver(list => window.moved.push(...list.getEntries().flatMap(ours).map(told)))
        .observe({ type: "layout-shift", buffered: false });
    const figure = root.querySelector(".lp-figure");
    const box = () => ["x", "y", "width", "height"].map(side => figure.getBoundingClientRect()[side]);
    window.place = [box()];
    window.look = () => window.place.push(box());
    window.counted = () => [":not(.lp-figure *)", "*"].map(which => root.querySelectorAll(which).length);
}"""

RESTS = """(root, seq) => root.dataset.painted >= seq
    && root.querySelector('.lp-texts').getAttribute('opacity') === '1'"""
"""Whether a payload or a later one is painted, and its map has stopped."""


def test_the_picture_stands_still_while_knobs_move(notebook: Notebook, counts: Any) -> None:
    """No layout shift in many moves, of legal and of refused layouts; the page grows by nothing.

    A map has a node for each head, so the whole page is counted where it shows one job again.
    """
    resize(notebook, 1280, False)
    panel = notebook.cell(0).locator(".llamapar")
    open_tab(panel, "heads")
    kernel(notebook, "panel.wait()")  # for a search of the tab Plan, which lists what it found
    panel.evaluate(MOVED)
    start = kernel(notebook, "panel.line")

    def settled() -> bool:
        """With the first job, no move on its way, and the picture where it goes."""
        seq = kernel(notebook, f"panel.restore({start!r}) or panel.payload['seq']")
        wait_until(lambda: bool(panel.evaluate(RESTS, seq)), what=f"payload {seq}", seconds=PATIENCE)
        return bool(kernel(notebook, "panel.payload['seq']") == seq)

    def counted() -> list[int]:
        wait_until(settled, what="a page that rests", seconds=2 * PATIENCE)
        return panel.evaluate("() => window.counted()")  # type: ignore[no-any-return]

    def memory() -> tuple[int, ...]:
        """Bytes of the heap, and nodes and listeners, those that are no longer on the page too."""
        devtools.send("HeapProfiler.collectGarbage")
        kept = devtools.send("Memory.getDOMCounters")
        return devtools.send("Runtime.getHeapUsage")["usedSize"], kept["nodes"], kept["jsEventListeners"]

    devtools = notebook.page.context.new_cdp_session(notebook.page)

    first, heap, nodes = counted(), memory(), []
    knobs = ["TP", "KV heads", "DP", "query heads", "PP", "layers", "CP", "dim", "vocabulary"]
    for move in range(counts(20, 60, 300)):
        key = "ArrowRight" if move // len(knobs) % 2 == 0 else "ArrowLeft"
        before = panel.get_attribute("data-painted")
        panel.get_by_label(f"{knobs[move % len(knobs)]}, in steps", exact=True).press(key)
        notebook.page.wait_for_timeout(30)
        if panel.get_attribute("data-painted") == before:
            notebook.page.wait_for_timeout(200)
        panel.evaluate("() => window.look()")
        if move % (2 * len(knobs)) == 0:
            nodes.append(panel.evaluate("() => window.counted()")[0])
    last, after = counted(), memory()
    assert notebook.page.evaluate("window.moved") == []
    assert len({tuple(map(round, place)) for place in notebook.page.evaluate("window.place")}) == 1
    assert max(nodes) <= 1.2 * first[0], nodes
    assert last == first
    assert all(now <= 1.05 * then for now, then in zip(after, heap, strict=True)), (heap, after)


@pytest.mark.parametrize(("width", "files"), [(1280, True), (390, False)])
def test_the_clinic_s_box_comes_first_and_its_fields_are_in_line(
    notebook: Notebook, width: int, files: bool
) -> None:
    resize(notebook, width, files)
    clinic = notebook.cell(3).locator(".lp-clinic")
    fields = [box_of(clinic.locator(f"[data-control={name}] > input")) for name in ("model", "tp", "seq_len")]
    box, cause = box_of(clinic.locator("textarea")), box_of(clinic.locator(".lp-status"))
    assert len({field["x"] for field in fields}) == 1
    if width == 1280:
        assert fields[0]["x"] + fields[0]["width"] < box["x"]
    else:
        assert box["y"] + box["height"] < fields[0]["y"]
    assert cause["height"] < 3 * 16 + 8  # 16 px a line: not a narrow column beside the title


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
        assert colour(cell.locator(".main-svg").first, "background-color")[3] == 0  # no paper of its own
        title = colour(cell.locator(".gtitle"), "fill")[:3]
        assert max(title) <= 33 if theme == "light" else min(title) >= 200
        label = notebook.cell(0).locator(".llamapar .lp-map text.lane").first
        seen[theme] = colour(label, "fill")
        notebook.screenshot(tmp_path / f"{theme}.png")
    notebook.set_theme("light")
    assert max(seen["light"][:3]) <= 33  # black on white, as in the cell
    assert min(seen["dark"][:3]) >= 200


# -- for who does not see it, or has no mouse -----------------------------------------------------


def test_the_keyboard_reaches_every_control(notebook: Notebook) -> None:
    for cell in (0, 3):
        panel = notebook.cell(cell).locator(".llamapar").first
        panel.evaluate(OPEN)
        assert unreached(panel) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(notebook: Notebook, theme: Any) -> None:
    """The last ones here: they bring another job."""
    notebook.set_theme(theme)
    assert serious(notebook) == []
    resize(notebook, 390, False)
    assert serious(notebook) == [], "narrow"
    resize(notebook, 1280, True)
    notebook.run(4)
    for name in TABS:
        open_tab(notebook.cell(0).locator(".llamapar").first, name)
        notebook.page.wait_for_timeout(400)
        assert serious(notebook) == [], name
