"""tools/bake.py: what it strips, its PNGs, and that the stored pictures are of what is stored."""

from __future__ import annotations

import base64
import json
import runpy
import struct
import zlib
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from nbformat.v4 import new_output

from browser.lab import chromium, scratch_notebook

PROJECT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((PROJECT / "notebooks").glob("*.ipynb"))
bake = runpy.run_path(str(PROJECT / "tools" / "bake.py"), run_name="bake")


def decoded(png: bytes) -> np.ndarray:
    """[height, width, 4] of a palette PNG without row filters."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    chunks: dict[bytes, bytes] = {}
    place = 8
    while place < len(png):
        (length,) = struct.unpack(">I", png[place : place + 4])
        name, data = png[place + 4 : place + 8], png[place + 8 : place + 8 + length]
        (check,) = struct.unpack(">I", png[place + 8 + length : place + 12 + length])
        assert check == zlib.crc32(name + data)
        chunks[name] = data
        place += 12 + length
    width, height, depth, kind = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert kind == 3
    row = -(-width * depth // 8)
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, row + 1)
    assert not rows[:, 0].any()
    index = rows[:, 1:]
    if depth == 4:
        index = np.stack([index >> 4, index & 15], 2).reshape(height, -1)[:, :width]
    colours = np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)
    alpha = np.frombuffer(chunks[b"tRNS"], np.uint8)
    return np.concatenate([colours, alpha[:, None]], 1)[index]


def test_what_differs_between_runs_is_taken_out() -> None:
    notebook = nbformat.v4.new_notebook(
        metadata={"widgets": {"a": 1}, "language_info": {"name": "python", "version": "3"}}
    )
    cell = nbformat.v4.new_code_cell("x", metadata={"tags": ["exercise"], "execution": {"busy": "now"}})
    cell.outputs = [
        new_output("stream", text="a"),
        new_output("stream", text="b"),
        new_output("display_data", {"text/plain": "panel", bake["WIDGET"]: {}, bake["PLOTLY"]: {}}),
        new_output("error", ename="LayoutError", evalue="no", traceback=["a path", "another"]),
    ]
    notebook.cells = [cell]
    bake["tidy"](notebook)
    assert notebook.metadata == {"kernelspec": bake["KERNEL"], "language_info": {"name": "python"}}
    assert cell.metadata == {"tags": ["exercise"]}
    printed, shown, error = cell.outputs
    assert printed.text == "ab"
    assert shown.data == {"text/plain": "panel"}
    assert error.traceback == ["LayoutError: no"]


def test_output_on_stderr_is_refused() -> None:
    with pytest.raises(SystemExit, match="output on stderr after\nx\n\nboom"):
        bake["clean"](new_output("stream", name="stderr", text="boom"), "x")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_stored_figure_has_its_own_picture(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        for output in cell.get("outputs", []):
            data: dict[str, Any] = output.get("data", {})
            if bake["PLOTLY"] in data:
                assert "image/png" in data, f"not baked: {cell.source!r}"
                drawn_from = bake["digest_of"]("figure", bake["spec_of"](data))
                assert bake["digest_in"](data["image/png"]) == drawn_from, f"bake anew: {cell.source!r}"
            if bake["SVG"] in data:
                assert bake["shown_in"](output) == ("svg", data[bake["SVG"]])
                drawn_from = bake["digest_of"]("svg", data[bake["SVG"]])
                assert bake["digest_in"](data["image/png"]) == drawn_from, f"bake anew: {cell.source!r}"


@pytest.mark.soak
@pytest.mark.browser
def test_the_largest_picture_gives_way_where_a_notebook_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = "".join(f'<path fill="#{7919 * k % 4096:03x}" d="M{k} 0h1v{k % 90}h-1z"/>' for k in range(400))
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" width="400" height="90">{many}</svg>'
    bundles = ({"text/plain": "x", bake["SVG"]: own} for own in (svg, svg[: svg.index(">") + 1] + "</svg>"))
    shown = [f"display({bundle}, raw=True)" for bundle in bundles]
    path = scratch_notebook(tmp_path / "large.ipynb", "from IPython.display import display", *shown)
    with chromium() as browser:
        free = bake["bake"](path, browser.new_page())
        of = [cell["outputs"][0]["data"]["image/png"] for cell in json.loads(free)["cells"][1:]]
        monkeypatch.setitem(bake["bake"].__globals__, "WHOLE", len(free.encode()) - 9)
        tight = bake["bake"](path, browser.new_page())
        monkeypatch.setitem(bake["bake"].__globals__, "WHOLE", len(free.encode()) - len(of[0]))
        with pytest.raises(SystemExit, match=r"a picture takes \d+ bytes in 7 colours"):
            bake["bake"](path, browser.new_page())
    now = [cell["outputs"][0]["data"]["image/png"] for cell in json.loads(tight)["cells"][1:]]
    assert len(now[0]) <= len(of[0]) - 9
    assert now[1] == of[1]
    assert len(tight.encode()) <= len(free.encode()) - 9


@pytest.mark.browser
def test_a_panel_s_picture_says_that_it_is_one() -> None:
    page_of = "export default { render({ model, el }) { el.textContent = model.get('status'); } }"
    with chromium() as browser:
        page = browser.new_page()
        state = {"_esm": page_of, "_css": "", "status": "what the panel shows"}
        page.evaluate(bake["PANEL"], [state, bake["PANEL_WIDTH"], bake["A_PICTURE"]])
        assert page.locator("#panel").inner_text().split("\n") == [
            "a still picture: live in JupyterLab",
            "what the panel shows",
        ]


@pytest.mark.soak
@pytest.mark.browser
def test_a_baked_notebook_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    layout = {"height": 200, "paper_bgcolor": "rgba(0,0,0,0)"}
    figure = {"data": [{"type": "bar", "x": [1, 2], "y": [3, 4]}], "layout": layout}
    shown = {"text/plain": "two bars", bake["PLOTLY"]: figure}
    source = f"from IPython.display import display\ndisplay({shown}, raw=True)"
    panel = "import llamapar as lp\nlp.explorer('tiny', tp=2)"
    svg = '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20">'
    red = f'{svg}<path fill="#f00" d="M0 0h9v9z"/></svg>'
    bundle = {"text/plain": "red", bake["SVG"]: red}
    drawing = f"display({bundle}, raw=True)"
    path = scratch_notebook(tmp_path / "bars.ipynb", source, panel, drawing)
    with chromium() as browser:
        page = browser.new_page()
        page.add_script_tag(path=str(bake["plotly_js"]()))
        baked = bake["bake"](path, page)
        path.write_text(baked, encoding="utf-8")
        page.close()  # so that the second time nothing can be drawn
        assert bake["bake"](path, page) == baked
    data, of_panel, small = (cell["outputs"][0]["data"] for cell in json.loads(baked)["cells"])
    assert set(small) == {"text/plain", "image/png", bake["SVG"]}
    drawn = decoded(base64.b64decode(small["image/png"]))
    assert drawn.shape == (20, 40, 4)
    assert drawn[19, 39, 3] == 0, "no paper"
    assert drawn[1, 5].tolist() == [255, 0, 0, 255]
    assert set(of_panel) == {"text/plain", "image/png"}  # its figure would hide the picture in JupyterLab
    pixels = decoded(base64.b64decode(data["image/png"]))
    assert pixels.shape == (200, bake["WIDTH"], 4)
    assert pixels[0, 0].tolist() == [255] * 4, "white paper, for the page it stands on may be dark"
    assert len(np.unique(pixels.reshape(-1, 4), axis=0)) > 3
