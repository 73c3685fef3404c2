"""One Explanation for every failure: of a cell, a script, ranks, numbers that differ, or a pasted text.

What is shown has nine parts, always in this order: what is wrong, where, the operands, the edit, its proof,
what else was thought of, what to do next, how sure this is, and who says so. `Explanation.parts` puts them
together once; text, HTML and JSON have the same parts in the same order.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import Protocol

from llamapar.describe.options import OPTIONS
from llamapar.errors import printable, shown
from llamapar.frameworks import FRAMEWORKS, Source
from llamapar.late import late
from llamapar.place.difference_map import DifferenceMap
from llamapar.records.tables import Plain, aligned, html_rows
from llamapar.records.trace import some
from llamapar.rules.fix import Fix

from .hypothesis import Hypothesis, Level
from .known import MODEL_FIELDS, Known
from .live_facts import HEAD, LiveFacts
from .vocabulary import CATEGORIES, NOT_SHARDING, SHARDING, UNKNOWN

_WIDTH = 100
_COUNTS = ("tp", "cp", "pp", "dp", "seq_len", "micro_batch", "global_batch", "quant_group", "virtual_stages")
_FLAGS = dict.fromkeys((*MODEL_FIELDS, "model"), "--model") | {n: OPTIONS[n].flag for n in _COUNTS}
_FLAGS |= {"world": "--gpus", "layout": "layout (--tp, --cp, --pp, --dp)", "group size": "--quant-group"}
"""A fact → the option of the command that gives it."""

_VERDICTS = {SHARDING: "a sharding problem", NOT_SHARDING: "not a sharding problem", UNKNOWN: "not known"}

_NOT_SHAPES = {"rank_mapping_hang", "memory_oom_layout"}
"""Categories that no shape shows."""

_QUOTED = 300
"""Characters of a line of the text that are quoted."""

_MOST_RANKS = 8
"""Ranks that are listed, if they are no range."""

_LABEL = 7
"""Columns of the label before a row, the longest of which is "source"."""

_OPERAND = ("name", "here", "is", "whole")
"""Keys of an operand in JSON."""

_FOLDED = {"else": "or else", "source": "who says so"}
_COLOURS = {"-": "rgba(192,57,43,.18)", "+": "rgba(46,139,87,.22)"}
"""Behind the lines of a diff: they show in a light and in a dark theme."""

_ANSWER = "padding:4px 8px;background:rgba(46,139,87,.12);margin:"
_MARGINS = {"edit": "6px 0 0", "proof": "0 0 6px"}
"""Of an edit and its proof, which stand in one box."""

Row = tuple[str, ...]


class HangRecord(Protocol):
    """The calls of a hang that have not ended: a record that the optional room `hangs` makes."""

    def as_dict(self) -> Plain: ...
    def rows(self) -> list[tuple[str, ...]]: ...


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


@dataclass(frozen=True)
class Diagnosis(Hypothesis):
    """A candidate cause as it is shown.

    equations: its arithmetic as text. frameworks: those that say so. fixes: layouts that pass `check`, or
    advice in words if model and layout are unknown.
    """

    frameworks: tuple[Said, ...] = ()
    find_fixes: Callable[[], tuple[Fix | str, ...]] = field(default=tuple, compare=False, repr=False)

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
        if self.subtype:
            return f"{self.category} / {self.subtype}"
        return self.category

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


@dataclass(frozen=True, repr=False)
class Explanation:
    """Why something failed: a verdict with its reason, and what `parts` shows besides.

    verdict: "sharding", "not_sharding" or "unknown". what: the sentence to show, "" for verdict and reason.
    line: the root cause as quoted from a text; ranks: those that reported it. live: the facts of the frame
    that raised; operands: rows below its head, in place of the frame's own. edit: lines of a diff, "- …" and
    "+ …". proof: what came of the edit, in lines that begin with "proved" or "runs". rivals: what else it may
    be, and what was not tried. next: calls and commands that go on. level: how sure; None for that of the
    likeliest diagnosis. source: who says so. diagnoses: causes with their arithmetic, likeliest first. known:
    given facts, and those that a text states. hang: calls that have not ended.
    """

    verdict: str
    reason: str
    diagnoses: tuple[Diagnosis, ...] = ()
    line: str = ""
    ranks: tuple[int, ...] = ()
    known: Known = field(default_factory=Known)
    live: LiveFacts | None = None
    hang: HangRecord | None = None
    what: str = ""
    operands: tuple[tuple[str, ...], ...] = ()
    edit: tuple[str, ...] = ()
    proof: tuple[str, ...] = ()
    rivals: tuple[str, ...] = ()
    next: tuple[str, ...] = ()
    level: Level | None = None
    source: tuple[str, ...] = ()
    map: DifferenceMap | None = None

    @property
    def best(self) -> Diagnosis | None:
        if self.diagnoses:
            return self.diagnoses[0]
        return None

    @property
    def of_shapes(self) -> bool:
        """Whether to show it to a user who did not ask: it has the failing tensors, or a cause of shapes."""
        best = self.best
        category = ""
        if self.best:
            category = self.best.category
        if self.live is not None and self.live.operands:
            return category not in _NOT_SHAPES
        known = category not in _NOT_SHAPES and self.verdict != UNKNOWN
        return known and best is not None and best.level >= Level.POSSIBLE

    @property
    def needs(self) -> tuple[str, ...]:
        """Facts to supply next; those for the likeliest diagnosis come first."""
        return tuple(dict.fromkeys(need for d in self.diagnoses[:2] for need in d.needs))

    @property
    def cause(self) -> str:
        """The cause and its arithmetic in one line; "" if the verdict is open."""
        best = self._headlined
        if self.verdict == UNKNOWN or best is None:
            if self.verdict == UNKNOWN:
                return ""
            return self.reason
        return "; ".join([best.cause, *(e for e in best.equations if e not in best.cause)])

    @property
    def summary(self) -> str:
        """One line: `what`, or the verdict and its reason, no surer than the diagnosis that it rests on."""
        if self.what:
            return self.what
        words = _VERDICTS[self.verdict]
        best = self._headlined
        if best is not None and self.verdict == UNKNOWN:
            return f"Not known; possibly {self.reason}"
        if best is not None and best.level < Level.LIKELY:
            words = f"possibly {words}"
        return f"{words.capitalize()}: {self.reason}"

    @property
    def _headlined(self) -> Diagnosis | None:
        """The likeliest diagnosis, if the sentence gives its cause."""
        best = self.best
        if best is not None and best.cause in (self.what or self.reason):
            return best
        return None

    @property
    def speakers(self) -> tuple[Said, ...]:
        """The frameworks whose words these are, of the cause that the sentence gives."""
        if self._headlined:
            return self._headlined.frameworks
        return ()

    @cached_property
    def parts(self) -> dict[str, list[Row]]:
        """All nine parts in the order in which they are shown, each with its rows: (label, text).

        The operands' rows are the cells of a table, its head first. A part without rows is not shown.
        """
        best = self._headlined
        fixes = []
        if best:
            fixes = [str(fix) for fix in best.fixes]
        labels = ["or"] * len(fixes) if self.edit else ["try", *["or"] * len(fixes)]
        level = self.level or (best.level if best else None)
        rivals = self.diagnoses
        if best:
            rivals = self.diagnoses[1:]
        says = [*map(str, self.speakers), *self.source]
        return {
            "what": [("", self.summary)],
            "where": [("where", line) for line in self._where()],
            "operands": self._operands(),
            "edit": [*(("", line) for line in self.edit), *zip(labels, fixes, strict=False)],
            "proof": [
                *(("", line) for line in self.proof),
                *(("why", equation) for equation in (best.equations if best else ())),
            ],
            "else": [("else", text) for text in (*map(_rival, rivals), *self.rivals)],
            "next": [("next", text) for text in self._next()],
            "sure": [("sure", str(level))] if level else [],
            "source": [("source", text) for text in says],
        }

    def _where(self) -> Iterator[str]:
        if self.live is not None:
            yield self.live.place
            yield self.live.process
        # Under a traceback the words of the error already stand there, unless ranks raised them.
        if self.line and (self.live is None or self.ranks):
            yield self.line[:_QUOTED] + (f"  ({_ranks(self.ranks)})" if self.ranks else "")

    def _operands(self) -> list[Row]:
        if self.hang is not None:
            return self.hang.rows()
        rows = list(self.operands)
        if self.live is not None and not rows:
            rows = list(self.live.rows())
        if rows:
            return [HEAD, *rows]
        return []

    def _next(self) -> Iterator[str]:
        yield from self.next
        needs = self.best.needs if self.best and self.verdict != UNKNOWN else self.needs
        flags = dict.fromkeys(_FLAGS.get(need, need) for need in needs)
        if flags:
            yield f"pass {', '.join(flags)} to narrow this down"
        if self.known.unknown_model:
            name = shown(self.known.name, 60)
            yield f"give its config.json for its sizes: no model {name} is known here"

    def as_dict(self) -> Plain:
        """Plain values for JSON: the nine parts in their order, then the verdict and the diagnoses."""
        plain: Plain = {name: [row[-1] for row in rows] for name, rows in self.parts.items()}
        rows = []
        if self.hang is None:
            rows = self._operands()[1:]
        plain["operands"] = [dict(zip(_OPERAND, row, strict=True)) for row in rows]
        plain |= {"what": self.summary, "sure": next(iter(plain["sure"]), "")}
        plain |= {"verdict": self.verdict, "diagnoses": [one.as_dict() for one in self.diagnoses]}
        if self.hang is None:
            return plain
        return {**plain, "hang": self.hang.as_dict()}

    def __str__(self) -> str:
        return "\n".join(line for name, rows in self.parts.items() for line in _text(name, rows))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        links = {}
        for said in self.speakers:
            title = escape(FRAMEWORKS[said.framework].title)
            links[str(said)] = f"{title}: {escape(said.message)} ({said.source._repr_html_()})"
        what, *parts = (_html(name, rows, links) for name, rows in self.parts.items() if rows)
        if self.map is not None:
            still = late("view")(self.map)._repr_mimebundle_()["text/html"]
            what += f"<p><small>{escape(self.map.words)}, marked in orange</small><br>{still}</p>"
        body = "".join([what, *parts])
        return f'<div style="border-left:4px solid #c0392b;padding-left:12px">{body}</div>'


def _rival(one: Diagnosis) -> str:
    """A diagnosis that is not the first, in a line."""
    words = [f"{one.level}: {one.cause}", *one.equations]
    return "; ".join([*words, *(f"try {fix}" for fix in one.fixes[:1])])


def _ranks(ranks: tuple[int, ...]) -> str:
    """Ranks in words: "ranks 0–7", "ranks 0, 2 and 30 more"."""
    regular = ranks == tuple(range(ranks[0], ranks[-1] + 1))
    if regular or len(ranks) <= _MOST_RANKS:
        return some(ranks)
    return f"{some(ranks[:_MOST_RANKS])} and {len(ranks) - _MOST_RANKS} more"


def _without_empty(rows: list[Row]) -> list[Row]:
    """A table, its head first, without columns that are empty below it."""
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    return list(zip(*columns, strict=True))


def _text(name: str, rows: list[Row]) -> Iterator[str]:
    """The lines of a part: a sentence, a table, a diff, or rows with a label before the first of a kind."""
    if name == "operands":
        yield from (f"{'':{_LABEL}}{printable(line)}" for line in aligned(_without_empty(rows)))
        return
    before = ""
    for label, text in rows:
        line = printable(text).replace("\n", " ")
        start = f"{'' if label == before != 'or' else label:{_LABEL}}"
        if name in ("where", "next"):  # A quoted line and a command are copied, so they stay whole.
            yield start + line
        elif label:
            indent = " " * _LABEL
            yield from textwrap.wrap(
                line, _WIDTH, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False
            )
        else:
            yield line
        before = label


def _html(name: str, rows: list[Row], links: Mapping[str, str]) -> str:
    """A part as HTML; who says so, and what else it may be, are folded. links: text → the same with links."""
    if name == "what":
        return f"<p><b>{escape(rows[0][1])}</b></p>"
    if name == "operands":
        head, *cells = _without_empty(rows)
        shown = [[f"<code>{escape(row[0])}</code>", *map(escape, row[1:])] for row in cells]
        return html_rows(shown, head, ' style="text-align:left"')
    lines = []
    for label, text in rows:
        words = links.get(text) or escape(text)
        if label and name in ("where", "edit", "proof"):
            words = f"<code>{words}</code>"
        if not label:
            words = f'<code style="background:{_COLOURS.get(text[:1], "none")}">{words}</code>'
        elif name not in ("where", "else", "source"):
            words = f'<span style="opacity:.65">{label}</span> {words}'
        lines.append(words)
    style = ""
    if name in _MARGINS and not rows[0][0]:
        style = f' style="{_ANSWER}{_MARGINS[name]}"'
    body = f"<p{style}>{'<br>'.join(lines)}</p>"
    if name in _FOLDED:
        return f"<details><summary>{_FOLDED[name]}</summary>{body}</details>"
    return body
