"""From observations to ranked diagnoses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import chain, islice
from typing import Any

from llamapar.describe.job import Job
from llamapar.frameworks import FRAMEWORKS
from llamapar.frameworks.base import Case, Framework
from llamapar.rules.fixes import find_fixes
from llamapar.rules.search import Fix, severities
from llamapar.rules.table import ERROR, RULE_BY_CODE

from .causes import background, explain_divides, explain_order, explain_unequal
from .hypothesis import Hypothesis
from .known import Known
from .limits import limits
from .lines import blocks, causes, pieces, score, strip
from .observations import Divides, Held, Matmul, Order, Pair, Unequal, View, observe
from .reading import LIMIT, Reading
from .result import Diagnosis, Explanation, Said
from .topics import topics
from .views import explain_matmul, explain_view
from .vocabulary import CATEGORIES, CODES, NOT_SHARDING, SHARDING, UNKNOWN
from .weights import explain_held, explain_pair

MOST = 4
"""Diagnoses of one explanation."""


_EXPLAIN: dict[type, Callable[[Any, Reading, Known], Iterator[Hypothesis]]] = {
    View: explain_view,
    Matmul: explain_matmul,
    Pair: explain_pair,
    Held: explain_held,
    Order: explain_order,
    Divides: explain_divides,
    Unequal: explain_unequal,
}
"""Kind of observation → what makes hypotheses of it."""


def hypotheses(r: Reading, known: Known) -> Iterator[Hypothesis]:
    """Every candidate cause of what `r` states."""
    for observation in observe(r):
        explain = _EXPLAIN.get(type(observation))
        if explain is not None:
            yield from explain(observation, r, known)
    yield from topics(r, known)
    yield from limits(r, known)
    yield from background(r, known)


# -- who says so -----------------------------------------------------------------------------------


@cache
def _templates() -> tuple[tuple[Framework, str, Case, tuple[str, ...]], ...]:
    """Every message of `frameworks`, as its literal pieces in their order."""
    rows = []
    for framework in FRAMEWORKS.values():
        for code, cases in framework.cases.items():
            for case in cases:
                if case.message:
                    rows.append((framework, code, case, tuple(_pieces(case.message))))
    return tuple(rows)


def _pieces(template: str) -> Iterator[str]:
    for part in template.split("{"):
        text = part.partition("}")[2] if "}" in part else part
        text = " ".join(text.split())
        if text:
            yield text


_LAST, _FIRST = re.compile(r"\S{0,32} ?$"), re.compile(r"^ ?\S{0,32}")
"""A number at the end of what stands before a message, and at the beginning of what follows."""


def said(r: Reading) -> list[tuple[Framework, str, Case, int, str]]:
    """Framework, rule, evidence, literal length, and the text's own words, of each message that it holds."""
    found = []
    for framework, code, case, parts in _templates():
        start, at = max(0, r.text.find(parts[0])) if parts else 0, 0
        for part in parts:
            at = r.text.find(part, at)
            if at < 0:
                break
            at += len(part)
        else:
            before = _LAST.findall(r.text[:start][-33:])[0] if case.message[0] == "{" else ""
            after = _FIRST.findall(r.text[at:])[0] if case.message[-1] == "}" else ""
            length = sum(map(len, parts))
            found.append((framework, code, case, length, before + r.text[start:at] + after))
    return found


def rendered(r: Reading, job: Job, known: Known) -> Iterator[str]:
    """Rules for which a framework says of this very job, word for word, what the text holds."""
    judges = [known.framework] if known.framework else FRAMEWORKS.values()
    for judge in judges:
        for code, cases in judge.cases.items():
            if any(case.message for case in cases) and RULE_BY_CODE[code].applies(
                job, job.padding or judge.padding
            ):
                message = " ".join(judge.judge(code, job).message.split())
                bare = len(message) < 20 and not any(c.isdigit() for c in message)
                if message and (message == r.text if bare else message in r.text):
                    yield code


# -- ranking ---------------------------------------------------------------------------------------


def judged(h: Hypothesis, known: Known, failing: frozenset[str], spoken: Mapping[str, float]) -> Hypothesis:
    """`h` in the light of what is known: its axis may be 1, `check` may say the same."""
    category = CATEGORIES[h.category]
    score, parallel = h.score, h.parallel
    if category.axes and known.alone(*(a for a in category.axes if a != "world")) and not known.changes:
        parallel, score = False, score * 0.9
    if failing & set(category.rules):
        score = min(0.95, score + 0.12)
    if h.category in spoken:
        score = max(score, min(1.0, spoken[h.category] if spoken[h.category] > 0.9 else score + 0.05))
    return replace(h, score=score, parallel=parallel)


def merged(found: Iterable[Hypothesis]) -> list[Hypothesis]:
    """One hypothesis a category and subtype, the best first, with an equation of its like if it has none."""
    best: dict[tuple[str, str | None], Hypothesis] = {}
    for h in sorted(found, key=lambda h: -h.score):
        key = h.category, h.subtype
        if key in best:
            best[key] = replace(best[key], equations=best[key].equations or h.equations)
        else:
            best[key] = h
    return list(best.values())


def diagnose(r: Reading, known: Known) -> list[tuple[Hypothesis, float]]:
    """Ranked hypotheses and how sure each is."""
    job = known.job()
    failing: frozenset[str] = frozenset()
    if job is not None:
        failing = frozenset(c for c, s in severities(job, known.framework).items() if s == ERROR)
    spoken: dict[str, float] = {CODES[code]: 0.97 for code in rendered(r, job, known)} if job else {}
    if not spoken:
        literal = {
            CODES[code]: min(0.86, 0.6 + length / 200) for _, code, _, length, _ in said(r) if length >= 20
        }
        spoken = literal if len(literal) == 1 else {}  # one wording of several rules proves none of them
    found = list(hypotheses(r, known))
    told = {h.category for h in found}
    sized = any(isinstance(o, View | Matmul | Pair) for o in observe(r))  # torch's words: the sizes decide
    found += [
        Hypothesis(name, CATEGORIES[name].what, sure)
        for name, sure in spoken.items()
        if name not in told and not (sized and sure < 0.9)
    ]
    ranked = merged(judged(h, known, failing, spoken) for h in found)
    ranked = [h for h in ranked if h.score >= 0.15][:MOST]
    total = sum(h.score**3 for h in ranked) or 1.0
    return [(h, h.score * (h.score**3 / total) ** 0.5) for h in ranked]


def verdict_of(ranked: list[tuple[Hypothesis, float]]) -> tuple[str, str]:
    """Sharding, not sharding or unknown, and why."""
    if not ranked:
        return UNKNOWN, "no shape, count or relation in it that a layout could explain"
    best = ranked[0][0]
    rival = next(
        (h for h, _ in ranked[1:] if h.parallel is not best.parallel and h.score > 0.93 * best.score), None
    )
    if best.score < 0.45:
        return UNKNOWN, f"at best {best.cause}"
    if best.parallel is None or rival is not None:
        needs = tuple(dict.fromkeys(best.needs + (rival.needs if rival else ())))
        other = f", or {rival.cause}" if rival else ""
        return UNKNOWN, f"{best.cause}{other}" + (f"; tell {', '.join(needs)}" if needs else "")
    return (SHARDING if best.parallel else NOT_SHARDING), best.cause


_SHORT = 2000
"""A text of at most so many characters and `_FEW` lines, no traceback, is read whole."""

_FEW = 6


def explain_text(
    text: str, model: Any, layout: Any, framework: Any, context: Mapping[str, Any], code: tuple[str, ...] = ()
) -> Explanation:
    """The explanation of a text of any length. code: lines of source of the frames that raised it."""
    known = Known.of(model, layout, framework, context)
    if len(text) <= _SHORT and text.count("\n") < _FEW and "Traceback" not in text:
        rows = [strip(row)[0] for row in text.strip().splitlines()] or [""]
        root = max(rows, key=score)
        above = tuple(row for row in rows[: rows.index(root)] if not row.startswith('File "'))
        return build(Reading.of(text, code or above), known, root, ())
    return _explain(pieces(text), known, text[:LIMIT], code)


def explain_lines(
    lines: Iterable[str], model: Any, layout: Any, framework: Any, context: Mapping[str, Any]
) -> Explanation:
    """The explanation of a log, read line by line; a short one is read whole."""
    known = Known.of(model, layout, framework, context)
    rest = iter(lines)
    first = list(islice(rest, _FEW))
    if len(first) < _FEW:
        return explain_text("".join(first), model, layout, framework, context)
    return _explain(blocks(chain(first, rest)), known, "".join(first)[:LIMIT])


_CODE = re.compile(
    r'^.{0,60}File "[^"\n]{0,300}", line \d{1,9}.{0,200}\n.*\n(?: *[\^~]{2,} *\n)?', re.MULTILINE
)
"""A frame of a traceback with its line of source, whose numbers mislead."""


def _explain(parts: Iterable[str], known: Known, head: str, code: tuple[str, ...] = ()) -> Explanation:
    """From the likeliest line of a log that leads to a diagnosis; else from its beginning."""
    for candidate in causes(parts)[:3]:
        around = Reading.of(candidate.before[-_SHORT:])
        stated = {fact: n for fact, n in around.facts() if fact in ("tp", "pp", "cp")}
        ranks = tuple(sorted(candidate.ranks))
        message = Reading.of(candidate.message, code or candidate.code)
        told = build(message, known.also(stated), candidate.line, ranks)
        if told.diagnoses:
            return told
    return build(Reading.of(_CODE.sub("", head), code), known, "", ())


def build(r: Reading, known: Known, line: str, ranks: tuple[int, ...]) -> Explanation:
    """The explanation of one message."""
    known = known.also(dict(r.facts()))
    ranked = diagnose(r, known)
    verdict, reason = verdict_of(ranked)
    speakers = said(r)
    job = known.job()
    diagnoses = tuple(
        Diagnosis(
            h.category,
            h.subtype,
            h.cause,
            h.equations,
            _fixes(h, known, job or known.also(h.facts).job()),
            _needs(h, ranked, known),
            _said(h, speakers, known, job),
            sure,
            h.parallel,
            h.facts,
        )
        for h, sure in ranked
    )
    return Explanation(verdict, reason, diagnoses, line, ranks, known)


_GIVEN = {"layout": "tp", "layout of this run": "tp", "model": "dim"}


def _needs(h: Hypothesis, ranked: list[tuple[Hypothesis, float]], known: Known) -> tuple[str, ...]:
    """What is missing to prove `h`: its own needs, and its category's where a rival is close."""
    close = len(ranked) > 1 and ranked[1][0].score > 0.85 * ranked[0][0].score
    wanted = h.needs or (CATEGORIES[h.category].needs if close or h.score < 0.6 else ())
    return tuple(
        n for n in wanted if known.get(n) is None and (n not in _GIVEN or known.get(_GIVEN[n]) is None)
    )


def _fixes(h: Hypothesis, known: Known, job: Job | None) -> tuple[Fix | str, ...]:
    """Layouts that pass `check`, where the job is known and a rule of the category fails; else words."""
    if h.parallel is False:
        return ()
    if job is not None:
        failing = severities(job, known.framework)
        for code in CATEGORIES[h.category].rules:
            if failing.get(code) == ERROR:
                fixes = tuple(find_fixes(job, RULE_BY_CODE[code], known.framework))
                if fixes:
                    return fixes
    words = CATEGORIES[h.category].remedy
    return (words,) if words else ()


def _said(
    h: Hypothesis, speakers: list[tuple[Framework, str, Case, int, str]], known: Known, job: Job | None
) -> tuple[Said, ...]:
    """Frameworks whose words these are; else, of a known job, those that fail by the same rule."""
    rules = CATEGORIES[h.category].rules
    rows: dict[str, Said] = {}
    for framework, code, case, length, words in speakers:
        if code in rules and length >= 16:  # a bare "AssertionError" names nobody
            rows.setdefault(framework.name, Said(framework.name, words, framework.source(case)))
    if not rows and job is not None:
        broken = severities(job, known.framework)
        for code in (code for code in rules if code in broken):
            for framework in [known.framework] if known.framework else FRAMEWORKS.values():
                told = framework.judge(code, job)
                if told.fails and told.source:
                    row = Said(framework.name, told.message or told.note, told.source)
                    rows.setdefault(framework.name, row)
    return tuple(rows.values())[:3]
