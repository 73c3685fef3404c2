"""How fast the page without an install is, how big, and whom it asks, beside what is wanted of it.

    PYTHONPATH=tests .venv/bin/python benchmarks/page.py [--profiles 3] [--moves 30] [--tabs heads …]

It builds a site and serves it as any file server would. Times are taken inside the page, so that the driver's
are not in them: from the start of its navigation, and from a slider's event to the frame in which the new
picture stands. Processor seconds are of all the browser's processes, until Python is ready, and of a move. A
visit is a new start of the browser; the third one finds what two others left in its profile.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from playwright.sync_api import sync_playwright

from browser.panel import open_tab
from browser.test_site import opened, served, visiting
from test_site import building

WANTED = {
    "picture, cold": 3.0,
    "picture, third visit": 1.0,
    "Python ready, cold": 6.0,
    "Python ready, third visit": 3.0,
}
"""Seconds."""
WANTED_MOVE = 100  # ms
TABS = ["heads", "vocab", "sequence", "stages", "pipeline", "ranks", "layer", "memory", "time"]
WANTED_MB, WANTED_GZIPPED = 22, 11

MOVES = """async (moves) => {
  const panel = document.querySelector('.llamapar'), axes = ['tp', 'cp', 'pp', 'dp'];
  const sliders = axes.map((axis) => panel.querySelector(`input[data-axis=${axis}]`));
  const painted = () => new Promise((done) => {
    new MutationObserver((_, seen) => { seen.disconnect(); done(performance.now()); })
      .observe(panel, { attributes: true, attributeFilter: ['data-painted'] });
  });
  let seed = 3;
  const random = (n) => (seed = (seed * 48271) % 2147483647) % n;
  const seen = window.llamaparSeen ??= new Set();
  const took = [];
  for (let i = 0; i < moves + 4; i++) {
    let slider, to, layout;
    for (let tries = 0; tries < 1000; tries++) {
      slider = sliders[random(4)];
      to = Number(slider.value) + 2 * random(2) - 1;
      layout = sliders.map((one) => (one === slider ? to : Number(one.value)));
      if (to >= 0 && to <= 7 && layout.reduce((a, b) => a + b) <= 16 && !seen.has(`${layout}`)) break;
    }
    if (seen.has(`${layout}`)) { seen.clear(); continue; }  // a corner: no neighbour is new
    seen.add(`${layout}`);
    slider.value = String(to);
    const from = performance.now(), there = painted();
    slider.dispatchEvent(new Event('input', { bubbles: true }));
    took.push(await there - from);
    await new Promise((done) => setTimeout(done, 500));
  }
  return took.slice(4);
}"""
"""An axis at a time is doubled or halved, to a layout not seen before: nothing of it is remembered. The panel
marks the frame in which its new picture stands. The first four warm up."""

EDIT = """async (before, after) => {
  const panel = document.querySelector('.lp-watch'), text = panel.querySelector('textarea');
  const painted = new Promise((done) => {
    new MutationObserver((_, seen) => { seen.disconnect(); done(performance.now()); })
      .observe(panel, { attributes: true, attributeFilter: ['data-painted'] });
  });
  text.value = text.value.replace(before, after);
  const from = performance.now();
  text.dispatchEvent(new Event('input', { bubbles: true }));
  return (await painted - from) / 1000;
}"""
"""Seconds from a letter that is typed, the pause after it among them, to the picture of what ran again."""

SUMMED = "return row_output(partial, mesh, setting)"
EDITS = ((SUMMED, "return partial"), ("return partial", "return 2 * partial"))


def visits(
    address: str, count: int, moves: int, tabs: list[str]
) -> tuple[dict[str, list[float]], dict[str, list[float]], set[str]]:
    """Seconds by what they are of, milliseconds of moves by tab, and what was asked elsewhere."""
    times: dict[str, list[float]] = defaultdict(list)
    moved: dict[str, list[float]] = defaultdict(list)
    elsewhere: set[str] = set()

    def watch(url: str) -> None:
        if not url.startswith((address, "data:", "blob:")):
            elsewhere.add(url)

    for _ in range(count):
        with tempfile.TemporaryDirectory() as profile, sync_playwright() as playwright:
            for visit in ("cold", "second visit", "third visit"):
                with visiting(playwright.chromium, Path(profile)) as (browser, spent):
                    page = browser.new_page()
                    page.on("request", lambda request: watch(request.url))
                    time.sleep(1)  # the browser's own start
                    before = spent()
                    marks = opened(page, f"{address}explorer.html")
                    times[f"processor, {visit}"].append(spent() - before)
                    times[f"picture, {visit}"].append(marks["picture"])
                    times[f"Python ready, {visit}"].append(marks["python"])
                    for tab in tabs if visit == "third visit" else ():
                        open_tab(page.locator(".llamapar").first, tab)
                        page.wait_for_timeout(2000)
                        before = spent()
                        took = page.evaluate(MOVES, -(-moves // count))
                        moved[tab] += took
                        times[f"processor, a move in {tab}"].append((spent() - before) / len(took))
                    if visit == "third visit":
                        lesson = opened(page, f"{address}notebooks/03_attention_heads.html")
                        times["first panel of a lesson"].append(lesson["picture"])
                        times["Python ready in a lesson"].append(lesson["python"])
                        times["watch ready"].append(opened(page, f"{address}watch.html")["python"])
                        for name, (old, new) in zip(("first edit", "next edit"), EDITS, strict=True):
                            edit = f"({EDIT})({json.dumps(old)}, {json.dumps(new)})"
                            times[f"watch, {name}"].append(page.evaluate(edit))
    return times, moved, elsewhere


def sizes(site: Path) -> tuple[float, float]:
    """MB as files, and each of them gzipped."""
    files = [path.read_bytes() for path in site.rglob("*") if path.is_file()]
    return sum(map(len, files)) / 1e6, sum(len(gzip.compress(file)) for file in files) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description="The page without an install, beside what is wanted of it.")
    parser.add_argument("--profiles", type=int, default=3, help="browsers that visit three times each")
    parser.add_argument("--moves", type=int, default=30, help="in each tab")
    parser.add_argument("--tabs", nargs="+", default=TABS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        site = Path(root) / "site"
        building.build(site)
        as_files, gzipped = sizes(site)
        with served(Path(root)) as address:
            times, moved, elsewhere = visits(
                f"{address}site/", arguments.profiles, arguments.moves, arguments.tabs
            )
    busy = f"{os.getloadavg()[1]:.1f} of {os.cpu_count()}"
    print(f"processors asked for in the last five minutes, this benchmark's own among them: {busy}")
    print(f"{'':32}{'median':>8}{'worst':>8}{'wanted':>8}")
    for name in sorted(times):
        wanted = f"{WANTED[name]:8.1f}" if name in WANTED else ""
        print(f"{name + ', s':32}{statistics.median(times[name]):8.2f}{max(times[name]):8.2f}{wanted}")
    for tab, took in moved.items():
        name = f"slider to paint, {tab}, ms"
        print(f"{name:32}{statistics.median(took):8.0f}{max(took):8.0f}{WANTED_MOVE:8}")
    print(f"{'MB as files':32}{as_files:8.1f}{'':8}{WANTED_MB:8}")
    print(f"{'MB gzipped':32}{gzipped:8.1f}{'':8}{WANTED_GZIPPED:8}")
    print(f"{'other hosts asked':32}{len(elsewhere):8}{'':8}{0:8}   {' '.join(sorted(elsewhere))}")


if __name__ == "__main__":
    main()
