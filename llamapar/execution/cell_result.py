"""What a cell of `%%ranks` did, line by line: shapes on each rank, collectives, last values, errors."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from llamapar.describe.layout import Layout
from llamapar.diagnosis import Explanation
from llamapar.diagnosis.known import Known
from llamapar.diagnosis.of_ranks import explain_ranks
from llamapar.errors import PeerError
from llamapar.records.tables import Record, plural
from llamapar.records.trace import Place, Tape, TapeStep, grouped, some

from .capacity import choose_device
from .cells import (
    Cell,
    CellReport,
    Line,
    LineDone,
    copied,
    own_sources,
    read_names,
    report_of,
    run_cell,
)
from .engines.pool import pool
from .engines.processes import PRELOAD
from .replies import RankAnswer

_cells = itertools.count(1)

SHOWN = 60
"""Lines that the table shows; of more, the first ones."""


@dataclass(frozen=True, repr=False)
class CellResult(Record):
    """A cell on ranks. answers: one for each rank. not_copied: name → why the notebook's value stayed there.

    out: rank → the value of its last expression, where it could be sent.
    """

    _left = True

    layout: Layout
    source: str
    answers: tuple[RankAnswer, ...]
    not_copied: Mapping[str, str]

    @cached_property
    def reports(self) -> dict[int, CellReport]:
        """rank → what it did."""
        return {answer.rank: report_of(answer) for answer in self.answers}

    @property
    def out(self) -> dict[int, object]:
        """rank → the value of the cell's last expression; None where there is none or it cannot be sent."""
        return {rank: report.value for rank, report in self.reports.items()}

    @property
    def ok(self) -> bool:
        return all(answer.error is None for answer in self.answers)

    @cached_property
    def explanation(self) -> Explanation | None:
        """Why ranks raised: the first one's error, its line and what that read; None without an error."""
        failed = [answer for answer in self.answers if answer.error is not None]
        failed.sort(key=lambda answer: (isinstance(answer.error, PeerError), answer.at))
        if not failed:
            return None
        errors = {answer.rank: answer.error for answer in failed if answer.error is not None}
        found = explain_ranks(errors, Known.of(None, self.layout, None, {}))
        report = self.reports[failed[0].rank]
        line = (
            f"{report.stopped.where}  {report.stopped.code}: {found.line}" if report.stopped else found.line
        )
        operands = tuple((name, what, "", "") for name, what in report.read.items())
        return replace(found, line=line, operands=operands)

    @cached_property
    def lines(self) -> dict[Line, dict[int, LineDone]]:
        """line → rank → what it did, of the lines that did something on a rank, in order."""
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
        steps += self._stopped()
        coords = {r: self.layout.coord_of(r)._asdict() for r in self.reports}
        world = self.layout.world
        return Tape("cell", str(self.layout), tuple(steps), world, world, self.source, coords)

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

    def _stopped(self) -> list[TapeStep]:
        """The line that raised, as a step; none without an error."""
        errors = {a.rank: f"{type(a.error).__name__}: {a.error}" for a in self.answers if a.error is not None}
        at = next((self.reports[rank].stopped for rank in errors if self.reports[rank].stopped), None)
        return [TapeStep(at.where, at.code, "", None, {}, error=errors)] if at is not None else []

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        rows: list[list[object]] = []
        for line, of in itertools.islice(self.lines.items(), SHOWN):
            code = line.code
            for cells in itertools.zip_longest(_made(of) or [""], _sent(of), fillvalue=""):
                rows.append([line.where if code else "", code, *cells])
                code = ""
        title = f"{self.layout.world} ranks, {self.layout}"
        return title, ["line", "code", "made", "sent"], rows, "\n".join(self._foot(len(self.lines)))

    def _foot(self, lines: int) -> Iterable[str]:
        if lines > SHOWN:
            yield f"the first {SHOWN} of {plural(lines, 'line')}"
        printed = {a.rank: a.output.rstrip() for a in self.answers if a.output.strip()}
        written = {a.rank: a.stderr.rstrip() for a in self.answers if a.stderr.strip()}
        for word, texts in (("printed", printed), ("wrote to stderr", written)):
            for text, ranks in grouped(texts):
                yield from (f"{some(ranks)} {word}: {line}" for line in text.splitlines())
        values = {rank: report.text for rank, report in self.reports.items() if report.text}
        yield from (f"out  {some(ranks)}: {text}" for text, ranks in grouped(values))
        errors = {a.rank: self._error(a) for a in self.answers if a.error is not None}
        yield from (f"error  {some(ranks)}: {text}" for text, ranks in grouped(errors))
        if any(isinstance(a.error, PeerError) or not a.reusable for a in self.answers):
            yield "the ranks ended with the error: names made on them are gone"
        yield from (f"not copied: {name}, {why.splitlines()[0]}" for name, why in self.not_copied.items())

    def _error(self, answer: RankAnswer) -> str:
        """A rank's error with its line and what that read."""
        report, error = self.reports[answer.rank], answer.error
        text = f"{type(error).__name__}: {error}"
        if report.stopped is None:
            return text
        operands = "".join(f", {name}: {what}" for name, what in report.read.items())
        return f"{text}\n       at {report.stopped.where}  {report.stopped.code}{operands}"


def cell_on_ranks(source: str, layout: Layout, notebook: Mapping[str, object], timeout: float) -> CellResult:
    """Run a notebook's cell on the ranks of a layout. Who waits is printed after 5 s without progress.

    Raises LlamaparError for a cell that is no Python; RankFailure if ranks die or wait for too long.
    """
    names, refused = copied(read_names(source), notebook)
    used, backend, _ = choose_device("auto", "processes", layout.world)
    cell = Cell(source, f"<cell on ranks {next(_cells)}>", layout, names, own_sources(notebook))
    ranks = pool(layout.world, device=used, backend=backend, preload=PRELOAD)
    answers = ranks.run(run_cell, cell, timeout=timeout, told=_waiting, keep=True)
    return CellResult(layout, source, tuple(answers), refused)


def _waiting(states: Mapping[int, str]) -> None:
    print("no progress for 5 s:", *(f"{some(ranks)} {what}" for what, ranks in grouped(states)), sep="\n  ")


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
