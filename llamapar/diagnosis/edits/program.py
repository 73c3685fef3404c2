"""The program that failed: its sources, its names, and how it goes on from the failing statement.

The program is never replayed. Its names are as the failure left them, and it runs on from the statement of
its last cell that failed. Only an edit that stands before that statement, or another degree, makes earlier
statements run again, and of these only the ones that rest on the change.
"""

from __future__ import annotations

import ast
import asyncio
import gc
import inspect
import linecache
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import CodeType, FrameType, FunctionType

from llamapar.describe.options import Values
from llamapar.records.frames import Held, is_library, position_of, raised_through

Span = tuple[int, int, int, int]
"""Where an expression begins and ends: line, column, line, column."""

Step = tuple[str, int]
"""A file, and the number of one of its top-level statements."""


@dataclass
class Program:
    """What failed. cells: file name → source of what ran at top level, in order; the last one failed.

    names: the names that the cells share, as they are now; before: as they were before the last cell. files:
    sources of the user's own modules in which it failed.
    """

    cells: dict[str, str]
    names: Values
    before: Values
    files: dict[str, str] = field(default_factory=dict)
    functions: list[FunctionType] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._trees: dict[str, ast.Module] = {}

    @property
    def last(self) -> str:
        """The file name of the cell that failed."""
        return next(reversed(self.cells))

    def source(self, file: str) -> str:
        """The source of a cell or a module."""
        return self.cells.get(file) or self.files.get(file, "")

    def tree(self, file: str) -> ast.Module:
        """The syntax tree of a source, which nobody may change; empty if it cannot be read."""
        if file not in self._trees:
            try:
                self._trees[file] = ast.parse(self.source(file))
            except SyntaxError:
                self._trees[file] = ast.Module([], [])
        return self._trees[file]

    def read_files(self, error: BaseException) -> None:
        """Add the user's own modules among the frames of an error."""
        for at in raised_through(error):
            file = at.tb_frame.f_code.co_filename
            source = "".join(linecache.getlines(file))
            if source and file not in self.cells and not is_library(file):
                self.files[file] = source

    @cached_property
    def assigned(self) -> list[tuple[str, ast.expr]]:
        """The assignments of all sources, the newest cell's first: target and value."""
        nodes = [node for file in (*self.files, *self.cells) for node in ast.walk(self.tree(file))]
        return [(ast.unparse(to), value) for node in reversed(nodes) for to, value in assignments(node)]

    def find_functions(self) -> None:
        """List the functions of these sources that exist now: an edit changes their code in place."""
        known = self.cells.keys() | self.files.keys()
        self.functions = [
            each
            for each in gc.get_objects()
            if type(each) is FunctionType and each.__code__.co_filename in known
        ]

    def frames(self, error: BaseException) -> list[tuple[FrameType, Span]]:
        """The frames of the user's own code with the place of the failing instruction, innermost first."""
        own: list[tuple[FrameType, Span]] = []
        for at in raised_through(error):
            file = at.tb_frame.f_code.co_filename
            if file in self.cells or file in self.files:
                line = at.tb_lineno
                first, end, begin, stop = position_of(at)
                own.insert(0, (at.tb_frame, (first or line, begin or 0, end or line, stop or 0)))
        return own

    def start(self, error: BaseException) -> int:
        """The number of the last cell's statement that failed."""
        for frame, span in reversed(self.frames(error)):
            if frame.f_code.co_filename == self.last and frame.f_code.co_name == "<module>":
                for number, statement in enumerate(self.tree(self.last).body):
                    if statement.lineno <= span[0] <= (statement.end_lineno or 0):
                        return number
        return 0

    def execute(self, file: str, body: Sequence[ast.stmt]) -> None:
        """Run top-level statements of a cell; one that awaits runs in a loop of its own."""
        module = ast.Module(list(body), [])
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(module, file, "exec", flags, dont_inherit=True)
        if code.co_flags & inspect.CO_COROUTINE:
            # In a forked child the kernel's loop is not ours, and it does not turn.
            asyncio._set_running_loop(None)
            asyncio.run(eval(code, self.names))
        else:
            exec(code, self.names)

    def steps(self, changed: set[str], edited: Mapping[str, Sequence[Span]]) -> list[Step]:
        """The statements of all cells that run again: they rest on changed names, or are edited."""
        known: list[tuple[Step, ast.stmt, Names]] = []
        chosen: set[Step] = set()
        again = set(changed)
        for file in (*self.files, *self.cells):
            lines = [span[0] for span in edited.get(file, ())]
            for number, statement in enumerate(self.tree(file).body):
                names = Names.of(statement)
                if file in self.cells:
                    known.append(((file, number), statement, names))
                # A function gets its new code in place, but an object of a class has to be made anew.
                parts = [statement]
                if hasattr(statement, "body"):
                    parts = [each for each in statement.body if getattr(each, "name", "") == "__init__"]
                if any(each.lineno <= at <= (each.end_lineno or 0) for each in parts for at in lines):
                    again |= names.bound
                    if not hasattr(statement, "body"):
                        chosen.add((file, number))
        needed: set[str] = set()
        size = -1
        # What reads a changed name runs again, and so does all that makes or changes what these make.
        while size != len(chosen) + len(needed):
            size = len(chosen) + len(needed)
            stale = set(again)
            for step, statement, names in known:
                rests = names.read & stale and not isinstance(statement, ast.Expr)
                if rests or (names.bound | names.changed) & needed:
                    chosen.add(step)
                if step in chosen:
                    stale |= names.bound | names.changed
                    needed |= names.changed | (names.bound & names.read)
        return [step for step, _, _ in known if step in chosen]


def names_in(*nodes: ast.AST) -> set[str]:
    """The names that stand in syntax trees, read or bound."""
    return {each.id for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name)}


@dataclass(frozen=True)
class Names:
    """The names that a top-level statement reads, binds, and changes in place; a body counts as read."""

    read: set[str]
    bound: set[str]
    changed: set[str]

    @classmethod
    def of(cls, statement: ast.AST) -> Names:
        """The names of a statement."""
        nodes = list(ast.walk(statement))
        names = [node for node in nodes if isinstance(node, ast.Name)]
        read = {name.id for name in names if isinstance(name.ctx, ast.Load)}
        bound = {name.id for name in names if isinstance(name.ctx, ast.Store)}
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(statement.name)
        changed: set[str] = set()
        for node in nodes:
            if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
                changed |= names_in(node)
        return cls(read, bound, changed & read)


def snapshot(names: Values) -> dict[str, Callable[[], Held]]:
    """What names refer to now, without keeping it alive: each name with a call that gives it, or None."""
    kept: dict[str, Callable[[], Held]] = {}
    for name, value in names.items():
        try:
            kept[name] = weakref.ref(value)
        except TypeError:  # An integer or a list has no weak references.
            kept[name] = partial(_same, value)
    return kept


def _same(value: Held) -> Held:
    return value


def span_of(node: ast.AST) -> Span:
    """Where an expression or a statement stands."""
    place: ast.expr = node  # type: ignore[assignment]
    return place.lineno, place.col_offset, place.end_lineno or 0, place.end_col_offset or 0


def fresh(node: Held) -> Held:
    """A copy of a tree. copy.deepcopy follows links that IPython hangs on the nodes that Python shares."""
    if isinstance(node, list):
        return [fresh(each) for each in node]
    if not isinstance(node, ast.AST):
        return node
    parts = {name: fresh(value) for name, value in ast.iter_fields(node)}
    return ast.copy_location(type(node)(**parts), node)


def around(tree: ast.Module, span: Span) -> list[ast.stmt]:
    """The statements around a place, innermost first."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            first, begin, last, end = span_of(node)
            if (first, begin) <= span[:2] and span[2:] <= (last, end):
                found.append(node)
    return found[::-1]


def own_parts(statement: ast.AST) -> list[ast.AST]:
    """What of a statement is its own: of a compound one the header, else all of it."""
    if not hasattr(statement, "body"):
        return [statement]
    parts = [getattr(statement, name, None) for name in ("iter", "test")]
    parts += [item.context_expr for item in getattr(statement, "items", ())]
    return [part for part in parts if part is not None]


def assignments(statement: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Target and value of an assignment; of `a, b = 1, 2` each pair by itself."""
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        yield statement.target, statement.value
    for target in statement.targets if isinstance(statement, ast.Assign) else ():
        value = statement.value  # type: ignore[attr-defined]
        if not isinstance(target, ast.Tuple):
            yield target, value
        elif isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
            yield from zip(target.elts, value.elts, strict=True)
        else:
            yield from ((each, value) for each in target.elts)


def codes_of(code: CodeType) -> Iterator[CodeType]:
    """The code objects inside a code object, at any depth."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            yield from codes_of(inner)
