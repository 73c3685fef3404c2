"""`%debug_shapes`: the cells that lead to a failing cell, run again with other numbers in them.

From the failing cell back, each cell that makes or changes what a later one reads belongs to the replay.
Integers that those cells write down are its knobs: `tp = 4`, `dict(n_heads=32)`, `Config(num_layers=2)`. The
cells run in a process of their own, so the notebook keeps its names and its process group, and a cell that
never ends is stopped. A cell of `%%ranks` runs as one rank of its layout. Left out: what files and earlier
sessions made, which cannot be made again.
"""

from __future__ import annotations

import ast
import builtins
import json
import linecache
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llamapar.describe.layout import AXES, Layout
from llamapar.describe.options import Values
from llamapar.errors import LlamaparError
from llamapar.late import late
from llamapar.records.tables import Plain

Cells = Mapping[int, str]
"""Number of a cell as the notebook counts runs → its source."""

_AXIS = {
    "tp": re.compile(r"^(tp|mp|tensor(_model)?_parallel)(_(size|degree|world_size))?$", re.IGNORECASE),
    "cp": re.compile(r"^(cp|context_parallel)(_(size|degree|world_size))?$", re.IGNORECASE),
    "pp": re.compile(r"^(pp|pipeline(_model)?_parallel)(_(size|degree|world_size))?$", re.IGNORECASE),
    "dp": re.compile(r"^(dp|data_parallel)(_(size|degree|world_size))?$", re.IGNORECASE),
}
_WORLD = re.compile(r"^(world|world_size|n_?gpus|num_gpus)$", re.IGNORECASE)
_FILES = frozenset(
    {"open", "load", "load_file", "safe_open", "from_pretrained", "read_text", "read_bytes", "input"}
)
_GROUPS = frozenset({"init_process_group", "destroy_process_group"})
_RANK_HAS = frozenset({"rank", "world", "mesh", "dist", "torch"})
_HARMLESS = frozenset({"print", "display"})
_NOTEBOOK = frozenset({"In", "Out", "get_ipython", "display", "exit", "quit", "_", "__", "___", "__name__"})
_EXTRA = 180.0
"""Seconds that the process may take beside its trials: torch's import, the proof on real ranks."""


@dataclass(frozen=True)
class Slice:
    """The cells that a replay runs, in order, and their knobs: name → the integer that a cell has for it.

    on_ranks: whether the last cell ran by `%%ranks`. Then its degrees are knobs, and it has `rank`, `world`,
    `mesh`, `dist` and `torch` as it has there.
    """

    cells: Cells
    knobs: Mapping[str, int]
    on_ranks: bool = False

    @property
    def layout(self) -> Layout:
        """The degrees among the knobs."""
        named = {axis: n for axis in AXES for name, n in self.knobs.items() if _AXIS[axis].match(name)}
        return Layout.of(named)

    @property
    def sizes(self) -> dict[str, int]:
        """The other knobs."""
        own = [*_AXIS.values(), _WORLD]
        return {name: n for name, n in self.knobs.items() if not any(each.match(name) for each in own)}

    def attempt(self, model: Mapping[str, int], layout: Layout) -> object:
        """Run the cells with these sizes and degrees, in names of their own; the value of the last line."""
        degrees = {name: getattr(layout, a) for a in AXES for name in self.knobs if _AXIS[a].match(name)}
        world = {name: layout.world for name in self.knobs if _WORLD.match(name)}
        space: Values = {"__name__": "__main__", _KNOBS: {**self.knobs, **model, **degrees, **world}}
        name = ""
        for number, source in self.cells.items():
            file = f"<cell {number}>"
            linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
            tree = _with_knobs(_parsed(number, source))[0]
            name = _last_value(tree)
            if self.on_ranks and number == max(self.cells):
                space |= _given(layout)
            exec(compile(tree, file, "exec"), space)
        return space.get(name)


def _given(layout: Layout) -> Values:
    """The names that a cell of `%%ranks` finds on its rank."""
    import torch
    import torch.distributed as dist

    with torch.device("cpu"):  # A mesh has numbers also where an attempt makes none.
        mesh = late("make_mesh")(layout, "cpu")
    rank, world = dist.get_rank(), dist.get_world_size()
    return {"rank": rank, "world": world, "mesh": mesh, "dist": dist, "torch": torch}


def _last_value(tree: ast.Module) -> str:
    """The name that the last line makes; of an expression it becomes the name `__value__`."""
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        target = ast.copy_location(ast.Name("__value__", ast.Store()), last)
        tree.body[-1] = ast.copy_location(ast.Assign([target], last.value), last)
        return "__value__"
    return getattr(last.targets[0], "id", "") if isinstance(last, ast.Assign) else ""


_KNOBS = "__knobs__"


def cells_behind(
    cells: Cells, failed: int, known: Mapping[str, object], layout: Layout | None = None
) -> Slice:
    """The cells behind a failing one. known: the notebook's names. layout: of a cell that `%%ranks` ran.

    Raises LlamaparError where something that they read cannot be made again: it says what, and why.
    """
    if failed not in cells:
        raise LlamaparError(f"cell {failed} is no longer in the session's history", "", ["run it again"])
    kept, needed = {failed: cells[failed]}, _Names.of(failed, cells[failed]).read
    needed -= _RANK_HAS if layout else set()
    for number in sorted((n for n in cells if n < failed), reverse=True):
        names = _Names.of(number, cells[number], strict=False)
        if names.made & needed or names.changed & needed:
            names = _Names.of(number, cells[number])
            kept[number] = cells[number]
            needed = (needed - names.made) | names.read
    missing = sorted(n for n in needed - _NOTEBOOK if not hasattr(builtins, n) and n in known)
    if missing:
        what = f"{', '.join(missing[:3])}: made by no cell of this session"
        raise LlamaparError(
            what, "what an earlier session or a file made cannot be made again", ["run its cell"]
        )
    ordered = dict(sorted(kept.items()))
    knobs: dict[str, int] = {}
    for number, source in ordered.items():
        knobs = {**_with_knobs(_parsed(number, source))[1], **knobs}
    degrees = {axis: n for axis in AXES if layout and (n := getattr(layout, axis)) > 1}
    return Slice(ordered, knobs | degrees, layout is not None)


def _parsed(number: int, source: str) -> ast.Module:
    """A cell without line magics, and without the making of process groups, which a trial has already."""
    try:
        tree = ast.parse(source)
    except SyntaxError as problem:
        raise LlamaparError(f"cell {number} cannot be read: {problem.msg}", "", field="cell") from None
    tree.body = [one for one in tree.body if _called(one) not in (*_GROUPS, "run_line_magic", "system")]
    return tree


def _called(node: ast.AST) -> str:
    """The name of the function that a statement or an expression calls; else ""."""
    call = node.value if isinstance(node, ast.Expr) else node
    function = call.func if isinstance(call, ast.Call) else None
    return getattr(function, "attr", getattr(function, "id", ""))


@dataclass(frozen=True)
class _Names:
    """What a cell reads before it makes it, what it makes, and what it may change in place."""

    read: frozenset[str]
    made: frozenset[str]
    changed: frozenset[str]

    @classmethod
    def of(cls, number: int, source: str, strict: bool = True) -> _Names:
        """The names of a cell. strict: raise LlamaparError for what cannot be run again."""
        read, made, changed = set[str](), set[str](), set[str]()
        for statement in _parsed(number, source).body if strict or _is_python(source) else ():
            loads, stores = set[str](), set[str]()
            for node in ast.walk(statement):
                if strict and isinstance(node, ast.Call) and _called(node) in (*_FILES, "run_cell_magic"):
                    why = "what it reads does not change with the sizes"
                    raise LlamaparError(
                        f"cell {number} calls {_called(node)}()", why, ["lp.debug(attempt, …)"]
                    )
                if isinstance(node, ast.Name):
                    (loads if isinstance(node.ctx, ast.Load) else stores).add(node.id)
                elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                    stores.add(node.name)
                elif isinstance(node, ast.alias):
                    stores.add((node.asname or node.name).partition(".")[0])
                if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
                    changed |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            if isinstance(statement, ast.Expr) and _called(statement) not in _HARMLESS:
                changed |= loads
            if isinstance(statement, ast.AugAssign):
                loads |= stores
            read |= loads - made
            made |= stores
        return cls(frozenset(read), frozenset(made), frozenset(changed))


def _is_python(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def _with_knobs(tree: ast.Module) -> tuple[ast.Module, dict[str, int]]:
    """A cell that reads its integers from the knobs, and what it had in their places."""
    found: dict[str, int] = {}

    def knob(name: str, value: ast.expr) -> ast.expr:
        if not isinstance(value, ast.Constant) or type(value.value) is not int or value.value < 1:
            return value
        if found.setdefault(name, value.value) != value.value:
            return value  # A second number of the same name stays as it is.
        return ast.copy_location(
            ast.Subscript(ast.Name(_KNOBS, ast.Load()), ast.Constant(name), ast.Load()), value
        )

    for statement in tree.body:
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
            continue
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        if isinstance(target, ast.Name):
            statement.value = knob(target.id, statement.value)
        elif isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
            pairs = zip(target.elts, statement.value.elts, strict=False)
            statement.value.elts = [knob(getattr(t, "id", ""), v) for t, v in pairs]
        for node in ast.walk(statement.value):
            if isinstance(node, ast.Call):
                for keyword in node.keywords:
                    keyword.value = knob(keyword.arg or "", keyword.value)
            elif isinstance(node, ast.Dict):
                names = [k.value if isinstance(k, ast.Constant) else "" for k in node.keys]
                node.values = [knob(str(n), v) for n, v in zip(names, node.values, strict=True)]
    found.pop("", None)
    return ast.fix_missing_locations(tree), found


# -- in a process of its own -----------------------------------------------------------------------


def debug_cells(behind: Slice, deadline: float = 2.0) -> Plain:
    """`debug` of the cells, in a new process: {"text": …, "html": …, "kind": …, "line": …}.

    Raises LlamaparError if that process ends without an answer, or takes too long.
    """
    given: Values = {"cells": [*behind.cells.items()], "knobs": behind.knobs, "on_ranks": behind.on_ranks}
    sent, longest = json.dumps(given | {"deadline": deadline}), deadline + _EXTRA
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, "-m", __name__, str(answer)]
        try:
            done = subprocess.run(command, input=sent, text=True, capture_output=True, timeout=longest)
        except subprocess.TimeoutExpired:
            raise LlamaparError(f"the cells had not ended after {longest:.0f} s", "") from None
        if not answer.exists():
            raise LlamaparError("the process of the replay ended", done.stderr.strip()[-300:])
        return json.loads(answer.read_text("utf-8"))


def answer_into_file(arguments: Sequence[str]) -> None:
    """Read the cells from standard input, debug them, and write the answer into a file."""
    from .debugging import debug

    given = json.loads(sys.stdin.read())
    cells = {int(n): source for n, source in given["cells"]}
    behind = Slice(cells, given["knobs"], given["on_ranks"])
    found = debug(behind.attempt, behind.sizes, behind.layout, deadline=given["deadline"])
    failure = found.failure
    place = {} if failure is None else {"kind": failure.kind, "line": failure.line, "file": failure.file}
    plain = {"text": str(found), "html": found._repr_html_(), **found.as_dict(), **place}
    Path(arguments[0]).write_text(json.dumps(plain), encoding="utf-8")


if __name__ == "__main__":
    answer_into_file(sys.argv[1:])
