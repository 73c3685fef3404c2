"""An exception, explained: its text, and over the text the live facts of the frame that raised it."""

from __future__ import annotations

import traceback
from dataclasses import replace

from llamapar.describe.layout import AXES
from llamapar.records.equations import Product
from llamapar.records.frames import failing_code

from .conclusions import concluded
from .engine import explain_text
from .explanation import Diagnosis, Explanation
from .hypothesis import LIKELY, POSSIBLE
from .known import Known
from .lines import sourced
from .live_facts import LiveFacts, live_facts
from .reading import Reading
from .vocabulary import NOT_SHARDING, SHARDING, UNKNOWN

_LONGEST = 2**16
"""Characters of an exception's own words that are read."""


def explain_error(error: BaseException, known: Known) -> Explanation:
    """Explain an exception: what its words say, and what the live facts decide."""
    words = "".join(traceback.format_exception_only(error))[:_LONGEST]
    found = _said(error, words, known)
    facts = live_facts(_first(error))
    if facts is None:
        return found
    of_frame = Known.of(facts.facts.get("model"), facts.facts.get("layout"), None, facts.facts)
    any_division = isinstance(error, ZeroDivisionError) and "head" not in facts.expression
    if known == Known() != of_frame and found.best and found.best.level >= POSSIBLE and not any_division:
        better = _said(error, words, of_frame)
        # What the frame holds decides between causes of the text, and never adds one.
        if better.best and better.best.category in {d.category for d in found.diagnoses}:
            used = ", ".join(f"{name}={getattr(n, 'name', n)}" for name, n in facts.facts.items())
            found = replace(better, source=(f"the failing frame: {used}",))
    if not found.diagnoses:
        found = replace(found, reason="the words of the error decide nothing")
    # The numbers themselves are at hand, so no option and no command asks for them.
    diagnoses = tuple(replace(each, needs=()) for each in found.diagnoses)
    found = _decided(replace(found, diagnoses=diagnoses, next=()), facts, words, known)
    return concluded(found, _first(error), facts)


def _first(error: BaseException) -> BaseException:
    """The error that others were raised from, as far as code of the user's own raised it."""
    while error.__cause__ is not None and failing_code(error.__cause__) is not None:
        error = error.__cause__
    return error


def _said(error: BaseException, words: str, known: Known) -> Explanation:
    """What the words say; if they say nothing, the whole traceback."""
    frames = traceback.extract_tb(error.__traceback__, limit=-4)
    code = tuple(sourced(frame.line or "", frame.filename, frame.name) for frame in frames)
    found = explain_text(words, known, code, frames[-1].filename if frames else "")
    if found.diagnoses:  # An error's own words come first: numbers in quoted code mislead.
        return found
    return explain_text("".join(traceback.format_exception(error, limit=-12)), known)


def _decided(found: Explanation, facts: LiveFacts, words: str, known: Known) -> Explanation:
    """The explanation with the facts; where they decide, what the words alone suggest gives way."""
    reading = Reading.of(words, (facts.expression,))
    whole = next(facts.wholes_beside_parts(reading.values), None)
    if whole is not None:
        over = ""
        if whole.cut.ranks:
            over = f" over {whole.cut.ranks}"
        cause = (
            f"{whole.text} = {whole.cut.whole} is the whole of dim {whole.cut.dim} of {whole.cut.operand}, "
            f"of which a rank holds {whole.cut.part}{over}"
        )
        parts = Product((whole.cut.part, whole.cut.whole // whole.cut.part))
        remedies = tuple(filter(None, [whole.remedy]))
        proof = Diagnosis(
            "other", cause, LIKELY, (parts,), "global_dim_not_localized", find_fixes=lambda: remedies
        )
        return replace(found, verdict=SHARDING, reason=cause, diagnoses=(proof,), live=facts)
    cut = any((known.get(name) or 1) > 1 for name in (*AXES, "world")) or known.layout is not None
    best = found.best
    if found.verdict == SHARDING and best and best.level < LIKELY and facts.cuts:
        # What is cut is known here, so a size that only may be a rank's part is no proof.
        return replace(found, verdict=UNKNOWN, reason=best.cause, live=facts)
    if facts.alone and facts.operands and not cut and not (reading.parallel or reading.loading):
        reason = "one process, and nothing that the failing code names is cut"
        kept = tuple(d for d in found.diagnoses if d.parallel is False)
        if kept:
            reason += f": {kept[0].cause}"
        return replace(found, verdict=NOT_SHARDING, reason=reason, diagnoses=kept, live=facts)
    return replace(found, live=facts)
