"""Follow a program line by line: after each line, the tensors that it named.

Python's own tracing (sys.settrace) does the work, so a program runs unchanged, with its branches, loops and
helpers. A predicate selects the frames that belong to the program; torch's own lines are left out.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple

from torch import Tensor

from llamapar.programs import PROGRAMS, breaking, broken, llama, vocab
from llamapar.spmd.zero import Gathered

from .stepping import Trained

Frames = Callable[[CodeType, FrameType], bool]
"""Whether a frame is one of the program's."""


class Key(NamedTuple):
    """One assignment: the line, counted from the function's first, the name, and how often it was made
    before.
    """

    function: str
    line: int
    code: str
    name: str = ""
    times: int = 0

    @property
    def where(self) -> str:
        return f"{self.function}:{self.line}"


NOWHERE = Key("", 0, "")


class Assignment(NamedTuple):
    """The moment when a tensor gets its name.

    depth: 0 in the program, 1 in a helper. call: number of the call of the function, from 0. read: the names
    that the line read, with their tensors before it. since: the result of `mark` when the line began.
    parameter: the parameter that a function of OF_PARAMETERS works on; "" in other functions.
    """

    depth: int
    call: int
    read: Mapping[str, Tensor]
    since: tuple[int, int]
    parameter: str = ""


class Statement(NamedTuple):
    """The lines of a statement, and the names that it reads and assigns."""

    lines: range
    reads: tuple[str, ...]
    gives: frozenset[str]


NO_STATEMENT = Statement(range(0), (), frozenset())


def of_programs(function: Callable[..., object]) -> Frames:
    """Which frames to follow: for our programs the programs themselves, for your own its whole module."""
    ours = {p.function.__code__ for p in PROGRAMS.values()} | {
        llama.llama_stage.__code__,
        vocab.cross_entropy.__code__,
    }
    if function.__code__ in ours:
        return lambda code, frame: code in ours
    names = function.__globals__
    return lambda code, frame: code in ours or frame.f_globals is names


GATHER = Gathered.__getitem__.__code__
"""Where a parameter that ZeRO shares is gathered, when a program looks it up."""

OF_PARAMETERS = (GATHER, Trained.update.__code__)
"""Functions of the library that call the parameter that they are about 'name'."""


def with_helpers(function: Callable[..., object]) -> Frames:
    """The function, its module, every function of the programs, and the code that gathers shards; not the
    wrong ones that a fault puts in.
    """
    names = function.__globals__

    def wanted(code: CodeType, frame: FrameType) -> bool:
        module = str(frame.f_globals.get("__name__"))
        if module in (breaking.__name__, broken.__name__):
            return False
        return frame.f_globals is names or module.startswith("llamapar.programs.") or code is GATHER

    return wanted


class Follower:
    """Context manager that calls `add` with each tensor that a line of the program names.

    A line that renames an existing tensor counts too, because what sends nothing on one rank can send on two.
    mark: called when a line begins and when a call ends; `calls` has its results at both ends of each call.
    tick: called at each line; it can raise to stop the program, for example an endless loop. version: a
    tensor's; `add` is called again for a name whose tensor has another one after a line.
    """

    def __init__(
        self,
        wanted: Frames,
        add: Callable[[Key, Tensor, Assignment], None],
        mark: Callable[[], tuple[int, int]] = lambda: (0, 0),
        tick: Callable[[], None] = lambda: None,
        version: Callable[[Tensor], object] = lambda t: None,
    ) -> None:
        self.wanted = wanted
        self.add = add
        self.mark = mark
        self.tick = tick
        self.version = version
        self.calls: list[tuple[tuple[int, int], tuple[int, int]]] = []
        self._made: Counter[Key] = Counter()
        self._depth = -1
        self._raised: tuple[BaseException | None, Key] = None, NOWHERE
        self._ended = NOWHERE
        self.read_at_end: Mapping[str, Tensor] = {}
        """What the line of `ended_at` read, by name."""

    def __enter__(self) -> Follower:
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, at: TracebackType | None) -> None:
        sys.settrace(self._before)

    def raised_at(self, error: BaseException) -> Key:
        """The line that raised an error; NOWHERE if it was no line of the program."""
        if self._raised[0] is error:
            return self._raised[1]
        return NOWHERE

    def ended_at(self, error: BaseException) -> Key:
        """The line of the program itself from which an error came, even if a helper raised it."""
        if self._raised[0] is error:
            return self._ended
        return NOWHERE

    def _called(self, frame: FrameType, event: str, arg: object) -> Any:
        if event != "call" or not self.wanted(frame.f_code, frame):
            return None
        name = frame.f_code.co_name
        if frame.f_code.co_flags & inspect.CO_GENERATOR or (name[0] == "<" and name != "<module>"):
            return None
        found, known, versions = statements(frame.f_code), dict[str, Tensor](), dict[str, object]()
        last, since, call = frame.f_lineno, self.mark(), len(self.calls)
        self.calls.append((since, since))
        self._depth += 1

        def moment(number: int) -> Assignment:
            read = {n: known[n] for n in found.get(number, NO_STATEMENT).reads if n in known}
            about = ""
            if frame.f_code in OF_PARAMETERS:
                about = frame.f_locals.get("name", "")
            return Assignment(self._depth, call, read, since, about)

        def named(at: Key, when: Assignment, given: frozenset[str] = frozenset()) -> None:
            for name, value in list(frame.f_locals.items()):
                if not isinstance(value, Tensor):
                    continue
                version = self.version(value)
                if name in given or known.get(name) is not value or versions[name] != version:
                    known[name], versions[name] = value, version
                    if at.line or at.code == "argument" or at.function == "<module>":
                        self._add(at._replace(name=name), value, when)

        def inside(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal last, since
            self.tick()
            done = line_of(frame, last)
            now = found.get(last, NO_STATEMENT)
            if event == "line" and len(now.lines) > 1 and frame.f_lineno in now.lines:
                return inside  # The statement continues over several lines.
            named(done, moment(last), now.gives if event == "line" else frozenset())
            if event == "exception" and self._raised[0] is not arg[1]:
                self._raised = arg[1], line_of(frame, frame.f_lineno)
            if event == "exception" and self._depth == 0:
                self._ended, self.read_at_end = line_of(frame, frame.f_lineno), moment(frame.f_lineno).read
            if event == "return":
                if isinstance(arg, Tensor) and done.code.startswith("return"):
                    self._add(line_of(frame, frame.f_lineno)._replace(name="return"), arg, moment(last))
                self._depth -= 1
                self.calls[call] = self.calls[call][0], self.mark()
            last = frame.f_lineno
            since = self.mark()
            return inside

        named(Key(frame.f_code.co_name, 0, "argument"), moment(0))
        return inside

    def _add(self, key: Key, value: Tensor, moment: Assignment) -> None:
        self.add(key._replace(times=self._made[key]), value, moment)
        self._made[key] += 1


def line_of(frame: FrameType, number: int) -> Key:
    """The line of a frame as a Key without a name."""
    code = frame.f_code
    text = linecache.getline(code.co_filename, number, frame.f_globals).strip()
    return Key(code.co_name, number - code.co_firstlineno, text.partition("  #")[0].strip())


@cache
def statements(code: CodeType) -> Mapping[int, Statement]:
    """Line → its statement; for a loop or a condition its head. Empty without a source."""
    try:
        # Of a whole file or cell inspect takes the first block alone.
        is_whole = code.co_name == "<module>"
        lines, first = (linecache.getlines(code.co_filename), 1) if is_whole else inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError):
        return {}
    found: dict[int, Statement] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt) or isinstance(node, ast.FunctionDef):
            continue
        simple = not hasattr(node, "body")
        head: ast.AST = node if simple else getattr(node, "test", None) or ast.Pass()
        names = [n for n in ast.walk(head) if isinstance(n, ast.Name)]
        reads = dict.fromkeys(
            n.id for n in names if isinstance(n.ctx, ast.Load) or isinstance(node, ast.AugAssign)
        )
        gives = frozenset(n.id for n in names if isinstance(n.ctx, ast.Store))
        past = node.lineno
        if simple:
            past = node.end_lineno or node.lineno
        own = range(node.lineno + first - 1, past + first)
        found |= dict.fromkeys(own, Statement(own, tuple(reads), gives))
    return found
