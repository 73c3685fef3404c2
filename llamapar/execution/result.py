"""The result of a run, whatever ran it: a program, a module, a cell of `%%ranks`, one dry rank, torchrun.

`rows` say what was compared, `where` the first difference, `explanation` why something failed. What a run
does not have says why when it is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from llamapar.describe.layout import Layout
from llamapar.diagnosis import Explanation, newest
from llamapar.diagnosis.known import Known
from llamapar.diagnosis.live_facts import live_facts
from llamapar.diagnosis.of_ranks import explain_ranks
from llamapar.errors import Choice, LlamaparError, PeerError
from llamapar.records.losses import LossCurve
from llamapar.records.tables import Plain, Record, fold, html_table, paragraphs, plural, readable_bytes
from llamapar.records.trace import Tape, Trace, grouped, sent_in_words, some

from . import tape as tapes
from .body import RankReport, Task, Work, unpiped
from .cell_lines import CellLines, LinesOfRanks
from .coverage import untouched
from .differences import Difference, few_names, first_kind, of_program
from .module_facts import ModuleFacts
from .module_run import RAISED_IN
from .module_task import ModuleTask
from .rank_memory import RankMemory
from .rows import GRADIENT, OUTPUT, WEIGHT, Row, in_json, table_of

BLOWN_UP = (
    "updated weights: AdamW's first step is lr·g/(|g| + 1e-8), so a gradient's rounding of 1e-15 may be "
    "1e-10 in a weight, and where a gradient is all rounding its weight moves either way"
)

NO_NUMBERS = ("a dry run has no numbers", Choice.of(engine="local"))
NOT_RANK_0 = ("rank 0 of torchrun alone holds tensors", "result.outputs on rank 0")


class Absent(LlamaparError, AttributeError):
    """What a result does not have: why, and where it is to be had."""


@dataclass(frozen=True, repr=False)
class Result(Record):
    """What came of a run, and how it compares with one process.

    name: of the program or the module. ran: what the ranks ran. reports: one for each rank. against: what the
    rows compare with, "" where nothing is. tolerance: the largest error that counts as equal, for this dtype
    or for two roundings of this size. why: check refuses the layout. loss_curve: of training steps.
    module: more about a module. memory: of a dry run. cell: of `%%ranks`. no_tensors: why there are none, and
    where to get them.
    repair: adds to an explanation the edit of the user's own code that mends it. parted: where two runs part.
    """

    name: str
    ran: Task | ModuleTask | CellLines | Tape
    engine: str
    device: str
    reports: tuple[RankReport, ...]
    notes: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    against: str = ""
    tolerance: float = 0.0
    why: str = ""
    loss_curve: LossCurve | None = None
    module: ModuleFacts | None = None
    memory: RankMemory | None = None
    no_tensors: tuple[str, object] | None = None
    repair: Callable[[Result, Explanation], Explanation] | None = None
    parted: Difference | None = None

    # -- what ran --------------------------------------------------------------------------------

    @property
    def task(self) -> Task:
        """The program in its setting. Raises Absent for a module and a cell."""
        if isinstance(self.ran, Task):
            return self.ran
        raise Absent("task is absent", f"{self.name} is no program: result.ran has what ran")

    @property
    def cell(self) -> CellLines | None:
        if isinstance(self.ran, CellLines):
            return self.ran
        return None

    @property
    def layout(self) -> Layout:
        if isinstance(self.ran, Tape):
            degrees = (part.split("=") for part in self.ran.layout.split())
            return Layout.of({axis: int(degree) for axis, degree in degrees})
        return self.ran.layout

    @property
    def ranks(self) -> int:
        """Number of ranks that ran."""
        return len(self.reports)

    # -- what ranks did --------------------------------------------------------------------------

    @property
    def errors(self) -> dict[int, BaseException]:
        """rank → the error it raised, or was waiting in; the first rank to raise comes first."""
        raised = [r for r in self.reports if r.error is not None]
        raised.sort(key=lambda r: (isinstance(r.error, PeerError), r.at))
        return {r.rank: r.error for r in raised if r.error is not None}

    @property
    def tracebacks(self) -> dict[int, str]:
        """rank → the traceback of its error, as text."""
        return {r.rank: r.traceback for r in self.reports if r.error is not None}

    @property
    def traces(self) -> dict[int, Trace]:
        return {r.rank: r.trace for r in self.reports if r.trace is not None}

    @property
    def trace(self) -> Trace:
        """The trace of the first rank."""
        return self.reports[0].trace or Trace(self.reports[0].rank)

    @property
    def outputs(self) -> dict[int, dict[str, Tensor]]:
        """rank → name → its piece; a single returned tensor has the name "out"."""
        self._require_tensors("outputs")
        return {r.rank: r.outputs for r in self.reports}

    @property
    def gradients(self) -> dict[int, dict[str, Tensor]]:
        """rank → argument or parameter → gradient of its piece, after the sums over ranks."""
        self._require_tensors("gradients")
        return {r.rank: r.gradients for r in self.reports}

    @property
    def state(self) -> dict[int, dict[str, Tensor]]:
        """rank → name → its piece of the weights after the last step, and of AdamW's state."""
        self._require_tensors("state")
        return {r.rank: r.state for r in self.reports}

    def _require_tensors(self, name: str) -> None:
        if self.no_tensors is not None:
            why, choose = self.no_tensors
            raise Absent(f"{name}: absent from this result", why, [choose])

    @property
    def work(self) -> dict[int, Work]:
        """rank → its timed operations in a pipeline, and its largest number of micro-batches in flight."""
        return {r.rank: r.work for r in self.reports}

    @cached_property
    def tape(self) -> Tape:
        """The tape of shapes after each assignment, from the meta device; of a cell what its lines made.

        Raises Absent for a module.
        """
        if self.cell is not None:
            return self.cell.tape
        if isinstance(self.ran, Tape):
            return self.ran
        if isinstance(self.ran, Task):
            return tapes.shape_tape(unpiped(self.ran), self.why)
        raise Absent("tape: absent from this result", "a module's lines are not followed", ["%%ranks"])

    @property
    def out(self) -> dict[int, object]:
        """rank → the value of a cell's last expression; None where there is none or it cannot be sent.

        Raises Absent for what is no cell.
        """
        return self._of_cell("out").out

    @property
    def lines(self) -> LinesOfRanks:
        """line → rank → what it did there, of a cell. Raises Absent for what is no cell."""
        return self._of_cell("lines").lines

    def _of_cell(self, name: str) -> CellLines:
        if self.cell is None:
            raise Absent(f"{name}: absent from this result", f"{self.name} is no cell", ["%%ranks"])
        return self.cell

    # -- how it compares -------------------------------------------------------------------------

    def errors_of(self, kind: str) -> dict[str, float]:
        """Name → max|Δ| / max|whole| over all ranks, of the rows of a kind; for training steps, after the
        first.
        """
        return {row.name: row.error for row in self.rows if row.kind == kind and row.error is not None}

    @property
    def output_errors(self) -> dict[str, float]:
        return self.errors_of(OUTPUT)

    @property
    def gradient_errors(self) -> dict[str, float]:
        return self.errors_of(GRADIENT)

    @property
    def max_error(self) -> float | None:
        """Largest of output_errors; None if nothing was compared."""
        return max(self.output_errors.values(), default=None)

    @property
    def max_grad_error(self) -> float | None:
        return max(self.gradient_errors.values(), default=None)

    @property
    def where(self) -> str:
        """The first difference: a module's submodule, "output out", or what a rank raised; "" if nothing
        differs.
        """
        for rank, error in self.errors.items():
            return self._raised_in(rank) or f"rank {rank} raises {type(error).__name__}"
        if self.module is not None and self.module.culprit is not None:
            return self.module.culprit.name or "the module itself"
        off = first_kind(self.rows)
        return f"{off[0].kind} {few_names(off)}".strip() if off else ""

    def _raised_in(self, rank: int) -> str:
        """The submodule in which a rank raised; "" where none is known."""
        found = re.findall(f"{RAISED_IN}(.*)", self.tracebacks[rank])
        if found:
            return str(found[-1])
        return ""

    @property
    def ok(self) -> bool:
        """Whether every rank finished and everything compared is equal within the tolerance."""
        drew = self.module is not None and self.module.drew
        return not (self.errors or drew) and all(row.ok for row in self.rows)

    @cached_property
    def explanation(self) -> Explanation | None:
        """Why ranks raised, the first that did first, or the first number that differs; None without a
        failure.
        """
        if not self.errors:
            if self.difference is None:
                return None
            return self._repaired(self.difference.explanation)
        texts = self.tracebacks
        of_frame = {r: bool(e.__traceback__ or live_facts(e)) for r, e in self.errors.items()}
        raised = {r: e if of_frame[r] else texts[r] or e for r, e in self.errors.items()}
        if isinstance(self.ran, Task):
            return tapes.explain_failure(self.ran, raised)
        return self._repaired(explain_ranks(raised, Known.of(None, self.layout, None, {})))

    @cached_property
    def difference(self) -> Difference | None:
        """How the numbers differ from one process's, looked for when it is read; None if they do not."""
        if self.errors or all(row.ok for row in self.rows):
            return None
        if self.parted is not None:
            return self.parted
        if isinstance(self.ran, Task):
            return of_program(self.ran, self.reports, self.rows)
        if self.module is not None and self.module.difference is not None:
            return self.module.difference
        return Difference(self.where)

    def _repaired(self, found: Explanation) -> Explanation:
        """The explanation with the edit that repairs the user's own code or plan, where one can be tried."""
        if self.repair is None:
            return found
        return self.repair(self, found)

    @cached_property
    def untouched(self) -> tuple[str, ...]:
        """What the inputs never touched, in sentences: a slip there could not have shown."""
        return untouched(self.ran) if self.rows and isinstance(self.ran, Task) else ()

    # -- showing ---------------------------------------------------------------------------------

    @property
    def details(self) -> tuple[Record, ...]:
        """What the command and the Run tab show below."""
        return (self.memory.curve,) if self.memory is not None else ()

    @property
    def summary(self) -> str:
        """One line: what ran, where, and how it compares."""
        if self.cell is not None:
            return f"{plural(self.ranks, 'rank')}, {self.layout}"
        ranks = f"{plural(self.ranks, 'rank')}, {self.engine}, {self.device}"
        if self.engine == "dry":
            ranks = f"rank {self.reports[0].rank} of {self.layout.world}, dry"
        what = f"{self.name}  {self.layout} ({ranks})"
        if isinstance(self.ran, Task) and self.ran.fault:
            what += f" with {self.ran.fault}"
        return f"{what}: {self._verdict()}"

    def _verdict(self) -> str:
        """The end of the summary."""
        for rank, error in self.errors.items():
            inside = ""
            if self._raised_in(rank):
                inside = f" in {self._raised_in(rank)}"
            return f"rank {rank} raised {type(error).__name__}{inside}"
        if self.memory is not None:
            return f"{readable_bytes(self.memory.peak_bytes)} at its peak"
        if self.module is not None and self.module.drew:
            return self.module.summary
        if not self.against:
            return "ran, nothing to compare with"
        if self.ok:
            return f"equal to {self.against}"
        if self.module is None:
            return f"DIFFERS from {self.against}"
        return f"DIFFERS from {self.against} at {self.where}"

    def as_dict(self) -> Plain:
        """Plain values for JSON."""
        found: Plain = {
            "ok": self.ok,
            "name": self.name,
            "max_error": in_json(self.max_error),
            "max_grad_error": in_json(self.max_grad_error),
            "where": self.where,
            "rows": [row.as_dict() for row in self.rows],
            "engine": self.engine,
            "device": self.device,
            "ranks": self.ranks,
            "events": len(self.trace.events),
            "collectives": self.trace.by_kind,
            "bytes": self.trace.by_axis,
            "errors": {str(r): f"{type(e).__name__}: {e}" for r, e in self.errors.items()},
            "explanation": self.explanation.as_dict() if self.explanation is not None else None,
            "untouched": list(self.untouched),
            "notes": list(self.notes),
        }
        if self.loss_curve is not None:
            found["losses"] = in_json(self.loss_curve.losses)
            found["norms"] = in_json(self.loss_curve.norms)
        parts = {"module": self.module, "memory": self.memory}
        return found | {name: part.as_dict() for name, part in parts.items() if part is not None}

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        if self.cell is not None:
            head, rows = self.cell.shown()
        elif self.rows:
            head, rows = self.compared()
        else:
            head = ["axis", "collective", "times", "sent"]
            counts = ((c, f"{c['count']:,}", f"{c['bytes']:,}") for c in self.trace.by_kind)
            rows = [[c["axis"], c["kind"], times, sent] for c, times, sent in counts]
        foot = [*self.failures]
        if any(row.kind == WEIGHT for row in self.rows):
            foot.append(BLOWN_UP)
        for part in (self.module, self.memory, self.cell):
            if part is not None:
                foot += part.sentences()
        if self.rows and self.traces:
            foot.append(sent_in_words(self.trace))
        foot += [f"not exercised: {what}" for what in self.untouched]
        return self.summary, head, rows, "\n".join([*foot, *self.notes])

    def compared(self) -> tuple[list[str], list[list[object]]]:
        """Head and rows of the table of what was compared; many rows that agree are grouped."""
        return table_of(self.rows, self.tolerance, shapes=self.module is not None)

    @property
    def failures(self) -> list[str]:
        """The errors of ranks, a line each, equal ones of several ranks once; of a cell with its line."""
        told = {}
        for rank, error in self.errors.items():
            text = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            told[rank] = text + (self.cell.stopped_at(rank) if self.cell is not None else "")
        return [f"error  {some(sorted(ranks))}: {text}" for text, ranks in grouped(told)]

    def text(self, width: int | None = None) -> str:
        """The table as text, with lines of at most `width` characters if given, and why it failed."""
        table = super().text(width)
        if self.explanation is None:
            return table
        return f"{table}\n{fold(str(self.explanation), width)}"

    def _repr_html_(self) -> str:
        title, head, rows, foot = self._table()
        shapes: tuple[int, ...] = ()
        if self.module is not None:
            shapes = (2, 3)
        left = self.cell is not None
        why = ""
        if self.explanation is not None:
            why = self.explanation._repr_html_()
        return html_table(title, head, rows, left=left, code=shapes) + paragraphs(foot) + why


def remembered(result: Result) -> Result:
    """The result; one that is not ok is what `%explain` is about from now on."""
    if not result.ok:
        newest.note(result)
    return result
