"""The proof of a fix: the attempt on real ranks, and its result beside that of one process.

A fix is another layout, or the failing expression with a rank's part in the place of a whole. Code is changed
by compiling its file anew with that one expression replaced, and only while the proof runs.
"""

from __future__ import annotations

import ast
import gc
import linecache
import math
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType

from llamapar.describe.layout import Layout
from llamapar.errors import LlamaparError
from llamapar.late import late
from llamapar.records.frames import Held, failing_code

from .trials import LARGEST, REAL, Attempt, bytes_made, run_once

MOST_RANKS = 8

_CLOSE = 1e-4
"""Largest difference, relative to the largest number, that rounding in float32 may make."""

_CELL = "outputs(attempt, model, layout)"


@contextmanager
def replaced(error: BaseException | None, name: str, ranks: int) -> Iterator[bool]:
    """While this lasts, `name` in the expression that raised reads `name // ranks`. False if it cannot be."""
    code = failing_code(error) if error is not None else None
    functions: dict[FunctionType, CodeType] = {}
    if code is not None and code.node is not None:
        old = code.frames[-1].f_code
        new = _changed(code.node, old, name, ranks)
        functions = {each: old for each in gc.get_referrers(old) if new and isinstance(each, FunctionType)}
        for function in functions:
            function.__code__ = new or old
    try:
        yield bool(functions)
    finally:
        for function, old in functions.items():
            function.__code__ = old


def _changed(node: ast.AST, old: CodeType, name: str, ranks: int) -> CodeType | None:
    """The code object of a function, compiled with `name // ranks` in one expression; None if not found."""

    class Parts(ast.NodeTransformer):
        inside = False

        def visit(self, found: ast.AST) -> ast.AST:
            here = ast.dump(found, include_attributes=True) == wanted
            if self.inside and isinstance(found, ast.expr) and ast.unparse(found) == name:
                return ast.BinOp(found, ast.FloorDiv(), ast.Constant(ranks))
            self.inside |= here
            found = self.generic_visit(found)
            self.inside &= not here
            return found

    wanted = ast.dump(node, include_attributes=True)
    source = "".join(linecache.getlines(old.co_filename))
    tree: ast.Module = Parts().visit(ast.parse(source))  # type: ignore[assignment]
    ast.fix_missing_locations(tree)
    codes = [compile(tree, old.co_filename, "exec", dont_inherit=True)]
    for code in codes:  # The list grows by the functions in each code object.
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    same = (old.co_qualname, old.co_firstlineno, old.co_freevars)
    return next((c for c in codes if (c.co_qualname, c.co_firstlineno, c.co_freevars) == same), None)


def outputs(attempt: Attempt, model: Held, layout: Layout) -> list[Held]:
    """The tensors that an attempt returns, of a DTensor the whole, from a fixed seed."""
    import torch
    from torch.utils._pytree import tree_leaves

    torch.manual_seed(0)
    found = [t for t in tree_leaves(attempt(model, layout)) if isinstance(t, torch.Tensor)]
    return [getattr(t, "full_tensor", lambda t=t: t)().detach() for t in found]


def in_one_process(attempt: Attempt, model: Held) -> list[Held]:
    """The tensors that an attempt returns with every degree 1; none if it fails there, or is too large."""
    if bytes_made(attempt, model, Layout()) > LARGEST:
        return []
    found, _ = run_once(lambda *given: outputs(attempt, *given), model, Layout(), 0, REAL)
    return found if isinstance(found, list) else []


def proved(attempt: Attempt, model: Held, layout: Layout, one: list[Held]) -> tuple[bool, str]:
    """Whether a layout holds on real ranks, and in words: it runs, is equal to one process, or fails.

    one: the tensors of one process. What cannot be run here is not refuted.
    """
    if layout.world > MOST_RANKS or bytes_made(attempt, model, layout) > LARGEST:
        return True, f"passes on meta tensors; too large to run on real ranks here ({layout.world} ranks)"
    given = {"attempt": attempt, "model": model, "layout": layout, "outputs": outputs}
    try:
        found = late("cell_on_ranks")(_CELL, layout, given, 60.0)
    except LlamaparError as problem:
        return True, f"not run on real ranks: {problem.what}"
    ranks = f"{layout.world} real ranks"
    if not found.ok:
        error = next(answer.error for answer in found.answers if answer.error is not None)
        return False, f"fails on {ranks}: {type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
    if not one:
        return True, f"runs on {ranks}; one process returns no tensors to compare with"
    return True, f"runs on {ranks}, {_compared(list(found.out.values()), one)}"


def _compared(found: list[Held], one: Held) -> str:
    """The results of ranks beside that of one process, in words."""
    shapes, far, sliced = [list(t.shape) for t in one], 0.0, False
    for rank, own in enumerate(found):
        here = None if own is None else [list(t.shape) for t in own]
        apart = [_apart(a, b) for a, b in zip(own or (), one, strict=False)]
        if here is None or len(own) != len(one) or math.inf in apart:
            what = "nothing that can be sent" if here is None else f"{here}"
            return f"where rank {rank} returns {what} and one process {shapes}: not compared"
        far, sliced = max(far, *apart), sliced or here != shapes
    size = max(float(t.abs().max()) for t in one)
    equal = "where each rank returns a slice of one process's result" if sliced else "equal to one process"
    if far <= _CLOSE * max(size, 1.0):
        return f"{equal}, to the bit" if far == 0 else f"{equal}, within {far / size:.0e}"
    part = f"by {far / max(size, 1e-30):.1g} of the largest"
    return f"where a rank returns other values than one process ({part}): part of a sum, or its own numbers"


def _apart(own: Held, whole: Held) -> float:
    """How far a rank's tensor is from the whole or its nearest slice; inf if the shape is of neither."""
    dims = [i for i, (a, b) in enumerate(zip(own.shape, whole.shape, strict=False)) if a != b]
    if own.ndim != whole.ndim or len(dims) > 1 or any(whole.shape[i] % max(own.shape[i], 1) for i in dims):
        return math.inf
    slices = whole.split(own.shape[dims[0]], dims[0]) if dims else [whole]
    return min(float((own - part).abs().max()) for part in slices)
