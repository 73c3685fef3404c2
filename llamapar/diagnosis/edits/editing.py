"""Edits put into sources, and into the code of functions that exist already."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from types import CodeType

from llamapar.records.frames import Held

from .candidates import SEE, WATCH, Edit
from .degrees import Degree
from .program import Program, Span, codes_of, fresh, span_of

Edits = tuple[Edit, ...]


def spans_of(edits: Iterable[Edit]) -> list[tuple[str, Span]]:
    """The places of edits."""
    return [(edit.file, span) for edit in edits for span in edit.spans]


def total_cost(edits: Iterable[Edit]) -> float:
    """What edits cost together."""
    return sum(edit.cost for edit in edits)


class Editor(ast.NodeTransformer):
    """Puts edits into a tree. degree: the one that runs; None for the edit's own."""

    def __init__(self, edits: Iterable[Edit], degree: Degree | None = None) -> None:
        self.at = {span: edit for edit in edits for span in edit.spans}
        self.degree = degree

    def visit(self, node: ast.AST) -> Held:
        """The node, or what an edit puts in its place."""
        edit = None
        if isinstance(node, ast.expr):
            edit = self.at.pop(span_of(node), None)
        if edit is None:
            return self.generic_visit(node)
        if edit.kind == WATCH:
            if isinstance(getattr(node, "ctx", None), ast.Store):
                return node  # What is stored into has no value yet.
            inner: Held = self.generic_visit(node)
            call = ast.Call(ast.Name(SEE, ast.Load()), [inner], [])
            return ast.fix_missing_locations(ast.copy_location(call, node))
        n = 1
        if edit.degree:
            n = edit.degree.n
        if edit.degree and self.degree and self.degree.axis == edit.degree.axis:
            n = self.degree.n
        run = edit.run.replace("_rank_", str(edit.rank)).replace("_deg_", str(n))
        # The old text stays beside the new one, so that a closure keeps its free variables.
        both = f"({run}) if {edit.only or 'True'} else ({ast.unparse(node)})"
        new = ast.parse(both, mode="eval").body
        for part in ast.walk(new):
            ast.copy_location(part, node)
        return new


class OwnIndex(ast.NodeTransformer):
    """Turns a rank that is written as a number, w.chunk(tp)[0], into the rank that runs."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        called = getattr(getattr(node.value, "func", None), "attr", "")
        if isinstance(node.slice, ast.Constant) and called in ("chunk", "tensor_split"):
            node.slice = ast.copy_location(ast.Constant(self.rank), node.slice)
        return node


def with_edits_in(
    program: Program,
    file: str,
    numbers: Iterable[int],
    edits: Edits,
    rank: int | None = None,
    degree: Degree | None = None,
) -> list[ast.stmt]:
    """Copies of top-level statements of a file with the edits in them."""
    statements = [fresh(program.tree(file).body[number]) for number in numbers]
    module = ast.Module(statements, [])
    module = Editor([edit for edit in edits if edit.file == file], degree).visit(module)
    if rank is not None:
        module = OwnIndex(rank).visit(module)
    return module.body


def swap_code(program: Program, edits: Edits, rank: int | None = None, degree: Degree | None = None) -> None:
    """Put the edits into functions that exist already."""
    for edit in edits:
        for number, statement in enumerate(program.tree(edit.file).body):
            if not (statement.lineno <= edit.spans[0][0] <= (statement.end_lineno or 0)):
                continue
            new_body = with_edits_in(program, edit.file, [number], edits, rank, degree)
            old, new = (
                compile(ast.Module(body, []), edit.file, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, True)
                for body in ([statement], new_body)
            )
            pairs = {
                _place(before): after for before, after in zip(codes_of(old), codes_of(new), strict=False)
            }
            for function in program.functions:
                after = pairs.get(_place(function.__code__))
                if after is not None and after.co_freevars == function.__code__.co_freevars:
                    function.__code__ = after


def _place(code: CodeType) -> Held:
    """Where a code object stands. Its instructions differ with what else the module imports."""
    positions = [place for place in code.co_positions() if None not in place]
    return code.co_filename, code.co_qualname, min(positions, default=()), max(positions, default=())


def places(edits: Edits) -> dict[str, list[Span]]:
    """File → the places of edits in it."""
    found: dict[str, list[Span]] = {}
    for edit in edits:
        found.setdefault(edit.file, []).extend(edit.spans)
    return found
