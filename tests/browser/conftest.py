"""One JupyterLab for the tests here; those that look at its start and end have one of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from browser.lab import Lab


@pytest.fixture(scope="package")
def lab() -> Iterator[Lab]:
    with Lab() as running:
        yield running
