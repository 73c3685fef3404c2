"""Equations: how they read, and the numbers that a picture takes from them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import llamapar as lp
from llamapar.records.equations import (
    Comparison,
    Equation,
    Multiples,
    Padded,
    Product,
    Quotient,
    Stated,
)

PACKAGE = Path(lp.__file__).parent


@pytest.mark.parametrize(
    ("equation", "text", "sides"),
    [
        (Quotient(52, 3), "52/3 = 17.3333", ()),
        (Quotient(128256, 8), "128256/8 = 16032", ()),
        (Quotient(10**16 + 1, 2), "10000000000000001/2 = 5000000000000000 rest 1", ()),
        (Quotient(14336, 6, after=" → 2390"), "14336/6 = 2389.33 → 2390", ()),
        (Quotient(126, 16, floor=True), "126//16 = 7", ()),
        (Product((8, 16)), "8·16 = 128", ()),
        (Product((2, 3, 4), "B"), "2·3·4 = 24 B", ()),
        (Comparison(8, "≠", 4), "8 ≠ 4", (("8", 8), ("4", 4))),
        (Comparison(Product((8, 16)), "≠", 256), "8·16 = 128 ≠ 256", (("8·16", 128), ("256", 256))),
        (Comparison(Product((8,)), "≠", 16), "8 = 8 ≠ 16", ()),
        (
            Comparison(Product((2**20, 2**13), "B"), ">", 2**32, "2^32", "embedding "),
            "embedding 1048576·8192 = 8589934592 B > 2^32",
            (("1048576·8192", 2**33), ("2^32", 2**32)),
        ),
        (
            Padded(16064, 8, 128256),
            "16064·8 = 128512 = 128256 + 256 pad rows",
            (("16064·8", 128512), ("128256", 128256)),
        ),
        (Multiples((32000, 32256), 128), "32000 = 250·128, 32256 = 252·128", ()),
        (Stated("64 = 8·128/16 = half a head"), "64 = 8·128/16 = half a head", ()),
    ],
)
def test_an_equation_reads_and_compares(
    equation: Equation, text: str, sides: tuple[tuple[str, int], ...]
) -> None:
    assert str(equation) == text
    assert equation.sides == sides


def test_a_diagnosis_holds_numbers_and_how_they_read() -> None:
    best = lp.explain("embed_tokens.weight is [16064, 8192]", "llama3.1-70b", {"tp": 8}).best
    assert best is not None
    assert best.arithmetic == (Padded(16064, 8, 128256),)
    assert best.equations == ("16064·8 = 128512 = 128256 + 256 pad rows",)


def test_sizes_of_an_allocation_are_compared_in_one_unit() -> None:
    """The embedding of Llama 3 8B at tp=1, in bfloat16, as an allocator words it."""
    told = lp.explain("CUDA out of memory. Tried to allocate 1002 MiB", "llama3-8b", {"tp": 1}, seq_len=8192)
    assert told.best is not None
    sizes = [size for equation in told.best.arithmetic for _, size in equation.sides]
    assert sizes == [128256 * 4096 * 2, 1002 * 2**20]
    assert "1002 MiB: 1,050,673,152" in lp.view(told).summary


@pytest.mark.parametrize("path", sorted((PACKAGE / "figures").glob("*.py")), ids=lambda path: path.stem)
def test_no_picture_reads_numbers_out_of_a_text(path: Path) -> None:
    names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
    assert "re" not in names
