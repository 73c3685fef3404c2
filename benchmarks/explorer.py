"""How fast the Explorer is in a real JupyterLab, beside a bare ipywidgets + FigureWidget heatmap.

    PYTHONPATH=tests .venv/bin/python benchmarks/explorer.py [--moves 100] [--tab memory]

One notebook, one kernel, one page hold both. A move is a key press on the TP slider; its time ends at
the frame after plotly reports the new picture. Moves of the two alternate, so the machine's noise meets
both alike. First picture and bytes are of a fresh kernel, in a page of their own, several times.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from browser.lab import Lab, Notebook, scratch_notebook
from llamapar.panels.controls import DOORS, TABS

EXPLORER = "import llamapar as lp\npanel = lp.explorer('llama3.1-405b', tab='TAB')\npanel"
BARE = """\
import ipywidgets, plotly.graph_objects as go
slider = ipywidgets.SelectionSlider(options=[1, 2, 4, 8, 16, 32, 64, 128], value=8)
def held(tp): return [[int(h * tp // 128 == r) for h in range(128)] for r in range(8)]
figure = go.FigureWidget(go.Heatmap(z=held(8)), layout={'height': 420})
slider.observe(lambda change: figure.data[0].update(z=held(change['new'])), 'value')
ipywidgets.VBox([slider, figure])"""

SETTLED = 0.15
"""Seconds between two moves: JupyterLab and plotly finish what a move set off."""

WATCH = """() => {
  window.llamaparBench = {};
  const stamp = () => { window.llamaparBench.to ??= performance.now(); };
  document.addEventListener('keydown', () => { window.llamaparBench = { from: performance.now() }; }, true);
  const panel = document.querySelector('.llamapar');
  new MutationObserver(stamp).observe(panel, { attributes: true, attributeFilter: ['data-painted'] });
  for (const plot of document.querySelectorAll('.js-plotly-plot'))
    if (!panel.contains(plot)) plot.on('plotly_afterplot', () => requestAnimationFrame(stamp));
}"""
"""Stamps a key press, and the frame after plotly is done: the Explorer marks that frame itself, in the
same way, because its figure starts afresh when the tab changes."""


def move(notebook: Notebook, key: str) -> float:
    """Milliseconds from the key press to the painted picture."""
    page = notebook.page
    page.evaluate("() => { window.llamaparBench = {}; }")
    page.keyboard.press(key)
    page.wait_for_function("() => window.llamaparBench.to !== undefined", timeout=10_000)
    took = page.evaluate("() => window.llamaparBench.to - window.llamaparBench.from")
    time.sleep(SETTLED)
    return float(took)


def moves(lab: Lab, folder: Path, count: int, tab: str) -> tuple[list[float], list[float], list[float]]:
    """Milliseconds of each move: the Explorer's, the bare one's; then of each tab switch."""
    with lab.open(
        scratch_notebook(folder / "moves.ipynb", EXPLORER.replace("TAB", tab), BARE), height=2000
    ) as notebook:
        page = notebook.page
        for cell in (0, 1):
            notebook.run(cell)
            notebook.cell(cell).locator(".js-plotly-plot .main-svg").first.wait_for(timeout=60_000)
        page.evaluate(WATCH)
        ours = page.locator(".llamapar input[data-axis='tp']")
        bare = page.locator(".noUi-handle").first
        times: dict[str, list[float]] = {"ours": [], "bare": []}
        keys = ["ArrowRight", "ArrowRight", "ArrowLeft", "ArrowLeft"]
        for i in range(count + 4):
            for name, slider in (("ours", ours), ("bare", bare)):
                slider.focus()
                took = move(notebook, keys[i % 4])
                if i >= 4:  # the first moves warm both up
                    times[name].append(took)
        switches = []
        drawn = [name for name in TABS if name != "run"]  # Run shows a picture when there is a result
        of = {name: door for door, names in DOORS.items() for name in names}
        for name in [*drawn[drawn.index(tab) + 1 :], *drawn] * 2:
            door, picture = (
                page.locator(f".llamapar {one}")
                for one in (f"[data-door='{of[name]}']", f".lp-pictures [data-tab={name}]")
            )
            for button in (door, picture):
                if picture.get_attribute("aria-selected") != "true":
                    button.focus()
                    switches.append(move(notebook, "Enter"))
        errors = notebook.console_errors()
        print(f"errors in the console: {len(errors)}", *errors[:3], sep="\n  ")
        return times["ours"], times["bare"], switches


def first_picture(lab: Lab, folder: Path, source: str) -> tuple[float, float]:
    """Seconds from running the cell in a fresh kernel to its first picture; MB over the websocket."""
    with lab.open(scratch_notebook(folder / "first.ipynb", source)) as notebook:
        before = notebook.websocket_bytes()
        begun = time.monotonic()
        notebook.page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-cell'); }")
        notebook.page.locator(".js-plotly-plot .main-svg").first.wait_for(timeout=60_000)
        took = time.monotonic() - begun
        return took, (notebook.websocket_bytes() - before) / 1e6


def row(name: str, values: list[float], unit: str, digits: int = 0) -> None:
    ordered = sorted(values)
    p95 = ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))]
    print(f"{name:34} {statistics.median(values):8.{digits}f} {p95:8.{digits}f}  {unit} (n={len(values)})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moves", type=int, default=100)
    parser.add_argument("--tab", default="heads", help="the tab in which the slider moves")
    parser.add_argument("--openings", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, Lab() as lab:
        folder = Path(name)
        print(f"{'':34} {'median':>8} {'p95':>8}")
        ours, bare, switches = moves(lab, folder, given.moves, given.tab)
        row("Explorer, TP move on 405B", ours, "ms")
        row("bare FigureWidget heatmap", bare, "ms")
        row("Explorer, tab switch", switches, "ms")

        def p95(values: list[float]) -> float:
            return statistics.quantiles(values, n=20)[-1]

        median = statistics.median(ours) / statistics.median(bare)
        print(f"ratio to bare: median {median:.2f} (asked 1.3), p95 {p95(ours) / p95(bare):.2f} (asked 1.5)")
        for label, source in (("Explorer", EXPLORER.replace("TAB", given.tab)), ("bare FigureWidget", BARE)):
            opened = [first_picture(lab, folder, source) for _ in range(given.openings)]
            row(f"{label}, first picture", [took for took, _ in opened], "s", 2)
            row(f"{label}, websocket", [size for _, size in opened], "MB", 2)


if __name__ == "__main__":
    main()
