"""What a cell of `%%ranks` did, line by line: shapes on each rank, collectives, last values, errors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from llamapar.describe.layout import Layout
from llamapar.errors import PeerError
from llamapar.records.tables import plural
from llamapar.records.trace import Place, Tape, TapeStep, grouped, some

from .cells import Cell, CellReport, Line, LineDone
from .replies import RankAnswer

SHOWN = 60
"""Lines that the table shows; of more, the first ones."""


LinesOfRanks = dict[Line, dict[int, LineDone]]
"""line → rank → what it did there, of the lines that did something on a rank, in order."""


@dataclass(frozen=True)
class CellLines:
    """What a cell of `%%ranks` did. answers: one for each rank. not_copied: name → why the notebook's value
    stayed there.
    """

    cell: Cell
    answers: tuple[RankAnswer, ...]
    not_copied: Mapping[str, str]

    @property
    def layout(self) -> Layout:
        return self.cell.layout

    @cached_property
    def reports(self) -> dict[int, CellReport]:
        """rank → what it did, of one that raised until then."""
        found = {}
        for answer in self.answers:
            told = answer.value
            if answer.error is not None:
                told = getattr(answer.error, "cell_report", None)
            found[answer.rank] = told if isinstance(told, CellReport) else CellReport()
        return found

    @property
    def out(self) -> dict[int, object]:
        """rank → the value of the cell's last expression; None where there is none or it cannot be sent."""
        return {rank: report.value for rank, report in self.reports.items()}

    @cached_property
    def lines(self) -> LinesOfRanks:
        """What each line did."""
        # A line that only some ranks ran goes where it stands between theirs.
        merged: list[Line] = []
        for report in self.reports.values():
            at = 0
            for line in report.done:
                if line not in merged:
                    merged.insert(at, line)
                at = merged.index(line) + 1
        nothing = LineDone({}, [])
        return {
            line: {r: report.done.get(line, nothing) for r, report in self.reports.items()} for line in merged
        }

    @cached_property
    def tape(self) -> Tape:
        """The cell as `lp.watch(ranks)` shows it: each line's tensors with their numbers, if they are few."""
        steps: list[TapeStep] = []
        latest: dict[str, int] = {}
        for line, of in self.lines.items():
            events = {r: tuple(done.events) for r, done in of.items()}
            before = dict(latest)
            for name in _names(of) or [""]:
                here = {r: done.made[name] for r, done in of.items() if name in done.made}
                values = {r: one.value for r, one in here.items() if one.value is not None}
                read = dict.fromkeys(n for one in here.values() for n in one.reads if n in before)
                latest[name] = len(steps)
                shapes = {r: tuple(t.shape) for r, t in values.items()}
                depth = int(not line.where.startswith("cell:"))
                steps.append(
                    TapeStep(
                        line.where,
                        line.code,
                        name,
                        None,
                        shapes,
                        self._places(values),
                        values=values,
                        reads=tuple(before[n] for n in read),
                        events=events if any(events.values()) else {},
                        depth=depth,
                    )
                )
        errors = {a.rank: f"{type(a.error).__name__}: {a.error}" for a in self.answers if a.error is not None}
        at = next((self.reports[rank].stopped for rank in errors if self.reports[rank].stopped), None)
        if at is not None:
            steps.append(TapeStep(at.where, at.code, "", None, {}, error=errors))
        coords = {r: self.layout.coord_of(r)._asdict() for r in self.reports}
        world = self.layout.world
        return Tape("cell", str(self.layout), tuple(steps), world, world, self.cell.source, coords)

    def _places(self, values: Mapping[int, Tensor]) -> dict[str, Place]:
        """axis → whether its ranks have copies, or each numbers of its own."""
        found = {}
        for axis in self.layout.axes if len(values) == self.layout.world else ():
            if self.layout.size(axis) > 1:
                firsts = {
                    r: self.layout.rank_of(*self.layout.coord_of(r)._replace(**{axis: 0})) for r in values
                }
                alike = all(torch.equal(values[r], values[first]) for r, first in firsts.items())
                found[axis] = Place("copy" if alike else "own")
        return found

    def shown(self) -> tuple[list[str], list[list[object]]]:
        """Head and rows of the table of its lines."""
        rows: list[list[object]] = []
        for line, of in itertools.islice(self.lines.items(), SHOWN):
            code = line.code
            for cells in itertools.zip_longest(_made(of) or [""], _sent(of), fillvalue=""):
                rows.append([line.where if code else "", code, *cells])
                code = ""
        return ["line", "code", "made", "sent"], rows

    def sentences(self) -> Iterator[str]:
        """What ranks printed and returned, and what became of their names."""
        if len(self.lines) > SHOWN:
            yield f"the first {SHOWN} of {plural(len(self.lines), 'line')}"
        printed = {a.rank: a.output.rstrip() for a in self.answers if a.output.strip()}
        written = {a.rank: a.stderr.rstrip() for a in self.answers if a.stderr.strip()}
        for word, texts in (("printed", printed), ("wrote to stderr", written)):
            for text, ranks in grouped(texts):
                yield from (f"{some(ranks)} {word}: {line}" for line in text.splitlines())
        values = {rank: report.text for rank, report in self.reports.items() if report.text}
        yield from (f"out  {some(ranks)}: {text}" for text, ranks in grouped(values))
        if any(isinstance(a.error, PeerError) or not a.reusable for a in self.answers):
            yield "the ranks ended with the error: names made on them are gone"
        yield from (f"not copied: {name}, {why.splitlines()[0]}" for name, why in self.not_copied.items())

    def stopped_at(self, rank: int) -> str:
        """The line at which a rank's error came, and what that read; a line below the error."""
        report = self.reports[rank]
        if report.stopped is None:
            return ""
        operands = "".join(f", {name}: {what}" for name, what in report.read.items())
        return f"\n       at {report.stopped.where}  {report.stopped.code}{operands}"


def _names(of: Mapping[int, LineDone]) -> list[str]:
    return list(dict.fromkeys(name for done in of.values() for name in done.made))


def _made(of: Mapping[int, LineDone]) -> list[str]:
    """What a line made: "q: [2, 64, 8, 8] float32", with the ranks where they differ."""
    found = []
    for name in _names(of):
        own = {r: done.made[name].what if name in done.made else "nothing" for r, done in of.items()}
        found += [f"{name}: {text}" for text in _by_rank(own)]
    return found


def _sent(of: Mapping[int, LineDone]) -> list[str]:
    """The collectives of a line: "all_reduce tp 1,024 B", with the ranks where they differ."""
    own = {
        r: ", ".join(f"{e.kind} {e.axis} {list(e.shape)} {e.sent:,} B" for e in done.events)
        for r, done in of.items()
    }
    return [text for text in _by_rank(own) if text]


def _by_rank(own: Mapping[int, str]) -> list[str]:
    """Each distinct text with its ranks; one text alone where all ranks have the same."""
    groups = list(grouped(own))
    if len(groups) == 1:
        return [groups[0][0]]
    return [f"{text or 'nothing'} ({some(ranks)})" for text, ranks in groups]
