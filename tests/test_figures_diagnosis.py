"""A diagnosis as equations and a picture: exact numbers, and nothing of the text."""

import json
import random
import re

import pytest

import llamapar as lp
from inputs import KV, words
from test_clinic import CASES

# -- what is drawn of a cause --------------------------------------------------------------------------


def drawable(told):
    """Whether there is a picture; where there is none, the reason says so."""
    try:
        lp.view(told)
    except lp.LayoutError as none:
        return not re.search(
            "nothing to draw$|has no map to draw$|^fill in .* to draw the memory of a rank", none.what
        )
    return True


@pytest.mark.parametrize(
    ("text", "known", "what", "lines"),
    [
        (
            KV,
            {"model": "llama3-8b", "layout": {"tp": 16}},
            "heads",
            ["rank 0: query heads 0–1, wq rows 0–255; KV head 0 (cut), wk and wv rows 0–63"],
        ),
        (
            "embed_tokens.weight is [16064, 8192]",
            {"model": "llama3.1-70b", "layout": {"tp": 8}},
            "vocab",
            ["rank 7: rows 112,448–128,511 (16,064), 256 pad rows"],
        ),
        (
            "expected (75968, 1024), got (151936, 1024)",
            {},
            "vocab",
            ["rank 1: rows 75,968–151,935 (75,968)"],
        ),
        (
            "seq_len 2999 must be divisible by cp 4",
            {"seq": 2999, "cp": 4},
            "sequence",
            ["seq_len=2999 does not divide into 8 chunks"],
        ),
        (
            "the number of layers (126) must be divisible by pipeline_parallel_size (16)",
            {"model": "llama3.1-405b", "pp": 16, "framework": "torchtitan"},
            "stages",
            ["7, 8 (14 stages), 7", "stage 0 on PP rank 0: layers 0–6 and the embedding"],
        ),
    ],
)
def test_the_picture_fits_the_cause(text, known, what, lines):
    drawn = lp.view(lp.explain(text, context=known))
    title = drawn.spec["kind"] if drawn.is_map else words(drawn.spec["layout"]["title"]["text"])
    assert what.startswith(title)
    for line in lines:
        assert line in drawn.summary
    assert drawn.is_map or drawn.figure is not None  # plotly takes it


@pytest.mark.parametrize(("known", "least"), [(False, 4), (True, 15)])
def test_real_cases_have_a_picture_or_a_reason(known, least):
    drawn = 0
    for case in CASES:
        told = lp.explain(case["message"], context=case["context"] if known else None)
        if not drawable(told):
            continue
        picture = lp.view(told)
        drawn += 1
        assert picture.summary
        json.dumps(picture.spec, allow_nan=False)
    assert drawn >= least


def test_nothing_to_draw_is_told():
    with pytest.raises(lp.LayoutError, match="there is nothing to draw"):
        lp.view(lp.explain("KeyError: 'tp'"))
    with pytest.raises(lp.LayoutError, match="this cause has no map to draw"):
        lp.view(lp.explain("AssertionError: tensor parallel group is not initialized"))
    other = "^the numbers in the text are not those of llama3-8b, so this cause has no map to draw"
    with pytest.raises(lp.LayoutError, match=other):
        lp.view(lp.explain("ValueError: The model has 30 heads, which is not divisible by tp 4", "llama3-8b"))


def test_markup_of_a_text_or_a_model_never_enters_a_picture():
    evil = "<img src=x onerror=alert(1)>"
    said = lp.explain(f"{evil} embed_tokens.weight is [16064, 8192] {evil}", "llama3.1-70b", {"tp": 8})
    assert "<img" not in json.dumps(lp.view(said).spec)
    named = lp.model("llama3-8b").replace(name=evil)
    assert "<img" not in json.dumps(lp.view(lp.explain(KV, named, {"tp": 16})).spec)


def test_random_numbers_never_break_a_picture(counts):
    draw = random.Random(11)
    forms = (
        "{} attention heads must be divisible by tensor parallel size {}",
        "n_kv_heads ({}) must be divisible by tp ({})",
        "{} is not divisible by {}",
        "shape '[1, {}, -1, {}]' is invalid for input of size 524288",
        "number of layers ({}) must be divisible by pp ({})",
        "sequence length {} is not divisible by cp {}",
        "world size {} is not equal to tp {} x pp 3",
        "The size of tensor a ({}) must match the size of tensor b ({})",
        "embed_tokens.weight is [{}, {}]",
        "prob_m = {} is not divisible by thread_m = {}",
    )
    sizes = (0, 1, 2, 3, 8, 16, 127, 128, 8192, 16064, 128256, 2**31, 10**15, 10**30)
    pictures = 0
    for _ in range(counts(300, 1200, 4000)):
        text = draw.choice(forms).format(draw.choice(sizes), draw.choice(sizes))
        given = {"model": draw.choice(["llama3-8b", "llama3.1-405b", None]), "tp": draw.choice([None, 3, 16])}
        told = lp.explain(text, **given)
        if not drawable(told):
            continue
        drawn = lp.view(told)
        pictures += 1
        json.dumps(drawn.spec, allow_nan=False)
        assert len(drawn.summary) < 4000
    assert pictures > 50
