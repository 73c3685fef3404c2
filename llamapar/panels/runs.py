"""What the Run tab would run, and what it says of what came of it: pure, no widget and no torch here."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llamapar.describe.job import Job
from llamapar.describe.layout import Layout
from llamapar.describe.models import ModelConfig
from llamapar.describe.options import OPTIONS, Values
from llamapar.describe.splits import NO_PADDING, Padding
from llamapar.errors import Choice, LayoutError, LlamaparError, flag, one_of
from llamapar.execution.shrinking import MAX_RANKS, shrink
from llamapar.figures import View, view
from llamapar.records.trace import PHASES, Tape, Trace, count, grouped, some

from .controls import ENGINES

if TYPE_CHECKING:
    from llamapar.execution.result import RunResult

QUICK = 64
"""Most work that is done at each move of a control: some 1.5 s of a laptop."""

_WORK = {"embedding": 1, "loss": 1, "mlp": 1, "attention": 4, "block": 5, "llama": 10}
_WIDE = 512


@dataclass(frozen=True)
class RunPlan:
    """What `lp.run` is asked. notes: what was made smaller, in words."""

    program: str
    model: ModelConfig
    layout: Layout
    engine: str
    options: tuple[tuple[str, object], ...]
    notes: tuple[str, ...]

    @property
    def quick(self) -> bool:
        """Whether it is done at each move of a control: few ranks, little work, or refused at once."""
        if self.layout.world > MAX_RANKS:
            return True
        rounds = self.layout.cp if dict(self.options)["cp_method"] == "ring" else 1
        work = self.layout.world * _WORK[self.program] * rounds
        return self.engine == "local" and work <= QUICK and self.model.dim <= _WIDE

    @property
    def title(self) -> str:
        """One line: what would be run."""
        return f"{self.program} of {self.model.name}, {self.layout}"

    def arguments(self) -> Values:
        """Arguments of `lp.run` by name. Layouts that check refuses are run, to see the genuine error."""
        own = {"program": self.program, "model": self.model, "layout": self.layout, "engine": self.engine}
        return own | dict(self.options) | {"force": True}


def plan(job: Job, padding: Padding, values: Values) -> RunPlan:
    """What the controls ask to run, at a size that fits. Raises LlamaparError for what is no choice."""
    small = shrink(job.model, job.layout, padding=padding)
    fault = values["fault"] and OPTIONS["fault"].chosen(values["fault"])
    options = {
        "dtype": OPTIONS["dtype"].chosen(values["dtype"]),
        "cp_method": OPTIONS["cp_method"].chosen(values["cp_method"]),
        "chunking": OPTIONS["chunking"].chosen(values["chunking"]),
        "kv_replication": flag("kv_replication", values["kv_replication"]),
        "padding": None if padding == NO_PADDING else padding,
        "fault": fault or None,
    }
    return RunPlan(
        OPTIONS["program"].chosen(values["program"]),
        small.model,
        small.layout,
        one_of("engine", values["engine"], ENGINES),
        tuple(options.items()),
        (f"made small to run here: {'; '.join(small.notes)}",) if small.notes else (),
    )


# -- what came of it ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Shown:
    """What is shown of a result. tables: (name, title, head, rows, which of them are wrong)."""

    ok: bool
    verdict: str
    cards: tuple[LlamaparError, ...]
    notes: tuple[str, ...]
    tables: tuple[dict[str, object], ...]
    picture: View | None

    def as_dict(self) -> dict[str, object]:
        """Plain values for the browser."""
        return {
            "ok": self.ok,
            "verdict": self.verdict,
            "cards": [card(problem) for problem in self.cards],
            "notes": list(self.notes),
            "tables": list(self.tables),
            "figure": self.picture.spec if self.picture else None,
            "summary": self.picture.summary if self.picture else "",
        }


def card(problem: LlamaparError, controls: Container[str] = ()) -> dict[str, object]:
    """A problem as plain values. choose: (text, what its button sets: {} where no control has the field)."""
    choices = [(str(choice), _settings(choice, controls)) for choice in problem.choices]
    return {"what": problem.what, "why": problem.why, "choose": choices}


def _settings(choice: object, controls: Container[str]) -> dict[str, object]:
    """What a choice sets, where there are controls for all of it."""
    settable = isinstance(choice, Choice) and all(name in controls for name, _ in choice.values)
    return dict(choice.values) if isinstance(choice, Choice) and settable else {}


def show(run: RunPlan, result: RunResult, tape: Tape | None) -> Shown:
    """Verdict, errors, notes, tables and picture of a result; the tape where it is there already."""
    failed = tape.failed if tape else None
    line = f"at {failed.where}: {failed.code}" if failed else ""
    why = "; ".join(filter(None, [line, result.why]))
    tables = [_tape(tape)] if tape else []
    tables += [_errors(result)] if result.output_errors or result.gradient_errors else []
    tables += [_volumes(result.trace)] if result.trace.events else []
    return Shown(
        result.ok,
        verdict(result),
        tuple(LlamaparError(f"{some(ranks)}: {text}", why) for text, ranks in raised(result)),
        (*run.notes, *_size(result), *result.notes),
        tuple(tables),
        picture(result.trace),
    )


def verdict(result: RunResult) -> str:
    """One line with the numbers: equal to the unsharded model, or not, or what was raised."""
    where = f"engine {result.engine} on {result.device}"
    if result.errors:
        kinds = dict.fromkeys(type(error).__name__ for error in result.errors.values())
        return f"{some(sorted(result.errors))} of {result.ranks} raised {', '.join(kinds)} ({where})"
    far = [f"outputs {result.max_error:.0e}"] if result.max_error is not None else []
    far += [f"gradients {result.max_grad_error:.0e}"] if result.max_grad_error is not None else []
    within = f"where {result.tolerance:.0e} counts as equal ({_ranks(result)}, {where})"
    return f"{_equal(result)}: largest error of {', of '.join(far)}, {within}"


def text(plan: RunPlan, state: str, result: RunResult | None, tape: Tape | None, problem: object) -> str:
    """The same as text that is the same on every machine: no device, timings or last digits."""
    lines = [f"{plan.title} (engine {plan.engine}): {state}", *plan.notes]
    lines += [str(problem)] if problem else []
    if result is None:
        return "\n".join(lines)
    if result.errors:
        lines += [f"{some(ranks)}: {error}" for error, ranks in raised(result)]
    else:
        lines.append(f"{_equal(result)} within {result.tolerance:.0e}")
        found = {**result.output_errors, **result.gradient_errors}
        off = [name for name, error in found.items() if not error <= result.tolerance]
        lines += [f"off: {', '.join(off)}"] if off else []
    lines += [note for note in (*_size(result), *result.notes) if not note.startswith("device ")]
    sent = ", ".join(f"{axis} {n:,} B" for axis, n in result.trace.by_axis.items())
    lines.append(f"rank 0: {count(result.trace.events)}{': ' + sent if sent else ''}")
    return "\n".join([*lines, *([str(tape)] if tape else [])])


def raised(result: RunResult) -> list[tuple[str, list[int]]]:
    """(error in torch's words, ranks that raised it)."""
    return list(grouped({rank: f"{type(error).__name__}: {error}" for rank, error in result.errors.items()}))


def picture(trace: Trace) -> View | None:
    """The timeline; None where there is nothing on it."""
    if not trace.events:
        return None
    try:
        return view(trace)
    except LayoutError:  # no picture of a trace
        return None


def _equal(result: RunResult) -> str:
    return f"{'equal to' if result.ok else 'DIFFERS from'} the unsharded model"


def _ranks(result: RunResult) -> str:
    return f"{result.ranks} rank{'s' * (result.ranks != 1)}"


def _size(result: RunResult) -> list[str]:
    setting = result.task.setting
    sequences = (
        f"{setting.global_batch} sequence{'s' * (setting.global_batch != 1)} of {setting.seq_len} tokens"
    )
    lines = [f"{sequences}, {setting.dtype}"]
    if result.task.fault:
        from llamapar.programs.faults import FAULTS as known

        fault = known[result.task.fault]
        at = " ".join(f"{k}={v}" for k, v in ({**fault.layout, **fault.needs, **fault.changes}).items())
        lines.append(f"{result.task.fault}: still right is {fault.looks_fine}")
        lines.append(f"caught by {fault.caught_by}; it shows in {fault.program} with {at}")
    return lines


def _table(
    name: str, title: str, head: Sequence[str], rows: Iterable[Sequence[object]], wrong: Sequence[int] = ()
) -> dict[str, object]:
    plain = [[str(cell) for cell in row] for row in rows]
    return {"name": name, "title": title, "head": list(head), "rows": plain, "wrong": list(wrong)}


def _tape(tape: Tape) -> dict[str, object]:
    title, _, rows, _ = tape._table()
    mixed = [
        [name, whole, f"raises on {some(list(step.error))}" if step.error else own, cut, where, code]
        for step, (where, code, name, whole, cut, own) in zip(tape.steps, rows, strict=True)
    ]
    head = ["name", "global shape", "on a rank", "cut", "line", "code"]
    wrong = [i for i, step in enumerate(tape.steps) if step.error]
    return _table("tape", f"Shape tape: {title}", head, mixed, wrong)


def _errors(result: RunResult) -> dict[str, object]:
    rows: list[list[object]] = []
    wrong: list[int] = []
    for what, errors in (("output", result.output_errors), ("gradient", result.gradient_errors)):
        for name, error in errors.items():
            if not error <= result.tolerance:
                wrong.append(len(rows))
            rows.append([what, name, f"{error:.0e}", "equal" if error <= result.tolerance else "DIFFERS"])
    head = ["what", "of", "max|Δ| / max|ref|", f"within {result.tolerance:.0e}"]
    return _table("errors", "Against the unsharded model, worst of all ranks", head, rows, wrong)


def _volumes(trace: Trace) -> dict[str, object]:
    rows = []
    for axis in trace.by_axis:
        events = [e for e in trace.events if e.axis == axis]
        sent = [f"{trace.bytes(axis, phase):,}" for phase in PHASES]
        rows.append([axis, len(events), *sent, f"{trace.bytes(axis):,}"])
    head = ["axis", "collectives", *PHASES, "in all"]
    return _table("volumes", "Bytes that rank 0 exchanged", head, rows)
