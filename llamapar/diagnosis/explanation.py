"""The result of `explain`: a verdict and ranked diagnoses, as text, HTML and plain values."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import Protocol

from llamapar.describe.options import OPTIONS
from llamapar.frameworks import FRAMEWORKS, Source
from llamapar.records.equations import Equation
from llamapar.records.tables import Plain
from llamapar.rules.fix_search import Fix

from .hypothesis import Level
from .known import MODEL_FIELDS, Known
from .live_facts import LiveFacts
from .vocabulary import CATEGORIES, SHARDING, UNKNOWN

_WIDTH = 100
_COUNTS = ("tp", "cp", "pp", "dp", "seq_len", "micro_batch", "global_batch", "quant_group", "virtual_stages")
_FLAGS = dict.fromkeys((*MODEL_FIELDS, "model"), "--model") | {n: OPTIONS[n].flag for n in _COUNTS}
_FLAGS["world"] = "--gpus"
"""A fact → the option of the command that gives it."""

_NOT_SHAPES = {"rank_mapping_hang", "memory_oom_layout"}
_NOT_OURS = {"types_differ", "not_there", "bad_data", "operator_rule"}
"""Subtypes of errors that any code has: a traceback says of them what there is to say."""


class Dumps(Protocol):
    """Flight records that have been read; the satellite `flight` makes them."""

    @property
    def broken(self) -> Mapping[int, str]:
        """Rank → the reason why its dump cannot be read."""
        ...


class HangPositions(Protocol):
    """The position of every rank in a hang: a record that the satellite `flight` makes."""

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

    def __str__(self) -> str:
        lines = [f"{self.level}: {self.cause}"]
        rows = [("", equation) for equation in self.equations]
        rows += [("try" if i == 0 else "or", str(fix)) for i, fix in enumerate(self.fixes)]
        rows += [("says", str(speaker)) for speaker in self.frameworks]
        rows += [("pass", self.narrows)] if self.needs else []
        for word, text in rows:
            lines += textwrap.wrap(text, _WIDTH, initial_indent=f"    {word:<4} ", subsequent_indent=" " * 9,
                                   break_on_hyphens=False)  # fmt: skip
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        equations = "".join(f"<br><code>{escape(equation)}</code>" for equation in self.equations)
        fixes = ", or ".join(f"<code>{escape(str(fix))}</code>" for fix in self.fixes)
        rows = "".join(
            f"<tr><td>{escape(FRAMEWORKS[s.framework].title)}</td><td>{escape(s.message)}</td>"
            f"<td>{s.source._repr_html_()}</td></tr>"
            for s in self.frameworks
        )
        return (
            f"<p><b>{self.level}</b>: {escape(self.cause)}{equations}"
            + (f"<br>try {fixes}" if fixes else "")
            + (f"<br>pass {escape(self.narrows)}" if self.needs else "")
            + "</p>"
            + (f"<details><summary>who says so</summary><table>{rows}</table></details>" if rows else "")
        )


@dataclass(frozen=True, repr=False)
class Explanation:
    """The verdict ("sharding", "not_sharding" or "unknown"), its reason, and the diagnoses, likeliest first.

    line: the root cause as quoted from the text. ranks: the ranks that reported it, if the text names them.
    known: the given facts, and those that the text states. note: what else in the log it explains. flight:
    for flight records, the position of every rank. live: for an exception, the facts of its frame.
    """

    verdict: str
    reason: str
    diagnoses: tuple[Diagnosis, ...]
    line: str = ""
    ranks: tuple[int, ...] = ()
    known: Known = field(default_factory=Known)
    note: str = ""
    flight: HangPositions | None = None
    live: LiveFacts | None = None

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
        return known and best is not None and best.subtype not in _NOT_OURS and best.level >= Level.POSSIBLE

    @property
    def needs(self) -> tuple[str, ...]:
        """Facts to supply next; those for the likeliest diagnosis come first."""
        return tuple(dict.fromkeys(need for d in self.diagnoses[:2] for need in d.needs))

    def as_dict(self) -> Plain:
        """Plain values for JSON: {"verdict": …, "diagnoses": [...]}."""
        plain: Plain = {"verdict": self.verdict, "diagnoses": [d.as_dict() for d in self.diagnoses]}
        plain |= {} if self.live is None else {"live": self.live.as_dict()}
        return plain if self.flight is None else {**plain, "flight": self.flight.as_dict()}

    @property
    def short(self) -> str:
        """The likeliest cause and its arithmetic in one line; "" if the verdict is open."""
        if self.best is None or self.verdict == UNKNOWN:
            return ""
        cause = self.best.cause
        return "; ".join((cause, *(e for e in self.best.equations if e not in cause)))

    @property
    def summary(self) -> str:
        """One line: the verdict and its reason."""
        words = {"sharding": "A sharding problem", "not_sharding": "Not a sharding problem"}
        return f"{words.get(self.verdict, 'Not known')}: {self.reason}"

    def __str__(self) -> str:
        head = [self.summary]
        if self.line:
            where = f"  (ranks {', '.join(map(str, self.ranks[:8]))})" if self.ranks else ""
            head.append(f"    from {self.line[:300]}{where}")
        if self.note:
            head.append(f"    {self.note}")
        head += [] if self.live is None else [f"    {line}" for line in self.live.lines()]
        more = [] if self.flight is None else [str(self.flight)]
        return "\n".join([*head, *(str(d) for d in self.diagnoses), *more])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        line = f"<br><code>{escape(self.line[:300])}</code>" if self.line else ""
        first, *rest = [d._repr_html_() for d in self.diagnoses] or [""]
        more = f"<details><summary>or else</summary>{''.join(rest)}</details>" if rest else ""
        note = f"<br>{escape(self.note)}" if self.note else ""
        ranks = "" if self.flight is None else self.flight._repr_html_()
        live = "" if self.live is None else self.live._repr_html_()
        return f"<p><b>{escape(self.summary)}</b>{line}{note}</p>{live}{first}{more}{ranks}"

    def __bool__(self) -> bool:
        """Whether the verdict is a sharding problem."""
        return self.verdict == SHARDING
