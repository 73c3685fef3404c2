"""The lines of a watched program that are folded until one edits it: what is left is its teaching version."""

from __future__ import annotations

import ast
from collections.abc import Container

from llamapar.records.tables import Plain, plural


def folds(source: str, ran: Container[object]) -> list[Plain]:
    """The lines of a program that its ranks do nothing in, each run of them with a few words: arguments,
    docstrings, and branches that no rank took. ran: the lines that made a tensor.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    found = []
    for node in ast.walk(tree):
        words = ""
        first = getattr(node, "lineno", 0)
        last = getattr(node, "end_lineno", 0)
        if isinstance(node, ast.arguments):
            every = [each for each in ast.walk(node) if isinstance(each, ast.arg)]
            first = min((each.lineno for each in every), default=0)
            last = max((each.lineno for each in every), default=0)
            if last > first:
                words = plural(len(every), "argument")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            words = "docstring"
        elif isinstance(node, ast.If) and not node.orelse and all(map(_makes, node.body)):
            taken = any(line in ran for line in range(first, last + 1))
            words = "" if taken else f"{source.splitlines()[first - 1].strip()} no rank takes it"
        if words:
            found.append({"first": first, "last": last, "words": words})
    return found


def _makes(statement: ast.stmt) -> bool:
    """Whether a statement calls something, so that a rank that takes it makes a tensor."""
    is_line = isinstance(statement, ast.Assign | ast.Return)
    return is_line and any(isinstance(node, ast.Call) for node in ast.walk(statement))
