"""The framework that wrote a text: the messages of `frameworks` found whole in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from llamapar.describe.job import Job
from llamapar.frameworks import FRAMEWORKS
from llamapar.frameworks.base import Evidence, Framework
from llamapar.rules.severity import severities_again
from llamapar.rules.table import RULE_BY_CODE

from .explanation import Said
from .reading import Reading

_NAMING = 16
"""Characters of a framework's own wording that name it: a bare "AssertionError" names nobody."""

_FILLED = 160
"""Characters, at most, that stand where a message names a number."""

_TORCH = "dtensor"
_PYTHON = "integer division or modulo by zero"

_MOST = 3
"""Frameworks that are named beside one cause."""


@dataclass(frozen=True)
class Quote:
    """A framework's message that appears whole in a text.

    code: the rule it states. length: number of the framework's own characters in it. words: the matched text.
    """

    framework: Framework
    code: str
    case: Evidence
    length: int
    words: str


@cache
def _templates() -> tuple[tuple[Framework, str, Evidence, tuple[str, ...]], ...]:
    """Every message of `frameworks`, as its literal pieces in order."""
    return tuple(
        (framework, code, case, tuple(_pieces(case.message)))
        for framework in FRAMEWORKS.values()
        for code, cases in framework.cases.items()
        for case in cases
        if case.message
    )


def _pieces(template: str) -> Iterator[str]:
    for part in template.split("{"):
        text = part
        if "}" in part:
            text = part.partition("}")[2]
        text = " ".join(text.split())
        if text:
            yield text


_LAST, _FIRST = re.compile(r"\S{0,32} ?$"), re.compile(r"^ ?\S{0,32}")
"""A number at the end of what stands before a message, and at the beginning of what follows."""


def quotes(r: Reading, framework: Framework | None, heads: bool = False) -> list[Quote]:
    """Every message that the text contains from its first word to its last.

    torch's own words count as torch's in any framework, except the known one. Python's words for a division
    by 0 count as a framework's only if the code or the given facts count heads (`heads`).
    """
    found = []
    text = r.text
    if r.low.rstrip(": ") == "zerodivisionerror":  # Python has one wording for it.
        text = f"{text}: {_PYTHON}"
    for speaker, code, case, pieces in _templates():
        span = None
        if pieces and pieces[0] in text:
            span = _span(text, pieces)
        if span is not None:
            start, end = span
            before = ""
            if case.message[0] == "{":
                before = _LAST.findall(text[:start][-33:])[0]
            after = ""
            if case.message[-1] == "}":
                after = _FIRST.findall(text[end:])[0]
            words = before + text[start:end] + after
            found.append(Quote(speaker, code, case, sum(map(len, pieces)), words))
    torch = {_longest(quote) for quote in found if quote.framework.name == _TORCH}
    own = {_TORCH, framework.name if framework else ""}
    torch |= set() if r.counts_heads or (heads and not r.code) else {_PYTHON}
    return [quote for quote in found if quote.framework.name in own or _longest(quote) not in torch]


def _longest(quote: Quote) -> str:
    """The literal piece that identifies a message whatever its numbers."""
    return max(_pieces(quote.case.message), key=len)


def _span(text: str, pieces: tuple[str, ...]) -> tuple[int, int] | None:
    """The span in which the pieces follow each other closely; None if they do not."""
    start = text.find(pieces[0])
    end = start + len(pieces[0])
    for piece in pieces[1:]:
        at = text.find(piece, end, end + _FILLED + len(piece))
        if at < 0:
            return None
        end = at + len(piece)
    return start, end


def whose(r: Reading) -> Framework | None:
    """The framework whose own line of source failed; None if no known line matches."""
    return next((f for f, _, case, _ in _templates() if case.line and case.line in r.line), None)


def quoted_rules(r: Reading, job: Job, framework: Framework | None) -> Iterator[str]:
    """Rules for which a framework gives, for this job and word for word, a message in the text."""
    for judge in [framework] if framework else FRAMEWORKS.values():
        for code, cases in judge.cases.items():
            rule = RULE_BY_CODE[code]
            if any(case.message for case in cases) and rule.applies(job, job.padding or judge.padding):
                messages = (" ".join(version.message.split()) for version in judge.judge(code, job).versions)
                if any(_says(r, message) for message in messages):
                    yield code


def _says(r: Reading, message: str) -> bool:
    """Whether a text has a framework's message; a short one without a number must be all of it."""
    if not message or (message == _PYTHON and r.code and not r.counts_heads):
        return False
    if len(message) < _NAMING and not any(c.isdigit() for c in message):
        return message == r.text
    return message in r.text


def speakers(
    rules: Iterable[str], found: list[Quote], job: Job | None, framework: Framework | None
) -> tuple[Said, ...]:
    """Frameworks that wrote these words; else, for a known job, those that fail by the same rule."""
    rules = tuple(rules)
    rows: dict[str, Said] = {}
    for quote in found:
        if quote.code in rules and quote.length >= _NAMING:
            source = quote.framework.source(quote.case)
            rows.setdefault(quote.framework.name, Said(quote.framework.name, quote.words, source))
    if not rows and job is not None:
        broken = severities_again(job, framework)
        for code in (code for code in rules if code in broken):
            for judge in [framework] if framework else FRAMEWORKS.values():
                ruling = judge.judge(code, job)
                if ruling.fails and ruling.source:
                    row = Said(judge.name, ruling.message or ruling.note, ruling.source)
                    rows.setdefault(judge.name, row)
    return tuple(rows.values())[:_MOST]
