"""Styles of the panels: several stand on one page, so that a rule of one must not reach into another."""

from __future__ import annotations

import re
from collections import defaultdict
from importlib.resources import files

PANELS = {"clinic": "lp-clinic", "live": "lp-live", "box": "lp-quiz", "watch": "lp-watch"}
"""File of styles → the class of its panel; page.css is everybody's."""

_RULE = re.compile(r"([^{}]+)\{[^{}]*\}")
_CLASS = re.compile(r"\.(lp-[\w-]+)")


def open_rules(css: str, root: str) -> dict[str, set[str]]:
    """Class → the selectors that style it wherever it stands, of a file whose panel has the class `root`."""
    found = defaultdict(set)
    for selectors in _RULE.findall(re.sub(r"@[^{]+\{", "", css)):
        for selector in re.split(r",(?![^()]*\))", selectors):
            classes = _CLASS.findall(selector)
            if root not in classes and classes:
                found[classes[0]].add(selector.strip())
    return found


def test_no_panel_styles_what_another_one_has() -> None:
    read = {name: (files("llamapar.panels") / f"{name}.css").read_text("utf-8") for name in PANELS}
    rules = {name: open_rules(css, PANELS[name]) for name, css in read.items()}
    for name, own in rules.items():
        for other, theirs in read.items():
            if other != name:
                assert own.keys() & set(_CLASS.findall(theirs)) == set(), (name, other)


def test_an_open_rule_would_be_noticed() -> None:
    css = ".lp-watch .lp-at { x: 1 }\n.lp-at > b, .lp-bar { x: 1 }\n@media print { .lp-far { x: 1 } }"
    assert open_rules(css, "lp-watch") == {
        "lp-at": {".lp-at > b"},
        "lp-bar": {".lp-bar"},
        "lp-far": {".lp-far"},
    }
