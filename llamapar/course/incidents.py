"""`lp.incidents`: what happened to others, which one call makes happen again and another one repairs.

An incident has a configuration, and a function of `replays.py` that runs it. `replay()` runs it as it was and
as it was mended; `repair(...)` runs what the reader changes, and says whether that is green. The words, with
the sources of what is quoted, stand in incidents.toml. torch is imported when something is run.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path

from llamapar.errors import LayoutError, LlamaparError, flag, one_of, whole
from llamapar.records.tables import Plain, Record, fold

WIDTH = 100
"""Columns of an incident as text."""

MOST = 4096
"""The largest number that a configuration takes."""


@dataclass(frozen=True, repr=False)
class Replay(Record):
    """Runs of an incident: each configuration, whether it was green, and what came out.

    runs: (what was changed, or "as it was"; green; what ranks, file or check said).
    """

    _left = True

    incident: Incident
    runs: tuple[tuple[str, bool, str], ...]

    @property
    def ok(self) -> bool:
        """Whether the last run is green."""
        return self.runs[-1][1]

    @property
    def _told(self) -> tuple[tuple[str, str], ...]:
        """The words of the incident: not for a try, or its fix would give the answer away."""
        return self.incident.told if len(self.runs) > 1 else ()

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        rows: list[list[object]] = [
            [changed, "ok" if green else "red", text] for changed, green, text in self.runs
        ]
        title = f"{self.incident.title}, with {self.incident.scale}"
        return title, ["configuration", "", "what came out"], rows, ""

    def text(self, width: int | None = None) -> str:
        """What was seen, why, what came out, and the fix in the words of those who made it."""
        told = [f"    {word:<4} {text}" for word, text in self._told]
        runs = [f"    {'ok' if green else 'red':<4} {changed}: {text}" for changed, green, text in self.runs]
        return fold("\n".join([self._table()[0], *told[:2], *runs, *told[2:]]), width or WIDTH)

    def _repr_html_(self) -> str:
        words = [f"<p><b>{escape(word)}</b> {escape(text)}</p>" for word, text in self._told]
        return "".join([*words[:2], super()._repr_html_(), *words[2:]])


@dataclass(frozen=True, repr=False)
class Incident(Record):
    """What happened once, with the configuration in which it happens again.

    number: in `lp.incidents`. source: where it was reported. lesson: the notebook that tells it. seen, why:
    in words. fix: quoted from fix_source. task: what `repair` is to reach. scale: how large the replay is.
    configuration: names and values that `repair` changes; choices: the words that a value may be; cure: what
    the mending changes.
    """

    _left = True

    number: int
    title: str
    source: str
    lesson: str
    run: str = field(repr=False)
    configuration: Plain
    cure: Plain
    seen: str
    why: str
    fix: str
    fix_source: str
    task: str
    scale: str
    choices: Plain = field(default_factory=dict)

    @property
    def told(self) -> tuple[tuple[str, str], ...]:
        """What was seen, why, and the fix as it was written, each under its word."""
        return ("seen", self.seen), ("why", self.why), ("fix", f"“{self.fix}” ({self.fix_source})")

    def replay(self) -> Replay:
        """The incident as it was, and as it was mended there. Takes seconds: ranks are processes."""
        before = self._ran("as it was", self.configuration)
        after = self._ran(_words(self.cure), self.configuration | self.cure)
        return Replay(self, (before, after))

    def repair(self, **changes: object) -> Replay:
        """The incident with other values in its configuration: green if that repairs it.

        changes: names of the configuration, with values of their kind. Raises LlamaparError for a name or a
        value that it does not take.
        """
        if not changes:
            known = _words(self.configuration)
            raise LlamaparError("nothing is changed", f"the configuration is {known}", ["repair(name=value)"])
        for name, value in changes.items():
            usual = self.configuration[one_of("setting", name, self.configuration, LlamaparError)]
            if isinstance(usual, str):
                one_of(name, value, self.choices[name], LlamaparError)
            elif isinstance(usual, bool):
                flag(name, value, LlamaparError)
            else:
                whole(name, value, 1, MOST, LlamaparError)
        return Replay(self, (self._ran(_words(changes), self.configuration | changes),))

    def _ran(self, words: str, configuration: Plain) -> tuple[str, bool, str]:
        from . import replays

        try:
            return words, *getattr(replays, self.run)(**configuration)
        except LayoutError as refused:
            return words, False, str(refused).partition("\n")[0]

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        rows: list[list[object]] = [
            ["seen", self.seen],
            ["reported", self.source],
            ["lesson", self.lesson],
            ["replayed with", self.scale],
            ["configuration", _words(self.configuration)],
            ["repair it", self.task],
        ]
        return f"Incident {self.number}: {self.title}", ["", ""], rows, ""


class Incidents(Record):
    """The incidents by number, from 1; shown as a table."""

    _left = True

    @cached_property
    def all(self) -> tuple[Incident, ...]:
        """Every incident, in order."""
        text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
        rows = tomllib.loads(text)["incident"]
        return tuple(Incident(number, **row) for number, row in enumerate(rows, 1))

    def __getitem__(self, number: int) -> Incident:
        """The incident of that number. Raises LlamaparError for a number that none has."""
        return self.all[whole("incident", number, 1, len(self.all), LlamaparError) - 1]

    def __iter__(self) -> Iterator[Incident]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        rows: list[list[object]] = [[one.number, one.title, one.seen, one.lesson] for one in self]
        foot = "lp.incidents[1].replay() makes it happen again; lp.incidents[1].repair(...) runs your change"
        return "Incidents", ["", "what", "what was seen", "lesson"], rows, foot


incidents = Incidents()
"""The incidents that can be replayed."""


def _words(values: Plain) -> str:
    """Names and values as code writes them."""
    return ", ".join(f"{name}={value!r}" for name, value in values.items())
