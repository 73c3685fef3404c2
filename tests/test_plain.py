"""The check of plain code notices each kind of dense code, and only that."""

import ast
import runpy
from pathlib import Path

import pytest

TOOL = runpy.run_path(str(Path(__file__).parents[1] / "tools" / "plain.py"))
RULES = TOOL["RULES"]

DENSE = dict(
    zip(
        RULES,
        (
            ["a, b = x, y", "self.a, b = 1, f()"],
            ["a = x if c else y", "f(a if b else c)"],
            ['a = "text" * bool(x)', "a = (x,) * (n > 1)", "a += [x] * (not y)", 'a = f"{x}" * (x and y)'],
            [
                "def f():\n" + "    a = 1\n" * 61,
                "def f():\n" + "".join(f"{'    ' * n}if a:\n" for n in range(1, 6)) + "    " * 6 + "b = 1\n",
            ],
        ),
        strict=True,
    )
)
PLAIN = [
    "a, b = pair",
    "a = (x, y)",
    "if c:\n    a = x\nelse:\n    a = y\n",
    'a = "-" * 20',
    "a = [0] * n",
    "def f():\n" + '    """Many lines.' + "\n" * 70 + '    """\n    return 1\n',
    "def f():\n    if a:\n        b = 1\n" + "    elif c:\n        b = 1\n" * 6,
]


@pytest.mark.parametrize("name", RULES)
def test_each_kind_of_dense_code_is_counted_once_and_plain_code_is_not(name):
    assert [len(list(RULES[name](ast.parse(code)))) for code in DENSE[name]] == [1] * len(DENSE[name])
    assert [code for code in PLAIN if list(RULES[name](ast.parse(code)))] == []
