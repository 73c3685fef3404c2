"""Hands that move live pictures, watched ranks and answer boxes at random, and what page and kernel must
then agree on; and what a panel must have in common with its own line of code, run anew."""

from __future__ import annotations

import json
import random
import shlex
import time
from collections.abc import Callable
from typing import Any, TypeVar

from playwright.sync_api import Locator

from browser.lab import Notebook, wait_until
from browser.panel import ASK, PATIENCE, Panel, plain
from llamapar.count.terms import GIB

TOLD = """(lambda film, p, step: [
    step.get("caption", ""), step.get("line", 0), step.get("depth", 0), p["code"], p["values"]["source"],
    bool(p["problem"]), len(film["ranks"]),
])(PANEL.film, PANEL.payload, dict(enumerate(PANEL.film["steps"])).get(AT, {}))"""
BOXES = (
    "[w for w in __import__('ipywidgets').widgets.widget._instances.values() if type(w).__name__ == 'Box']"
)
KEPT = f"__import__('json').dumps({{b.payload['question']: b.payload['seq'] for b in {BOXES}}})"
PRESS = """(root, [which, part]) => {
    const there = [...root.querySelectorAll(which)];
    const node = there[Math.floor(part * there.length)];
    if (node.matches("option")) {
        node.parentElement.value = node.value;
        node.parentElement.dispatchEvent(new Event("change", { bubbles: true }));
    } else node.click();
}"""
"""Takes one of what is there at this moment: a film that comes may have fewer steps, and other faults."""

Told = TypeVar("Told")
GUESSES = ("", "0", "48, 63", "8,192", "tp", "x", "-1", "9" * 30, "25 %")


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
    layout = f"{name}.snapshot().spec['layout']"
    code, values, chosen, said = kernel(
        notebook,
        f"[{name}.code, [str(r['value']) for r in {name}.ladder], {name}._state.rung.name, "
        f"{layout}.get('title', {{}}).get('text')]",
    )
    return bool(panel.evaluate(LIVE) == [code, values, chosen, said and plain(said)])


def move_live(notebook: Notebook, panel: Locator, name: str, draw: random.Random) -> None:
    kind = draw.choice(("rung", "rung", "rung", "key", "choose", "tick", "undo", "play", "kernel", "knob"))
    rungs = panel.locator(".lp-rung")
    if kind == "rung":
        for _ in range(draw.choice((1, 3))):  # faster than the kernel answers
            rungs.nth(draw.randrange(rungs.count())).click()
    elif kind == "key":
        panel.locator(".lp-rung[aria-checked=true]").press(
            draw.choice(("ArrowLeft", "ArrowRight", "Home", "End"))
        )
    elif kind == "knob" and panel.locator("[data-knob]").count():
        knobs = panel.locator("[data-knob]")
        rungs.nth(draw.randrange(rungs.count())).click()  # and another ladder before the kernel answers
        knobs.nth(draw.randrange(knobs.count())).click()
    elif kind == "choose" and panel.locator("select").count():
        box = panel.locator("select").first
        box.select_option(index=draw.randrange(box.locator("option").count()))
    elif kind == "tick" and panel.locator("input[type=checkbox]").count():
        panel.locator("input[type=checkbox]").first.click()
    elif kind == "undo" and panel.get_by_role("button", name="undo").is_enabled():
        panel.get_by_role("button", name="undo").click()
    elif kind == "play":
        panel.locator(".lp-play").click()
        panel.locator(".lp-play").click()
    elif kind == "kernel":  # which a picture without a model refuses
        model = draw.choice(("llama3-8b", "llama3.2-3b", "llama3.1-405b"))
        notebook.page.evaluate(ASK, f"{name}.set(model={model!r})")
    notebook.page.mouse.move(2, 2)


LIVE_ANEW = """(lambda lp, made, panel: [
    made == panel.record, lp.view(made).spec == panel.snapshot().spec, lp.view(made).summary,
])(lp, CODE, PANEL)"""


def live_anew(notebook: Notebook, panel: Locator, name: str) -> None:
    """The line of code on the page makes the record and the picture that stand there, or is refused."""
    code = panel.locator(".lp-code code").inner_text()
    told = told_by(notebook, LIVE_ANEW.replace("CODE", code).replace("PANEL", name))
    if panel.locator(".lp-rung[aria-checked=true][data-refused]").count():
        what, says = told.splitlines()[0], panel.locator(".lp-says").inner_text()
        assert what.lower() in says.lower(), f"{code}: {told}"
        return
    same, drawn, summary = eval(told)
    assert (same, drawn) == (True, True), code
    assert panel.locator(".lp-summary").text_content() == summary, code


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


def move_watch(notebook: Notebook, watched: Locator, draw: random.Random) -> None:
    kind = draw.choice(("dot", "dot", "key", "degree", "choose", "phase", "open", "cell", "undo", "edit"))
    if kind == "dot":
        watched.evaluate(PRESS, [".lp-dot", draw.random()])
    elif kind == "key":
        watched.locator(".lp-dot[aria-current]").press(draw.choice(("ArrowLeft", "ArrowRight", "End")))
    elif kind == "degree":
        axis = draw.choice(("tp", "cp"))
        watched.locator(f"[data-control={axis}] [role=radio]").nth(draw.randrange(2)).click()
    elif kind == "choose":
        name = draw.choice(("program", "case"))
        watched.evaluate(PRESS, [f"[data-control={name}] option", draw.random()])
    elif kind == "phase":
        watched.locator("[data-control=phase] [role=radio]").nth(draw.randrange(2)).click()
    elif kind == "open" and watched.locator(".lp-inner").is_visible():
        watched.locator(".lp-inner").click()
    elif kind == "cell" and (pictures := watched.locator(".lp-values").count()):
        which = draw.randrange(min(2, pictures))
        watched.locator(".lp-values").nth(which).hover(position={"x": 3, "y": 3})
    elif kind == "undo" and watched.get_by_role("button", name="undo").is_enabled():
        watched.get_by_role("button", name="undo").click()
    elif kind == "edit":
        box = watched.locator("textarea")
        text = box.input_value()
        box.fill(draw.choice((text + ")", text.replace("return ", "return 2 * ", 1), text.rstrip(")"))))
        notebook.page.wait_for_timeout(700)  # a pause in typing


WATCH_ANEW = """(lambda old, new: (old.payload["values"]["source"] and new.set(
    source=old.payload["values"]["source"]), [
    bool(old.payload["problem"]) or old.film == new.film, old.payload["problem"] == new.payload["problem"],
    old.payload["verdict"] == new.payload["verdict"]], new.close())[1])(PANEL, CODE)"""


def watch_anew(notebook: Notebook, watched: Locator, name: str) -> None:
    """The line of code on the page, and then the source as edited, makes the same film, or fails the same."""
    code = watched.locator(".lp-code code").inner_text()
    told = told_by(notebook, WATCH_ANEW.replace("CODE", code).replace("PANEL", name))
    assert told == "[True, True, True]", f"{code}: {told}"


# -- answer boxes ------------------------------------------------------------------------------


BOX_ANEW = """(lambda b, v: [
    b.payload["seq"], b.payload["hints"],
    "" if v is None else v.says if v.value is None else b._state.asked.judge(v.value).says,
])(PANEL, PANEL.verdict)"""


def box_anew(notebook: Notebook, panel: Locator, name: str) -> None:
    """The box shows its hints, and of the guess that stands there what a judge says of it now."""

    says = panel.locator(".lp-verdict").text_content()
    hints = panel.locator(".lp-hints li").all_text_contents()
    painted = int(str(panel.get_attribute("data-painted")))
    shown, kept = [painted, hints, says], kernel(notebook, BOX_ANEW.replace("PANEL", name))
    assert shown == kept, f"the box shows {shown}, not {kept}"


def settle_boxes(notebook: Notebook) -> None:
    """Wait until each box shows its kernel's last payload."""

    def agree() -> bool:
        painted = notebook.page.locator(".lp-quiz").evaluate_all(
            "all => all.map(b => [b.querySelector('h3').textContent, Number(b.dataset.painted)])"
        )
        return bool(json.loads(kernel(notebook, KEPT)) == dict(painted))

    wait_until(agree, what="boxes agree with their kernel")


def move_box(panel: Locator, draw: random.Random) -> None:
    kinds = {"typed": ".lp-typed", "choice": ".lp-choice", "slot": ".lp-slot", "thing": ".lp-thing"}
    kinds |= {"hint": ".lp-hint:visible", "check": ".lp-check:enabled", "up": ".lp-give-up:visible"}
    there = [kind for kind, name in kinds.items() if panel.locator(name).count()]
    kind = draw.choice(there)
    nodes = panel.locator(kinds[kind])
    if kind == "typed":
        nodes.first.fill(draw.choice(GUESSES))
        nodes.first.press(draw.choice(("Enter", "Tab")))
        return
    for _ in range(draw.choice((1, 3)) if kind in ("slot", "choice") else 1):  # faster than answers
        if many := nodes.count():  # else an answer came meanwhile, and took it away
            nodes.nth(draw.randrange(many)).click()


# -- the Explorer beside the command ---------------------------------------------------------------

FOUND = """root => {
    const line = one => [one.querySelector("b"), one.querySelector(".lp-what"),
        one.querySelector(":scope > .lp-fix > button")].map(node => node?.textContent ?? "");
    return [root.querySelector(".lp-status").dataset.ok, root.querySelector(".lp-state").value,
        root.querySelector(".lp-unfold").textContent,
        [...root.querySelectorAll(".lp-findings .lp-line.lp-one")].map(one =>
            [one.querySelector(".lp-mark").title, ...line(one)])];
}"""
ASKED = """(lambda p: [p.line, bool(p.payload["problem"]), p.offered.get("fixes", []), p.payload["findings"],
    [a["text"] for a in p.answers["now"]]])(PANEL)"""
PARTS = ("code", "severity", "message", "why")
ENDS = ("low_bytes", "high_bytes")
Run = Callable[[str | list[str]], tuple[int, str, str]]


def check_agrees(panel: Panel, run: Run) -> bool:
    """What `llamapar check` and `llamapar memory` say of the panel's line; False where it has none.

    Status, findings and fixes are those of the panel and of its page, and so are the bytes.
    """
    asked = kernel(panel.notebook, ASKED.replace("PANEL", panel.name))
    line, problem, offered, findings, answers = asked
    ok, shown, many, lines = panel.root.evaluate(FOUND)
    refused = panel.answer.inner_text()  # a line that is refused stands in its box, to be mended
    assert shown == line or refused, f"the page shows the line {shown!r}, not {line!r}"
    if not line:
        return False
    words = shlex.split(line)[1:]
    status, out, err = run([*words, "--json"])
    assert not err, f"{line}: {err}"
    told = json.loads(out)
    assert status == 1 - told["ok"]
    assert (ok != "no") == (told["ok"] and not problem), f"{line}: the status is {ok}"
    count = len(told["findings"])
    assert many == f"{count} finding{'s' * (count != 1)}", line
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
        assert button in ["", *best[severity, code, message]], f"{line}: {button}"
    if "--seq-len" in words:
        memory = json.loads(run(["memory", *words[1:], "--json"])[1])
        ends = ["not known"] if "error" in memory else [f"{memory[end] / GIB:.1f}" for end in ENDS]
        assert all(end in answers[1] for end in ends), f"{line}: {answers[1]}, not {ends}"
    return True
