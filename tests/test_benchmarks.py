"""Every benchmark runs, at its smallest: a script that nobody starts does not stay right."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
BROWSER = pytest.mark.browser

SMALLEST = {
    "as_printed": "--only korth22",
    "checkpoint": "--small --runs 1",
    "cost_accuracy": "",
    "execute": "--repeats 1 --programs attention",
    "explain_accuracy": "--half even",
    "explorer": "--moves 2 --openings 1",
    "gpu": "--device cpu --small",
    "experiments": "--only 26",
    "live_facts": "--only 55",
    "memory_rows": "",
    "paper_memory": "",
    "page": "--profiles 1 --moves 1 --tabs heads",
    "recipes": "--small",
    "settings_accuracy": "",
    "table4": "",
    "unseen_slips": "--only rope-turns-back --engines local",
}
IN_A_BROWSER = ("explorer", "page")
"""They take minutes at their smallest, so `make deep` runs them."""


def test_every_benchmark_is_run_somewhere() -> None:
    assert set(SMALLEST) == {path.stem for path in (ROOT / "benchmarks").glob("[!_]*.py")}


def _parameter(name: str) -> Any:
    marks = [pytest.mark.deep, BROWSER] if name in IN_A_BROWSER else [pytest.mark.soak]
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", [_parameter(name) for name in SMALLEST])
def test_a_benchmark_runs(name: str) -> None:
    command = [sys.executable, f"benchmarks/{name}.py", *SMALLEST[name].split()]
    own = os.environ | {"PYTHONPATH": "tests"}  # as `make bench` has it
    done = subprocess.run(
        command, cwd=ROOT, env=own, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
    assert "NOT OK" not in done.stdout
