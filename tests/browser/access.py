"""What axe-core calls serious in a panel, and what the Tab key reaches there."""

from __future__ import annotations

from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator

from browser.lab import Notebook

OPTIONS: dict[str, Any] = {"resultTypes": ["violations"]}
MOST_STOPS = 400
"""Presses of Tab after which a panel counts as one that does not let the focus go."""

STOPS = """root => {
    const controls = "button, input, select, textarea, summary, a[href], [tabindex]";
    const seen = [...root.querySelectorAll(controls)].filter(node =>
        node.checkVisibility({ visibilityProperty: true }) && !node.disabled && !node.closest("[inert]"));
    const grouped = "[role=radiogroup], [role=tablist], .lp-board, .lp-dots"; // the arrow keys walk these
    window.llamaparStops = seen.filter(node => node.tabIndex >= 0);
    const lost = seen.filter(node => node.tabIndex < 0 && !node.closest(grouped)
        && node.matches("button, input, select"));
    window.llamaparStops[0]?.focus();
    return [window.llamaparStops.length, lost.map(node => node.outerHTML.slice(0, 120))];
}"""
AT = """root => {
    const active = document.activeElement;
    return root.contains(active) ? window.llamaparStops.indexOf(active) : null;
}"""
MISSED = """(_, reached) => window.llamaparStops
    .filter((node, at) => !reached.includes(at) && node.checkVisibility() && !node.disabled)
    .map(node => node.outerHTML.slice(0, 120))"""
"""A button that can no longer be pressed, of a search that has ended, is not missed."""


def serious(notebook: Notebook, include: str = ".llamapar") -> list[str]:
    """What axe-core calls serious or critical of the panels."""
    found = Axe().run(notebook.page, context={"include": [[include]]}, options=OPTIONS).response
    return [
        f"{one['id']}: {node['target']}: {node['html'][:160]}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


def unreached(root: Locator) -> list[str]:
    """Controls that neither Tab nor, in a group, the arrow keys reach; and a Tab that never leaves."""
    many, lost = root.evaluate(STOPS)
    reached = {root.evaluate(AT)} if many else set()
    for _ in range(MOST_STOPS):
        root.page.keyboard.press("Tab")
        at = root.evaluate(AT)
        if at is None:
            break
        reached.add(at)
    else:
        lost.append(f"Tab stays in the panel for {MOST_STOPS} presses")
    return [*lost, *root.evaluate(MISSED, sorted(reached - {None}))]
