"""The project works in a folder of any name: some of its tests are run in a copy with an awkward one.

The name of a folder stands in tracebacks, command lines, settings and addresses. These tests read them.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
NAME = "llamapar travail-été"
"""The package's name, which `git clone` gives the folder too; a space; a letter that is not ASCII."""

TESTS = [
    "tests/test_pool.py::test_the_first_to_raise_is_told_from_those_that_wait",
    "tests/test_environment.py::test_jupyter_knows_the_project_and_not_the_user",
]


@pytest.mark.soak
def test_in_a_folder_with_an_awkward_name(tmp_path):
    copy = tmp_path / NAME
    generated = shutil.ignore_patterns(".*", "__pycache__")
    shutil.copytree(PROJECT, copy, ignore=lambda folder, names: generated(folder, names) - {".ci"})
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS],
        cwd=copy,
        env=environment | {"PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
