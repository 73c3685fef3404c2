"""How soon a map moves after a key, beside a bare plotly FigureWidget in the same notebook.

In JupyterLab a key is pressed on a slider or a rung, and the time until the browser has painted the picture,
or the Explorer's answers, is taken, without motion (prefers-reduced-motion): what is painted is the end of
the move. The FigureWidget has as many bars as the model has heads, and an ipywidgets slider that sets them.
A picture counts as painted in the frame after the first change of its elements, and answers in the frame
after they were drawn anew.

    python benchmarks/maps.py            # needs the `test` extras and a Chromium
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT), str(PROJECT / "tests")]

from browser.lab import Lab, Notebook, chromium, scratch_notebook  # noqa: E402

LIVE = "import llamapar as lp\nlp.live('heads', 'llama3.1-405b', tp=4)"
EXPLORER = "lp.explorer('llama3.1-405b', tp=4, cp=16, pp=16, dp=8)"
BARE = """import plotly.graph_objects as go, ipywidgets as w
figure = go.FigureWidget(go.Bar(y=[1] * 128, x=list(range(128))))
slider = w.IntSlider(value=2, min=0, max=7)
def move(change):
    figure.update_traces(y=[1 + k * 2**change.new // 128 % 2 for k in range(128)])
slider.observe(move, "value")
w.VBox([slider, figure])"""

PAINTED = """async ([control, picture, key]) => {
    const node = document.querySelector(control);
    const drawn = document.querySelector(picture);
    node.focus();
    const painted = new Promise((done) => {
        const seen = new MutationObserver(() => {
            seen.disconnect();
            requestAnimationFrame(() => setTimeout(() => done(performance.now())));
        });
        seen.observe(drawn, { attributes: true, childList: true, subtree: true });
    });
    const begun = performance.now();
    if (node.type === "range") {
        node.stepUp(key === "ArrowRight" ? 1 : -1);
        node.dispatchEvent(new Event("input", { bubbles: true }));
    } else node.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    return (await painted) - begun;
}"""

WHERE = {
    "FigureWidget": (".noUi-handle", ".js-plotly-plot .main-svg"),
    "lp.live": (".lp-live [aria-checked='true']", ".lp-live .lp-bands"),
    "the Explorer": (".lp-explorer input[type='range'][data-axis='tp']", ".lp-explorer .lp-bands"),
    "its answers": (".lp-explorer input[type='range'][data-axis='tp']", ".lp-explorer .lp-answers"),
}
MOVES = 24


def measured(notebook: Notebook, control: str, picture: str) -> float:
    """The median of some moves to and fro, in ms, after two that warm up."""
    times = []
    for k in range(MOVES + 2):
        key = "ArrowRight" if k % 2 else "ArrowLeft"
        times.append(notebook.page.evaluate(PAINTED, [control, picture, key]))
        notebook.page.wait_for_timeout(250)
    return statistics.median(times[2:])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, chromium() as browser, Lab(browser) as lab:
        path = scratch_notebook(Path(folder) / "maps.ipynb", BARE, LIVE, EXPLORER)
        with lab.open(path, height=3000) as notebook:
            notebook.page.emulate_media(reduced_motion="reduce")
            for cell in range(3):
                notebook.run(cell)
            for where in WHERE.values():
                for part in where:
                    notebook.page.locator(part).first.wait_for(state="attached", timeout=90_000)
            notebook.page.wait_for_timeout(2000)
            found = {name: measured(notebook, *where) for name, where in WHERE.items()}
    for name, ms in found.items():
        print(f"{name:14}{ms:8.1f} ms {ms / found['FigureWidget']:6.2f} x a FigureWidget")


if __name__ == "__main__":
    main()
