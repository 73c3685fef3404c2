"""The edit that repairs what ranks raised, tried on all ranks: of a module's code, of its plan, of a cell.

A module runs on all ranks as LocalTensors in a copy of this process, and beside itself whole. A cell runs on
ranks of their own, which are forked for it and end with it. `diagnosis.edits` says what an edit is, and in
which order edits are tried.
"""

from __future__ import annotations

import ast
import linecache
import pickle
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache, partial
from types import FrameType

import torch.distributed as dist
from torch import Tensor

from llamapar.describe.layout import Layout
from llamapar.describe.options import Values
from llamapar.diagnosis.edits.attempts import Attempts
from llamapar.diagnosis.edits.candidates import Edit
from llamapar.diagnosis.edits.child import refuse_effects, run_apart, unsafe
from llamapar.diagnosis.edits.degrees import Degree
from llamapar.diagnosis.edits.editing import Edits, swap_code
from llamapar.diagnosis.edits.failure import Facts
from llamapar.diagnosis.edits.program import Program, Span
from llamapar.diagnosis.edits.proof import DIFFERS, OPEN, PROVED, RUNS, Compared, Outcome, ProofRuns
from llamapar.diagnosis.edits.repair import repaired
from llamapar.diagnosis.edits.trial import Trial, retry, run_again
from llamapar.diagnosis.explanation import Explanation
from llamapar.diagnosis.hypothesis import Level
from llamapar.errors import LlamaparError
from llamapar.records.frames import Held
from llamapar.records.tables import plural

from .cell_lines import CellLines
from .cells import Cell, names_given, sent_value
from .engines import local, processes
from .engines.pool import Pool
from .engines.rank import Context, cells_here
from .module_reading import FIT, largest
from .module_rows import judged
from .module_run import ModuleOutcome, run_module_rank
from .module_tape import on_local_ranks
from .module_task import ModuleTask
from .plan_edits import PlanEdit, mended
from .result import Result
from .rows import GRADIENT

_RANKS = "<ranks>"
"""What stands for the last cell of a program that runs a module."""

_SECONDS, _EACH = 8.0, 4.0
"""Seconds for all trials of a module or a cell, and for one of them, which runs all ranks."""

_OWN_PART = re.compile(r"\.chunk\(_deg_, (\d+)\)\[_rank_\]")
"""A rank's part as an edit writes it; where all ranks share one Python, no list can be asked for it."""


def repaired_cell(result: Result, found: Explanation) -> Explanation:
    """The explanation with the edit of the cell that makes its ranks run, and equal one process."""
    ran = result.cell
    if ran is None or result.device != "cpu" or found.live is None or unsafe():
        return found
    with closing(_OnRealRanks(ran, result.errors)) as search:
        return _with_code(search, found)


def repaired_module(result: Result, found: Explanation) -> Explanation:
    """The explanation with the edit of the code or of the plan that makes the ranks equal one process."""
    task = result.ran
    if not isinstance(task, ModuleTask) or unsafe():
        return found
    local.close_ranks()
    search = None
    if result.errors:
        search = _OnLocalRanks(task, next(iter(result.errors.values())))
    # A size whose name says that ranks divide it comes before the plan; other edits of the code after it.
    meant = False
    if search is not None and search.same:
        assert isinstance(search.facts, Facts)
        meant = any(all(edit.meant for edit in edits) for edits in search.facts.here)
    if meant:
        found = _with_code(search, found)
    if any(line.startswith("proved") for line in found.proof) or not isinstance(task.plan, dict):
        return found
    edit = run_apart(partial(_mended_plan, task, result.where), _SECONDS + 1)
    if edit is None:
        if meant:
            return found
        return _with_code(search, found)
    how = f"proved: equals one process on {plural(task.layout.world, 'rank')}"
    found = replace(found, edit=edit.lines, proof=(f"{how}; {plural(edit.tried, 'style')} tried",))
    if result.errors:
        needs = "needs no style"
        if edit.new:
            needs = f"needs {edit.new}"
        what = f'"{edit.name}" {needs} in the plan: with it the ranks equal one process'
        found = replace(found, what=what, diagnoses=(), next=(), rivals=(), level=Level.CERTAIN)
    return found


def _with_code(search: Attempts | None, found: Explanation) -> Explanation:
    """The explanation with the edit of the module's code, if its failure comes again."""
    if search is None or not search.same:
        return found
    search.begun = time.monotonic()  # Styles of a plan may have been tried since its control run.
    return repaired(search.program, search, found)


# -- a module, on ranks in one process -------------------------------------------------------------


def _exact(task: ModuleTask) -> tuple[ModuleTask, ModuleOutcome]:
    """The task in float64, where rounding decides nothing, and what one process makes of it."""
    exact = replace(task.in_float64(), followed=False)
    return exact, run_module_rank(exact, None)[0]


def _differences(exact: ModuleTask, one: ModuleOutcome) -> list[str]:
    """What differs between the ranks of a task and one process."""
    outcomes = on_local_ranks(exact)
    blank = Result(one.name, exact, "local", "cpu", (), tolerance=FIT)
    rows = judged(blank, exact, one, outcomes).rows
    # A gradient that is nothing but rounding, as of a bias of keys, differs by as much as it is.
    sizes = {name: largest(t) for name, t in one.gradient.items() if t.any()}
    least = FIT * max(sizes.values(), default=0.0)
    noise = {name for name, size in sizes.items() if size < least}
    wrong = [row for row in rows if not row.ok and not (row.kind == GRADIENT and row.name in noise)]
    return [f"{row.kind} {row.name}".strip() for row in wrong]


def _mended_plan(task: ModuleTask, near: str) -> PlanEdit | None:
    """In a child: the edit of the plan with which the ranks equal one process."""
    exact, one = _exact(task)
    return mended(exact, near, lambda task: not _differences(task, one), _SECONDS)


def _of_any_rank(edit: Edit) -> Edit:
    """An edit as code for every rank: a module names no rank, so that of the control run was written."""
    return replace(edit, new=re.sub(r"(\.chunk\(\w+, \d+\))\[0\]$", r"\1[rank]", edit.new))


class _ModuleProgram(Program):
    """A module as a program: to execute it is to run it on all ranks."""

    task: ModuleTask

    def frames(self, error: BaseException) -> list[tuple[FrameType, Span]]:
        """As of any program; the files of a module are known by the frames that failed in them."""
        self.read_files(error)
        return super().frames(error)

    def execute(self, file: str, body: Sequence[ast.stmt]) -> None:
        on_local_ranks(self.task)


class _OnLocalRanks(Attempts):
    """Trials of edits of a module's code, each on all ranks in a child."""

    def __init__(self, task: ModuleTask, error: BaseException) -> None:
        self.task = task
        axes = {axis: task.layout.size(axis) for axis in task.layout.axes if task.layout.size(axis) > 1}
        program = _ModuleProgram({_RANKS: ""}, axes, {})
        program.task = task
        super().__init__(program, error, _SECONDS)
        if self.same:
            assert isinstance(self.facts, Facts)
            for edits in (*self.facts.here, self.facts.watch, tuple(self.facts.elsewhere)):
                program.files |= {edit.file: "".join(linecache.getlines(edit.file)) for edit in edits}
            program.find_functions()

    def _control(self) -> Facts | str | None:
        # The group of its ranks has ended by the time of an error, so that their parts look whole.
        facts = super()._control()
        if not isinstance(facts, Facts):
            return facts
        here = [tuple(map(_of_any_rank, edits)) for edits in facts.here]
        elsewhere = [_of_any_rank(edit) for edit in facts.elsewhere]
        return replace(facts, whole=False, near=True, here=here, elsewhere=elsewhere)

    def _apart(self, work: Callable[[], Held]) -> Held:
        return run_apart(work, min(_EACH, max(0.1, self.left)))

    def _compare(self, edits: Edits, degree: Degree, n: int) -> Compared:
        """The ranks with the edits beside the whole module without them."""
        layout = self.task.layout
        if degree.axis not in layout.axes or layout.size(degree.axis) != degree.n:
            return Compared(OPEN, "the degree is no axis of the layout")
        other = layout.replace(**{degree.axis: n})
        done = self._apart(partial(self._beside_one_process, edits, degree._replace(n=n), other))
        return done or Compared(RUNS, "it takes too long")

    def _beside_one_process(self, edits: Edits, degree: Degree, layout: Layout) -> Compared:
        part = r".unflatten(\1, (_deg_, -1)).select(\1, __place__)"
        own = tuple(replace(edit, run=_OWN_PART.sub(part, edit.run)) for edit in edits)
        exact, one = _exact(replace(self.task, layout=layout))
        swap_code(self.program, own, None, degree)
        try:
            off = _differences(exact, one)
        except Exception as error:
            return Compared(RUNS, f"{type(error).__name__}: {str(error)[:80]}")
        if off:
            return Compared(DIFFERS, f"{off[0]} differs")
        return Compared(PROVED, f"equals one process on {plural(layout.world, 'rank')}, output and gradients")


# -- a cell, on ranks of its own -------------------------------------------------------------------


class _Ended(Exception):
    """Carries what came of a trial that did not run on a rank, so that nobody waits for this rank."""


class _OnRealRanks(Attempts):
    """Trials of edits of a cell of `%%ranks`, on processes that are forked for them and reach no file."""

    def __init__(self, ran: CellLines, errors: Mapping[int, BaseException]) -> None:
        self.cell = ran.cell
        first = next(iter(errors))
        self.kept = {rank: report.kept for rank, report in ran.reports.items()}
        self.pools: dict[int, Pool] = {}
        names: Values = {name: pickle.loads(data) for name, data in self._names_of(first).items()}
        names |= {"rank": 0, "world": ran.layout.world}
        super().__init__(_program(self.cell, names), errors[first], _SECONDS)

    def close(self) -> None:
        """End the ranks."""
        for ranks in self.pools.values():
            ranks.close()

    def _names_of(self, rank: int) -> dict[str, bytes]:
        """The names that the cell reads, pickled: the notebook's, and what earlier cells left on a rank."""
        return {**self.cell.names, **self.kept.get(rank, {})}

    def _on_ranks(self, n: int, work: Callable[[Program], Held]) -> list[Held]:
        """What each of n ranks says of a work; nothing if they take too long or cannot be had."""
        layout = self.cell.layout
        if n != layout.world:
            layout = Layout(tp=n)
        if n not in self.pools:
            self.pools[n] = Pool(n, preload=processes.PRELOAD)
        # What earlier cells left on these ranks, other ranks do not have.
        kept = n == self.cell.layout.world
        names = [self._names_of(rank) if kept else dict(self.cell.names) for rank in range(n)]
        given = replace(self.cell, layout=layout), names, self.cell.layout.world, work
        try:
            answers = self.pools[n].run(_on_rank, *given, timeout=_EACH, keep=True)
        except LlamaparError:
            return []
        ended = [a.error.args[0] for a in answers if isinstance(a.error, _Ended)]
        return ended or [answer.value for answer in answers]

    def _control(self) -> Facts | str | None:
        said = self._on_ranks(self.cell.layout.world, partial(run_again, start=0))
        # On these ranks nothing of the cell has run, so a trial begins with its first statement.
        facts = [replace(each, start=0) for each in said if isinstance(each, Facts)]
        return next(iter([*facts, *said]), None)

    def _retry(self, edits: Edits, level: int) -> Trial | None:
        assert isinstance(self.facts, Facts)
        work = partial(retry, facts=self.facts, edits=edits, level=level)
        trials = self._on_ranks(self.cell.layout.world, work)
        return next((trial for trial in trials if trial and not trial.runs), next(iter(trials), None))

    def _outcomes(
        self, comparison: ProofRuns, edits: Edits, n: int, tape: list[Tensor] | None
    ) -> Iterator[Outcome | str]:
        # Each rank has a program of its own, as its names are.
        bare = replace(comparison, program=Program({}, {}, {}))
        said = self._on_ranks(n, partial(_outcome, comparison=bare, edits=edits, n=n, tape=tape))
        yield from said or ["it ends without an answer, or takes too long"]


def _program(cell: Cell, names: Values) -> Program:
    """A cell of `%%ranks` as a program. The notebook's other cells have functions, and do not run again."""
    files = {file: "".join(entry[2]) for file, entry in cells_here().items() if file != cell.file}
    program = Program({cell.file: cell.source}, names, dict(names), files)
    program.find_functions()
    return program


def _outcome(
    program: Program,
    comparison: ProofRuns,
    edits: Edits,
    n: int,
    tape: list[Tensor] | None,
) -> Outcome | str:
    """On a rank: what it makes with the edits."""
    return replace(comparison, program=program).run(edits, n, dist.get_rank(), tape)


def _on_rank(
    context: Context, cell: Cell, names: list[dict[str, bytes]], world: int, work: Callable[[Program], Held]
) -> Held:
    """On a rank: a work on the program of a cell. world: the ranks that the cell itself has."""
    given = names_given(context, processes.mesh_of(cell.layout, context.device.type)) | {"world": world}
    own = {name: sent_value(data, given) for name, data in names[context.rank].items()}
    program = _program(cell, {"__name__": "__main__", **given, **own})
    _refuse_once()
    done = work(program)
    if isinstance(done, str | Facts) or (isinstance(done, Trial) and not done.runs):
        raise _Ended(done)
    return done


_refuse_once = cache(refuse_effects)
