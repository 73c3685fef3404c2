"""The pages for contributors: the rooms are those of the architecture test, and what is named is there."""

import ast
import re
from functools import cache
from pathlib import Path

from test_architecture import ROOMS

PROJECT = Path(__file__).resolve().parent.parent
PAGE = (PROJECT / "docs" / "architecture.md").read_text(encoding="utf-8")
MARKED = re.findall(r"`((?:llamapar|tests|jupyter|benchmarks)/[\w./-]*)(?::([\w.]+))?`", PAGE)
NAMED = sorted({(path, name) for path, name in MARKED if name})
FILES = sorted({path for path, _ in MARKED})


@cache
def names(path):
    """What a file defines: functions, classes with their members, and module-level values."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".js":
        return set(re.findall(r"^(?:async )?function (\w+)", text, re.MULTILINE))
    return set(defined(ast.parse(text).body, ""))


def defined(body, prefix):
    found = []
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.append(prefix + node.name)
        if isinstance(node, ast.ClassDef):
            found += defined(node.body, f"{prefix}{node.name}.")
        if isinstance(node, ast.Assign):
            found += [prefix + target.id for target in node.targets if isinstance(target, ast.Name)]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.append(prefix + node.target.id)
    return found


def test_the_page_lists_the_rooms_in_their_order():
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|(?: (.+))? \|$", PAGE, re.MULTILINE)
    assert {name: set(filter(None, outside.split(", "))) for name, _, outside in rows} == {
        name: set(room) for name, room in ROOMS.items()
    }
    assert [name for name, _, _ in rows] == list(ROOMS)


def test_every_file_and_function_that_the_page_names_is_there():
    assert len(NAMED) > 40
    assert [path for path in FILES if not (PROJECT / path).exists()] == []
    assert [f"{path}:{name}" for path, name in NAMED if name not in names(PROJECT / path)] == []


def test_both_walks_are_walked():
    """Each step names a file and a function, which the tests above look for."""
    for title in ("One walk", "Another walk"):
        (walk,) = re.findall(rf"^## {title}.*?(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
        steps = re.split(r"^\d+\. ", walk, flags=re.MULTILINE)[1:]
        assert len(steps) >= 8
        assert all(re.search(r"`llamapar/[\w/]+\.\w+:\w+", step) for step in steps[:-1])
        assert len(set(re.findall(r"`llamapar/(\w+)/", walk))) >= 4


RECIPES = (PROJECT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_every_file_of_a_recipe_is_there():
    named = re.findall(r"`((?:llamapar|tests|tools|docs|notebooks)/\w[\w/]*\.\w+)`", RECIPES)
    assert [path for path in named if "NAME" not in path and not (PROJECT / path).is_file()] == []


def test_what_the_recipes_name_is_in_the_file_beside_it():
    named = re.findall(r"`(\w+)`\s+in\s+`((?:llamapar|tests)/[\w/]+\.py)`", RECIPES)
    assert len(named) >= 10
    assert [f"{path}:{name}" for name, path in named if name not in names(PROJECT / path)] == []
