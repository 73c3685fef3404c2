"""The small block at the head of a lesson: SVG that says where a rank's part lies, and the same in words."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest

import llamapar as lp
from llamapar.course.blocks import BETWEEN, EDGE, HIGH, LINE, LONGEST, WIDE, WIDTH, block
from llamapar.figures import style

SVG = "{http://www.w3.org/2000/svg}"
BIG = "llama3.1-405b"
HEADS: list[tuple[str, int, dict[str, Any]]] = [
    (BIG, 4711, {"tp": 8, "cp": 16, "pp": 16, "dp": 8, "seq_len": 131072}),
    (BIG, 5, {"cp": 16, "chunking": "contiguous"}),
    (BIG, 0, {"tp": 1}),
    ("llama3-8b", 22, {"tp": 3, "pp": 5, "cp": 2, "global_batch": 7, "seq_len": 99}),
    ("llama3-8b", 20, {"tp": 16, "pp": 8, "virtual_stages": 4}),
]


def boxes(svg: str, colour: str) -> list[tuple[float, float, float, float]]:
    """x, y, width and height of the rectangles that are filled so."""
    paths = ElementTree.fromstring(svg).iter(f"{SVG}path")
    places = "".join(path.attrib["d"] for path in paths if path.get("fill") == colour)
    found = re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)h-[\d.]+z", places)
    return [(float(x), float(y), float(wide), float(high)) for x, y, wide, high in found]


@pytest.mark.parametrize(("model", "rank", "how"), HEADS)
def test_the_lit_boxes_are_the_ranks_heads_layers_tokens_and_batch(
    model: str, rank: int, how: dict[str, Any]
) -> None:
    share = lp.ranks(rank=rank, model=model, **how).share
    assert share is not None
    key, *lit = boxes(block(model, rank, **how).svg, style.LIT)
    assert key[2:] == (9, 9)
    expected = [
        (
            left + WIDE * x.start / across.whole,
            y.start / down.whole,
            len(x) / across.whole,
            len(y) / down.whole,
        )
        for left, across, down in ((EDGE, share.tp, share.pp), (EDGE + WIDE + BETWEEN, share.cp, share.dp))
        for x in across.pieces
        for y in down.pieces
    ]
    assert len(lit) == len(expected)
    for box, (x, y, wide, high) in zip(lit, expected, strict=True):
        assert box == pytest.approx((x, EDGE + LINE + HIGH * y, WIDE * wide, HIGH * high), abs=0.06)


@pytest.mark.parametrize(("model", "rank", "how"), HEADS)
def test_it_is_small_and_lies_within_its_edges(model: str, rank: int, how: dict[str, Any]) -> None:
    made = block(model, rank, **how)
    assert made == block(model, rank, **how)
    assert len(made.svg) <= 3 * 1024
    root = ElementTree.fromstring(made.svg)
    assert float(root.attrib["width"]) == WIDTH <= 270, "a cell on a phone"
    height = float(root.attrib["height"])
    assert {node.tag.removeprefix(SVG) for node in root.iter()} == {"svg", "title", "path", "text"}
    for text in root.iter(f"{SVG}text"):
        assert float(text.attrib["y"]) <= height - EDGE
        assert len(text.text or "") <= LONGEST + 2
    for x, y, wide, high in boxes(made.svg, style.LIT):
        assert EDGE <= x <= x + wide <= WIDTH - EDGE + 0.1
        assert EDGE <= y <= y + high <= EDGE + LINE + HIGH + 0.1


def test_what_it_says() -> None:
    made = block(BIG, 5, tp=8)
    assert repr(made) == made.summary == "rank 5 of 8 in llama3.1-405b: heads 80–95"
    texts = [text.text for text in ElementTree.fromstring(made.svg).iter(f"{SVG}text")]
    whole = "not cut: 126 layers, the batch, 131,072 tokens"
    assert texts == ["rank 5 of 8: heads 80–95", "TP 8 cuts 128 heads", whole]
    assert repr(block(BIG, tp=1)) == "rank 0 of 1 in llama3.1-405b: the whole step"
    many = ElementTree.fromstring(block(*HEADS[0][:2], **HEADS[0][2]).svg)
    assert [text.text for text in many.iter(f"{SVG}text")] == [
        "rank 4,711 of 16,384",  # and not what it holds: too long a line
        "PP 16 cuts 126 layers",
        "TP 8 cuts 128 heads",
        "DP 8 cuts the batch",
        "CP 16 cuts 131,072 tokens",
    ]


def test_a_name_is_text() -> None:
    named = lp.model("tiny").replace(name='<b>&amp;"</b>')
    made = block(named, 1, tp=2)
    title = ElementTree.fromstring(made.svg).find(f"{SVG}title")
    assert title is not None
    assert title.text == made.summary == 'rank 1 of 2 in <b>&amp;"</b>: heads 8–15'
    assert set(made._repr_mimebundle_()) == {"text/plain", "image/svg+xml"}
