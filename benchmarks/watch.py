"""How fast ranks are watched in a real JupyterLab, beside `lp.run` of the same program in the same kernel.

    PYTHONPATH=tests .venv/bin/python benchmarks/watch.py [--tp 8] [--repeats 10]

Ready: from running the cell, in a kernel that has watched before, to the first painted tiles. Edit: from the
last key of an edit to the new film, less the pause in typing that the panel waits for. Step: from a key press
to the end of the drawing, and to the frame after it. The reference is `lp.run("attention", …)` on as many
ranks, forward and backward, in that kernel.
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
import time
from pathlib import Path

from browser.hands import kernel
from browser.lab import Lab, scratch_notebook

OPENS = "import llamapar as lp\nlp.watch('attention', tp={tp}, data='teaching')"
REFERENCE = """(lambda time, lp: [
    (lambda begun: (lp.run('attention', lp.model('tiny').replace(n_heads={heads}, n_kv_heads={tp}), tp={tp},
        seq_len=16, dtype='float64', device='cpu'), time.perf_counter() - begun)[1])(time.perf_counter())
    for _ in range({repeats})])(__import__('time'), __import__('llamapar'))"""

STAMP = """() => {
  const panel = document.querySelector('.lp-watch');
  window.llamaparBench = {};
  const at = window.llamaparBench;
  new MutationObserver((all) => {
    for (const { attributeName } of all) {
      if (attributeName === 'data-step') at.drawn = performance.now();
      if (attributeName === 'data-painted') at.film = performance.now();
    }
    requestAnimationFrame(() => { at.frame = performance.now(); });
  }).observe(panel, { attributes: true });
  document.addEventListener('keydown', () => {
    at.from = performance.now();
    at.drawn = at.frame = undefined;
  }, true);
  panel.querySelector('textarea').addEventListener('input', () => {
    at.typed = performance.now();
    at.film = undefined;
  });
}"""
TOOK = "() => { const { from, drawn, frame } = window.llamaparBench; return [drawn - from, frame - from]; }"
KEYS = ("End", "ArrowLeft", "ArrowLeft", "Home", "ArrowRight", "ArrowRight")


PANELS = Path(__file__).resolve().parent.parent / "llamapar" / "panels"
PAUSE = int(re.findall(r"PAUSE = (\d+)", (PANELS / "editor.js").read_text())[0])


def row(name: str, values: list[float], unit: str) -> float:
    """Prints one line of the table; returns the median."""
    ordered = sorted(values)
    p95 = ordered[round(0.95 * (len(ordered) - 1))]
    print(f"{name:44} {statistics.median(values):8.1f} {p95:8.1f}  {unit} (n={len(values)})")
    return statistics.median(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tp", type=int, default=8, help="ranks that are watched")
    parser.add_argument("--repeats", type=int, default=10)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, Lab() as lab:
        path = scratch_notebook(Path(name) / "watch.ipynb", OPENS.format(tp=given.tp))
        with lab.open(path, height=2000) as notebook:
            page = notebook.page
            panel = page.locator(".lp-watch")
            notebook.run(0)
            panel.locator(".lp-tile canvas").first.wait_for(timeout=60_000)
            ready = []
            for _ in range(given.repeats):
                page.evaluate("() => document.querySelector('.lp-watch').remove()")
                begun = time.monotonic()
                page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-cell'); }")
                panel.locator(".lp-tile canvas").first.wait_for(timeout=60_000)
                ready.append(1e3 * (time.monotonic() - begun))
            page.evaluate(STAMP)
            drawn, frames = [], []
            dot = panel.locator(".lp-dot[aria-current]")
            for i in range(4 * given.repeats):
                dot.focus()
                page.keyboard.press(KEYS[i % len(KEYS)])
                page.wait_for_function("() => window.llamaparBench.frame !== undefined")
                took = page.evaluate(TOOK)
                drawn.append(took[0])
                frames.append(took[1])
            edits = []
            box = panel.locator("textarea")
            whole = box.input_value()
            for i in range(given.repeats):
                changed = whole.replace("heads.flatten(2)", f"{i + 2} * heads.flatten(2)")
                box.fill(changed)
                page.wait_for_function("() => window.llamaparBench.film !== undefined", timeout=30_000)
                took = page.evaluate("() => window.llamaparBench.film - window.llamaparBench.typed")
                edits.append(took - PAUSE)
            reference = REFERENCE.format(tp=given.tp, heads=2 * given.tp, repeats=given.repeats + 2)
            runs = [1e3 * took for took in kernel(notebook, reference)[2:]]
            print(f"{'attention, tp=' + str(given.tp):44} {'median':>8} {'p95':>8}")
            base = row("lp.run, the reference", runs, "ms")
            first = row("ready (asked 1,000)", ready, "ms")
            edit = row(f"an edit, after {PAUSE} ms of pause (asked 500)", edits, "ms")
            row("a step, its drawing (one frame is 16.7)", drawn, "ms")
            row("a step, to the frame after it", frames, "ms")
            print(f"ratios to lp.run: ready {first / base:.2f}, an edit {edit / base:.2f}")
            print(f"errors in the console: {len(notebook.console_errors())}")


if __name__ == "__main__":
    main()
