"""`%load_ext llamapar`: under the traceback of a shape-like error its diagnosis, and `%explain`.

The hook runs after a cell, when IPython has shown the traceback: it adds and never replaces. It speaks only
where the error's own words name a cause; what the failing frame holds (degrees, a model) may settle the
verdict and never makes one. Nothing in a frame is called but `.shape`; nothing in a text is evaluated.
"""

from __future__ import annotations

import linecache
import re
import sys
import sysconfig
import traceback
from dataclasses import dataclass
from html import escape
from pathlib import Path

from IPython.core.error import UsageError
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand
from IPython.display import display

from llamapar.describe import counts
from llamapar.describe.layout import AXES, Layout
from llamapar.describe.models import ModelConfig
from llamapar.describe.options import Values
from llamapar.diagnosis import UNKNOWN, Diagnosis, Explanation, Level, explain
from llamapar.errors import MAX_DEGREE, LayoutError, LlamaparError, printable, whole
from llamapar.figures import view
from llamapar.frameworks import framework as find_framework

_SHAPED = (RuntimeError, ValueError, AssertionError, ZeroDivisionError, IndexError, TypeError)
_NOT_SHAPES = {"rank_mapping_hang", "memory_oom_layout"}
_NOT_OURS = {"types_differ", "not_there", "bad_data", "operator_rule"}
"""Subtypes of errors that any code has: a traceback says of them what there is to say."""

_COUNTS = (*AXES, "n_heads", "n_kv_heads", "head_dim")
_KINDS: dict[type, str] = {ModelConfig: "model", Layout: "layout"}
_MOST = 20
"""Tensors of a frame that are listed."""

_LIBRARIES = (f"{sysconfig.get_path('stdlib')}/", f"{Path(__file__).parent}/", "<frozen ")
_OPTION = rf"--(model|framework|{'|'.join(AXES)})[=\s]\s*(\S+)"
_USAGE = f"%explain [{'] ['.join(f'--{name} N' for name in AXES)}] [--model M] [--framework F] [TEXT]"


@dataclass(frozen=True, repr=False)
class Answer:
    """An explanation, and of the failing frame: the tensors (name, shape, type) and what else was used."""

    explanation: Explanation
    tensors: tuple[tuple[str, str, str], ...] = ()
    used: str = ""

    def __repr__(self) -> str:
        wide = [max(map(len, column)) for column in zip(*self.tensors, strict=True)]
        rows = [f"\n    {name:<{wide[0]}}  {shape:<{wide[1]}}  {kind}" for name, shape, kind in self.tensors]
        used = f"\n    used {self.used}" if self.used else ""
        title = "\nin the failing frame:" if rows else ""
        return printable(f"{self.explanation}{used}{title}{''.join(rows)}")

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{'</td><td>'.join(map(escape, row))}</td></tr>" for row in self.tensors)
        table = f"<p>in the failing frame:</p><table>{rows}</table>" if rows else ""
        used = f"<p>used <code>{escape(self.used)}</code></p>" if self.used else ""
        return f"{self.explanation._repr_html_()}{used}{table}"


def show(found: Explanation | Answer) -> None:
    """Words, and under them the picture of the likeliest cause, where its numbers make one."""
    display({"text/plain": repr(found), "text/html": found._repr_html_()}, raw=True)
    try:
        display(view(found.explanation if isinstance(found, Answer) else found))
    except LayoutError:  # nothing to draw: the words say it all
        return


def answer(error: BaseException, known: Values) -> Answer:
    """What an error says, what is known besides, and its innermost frame of user code, explained."""
    found, used = explain(error, **known), ""
    values, line = _frame(error)
    facts: Values = {n: v for n, v in values.items() if n in _COUNTS and type(v) is int and v > 0}
    facts |= {_KINDS[type(value)]: value for value in values.values() if type(value) in _KINDS}
    any_division = isinstance(error, ZeroDivisionError) and "head" not in line
    if facts and not known and found.best and found.best.level >= Level.POSSIBLE and not any_division:
        better = explain(error, **facts)
        if better.best and better.best.category in {d.category for d in found.diagnoses}:
            found, used = better, ", ".join(f"{name}={getattr(n, 'name', n)}" for name, n in facts.items())
    return Answer(found, tuple(_tensors(values)), used)


def _frame(error: BaseException) -> tuple[Values, str]:
    """Locals, and the failing line, of the innermost frame of user code; of a cell, those that it uses."""
    values, line = Values(), ""
    for frame, number in traceback.walk_tb(error.__traceback__):
        file, there = frame.f_code.co_filename, frame.f_locals
        if not file.startswith(_LIBRARIES) and "-packages" not in file:
            names = frame.f_code.co_names if there is frame.f_globals else tuple(there)
            values = {name: there[name] for name in names if name in there and name[0] not in "_."}
            line = linecache.getline(file, number)
    return values, line


def _tensors(values: Values) -> list[tuple[str, str, str]]:
    """Name, shape and type of whatever looks like a tensor; a value that objects is passed over."""
    found = []
    for name, value in values.items():
        try:
            shape = getattr(value, "shape", None)
            if not isinstance(shape, tuple) or len(shape) > 16 or not hasattr(value, "dtype"):
                continue
            if all(type(size) is int for size in shape):
                found.append((name, str(list(shape)), type(value).__name__))
        except BaseException:  # a stranger's property may raise anything, SystemExit included
            continue
    return found[:_MOST]


def _parsed(line: str) -> tuple[Values, str]:
    """Options before and after the text, and the text."""
    given: Values = {}
    while found := re.match(rf"\s*{_OPTION}(?=\s|$)", line) or re.search(rf"(?:^|\s){_OPTION}\s*$", line):
        name, value = found.groups()
        given[name] = whole(name, counts.number(name, value).value, 1, MAX_DEGREE) if name in AXES else value
        if name == "framework":
            given[name] = find_framework(value).name
        line = line[: found.start()] + line[found.end() :]
    if wrong := re.match(r"\s*(--?[a-z][\w-]*)(?:[=\s]|$)", line):
        raise UsageError(f"{wrong.group(1)} is no option, or lacks its value: {_USAGE}")
    return given, line.strip()


def _is_of_shapes(best: Diagnosis) -> bool:
    """Whether a diagnosis is worth a word that nobody asked for."""
    known = best.category not in _NOT_SHAPES and best.subtype not in _NOT_OURS
    return known and best.level >= Level.POSSIBLE


@magics_class
class LlamaparExplain(Magics):
    """`%explain`, and the hook after every cell."""

    last: BaseException | None = None

    def after(self, result: ExecutionResult) -> None:
        """The hook of `post_run_cell`: shows a diagnosis or nothing, and raises nothing."""
        try:
            error = result.error_in_exec
            self.last = error if error and not isinstance(error, UsageError) else self.last
            if isinstance(error, _SHAPED):
                found = answer(error, {})
                best = found.explanation.best
                if best is not None and _is_of_shapes(best) and found.explanation.verdict != UNKNOWN:
                    display(found)
        except (Exception, KeyboardInterrupt):  # the traceback stands above; a fault of ours adds nothing
            return

    @no_var_expand
    @line_cell_magic
    def explain(self, line: str, cell: str = "") -> None:
        """Why the last error came about, or the one whose text follows: %explain TEXT, or a cell %%explain.

        Options: --tp N, --cp N, --pp N, --dp N, --model NAME, --framework NAME.
        """
        try:
            given, text = _parsed(line)
            last = getattr(sys, "last_value", None)
            error = self.last if isinstance(last, UsageError | None) else last
            if text or cell.strip():
                show(Answer(explain(f"{text}\n{cell}".strip(), **given)))
            elif error is not None:
                show(answer(error, given))
            else:
                raise UsageError(f"no error so far: {_USAGE}")
        except LlamaparError as problem:
            raise UsageError(str(problem)) from None


def load(ip: InteractiveShell) -> None:
    """Registers magic and hook, once."""
    if "LlamaparExplain" not in ip.magics_manager.registry:
        ours = LlamaparExplain(ip)
        ip.register_magics(ours)
        ip.events.register("post_run_cell", ours.after)


def unload(ip: InteractiveShell) -> None:
    """Takes both away again, if they are there."""
    ours = ip.magics_manager.registry.pop("LlamaparExplain", None)
    if ours is not None:
        ip.events.unregister("post_run_cell", ours.after)
        for magics in ip.magics_manager.magics.values():
            magics.pop("explain", None)
