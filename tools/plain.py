"""Whether the package's code is plain: what a tool can hold of "plain before dense". `make lint` runs it.

It counts four kinds of dense code, and fails where there is more of one than its ceiling. Ceilings only fall.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "llamapar"
MOST_LINES = 60  # of a function, without its docstring
MOST_LEVELS = 4
CEILINGS = {
    "assignments of a tuple to a tuple": 110,
    "conditional expressions": 899,
    "a text, list or tuple times a condition": 8,
    f"functions over {MOST_LINES} lines or {MOST_LEVELS} levels": 4,
}

Found = Iterator[ast.AST]


def tuples_to_tuples(tree: ast.AST) -> Found:
    """`a, b = x, y`: one statement does two things."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            yield from (node for target in node.targets if isinstance(target, ast.Tuple))


def conditional_expressions(tree: ast.AST) -> Found:
    """`x if c else y`."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.IfExp))


def conditions_as_factors(tree: ast.AST) -> Found:
    """`"text" * bool(x)`, `[x] * (n > 1)`: a condition that is written as a product."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            sides = (node.left, node.right)
            if any(map(is_sequence, sides)) and any(map(is_condition, sides)):
                yield node


def is_sequence(node: ast.AST) -> bool:
    """Whether this is a text, a list or a tuple as it is written."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (str, bytes))
    return isinstance(node, (ast.JoinedStr, ast.List, ast.Tuple))


def is_condition(node: ast.AST) -> bool:
    """Whether this is a comparison, `not x`, `a and b`, or `bool(x)`."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "bool"
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    return isinstance(node, (ast.Compare, ast.BoolOp))


def long_or_deep(tree: ast.AST) -> Found:
    """Functions of more lines or levels than a reader takes in at once."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            body = node.body[1:] if ast.get_docstring(node, clean=False) else node.body
            lines = (node.end_lineno or 0) - body[0].lineno + 1 if body else 0
            if lines > MOST_LINES or levels(node.body) > MOST_LEVELS:
                yield node


def levels(body: list[ast.stmt]) -> int:
    """How deep statements stand in each other; an `elif` is as deep as its `if`."""
    deepest = 0
    for statement in body:
        blocks = [getattr(statement, name, []) for name in ("body", "finalbody")]
        blocks += [handler.body for handler in getattr(statement, "handlers", [])]
        deepest = max(deepest, *(1 + levels(block) if block else 0 for block in blocks))
        other = getattr(statement, "orelse", [])
        if other:
            is_elif = isinstance(statement, ast.If) and len(other) == 1 and isinstance(other[0], ast.If)
            deepest = max(deepest, levels(other) if is_elif else 1 + levels(other))
    return deepest


RULES: dict[str, Callable[[ast.AST], Found]] = dict(
    zip(
        CEILINGS,
        (tuples_to_tuples, conditional_expressions, conditions_as_factors, long_or_deep),
        strict=True,
    )
)


def main() -> int:
    """Print each count that grew, and how many stand in each file. Returns the exit status."""
    trees = {path.relative_to(PACKAGE): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
    status = 0
    for name, rule in RULES.items():
        counts = Counter({str(path): len(list(rule(tree))) for path, tree in trees.items()})
        if counts.total() > CEILINGS[name]:
            status = 1
            print(f"{name}: {counts.total()}, at most {CEILINGS[name]}. Write yours out. Most stand in:")
            print(*(f"  {path}: {count}" for path, count in counts.most_common(12)), sep="\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
