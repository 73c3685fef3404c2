"""A run's own files as a page sends them, and their effect on the controls and the page. Pure."""

from __future__ import annotations

import base64

from llamapar.describe.layout import AXES
from llamapar.describe.options import Values
from llamapar.diagnosis.explanation import Dumps
from llamapar.errors import LlamaparError
from llamapar.frameworks import padding_rule
from llamapar.frameworks.settings import Settings
from llamapar.late import late
from llamapar.records.tables import Plain

from .controls import LAYOUT
from .line import PLAIN

MOST_DUMPS = 6 * 2**20
"""Bytes of the flight records of a drop: a message to a kernel holds 10 MiB, base64 takes a third more."""


def flight_records(content: Values) -> Dumps:
    """Flight records as [name, base64] each. Raises LlamaparError if they are too large for a message."""
    if content["bytes"] > MOST_DUMPS:
        what = f"{content['bytes']:,} bytes of flight records, at most {MOST_DUMPS:,} travel from the browser"
        raise LlamaparError(what, "", ["clinic(flight=FOLDER) in a cell", "llamapar explain --flight FOLDER"])
    pairs = ((str(name), base64.b64decode(str(text))) for name, text in content["files"])
    dumps: Dumps = late("dumps_of_bytes")(pairs)
    return dumps


def controls_of(settings: Settings) -> Values:
    """Values for the controls of layout and job; an unknown degree stays empty."""
    layout = {name: value for name, value in settings.layout.items() if name in LAYOUT and value is not None}
    facts = settings.facts()
    padding = facts.get("padding")
    if settings.framework and isinstance(padding, str):
        own = padding_rule(settings.framework) == padding_rule(padding)
        facts["padding"] = None if own else padding
    return PLAIN | dict.fromkeys(AXES) | layout | facts | {"framework": settings.framework or ""}


def settings_for_browser(settings: Settings, problem: LlamaparError | None = None) -> Plain:
    """Plain values for the browser. problem: the reason why the model could not be used."""
    title, head, rows, _ = settings._table()
    known = [[str(cell) for cell in row] for row in rows if row[1] != "unknown"]
    lists = {
        "contradiction": [str(one) for one in settings.contradictions],
        "unknown": [f"{name}: {why}" for name, why in settings.unknown.items()],
        "not covered": list(settings.not_covered),
        "without effect": list(settings.ignored),
        "not read": list(settings.unread),
        "note": list(settings.notes),
    }
    if problem:
        lists["model"] = [str(problem.what)]
    said = [[kind, text] for kind, texts in lists.items() for text in texts]
    return {"title": title, "head": head, "rows": known, "said": said}
