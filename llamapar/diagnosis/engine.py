"""From observations to ranked diagnoses and a verdict.

Each reader proposes hypotheses; this module merges them, weighs them against the known facts, sorts them, and
decides on the verdict. It reads no numbers itself.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any

from llamapar.describe.job import Job
from llamapar.frameworks import FRAMEWORKS
from llamapar.records.equations import Stated
from llamapar.rules.fix import Fix
from llamapar.rules.report import Finding, check_job
from llamapar.rules.severity import severities_again
from llamapar.rules.table import ERROR, RULE_BY_CODE
from llamapar.timing.fixes import find_fixes

from .causes import explain_divides
from .counts import explain_unequal
from .explanation import Diagnosis, Explanation
from .hang_lines import WatchdogLines
from .hypothesis import LIKELY, POSSIBLE, WEAK, Hypothesis
from .known import Known
from .limits import limits, sentences
from .lines import EXACT, CandidateLine, causes, is_watchdog, line_blocks, score, strip
from .next_command import without_arithmetic
from .observations import (
    AXES,
    Divides,
    LoneShape,
    Matmul,
    Pair,
    Unequal,
    ViewCall,
    observe,
)
from .quotes import Quote, quoted_rules, quotes, speakers, whose
from .reading import LIMIT, Reading
from .slips import indivisible_sizes
from .tensors import explain_held, explain_place
from .vocabulary import CATEGORIES, CODES, NOT_SHARDING, SHARDING, UNKNOWN
from .weighing import as_sure_as_shown, weigh

MOST = 4
"""Diagnoses of one explanation."""

_WORDS = 20
"""Characters of a framework's own wording that a text must hold to be its."""

_EXPLAIN: dict[type, Callable[[Any, Reading, Known], Iterator[Hypothesis]]] = {
    ViewCall: explain_place,
    Matmul: explain_place,
    Pair: explain_place,
    LoneShape: explain_held,
    Divides: explain_divides,
    Unequal: explain_unequal,
}
"""Kind of observation → what makes hypotheses of it."""


# -- ranking ---------------------------------------------------------------------------------------


def merged(found: Iterable[Hypothesis]) -> list[Hypothesis]:
    """One hypothesis for each category and subtype; one that blames a cut wins over an equal one that does
    not.
    """
    best: dict[tuple[str, str | None], Hypothesis] = {}
    for h in found:
        first = best.setdefault((h.category, h.subtype), h)
        if first.parallel is None and first.level is h.level:  # Known facts decide what the words leave open.
            best[h.category, h.subtype] = replace(first, parallel=h.parallel)
    return list(best.values())


def by_likelihood(found: list[Hypothesis], saying: set[str], quoted: set[str]) -> list[Hypothesis]:
    """The hypotheses, likeliest first: by level, then by a framework's own message, then in the order found.

    saying: categories whose message a framework gives word for word for this job, which makes arithmetic of
    the same category likely. quoted: categories whose message the text contains.
    """

    def support(h: Hypothesis) -> tuple[int, bool, bool]:
        return h.level, h.category in saying, h.category in quoted

    found = [replace(h, level=LIKELY) if h.category in saying and h.arithmetic else h for h in found]
    return merged(sorted(found, key=support, reverse=True))[:MOST]


def verdict_of(found: list[Hypothesis], known: Known, spoken: bool) -> tuple[str, str]:
    """Sharding, not sharding or unknown, with the reason. spoken: whether the text mentions ranks."""
    if known.alone() and not any(h.parallel is not False and h.level > WEAK for h in found):
        cause = ""
        if found and found[0].level > WEAK:
            cause = f": {found[0].cause}"
        return NOT_SHARDING, f"one rank holds every tensor whole{cause}"
    if not found:
        return UNKNOWN, "no arithmetic in this text"
    best, *others = found
    if best.level is WEAK:
        return UNKNOWN, best.cause
    cut = best.parallel and (spoken or any((known.get(axis) or 1) > 1 for axis in (*AXES, "world")))
    # An open hypothesis is no evidence against a cut.
    against = (False,) if cut else {True, False, None} - {best.parallel}
    rival = next((h for h in others if h.parallel in against and h.level is best.level), None)
    if best.parallel is None or rival is not None:
        return UNKNOWN, best.cause
    return (SHARDING if best.parallel else NOT_SHARDING), best.cause


# -- from a text -----------------------------------------------------------------------------------

_SHORT, _FEW, _LINES = 2000, 6, re.compile(r"Traceback|WorkNCCL\(")
"""A text of at most so many characters, and fewer lines, is read whole; no traceback, no watchdog's line."""


def explain_text(text: str, known: Known, code: tuple[str, ...] = (), raised_in: str = "") -> Explanation:
    """Explain a text. code: source lines of the frames that raised it; raised_in: the last frame's file."""
    rows = [strip(row) for row in text.splitlines()[:_FEW]]
    ranks = sorted({rank for _, rank in rows if rank is not None})
    words = [row for row, _ in rows]
    several = len(ranks) > 1 or sum(score(row) >= EXACT for row in words) > 1
    # Two error lines are never read as one message, and a watchdog's line says where its rank stands.
    if len(text) > _SHORT or text.count("\n") >= _FEW or several or _LINES.search(text):
        return _explain(line_blocks(io.StringIO(text)), known, text[:LIMIT], code)
    root = max(words, key=score, default="")
    above: tuple[str, ...] = ()
    if root:
        above = tuple(row for row in words[: words.index(root)] if not row.startswith('File "'))
    return build(Reading.of(text, code or above, raised_in), known, root, tuple(ranks))


def explain_lines(lines: Iterable[str], known: Known) -> Explanation:
    """Explain a log, reading it line by line; a short log is read whole."""
    rest = iter(lines)
    first = list(islice(rest, _FEW))
    if len(first) < _FEW:
        return explain_text("".join(first), known)
    return _explain(line_blocks(chain(first, rest)), known, "".join(first)[:LIMIT])


_CODE = re.compile(
    r'^.{0,60}File "[^"\n]{0,300}", line \d{1,9}.{0,200}\n.*\n(?: *[\^~]{2,} *\n)?', re.MULTILINE
)
"""A frame of a traceback with its line of source, whose numbers mislead."""

_TABLE = re.compile(r"\[([1-9]\d{0,8}), ?([1-9]\d{0,8})\]")
"""A shape of two dims."""

_QUOTED = 120
"""Characters of another error line that are quoted."""

_LATE = "the watchdog's lines in the log follow from it: ranks waited for one that had failed"

_TRIED = 3
"""Candidate lines of a log that are explained before its beginning is."""


def _explain(parts: Iterable[str], known: Known, head: str, code: tuple[str, ...] = ()) -> Explanation:
    """Explain the likeliest line of a log that leads to a diagnosis; else the beginning of the log."""
    watchdog = WatchdogLines()
    candidates = causes(watchdog.watch(parts))
    return watchdog.explained(_of_candidates(candidates, known, head, code), known)


def _of_candidates(
    candidates: list[CandidateLine], known: Known, head: str, code: tuple[str, ...]
) -> Explanation:
    silent = None
    for candidate in candidates[:_TRIED]:
        if silent is not None and candidate.score < 1:
            break  # What only follows from a cause says nothing of it.
        around = Reading.of(candidate.before[-_SHORT:])
        stated = {fact: n for fact, n in around.facts() if fact in ("tp", "pp", "cp")}
        message = Reading.of(candidate.message, code or candidate.code, candidate.raised_in)
        ranks = candidate.ranks.union(*(other.ranks for other in filter(candidate.alike, candidates)))
        found = build(message, known.also(stated), candidate.line, tuple(sorted(ranks)))
        if found.diagnoses:
            notes = []
            for other in (each for each in candidates if _beside(each, candidate)):
                told = build(Reading.of(other.message, other.code, other.raised_in), known, other.line, ())
                words = "the same" if told.reason == found.reason else told.summary
                notes.append(f"by itself, {other.line[:_QUOTED]}: {words}")
            if not is_watchdog(candidate.line) and any(is_watchdog(other.line) for other in candidates):
                notes.append(_LATE)
            return replace(found, rivals=(*found.rivals, *notes))
        silent = silent or found
    code = code or next((one.code for one in candidates), ())
    found = build(Reading.of(_CODE.sub("", head), code), known, "", ())
    if found.diagnoses or silent is None:
        return found
    return silent


def _tables_noticed(found: Explanation, r: Reading) -> Explanation:
    """With notes on tables as high as the model's vocabulary that are not as wide as the model."""
    model = found.known.model
    if model is None:
        return found
    notes = list[str]()
    for rows, width in sorted(set(_TABLE.findall(r.text))):
        if int(rows) == model.vocab_size and int(width) != model.dim:
            wide = f"{int(width):,} wide, and {model.name} is {model.dim:,} wide"
            cut = ""
            if model.dim % int(width) == 0:
                cut = ", or its columns are cut"
            notes.append(f"[{rows}, {width}] is {wide}: a table of another model{cut}")
    if notes and not found.diagnoses:
        return replace(found, reason=notes[0])
    return replace(found, rivals=tuple(notes))


def _beside(other: CandidateLine, first: CandidateLine) -> bool:
    """Whether a line is an error of its own, and no part or echo of the first one on another rank."""
    own = other.score >= EXACT and other.line not in first.message
    return own and not first.alike(other) and not is_watchdog(other.line)


def build(r: Reading, known: Known, line: str, ranks: tuple[int, ...]) -> Explanation:
    """Explain one message."""
    known = replace(known.also(dict(r.facts())), framework=known.framework or whose(r))
    job = known.job()
    quoted = quotes(r, known.framework, bool(known.get("n_kv_heads")))
    observed = observe(r)
    seen = [h for observation in observed for h in _EXPLAIN[type(observation)](observation, r, known)]
    of_text = [weigh(h, r, known) for h in (*seen, *limits(r, known))]
    refused = list(refused_sizes(known, job))
    # What text and check agree on comes before what check refuses and the text does not say.
    agreed = [h for h in of_text if any(h.category == other.category for other in refused)]
    found = [*(weigh(h, r, known) for h in sentences(r)), *agreed, *refused, *of_text]
    found = of_other_layer(found, r, known)
    named = {CODES[quote.code] for quote in quoted if quote.length >= _WORDS}
    # Wording that several rules share proves none of them.
    if len(named) != 1:
        named = set()
    sized = any(isinstance(o, ViewCall | Matmul | Pair) for o in observed)  # For torch's words, sizes decide.
    saying = {CODES[code] for code in quoted_rules(r, job, known.framework)} if job else set()
    said = saying
    if not sized:
        said = saying | named
    missing = said - {h.category for h in found}
    # Their order is kept, because the order of a set is arbitrary.
    found += [Hypothesis(name, row.what, POSSIBLE) for name, row in CATEGORIES.items() if name in missing]
    found = [h for h in map(as_sure_as_shown, found) if h.arithmetic or h.quoted or h.category in said]
    best = by_likelihood(found, saying, named)
    best = [replace(h, needs=_needs(h, best, known)) for h in best]
    diagnoses = tuple(_diagnosis(h, known, job, quoted) for h in best)
    verdict, reason = verdict_of(best, known, r.parallel)
    steps: tuple[str, ...] = ()
    if not best:
        layer = other_layer(r, known)
        if layer:
            reason = f"the text names {layer}, whose cuts are not read here"
        reason, steps = without_arithmetic(r, known, reason)
    return _tables_noticed(Explanation(verdict, reason, diagnoses, line, ranks, known, next=steps), r)


def refused_sizes(known: Known, job: Job | None) -> Iterator[Hypothesis]:
    """What `check` refuses of the known sizes and degrees, whatever the text says, with its arithmetic."""
    report: tuple[Finding, ...] = ()
    if job:
        report = check_job(job, known.framework).arithmetic
    refused = {CODES[refusal.code]: refusal.message for refusal in report if refusal.severity == ERROR}
    for h in indivisible_sizes(known):
        # A framework may pad or replicate what does not divide.
        if job is None or known.framework is None or h.category in refused:
            yield h
            refused[h.category] = ""
    for category, message in refused.items():
        if message:
            yield Hypothesis(category, f"check refuses this layout: {message}", POSSIBLE, (Stated(message),))


def other_layer(r: Reading, known: Known) -> str:
    """A layer outside Llama's architecture that the text names; "" without one.

    Experts are such a layer unless an axis of Llama's is spoken of too, or known to be in use.
    """
    spoken = any(axis in r.concepts or (known.get(axis) or 1) > 1 for axis in AXES)
    return r.other_layer or ("experts (EP)" if {"ep", "expert"} & r.concepts and not spoken else "")


def of_other_layer(found: list[Hypothesis], r: Reading, known: Known) -> list[Hypothesis]:
    """`found` without the cuts of a Llama's sizes, if the text names another layer."""
    if not other_layer(r, known):
        return found
    bare = (None, "global_dim_not_localized")
    # Such a cut is one of a Llama's sizes where its category has axes, or is of an adapter, or any other.
    of_llama = [
        name for name, category in CATEGORIES.items() if category.axes or name in ("lora_tp", "other")
    ]
    return [h for h in found if h.subtype not in bare or h.category not in of_llama]


def _diagnosis(h: Hypothesis, known: Known, job: Job | None, quoted: list[Quote]) -> Diagnosis:
    said = speakers(CATEGORIES[h.category].rules, quoted, job, known.framework)
    judge = known.framework
    if judge is None and len(said) == 1 and not FRAMEWORKS[said[0].framework].trains:
        # Only code that serves says this, so its fixes count the bytes of serving.
        judge = FRAMEWORKS[said[0].framework]
    fixes = partial(_fixes, h, replace(known, framework=judge))
    return Diagnosis(**vars(h), frameworks=said, find_fixes=fixes)


_GIVEN = {"layout": "tp", "layout of this run": "tp", "model": "dim"}


def _needs(h: Hypothesis, others: list[Hypothesis], known: Known) -> tuple[str, ...]:
    """Facts that would prove `h`: its own needs, or those of its category if the cause is undecided."""
    undecided = (
        h.level < LIKELY or h.parallel is None or (len(others) > 1 and others[1].level is others[0].level)
    )
    wanted = h.needs or (CATEGORIES[h.category].needs if undecided else ())
    return tuple(
        n for n in wanted if known.get(n) is None and (n not in _GIVEN or known.get(_GIVEN[n]) is None)
    )


def _fixes(h: Hypothesis, known: Known) -> tuple[Fix | str, ...]:
    """Layouts that pass `check`, if the job is known and a rule of the category fails; else advice in
    words.
    """
    if h.parallel is False:
        if h.remedy:
            return (h.remedy,)
        return ()
    job = known.job() or known.also(h.facts).job()
    category = CATEGORIES[h.category]
    failing: Mapping[str, object] = {}
    if job is not None:
        failing = severities_again(job, known.framework)
    for code in category.rules:
        fixes: tuple[Fix, ...] = ()
        if job and failing.get(code) == ERROR:
            fixes = find_fixes(job, RULE_BY_CODE[code], known.framework)
        if fixes:
            return fixes
    words = ""
    if h.category == "memory_oom_layout":
        words = known.command("memory")
    return tuple(filter(None, (words, h.remedy or category.remedy)))
