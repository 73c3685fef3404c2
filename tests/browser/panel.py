"""A panel in a page, beside what its kernel has: the browser tests move one and look at the other."""

from __future__ import annotations

import ast
import html
import re
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Locator

from browser.lab import Notebook, wait_until
from llamapar.panels.controls import CLINIC, EXPLORER, TIMES

PATIENCE = 30.0
"""Seconds until a page that does not follow its kernel counts as frozen, on a machine that may be busy."""

OPEN = "(root) => root.querySelectorAll('.lp-group, .lp-copy').forEach((group) => { group.open = true; })"
ASK = """async (code) => {
    const { kernel } = window.jupyterapp.shell.currentWidget.sessionContext.session;
    const future = kernel.requestExecute({ code, store_history: false });
    let told = "None";
    future.onIOPub = ({ content }) => { told = content.data?.["text/plain"] ?? content.evalue ?? told; };
    await future.done;
    return told;
}"""
RESTART = "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
OUTSIDE = """panel => {
    const { left, right } = panel.getBoundingClientRect();
    const inside = '.lp-wide, .lp-scroll, .lp-tabs, .lp-ladder, .lp-source-box, pre, textarea';
    const scrolls = node => node !== panel && (node.matches(inside) || scrolls(node.parentElement));
    return [...panel.querySelectorAll('*')].filter(node => !scrolls(node)).filter(node => {
        const box = node.getBoundingClientRect();
        return box.width && (box.left < left - 1 || box.right > right + 1);
    }).map(node => node.className || node.tagName);
}"""
"""What sticks out of a panel, other than what scrolls in a box of its own."""
SHOWN = """(root) => {
    const text = (name) => root.querySelector(name)?.textContent ?? "";
    const all = (name) => [...root.querySelectorAll(name)];
    const typing = root.getRootNode().activeElement;
    const shown = (node) => node.matches("select") ? node.selectedOptions[0]?.text
        : node.matches("[type=checkbox]") ? String(node.checked) : node.value;
    const boxes = all("[data-control] :is(select, input:not([type=file]))").filter((node) => node !== typing);
    return {
        seq: Number(root.dataset.painted),
        status: [text(".lp-product"), text("[role=status]")].join(" ").trim(),
        sentence: text(".lp-sentence"),
        boxes: boxes.map((node) => [node.closest("[data-control]").dataset.control, node.type, shown(node)]),
        tab: all(".lp-tabs:not([hidden]) [aria-selected=true]").slice(-1).map((tab) => tab.dataset.tab),
        title: [...all(".lp-name, .lp-map-says")].find((node) => node.checkVisibility())?.textContent ?? "",
        codes: [...new Set(all(".lp-findings [data-code]").map((card) => card.dataset.code))],
        answers: all(".lp-answers b").map((part) => part.textContent),
    };
}"""
KEPT = """(lambda p, a: {
    "off": p["problem"] is not None,
    "values": p["values"], "seq": p["seq"],
    "status": " ".join(filter(None, [p["status"], p.get("gave") or p.get("about", "")])),
    "sentence": (lambda told, error: told if not p["problem"] or (
        error and error["fixes"] and str(p["problem"]["field"]) in told
    ) else "")(
        "".join(text for text, _ in p.get("sentence", [])),
        next((f for f in p.get("findings", []) if f["severity"] == "error" and not f["later"]), None),
    ),
    "steps": p.get("steps", {}),
    "title": (p["figure"] or {}).get("says")
        or (p["figure"] or {}).get("layout", {}).get("title", {}).get("text", ""),
    "codes": [each["code"] for each in p.get("findings", []) if "code" in each],
    "answers": [one["text"] for one in a.get("now", [])],
})(PANEL.get_state("payload")["payload"], PANEL.get_state().get("answers", {}))"""


def controls_of(schema: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {spec["name"]: spec for group in schema for spec in group["controls"]}


FACES = {"lp-explorer": controls_of(EXPLORER), "lp-clinic": controls_of(CLINIC)}
"""By the kind of panel and the control's name how the page is told to show it."""


def face(control: dict[str, Any], kind: str, value: Any, steps: list[int]) -> str:
    """What a control shows of a value, by the kind of its element. steps: of a slider."""
    if kind == "checkbox":
        return str(value is True).lower()
    if kind == "range":
        least = [k for k, step in enumerate(steps) if isinstance(value, int) and step <= value]
        return str(least[-1] if least else 0)
    if kind == "select-one":
        return next((title for choice, title in control["options"] if choice == value), str(value))
    return "" if value is None else f"{value:,}" if type(value) is int else str(value)


def plain(title: str) -> str:
    """The words of a plotly text."""
    return html.unescape(re.sub("<[^>]+>", "", title.replace("<br>", " ")))


def open_tab(root: Locator, tab: str) -> None:
    """By the tab of a picture; those of a step stand in the tab Time."""
    root.locator(f".lp-tabs [data-tab={'time' if tab in TIMES else tab}]").first.click()
    if tab in TIMES:
        inner = root.locator(f".lp-inner [data-tab={tab}]")
        inner.wait_for(timeout=90_000)  # a job that was just brought is still being judged on a busy machine
        inner.click()


class Panel:
    """A panel in a page, and what the kernel knows of it under the name `name`."""

    def __init__(self, notebook: Notebook, cell: int, name: str, nth: int = 0) -> None:
        self.notebook, self.name = notebook, name
        self.root = notebook.cell(cell).locator(".llamapar").nth(nth)
        self.root.evaluate(OPEN)
        self.faces = FACES[str(self.root.get_attribute("class")).split()[-1]]

    def kernel(self, code: str) -> str:
        """Run code as a cell does; its value, or what it raises, as text. PANEL is this one."""
        return str(self.notebook.page.evaluate(ASK, code.replace("PANEL", self.name)))

    def kept(self) -> dict[str, Any]:
        """What the kernel has."""
        told = self.kernel(KEPT)
        try:
            return ast.literal_eval(told)
        except (ValueError, SyntaxError):
            raise AssertionError(f"the kernel says {told}") from None

    def value(self, control: str) -> Any:
        """What the kernel has in a control."""
        return self.kept()["values"].get(control)

    def differences(self, kept: dict[str, Any]) -> list[str]:
        """What the page shows otherwise than the kernel has it."""
        page, values = self.root.evaluate(SHOWN), kept["values"]
        wrong = [
            f"{name} shows {shown!r}, not {values[name]!r}"
            for name, kind, shown in page["boxes"]
            if name in values
            and shown != face(self.faces[name], kind, values[name], kept["steps"].get(name, []))
        ]
        for part in ("seq", "status", "sentence", "answers"):
            if page[part] != kept[part]:
                wrong.append(f"{part} is {page[part]!r}, not {kept[part]!r}")
        if page["tab"] and page["tab"] != [values["tab"]]:
            wrong.append(f"tab is {page['tab']}, not {values['tab']}")
        if (
            not kept["off"]
            and values.get("tab") not in ("run", "plan")
            and page["title"] != plain(kept["title"])
        ):
            wrong.append(f"title is {page['title']!r}, not {kept['title']!r}")
        told, codes = set(kept["codes"]), set(page["codes"])
        if not codes <= told or bool(codes) != bool(told):
            wrong.append(f"findings are {page['codes']}, not {kept['codes']}")
        return wrong

    def open_tab(self, tab: str) -> None:
        """Show a picture, as a hand does."""
        open_tab(self.root, tab)

    def settle(self, control: str = "", right: Callable[[Any], bool] = lambda _: True) -> None:
        """Wait until the kernel has the right value, and the page shows what the kernel has, all of it."""
        told: list[str] = []

        def settled() -> bool:
            kept = self.kept()
            value = kept["values"].get(control)
            told[:] = self.differences(kept) if right(value) else [f"{control} is {value!r}"]
            return not told

        try:
            wait_until(settled, what="a page that shows what the kernel has", seconds=PATIENCE)
        except Exception as late:
            raise AssertionError(f"{late}; " + "; ".join(told)) from None

    def control(self, name: str, kind: str = "input[type=text]") -> Locator:
        """In the groups that are always there: those of a tab repeat some of theirs."""
        return self.root.locator(f".lp-group:not([data-tab]) [data-control={name}] {kind}").first

    @property
    def answer(self) -> Locator:
        """Where a refusal stands."""
        return self.root.locator(".lp-answer")
