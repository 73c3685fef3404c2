"""`debug`: the edit that repairs code that fails, tried in place and compared with one process.

A function, an error, a script and a notebook's cell all become a `Program`: its sources and its names. What
follows is one search for all (`edits`). Left out: a failure of values, which no error shows.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from llamapar.describe.arguments import checked_options
from llamapar.describe.options import Values
from llamapar.errors import LlamaparError, real
from llamapar.records.frames import Held, is_library, raised_through

from . import explain
from .edits import SECONDS
from .edits.program import Program
from .explanation import Explanation
from .vocabulary import UNKNOWN

_CALL = "__attempt__"


@checked_options
def debug(attempt: Callable[[], object] | BaseException, *, seconds: float = SECONDS) -> Explanation:
    """Find the edit that repairs what fails: the line, its operands, the edit, and its proof.

    attempt: a function without arguments that fails, which is called once; or an error that was raised below
        the top level of a script.
    seconds: for all trials. They run in copies of this process, in which no file, socket or other process is
        reached; one that takes longer than 2 s is ended.

    Raises LlamaparError for an attempt that is neither.
    """
    seconds = real("seconds", seconds, 0.1, 600)
    if isinstance(attempt, BaseException):
        return debugged(attempt, seconds)
    if not callable(attempt):
        raise LlamaparError("attempt is no function and no error", "", ["lp.debug(lambda: step(x))"])
    from .edits.repair import repair  # torch, when something has failed

    try:
        attempt()
    except Exception as error:
        with _called(attempt) as program:
            return repair(program, error, seconds)
    return Explanation(UNKNOWN, "the attempt runs; wrong numbers are compared by lp.compare")


def debugged(error: BaseException, seconds: float = SECONDS) -> Explanation:
    """An error of a script, with the edit that repairs it."""
    from .edits.repair import repair

    for at in raised_through(error):
        code = at.tb_frame.f_code
        source = "".join(linecache.getlines(code.co_filename))
        # A library's file, and one without a source, as of `python -c`, is not the user's own.
        if is_library(code.co_filename) or not source:
            continue
        if code.co_name != "<module>":
            break
        names = at.tb_frame.f_globals
        before = {name: value for name, value in names.items() if name.startswith("__")}
        return repair(Program({code.co_filename: source}, names, before), error, seconds)
    why = "no edit was tried: no script's top level leads to this error"
    return replace(explain(error), rivals=(why,))


@contextmanager
def _called(attempt: Held) -> Iterator[Program]:
    """The program that calls a function, beside the module that it stands in."""
    code = getattr(attempt, "__code__", None)
    names: Values = getattr(attempt, "__globals__", {})
    file = ""
    if code is not None:
        file = code.co_filename
    source = "".join(linecache.getlines(file))
    cells = {}
    if source:
        cells = {file: source}
    names[_CALL] = attempt
    try:
        yield Program({**cells, "<attempt>": f"{_CALL}()"}, names, dict(names))
    finally:
        names.pop(_CALL, None)
