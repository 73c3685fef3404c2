"""A failure in a child: its statement, the edits that make it run, and those further away.

The failing statement alone, on the values of its frame, sorts out most edits at no cost.
"""

from __future__ import annotations

import ast
import itertools
import time
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from llamapar.records.frames import Held, stored, tensor_shape, value_of

from .candidates import CUTS, GATHER, WATCH, Candidates, Edit
from .degrees import Degree, degrees_in_reach, group_size, named_degree
from .editing import Editor, Edits, spans_of, total_cost
from .program import Program, around, assignments, fresh, names_in, own_parts

_OF_EACH_KIND = 6
"""Edits of a kind that run on, at most."""

_MOST_ALONE = 30
"""Edits of a statement that does not fail by itself, at most."""

_MOST_ELSEWHERE = 60
"""Edits outside the failing statement that are tried, at most."""

_STATEMENT_SECONDS = 0.8
"""Seconds for the edits of the failing statement alone."""


@dataclass(frozen=True)
class Facts:
    """What a child saw where the program failed; it holds no value of the user's.

    here: sets of edits that make the statement run; elsewhere: edits outside it. whole: whether no cut made a
    tensor of the statement; near: whether a degree is among the names on which it rests. loop: a condition
    that holds only in the pass of a loop that failed. watch: hands the value of the failing expression to a
    comparison.
    """

    kind: str
    message: str
    file: str
    function: str
    line: int
    start: int
    degrees: list[Degree]
    here: list[Edits]
    elsewhere: list[Edit]
    whole: bool
    near: bool
    loop: str
    watch: Edits


class Failure:
    """The failing frames of an error in a child: the statement, and what could be edited."""

    def __init__(self, program: Program, error: BaseException) -> None:
        while error.__cause__ is not None and program.frames(error.__cause__):
            error = error.__cause__
        program.read_files(error)
        self.program = program
        self.error = error
        self.stack = program.frames(error)
        self.frame, self.span = self.stack[0]
        self.file = self.frame.f_code.co_filename
        self.names = ChainMap(self.frame.f_locals, self.frame.f_globals)
        self.around = around(program.tree(self.file), self.span) or [ast.Pass(lineno=1, end_lineno=1)]
        self.statement = self.around[0]
        inner = {}
        if self.frame.f_code.co_name != "<module>":
            inner = self.frame.f_locals
        self.rests_on, self.whole = self._slice()
        self.degrees, self.near = degrees_in_reach(
            str(error), self.rests_on, inner, self.frame.f_globals, program.names
        )

    def facts(self) -> Facts:
        """What the parent needs to know."""
        return Facts(
            type(self.error).__name__,
            str(self.error),
            self.file,
            self.frame.f_code.co_qualname,
            self.statement.lineno,
            self.program.start(self.error),
            self.degrees,
            self.here(),
            self.elsewhere()[:_MOST_ELSEWHERE],
            self.whole,
            self.near,
            next(filter(None, map(self._this_pass, self.around)), ""),
            self.watch(),
        )

    def _this_pass(self, loop: ast.stmt) -> str:
        """A condition that holds only in the pass of a loop that failed; "" if none can be written."""
        if not isinstance(loop, ast.For):
            return ""
        targets = [loop.target]
        if isinstance(loop.target, ast.Tuple):
            targets = loop.target.elts
        for target in targets:
            value = value_of(target, self.names)
            if type(value) is int:
                return f"{ast.unparse(target)} == {value}"
        items = value_of(loop.iter, self.names)
        items = list(stored(items).get("_modules", {}).values()) or items
        for number, each in enumerate(items if type(items) in (list, tuple) else ()):
            if each is value:
                return f"{ast.unparse(loop.target)} is {ast.unparse(loop.iter)}[{number}]"
        return ""

    def here(self, most: int = _OF_EACH_KIND) -> list[Edits]:
        """Sets of edits of the failing statement that make it run: one, or two cuts at once."""
        if isinstance(self.statement, ast.Assert | ast.Raise):
            return []  # A check that does not hold is not the mistake.
        given = self.names, self.degrees
        parts = (Candidates(self.program, self.file, each, *given) for each in own_parts(self.statement))
        singles = [edit for part in parts for edit in part.all()]
        if alone(self.statement, (), self.names) != str(self.error):
            # It does not fail by itself, as with a part of a loop: the whole cell has to try the edits.
            several = [edit for edit in singles if edit.kind != GATHER][:_MOST_ALONE]
            return [(edit,) for edit in several]
        end = time.monotonic() + _STATEMENT_SECONDS

        def running(sets: Iterable[Edits]) -> Iterator[Edits]:
            for edits in sets:
                if time.monotonic() < end and alone(self.statement, edits, self.names) is None:
                    yield edits

        found: list[Edits] = list(running((edit,) for edit in singles))
        if not any(edits[0].kind in CUTS and edits[0].cost < 5 for edits in found):
            sizes = [edit for edit in singles if edit.kind in CUTS and edit.cost < 4]
            pairs = itertools.combinations(sizes, 2)
            found += running(edits for edits in pairs if len({*spans_of(edits)}) == len(spans_of(edits)))
        found.sort(key=lambda edits: total_cost(edits) + len({edit.degree for edit in edits}))
        by_kind: dict[str, list[Edits]] = {}
        for edits in found:
            by_kind.setdefault(edits[0].kind, []).append(edits)
        return [edits for same in by_kind.values() for edits in same[:most]]

    def elsewhere(self) -> list[Edit]:
        """Edits of the statement's callers, and of assignments to what it reads."""
        found: list[Edit] = []
        for frame, span in self.stack[1:]:
            file = frame.f_code.co_filename
            names = ChainMap(frame.f_locals, frame.f_globals)
            call = around(self.program.tree(file), span)
            for part in own_parts(call[0]) if call else ():
                ranks, _ = degrees_in_reach(str(self.error), self.rests_on, frame.f_locals, frame.f_globals)
                found += Candidates(self.program, file, part, names, ranks, 1).all()
        found += self._earlier()
        return sorted((edit for edit in found if edit.kind != GATHER), key=lambda edit: edit.cost)

    def _earlier(self) -> Iterator[Edit]:
        """Edits of the assignments behind the names of the statement, the nearest first."""
        wanted = names_in(self.statement)
        attributes = {ast.unparse(n) for n in ast.walk(self.statement) if isinstance(n, ast.Attribute)}
        function = next((each for each in self.around if isinstance(each, ast.FunctionDef)), None)
        files = dict.fromkeys((self.file, *reversed(self.program.cells)))
        for file in files:
            tree = self.program.tree(file)
            made = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
            for statement in sorted(made, key=lambda node: -node.lineno):
                here = file == self.file
                inside = here and function is not None and statement in ast.walk(function)
                top = statement in tree.body
                targets = [target for target, _ in assignments(statement)]
                # What __init__ stores into self is read by other methods.
                stores = any(ast.unparse(target) in attributes for target in targets) and not top
                before = not here or statement.lineno < self.statement.lineno or stores
                if not before or not (top or inside or stores) or isinstance(statement.value, ast.Constant):
                    continue
                bound = names_in(*targets)
                if stores or bound & wanted:
                    names: Mapping[str, Held] = self.program.names
                    if here:
                        names = self.names
                    yield from Candidates(self.program, file, statement.value, names, self.degrees, 1).all()
                    wanted |= names_in(statement.value)

    def watch(self) -> Edits:
        """What hands the value of the failing expression to a comparison."""
        return (Edit(self.file, (self.span,), "", "", WATCH, None, 0.0, ""),)

    def _slice(self) -> tuple[set[str], bool]:
        """The names on which the failing lines rest, and whether no cut made a tensor among them."""
        program = self.program
        blocks = [
            each for frame, at in self.stack for each in around(program.tree(frame.f_code.co_filename), at)
        ]
        # In a process group a tensor may be a rank's, whatever made it.
        whole = not any(map(_cuts, blocks)) and group_size() == 1
        wanted = names_in(*blocks)
        names = set(wanted)
        open_names = set(wanted)
        for file in reversed(program.cells):
            for statement in reversed(list(ast.walk(program.tree(file)))):
                for target, value in assignments(statement):
                    bound = names_in(target)
                    if not bound & wanted:
                        continue
                    whole &= not _cuts(value)
                    open_names -= bound
                    if isinstance(target, ast.Name):
                        wanted.discard(target.id)  # What it was before does not matter.
                    read = names_in(value)
                    wanted |= read
                    names |= read
        unseen = (program.names.get(name) for name in open_names)
        return names, whole and all(tensor_shape(value) is None for value in unseen)


_CUTTING = frozenset(
    [
        "chunk",
        "split",
        "tensor_split",
        "narrow",
        "index_select",
        "select",
        "unbind",
        "load",
        "load_file",
        "safe_open",
        "load_state_dict",
    ]
)


def _cuts(value: ast.AST) -> bool:
    """Whether an expression may make a part of something: a slice, a chunk, a division by ranks, a file."""
    for node in ast.walk(value):
        if isinstance(node, ast.Slice) and not all(map(_is_shift, (node.lower, node.upper, node.step))):
            return True
        divisor = None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
            divisor = node.right
        if isinstance(divisor, ast.Constant) or (divisor is not None and named_degree(divisor)):
            return True
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _CUTTING:
            return True
    return False


def _is_shift(end: ast.expr | None) -> bool:
    """Whether an end of a slice is none, or leaves out one item, as a shift of labels does."""
    number = end
    if isinstance(end, ast.UnaryOp):
        number = end.operand
    return number is None or (isinstance(number, ast.Constant) and number.value == 1)


def alone(statement: ast.stmt, edits: Edits, names: Mapping[str, Held]) -> str | None:
    """What a statement by itself says on a frame's values, with edits in it; None if it runs."""
    module = Editor(edits).visit(ast.Module([fresh(statement)], []))
    only = module.body[0]
    if isinstance(only, ast.Return) and only.value is not None:
        module.body = [ast.copy_location(ast.Expr(only.value), only)]
    try:
        code = compile(ast.fix_missing_locations(module), "<trial>", "exec", dont_inherit=True)
        exec(code, dict(names))
    except BaseException as error:  # In a child even an exit is only an outcome.
        return str(error)
    return None
