"""Styles of the panels: several stand on one page, so that a rule of one must not reach into another."""

import re
from importlib.resources import files

PANELS = {"clinic": "lp-clinic", "live": "lp-live", "box": "lp-quiz", "watch": "lp-watch"}
PANELS |= {"explorer": "lp-explorer"}
"""File of styles → the class of its panel; page.css is everybody's."""


def outside(css, root):
    """The selectors of a file that are not nested in the rule of the class `root`."""
    depth, found = 0, []
    for before, brace in re.findall(r"([^{}]*)([{}])", re.sub(r"/\*.*?\*/", "", css)):
        if brace == "{" and depth == 0 and before.strip() != f".{root}":
            found.append(before.strip())
        depth += 1 if brace == "{" else -1
    return found


def test_no_panel_styles_what_another_one_has():
    read = {name: (files("llamapar.panels") / f"{name}.css").read_text("utf-8") for name in PANELS}
    others = {name: outside(css, PANELS[name]) for name, css in read.items()}
    # A question marks the cells of JupyterLab that stay folded behind it.
    behind = ".jp-Cell[data-lp-behind]:not(.jp-mod-noOutputs) > .jp-Cell-outputWrapper"
    found = {name: selectors for name, selectors in others.items() if selectors}
    assert found == {"clinic": [".lp-opened"], "box": [behind]}
