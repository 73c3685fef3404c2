"""`llamapar check --config`: one's own files of settings, read and judged."""

from __future__ import annotations

from llamapar.describe.options import LAYOUT
from llamapar.errors import LlamaparError
from llamapar.frameworks.settings import JOB_FACTS, Settings, read_settings
from llamapar.rules.report import Report, check

from .commands import Answer, Given
from .writing import as_dict, as_text

_KNOWN = ("model", *JOB_FACTS)


def check_settings(given: Given) -> Answer:
    """The files, then the verdict; where they say too little for one, what is missing."""
    typed = given.of(*LAYOUT)
    if typed:
        name = next(iter(typed))
        why = "the layout is read from the files"
        choose = ["what the framework's command takes, after --", "the command without --config"]
        raise LlamaparError(f"{name}={typed[name]} beside files of settings", why, choose, name)
    settings = read_settings(*given.files, overrides=given["overrides"], known=given.of(*_KNOWN))
    if given["settings"]:
        return Answer(True, lambda: as_text(settings), settings.as_dict)
    rest = {name: value for name, value in given.facts.items() if name not in _KNOWN}
    try:
        report = check(settings, **rest, **given.of("framework"))
    except LlamaparError as problem:
        return _unjudged(settings, problem)
    return _judged(settings, report)


def _judged(settings: Settings, report: Report) -> Answer:
    def text() -> str:
        return f"{as_text(settings)}\n\n{as_text(report)}"

    return Answer(report.ok, text, lambda: {**report.as_dict(), "settings": settings.as_dict()})


def _unjudged(settings: Settings, problem: LlamaparError) -> Answer:
    def text() -> str:
        return f"{as_text(settings)}\n\nnot judged: {problem}"

    data: dict[str, object] = {"ok": None, "findings": [], "error": as_dict(problem)}
    return Answer(False, text, lambda: {**data, "settings": settings.as_dict()})
