"""The direction of imports, read from the source: an arrow only ever points down or sideways."""

import ast
import re
import sys
from functools import cache
from pathlib import Path

import pytest

import llamapar
from llamapar.late import INSIDE, OPTIONAL, PUBLIC, imported, late, offered

PACKAGE = Path(llamapar.__file__).parent
MAX_FILE = 400


CORE = {
    "interrupts": frozenset(),
    "errors": frozenset(),
    "late": frozenset(),
    "records": frozenset(),
    "describe": frozenset(),
    "frameworks": frozenset(),
    "place": frozenset(),
    "count": frozenset(),
    "rules": frozenset(),
    "timing": frozenset(),
    "nodes": frozenset(),
    "diagnosis": frozenset({"torch"}),
    "spmd": frozenset({"torch"}),
    "programs": frozenset({"torch"}),
    "execution": frozenset({"torch", "cloudpickle"}),
    "figures": frozenset({"plotly"}),
    "panels": frozenset({"anywidget", "ipywidgets", "traitlets"}),
    "cli": frozenset(),
    "jupyter": frozenset({"IPython"}),
    "__main__": frozenset(),
}
OPTIONAL_ROOMS = {
    "checkpoint": frozenset({"torch", "numpy", "safetensors"}),
    "configs": frozenset({"yaml"}),
    "hangs": frozenset(),
    "course": frozenset({"torch", "IPython"}),
}
ROOMS = CORE | OPTIONAL_ROOMS
"""Every package or module under llamapar → what it may import from outside, in the order of the house: a room
imports only itself and rooms that stand above it, and no other optional room. The course comes last, and is
written with the public names."""

CEILINGS = {"nodes": 281_800, "characters": 312_400}
"""The size of the package, which only falls: a capability that needs room makes it first.

`nodes` counts the syntax trees without modules, contexts, docstrings and annotations, which is the same on
every Python and is not made smaller by joining lines. `characters` counts TOML, JavaScript and CSS files.
"""


# -- reading imports -------------------------------------------------------------------------------


def modules(package):
    """Dotted name → file of every module under `package`, the package itself included."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def parsed(source):
    """The package is read by several tests, and parsed once."""
    return ast.parse(source)


def imports(name, path, known):
    """Every module that `name` imports, wherever in the file; `from . import a` is the module a."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(parsed(path.read_text())):
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


def arrows(package):
    """Module → the modules it imports, for every module under `package`."""
    known = modules(package)
    return {name: set(imports(name, path, known)) for name, path in known.items()}


def faults(package, rooms):
    """Whatever is wrong with the direction of imports of `package`, one line each."""
    root, found = package.name, []
    graph, order = arrows(package), list(rooms)
    for name, targets in sorted(graph.items()):
        if name == root:  # the door of the library
            outside = {target.split(".")[0] for target in targets} - {root}
            found += [f"{name}: imports {top} from outside" for top in outside - sys.stdlib_module_names]
            continue
        own = name.split(".")[1]
        if own not in rooms:
            found.append(f"{name}: no room is known for it")
            continue
        for target in sorted(targets):
            top, *below = target.split(".")
            if top != root:
                if top not in sys.stdlib_module_names and top not in rooms[own]:
                    found.append(f"{name}: imports {target} from outside")
            elif not below and own != order[-1]:
                found.append(f"{name}: imports the package's public names")
            elif below and below[0] not in rooms:
                found.append(f"{name}: imports {target}, which has no room")
            elif below and order.index(below[0]) > order.index(own):
                found.append(f"{name} imports {target}, and {below[0]} stands below {own}")
    return found + [f"cycle: {' → '.join(cycle)}" for cycle in cycles(graph)]


def cycles(graph):
    """Each import cycle once, by depth-first search."""
    found = []
    done = set()

    def visit(name, path):
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


def room_of(module):
    """The room that a module stands in; "" for the package itself."""
    return module.partition(".")[2].partition(".")[0]


def test_a_room_imports_only_rooms_above_it():
    assert faults(PACKAGE, ROOMS) == []


def test_the_table_of_rooms_names_what_is_there():
    tops = {name.split(".")[1] for name in modules(PACKAGE) if "." in name}
    assert set(ROOMS) == tops


def test_no_room_hides_behind_a_public_function():
    assert [name for name in ROOMS if callable(getattr(llamapar, name, None))] == []


def looked_up(path, function):
    """The constants with which a file calls `function`: `late("name")`, `offered("room", "name")`."""
    calls = [node for node in ast.walk(parsed(path.read_text())) if isinstance(node, ast.Call)]
    by_name = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == function]
    constants = [[arg.value for arg in call.args if isinstance(arg, ast.Constant)] for call in by_name]
    return {tuple(values) for values in constants if values}


def test_a_room_looks_up_late_exactly_what_the_table_allows():
    used = {name: looked_up(path, "late") for name, path in modules(PACKAGE).items()}
    assert set().union(*used.values()) - {(name,) for name in PUBLIC} == {(name,) for name in INSIDE}
    order = list(ROOMS)
    for user, names in used.items():
        for (name,) in names:
            assert isinstance(name, str)
            room = (INSIDE.get(name) or PUBLIC[name]).split(".")[0]
            assert order.index(room) > order.index(user.split(".")[1]), f"{user} can import {name}"


def test_no_table_reaches_into_an_optional_room():
    assert [module for module in INSIDE.values() if room_of(f"llamapar.{module}") in OPTIONAL] == []


def test_an_optional_room_is_imported_by_no_other():
    for name, targets in arrows(PACKAGE).items():
        if room_of(name):
            others = {room_of(target) for target in targets} - {room_of(name)}
            assert others & set(OPTIONAL_ROOMS) == set(), name


def test_optional_rooms_offer_exactly_what_the_others_ask_of_them():
    offers = {(room, name) for room in OPTIONAL for name in getattr(imported(room), "OFFERS", ())}
    assert set().union(*(looked_up(path, "offered") for path in modules(PACKAGE).values())) == offers
    assert all(offered(room, name) is not None for room, name in offers)


@pytest.mark.parametrize("name", [*INSIDE, *PUBLIC])
def test_a_late_name_is_there(name):
    assert late(name) is not None


def test_a_type_checker_knows_the_public_names():
    """They stand in its stub alone, of which each line is read."""
    stub = (PACKAGE / "__init__.pyi").read_text()
    assert llamapar.__all__ == [*PUBLIC] == sorted(PUBLIC)
    assert len(PUBLIC) == len(re.findall(r"^from \.", stub, re.M))
    assert {f"def {name}" in stub for name in vars(llamapar) if name.endswith("_extension")} == {True}


def test_no_file_is_long():
    lengths = {name: len(path.read_text().splitlines()) for name, path in modules(PACKAGE).items()}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_FILE} == {}


def nodes_in(source):
    """The nodes of a syntax tree, but for modules, contexts, strings that stand alone, and annotations."""
    nodes = 0
    waiting = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, (ast.expr_context, ast.Module)):
            nodes += 1
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_params"):
                continue
            children = value if isinstance(value, list) else [value]
            for child in children:
                if isinstance(child, ast.AST) and not (name == "body" and is_string(child)):
                    waiting.append(child)
    return nodes


def is_string(node):
    """Whether this is a statement that is a string: a docstring, or the words under a constant."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return False
    return isinstance(node.value.value, str)


def size(package):
    """Nodes of the Python files, and characters of the TOML, JavaScript and CSS files, under `package`."""
    data = [path for suffix in ("toml", "js", "css") for path in package.rglob(f"*.{suffix}")]
    return {
        "nodes": sum(nodes_in(path.read_text("utf-8")) for path in modules(package).values()),
        "characters": sum(len(path.read_text("utf-8")) for path in data),
    }


@pytest.mark.parametrize("part", CEILINGS)
def test_the_package_does_not_grow(part):
    assert size(PACKAGE)[part] <= CEILINGS[part]


def test_texts_and_annotations_cost_nothing_and_golf_wins_nothing(tmp_path):
    plain = 'def f(a: int) -> str:\n    """Text."""\n    # why\n    x = 1\n    return x\n'
    (tmp_path / "bare.py").write_text("def f(a):\n    x = 1\n    return x\n")
    bare = size(tmp_path)
    (tmp_path / "bare.py").write_text(plain)
    (tmp_path / "row.toml").write_text("a = 1\n")
    assert bare == {"nodes": 8, "characters": 0}
    assert size(tmp_path) == {"nodes": 8, "characters": 6}
    (tmp_path / "bare.py").write_text("def f(a):\n    x = 1; return x\n")
    assert size(tmp_path)["nodes"] == 8


def test_shipped_code_imports_nothing_that_is_for_tests():
    tools = {"unittest", "doctest"}
    assert {
        name for name, used in arrows(PACKAGE).items() if {m.split(".")[0] for m in used} & tools
    } == set()


def test_nothing_is_called_utils():
    assert [
        name for name in modules(PACKAGE) if name.rpartition(".")[2] in ("utils", "util", "helpers")
    ] == []


# -- one word, one thing ---------------------------------------------------------------------------

TWICE = {
    "all_gather": "spmd.compat has torch's, spmd.collectives the one with a backward",
    "all_reduce": "as all_gather",
    "all_to_all": "as all_gather",
    "reduce_scatter": "as all_gather",
    "block": "a program; in the course the small picture of a model",
    "check": "of a layout, and in the course of an answer",
    "picture": "a figure's module draws one",
    "run": "an engine runs one, and lp.run chooses the engine",
}
"""Functions whose names stand in several modules, and why."""


def names_that_stand_twice(sources):
    """Name → modules, of the classes and public functions of modules, and of the modules themselves.

    A picture's module may be called as its record's, and a format of settings as its trainer.
    """
    found = {}
    for module, source in sources.items():
        room = module.partition(".")[0]
        if room not in ("figures", "configs"):
            found.setdefault(f"module {module.rpartition('.')[2]}", []).append(module)
        for node in parsed(source).body:
            public = isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
            if isinstance(node, ast.ClassDef) or public:
                found.setdefault(node.name, []).append(module)
    for room in ("figures", "configs"):
        for module in sources:
            if module.startswith(f"{room}."):
                others = found.setdefault(f"module {module.partition('.')[2]}", [])
                if len(others) != 1 or (room == "configs" and not others[0].startswith("frameworks.")):
                    others.append(module)
    return {name: where for name, where in found.items() if len(where) > 1}


def test_a_name_stands_for_one_thing():
    sources = {
        name.removeprefix("llamapar."): path.read_text()
        for name, path in modules(PACKAGE).items()
        if path.stem != "__init__"
    }
    found = names_that_stand_twice(sources)
    assert {name: where for name, where in found.items() if name not in TWICE} == {}
    assert [name for name in TWICE if name not in found] == []


def test_a_name_that_stands_twice_is_noticed():
    rooms = {"count.cost": "class Term: ...", "timing.step": "class Term: ...\ndef _own(): ..."}
    assert names_that_stand_twice(rooms) == {"Term": ["count.cost", "timing.step"]}
    assert names_that_stand_twice({"count.cost": "", "figures.cost": ""}) == {}
    assert names_that_stand_twice({"frameworks.meta": "", "configs.meta": ""}) == {}
    assert [*names_that_stand_twice({"count.cost": "", "timing.cost": ""})] == ["module cost"]
    assert [*names_that_stand_twice({"count.cost": "", "configs.cost": ""})] == ["module cost"]
    assert [*names_that_stand_twice({"count.cost": "", "timing.cost": "", "figures.cost": ""})] == [
        "module cost"
    ]


# -- reading the code ------------------------------------------------------------------------------


def nested_conditionals(source):
    """Lines of conditional expressions that stand inside another one: "a if b else c if d else e"."""
    found = set()
    for outer in ast.walk(parsed(source)):
        if isinstance(outer, ast.IfExp):
            inside = {node for node in ast.walk(outer) if isinstance(node, ast.IfExp)} - {outer}
            found |= {(node.lineno, node.col_offset) for node in inside}
    return sorted(line for line, _ in found)


def test_no_conditional_stands_inside_another():
    found = {name: nested_conditionals(path.read_text()) for name, path in modules(PACKAGE).items()}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_a_conditional_inside_another_would_be_noticed():
    assert nested_conditionals("x = 1 if a else 2") == []
    assert nested_conditionals("x = 1 if a else 2 if b else 3") == [1]
    assert nested_conditionals("y = 1\nx = f(1 if a else 2) if b else 3") == [2]


ANY = 75
"""Most lines of the package that say Any of something; ModelLike, LayoutLike and Plain say what is meant."""


def test_few_lines_take_anything():
    found = set()
    for path in modules(PACKAGE).values():
        nodes = ast.walk(ast.parse(path.read_text()))
        found |= {(path, node.lineno) for node in nodes if isinstance(node, ast.Name) and node.id == "Any"}
    assert len(found) <= ANY


# -- would the test notice? ------------------------------------------------------------------------

TREE = {
    "__init__.py": "from .low import a\n",
    "low.py": "import json\na = 1\n",
    "mid/__init__.py": "from .part import b\n",
    "mid/part.py": "from pack.low import a\nfrom . import other\nb = a\n",
    "mid/other.py": "",
    "top.py": "import numpy\nfrom .mid import b\nfrom .low import a\n",
}
TREE_ROOMS = {"low": frozenset[str](), "mid": frozenset[str](), "top": frozenset({"numpy"})}


def made(tmp_path, **changes):
    for name, text in (TREE | changes).items():
        path = tmp_path / "pack" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "pack"


def test_a_package_in_order_has_no_faults(tmp_path):
    package = made(tmp_path)
    assert faults(package, TREE_ROOMS) == []
    assert arrows(package)["pack.mid.part"] == {"pack.low", "pack.mid.other"}


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"low.py": "from pack.top import b"}, "pack.low imports pack.top, and top stands below low"),
        ({"low.py": "from . import top"}, "pack.low imports pack.top, and top stands below low"),
        (
            {"low.py": "def later():\n    from .mid.part import b"},
            "pack.low imports pack.mid.part, and mid stands below low",
        ),
        ({"low.py": "import numpy.linalg"}, "pack.low: imports numpy.linalg from outside"),
        ({"low.py": "import pack"}, "pack.low: imports the package's public names"),
        ({"new.py": ""}, "pack.new: no room is known for it"),
        ({"mid/other.py": "from .part import b"}, "cycle: pack.mid.other → pack.mid.part → pack.mid.other"),
        ({"mid/other.py": "from . import part"}, "cycle: pack.mid.other → pack.mid.part → pack.mid.other"),
    ],
)
def test_each_fault_would_be_noticed(tmp_path, changes, fault):
    assert fault in faults(made(tmp_path, **changes), TREE_ROOMS)
