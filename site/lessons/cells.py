"""Which cells of a notebook show a panel or ask a question, and all the code that each of these needs.

A lesson's page makes a panel from the cell that stands over it, and from what earlier cells bind for it. No
other line of a notebook runs in the page: what they printed is stored.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

ASKING = {"predict", "check", "ask"}
"""Functions of the course that show an answer box."""

SOLUTION = re.compile(r"^```python solution\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""The answer of a puzzle or an exercise, in the text that folds it."""

PANEL = "nbval-ignore-output"
"""The tag of a cell whose output is a panel, which is another at each run."""

LEFT_BY_RANKS = "ranks"
"""What a cell with `%%ranks` leaves in the kernel. A page has no processes, so what shows it stays still."""


@dataclass(frozen=True)
class Shown:
    """One panel or box: its cell, its place among the cell's, and the code that makes it, whose last line is
    the expression that shows it.
    """

    cell: int
    place: int
    code: str
    asks: bool

    @property
    def key(self) -> str:
        """Its name within the lesson."""
        return f"{self.cell}-{self.place}"


def shown_in(notebook: dict[str, Any]) -> Iterator[Shown]:
    """All that a notebook may show live, in its order."""
    cells = [_statements(cell) for cell in notebook["cells"]]
    before: list[ast.stmt] = []
    for number, (cell, own) in enumerate(zip(notebook["cells"], cells, strict=True)):
        place = 0
        for k, statement in enumerate(own):
            asks = _asks(statement)
            panel = statement is own[-1] and _has_panel(cell) and LEFT_BY_RANKS not in _used(statement)
            if asks or panel:
                yield Shown(number, place, _needed(before, own[: k + 1]), asks)
                place += 1
        before += own


def _statements(cell: dict[str, Any]) -> list[ast.stmt]:
    if cell["cell_type"] != "code" or "".join(cell["source"]).startswith("%%"):
        return []
    lines = "".join(cell["source"]).splitlines()
    return ast.parse("\n".join(line for line in lines if not line.startswith("%"))).body


def _has_panel(cell: dict[str, Any]) -> bool:
    results = any(output["output_type"] == "execute_result" for output in cell["outputs"])
    return results and PANEL in cell["metadata"].get("tags", ())


def puzzles_in(notebook: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """Of each puzzle the cell that judges it, and its code with the answer that is folded after it."""
    cells = notebook["cells"]
    before: list[ast.stmt] = []
    for number, cell in enumerate(cells):
        own = _statements(cell)
        if own and _calls(own[-1], {"puzzle"}):
            answers = (SOLUTION.search("".join(one["source"])) for one in cells[number + 1 :])
            before += ast.parse(next(found[1] for found in answers if found)).body  # later ones may need it
            yield number, _needed(before, own)
        before += own


def only_asks(cell: dict[str, Any]) -> bool:
    """Whether a cell imports and asks, and does nothing else."""
    own = _statements(cell)
    return any(map(_asks, own)) and all(
        _asks(one) or isinstance(one, ast.Import | ast.ImportFrom) for one in own
    )


def _asks(statement: ast.stmt) -> bool:
    return _calls(statement, ASKING)


def _calls(statement: ast.stmt, names: set[str]) -> bool:
    match statement:
        case ast.Expr(ast.Call(ast.Name(name) | ast.Attribute(ast.Name("exercises"), name))):
            return name in names
    return False


def _needed(before: list[ast.stmt], own: list[ast.stmt]) -> str:
    """The statements that the last of `own` needs, and it. Of its own cell also calls of methods of what it
    needs, for these may change it.
    """
    *early, goal = own
    needed, taken = _used(goal), [goal]
    for statement in reversed([*before, *early]):
        bound = _bound(statement)
        if bound & needed or (statement in early and _changes(statement, needed)):
            taken.append(statement)
            needed = (needed - bound) | _used(statement)
    # A function may use what is imported below it.
    imports = [one for one in before if isinstance(one, ast.Import | ast.ImportFrom) and _bound(one) & needed]
    return "\n".join(map(ast.unparse, [*imports, *reversed(taken)]))


def _changes(statement: ast.stmt, names: set[str]) -> bool:
    match statement:
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(name), "set"))):
            return name in names
    return False


def _used(statement: ast.stmt) -> set[str]:
    found = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):  # whose own names are no other's
        return found - _stored(statement) - {n.arg for n in ast.walk(statement) if isinstance(n, ast.arg)}
    return found | (_stored(statement) if isinstance(statement, ast.AugAssign) else set())


def _bound(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {(each.asname or each.name).partition(".")[0] for each in statement.names}
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    return _stored(statement)


def _stored(statement: ast.stmt) -> set[str]:
    return {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
