"""Run notebooks and store what they show, so that they read without a kernel. For their authors.

    python tools/bake.py notebooks/03_attention_heads.ipynb     # run it, write it back
    python tools/bake.py --check notebooks/*.ipynb              # run all, say what would change

Needs the `test` extras and a Chromium (as the browser tests do). Write the cells in JupyterLab or
with any editor, then bake; commit what it wrote. For each notebook it

- runs every cell from the top in a new kernel that imports this checkout, beside the notebook;
- keeps of each output only text/plain, plotly's JSON, image/svg+xml, image/png and text/html; drops widget
  state, output and timing metadata, and cuts a traceback to its last line; refuses output on stderr;
- draws each plotly figure, and each panel as it first showed, with plotly's own bundle and stores
  the PNG beside the JSON (or, for a panel, beside its text; for a figure behind a guess, in the
  folded answer), so that GitHub and nbviewer show it; a figure has no paper, so the PNG brings a
  white one and dark text; a map, an image of SVG, has its PNG beside it, for pages that show none;
  a panel's picture says that it is one, and takes the place of its chart, which would hide it in
  JupyterLab; its map stays, for that has the colours of the page;
- refuses an output over 40 KiB and a notebook over 250 KB.

A PNG carries the digest of what it was drawn from. While that stays the same the old PNG is kept, so
baking twice, or with other fonts, changes nothing. Its colours are reduced until it fits, and those of the
largest in a notebook until that fits.
"""

from __future__ import annotations

import argparse
import base64
import copy
import hashlib
import json
import os
import runpy
import struct
import sys
import tempfile
import zlib
from importlib.resources import files
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
from nbclient import NotebookClient
from nbformat import NotebookNode

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT), str(PROJECT / "tests"), str(PROJECT / "jupyter")]

from saving import (  # noqa: E402
    DRAWN,
    PLOTLY,
    SVG,
    TO_DRAW,
    WIDGET,
    as_text,
    folded_picture,
    is_box,
    last_line,
    merged,
    still_in,
)

from browser.lab import chromium  # noqa: E402
from llamapar.figures.style import COLOURS as OF_AXES  # noqa: E402
from llamapar.panels.page import A_PICTURE  # noqa: E402

KIB = 1024
MOST = 40 * KIB  # of one output, as JSON
KEPT_METADATA = ("tags", "jupyter", "collapsed")
"""Of a cell; the last two hide an output that would spoil a question, and JupyterLab writes both."""

WHOLE = 235_000  # a notebook may have 250,000, so a writer has room
WIDTH, PANEL_WIDTH = 760, 960  # CSS pixels; a figure says its own height
COLOURS = (240, 120, 60, 32, 20, 16, 12, 8)
FEWEST = 7  # of a picture that is too large in eight
PARTS = (1, 0.75, 0.5, 0.35)  # of a panel that is too high even so, as of a watched step: its upper part
GREY = 24  # apart red, green and blue of a grey are at most: greys and hues are reduced by themselves
KEPT = ("text/plain", "text/html", "image/png", PLOTLY, SVG)
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
DIGEST = b"drawn-from"

FIGURE = """async ([spec, width]) => {
    const size = { width, height: spec.layout.height ?? 420 };
    const box = document.body.appendChild(document.createElement("div"));
    const paper = { paper_bgcolor: "#ffffff", font: { ...spec.layout.font, color: "#212121" } };
    await Plotly.newPlot(box, spec.data, { ...spec.layout, ...paper, ...size }, { staticPlot: true });
    const url = await Plotly.toImage(box, { format: "png", ...size });
    box.remove();
    return url;
}"""
PIXELS = """async (url) => {
    const image = new Image();
    image.src = url;
    await image.decode();
    const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
    context.drawImage(image, 0, 0);
    const { data, width, height } = context.getImageData(0, 0, image.width, image.height);
    const reader = new FileReader();
    const read = new Promise((done) => { reader.onload = () => done(reader.result); });
    reader.readAsDataURL(new Blob([data]));
    return [(await read).split(",")[1], width, height];
}"""
PANEL = """async ([state, width, caption]) => {
    const url = URL.createObjectURL(new Blob([state._esm], { type: "text/javascript" }));
    const { default: widget } = await import(url);
    const style = document.head.appendChild(document.createElement("style"));
    style.textContent = state._css;
    const box = document.body.appendChild(document.createElement("div"));
    box.id = "panel";
    box.style = `width: ${width}px; background: white`;
    const says = box.appendChild(document.createElement("div"));
    says.textContent = caption;
    says.style = "font: italic 20px sans-serif; padding: 4px 8px; color: #222;"
        + "background: #f4f4f4; border-bottom: 1px dashed #888; margin-bottom: 4px";
    const model = { get: (name) => state[name], set() {}, on() {}, off() {}, send() {}, save_changes() {} };
    const el = box.appendChild(document.createElement("div"));
    await (typeof widget === "function" ? await widget() : widget).render({ model, el });
    await new Promise((done) => setTimeout(done, 500));
}"""


def execute(notebook: NotebookNode, folder: Path) -> None:
    """Run all cells; a panel's output then holds its state at the moment when it was shown."""

    def after(cell: NotebookNode, cell_index: int, execute_reply: Any) -> None:
        for output in cell.get("outputs", []):
            view = output.get("data", {}).get(WIDGET)
            if view:
                view["state"] = copy.deepcopy(client.widget_state[view["model_id"]])

    client = NotebookClient(
        notebook,
        timeout=120,
        kernel_name=KERNEL["name"],
        resources={"metadata": {"path": str(folder)}},
        extra_arguments=["--log-level=ERROR"],
        record_timing=False,
        on_cell_executed=after,
    )
    client.execute()


def tidy(notebook: NotebookNode) -> None:
    """Take out whatever differs between machines or runs."""
    notebook.metadata = NotebookNode(kernelspec=KERNEL, language_info={"name": "python"})
    for cell in notebook.cells:
        cell.metadata = NotebookNode({k: v for k, v in cell.metadata.items() if k in KEPT_METADATA})
        if cell.cell_type == "code":
            cell.outputs = [clean(output, cell.source) for output in merged(cell.outputs)]


def clean(output: NotebookNode, source: str) -> NotebookNode:
    """One output with what is stored of it."""
    if output.output_type == "stream" and output.name != "stdout":
        raise SystemExit(f"output on {output.name} after\n{source}\n\n{output.text}")
    if output.output_type == "error":
        output.traceback = [last_line(output)]
    if "data" in output:
        kept = [kind for kind in KEPT if kind != PLOTLY or WIDGET not in output.data]
        output.metadata = NotebookNode()
        output.data = NotebookNode({k: v for k, v in output.data.items() if k in kept})
    return output


# -- pictures ----------------------------------------------------------------------------------


def digest_of(kind: str, shown: Any) -> str:
    """What a picture's text chunk says: a hash of all that it was drawn from."""
    how = [PANEL, A_PICTURE] if kind == "panel" else []
    drawn_from = json.dumps([kind, WIDTH, PANEL_WIDTH, COLOURS, GREY, shown, *how], sort_keys=True)
    return hashlib.sha256(drawn_from.encode()).hexdigest()


class TooLarge(SystemExit):
    """A picture that the fewest colours do not make small enough."""


class Artist:
    """Draws in one Chromium page, or takes the picture that was there."""

    def __init__(self, page: Any, old: dict[str, str]) -> None:
        self.page, self.old = page, old

    def picture(self, kind: str, shown: Any, room: int) -> str:
        """A PNG as base64 of at most `room` characters: of a figure's spec or a panel's state."""
        digest = digest_of(kind, shown)
        found = self.old.get(digest)
        if found and len(found) <= room:
            return found
        pixels = {"panel": self._panel, "svg": self._svg}.get(kind, self._figure)(shown)
        for shown_part in PARTS if kind == "panel" else PARTS[:1]:
            top = pixels[: int(shown_part * len(pixels))]
            for colours in (*(COLOURS[COLOURS.index(16) :] if kind == "svg" else COLOURS), FEWEST):
                made = base64.b64encode(png(*quantised(top, colours), digest)).decode()
                if len(made) <= room:
                    return made
        raise TooLarge(f"a picture takes {len(made)} bytes in {FEWEST} colours; {room} are left")

    def _figure(self, spec: Any) -> np.ndarray:
        return self._pixels(self.page.evaluate(FIGURE, [spec, WIDTH]))

    def _panel(self, state: Any) -> np.ndarray:
        self.page.evaluate(PANEL, [state, PANEL_WIDTH, A_PICTURE])
        shot = base64.b64encode(self.page.locator("#panel").screenshot()).decode()
        self.page.evaluate("() => document.getElementById('panel').remove()")
        return self._pixels(f"data:image/png;base64,{shot}")

    def _svg(self, drawing: str) -> np.ndarray:
        return self._pixels(f"data:image/svg+xml;base64,{base64.b64encode(drawing.encode()).decode()}")

    def _pixels(self, url: str) -> np.ndarray:
        """[height, width, 4] bytes."""
        data, width, height = self.page.evaluate(PIXELS, url)
        return np.frombuffer(base64.b64decode(data), np.uint8).reshape(height, width, 4)


def shown_in(output: NotebookNode) -> tuple[str, Any] | None:
    """The kind of the picture that an output gets, and what it is drawn from; None for no picture."""
    data = output.get("data", {})
    if output.get("metadata", {}).get("llamapar") == "card":
        return None  # The explanation's HTML stands beside its buttons.
    if is_box(output):
        folded = folded_picture(output)
        return ("figure", folded) if folded else None
    state = data.get(WIDGET, {}).get("state", {})
    if "_esm" in state:  # a box of widgets has none, and its text is stored
        return "panel", state
    if SVG in data or still_in(data):
        return "svg", as_text(data[SVG]) if SVG in data else still_in(data)
    return ("figure", spec_of(data)) if PLOTLY in data else None


def spec_of(data: NotebookNode) -> dict[str, Any]:
    """The picture in an output's data, without how plotly.js is to show it."""
    return {"data": data[PLOTLY]["data"], "layout": data[PLOTLY]["layout"]}


def image(stored: str) -> str:
    """What stands for a picture to draw, as DRAWN reads it; its `\\1` is what it was drawn from."""
    what = "the answer as a picture; the same in words stands below it"
    return rf'<img data-drawn-from="\1" alt="{what}" src="data:image/png;base64,{stored}">'


def digest_in(stored: str) -> str:
    """The digest that a stored PNG carries; empty where it carries none."""
    _, found, rest = base64.b64decode(stored).partition(DIGEST + b"\0")
    return rest[:64].decode() if found else ""


def old_pictures(notebook: NotebookNode) -> dict[str, str]:
    """The stored PNGs by the digest of what they were drawn from."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    data = [output.data for output in outputs if "data" in output]
    stored = [one["image/png"].strip() for one in data if "image/png" in one]
    stored += [found["png"] for one in data for found in DRAWN.finditer(one.get("text/html", ""))]
    return {digest_in(picture): picture for picture in stored}


def quantised(pixels: np.ndarray, colours: int) -> tuple[np.ndarray, np.ndarray]:
    """(palette [colours, 4], index of each pixel): greys keep a third of it, so that no letters turn orange.

    Each colour of the palette is one that the picture has, so flat areas keep theirs exactly.
    """
    height, width, _ = pixels.shape
    packed = np.ascontiguousarray(pixels).view(np.uint32).ravel()
    values, places, counts = np.unique(packed, return_inverse=True, return_counts=True)
    points = values.view(np.uint8).reshape(-1, 4).astype(np.float64)
    points[:, :3] *= points[:, 3:] / 255  # a transparent pixel has no colour
    axes = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in OF_AXES.values()])
    counts[(points[:, None, :3] == axes).all(axis=2).any(axis=1)] = counts.max()  # each axis keeps its own
    grey = np.ptp(points[:, :3], axis=1) <= GREY
    greys, hues = int(grey.sum()), int((~grey).sum())
    shades = min(greys, max(4, colours // 3, colours - hues))
    nearest = np.zeros(len(points), int)
    if shades:
        commonest = points[grey][np.argsort(-counts[grey], kind="stable")[:shades]]
        if shades < greys:  # the page, areas on it, and letters from dark to light
            even = np.linspace(points[grey].min(axis=0), points[grey].max(axis=0), shades)
            commonest = np.concatenate([commonest[:2], even[:-2]])
        nearest[grey] = clustered(points[grey], counts[grey], commonest)
    if hues:
        commonest = points[~grey][np.argsort(-counts[~grey], kind="stable")[: colours - shades]]
        nearest[~grey] = shades + clustered(points[~grey], counts[~grey], commonest)
    members = [np.flatnonzero(nearest == i) for i in range(colours)]
    chosen = [held[counts[held].argmax()] for held in members if len(held)]
    renumbered = np.cumsum([len(held) > 0 for held in members]) - 1
    palette = values[chosen].view(np.uint8).reshape(-1, 4)
    return palette, renumbered[nearest][places].reshape(height, width).astype(np.uint8)


def clustered(points: np.ndarray, counts: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Which of the centres each point is nearest to, after these were moved among them: k-means."""
    weights = np.sqrt(counts)
    for _ in range(12):
        nearest = ((points[:, None] - centres[None]) ** 2).sum(axis=2).argmin(axis=1)
        total = np.bincount(nearest, weights, len(centres))
        sums = [np.bincount(nearest, weights * points[:, i], len(centres)) for i in range(4)]
        centres = np.where(total[:, None] > 0, np.stack(sums, 1) / np.maximum(total, 1e-9)[:, None], centres)
    return nearest


def png(palette: np.ndarray, pixels: np.ndarray, digest: str) -> bytes:
    """A palette PNG with transparency and, in a text chunk, the digest."""
    height, width = pixels.shape
    depth = 4 if len(palette) <= 16 else 8
    if depth == 4:
        even = np.pad(pixels, ((0, 0), (0, width % 2)))
        pixels = (even[:, ::2] << 4) | even[:, 1::2]
    rows = np.pad(pixels, ((0, 0), (1, 0))).tobytes()  # a zero before each row: no filter
    ways = [
        zlib.compressobj(9, memLevel=9, strategy=way) for way in (zlib.Z_DEFAULT_STRATEGY, zlib.Z_FILTERED)
    ]
    packed = min((way.compress(rows) + way.flush() for way in ways), key=len)
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, depth, 3, 0, 0, 0)),
        (b"tEXt", DIGEST + b"\0" + digest.encode()),
        (b"PLTE", palette[:, :3].tobytes()),
        (b"tRNS", palette[:, 3].tobytes()),
        (b"IDAT", packed),
        (b"IEND", b""),
    ]
    written = b"\x89PNG\r\n\x1a\n"
    for name, data in chunks:
        written += struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    return written


# -- a notebook --------------------------------------------------------------------------------


def plotly_js() -> Path:
    return Path(str(files("plotly") / "package_data" / "plotly.min.js"))


def size(output: NotebookNode) -> int:
    return len(json.dumps(output, ensure_ascii=False).encode())


def bake(path: Path, page: Any) -> str:
    """The text of the notebook, run anew."""
    notebook = nbformat.read(path, as_version=4)
    artist = Artist(page, old_pictures(notebook))
    execute(notebook, path.parent)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = merged(cell.outputs)
    shown = [[shown_in(output) for output in cell.get("outputs", [])] for cell in notebook.cells]
    tidy(notebook)
    for cell, pictures in zip(notebook.cells, shown, strict=True):
        for output, picture in zip(cell.get("outputs", []), pictures, strict=True):
            if picture:
                folded = TO_DRAW.search(html := output.data.get("text/html", ""))
                stored = artist.picture(*picture, MOST - size(output) - (256 if folded else 64))
                if folded:
                    output.data["text/html"] = TO_DRAW.sub(image(stored), html)
                else:
                    output.data["image/png"] = stored
            if size(output) > MOST:
                raise SystemExit(f"{path.name}: an output of {size(output)} bytes after\n{cell.source}")
    nbformat.validate(notebook)
    drawn = [
        (output.data, picture)
        for cell, pictures in zip(notebook.cells, shown, strict=True)
        for output, picture in zip(cell.get("outputs", []), pictures, strict=True)
        if picture and "image/png" in output.data
    ]
    while (over := len((text := written(notebook)).encode()) - WHOLE) > 0:
        # The largest gives way, in turn, as far as it can.
        if not drawn:
            raise SystemExit(f"{path.name}: {over + WHOLE} bytes; at most {WHOLE}")
        largest = max(drawn, key=lambda found: len(found[0]["image/png"]))
        data, picture = largest
        has = len(data["image/png"])
        try:
            data["image/png"] = artist.picture(*picture, has - min(over, has // 8))
        except TooLarge:
            drawn.remove(largest)
    return text


def written(notebook: NotebookNode) -> str:
    """The text of its file."""
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def differences(old: str, new: str) -> list[str]:
    """The first lines of the code cells whose outputs differ."""
    cells = [
        [cell for cell in nbformat.reads(text, as_version=4).cells if cell.cell_type == "code"]
        for text in (old, new)
    ]
    pairs = zip(*cells, strict=True)
    changed = [f"outputs after: {a.source.splitlines()[0]}" for a, b in pairs if a.outputs != b.outputs]
    return changed or ["form or metadata"]


def main() -> int:
    """Bake what the command line names; 1 where --check finds something to bake."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if that is needed")
    parser.add_argument("notebooks", type=Path, nargs="+")
    args = parser.parse_args()
    stale = 0
    with tempfile.TemporaryDirectory(prefix="llamapar-bake-") as state, chromium() as browser:
        os.environ["LLAMAPAR_PROGRESS"] = "off"
        os.environ.update(runpy.run_path(str(PROJECT / "jupyter" / "start.py"))["environment"](Path(state)))
        paths = [str(PROJECT), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.add_script_tag(path=str(plotly_js()))
        for path in args.notebooks:
            old = path.read_text(encoding="utf-8")
            new = bake(path, page)
            what = "as it was" if new == old else "would change" if args.check else "baked"
            print(f"{path}: {what}, {len(new.encode()) / KIB:.0f} KiB")
            if new != old:
                stale += 1
                print("".join(f"  {line}\n" for line in differences(old, new)), end="")
                if not args.check:
                    path.write_text(new, encoding="utf-8")
    return int(args.check and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
