"""Every benchmark runs, at its smallest: a script that nobody starts does not stay right."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

SMALLEST = {
    "as_printed": "--only korth22",
    "cell_flows": "--only whole",
    "cost_accuracy": "",
    "explain_accuracy": "--half even",
    "gpu": "--device cpu --small",
    "live_facts": "--only 55",
    "maps": "",
    "memory_rows": "",
    "paper_memory": "",
    "rank_flows": "--only w3",
    "recipes": "--small",
    "settings_accuracy": "",
    "table4": "",
    "unseen_slips": "--only rope-turns-back --engines local",
}


LONGER = ("maps", "recipes")
"""What takes a minute, and is left to `make deep`."""


def test_every_benchmark_is_run_somewhere():
    assert set(SMALLEST) == {path.stem for path in (ROOT / "benchmarks").glob("[!_]*.py")}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.deep if n in LONGER else pytest.mark.soak) for n in SMALLEST],
)
def test_a_benchmark_runs(name):
    command = [sys.executable, f"benchmarks/{name}.py", *SMALLEST[name].split()]
    own = os.environ | {"PYTHONPATH": "tests"}  # as `make bench` has it
    done = subprocess.run(
        command, cwd=ROOT, env=own, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
    assert "NOT OK" not in done.stdout
