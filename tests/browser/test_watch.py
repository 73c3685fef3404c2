"""Watched ranks in JupyterLab: stepping, pictures, what moves, edits, faults, cells, keys, a random hand."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from playwright.sync_api import Locator, expect

from browser.access import serious, unreached
from browser.hands import kernel, watch_agrees
from browser.lab import Lab, Notebook, scratch_notebook, wait_until
from browser.panel import OUTSIDE

pytestmark = pytest.mark.browser

FOUR = """from llamapar.panels.watch_panel import watch
four = watch('attention', tp=2, cp=2, data='random')
four"""
TWO = "two = watch('mlp', tp=2, sequence_parallel=False)\ntwo"
CELL = """%%ranks tp=2
x = torch.full((2, 4), rank + 1.0)
dist.all_reduce(x, group=mesh.get_group("tp"))"""
OF_A_CELL = ("%load_ext llamapar", CELL, "import llamapar\nllamapar.watch(ranks)")
"""The cells after those of NAMES; the last test runs them."""
NAMES = ("four", "two")

DRAWN = """canvas => {
    const pen = canvas.getContext('2d');
    const { width, height } = canvas;
    return [...pen.getImageData(0, 0, width, height).data];
}"""


@pytest.fixture(scope="module")
def notebook(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    path = scratch_notebook(tmp_path_factory.mktemp("watch") / "watch.ipynb", FOUR, TWO, *OF_A_CELL)
    with lab.open(path, height=2600) as opened:
        opened.page.emulate_media(reduced_motion="reduce")
        for cell in range(len(NAMES)):
            opened.run(cell)
            opened.cell(cell).locator(".lp-tile canvas").first.wait_for()
        yield opened
        assert opened.console_errors() == []


def panel(notebook: Notebook, cell: int) -> Locator:
    return notebook.standing(cell).locator(".lp-watch")


def step(watched: Locator) -> int:
    return int(str(watched.get_attribute("data-step")))


def settle(notebook: Notebook, *cells: int) -> None:
    for cell in cells or range(len(NAMES)):
        wait_until(
            lambda cell=cell: watch_agrees(notebook, panel(notebook, cell), NAMES[cell]),
            what=f"{NAMES[cell]} agrees with its kernel",
        )


def test_dots_and_keys_go_through_the_lines(notebook: Notebook) -> None:
    four = panel(notebook, 0)
    dots = four.locator(".lp-dot")
    assert dots.count() == 10
    dots.first.click()
    settle(notebook, 0)
    for _ in range(3):
        dots.locator("xpath=self::*[@aria-current]").press("ArrowRight")
        settle(notebook, 0)
    assert dots.nth(3).evaluate("node => node === node.getRootNode().activeElement")
    dots.nth(3).press("End")
    expect(four.get_by_label("the next step")).to_be_disabled()
    settle(notebook, 0)
    four.get_by_role("button", name="open this line").click()
    expect(dots).to_have_count(11)
    four.get_by_label("the step before").click()
    expect(four.locator(".lp-inside")).to_contain_text("in row_output: return collectives.reduce_scatter")
    four.get_by_role("button", name="close this line").click()
    expect(dots).to_have_count(10)
    four.get_by_role("radio", name="backward").click()
    expect(four.locator(".lp-at")).to_contain_text("backward")
    four.get_by_role("radio", name="forward").click()


@pytest.mark.soak
def test_a_picture_has_each_number_in_its_place(notebook: Notebook) -> None:
    """Every cell of the output on rank 3: nothing is paper, and the ink grows with the size of the number."""
    four = panel(notebook, 0)
    four.locator(".lp-dot").last.click()
    canvas = four.locator("[data-rank='3'] .lp-made canvas")
    made = kernel(notebook, f"four.film['steps'][{step(four)}]['made'][0]")
    values = kernel(notebook, f"[s for s in four.record.steps if s.values][{made}].values[3][0].tolist()")
    rows, columns = len(values), len(values[0])
    width, pixels = canvas.evaluate("node => node.width"), canvas.evaluate(DRAWN)
    side = width // columns
    assert width == side * columns
    darkness: dict[bool, list[tuple[float, int]]] = {True: [], False: []}
    for row in range(rows):
        for column in range(columns):
            at = 4 * ((row * side + side // 2) * width + column * side + side // 2)
            number = values[row][column]
            darkness[number > 0].append((abs(number), sum(pixels[at : at + 3])))
    for found in darkness.values():
        found.sort()
        shades = [shade for _, shade in found]
        assert len(set(shades)) > 10
        assert all(after <= before + 6 for before, after in pairwise(shades))
    first = 4 * (side // 2 * width + side // 2)
    red, _, blue = pixels[first : first + 3]
    assert (blue > red) == (values[0][0] > 0), "the two signs have two inks"


@pytest.mark.soak
def test_arrows_join_the_ranks_between_which_rows_move(notebook: Notebook) -> None:
    four = panel(notebook, 0)
    four.locator(".lp-dot").last.click()
    expect(four.locator(".lp-event")).to_contain_text("reduce-scatter between ranks {0, 1} {2, 3}")
    moves = kernel(notebook, f"[(m['from'], m['to']) for m in four.film['steps'][{step(four)}]['moves']]")
    arrows = four.locator(".lp-arrows g")
    expect(arrows).to_have_count(len(moves))
    drawn = arrows.evaluate_all("all => all.map(node => [node.dataset.from, node.dataset.to])")
    assert sorted((int(a), int(b)) for a, b in drawn) == sorted(moves)
    heads = four.locator(".lp-arrows g .lp-head").evaluate_all(
        "all => all.map(node => { const { left, top } = node.getBoundingClientRect(); return [left, top]; })"
    )
    for (left, top), (_, to) in zip(heads, drawn, strict=True):
        box = four.locator(f".lp-tile[data-rank='{to}']").bounding_box()
        assert box is not None
        assert box["x"] - 16 <= left <= box["x"] + box["width"]
        assert box["y"] <= top <= box["y"] + box["height"]
    assert four.locator(".lp-flying").count() == 0, "reduced motion: arrows stand for what moves"


@pytest.mark.soak
def test_rows_fly_where_motion_is_welcome(notebook: Notebook) -> None:
    notebook.page.emulate_media(reduced_motion="no-preference")
    four = panel(notebook, 0)
    four.locator(".lp-dot").nth(7).click()
    four.locator(".lp-dot").last.click()
    four.locator(".lp-flying").first.wait_for(state="attached")
    expect(four.locator(".lp-flying")).to_have_count(0)
    notebook.page.emulate_media(reduced_motion="reduce")


@pytest.mark.soak
def test_pointing_at_a_number_says_what_made_it(notebook: Notebook) -> None:
    four = panel(notebook, 0)
    four.locator(".lp-dot").last.click()
    canvas = four.locator("[data-rank='1'] .lp-made canvas")
    canvas.hover(position={"x": 31, "y": 10})
    column = 31 // canvas.evaluate("node => node.offsetWidth / 48 | 0")
    readout = four.locator(".lp-readout")
    expect(readout).to_contain_text(f"out[0, 1, {column}] on rank 1 is")
    expect(readout).to_contain_text("made of 1 of partial on each of ranks 0, 1")
    four.locator("[data-rank='1'] .lp-rank").click()
    expect(canvas).to_have_attribute("tabindex", "0")
    canvas.focus()
    for key, at in (("ArrowRight", "0, 0, 0"), ("ArrowDown", "0, 1, 0"), ("ArrowRight", "0, 1, 1")):
        canvas.press(key)
        expect(readout).to_contain_text(f"out[{at}] on rank 1 is")
    made = kernel(notebook, f"four.film['steps'][{step(four)}]['made'][0]")
    value = kernel(notebook, f"float([s for s in four.record.steps if s.values][{made}].values[1][0, 1, 1])")
    expect(readout).to_contain_text("made of 1 of partial")
    said = float(readout.locator("b").nth(1).inner_text().replace("−", "-"))
    assert said == pytest.approx(value, rel=1e-3)
    four.locator(".lp-event").hover()
    four.locator(".lp-rank").first.focus()
    expect(readout).to_contain_text("Point at a cell")


@pytest.mark.soak
def test_the_share_of_the_rank_that_is_looked_at_stands_there_and_nothing_moves(notebook: Notebook) -> None:
    """The one under the pointer, else the one with the focus, else the one that is followed."""
    four = panel(notebook, 0)
    tops = set[float]()
    share, shown = four.locator(".lp-block"), kernel(notebook, "four.film['blocks']")
    assert isinstance(shown, list)

    def lit(rank: int) -> None:
        expect(share).to_have_text(shown[rank])
        stage, whole = (found.bounding_box() for found in (four.locator(".lp-stage"), four))
        assert stage
        assert whole
        tops.add(stage["y"] - whole["y"])

    four.locator("[data-rank='0'] .lp-rank").click()
    four.locator(".lp-event").hover()
    lit(0)
    four.locator("[data-rank='3'] .lp-body").hover()
    lit(3)
    four.locator("[data-rank='2'] .lp-rank").focus()
    lit(2)
    four.locator("[data-rank='1'] .lp-body").hover()
    lit(1)
    four.locator(".lp-event").hover()
    lit(2)
    four.locator(".lp-dot").first.focus()
    lit(0)
    assert len(tops) == 1


@pytest.mark.soak
def test_a_fault_is_outlined_where_it_begins(notebook: Notebook) -> None:
    two = panel(notebook, 1)
    two.locator("[data-control=case] select").select_option(label="sum twice")
    expect(two.locator(".lp-at")).to_contain_text("it breaks at step")
    settle(notebook, 1)
    assert kernel(notebook, f"two.film['steps'][{step(two)}]['fault']") == "begins"
    expect(two.get_by_role("radio", name="backward")).to_have_attribute("aria-checked", "true")
    outlined = two.locator(".lp-made[data-differs] canvas")
    assert outlined.count() == 2
    assert outlined.first.evaluate("node => getComputedStyle(node).outlineWidth") == "3px"
    assert two.locator(".lp-read[data-differs]").count() == 0
    two.get_by_role("button", name="undo").click()
    expect(two.locator(".lp-at")).not_to_contain_text("it breaks")
    settle(notebook, 1)


@pytest.mark.soak
def test_the_source_is_edited_and_every_rank_runs_again(notebook: Notebook) -> None:
    two = panel(notebook, 1)
    cells = len(notebook.cells())
    box = two.locator("textarea")
    own = box.input_value()
    box.click()
    box.press("Control+End")
    for _ in "(partial, mesh, setting)":
        box.press("Backspace")
    box.press_sequentially("(partial, mesh, setting")
    expect(two.locator(".lp-problem")).to_contain_text("cannot be read")
    expect(two.locator(".lp-lens")).to_contain_text("was never closed")
    assert two.locator(".lp-tile").count() == 2, "the last film stays"
    box.press_sequentially(")")
    expect(two.locator(".lp-problem")).to_have_count(0)
    settle(notebook, 1)
    box.fill(own.replace("return row_output(partial, mesh, setting)", "return partial"))
    expect(two.locator(".lp-caption")).to_contain_text("a summand over TP where it should be a copy")
    expect(two.locator(".lp-copy-of-source > [data-fault=begins]")).to_contain_text("return partial")
    settle(notebook, 1)
    box.press("Control+End")
    box.press("Enter")
    assert box.input_value().endswith("return partial\n    "), "a new line begins where the last one does"
    box.press_sequentially("dd bb aa")  # JupyterLab's own keys: delete a cell, insert one
    two.get_by_role("button", name="restore").click()
    expect(box).to_have_value(own)
    settle(notebook, 1)
    assert len(notebook.cells()) == cells


@pytest.mark.soak
def test_a_puzzle_is_solved_where_its_line_is_open(notebook: Notebook) -> None:
    two = panel(notebook, 1)
    choice = two.locator("[data-control=case] select")
    groups = choice.locator("optgroup").evaluate_all("all => all.map(node => node.label)")
    assert groups == ["break it", "write it", "it happened"]
    code = two.locator(".lp-code code").inner_text()
    choice.select_option(label="mask of rows that other ranks hold")
    task = two.locator(".lp-task")
    expect(task).to_have_attribute("data-right", "no")
    settle(notebook, 1)
    line = kernel(notebook, "two.payload['verdict']['line']")
    expect(task).to_contain_text(f"not yet: line {line} differs first: partial holds other numbers")
    opened = two.locator(f".lp-copy-of-source > [data-line='{line}']")
    expect(opened).to_have_attribute("data-fault", "begins")
    expect(opened).to_contain_text("partial = rows[:]")
    box = two.locator("textarea")
    box.fill(box.input_value().replace("rows[:]", "torch.where(absent[..., None], 0, rows)"))
    expect(task).to_have_attribute("data-right", "yes")
    expect(task).to_contain_text("right: all 4 ranks hold what one process computes")
    settle(notebook, 1)
    expect(two.locator("[data-fault=begins]")).to_have_count(0)
    expect(two.locator(".lp-copy-of-source > [data-runs]")).to_have_attribute("data-line", str(line))
    two.get_by_role("button", name="undo").click()
    expect(task).to_have_attribute("data-right", "no")
    choice.select_option(label="torchtitan, Llama 3 8B at TP 16")
    expect(task).to_have_count(0)
    expect(two.locator(".lp-raised").first).to_contain_text("is invalid for input of size 128")
    expect(two.locator(".lp-caption")).to_contain_text("is invalid for input of size 524288")
    expect(two.locator("[data-rank='15'] .lp-read")).to_have_count(2)  # what the line read: x and wk
    choice.select_option(label="nothing")
    expect(two.locator(".lp-code code")).to_have_text(code)
    settle(notebook, 1)


@pytest.mark.soak
def test_play_goes_once_through_and_halts_where_it_breaks(notebook: Notebook) -> None:
    two = panel(notebook, 1)
    box = two.locator("textarea")
    box.fill(box.input_value().replace("hidden @ w2.mT", "hidden @ w2"))
    expect(two.locator(".lp-lens")).to_contain_text("cannot be multiplied")
    settle(notebook, 1)
    dots = two.locator(".lp-dot")
    broken = dots.count()
    expect(two.locator(".lp-raised")).to_have_count(2)
    dots.nth(broken - 3).click()
    two.get_by_role("button", name="play").click()
    expect(dots.nth(broken - 1)).to_have_attribute("aria-current", "step")
    expect(two.get_by_role("button", name="play")).to_be_visible()
    two.get_by_role("button", name="restore").click()
    settle(notebook, 1)


@pytest.mark.soak
@pytest.mark.parametrize("width", [1280, 820, 390])
def test_nothing_sticks_out(notebook: Notebook, width: int) -> None:
    notebook.page.set_viewport_size({"width": width, "height": 2600})
    notebook.page.evaluate(f"window.jupyterapp.shell.{'expand' if width == 1280 else 'collapse'}Left()")
    notebook.page.wait_for_timeout(300)
    for cell in range(len(NAMES)):
        assert panel(notebook, cell).evaluate(OUTSIDE) == []
    boxes = (
        panel(notebook, 0)
        .locator(".lp-tile")
        .evaluate_all("all => all.map(node => Math.round(node.getBoundingClientRect().left))")
    )
    assert boxes[0] == boxes[2]
    assert (boxes[0] < boxes[1]) == (width > 390), "TP runs along x, where there is room"
    notebook.page.set_viewport_size({"width": 1280, "height": 2600})


@pytest.mark.soak
def test_axe_finds_nothing_serious_and_the_keyboard_reaches_every_control(notebook: Notebook) -> None:
    for theme in ("dark", "light"):
        notebook.set_theme(theme)
        for dot in (0, 8):
            panel(notebook, 0).locator(".lp-dot").nth(dot).click()
            assert serious(notebook, ".lp-watch") == []
    assert unreached(panel(notebook, 0)) == []


@pytest.mark.soak
def test_a_cell_of_real_ranks_opens_in_watch(notebook: Notebook) -> None:
    for cell in range(len(NAMES), len(NAMES) + len(OF_A_CELL)):
        notebook.run(cell)
    watched = notebook.cell(-1).locator(".lp-watch")
    watched.locator(".lp-tile canvas").first.wait_for()
    watched.get_by_role("button", name="the next step").click()
    expect(watched.locator(".lp-caption")).to_contain_text("each rank gives its own x, and all get")
    expect(watched.locator(".lp-tile")).to_have_count(2)
    watched.locator(".lp-tile").first.hover()
