"""A diagnosis as equations and a picture: exact numbers, nothing of the text, and its form in a notebook."""

import ast
import importlib
import json
import random
import re
import sys
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

import llamapar as lp
from inputs import KV, words
from llamapar.records.equations import Padded
from test_clinic import CASES

# -- the equations that it is drawn from ---------------------------------------------------------------


def test_a_diagnosis_holds_numbers_and_how_they_read():
    best = lp.explain("embed_tokens.weight is [16064, 8192]", "llama3.1-70b", {"tp": 8}).best
    assert best.arithmetic == (Padded(16064, 8, 128256),)
    assert best.equations == ("16064·8 = 128512 = 128256 + 256 pad rows",)


def test_no_picture_reads_numbers_out_of_a_text():
    for path in (Path(lp.__file__).parent / "figures").glob("*.py"):
        names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
        assert "re" not in names, path


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


# -- in a notebook -----------------------------------------------------------------------------------


@pytest.fixture
def ip(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    hook = sys.displayhook
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    importlib.reload(lp)  # as in a notebook, where IPython is there first
    yield shell
    shell.restore_sys_module_state()
    InteractiveShell.clear_instance()
    sys.displayhook = hook


def shown(ip, source):
    with capture_output() as out:
        ip.run_cell(source)
    return list(out.outputs)


def test_the_last_expression_of_a_cell_shows_words_and_picture(ip):
    words, picture = shown(ip, f"import llamapar as lp\nlp.explain({KV!r}, 'llama3-8b', {{'tp': 16}})")
    html = words.data["text/html"]
    assert "half a head of 128: 8 KV heads over tp=16" in html
    assert "<code>64 = 8·128/16 = half a head</code>" in html
    assert "<code>tp=8 dp=2 (8·1·1·2 = 16 ranks)</code>" in html
    assert words.data["text/plain"] == str(lp.explain(KV, "llama3-8b", {"tp": 16}))
    assert picture.data["text/plain"].startswith("llama3-8b: 32 query heads and 8 KV heads over tp=16")
    assert 'alt="TP 16 cuts through each of the 8 KV heads.' in picture.data["text/html"]
    again = shown(ip, f"lp.explain({KV!r}, 'llama3-8b', {{'tp': 16}})")
    assert [out.data for out in again] == [words.data, picture.data]  # the same each time


def test_without_numbers_the_words_stand_alone(ip):
    (words,) = shown(ip, "import llamapar as lp\nlp.explain('KeyError: 1')")
    assert set(words.data) == {"text/plain", "text/html"}
