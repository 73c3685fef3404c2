"""The direction of imports, read from the source: an arrow only ever points down or sideways."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import llamapar

PACKAGE = Path(llamapar.__file__).parent
MAX_FILE = 400
MAX_PACKAGE = 24600
"""The aim was 8,000: checking and drawing keep to it; execution took 6,000, diagnosis and its clinic 4,500,
bytes 2,000, checkpoints 3,200."""

LAYERS = {
    "errors": 0,
    "arguments": 0,
    "configfile": 0,
    "interrupts": 0,
    "counts": 0,
    "modelnames": 0,
    "models": 0,
    "layout": 0,
    "shard": 1,
    "job": 1,
    "frameworks": 1,
    "maps": 1,
    "trace": 1,
    "communication": 1,
    "modelfile": 1,
    "repairs": 2,
    "rules": 2,
    "fixes": 2,
    "diagnosis": 2,
    "report": 2,
    "export": 2,
    "shrinking": 2,
    "budget": 2,
    "machines": 2,
    "spmd": 3,
    "programs": 3,
    "room": 4,
    "result": 4,
    "execute": 4,
    "checkpoint": 4,
    "figures": 5,
    "panels": 6,
    "words": 6,
    "parsing": 6,
    "running": 6,
    "sizing": 6,
    "resharding": 6,
    "asking": 6,
    "magics": 6,
    "cli": 6,
    "__main__": 6,
}
"""Layer of each module or package of llamapar; a new one is given its place here."""

THIRD_PARTY = {
    3: {"cloudpickle", "torch"},
    4: {"numpy", "torch"},
    5: {"plotly"},
    6: {"IPython", "anywidget", "traitlets"},
}
"""What a layer may import from outside, besides Python's own library."""


# -- reading imports -------------------------------------------------------------------------------


def modules(package: Path) -> dict[str, Path]:
    """Dotted name → file of every module under `package`, the package itself included."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Every module that `name` imports, wherever in the file; `from . import a` is the module a."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                parents = parents[: len(parents) - node.level + 1]
                base = ".".join([*parents, *([base] if base else [])])
            for alias in node.names:
                yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base


def arrows(package: Path) -> dict[str, set[str]]:
    """Module → the modules it imports, for every module under `package`."""
    known = modules(package)
    return {name: set(imports(name, path, known)) for name, path in known.items()}


def faults(package: Path, layers: dict[str, int]) -> list[str]:
    """Whatever is wrong with the direction of imports of `package`, one line each."""
    root, found = package.name, []
    graph = arrows(package)

    def layer(module: str) -> int | None:
        return layers.get(module.split(".")[1]) if "." in module else None

    for name, targets in sorted(graph.items()):
        own = layer(name)
        if name == root:
            own = 6  # the door of the library: what needs more than Python is imported when first used
        elif own is None:
            found.append(f"{name}: no layer is known for it")
            continue
        for target in sorted(targets):
            top = target.split(".")[0]
            if top != root:
                outside = top not in sys.stdlib_module_names and top not in THIRD_PARTY.get(own or 0, ())
                if outside:
                    found.append(f"{name}: imports {target} from outside")
            elif target == root:
                found.append(f"{name}: imports the package's public names")
            elif layer(target) is None:
                found.append(f"{name}: imports {target}, which has no layer")
            elif (layer(target) or 0) > (own or 0):
                found.append(f"{name} (layer {own}) imports {target} (layer {layer(target)})")
    return found + [f"cycle: {' → '.join(cycle)}" for cycle in cycles(graph)]


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Each import cycle once, by depth-first search."""
    found: list[list[str]] = []
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            ring = path[path.index(name) :]
            first = ring.index(min(ring))
            found.append([*ring[first:], *ring[:first], ring[first]])
            return
        if name in done:
            return
        for target in sorted(graph.get(name, ())):
            visit(target, [*path, name])
        done.add(name)

    for name in sorted(graph):
        visit(name, [])
    return found


# -- the package -----------------------------------------------------------------------------------


def test_imports_only_point_down_or_sideways() -> None:
    assert faults(PACKAGE, LAYERS) == []


def test_the_table_of_layers_names_what_is_there() -> None:
    tops = {name.split(".")[1] for name in modules(PACKAGE) if "." in name}
    assert set(LAYERS) == tops


def test_public_names_that_need_more_are_imported_when_used() -> None:
    for name, module in llamapar._LAZY.items():
        assert LAYERS[(module or name).split(".")[0]] >= 3
        assert name in llamapar.__all__
    source = (PACKAGE / "__init__.py").read_text()
    later = source[source.index("if TYPE_CHECKING:") : source.index("__version__")]
    assert set(re.findall(r"\w+", later)) >= set(llamapar._LAZY), "a type checker knows them too"


@pytest.mark.parametrize("name", modules(PACKAGE))
def test_no_file_is_long(name: str) -> None:
    assert len(modules(PACKAGE)[name].read_text().splitlines()) <= MAX_FILE


def test_the_package_is_small() -> None:
    files = [p for p in PACKAGE.rglob("*") if p.suffix in (".py", ".js", ".css") and p.is_file()]
    assert sum(len(path.read_text().splitlines()) for path in files) < MAX_PACKAGE


def test_nothing_is_called_utils() -> None:
    assert [
        name for name in modules(PACKAGE) if name.rpartition(".")[2] in ("utils", "util", "helpers")
    ] == []


# -- would the test notice? ------------------------------------------------------------------------

TREE = {
    "__init__.py": "from .low import a\n",
    "low.py": "import json\na = 1\n",
    "mid/__init__.py": "from .part import b\n",
    "mid/part.py": "from pack.low import a\nfrom . import other\nb = a\n",
    "mid/other.py": "",
    "top.py": "from .mid import b\nfrom .low import a\n",
}
TREE_LAYERS = {"low": 0, "mid": 1, "top": 2}


def made(tmp_path: Path, **changes: str) -> Path:
    for name, text in (TREE | changes).items():
        path = tmp_path / "pack" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "pack"


def test_a_package_in_order_has_no_faults(tmp_path: Path) -> None:
    package = made(tmp_path)
    assert faults(package, TREE_LAYERS) == []
    assert arrows(package)["pack.mid.part"] == {"pack.low", "pack.mid.other"}


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"low.py": "from pack.top import b"}, "pack.low (layer 0) imports pack.top (layer 2)"),
        ({"low.py": "from . import top"}, "pack.low (layer 0) imports pack.top (layer 2)"),
        (
            {"low.py": "def later():\n    from .mid.part import b"},
            "pack.low (layer 0) imports pack.mid.part (layer 1)",
        ),
        ({"low.py": "import numpy.linalg"}, "pack.low: imports numpy.linalg from outside"),
        ({"low.py": "import pack"}, "pack.low: imports the package's public names"),
        ({"new.py": ""}, "pack.new: no layer is known for it"),
        ({"mid/other.py": "from .part import b"}, "cycle: pack.mid.other → pack.mid.part → pack.mid.other"),
        ({"mid/other.py": "from . import part"}, "cycle: pack.mid.other → pack.mid.part → pack.mid.other"),
    ],
)
def test_each_fault_would_be_noticed(tmp_path: Path, changes: dict[str, str], fault: str) -> None:
    assert fault in faults(made(tmp_path, **changes), TREE_LAYERS)
