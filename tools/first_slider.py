"""Author's tool: the seconds from a fresh clone to the first slider that moves, phase by phase.

python3 tools/first_slider.py [REPOSITORY] [FOLDER]

Clones REPOSITORY (this one) to FOLDER (a new one), makes the environment there as `make lab` does, opens the
first notebook in JupyterLab and Chromium, runs its first cell and presses a key on TP's slider. pip's cache
is used as it is.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent

WALK = """
import sys, time
sys.path.insert(0, "tests")
from browser.lab import Lab
from playwright.sync_api import expect

begun = time.monotonic()

def lap(what):
    global begun
    now = time.monotonic()
    print(f"{what}|{now - begun:.1f}", flush=True)
    begun = now

with Lab() as lab:
    lap("JupyterLab answers")
    with lab.open("notebooks/00_start_here.ipynb") as notebook:
        lap("the notebook is open")
        notebook.run("panel = lp.explorer(")
        panel = notebook.cell("panel = lp.explorer(").locator(".llamapar")
        panel.locator(".lp-map").first.wait_for()
        lap("the Explorer is drawn")
        panel.get_by_label("TP, in steps").press("ArrowRight")
        expect(panel.get_by_role("status")).to_contain_text("DP went from")
        lap("a slider has moved")
"""


def lap(what: str, *words: str, folder: Path) -> float:
    """Runs a command; prints and returns its seconds."""
    begun = time.monotonic()
    subprocess.run(words, cwd=folder, check=True)
    took = time.monotonic() - begun
    print(f"{what:30} {took:7.1f} s", flush=True)
    return took


def main(repository: str = str(PROJECT), folder: str = "") -> None:
    clone = Path(folder or tempfile.mkdtemp(prefix="llamapar-clone-")) / "llamapar"
    clone.parent.mkdir(parents=True, exist_ok=True)
    total = lap("git clone", "git", "clone", "-q", repository, str(clone), folder=clone.parent)
    total += lap("make lab installs", "make", "-s", ".venv/.lab-installed", folder=clone)
    # What drives the browser is no part of `make lab`: it is installed outside the count.
    lap("(the browser's driver)", "make", "-s", ".venv/.test-installed", folder=clone)
    walked = subprocess.run(
        [".venv/bin/python", "-c", WALK], cwd=clone, check=True, stdout=subprocess.PIPE, text=True
    )
    for line in walked.stdout.splitlines():
        what, seconds = line.split("|")
        print(f"{what:30} {float(seconds):7.1f} s")
        total += float(seconds)
    print(f"{'all':30} {total:7.1f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
