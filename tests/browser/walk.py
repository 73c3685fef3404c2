"""A hand that moves at random, by a seed: what a kernel changes, and what a person does in a panel."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

from playwright.sync_api import Locator, TimeoutError

from browser.panel import PATIENCE, Panel
from llamapar.describe.jobs import JOBS
from llamapar.panels.controls import EXPLORER, TABS
from test_bringing import FILES
from wire import EIGHT_KV_HEADS

OPENED = """\
import llamapar as lp
panel = lp.explorer("llama3.1-405b", tp=8, pp=16, dp=128, zero=2, seq_len=8192)
start = dict(panel.payload["values"])
panel"""
"""A cell whose panel a walk brings back to its start."""

CONFIG = {"name": "config.json", "mimeType": "application/json"}
GOOD_CONFIG: Any = {**CONFIG, "buffer": json.dumps(EIGHT_KV_HEADS).encode()}
BAD_CONFIG: Any = {**CONFIG, "buffer": b"{"}
SETTINGS: Any = {**CONFIG, "name": "train.toml", "buffer": FILES[0][1].encode()}

# -- what the kernel changes -----------------------------------------------------------------------

KERNEL = {
    "set": "PANEL.set(tp=DRAWN, cp=OTHER)",
    "wrong": "PANEL.set(tp=0)",
    "model": "PANEL.set(preset='llama3.1-8b', tp=DRAWN, pp=1, dp=OTHER)",
    "job": "PANEL.set(job='PUBLISHED')",
    "load": f"PANEL.set(model={EIGHT_KV_HEADS!r})",
    "files": f"from llamapar.configs.reader import settings_of_texts as read\nPANEL.bring(read({FILES!r}))",
    "line": "PANEL.restore('llamapar check llama3-70b --tp 8 --pp 4 --dp DRAWN --seq-len 8192')",
    "fix": "PANEL.set(tp=16); PANEL.apply_fix(0, 0)",
    "remedy": "PANEL.set(tab='memory', micro_batch=2); PANEL.apply_remedy(0)",
    "steps": "PANEL.pin(); PANEL.set(tp=DRAWN); PANEL.undo(); PANEL.swap(); PANEL.redo()",
    "reset": "PANEL.set(dp=OTHER); PANEL.reset()",
}
"""By its kind, as code; what stands in capitals is drawn."""

# -- what a hand does ------------------------------------------------------------------------------

Draw = random.Random
NUMBERS = ("", *(str(2**k) for k in range(8)), "3", "12", "0", "-1", "2.5", "8k", "1,024", "x", "9" * 20)
TEXTS = ("", "8192", "1000, 5000, 2192", "x, y", "0")
LINES = ("llamapar check llama3-8b --tp 4 --dp 2", "lp.check('tiny', tp=2)", "no line at all", "")
KEYS = ("ArrowRight", "ArrowLeft", "Home", "End", "PageUp")


def slide(box: Locator, draw: Draw) -> None:
    """As any hand on a control: first what changes nothing, and at once after it what does."""
    box.dispatch_event("input")
    box.press(draw.choice(KEYS))


def type_in(box: Locator, draw: Draw) -> None:
    if box.is_hidden():  # the step of a ring, where there is none
        return
    box.press("Enter")
    box.fill(draw.choice(TEXTS if box.get_attribute("list") else NUMBERS))
    box.press(draw.choice(("Enter", "Tab")))


def choose(box: Locator, draw: Draw) -> None:
    box.dispatch_event("change")
    box.select_option(index=draw.randrange(box.locator("option").count()))


def tick(box: Locator, _: Draw) -> None:
    box.dispatch_event("change")
    box.click()


KINDS: dict[str, list[tuple[str, Callable[[Locator, Draw], None]]]] = {
    "slider": [("input[type=range]", slide), ("input[type=text]", type_in)],
    "int": [("input[type=text]", type_in)],
    "text": [("input[type=text]", type_in)],
    "choice": [("select", choose)],
    "bool": [("input", tick)],
}
Act = tuple[str, str, str, Callable[[Panel, Locator, Draw], None]]
"""What it is called, the tab that it needs or "", where it is done, and how."""


def controls(schema: list[dict[str, Any]]) -> Iterator[Act]:
    """Every control in each group that shows it."""
    for group in schema:
        for spec in group["controls"]:
            for element, touch in KINDS[spec["kind"]]:
                row = f"[data-control={spec['name']}]:has([id$='-{group['group']}-{spec['name']}']) {element}"
                name = f"{group['group']}: {spec['name']} {touch.__name__}"
                yield name, str(group.get("tab", "")), row, lambda _, box, draw, touch=touch: touch(box, draw)  # type: ignore[misc]


PRESSED: Counter[str] = Counter()
"""How often each button was, over all walks of a process: the least pressed one is next."""

BUTTONS = """(root) => [...root.querySelectorAll("button:not([role=tab])")].map((node, k) => [k,
    node.offsetParent && !node.disabled && !node.closest("[inert]"),
    node.dataset.step ?? node.dataset.opens ?? (node.title || node.textContent)]).filter((one) => one[1])"""


def press(panel: Panel, root: Locator, draw: Draw) -> None:
    """The button that was pressed least of those that can be; one that is gone by then is missed."""
    there = [(PRESSED[what], draw.random(), k, what) for k, _, what in root.evaluate(BUTTONS)]
    _, _, at, what = min(there)
    PRESSED[what] += 1
    button = root.locator("button:not([role=tab])").nth(at)
    try:
        button.click(timeout=1000 * PATIENCE / 2)
    except TimeoutError:
        if button.is_visible() and button.is_enabled():
            raise


def unfold(panel: Panel, root: Locator, draw: Draw) -> None:
    """Any fold beside the controls, opened or shut, but of an answer that no longer holds."""
    folds = root.locator(".lp-main summary:visible:not([inert] *)")
    if folds.count():
        folds.nth(draw.randrange(folds.count())).click()


PLACE = """(root, [drawn, x, y]) => {
    const axes = [...root.querySelectorAll(".lp-plot .nsewdrag, .lp-map[role=group]")]
        .filter((node) => node.getClientRects().length);
    if (!axes.length) return null;
    const one = axes[Math.floor(drawn * axes.length)];
    one.scrollIntoView({ block: "nearest" });
    const box = one.getBoundingClientRect();
    return [box.left + x * box.width, box.top + y * box.height];
}"""
"""Where in the page a place in one of the shown axes is, in one step: a picture may be gone in the next."""


def point(panel: Panel, root: Locator, draw: Draw) -> None:
    """A place in the picture, looked at and clicked, as a hand does it: whatever stands there by then."""
    place = root.evaluate(PLACE, [draw.random() for _ in range(3)])
    if place is None:  # refused, or not run
        return
    panel.notebook.page.mouse.move(*place)
    panel.notebook.page.mouse.click(*place)


def bring(panel: Panel, chooser: Locator, draw: Draw) -> None:
    chooser.set_input_files(draw.choice((SETTINGS, GOOD_CONFIG, BAD_CONFIG)))


def paste(panel: Panel, box: Locator, draw: Draw) -> None:
    box.fill(draw.choice((FILES[0][1], "x", "")))
    panel.root.get_by_role("button", name="Read", exact=True).click()


def restore(panel: Panel, box: Locator, draw: Draw) -> None:
    box.fill(draw.choice(LINES))
    box.press("Enter")
    box.blur()


def walk_tabs(panel: Panel, tab: Locator, draw: Draw) -> None:
    tab.press(draw.choice(KEYS[:2]))


def acts() -> list[Act]:
    """All that a hand can do in an Explorer."""
    others: list[Act] = [
        ("own files", "", ".lp-own input[type=file]", bring),
        ("own text", "", ".lp-own textarea", paste),
        ("line", "", ".lp-state", restore),
        ("keys in the tabs", "", ".lp-tabs [aria-selected=true]", walk_tabs),
        ("keys in a step's", "layer", ".lp-inner [aria-selected=true]", walk_tabs),
    ]
    for tab in TABS:
        others += [(f"{act.__name__} in {tab}", tab, "", act) for act in (press, press, unfold, point)]
    return [*controls(EXPLORER), *others]


# -- the walk --------------------------------------------------------------------------------------


class Walk:
    """Moves in a panel, each followed by a look at whether page and kernel agree.

    also: what else must hold after a move.
    """

    def __init__(self, panel: Panel, seed: int, also: Callable[[Panel], object] = lambda _: None) -> None:
        self.panel, self.draw, self.also = panel, random.Random(seed), also
        self.moves, self.seconds = 0, 0.0
        self.slowest = (0.0, "")
        self.before: list[str] = []
        """What was done since the panel last stood as at first."""

    def move(self, what: str, do: Callable[[], object]) -> None:
        """One move, and what must hold after any."""
        self.before.append(what)
        begun = time.monotonic()
        try:
            do()
            self.panel.settle()
            refused = self.panel.answer.inner_text()
            assert "no answer" not in refused, refused
            assert "not done" not in refused, refused
            self.also(self.panel)
        except Exception as failed:
            raise AssertionError(f"move {self.moves}, {' → '.join(self.before)}: {failed}") from failed
        self.moves += 1
        took = time.monotonic() - begun
        self.seconds += took
        self.slowest = max(self.slowest, (took, what))

    def change(self, kind: str) -> None:
        """As a cell does; a change that is refused leaves all as it was."""
        code = KERNEL[kind].replace("PUBLISHED", self.draw.choice(("", *JOBS)))
        for name in ("DRAWN", "OTHER"):
            code = code.replace(name, str(2 ** self.draw.randrange(5)))
        self.move(kind, lambda: self.panel.kernel(code))

    def act(self, act: Act) -> None:
        name, tab, where, do = act
        if tab and self.panel.value("tab") != tab:
            self.move(f"tab {tab}", lambda: self.panel.open_tab(tab))
        place = self.panel.root.locator(where).first if where else self.panel.root
        self.move(name, lambda: do(self.panel, place, self.draw))

    def go(self, moves: int) -> None:
        """Every act after every change of the kernel, in an order of the seed's, until so many were made."""
        pairs = list(product(KERNEL, acts()))
        self.draw.shuffle(pairs)
        for change, act in pairs:
            if self.moves >= moves:
                break
            if self.draw.random() < 0.5:
                self.panel.kernel("PANEL.cancel()\nPANEL.set(**start)")
                self.before.clear()
            self.change(change)
            self.act(act)

    def __str__(self) -> str:
        seconds, what = self.slowest
        return f"{self.moves} moves in {self.seconds:.0f} s; the slowest, {what}, {seconds:.1f} s"
