"""One Chromium and one JupyterLab for the browser tests that follow one another in a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from browser.lab import Lab, chromium
from browser.panel import PATIENCE


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=1000 * PATIENCE)
    with chromium() as running:
        yield running


@pytest.fixture(scope="package")
def lab(browser: Browser) -> Iterator[Lab]:
    with Lab(browser) as running:
        yield running
