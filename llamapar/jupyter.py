"""`%load_ext llamapar`: an explanation under the traceback of a shape-like error, `%explain` and `%clinic`.

The hook runs after a cell, when IPython has shown the traceback. It adds text and replaces nothing. It writes
if the failing expression names tensors, with the live facts of the frame, or if the words of the error name a
cause. Nothing of the user's is called, and no text is evaluated.
"""

from __future__ import annotations

import ast
import linecache
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from IPython.core.error import UsageError
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_cell_magic, line_magic, magics_class, no_var_expand
from IPython.display import display

from llamapar.describe import typed_numbers
from llamapar.describe.layout import AXES, Layout
from llamapar.describe.options import Values
from llamapar.diagnosis import Explanation, explain, newest
from llamapar.diagnosis.edits.program import Program, snapshot
from llamapar.errors import MAX_DEGREE, LayoutError, LlamaparError, real, whole
from llamapar.figures import view
from llamapar.frameworks import framework as find_framework

if TYPE_CHECKING:
    from llamapar.execution.result import Result
    from llamapar.panels.failure_card import FailureCard

Failure = str | BaseException | newest.Failed
"""A text, an error, or a result that is not ok."""

_SHAPED = (RuntimeError, ValueError, AssertionError, ZeroDivisionError, IndexError, TypeError)
_NEXT = "%debug_shapes finds the edit: it tries some in copies of the kernel"
_OPTION = rf"--(model|framework|{'|'.join(AXES)})[=\s]\s*(\S+)"
_USAGE = f"%explain [{'] ['.join(f'--{name} N' for name in AXES)}] [--model M] [--framework F] [TEXT]"


def show(found: Explanation) -> None:
    """Display the words, and below them a map of the likeliest cause, where it has one."""
    display({"text/plain": repr(found), "text/html": found._repr_html_()}, raw=True)
    try:
        display(view(found))
    except LayoutError:  # This cause has no numbers to draw, so the words stand alone.
        return


def explained(what: Failure, given: Values | None = None) -> Explanation:
    """Explain a failure; that of a cell of which the source is there with the magic that goes on."""
    found = explain(what, **(given or {}))
    if isinstance(what, _SHAPED) and found.of_shapes:
        found = replace(found, next=(*found.next, _NEXT))
    return found


def _keep_timed(cell: str) -> None:
    """Keep the source of a cell under `%%time`, which IPython compiles without keeping it."""
    line, _, body = cell.partition("\n")
    lines = []
    if line.startswith("%%time"):
        lines = body.splitlines(keepends=True)
    for name in ("<timed exec>", "<timed eval>"):
        linecache.cache[name] = (len(body), None, lines, name)


def _parsed(line: str) -> tuple[Values, str]:
    """The options before and after the text, and the text itself."""
    given: Values = {}
    while found := re.match(rf"\s*{_OPTION}(?=\s|$)", line) or re.search(rf"(?:^|\s){_OPTION}\s*$", line):
        name, value = found.groups()
        given[name] = value
        if name in AXES:
            given[name] = _degree(name, value)
        elif name == "framework":
            given[name] = find_framework(value).name
        line = line[: found.start()] + line[found.end() :]
    if wrong := re.match(r"\s*(--?[a-z][\w-]*)(?:[=\s]|$)", line):
        raise UsageError(f"{wrong.group(1)} is no option, or lacks its value: {_USAGE}")
    return given, line.strip()


def _degree(name: str, text: str) -> int:
    """A degree as it was typed. Raises LayoutError."""
    return whole(name, typed_numbers.parse_number(name, text).value, 1, MAX_DEGREE)


@magics_class
class LlamaparMagics(Magics):
    """The magics `%explain`, `%clinic`, `%debug_shapes`, `%%ranks`, and the hook that runs after every cell.

    names: what the notebook's names referred to before the last cell that failed. seen: the newest failure
    before the cell that runs. on_ranks: what came of `%%ranks` in the cell that runs. card: the newest card.
    ends: cell → the line in which it failed, 0 for a cell that ran. runs: whether one runs now.
    """

    seen: object = None
    names: Mapping[str, Callable[[], object]] = MappingProxyType({})

    def __init__(self, shell: InteractiveShell | None = None) -> None:
        super().__init__(shell)
        self.on_ranks: Result | None = None
        self.card: FailureCard | None = None
        self.runs = False
        self.ends: dict[str, int] = {}
        self.names_now: Mapping[str, Callable[[], object]] = {}

    def before(self, info: object) -> None:
        """Hook for `pre_run_cell`: remember what the names refer to, without keeping it alive."""
        if self.shell is not None:
            self.names_now = snapshot(self.shell.user_ns)
        self.runs = True

    def after(self, result: ExecutionResult) -> None:
        """Hook for `post_run_cell`: show a diagnosis or nothing; it never raises."""
        self.runs = False
        try:
            error = result.error_in_exec
            self._note_end(error)
            # An interrupt is no failure: the one before it is still the newest.
            if isinstance(error, Exception) and not isinstance(error, UsageError):
                self.names = self.names_now
                if self.card is not None:
                    self.card.find = None  # With it goes the older error, and what its frames hold.
                if result.info is not None:
                    _keep_timed(result.info.raw_cell)
                # An assertion about a run that failed in this cell says less than the run.
                if not (isinstance(error, AssertionError) and newest.newest() is not self.seen):
                    newest.note(error)
            elif self.on_ranks and self.on_ranks.cell and not self.on_ranks.ok:
                newest.note(self.on_ranks)
            self.on_ranks, self.seen = None, newest.newest()
            # An error of the library says itself what is wrong; read as another's it is blamed on a layout.
            if isinstance(error, _SHAPED) and not isinstance(error, LlamaparError):
                found = explained(error)
                if found.of_shapes:
                    self._show(found, error)
        # The user already sees the traceback, and an error of this hook would only bury it.
        except (Exception, KeyboardInterrupt):
            return

    @no_var_expand
    @line_cell_magic
    def explain(self, line: str, cell: str = "") -> None:
        """Why the newest failure came about, of a cell, a run or ranks: %explain; of a text: %explain TEXT.

        Options: --tp N, --cp N, --pp N, --dp N, --model NAME, --framework NAME.
        """
        self._ask(line, cell, lambda what, given: show(explained(what, given)))

    @no_var_expand
    @line_magic
    def clinic(self, line: str) -> None:
        """The newest failure in a panel, with its live facts, or a text: %clinic [OPTIONS] [TEXT].

        Options: as of %explain.
        """
        from llamapar.panels.clinic_panel import clinic  # widgets, when they are first asked for

        def opened(what: Failure, given: Values) -> None:
            if isinstance(what, str | BaseException):
                text = what
            else:
                text = explain(what).line
            display(clinic(text, **given))

        self._ask(line, "", opened)

    def _ask(self, line: str, cell: str, answer: Callable[[Failure, Values], None]) -> None:
        """Answer of a magic about its text, or without one about the newest failure, with its options."""
        try:
            given, text = _parsed(line)
            what = f"{text}\n{cell}".strip() or newest.newest()
            if what is None:
                raise UsageError(f"no error so far: {_USAGE}")
            answer(what, given)
        except LlamaparError as problem:
            raise UsageError(str(problem)) from None

    @no_var_expand
    @line_magic
    def debug_shapes(self, line: str) -> None:
        """Find the edit that repairs the last failing cell: %debug_shapes [SECONDS].

        Edits of the failing line are tried in copies of the kernel, which go on from that line. Nothing
        outside changes, and no cell runs again in the notebook. SECONDS: for all trials; 3 by default.
        """
        from llamapar.diagnosis.edits import SECONDS
        from llamapar.diagnosis.edits.repair import repair

        assert self.shell is not None
        try:
            error = newest.newest()
            if error is None:
                raise LlamaparError("no cell has failed", "", ["%debug_shapes after a traceback"])
            if not isinstance(error, BaseException):
                show(explain(error))  # A result of ranks has tried its edits.
                return
            words = typed_numbers.parse_number("seconds", line.strip() or str(SECONDS)).value
            seconds = real("seconds", words, 0.5, 600)
        except LlamaparError as problem:
            raise UsageError(str(problem)) from None
        self._show(repair(self._program(error), error, seconds), error, seconds)

    def _show(self, found: Explanation, error: BaseException, tried: float = 0) -> None:
        """Display what is known of a cell's error, with buttons where a page may have widgets."""
        data: Values = {"text/plain": repr(found), "text/html": found._repr_html_()}
        if not hasattr(self.shell, "kernel"):
            display(data, raw=True)
            return
        from llamapar.diagnosis.edits.repair import repair
        from llamapar.panels.failure_card import FailureCard  # widgets, when they are first needed

        def find(seconds: float) -> Explanation:
            if self.runs:
                raise LlamaparError("a cell is running: press again when it has ended")
            if newest.newest() is not error:
                raise LlamaparError("another cell has failed since: %debug_shapes is about that one")
            return repair(self._program(error), error, seconds)

        if self.card is not None:
            self.card.find = None
        self.card = FailureCard(found, find, tried)
        widget, _ = self.card._repr_mimebundle_() or ({}, {})
        display({**widget, **data}, metadata={"llamapar": "card"}, raw=True)

    def _program(self, error: BaseException) -> Program:
        """The cells up to the one that an error ended, in the order of their last runs."""
        assert self.shell is not None
        runs = self.shell.compile._filename_map
        files = sorted(runs, key=runs.__getitem__)
        frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
        cell = next((file for file in frames if file in runs), None)
        if cell is not None:
            files = files[: files.index(cell) + 1]
        timed = [file for file in frames if file.startswith("<timed")]
        if timed and linecache.getlines(timed[0]):
            files[-1] = timed[0]  # What stands below `%%time` is the cell.
        cells = {file: self._ran(file) for file in files[:-1]}
        cells[files[-1]] = "".join(linecache.getlines(files[-1]))
        names = self.names or self.names_now
        before = {name: value for name, kept in names.items() if (value := kept()) is not None}
        return Program(cells, self.shell.user_ns, before)

    def _note_end(self, error: BaseException | None) -> None:
        """Remember in which line the newest cell ended."""
        assert self.shell is not None
        runs = self.shell.compile._filename_map
        cell = max(runs, key=runs.__getitem__, default="")
        places = traceback.walk_tb(error.__traceback__) if error else ()
        self.ends[cell] = next((line for frame, line in places if frame.f_code.co_filename == cell), 0)

    def _ran(self, file: str) -> str:
        """What of an earlier cell has run: the statements above the one that failed."""
        source = "".join(linecache.getlines(file))
        end = self.ends.get(file, 0)
        if not end:
            return source
        whole = [each.end_lineno or 0 for each in ast.parse(source).body]
        last = max((line for line in whole if line < end), default=0)
        return "".join(source.splitlines(keepends=True)[:last])

    @no_var_expand
    @cell_magic
    def ranks(self, line: str, cell: str) -> None:
        """Run the cell on real ranks: %%ranks tp=4 [cp=2] [device=cpu] [timeout=60].

        It has `rank`, `world`, `mesh` and `dist`, torch.distributed, ready, and copies of those names of the
        notebook that it reads. What it names stays on the ranks. `ranks.out[3]` is the last value of rank 3.
        """
        assert self.shell is not None
        notebook = self.shell.user_ns
        try:
            from llamapar.execution.cell_run import cell_on_ranks  # torch, when it is first asked for

            layout, device, timeout = _degrees(line)
            found = cell_on_ranks(cell, layout, notebook, device, timeout)
        except LlamaparError as problem:
            raise UsageError(str(problem)) from None
        notebook["ranks"] = self.on_ranks = found
        display(found)


def _degrees(line: str) -> tuple[Layout, str, float]:
    """The layout, the device and the seconds of "tp=4 cp=2 device=cpu timeout=60"."""
    degrees: dict[str, int] = {}
    device = "auto"
    timeout = 60.0
    for word in line.split():
        name, equals, value = word.partition("=")
        if not equals or name not in (*AXES, "timeout", "device"):
            usage = "%%ranks tp=4 [cp=2] [dp=2] [device=cpu] [timeout=60]"
            raise LlamaparError(f"{word} is no degree", "", [usage], "%%ranks")
        if name == "device":
            device = value
        elif name == "timeout":
            timeout = float(typed_numbers.parse_number(name, value).value)
        else:
            degrees[name] = _degree(name, value)
    return Layout.of(degrees), device, timeout


def register(ip: InteractiveShell) -> None:
    """Register the magic and the hook, unless they are registered."""
    if "LlamaparMagics" not in ip.magics_manager.registry:
        ours = LlamaparMagics(ip)
        ip.register_magics(ours)
        # What failed before the extension was loaded, only Python knows.
        error = getattr(sys, "last_value", None)
        if isinstance(error, Exception) and not isinstance(error, UsageError) and newest.newest() is None:
            newest.note(error)
        ip.events.register("pre_run_cell", ours.before)
        ip.events.register("post_run_cell", ours.after)


def unload(ip: InteractiveShell) -> None:
    """Remove the magic and the hook, if they are registered."""
    ours = ip.magics_manager.registry.pop("LlamaparMagics", None)
    if ours is not None:
        ip.events.unregister("pre_run_cell", ours.before)
        ip.events.unregister("post_run_cell", ours.after)
        for magics in ip.magics_manager.magics.values():
            for name in ("explain", "clinic", "debug_shapes", "ranks"):
                magics.pop(name, None)
