"""`%load_ext llamapar`: an explanation under the traceback of each shape-like error, and `%explain`.

The hook runs after a cell, when IPython has shown the traceback. It adds text and replaces nothing. It writes
only if the words of the error name a cause. The values in the failing frame (degrees, a model) can decide
between causes, but they never create one. The hook reads `.shape` of objects in a frame and calls nothing
else, and it evaluates no text.
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

from llamapar.describe import typed_numbers
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
class FrameExplanation:
    """An explanation with the facts of the failing frame: its tensors (name, shape, type) and the other facts
    used.
    """

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


def show(found: Explanation | FrameExplanation) -> None:
    """Display the words, and below them a picture of the likeliest cause if its numbers allow one."""
    display({"text/plain": repr(found), "text/html": found._repr_html_()}, raw=True)
    try:
        display(view(found.explanation if isinstance(found, FrameExplanation) else found))
    except LayoutError:  # This cause has no numbers to draw, so the words stand alone.
        return


def explain_error(error: BaseException, known: Values) -> FrameExplanation:
    """Explain an error from its text, the given facts and the innermost frame of user code."""
    found, used = explain(error, **known), ""
    values, line = _frame(error)
    facts: Values = {n: v for n, v in values.items() if n in _COUNTS and type(v) is int and v > 0}
    facts |= {_KINDS[type(value)]: value for value in values.values() if type(value) in _KINDS}
    any_division = isinstance(error, ZeroDivisionError) and "head" not in line
    if facts and not known and found.best and found.best.level >= Level.POSSIBLE and not any_division:
        better = explain(error, **facts)
        if better.best and better.best.category in {d.category for d in found.diagnoses}:
            found, used = better, ", ".join(f"{name}={getattr(n, 'name', n)}" for name, n in facts.items())
    return FrameExplanation(found, tuple(_tensors(values)), used)


def _frame(error: BaseException) -> tuple[Values, str]:
    """The locals and the failing line of the innermost frame of user code; for a cell, only the locals that
    it uses.
    """
    values, line = Values(), ""
    for frame, number in traceback.walk_tb(error.__traceback__):
        file, there = frame.f_code.co_filename, frame.f_locals
        if not file.startswith(_LIBRARIES) and "-packages" not in file:
            names = frame.f_code.co_names if there is frame.f_globals else tuple(there)
            values = {name: there[name] for name in names if name in there and name[0] not in "_."}
            line = linecache.getline(file, number)
    return values, line


def _tensors(values: Values) -> list[tuple[str, str, str]]:
    """Name, shape and type of each value that looks like a tensor; values whose attributes raise are
    skipped.
    """
    found = []
    for name, value in values.items():
        try:
            shape = getattr(value, "shape", None)
            if not isinstance(shape, tuple) or len(shape) > 16 or not hasattr(value, "dtype"):
                continue
            if all(type(size) is int for size in shape):
                found.append((name, str(list(shape)), type(value).__name__))
        except BaseException:  # A property of a foreign class can raise anything, even SystemExit.
            continue
    return found[:_MOST]


def _parsed(line: str) -> tuple[Values, str]:
    """The options before and after the text, and the text itself."""
    given: Values = {}
    while found := re.match(rf"\s*{_OPTION}(?=\s|$)", line) or re.search(rf"(?:^|\s){_OPTION}\s*$", line):
        name, value = found.groups()
        given[name] = (
            whole(name, typed_numbers.parse_number(name, value).value, 1, MAX_DEGREE)
            if name in AXES
            else value
        )
        if name == "framework":
            given[name] = find_framework(value).name
        line = line[: found.start()] + line[found.end() :]
    if wrong := re.match(r"\s*(--?[a-z][\w-]*)(?:[=\s]|$)", line):
        raise UsageError(f"{wrong.group(1)} is no option, or lacks its value: {_USAGE}")
    return given, line.strip()


def _is_of_shapes(best: Diagnosis) -> bool:
    """Whether a diagnosis is worth showing to a user who did not ask for it."""
    known = best.category not in _NOT_SHAPES and best.subtype not in _NOT_OURS
    return known and best.level >= Level.POSSIBLE


@magics_class
class LlamaparExplain(Magics):
    """The magic `%explain`, and the hook that runs after every cell."""

    last: BaseException | None = None

    def after(self, result: ExecutionResult) -> None:
        """Hook for `post_run_cell`: show a diagnosis or nothing; it never raises."""
        try:
            error = result.error_in_exec
            self.last = error if error and not isinstance(error, UsageError) else self.last
            if isinstance(error, _SHAPED):
                found = explain_error(error, {})
                best = found.explanation.best
                if best is not None and _is_of_shapes(best) and found.explanation.verdict != UNKNOWN:
                    display(found)
        # The user already sees the traceback, and an error of this hook would only bury it.
        except (Exception, KeyboardInterrupt):
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
                show(FrameExplanation(explain(f"{text}\n{cell}".strip(), **given)))
            elif error is not None:
                show(explain_error(error, given))
            else:
                raise UsageError(f"no error so far: {_USAGE}")
        except LlamaparError as problem:
            raise UsageError(str(problem)) from None


def register(ip: InteractiveShell) -> None:
    """Register the magic and the hook, unless they are registered."""
    if "LlamaparExplain" not in ip.magics_manager.registry:
        ours = LlamaparExplain(ip)
        ip.register_magics(ours)
        ip.events.register("post_run_cell", ours.after)


def unload(ip: InteractiveShell) -> None:
    """Remove the magic and the hook, if they are registered."""
    ours = ip.magics_manager.registry.pop("LlamaparExplain", None)
    if ours is not None:
        ip.events.unregister("post_run_cell", ours.after)
        for magics in ip.magics_manager.magics.values():
            magics.pop("explain", None)
