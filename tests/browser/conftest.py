"""One JupyterLab for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from browser.lab import Lab


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab() as running:
        yield running
