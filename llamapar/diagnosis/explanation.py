"""The result of `explain`: a verdict and ranked diagnoses, as text, HTML and plain values."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from html import escape
from typing import Protocol

from llamapar.describe.layout import AXES
from llamapar.describe.options import OPTIONS
from llamapar.errors import shown
from llamapar.frameworks import FRAMEWORKS, Source
from llamapar.records.equations import Equation
from llamapar.records.tables import Plain
from llamapar.rules.fix import Fix

from .hypothesis import Level
from .known import MODEL_FIELDS, Known
from .live_facts import LiveFacts
from .vocabulary import CATEGORIES, NOT_SHARDING, SHARDING, UNKNOWN

_WIDTH = 100
_COUNTS = ("tp", "cp", "pp", "dp", "seq_len", "micro_batch", "global_batch", "quant_group", "virtual_stages")
_FLAGS = dict.fromkeys((*MODEL_FIELDS, "model"), "--model") | {n: OPTIONS[n].flag for n in _COUNTS}
_FLAGS |= {"world": "--gpus", "layout": "layout (--tp, --cp, --pp, --dp)", "group size": "--quant-group"}
"""A fact → the option of the command that gives it."""

_VERDICTS = {SHARDING: "a sharding problem", NOT_SHARDING: "not a sharding problem", UNKNOWN: "not known"}

_TRIED = (1, 2, 3, 4, 5, 6, 8, 16, 32, 64)
"""Degrees that are tried for an axis that is not known."""

_SECONDS = 0.5
"""Processor time in which degrees are tried; the ten of an axis take about 0.03 s. An axis that takes longer
is left out whole, because half of its degrees would look like all of them."""

_NOT_SHAPES = {"rank_mapping_hang", "memory_oom_layout"}
"""Categories that no shape shows."""


class HangRecord(Protocol):
    """The calls of a hang that have not ended: a record that the optional room `hangs` makes."""

    def as_dict(self) -> Plain: ...
    def _repr_html_(self) -> str: ...


@dataclass(frozen=True)
class Said:
    """A framework that gives this message, or whose rule it is: its name, its words, and their place in its
    source.
    """

    framework: str
    message: str
    source: Source

    def __str__(self) -> str:
        return f"{FRAMEWORKS[self.framework].title}: {self.message} ({self.source})"


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """One candidate cause, with the arithmetic that supports it.

    arithmetic: relations that hold between the text's own numbers; equations: the same as text. fixes:
    layouts that pass `check`, or advice in words if model and layout are unknown. needs: facts that would
    separate it from its rivals. parallel: whether sharding is to blame; None if that cannot be decided.
    level: likely, possible or weak. facts: what it implies about model and layout, by field name.
    """

    category: str
    subtype: str | None
    cause: str
    arithmetic: tuple[Equation, ...]
    find_fixes: Callable[[], tuple[Fix | str, ...]] = field(compare=False)
    needs: tuple[str, ...]
    frameworks: tuple[Said, ...]
    level: Level
    parallel: bool | None
    facts: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def fixes(self) -> tuple[Fix | str, ...]:
        """Fixes, computed on first access: each passes `check` and is compared with the GPU's memory."""
        return self.find_fixes()

    @property
    def equations(self) -> tuple[str, ...]:
        return tuple(map(str, self.arithmetic))

    @property
    def rules(self) -> tuple[str, ...]:
        """Codes of the rules of `check` that state the same problem."""
        return CATEGORIES[self.category].rules

    @property
    def title(self) -> str:
        return f"{self.category} / {self.subtype}" if self.subtype else self.category

    @property
    def narrows(self) -> str:
        """The facts to give next: as options of the command where there is one, a size by --model."""
        flags = dict.fromkeys(_FLAGS.get(need, need) for need in self.needs)
        return f"{', '.join(flags)} to narrow this down"

    def as_dict(self) -> Plain:
        """Plain values for JSON."""
        return {
            "category": self.category,
            "subtype": self.subtype,
            "cause": self.cause,
            "equations": list(self.equations),
            "fixes": [fix.as_dict() if isinstance(fix, Fix) else {"text": fix} for fix in self.fixes],
            "needs": list(self.needs),
            "frameworks": [
                {"framework": s.framework, "message": s.message, "source": str(s.source)}
                for s in self.frameworks
            ],
            "level": str(self.level),
        }

    @property
    def lines(self) -> list[str]:
        """What to do, then why, then who says so, as indented lines."""
        rows = [("or" if i else "try", str(fix)) for i, fix in enumerate(self.fixes)]
        rows += [("" if i else "why", equation) for i, equation in enumerate(self.equations)]
        rows += [("says", str(speaker)) for speaker in self.frameworks]
        wrap = partial(textwrap.wrap, width=_WIDTH, subsequent_indent=" " * 9, break_on_hyphens=False)
        return [line for word, text in rows for line in wrap(text, initial_indent=f"    {word:<4} ")]

    def __str__(self) -> str:
        asks = [f"    pass {self.narrows}"] if self.needs else []
        return "\n".join([f"{self.level}: {self.cause}", *self.lines, *asks])

    __repr__ = __str__

    def card(self, heading: str, notes: str) -> str:
        """As HTML: a heading, what to do and why, notes, and who says so, folded."""
        fixes = ", or ".join(f"<code>{escape(str(fix))}</code>" for fix in self.fixes)
        equations = "<br>".join(f"<code>{escape(equation)}</code>" for equation in self.equations)
        rows = "".join(
            f"<tr><td>{escape(FRAMEWORKS[s.framework].title)}</td><td>{escape(s.message)}</td>"
            f"<td>{s.source._repr_html_()}</td></tr>"
            for s in self.frameworks
        )
        return (
            f"<p>{heading}"
            + (f"<br>try {fixes}" if fixes else "")
            + (f"<br>why {equations}" if equations else "")
            + f"{notes}</p>"
            + (f"<details><summary>who says so</summary><table>{rows}</table></details>" if rows else "")
        )

    def _repr_html_(self) -> str:
        asks = f"<br>pass {escape(self.narrows)}" if self.needs else ""
        return self.card(f"<b>{self.level}</b>: {escape(self.cause)}", asks)


@dataclass(frozen=True, repr=False)
class Explanation:
    """The verdict ("sharding", "not_sharding" or "unknown"), its reason, and the diagnoses, likeliest first.

    line: the root cause as quoted from the text. ranks: the ranks that reported it, if the text names them.
    known: the given facts, and those that the text states. note: what else in the log it explains. hang:
    for flight records, the calls that have not ended. live: for an exception, the facts of its frame. again:
    the explanation of the same text with other known facts; None if a text alone was not explained. steps:
    commands that can go on where the text has no arithmetic.
    """

    verdict: str
    reason: str
    diagnoses: tuple[Diagnosis, ...]
    line: str = ""
    ranks: tuple[int, ...] = ()
    known: Known = field(default_factory=Known)
    note: str = ""
    hang: HangRecord | None = None
    live: LiveFacts | None = None
    again: Callable[[Known], Explanation] | None = field(default=None, compare=False)
    steps: tuple[str, ...] = ()

    @property
    def best(self) -> Diagnosis | None:
        return self.diagnoses[0] if self.diagnoses else None

    @property
    def of_shapes(self) -> bool:
        """Whether to show it to a user who did not ask: it has the failing tensors, or a cause of shapes."""
        best, category = self.best, self.best.category if self.best else ""
        if self.live is not None and self.live.operands:
            return category not in _NOT_SHAPES
        known = category not in _NOT_SHAPES and self.verdict != UNKNOWN
        return known and best is not None and best.level >= Level.POSSIBLE

    @property
    def needs(self) -> tuple[str, ...]:
        """Facts to supply next; those for the likeliest diagnosis come first."""
        return tuple(dict.fromkeys(need for d in self.diagnoses[:2] for need in d.needs))

    def as_dict(self) -> Plain:
        """Plain values for JSON: {"verdict": …, "diagnoses": [...]}."""
        plain: Plain = {"verdict": self.verdict, "diagnoses": [d.as_dict() for d in self.diagnoses]}
        plain |= {"next": list(self.steps)} if self.steps else {}
        plain |= {} if self.live is None else {"live": self.live.as_dict()}
        return plain if self.hang is None else {**plain, "hang": self.hang.as_dict()}

    @property
    def short(self) -> str:
        """The likeliest cause and its arithmetic in one line; "" if the verdict is open."""
        if self.best is None or self.verdict == UNKNOWN:
            return ""
        cause = self.best.cause
        return "; ".join((cause, *(e for e in self.best.equations if e not in cause)))

    @property
    def finding(self) -> str:
        """The verdict in words, no surer than the diagnosis that it rests on."""
        words, best = _VERDICTS[self.verdict], self.best
        if self.verdict == UNKNOWN or best is None or best.level is Level.LIKELY:
            return words
        return f"possibly {words}" if self.reason.startswith(best.cause) else words

    @property
    def summary(self) -> str:
        """One line: the verdict and its reason."""
        return f"{self.finding.capitalize()}: {self.reason}"

    @property
    def headline(self) -> str:
        """The first line of the text: `summary`, or what to pass if a missing fact leaves it open."""
        asks = self.verdict == UNKNOWN and self.best and self.best.needs
        return f"Not known: pass {self.diagnoses[0].narrows}" if asks else self.summary

    @cached_property
    def if_known(self) -> tuple[str, ...]:
        """For an open verdict, the verdicts with tried degrees of one missing axis: one line for each axis.

        An axis with which nothing is decided has no line, and one that would contradict the known GPUs is not
        tried.
        """
        known, again, end = self.known, self.again, time.process_time() + _SECONDS
        decided = self.verdict != UNKNOWN or not self.diagnoses
        if decided or again is None or known.changes or self.live is not None:
            return ()
        said: list[str] = []
        for axis in (axis for axis in AXES if axis in self.diagnoses[0].needs):
            tried: dict[str, list[str]] = {}
            for degree in _TRIED:
                if time.process_time() > end:
                    return tuple(said)
                if (known.get("world") or degree) % degree == 0:
                    tried.setdefault(again(known.also({axis: degree})).finding, []).append(str(degree))
            if {*tried} - {_VERDICTS[UNKNOWN]}:
                open_last = sorted(tried, key=lambda finding: finding == _VERDICTS[UNKNOWN])
                said.append(
                    "; ".join(f"{axis}={', '.join(tried[finding])}: {finding}" for finding in open_last)
                )
        return tuple(said)

    def _parts(self) -> tuple[Diagnosis | None, list[Diagnosis], str]:
        """The diagnosis whose cause the first line gives, the ones to list below, and how sure the first is.

        What to pass is said once: a diagnosis below that asks for the same does not repeat it.
        """
        best, asked = self.best, self.best.narrows if self.best and self.best.needs else ""
        below = [replace(d, needs=()) if d.narrows == asked else d for d in self.diagnoses]
        if best is None or best.cause not in self.headline:
            return None, below, ""
        return best, below[1:], f"how sure: {best.level}{'; pass ' * bool(asked)}{asked}"

    @property
    def _unknown_model(self) -> str:
        """That the named model is not known; "" if it is, or if none was named."""
        if not self.known.unknown_model:
            return ""
        return f"no model {shown(self.known.name, 60)} is known here: its config.json would give its sizes"

    def __str__(self) -> str:
        best, below, sure = self._parts()
        lines = [f"{'or ' if i else 'try'}  {step}" for i, step in enumerate(self.steps)]
        lines += [f"if   {line}" for line in self.if_known] + ([] if best is None else [sure])
        if self.line:
            where = f"  (ranks {', '.join(map(str, self.ranks[:8]))})" if self.ranks else ""
            lines.append(f"from {self.line[:300]}{where}")
        lines += filter(None, (self.note, self._unknown_model))
        lines += [] if self.live is None else self.live.lines()
        first = [self.headline, *(best.lines if best else ()), *(f"    {line}" for line in lines)]
        more = [] if self.hang is None else [str(self.hang)]
        blocks = [f"{'or ' * (i > 0 or best is not None)}{d}" for i, d in enumerate(below)]
        return "\n".join([*first, *blocks, *more])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        best, below, sure = self._parts()
        quoted = f"from <code>{escape(self.line[:300])}</code>" if self.line else ""
        rows = (*(f"try <code>{escape(step)}</code>" for step in self.steps),)
        rows += (*(f"if {escape(line)}" for line in self.if_known), escape(sure), quoted)
        rows += (escape(self.note), escape(self._unknown_model))
        heading, notes = f"<b>{escape(self.headline)}</b>", "".join(f"<br>{row}" for row in rows if row)
        cards = [best.card(heading, notes) if best else f"<p>{heading}{notes}</p>"]
        cards += ["" if self.live is None else self.live._repr_html_()]
        others = [d._repr_html_() for d in below]
        cards += [others.pop(0)] if others and best is None else []
        cards += [f"<details><summary>or else</summary>{''.join(others)}</details>"] if others else []
        return "".join([*cards, "" if self.hang is None else self.hang._repr_html_()])

    def __bool__(self) -> bool:
        """Whether the verdict is a sharding problem."""
        return self.verdict == SHARDING
