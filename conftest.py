"""What holds for tests and notebooks alike: a reader's progress is neither shown nor kept, and a picture
that is stored under a folded answer is compared by what it was drawn from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ["LLAMAPAR_PROGRESS"] = "off"
os.environ.pop("COLUMNS", None)  # the command follows it, and pytest-xdist sets it for its workers


def pytest_configure(config: pytest.Config) -> None:
    if getattr(config.option, "nbval_sanitize_with", "no nbval") is None:
        config.option.nbval_sanitize_with = str(Path(__file__).parent / "tests" / "data" / "nbval.cfg")
