"""What a live picture, watched ranks and the Explorer show on the page, beside what their kernel holds."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from typing import Any, TypeVar

from playwright.sync_api import Locator

from browser.lab import Notebook
from browser.panel import ASK, PATIENCE, Panel, plain
from llamapar.count.terms import GIB

TOLD = """(lambda film, p, step: [
    step.get("caption", ""), step.get("line", 0), step.get("depth", 0), p["code"], p["values"]["source"],
    bool(p["problem"]), len(film["ranks"]),
])(PANEL.film, PANEL.payload, dict(enumerate(PANEL.film["steps"])).get(AT, {}))"""

Told = TypeVar("Told")


def kernel(notebook: Notebook, code: str) -> Any:
    """What the kernel answers, a literal."""
    return eval(told_by(notebook, code))


def told_by(notebook: Notebook, code: str) -> str:
    """What the kernel answers, or the error that it raises, in words."""
    return str(notebook.page.evaluate(ASK, code))


def in_time(compare: Callable[[], Told]) -> Told:
    """What comes of a comparison that may raise while a move is still on its way to the kernel and back."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return compare()
        except AssertionError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


# -- live pictures -----------------------------------------------------------------------------


LIVE = """panel => {
    const text = name => panel.querySelector(name)?.innerText ?? null;
    const title = panel.querySelector(".lp-name");
    return [text(".lp-code code"), [...panel.querySelectorAll(".lp-rung")].map(rung => rung.dataset.value),
        text(".lp-rung[aria-checked=true] b"), title?.getClientRects().length ? title.innerText : null];
}"""


def live_agrees(notebook: Notebook, panel: Locator, name: str) -> bool:
    """The code, the rungs, the chosen one, and the picture's title. name: of the panel, in the kernel."""
    layout = f"{name}.snapshot().spec.get('layout', {{}})"
    code, values, chosen, said = kernel(
        notebook,
        f"[{name}.code, [str(r['value']) for r in {name}.ladder], {name}._state.rung.name, "
        f"{layout}.get('title', {{}}).get('text')]",
    )
    return bool(panel.evaluate(LIVE) == [code, values, chosen, said and plain(said)])


# -- watched ranks -----------------------------------------------------------------------------


WATCHED = """panel => {
    const one = name => panel.querySelector(name);
    return [panel.dataset.step ?? "0", one(".lp-caption > p")?.innerText,
        Number(one(".lp-copy-of-source > [data-runs]")?.dataset.line ?? 0), one(".lp-code code")?.innerText,
        one("textarea")?.value, Boolean(one(".lp-problem")), panel.querySelectorAll(".lp-tile").length];
}"""


def watch_agrees(notebook: Notebook, watched: Locator, name: str) -> bool:
    """Caption, line, code, source, ranks. name: of the panel, in the kernel."""
    step, *shown = watched.evaluate(WATCHED)
    told = TOLD.replace("PANEL", name).replace("AT", step)
    caption, line, depth, call, source, problem, ranks = kernel(notebook, told)
    if depth:  # the line that called the helper is marked
        shown[1] = line
    return shown == [caption.replace("`", ""), line, call, source, problem, ranks]


# -- the Explorer beside the command ---------------------------------------------------------------

FOUND = """root => {
    const line = one => [one.querySelector("b"), one.querySelector(".lp-what"),
        one.querySelector(":scope > .lp-fix > button")].map(node => node?.textContent ?? "");
    return [root.querySelector(".lp-state").value,
        root.querySelector(".lp-found > summary").textContent,
        [...root.querySelectorAll(".lp-findings .lp-line.lp-one")].map(one =>
            [one.querySelector(".lp-mark").title, ...line(one)])];
}"""
ASKED = """(lambda p: [p.line, [[fix.text, 0] for fix in p.remedies], p.payload["findings"],
    [a["text"] + a["note"] for a in p.answers["now"]]])(PANEL)"""
PARTS = ("code", "severity", "message", "why")
ENDS = ("low_bytes", "high_bytes")
Run = Callable[[str | list[str]], tuple[int, str, str]]


def check_agrees(panel: Panel, run: Run) -> bool:
    """What `llamapar check` and `llamapar memory` say of the panel's line; False where it has none.

    Findings and fixes are those of the panel and of its page, and so are the bytes.
    """
    asked = kernel(panel.notebook, ASKED.replace("PANEL", panel.name))
    line, offered, findings, answers = asked
    shown, many, lines = panel.root.evaluate(FOUND)
    refused = panel.answer.inner_text()  # a line that is refused stands in its box, to be mended
    assert shown == line or refused, f"the page shows the line {shown!r}, not {line!r}"
    if not line:
        return False
    words = shlex.split(line)[1:]
    status, out, err = run([*words, "--json"])
    assert not err, f"{line}: {err}"
    told = json.loads(out)
    assert status == 1 - told["ok"]
    assert told["ok"] == ("error" not in [severity for severity, *_ in lines]), line
    count = len(told["findings"])
    assert many == (f"{count} finding{'s' * (count != 1)}" if count else "no findings"), line
    own, theirs = ([[f[name] for name in PARTS] for f in each] for each in (findings, told["findings"]))
    assert own == theirs, line
    fixes = [[fix["text"] for fix in f["fixes"]] for f in told["findings"]]
    for finding, texts in zip(findings, fixes, strict=True):
        here = offered if finding["later"] else finding["fixes"]
        assert [text for text, _ in here] == texts, f"{line}: {here}"
    best = {
        (f["severity"], f["code"], f["message"]): texts[:1] for f, texts in zip(findings, fixes, strict=True)
    }
    for severity, code, message, button in lines:
        assert (severity, code, message) in best, f"{line}: {message}"  # a page one payload late: asked again
        assert button in ["", *best[severity, code, message]], f"{line}: {button}"
    if "--seq-len" in words:
        memory = json.loads(run(["memory", *words[1:], "--json"])[1])
        ends = ["not known"] if "error" in memory else [f"{memory[end] / GIB:.1f}" for end in ENDS]
        assert all(end in answers[1] for end in ends), f"{line}: {answers[1]}, not {ends}"
    return True
