"""The clinic as a person meets it: paste a traceback, see the fields fill, press a fix, see the Explorer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from browser.lab import Lab, Notebook, scratch_notebook
from inputs import KV, TEN_KV_HEADS, TITAN

pytestmark = pytest.mark.browser

HEIGHT = 1400

CREATE = "import llamapar as lp\npanel = lp.clinic()\npanel"
READ = "str(panel.explorer.job.layout), panel.explorer.report.ok"
FILL = 'panel.set(text="embed_tokens.weight is [16064, 8192]", model="llama3.1-70b", tp=8)'
PASTE = """([box, text]) => {
    box.focus();
    const data = new DataTransfer();
    data.setData("text/plain", text);
    const event = new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true });
    if (box.dispatchEvent(event)) document.execCommand("insertText", false, text);
}"""


@pytest.fixture(scope="module")
def opened(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    path = tmp_path_factory.mktemp("clinic") / "clinic.ipynb"
    with lab.open(scratch_notebook(path, CREATE, READ, FILL), height=HEIGHT) as notebook:
        yield notebook


@pytest.fixture
def notebook(opened: Notebook) -> Iterator[Notebook]:
    """The notebook with a new clinic in it."""
    opened.page.set_viewport_size({"width": 1280, "height": HEIGHT})
    opened.set_theme("light")
    opened.run(0)
    opened.page.locator(".lp-clinic textarea").wait_for()
    yield opened
    assert opened.console_errors() == []


def clinic(notebook: Notebook) -> Locator:
    return notebook.page.locator(".lp-clinic")


def paste(notebook: Notebook, text: str) -> None:
    """As Ctrl+V does: the event with its data, then the text in the box unless the page took it."""
    box = clinic(notebook).locator("textarea")
    box.select_text()
    notebook.page.evaluate(PASTE, [box.element_handle(), text])


def field(notebook: Notebook, name: str) -> Locator:
    return clinic(notebook).locator(f"[data-control={name}]")


def title(notebook: Notebook) -> Locator:
    return clinic(notebook).locator(".lp-map-says").first


def status(notebook: Notebook) -> Locator:
    return clinic(notebook).locator(".lp-status")  # its map says of a rank what it holds, as a status too


def test_from_a_traceback_to_a_mended_layout(notebook: Notebook) -> None:
    paste(notebook, TITAN)
    cause = "A sharding problem: a rank holds 64 columns, half a head of 128: 8 KV heads over tp=16"
    expect(status(notebook)).to_have_text(cause)
    for name, value in (("model", "llama3-8b"), ("tp", "16")):
        expect(field(notebook, name).locator("input[type=text]")).to_have_value(value)
        expect(field(notebook, name)).to_have_attribute("data-origin", "in the text")
    card = clinic(notebook).locator("[data-category=kv_heads_lt_tp]")
    expect(card).to_contain_text("64 = 8·128/16 = half a head")
    expect(title(notebook)).to_contain_text("TP 16 cuts through each of the 8 KV heads.")
    card.get_by_role("button", name="tensor_parallel_degree=8 dp=2").click()
    opened = notebook.page.locator(".lp-opened")
    expect(opened.locator(".lp-product")).to_contain_text("8 · 1 · 1 · 2 = 16 GPUs")
    expect(opened.locator("[data-control=framework] select")).to_have_value("torchtitan")
    card.get_by_role("button", name="context_parallel_degree=2").click()  # the same Explorer, another layout
    expect(opened.locator(".lp-product")).to_contain_text("8 · 2 · 1 · 1 = 16 GPUs")
    assert opened.locator(".llamapar").count() == 1
    notebook.run(1)
    assert notebook.outputs(1)[0]["data"]["text/plain"] == "('tp=8 cp=2 pp=1 dp=1', True)"


@pytest.mark.soak
def test_a_press_of_an_example_draws_the_ranks_that_fail(notebook: Notebook) -> None:
    offered = clinic(notebook).locator(".lp-examples")
    assert offered.locator("button").count() == 3
    offered.get_by_role("button", name="a log of four ranks").click()
    expect(clinic(notebook).locator("textarea")).to_have_value(re.compile(r"^\[rank0\]: Traceback"))
    expect(clinic(notebook).locator(".lp-ranks")).to_contain_text("The error is on 2 ranks of 4: 1, 3")
    expect(status(notebook)).to_contain_text("a token is past the rows of the table")
    expect(offered).to_be_hidden()


@pytest.mark.soak
def test_what_is_typed_wins_and_an_empty_field_falls_back(notebook: Notebook) -> None:
    paste(notebook, KV)
    tp = field(notebook, "tp")
    expect(tp).to_have_attribute("data-origin", "implied")
    fact = clinic(notebook).locator(".lp-asked").first.locator('[data-tell="n_kv_heads"]')
    fact.fill("8")
    fact.press("Enter")
    expect(field(notebook, "n_kv_heads")).to_have_attribute("data-origin", "yours")
    expect(field(notebook, "n_kv_heads").locator("input")).to_have_value("8")
    box = tp.locator("input")
    box.fill("0")
    box.press("Enter")
    expect(clinic(notebook).locator(".lp-finding").first).to_contain_text("tp=0: tp must be a whole number")
    expect(tp).to_have_attribute("data-origin", "implied")
    box.press("Tab")
    expect(box).to_have_value("16")
    box.fill("8")
    box.press("Enter")
    expect(tp).to_have_attribute("data-origin", "yours")
    box.fill("")
    box.press("Tab")
    expect(tp).to_have_attribute("data-origin", "implied")
    expect(box).to_have_value("16")
    expect(clinic(notebook).locator("textarea")).to_have_value(KV)


@pytest.mark.soak
def test_typing_keeps_its_keys_from_jupyterlab(notebook: Notebook) -> None:
    box = clinic(notebook).locator("textarea")
    box.click()
    notebook.page.keyboard.type("attention heads (12) must be divisible by tensor parallel size (8)\n")
    for key in ["x", "ArrowUp", "Home", *"ddab", "Shift+Enter", *"zj"]:  # a command each, in Lab
        notebook.page.keyboard.press(key)
    assert len(notebook.cells()) == 3
    assert "ddab" in box.input_value()
    expect(clinic(notebook).locator("[data-category=heads_not_divisible]")).to_be_visible()
    expect(status(notebook)).to_contain_text("12 query heads")


@pytest.mark.soak
def test_markup_is_shown_as_text(notebook: Notebook) -> None:
    evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    paste(notebook, f"{evil} n_kv_heads (8) must be divisible by tp (16) {evil}")
    expect(clinic(notebook).locator("[data-category=kv_heads_lt_tp]")).to_be_visible()
    expect(clinic(notebook).locator("textarea")).to_have_value(
        f"{evil} n_kv_heads (8) must be divisible by tp (16) {evil}"
    )
    field(notebook, "model").locator("input").fill(evil)
    field(notebook, "model").locator("input").press("Enter")
    expect(clinic(notebook).locator(".lp-finding").first).to_contain_text("model='<img src=x onerror=")
    assert clinic(notebook).locator("img, script").count() == 0
    assert "owned" not in notebook.page.title()


@pytest.mark.soak
def test_code_fills_box_and_fields_in_every_view(notebook: Notebook) -> None:
    paste(notebook, "something else")
    expect(status(notebook)).to_contain_text("Not known")
    notebook.run(2)
    expect(clinic(notebook).locator("textarea")).to_have_value("embed_tokens.weight is [16064, 8192]")
    expect(field(notebook, "tp")).to_have_attribute("data-origin", "yours")
    expect(title(notebook)).to_contain_text("Each rank holds 16,064 rows of the embedding")


def drop(notebook: Notebook, *paths: Path) -> None:
    """As a hand does from a file manager."""
    box = clinic(notebook).locator("textarea").bounding_box()
    assert box is not None
    session = notebook.page.context.new_cdp_session(notebook.page)
    data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        session.send(
            "Input.dispatchDragEvent", {"type": kind, "x": box["x"] + 9, "y": box["y"] + 9, "data": data}
        )
    session.detach()


@pytest.mark.soak
def test_what_is_dropped_and_holds_nothing_is_told(notebook: Notebook, tmp_path: Path) -> None:
    (tmp_path / "dumps").mkdir()
    (tmp_path / "dumps" / "rank_0").write_bytes(b"\x80\x02cposix\nsystem\nX\x02\x00\x00\x00ls\x85R.")
    drop(notebook, tmp_path / "dumps")  # a folder: what is in it is not read
    answer = clinic(notebook).locator(".lp-answer")
    expect(answer).to_contain_text("no file and no text of settings")
    (tmp_path / "run.log").write_text("n_kv_heads (8) must be divisible by tp (16)")
    drop(notebook, tmp_path / "run.log")
    expect(clinic(notebook).locator("[data-category=kv_heads_lt_tp]")).to_be_visible()
    expect(clinic(notebook).locator("textarea")).to_have_value("n_kv_heads (8) must be divisible by tp (16)")
    (tmp_path / "mine.json").write_text(json.dumps(TEN_KV_HEADS))
    drop(notebook, tmp_path / "mine.json")  # a model, by whatever name
    expect(field(notebook, "n_layers").locator("input")).to_have_value("40")
