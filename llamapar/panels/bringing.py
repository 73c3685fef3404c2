"""A run's own files and texts as a page sends them: what they name, and what that does to the page. Pure."""

from __future__ import annotations

import re
from functools import cache

from llamapar.describe.layout import AXES
from llamapar.describe.models import public_models
from llamapar.describe.options import Values
from llamapar.diagnosis.known import model_named
from llamapar.errors import LlamaparError
from llamapar.frameworks import padding_rule
from llamapar.frameworks.settings import Settings
from llamapar.records.tables import Plain

from .controls import LAYOUT
from .line import PLAIN

_SEARCHED = 200_000
"""Characters of either end of a text that are searched for names."""

_PACKAGES = {"llama_models": "llama-models", "megatron": "megatron-lm", "dllama": "distributed-llama"} | {
    name: name for name in ("torchtitan", "colossalai", "picotron", "nanotron", "vllm")
}
"""A package, as paths of a traceback name it → the framework."""


@cache
def _names() -> re.Pattern[str]:
    """Public models under the names that logs use: "Llama-3.1-8B", "llama3 8B"."""
    families = "|".join(sorted({re.split(r"[^a-z]", name)[0] for name in public_models()}))
    return re.compile(rf"\b(?:{families})[\w.-]{{0,24}} ?\d{{1,3}}(?:\.\d)?b\b", re.IGNORECASE)


def named_in(text: str) -> dict[str, str]:
    """Model and framework, if the text names exactly one."""
    searched = f"{text[:_SEARCHED]}\n{text[_SEARCHED:][-_SEARCHED:]}"
    models = {model.name for m in _names().finditer(searched) if (model := model_named(m.group()))}
    frameworks = {name for package, name in _PACKAGES.items() if re.search(rf"\b{package}[/.]", searched)}
    found = {"model": models, "framework": frameworks}
    return {name: min(one) for name, one in found.items() if len(one) == 1}


def controls_of(settings: Settings) -> Values:
    """Values for the controls of layout and job; an unknown degree stays empty."""
    layout = {name: value for name, value in settings.layout.items() if name in LAYOUT and value is not None}
    facts = settings.facts()
    padding = facts.get("padding")
    if settings.framework and isinstance(padding, str):
        own = padding_rule(settings.framework) == padding_rule(padding)
        facts["padding"] = None if own else padding
    return PLAIN | dict.fromkeys(AXES) | layout | facts | {"framework": settings.framework or ""}


def settings_for_browser(settings: Settings, problem: LlamaparError | None) -> Plain:
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
