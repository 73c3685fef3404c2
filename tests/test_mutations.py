"""The table of slips for `make deep` keeps up with the code, and its tool tells caught from survived."""

import ast
import runpy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).resolve().parent.parent
TOOL: dict[str, Any] = runpy.run_path(str(PROJECT / "tools" / "mutations.py"))
MUTATIONS = TOOL["read"]()
Mutation = TOOL["Mutation"]


def room(path: str) -> str:
    """The part of the package: a folder, or what lies beside the folders."""
    first = path.split("/")[0]
    return "*.py" if first.endswith(".py") else first


def is_statement(node: ast.AST) -> bool:
    """Imports and docstrings do nothing that could slip."""
    if isinstance(node, ast.Expr):
        return not isinstance(node.value, ast.Constant)
    return isinstance(node, ast.stmt) and not isinstance(node, ast.Import | ast.ImportFrom)


def test_each_room_has_a_slip_for_every_hundred_statements_and_few_that_nobody_can_notice():
    package = PROJECT / "llamapar"
    statements = Counter[str]()
    for path in package.rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text()))
        statements[room(str(path.relative_to(package)))] += sum(map(is_statement, nodes))
    slips = Counter(room(mutation.room) for mutation in MUTATIONS)
    assert {name: n for name, n in statements.items() if slips[name] < n // 100} == {}
    assert sum(bool(mutation.survives) for mutation in MUTATIONS) <= 2
    assert [name for name, n in Counter(m.id for m in MUTATIONS).items() if n > 1] == []


def test_every_slip_can_be_made_and_its_tests_are_there():
    """A text that moved or changed is put right in tools/mutations.toml; its room says where it stands."""
    wrong = []
    for mutation in MUTATIONS:
        try:
            assert mutation.file(PROJECT).suffix in (".py", ".toml"), mutation.id
        except ValueError as moved:
            wrong.append(str(moved))
        files = [PROJECT / word for word in mutation.arguments if word.startswith("tests/")]
        if not files or not all(map(Path.is_file, files)) or mutation.old == mutation.new or not mutation.why:
            wrong.append(f"{mutation.id}: no such tests, no change, or no reason")
    assert wrong == []


def test_a_text_that_does_not_stand_once_is_an_error():
    for old, times in (("there is no such text", "0 times"), ("return", r"\d\d+ times")):
        with pytest.raises(ValueError, match=f"^odd: '{old}' stands {times} in llamapar/place"):
            Mutation("odd", "place", old, "", "maps", "").file(PROJECT)


@pytest.mark.parametrize(
    ("new", "word"), [("a - b", "caught by test_sum.py::test_it"), ("b + a", "SURVIVED")]
)
def test_a_slip_is_caught_or_survives(tmp_path, new, word):
    source = tmp_path / "llamapar" / "__init__.py"
    source.parent.mkdir()
    source.write_text("def sum_of(a, b):\n    return a + b\n")
    test = tmp_path / "tests" / "test_sum.py"
    test.parent.mkdir()
    test.write_text("import llamapar\n\ndef test_it():\n    assert llamapar.sum_of(2, 1) == 3\n")
    (tmp_path / "witness.py").write_text(TOOL["WITNESS"].format(copy=str(tmp_path)))
    mutation = Mutation("slip", "__init__.py", "a + b", new, "sum", "sums are off")
    outcome = TOOL["judged"](tmp_path, mutation)
    assert f"| {word} |" in TOOL["row"](mutation, outcome), outcome.output
    assert "a + b" in source.read_text()  # as it was


def test_tests_that_import_another_package_are_no_answer(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text("def test_it():\n    assert False\n")
    (tmp_path / "witness.py").write_text(TOOL["WITNESS"].format(copy=str(tmp_path)))
    outcome = TOOL["tested"](tmp_path, ["tests/test_it.py"])
    assert not outcome.caught
    assert "the tests import" in outcome.output
