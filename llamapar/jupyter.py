"""`%load_ext llamapar`: an explanation under the traceback of a shape-like error, `%explain` and `%clinic`.

The hook runs after a cell, when IPython has shown the traceback. It adds text and replaces nothing. It writes
if the failing expression names tensors, with the live facts of the frame, or if the words of the error name a
cause. Nothing of the user's is called, and no text is evaluated.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from IPython.core.error import UsageError
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_cell_magic, line_magic, magics_class, no_var_expand
from IPython.display import display

from llamapar.describe import typed_numbers
from llamapar.describe.layout import AXES, Layout
from llamapar.describe.options import Values
from llamapar.diagnosis import Explanation, explain, newest
from llamapar.errors import MAX_DEGREE, LayoutError, LlamaparError, real, whole
from llamapar.figures import view
from llamapar.frameworks import framework as find_framework

if TYPE_CHECKING:
    from llamapar.execution.result import Result

Failure = str | BaseException | newest.Failed
"""A text, an error, or a result that is not ok."""

_SHAPED = (RuntimeError, ValueError, AssertionError, ZeroDivisionError, IndexError, TypeError)
_OPTION = rf"--(model|framework|{'|'.join(AXES)})[=\s]\s*(\S+)"
_USAGE = f"%explain [{'] ['.join(f'--{name} N' for name in AXES)}] [--model M] [--framework F] [TEXT]"


def show(found: Explanation, drawn: bool = True) -> None:
    """Display the words; if `drawn`, below them a picture of the likeliest cause, where it has numbers."""
    display({"text/plain": repr(found), "text/html": found._repr_html_()}, raw=True)
    try:
        if drawn:
            display(view(found))
    except LayoutError:  # This cause has no numbers to draw, so the words stand alone.
        return


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


@magics_class
class LlamaparMagics(Magics):
    """The magics `%explain`, `%clinic`, `%debug_shapes`, `%%ranks`, and the hook that runs after every cell.

    failed: the number of the last cell that failed; layout: its layout, if `%%ranks` ran it. seen: the newest
    failure before the cell that runs. on_ranks: what came of `%%ranks` in the cell that runs. unnumbered:
    cells as the history of the session does not have them: it keeps none in some front ends, and of `%%ranks`
    the call.
    """

    seen: object = None
    failed: int | None = None
    layout: Layout | None = None

    def __init__(self, shell: InteractiveShell | None = None) -> None:
        super().__init__(shell)
        self.on_ranks: Result | None = None
        self.unnumbered: dict[int, str] = {}

    def after(self, result: ExecutionResult) -> None:
        """Hook for `post_run_cell`: show a diagnosis or nothing; it never raises."""
        try:
            error, number = result.error_in_exec, result.execution_count
            if self.shell and result.info and not result.info.store_history:
                number = len(self.shell.user_ns["In"]) + len(self.unnumbered)
                self.unnumbered[number] = self.shell.transform_cell(result.info.raw_cell)
            if error and not isinstance(error, UsageError):
                self.failed, self.layout = number, None
                # An assertion about a run that failed in this cell says less than the run.
                if not (isinstance(error, AssertionError) and newest.newest() is not self.seen):
                    newest.note(error)
            elif number is not None and self.on_ranks and self.on_ranks.cell and not self.on_ranks.ok:
                self.failed, self.layout = number, self.on_ranks.layout
                self.unnumbered[number] = self.on_ranks.cell.source
                newest.note(self.on_ranks)
            self.on_ranks, self.seen = None, newest.newest()
            # An error of the library says itself what is wrong; read as another's it is blamed on a layout.
            if isinstance(error, _SHAPED) and not isinstance(error, LlamaparError):
                found = explain(error)
                if found.of_shapes:
                    show(found, drawn=False)
        # The user already sees the traceback, and an error of this hook would only bury it.
        except (Exception, KeyboardInterrupt):
            return

    @no_var_expand
    @line_cell_magic
    def explain(self, line: str, cell: str = "") -> None:
        """Why the newest failure came about, of a cell, a run or ranks: %explain; of a text: %explain TEXT.

        Options: --tp N, --cp N, --pp N, --dp N, --model NAME, --framework NAME.
        """
        self._ask(line, cell, lambda what, given: show(explain(what, **given)))

    @no_var_expand
    @line_magic
    def clinic(self, line: str) -> None:
        """The newest failure in a panel, with its live facts, or a text: %clinic [OPTIONS] [TEXT].

        Options: as of %explain.
        """
        from llamapar.panels.clinic_panel import clinic  # widgets, when they are first asked for

        def opened(what: Failure, given: Values) -> None:
            text = what if isinstance(what, str | BaseException) else explain(what).line
            display(clinic(text, **given))

        self._ask(line, "", opened)

    def _ask(self, line: str, cell: str, answer: Callable[[Failure, Values], None]) -> None:
        """Answer of a magic about its text, or without one about the newest failure, with its options."""
        try:
            given, text = _parsed(line)
            # What failed before the extension was loaded, only Python knows.
            what = f"{text}\n{cell}".strip() or newest.newest() or getattr(sys, "last_value", None)
            if what is None or isinstance(what, UsageError):
                raise UsageError(f"no error so far: {_USAGE}")
            answer(what, given)
        except LlamaparError as problem:
            raise UsageError(str(problem)) from None

    @no_var_expand
    @line_magic
    def debug_shapes(self, line: str) -> None:
        """Find the cause of the last failing cell by experiment: %debug_shapes [SECONDS].

        It runs the cells behind the failing one again, many times, in a process of its own, with one number
        in them changed at a time. SECONDS: for the trials; 2 by default.
        """
        assert self.shell is not None
        try:
            if self.failed is None:
                raise LlamaparError("no cell has failed", "", ["%debug_shapes after a traceback"])
            from llamapar.diagnosis.replay import cells_behind, debug_cells

            cells = {n: source for n, source in enumerate(self.shell.user_ns["In"]) if source}
            behind = cells_behind(cells | self.unnumbered, self.failed, self.shell.user_ns, self.layout)
            seconds = real(
                "deadline", typed_numbers.parse_number("deadline", line.strip() or "2").value, 1, 600
            )
            numbers = ", ".join(f"{name}={n}" for name, n in behind.knobs.items())
            print(f"runs cells {', '.join(map(str, behind.cells))} again, in a process of their own, with "
                  f"{numbers or 'no number to change'}")  # fmt: skip
            found = debug_cells(behind, seconds)
        except LlamaparError as problem:
            raise UsageError(str(problem)) from None
        display({"text/plain": found["text"], "text/html": found["html"]}, raw=True)

    @no_var_expand
    @cell_magic
    def ranks(self, line: str, cell: str) -> None:
        """Run the cell on real ranks: %%ranks tp=4 [cp=2] [timeout=60].

        It has `rank`, `world`, `mesh` and `dist`, torch.distributed, ready, and copies of those names of the
        notebook that it reads. What it names stays on the ranks. `ranks.out[3]` is the last value of rank 3.
        """
        assert self.shell is not None
        notebook = self.shell.user_ns
        try:
            from llamapar.execution.cell_run import cell_on_ranks  # torch, when it is first asked for

            layout, timeout = _degrees(line)
            found = cell_on_ranks(cell, layout, notebook, timeout)
        except LlamaparError as problem:
            raise UsageError(str(problem)) from None
        notebook["ranks"] = self.on_ranks = found
        display(found)


def _degrees(line: str) -> tuple[Layout, float]:
    """The layout and the seconds of "tp=4 cp=2 timeout=60"."""
    given: Values = {}
    for word in line.split():
        name, equals, value = word.partition("=")
        if not equals or name not in (*AXES, "timeout"):
            usage = "%%ranks tp=4 [cp=2] [dp=2] [timeout=60]"
            raise LlamaparError(f"{word} is no degree", "", [usage], "%%ranks")
        given[name] = typed_numbers.parse_number(name, value).value
    timeout = given.pop("timeout", 60)
    return Layout.of({name: whole(name, n, 1, MAX_DEGREE) for name, n in given.items()}), float(timeout)


def register(ip: InteractiveShell) -> None:
    """Register the magic and the hook, unless they are registered."""
    if "LlamaparMagics" not in ip.magics_manager.registry:
        ours = LlamaparMagics(ip)
        ip.register_magics(ours)
        ip.events.register("post_run_cell", ours.after)


def unload(ip: InteractiveShell) -> None:
    """Remove the magic and the hook, if they are registered."""
    ours = ip.magics_manager.registry.pop("LlamaparMagics", None)
    if ours is not None:
        ip.events.unregister("post_run_cell", ours.after)
        for magics in ip.magics_manager.magics.values():
            for name in ("explain", "clinic", "debug_shapes", "ranks"):
                magics.pop(name, None)
