"""The result of running a module under a plan: one row a parameter, compared with the same module in one
process.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from llamapar.describe.layout import Layout
from llamapar.records.tables import SHOWN, Plain, html_table, human, paragraphs, plural
from llamapar.records.trace import collectives_in_words, some

from .body import RankReport
from .module_reading import Culprit, TensorReading
from .module_run import RAISED_IN
from .module_task import ModuleTask
from .run_result import RankResult


@dataclass(frozen=True)
class ParameterRow:
    """One parameter: its whole shape, the first rank's, where it is cut, and how its gradient compares.

    error: max|Δ| / max|whole| of the gradient, over all ranks; None where nothing is compared. ok: whether
    the gradient is right, on every rank or once the trainer has averaged it over dp or cp.
    """

    name: str
    whole: tuple[int, ...]
    here: tuple[int, ...]
    placement: str
    gradient: str = ""
    error: float | None = None
    ok: bool = True


@dataclass(frozen=True, repr=False)
class ModuleResult(RankResult):
    """What ranks made of a module that a plan cut, beside the whole module in one process.

    rows: one for each name of a parameter. output, loss_error, output_error: of the forward, None where
    nothing is compared. culprit: the first submodule that differs. drew: submodules that draw random numbers,
    which make a comparison impossible. bytes_here: of the first rank's parameters; its gradients take as
    many.
    """

    name: str
    task: ModuleTask
    engine: str
    device: str
    reports: tuple[RankReport, ...]
    tolerance: float
    rows: tuple[ParameterRow, ...] = ()
    output: TensorReading | None = None
    output_error: float | None = None
    loss_error: float | None = None
    culprit: Culprit | None = None
    tied: Mapping[str, str] = field(default_factory=dict)
    buffers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    drew: tuple[str, ...] = ()
    bytes_here: int = 0
    gradient_bytes: int = 0
    notes: tuple[str, ...] = ()

    @property
    def layout(self) -> Layout:
        return self.task.layout

    @property
    def tracebacks(self) -> dict[int, str]:
        """rank → the traceback of its error, as text."""
        return {r.rank: r.traceback for r in self.reports if r.error is not None}

    @property
    def max_grad_error(self) -> float | None:
        return max((row.error for row in self.rows if row.error is not None), default=None)

    @property
    def differing(self) -> tuple[str, ...]:
        """What differs: "output", "loss", and parameters by name, of their gradients."""
        forward = {"output": self.output_error, "loss": self.loss_error}
        off = [what for what, error in forward.items() if error is not None and not error <= self.tolerance]
        return (*off, *(row.name for row in self.rows if not row.ok))

    @property
    def ok(self) -> bool:
        """Whether every rank finished, and output, loss and every gradient equal the whole module's."""
        return not (self.errors or self.differing or self.drew)

    @property
    def where(self) -> str:
        """The submodule where the module differs, or that raised; "" if nothing does."""
        for rank in self.errors:
            return "".join(re.findall(f"{RAISED_IN}(.*)", self.tracebacks[rank])[-1:])
        return self.culprit.name or "the module itself" if self.culprit is not None else ""

    @property
    def summary(self) -> str:
        """One line: the module, where it ran, and how it compares."""
        ranks = plural(len(self.reports), "rank")
        if self.engine == "dry":
            ranks = f"rank {self.reports[0].rank} of {self.layout.world}"
        what = f"{self.name}  {self.layout} ({ranks}, {self.engine}, {self.device})"
        for rank, error in self.errors.items():
            where = f" in {self.where}" if self.where else ""
            return f"{what}: rank {rank} raised {type(error).__name__}{where}"
        if self.engine == "dry":
            held = f"{human(self.bytes_here)} of parameters, {human(self.gradient_bytes)} of gradients"
            return f"{what}: {held}"
        if self.drew:
            return f"{what}: not compared, for {', '.join(self.drew)} draws random numbers"
        if self.ok:
            return f"{what}: equal to the whole module"
        return f"{what}: DIFFERS from the whole module{' at ' if self.where else ''}{self.where}"

    def as_dict(self) -> Plain:
        """Plain values for JSON."""
        return {
            "ok": self.ok,
            "name": self.name,
            "engine": self.engine,
            "device": self.device,
            "ranks": len(self.reports),
            "dtype": self.task.dtype,
            "tolerance": self.tolerance,
            "output": self.output.words if self.output is not None else None,
            "output_error": self.output_error,
            "loss_error": self.loss_error,
            "max_grad_error": self.max_grad_error,
            "differing": list(self.differing),
            "where": self.where,
            "why": self.culprit.words if self.culprit is not None else "",
            "equal_up_to": self.culprit.equal_up_to if self.culprit is not None else "",
            "parameters": [{**vars(row)} for row in self.rows],
            "bytes_here": self.bytes_here,
            "gradient_bytes": self.gradient_bytes,
            "collectives": self.trace.by_kind,
            "bytes": self.trace.by_axis,
            "tied": dict(self.tied),
            "buffers": {name: list(shape) for name, shape in self.buffers.items()},
            "changed_buffers": list(self.changed),
            "random": list(self.drew),
            "errors": {str(r): f"{type(e).__name__}: {e}" for r, e in self.errors.items()},
            "tracebacks": {str(r): text for r, text in self.tracebacks.items()},
            "notes": list(self.notes),
        }

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        """Many parameters that differ in the numbers of their names alone have one row, with the largest
        error.
        """
        head = ["parameter", "whole", "here", "placement", "gradient", "max|Δ| / max|whole|"]
        groups: dict[tuple[str, object], list[ParameterRow]] = {}
        rows = list[list[object]]()
        for row in self.rows:
            name = re.sub(r"\d+", "*", row.name) if len(self.rows) > SHOWN else row.name
            alike_in = row.whole, row.here, row.placement, row.gradient, row.ok
            groups.setdefault((name, alike_in), []).append(row)
        for (name, _), alike in groups.items():
            row, errors = alike[0], [row.error for row in alike if row.error is not None]
            label = f"{name} ({len(alike)})" if len(alike) > 1 else row.name
            verdict = row.gradient if row.ok or row.gradient == "DIFFERS" else f"{row.gradient}, DIFFERS"
            error = f"{max(errors):.0e}" if errors else ""
            rows.append([label, list(row.whole), list(row.here), row.placement, verdict, error])
        return self.summary, head, rows, "\n".join(self._foot())

    def _foot(self) -> list[str]:
        errors = ((rank, type(e).__name__, str(e).splitlines()) for rank, e in self.errors.items())
        lines = [f"{some([rank])}: {name}: {(text or [''])[0]}" for rank, name, text in errors]
        if self.culprit is not None:
            backward = self.culprit.words.startswith("backward")
            what = "gradients equal back to" if backward else "equal up to"
            after = f"{what} {self.culprit.equal_up_to}; " if self.culprit.equal_up_to else ""
            lines.append(f"{after}{self.where}: {self.culprit.words}")
        if self.output is not None:
            lines.append(
                f"forward: the output is {self.output.words}, off by {self.output_error:.0e}, the loss by "
                f"{self.loss_error:.0e}; {self.task.dtype} within {self.tolerance:.0e}"
            )
        summands = Counter(row.gradient for row in self.rows if row.gradient.startswith("a summand"))
        for words, n in summands.items():
            whose = "before it is used" if "tp" in words else "in the trainer, as its data parallelism does"
            lines.append(f"{plural(n, 'gradient')}: each rank has {words}, {whose}")
        lines += [f"tied: {name} is {of}" for name, of in self.tied.items()]
        buffers = [f"{name} {list(shape)}" for name, shape in self.buffers.items()]
        more = f" and {len(buffers) - 3} more" if len(buffers) > 3 else ""
        lines += [f"buffers, which have no gradient: {', '.join(buffers[:3])}{more}"] if buffers else []
        lines += [f"the forward changes buffers: {', '.join(self.changed)}"] if self.changed else []
        if self.drew:
            lines.append("eval_mode=True calls module.eval() first, after which dropout draws nothing")
        kinds = [f"{c['axis']} {c['kind']} ×{c['count']} {c['bytes']:,} B" for c in self.trace.by_kind]
        words = f"{collectives_in_words(self.trace.events)}{': ' if kinds else ''}{', '.join(kinds)}"
        return [*lines, f"rank {self.reports[0].rank}: {words}", *self.notes]

    def _repr_html_(self) -> str:
        title, head, rows, foot = self._table()
        return html_table(title, head, rows, code=(1, 2)) + paragraphs(foot)
