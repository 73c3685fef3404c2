"""Which code cells of the notebooks are plain torch, that a reader could carry to work.

Such a cell calls torch or torch.distributed, and names nothing of llamapar: nothing imported from it, and
no name that another cell made with it. A `%%ranks` line above a cell is no name; below it `torch` and `dist`,
torch.distributed, stand for themselves.

    python tests/plain_torch.py        # the numbers of such cells, notebook by notebook
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
ON_RANKS = {"torch", "dist"}
"""What a `%%ranks` cell finds ready."""


def imported(tree: ast.AST, package: str) -> set[str]:
    """The names that stand for the package, its modules or something of them."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {
                (alias.asname or alias.name).partition(".")[0]
                for alias in node.names
                if alias.name.partition(".")[0] == package
            }
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == package:
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def read_names(tree: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def made_names(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Each name that is made, with what it is made of: a function of all that stands in it."""
    for node in ast.walk(tree):
        made: list[tuple[ast.AST, ast.AST | None]] = []
        if isinstance(node, ast.Assign):
            made = [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
            made = [(node.target, node.value)]
        elif isinstance(node, ast.For | ast.comprehension):
            made = [(node.target, node.iter)]
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, node
        for target, value in made:
            for name in ast.walk(target):
                if isinstance(name, ast.Name) and value is not None:
                    yield name.id, value


def called(tree: ast.AST) -> set[str]:
    """The first names of what is called: "torch" of `torch.nn.functional.pad(…)`."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            part: ast.AST = node.func
            while isinstance(part, ast.Attribute | ast.Call | ast.Subscript):
                part = part.func if isinstance(part, ast.Call) else part.value
            if isinstance(part, ast.Name):
                names.add(part.id)
    return names


def plain_torch_cells(sources: list[str]) -> list[int]:
    """The numbers, from 1, of the plain cells among a notebook's code cells, which are given in order."""
    torch_names: set[str] = set()
    ours: set[str] = set()
    plain = []
    for number, source in enumerate(sources, start=1):
        on_ranks = source.startswith("%%ranks")
        loads = re.search(r"^%load_ext llamapar", source, re.MULTILINE)
        tree = ast.parse(re.sub(r"^\s*[%!].*", "", source, flags=re.MULTILINE))
        imports = imported(tree, "llamapar")
        torch_here = torch_names | imported(tree, "torch") | (ON_RANKS if on_ranks else set())
        made = list(made_names(tree))
        foreign = read_names(tree) - {name for name, _ in made}
        if called(tree) & torch_here and not (imports or loads or foreign & ours):
            plain.append(number)
        if on_ranks:
            continue  # what it makes stays on the ranks
        torch_names |= imported(tree, "torch")
        ours |= imports
        for name, value in made:
            if read_names(value) & ours:
                ours.add(name)
            else:
                ours.discard(name)
    return plain


def code_cells(path: Path) -> list[str]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


if __name__ == "__main__":
    count = total = 0
    for notebook in sorted(FOLDER.glob("*.ipynb")):
        sources = code_cells(notebook)
        numbers = plain_torch_cells(sources)
        print(f"{notebook.stem}: {len(numbers)} of {len(sources)}", *numbers)
        count, total = count + len(numbers), total + len(sources)
    print(f"{count} of {total} code cells, {count / total:.1%}")
