"""tools/bake.py: its PNGs, and that the stored pictures are of what is stored."""

import runpy
from pathlib import Path

import nbformat
import pytest

from browser.lab import chromium

PROJECT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((PROJECT / "notebooks").glob("*.ipynb"))
bake = runpy.run_path(str(PROJECT / "tools" / "bake.py"), run_name="bake")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_stored_figure_has_its_own_picture(path):
    for cell in nbformat.read(path, as_version=4).cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if bake["PLOTLY"] in data:
                assert "image/png" in data, f"not baked: {cell.source!r}"
                drawn_from = bake["digest_of"]("figure", bake["spec_of"](data))
                assert bake["digest_in"](data["image/png"]) == drawn_from, f"bake anew: {cell.source!r}"
            if bake["SVG"] in data:
                assert bake["shown_in"](output) == ("svg", data[bake["SVG"]])
                drawn_from = bake["digest_of"]("svg", data[bake["SVG"]])
                assert bake["digest_in"](data["image/png"]) == drawn_from, f"bake anew: {cell.source!r}"


@pytest.mark.browser
def test_a_panel_s_picture_says_that_it_is_one():
    page_of = "export default { render({ model, el }) { el.textContent = model.get('status'); } }"
    with chromium() as browser:
        page = browser.new_page()
        state = {"_esm": page_of, "_css": "", "status": "what the panel shows"}
        page.evaluate(bake["PANEL"], [state, bake["PANEL_WIDTH"], bake["A_PICTURE"]])
        assert page.locator("#panel").inner_text().split("\n") == [
            "a still picture: live in JupyterLab",
            "what the panel shows",
        ]
