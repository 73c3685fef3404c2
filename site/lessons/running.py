"""The code of a lesson's cell, run: in the page's Python, and with PyTorch where it is recorded."""

from __future__ import annotations

import ast
from contextlib import redirect_stdout
from io import StringIO
from typing import Any


def run(code: str) -> tuple[Any, str]:
    """What the last line of it gives, and what all of it prints."""
    *first, last = ast.parse(code).body
    assert isinstance(last, ast.Expr)
    names: dict[str, object] = {}
    with redirect_stdout(StringIO()) as printed:
        exec(compile(ast.Module(first, []), "<lesson>", "exec"), names)
        shown = eval(compile(ast.Expression(last.value), "<lesson>", "eval"), names)
    return shown, printed.getvalue()
