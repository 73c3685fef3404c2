"""The code of a lesson's cell, run: in the page's Python, and with PyTorch where it is recorded."""

from __future__ import annotations

import ast
from contextlib import redirect_stdout
from io import StringIO
from typing import Any


def run(code: str) -> Any:
    """What the last line of it gives. What it prints stands stored in the lesson."""
    *first, last = ast.parse(code).body
    assert isinstance(last, ast.Expr)
    names: dict[str, object] = {}
    with redirect_stdout(StringIO()):
        exec(compile(ast.Module(first, []), "<lesson>", "exec"), names)
        return eval(compile(ast.Expression(last.value), "<lesson>", "eval"), names)
