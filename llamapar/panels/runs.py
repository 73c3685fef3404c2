"""The plan and the result of the Run tab: pure, without a widget or torch."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from llamapar.count.wire import WHOLE
from llamapar.describe.cp_methods import CpMethod, method_named
from llamapar.describe.job import Job
from llamapar.describe.layout import Layout
from llamapar.describe.models import ModelConfig
from llamapar.describe.options import OPTIONS, Values
from llamapar.describe.splits import NO_PADDING, Padding
from llamapar.errors import Choice, LayoutError, LlamaparError, flag, one_of
from llamapar.execution.shrinking import MAX_RANKS, shrink
from llamapar.figures import View, view
from llamapar.records.tables import Plain, Record, plural
from llamapar.records.trace import PHASES, Tape, Trace, grouped, sent_in_words, some

from .background import IDLE
from .controls import DEFAULTS, ENGINES

if TYPE_CHECKING:
    from llamapar.execution.result import Result

QUICK = 64
"""Most work that is done at each move of a control: some 1.5 s of a laptop."""

_WORK = {"embedding": 1, "loss": 1, "mlp": 1, "block": 5, "llama": 10, "step": 12}
"""Work of a program; one that is not listed takes as much as attention, 4."""

_WIDE = 512

MOST_MICRO_BATCHES = 4
"""For each PP rank, in a run of the tab: past these a schedule only repeats itself."""


@dataclass(frozen=True)
class RunPlan:
    """The arguments of `lp.run`. notes: what was made smaller, in words."""

    program: str
    model: ModelConfig
    layout: Layout
    engine: str
    options: Values
    notes: tuple[str, ...]

    @property
    def quick(self) -> bool:
        """Whether the run starts at each move of a control: few ranks, little work, or refused at once."""
        if self.engine == "dry":
            return False
        if self.layout.world > MAX_RANKS:
            return True
        return self.engine == "local" and self.work <= QUICK and self.model.dim <= _WIDE

    @property
    def work(self) -> int:
        """Approximate amount of work: ranks, times the program's work, times its rounds."""
        rounds = CpMethod.of(str(self.options["cp_method"]), self.layout.cp).ring
        ranks = 1 if self.engine == "dry" else self.layout.world
        return ranks * _WORK.get(self.program, 4) * rounds * int(self.options.get("micro_batches") or 1)

    @property
    def title(self) -> str:
        """One line: the run that would start."""
        return f"{self.program} of {self.model.name}, {self.layout}"

    def arguments(self) -> Values:
        """Arguments of `lp.run` by name. A layout that check refuses is run too, to show torch's own
        error.
        """
        own = {"program": self.program, "model": self.model, "layout": self.layout, "engine": self.engine}
        return own | self.options | {"force": True}


def planned_run(job: Job, padding: Padding, values: Values) -> RunPlan:
    """The run that the controls describe, at a size that fits. Raises LlamaparError for an invalid choice."""
    job.model.require_judged("a run")
    program = OPTIONS["program"].chosen(values["program"])
    engine = one_of("engine", values["engine"], ENGINES)
    fault = values["fault"] and OPTIONS["fault"].chosen(values["fault"])
    chosen = ("dtype", "chunking")
    options: Values = {name: OPTIONS[name].chosen(values[name]) for name in chosen}
    options |= {
        "kv_replication": flag("kv_replication", values["kv_replication"]),
        "padding": None if padding == NO_PADDING else padding,
        "cp_method": method_named(values["cp_method"]),
        "fault": fault or None,
    }
    model = job.model
    layout = job.layout
    many = job.micro_batches
    notes: list[str] = []
    if engine == "dry":  # one rank at true size, because nothing is allocated
        options |= {"seq_len": job.seq_len, "rank": values["rank"]}
    else:
        small = shrink(model, layout, padding=padding, program=program)
        model = small.model
        layout = small.layout
        notes += small.notes
        asked = many or layout.usual_micro_batches
        many = min(asked, MOST_MICRO_BATCHES * layout.pp)
        if asked > many and layout.pp > 1:
            notes.append(f"micro_batches={asked} runs as {many}")
    if program in WHOLE and layout.pp > 1:
        options |= {"schedule": job.schedule, "micro_batches": many, "nc": job.nc}
    if notes:
        notes = [f"made small to run here: {'; '.join(notes)}"]
    return RunPlan(program, model, layout, engine, options, tuple(notes))


# -- how long it takes -------------------------------------------------------------------------

ALIKE = 8
"""How much more or less work a run may have been than one that is estimated from it."""


def about(seconds: float) -> str:
    """ "about 4 s", "about 3 min"."""
    if seconds < 1:
        return "less than a second"
    if seconds < 90:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min"


def expected_duration(plan: RunPlan, measured: Sequence[tuple[RunPlan, float]]) -> str:
    """Estimated duration of a run, from runs measured in this kernel, the last one last."""
    for earlier, seconds in reversed(measured):
        if earlier == plan:
            return f"{about(seconds)}, as the last time"
    alike = [
        (max(earlier.work, plan.work) / min(earlier.work, plan.work), earlier, seconds)
        for earlier, seconds in reversed(measured)
        if (earlier.engine, earlier.program) == (plan.engine, plan.program)
    ]
    apart, earlier, seconds = min(alike, key=lambda each: each[0], default=(ALIKE + 1, plan, 0.0))
    if apart > ALIKE:
        return "no run like it was timed yet"
    ranks = plural(earlier.layout.world, "rank")
    return f"{about(seconds * plan.work / earlier.work)}, by one of {ranks} that took {seconds:.2g} s"


# -- what came of it ---------------------------------------------------------------------------


def card(problem: LlamaparError | None, controls: Container[str] = ()) -> Plain | None:
    """A problem as plain values; None for none.

    choose: (text, settings of its button: {} if no control has the field).
    field: the control that is wrong; for several, the first one that a choice sets.

    The choices of a problem in a line of text are other lines.
    """
    if problem is None:
        return None
    choices = [
        (str(choice), {"line": str(choice)} if problem.field == "line" else _settings(choice, controls))
        for choice in problem.choices
    ]
    fields = [problem.field, *(name for _, changes in choices for name in changes)]
    field = next((name for name in fields if name in controls), "")
    return {"what": problem.what, "why": problem.why, "choose": choices, "field": field}


def _settings(choice: object, controls: Container[str]) -> Plain:
    """The settings of a choice, if there are controls for all of them."""
    if isinstance(choice, Choice) and all(name in controls for name, _ in choice.values):
        return dict(choice.values)
    return {}


def figure_of(drawn: View | None) -> Plain:
    """What a page shows of a picture: its figure, None without one, and its words."""
    if drawn is None:
        return {"figure": None, "summary": ""}
    figure = drawn.spec if drawn.is_drawn else None
    return {"figure": figure, "summary": drawn.summary}


@dataclass(frozen=True)
class Run:
    """A plan and its progress.

    phase: the current work. fraction: its progress, if known. result: available before the tape, which is
    written afterwards and is missing after a cancel. problem: the reason why there is no result. expects: the
    estimated duration, in words.
    """

    plan: RunPlan
    state: str = IDLE
    phase: str = ""
    fraction: float | None = None
    result: Result | None = None
    tape: Tape | None = None
    problem: LlamaparError | None = None
    expects: str = ""

    @cached_property
    def picture(self) -> View | None:
        """The timeline of rank 0, or the memory of a dry-run rank; None if it is empty."""
        try:
            return view(self.result) if self.result and self.result.trace.events else None
        except LayoutError:  # no picture of a trace
            return None

    @property
    def text(self) -> str:
        """The result as text that is equal on every machine: no device, timings or last digits."""
        plan = self.plan
        result = self.result
        lines = [f"{plan.title} (engine {plan.engine}): {self.state}", *plan.notes]
        if self.problem:
            lines.append(str(self.problem))
        if result is None:
            return "\n".join(lines)
        if result.errors:
            lines += [f"{some(ranks)}: {error}" for error, ranks in raised_errors(result)]
        else:
            compared = result.max_error is not None
            lines.append(f"{_equal(result)} within {result.tolerance:.0e}" if compared else result.summary)
            found = {**result.output_errors, **result.gradient_errors}
            off = [name for name, error in found.items() if not error <= result.tolerance]
            if off:
                lines.append(f"off: {', '.join(off)}")
        lines += [note for note in (*_size(result), *result.notes) if not note.startswith("device ")]
        lines.append(sent_in_words(result.trace))
        lines += [str(record) for record in result.details]
        if self.tape:
            lines.append(str(self.tape))
        return "\n".join(lines)

    def as_dict(self) -> Plain:
        """Plain values for the browser."""
        return {
            "state": self.state,
            "title": self.plan.title,
            "quick": self.plan.quick,
            "notes": list(self.plan.notes),
            "phase": self.phase,
            "fraction": self.fraction,
            "expects": self.expects,
            "problem": card(self.problem, DEFAULTS),
            "result": self._result(self.result) if self.result else None,
        }

    def _result(self, result: Result) -> Plain:
        """Verdict, errors, notes, tables and picture, and the tape if available."""
        failed = self.tape.failed if self.tape else None
        line = f"at {failed.where}: {failed.code}" if failed else ""
        why = "; ".join(filter(None, [line, result.why]))
        tables = []
        if self.tape:
            tables.append(_tape(self.tape))
        if result.rows:
            tables.append(_errors(result))
        if result.trace.events:
            tables.append(_volumes(result.trace))
        tables += [_detail(record) for record in result.details]
        return {
            "ok": result.ok,
            "verdict": verdict(result),
            "cards": [
                card(LlamaparError(f"{some(ranks)}: {text}", why)) for text, ranks in raised_errors(result)
            ],
            "notes": [*self.plan.notes, *_size(result), *result.notes],
            "tables": tables,
            **figure_of(self.picture),
        }


def verdict(result: Result) -> str:
    """One line with the numbers: equal to the unsharded model, or not, or the error."""
    where = f"engine {result.engine} on {result.device}"
    if result.errors:
        kinds = dict.fromkeys(type(error).__name__ for error in result.errors.values())
        return f"{some(sorted(result.errors))} of {result.ranks} raised {', '.join(kinds)} ({where})"
    if result.max_error is None and result.engine == "dry":
        return result.summary
    far = []
    if result.max_error is not None:
        far.append(f"outputs {result.max_error:.0e}")
    if result.max_grad_error is not None:
        far.append(f"gradients {result.max_grad_error:.0e}")
    within = f"where {result.tolerance:.0e} counts as equal ({plural(result.ranks, 'rank')}, {where})"
    return f"{_equal(result)}: largest error of {', of '.join(far)}, {within}"


def raised_errors(result: Result) -> list[tuple[str, list[int]]]:
    """(error in torch's words, ranks that raised it)."""
    return list(grouped({rank: f"{type(error).__name__}: {error}" for rank, error in result.errors.items()}))


def _equal(result: Result) -> str:
    if result.ok:
        return "equal to the unsharded model"
    return "DIFFERS from the unsharded model"


def _size(result: Result) -> list[str]:
    setting = result.task.setting
    lines = [f"{plural(setting.global_batch, 'sequence')} of {setting.seq_len} tokens, {setting.dtype}"]
    if result.task.fault:
        from llamapar.programs.faults import FAULTS as known

        fault = known[result.task.fault]
        at = " ".join(
            f"{k}={v}" for k, v in ({**fault.layout, **fault.model, **fault.needs, **fault.changes}).items()
        )
        lines.append(f"{result.task.fault}: still right is {fault.looks_fine}")
        lines.append(f"caught by {fault.caught_by}; it shows in {fault.program} with {at}")
    return lines


def _table(
    name: str, title: str, head: Sequence[str], rows: Iterable[Sequence[object]], wrong: Sequence[int] = ()
) -> Plain:
    plain = [[str(cell) for cell in row] for row in rows]
    return {"name": name, "title": title, "head": list(head), "rows": plain, "wrong": list(wrong)}


def _tape(tape: Tape) -> Plain:
    title, head, rows, _ = tape._table()
    columns = [head.index(name) for name in ("name", "global shape", "on a rank", "cut", "line", "code")]
    wrong = [i for i, step in enumerate(tape.steps) if step.error]
    for i in wrong:
        rows[i][head.index("on a rank")] = f"raises on {some(list(tape.steps[i].error))}"
    cells = [[row[k] for k in columns] for row in rows]
    return _table("tape", f"Shape tape: {title}", [head[k] for k in columns], cells, wrong)


def _errors(result: Result) -> Plain:
    head, rows = result.compared()
    wrong = [i for i, row in enumerate(rows) if row[-1] == "DIFFERS"]
    return _table("errors", "Against the unsharded model, worst of all ranks", head, rows, wrong)


def _detail(record: Record) -> Plain:
    title, head, rows, foot = record._table()
    return _table(type(record).__name__.lower(), ": ".join(filter(None, (title, foot))), head, rows)


def _volumes(trace: Trace) -> Plain:
    rows = []
    phases = [phase for phase in PHASES if phase != "update" or trace.bytes(phase=phase)]
    for axis in trace.by_axis:
        events = [e for e in trace.events if e.axis == axis]
        sent = [f"{trace.bytes(axis, phase):,}" for phase in phases]
        rows.append([axis, len(events), *sent, f"{trace.bytes(axis):,}"])
    head = ["axis", "collectives", *phases, "in all"]
    return _table("volumes", f"Bytes that rank {trace.rank} sends", head, rows)
