"""`lp.explain`: the incidents, causes with their arithmetic, verdicts, fixes and forms."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

import explain_accuracy as accuracy
import llamapar as lp
from explaining import BATCHES, KV, VIEW, ZERO, said
from llamapar import diagnosis
from llamapar.describe.models import public_models
from llamapar.diagnosis.vocabulary import CATEGORIES, CODES, SUBTYPES, VERDICTS
from llamapar.rules.fix import Fix
from llamapar.rules.table import RULE_BY_CODE

# -- the five incidents ----------------------------------------------------------------------------


TRACEBACK_42 = """\
[rank15]: Traceback (most recent call last):
[rank15]:   File "/home/pavel/llama_inference.py", line 38, in <module>
[rank15]:     model = Transformer(model_args)
[rank15]:             ^^^^^^^^^^^^^^^^^^^^^^^
[rank15]:   File "/home/pavel/model.py", line 268, in __init__
[rank15]:     self.attention = Attention(args)
[rank15]:                      ^^^^^^^^^^^^^^^
[rank15]:   File "/home/pavel/model.py", line 110, in __init__
[rank15]:     self.n_rep = self.n_local_heads // self.n_local_kv_heads
[rank15]:                  ~~~~~~~~~~~~~~~~~~~^^~~~~~~~~~~~~~~~~~~~~~~
[rank15]: ZeroDivisionError: integer division or modulo by zero
"""


STORED = "model=llama3.1-405b-mp16 (its checkpoint stores 16 KV heads): 47.75 GiB of weights"


@pytest.mark.parametrize("text", [ZERO, "ZeroDivisionError"])
def test_incident_1_gets_the_fix_of_code_that_serves(text: str) -> None:
    """Only llama-models divides so, and it serves: no fix counts gradients, and the stored model is first."""
    told = lp.explain(text, "llama3.1-405b", tp=16)
    assert [str(fix) for fix in told.best.fixes] == [STORED]
    model = told.best.fixes[0].job.model
    norms = (2 * model.n_layers + 1) * model.dim  # these are whole on every rank
    weights = (model.n_params - norms) // 16 + norms
    assert told.best.fixes[0].as_dict()["effect"]["memory_bytes"] == 2 * weights
    trained = lp.explain(text, "llama3.1-405b", tp=16, framework="torchtitan")
    assert "before activations" in str(trained.best.fixes[0])


def test_incident_1_the_degree_follows_from_the_gpus() -> None:
    """The failing line says that a rank has no KV head; of 16 GPUs only tp=16 leaves one without. Its code is
    llama-models', which has no other axis to turn."""
    told = lp.explain(TRACEBACK_42, "llama3.1-405b", gpus=16)
    cause = "8 KV heads over tp=16 leave 8//16 = 0 on a rank, which then divides; no other tp of 16 GPUs does"
    assert (told.verdict, told.best.cause, told.needs) == ("sharding", cause, ())
    assert [str(fix) for fix in told.best.fixes] == [STORED]
    assert lp.check(told.best.fixes[0].job.model, {"tp": 16}, gpus=16, framework="llama-models").ok
    several = lp.explain(TRACEBACK_42, "llama3.1-405b", gpus=64)  # tp is 16, 32 or 64
    assert (several.verdict, several.needs) == ("sharding", ("tp",))
    eight = lp.explain(TRACEBACK_42, "llama3.1-405b", gpus=8)  # no tp of theirs is above 8
    assert eight.verdict == "unknown"


PADDED = "16064·8 = 128512 = 128256 + 256 pad rows"


@pytest.mark.parametrize("option", ["make_vocab_size_divisible_by", "make_vocal_size_divisible_by"])
def test_incident_2_seen_from_the_padding(option: str) -> None:
    text = (
        f"{option}=64: The parameter isn't evenly distributed among tensor parallel group: shape before "
        "sharding torch.Size([128256, 8192]), shape after sharding torch.Size([16064, 8192])"
    )
    told = lp.explain(text)
    assert told.best.category == "vocab_padding"
    assert PADDED in told.best.equations
    assert [said.framework for said in told.best.frameworks] == ["colossalai"]


def test_incident_3_in_full() -> None:
    told = lp.explain(KV, "llama3-8b", {"tp": 16}, seq_len=8192)
    assert str(told).splitlines() == [
        "A sharding problem: a rank holds 64 columns, half a head of 128: 8 KV heads over tp=16",
        f"where  {KV}",
        "try    tp=8 dp=2 (8·1·1·2 = 16 ranks)",
        "or     tp=8 cp=2 (8·2·1·1 = 16 ranks)",
        "or     tp=8 pp=2 (8·1·2·1 = 16 ranks)",
        "why    8192 × 64 = 524288",
        "       64 = 8·128/16 = half a head",
        "sure   likely",
        "source plain torch (DTensor): shape '[1, 8192, -1, 128]' is invalid for input of size 524288",
        "       (pytorch/pytorch: torch/distributed/tensor/parallel/style.py @v2.13.0)",
    ]
    assert all(isinstance(fix, Fix) for fix in told.best.fixes)
    alone = lp.explain(KV)
    assert (alone.verdict, alone.best.equations) == ("sharding", told.best.equations)
    assert alone.best.fixes == (CATEGORIES["kv_heads_lt_tp"].remedy,)  # in words


def test_incident_4_names_project_and_versions() -> None:
    """The counter had 32 bits from 0.12.0 to 0.12.6 (b4rtaz/distributed-llama 121bc8c, f8113c1)."""
    text = "Assertion `missingBytes == 0' failed."
    told = lp.explain(text, "llama3.1-405b")
    cause = "a size passes what 32 bits can count, as in distributed-llama 0.12.0 to 0.12.6"
    assert (told.verdict, told.best.cause) == ("sharding", cause)
    assert told.best.fixes == ("distributed-llama 0.12.7 or later",)
    assert "128256·16384·4 = 8405385216 B > 2^32, read as 4110417920" in told.best.equations[0]
    assert lp.explain(text, "llama3.1-405b", {"tp": 4}).best.category == "counter_overflow"
    smaller = lp.explain(text, "llama3.1-70b")  # its largest tensor is 97.85 % of 2^32 bytes
    assert smaller.verdict == "unknown"


# -- what stays ambiguous --------------------------------------------------------------------------

FUSED = VIEW.format("[1, 28, 64, 128]", 28672)


def test_an_explicit_head_count_is_not_blamed_on_tp() -> None:
    alone = lp.explain(FUSED)
    assert alone.verdict == "unknown"
    assert {d.category for d in alone.diagnoses[:2]} == {"fused_qkv_layout", "other"}
    assert "n_kv_heads" in alone.needs
    assert said(FUSED, n_heads=64, n_kv_heads=8, tp=1).startswith("not_sharding: fused_qkv_layout")
    assert said(FUSED, n_heads=64, n_kv_heads=64, tp=8).startswith(
        "sharding: other / global_dim_not_localized"
    )


def test_a_sixteenth_of_a_view_is_a_tie_that_names_what_is_missing() -> None:
    """262144 is also the size of a public model's wk; that says nothing of 512 tokens of 64 heads."""
    text = VIEW.format("[1, 512, 64, 128]", 262144)
    alone = lp.explain(text)
    assert alone.verdict == "unknown"
    assert {d.title for d in alone.diagnoses[:2]} == {"fused_qkv_layout", "other / global_dim_not_localized"}
    assert {"tp", "n_kv_heads"} <= set(alone.needs)
    sliced = lp.explain(text, tp=16, n_heads=64, n_kv_heads=64)
    assert (sliced.verdict, sliced.best.subtype) == ("sharding", "global_dim_not_localized")
    assert sliced.best.equations == ("64/16 = 4",)


def test_a_number_that_says_which_one_is_no_degree() -> None:
    told = lp.explain("[rank 3] TP rank 5, pipeline stage 2, layer 7: 16 KV heads are not divisible by 5")
    assert [told.known.get(fact) for fact in ("tp", "pp", "n_layers", "world")] == [None] * 4
    told = lp.explain("tensor parallel 2024-11-21 12:00:00 heads are not divisible by the ranks")
    assert told.known.get("tp") is None
    assert lp.explain("tp_size: 8, num_head: 4 do not fit").known.get("n_heads") == 4


def test_the_root_cause_is_the_line_that_is_told() -> None:
    text = f"INFO loading the model\nstep 3 of 7\n{KV}\ntorch.distributed.elastic: failed (exitcode: 1)"
    told = lp.explain(text)
    assert (told.line, told.best.category) == (KV, "kv_heads_lt_tp")


MATMUL = "RuntimeError: a and b must have same reduction dim, but got [4096, 1024] X [4096, 4096]."
TRIED = (
    MATMUL,
    FUSED,
    "The input size is not aligned with the quantized weight shape. This can be caused by too large tensor "
    "parallel size.",
    BATCHES.format(16, 8),
)


def test_an_open_verdict_says_what_to_pass() -> None:
    told = lp.explain(MATMUL)
    assert str(told).splitlines() == [
        "Not known; possibly 1024 is 1/4 of 4096, as a rank's slice at tp=4 would be",
        f"where  {MATMUL}",
        "why    4096/4 = 1024",
        "next   pass --tp to narrow this down",
        "sure   possible",
    ]


def test_a_cause_and_what_to_pass_are_said_once() -> None:
    for text in TRIED:
        lines = [line for line in str(lp.explain(text)).splitlines() if not line.startswith("sure")]
        assert [line for line in lines if line[7:] and sum(line[7:] in other for other in lines) > 1] == []


# -- fixes and forms -------------------------------------------------------------------------------


@pytest.mark.parametrize("tp", [3, 16])
def test_fixes_pass_check(tp: int) -> None:
    told = lp.explain(KV, "llama3-8b", {"tp": tp}, framework="torchtitan")
    assert told.best.fixes
    for fix in told.best.fixes:
        assert isinstance(fix, Fix)
        assert lp.rules.report.check_job(fix.job, lp.frameworks.framework("torchtitan")).ok


def test_the_json_form() -> None:
    told = lp.explain(KV, "llama3-8b", {"tp": 16}).as_dict()
    assert json.loads(json.dumps(told)) == told
    parts = ["what", "where", "operands", "edit", "proof", "else", "next", "sure", "source"]
    assert list(told) == [*parts, "verdict", "diagnoses"]
    keys = ["category", "subtype", "cause", "equations", "fixes", "needs", "frameworks", "level"]
    assert all(list(diagnosis) == keys for diagnosis in told["diagnoses"])
    levels = [d["level"] for d in told["diagnoses"]]
    assert levels == sorted(levels, key=["likely", "possible"].index)
    assert all("text" in fix for d in told["diagnoses"] for fix in d["fixes"])


def test_the_html_form_folds_the_rivals() -> None:
    page = lp.explain(FUSED)._repr_html_()
    assert "<p><b>Not known; possibly 8 heads or rows are read as 64" in page
    assert page.count("<details><summary>or else</summary>") == 1


def test_an_exception_is_explained_with_its_traceback() -> None:
    def attention(n_heads: int, n_local_kv_heads: int) -> int:
        return n_heads // n_local_kv_heads

    with pytest.raises(ZeroDivisionError, match="by zero") as caught:
        attention(32, 8 // 16)
    told = lp.explain(caught.value)
    assert told.best.category == "kv_heads_lt_tp"
    assert told.line.startswith("ZeroDivisionError: ")


def test_arguments_may_be_partial_changed_or_zero() -> None:
    known = lp.explain(
        "x", "Llama-2-70b-hf", {"tp": 4, "order": "tp-cp-pp-dp"}, gpus="8", dp="1->2", zero=0
    ).known
    assert (known.model.name, known.numbers, known.changes) == (
        "llama2-70b",
        {"tp": 4, "world": 8},
        {"dp": ("1", "2")},
    )


def test_an_unknown_model_of_a_context_is_named_in_the_answer() -> None:
    told = lp.explain("ZeroDivisionError", context={"model": "nonsense<b>"})
    assert "\n       give its config.json for its sizes: no model 'nonsense<b>' is known here\n" in str(told)
    assert "no model &#x27;nonsense&lt;b&gt;&#x27; is known here" in told._repr_html_()


# -- what could not be allocated -------------------------------------------------------------------


def test_an_allocation_is_compared_with_the_free_memory_and_the_weights_with_the_gpus() -> None:
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} GiB. GPU 0 has a total capacity "
    text += "of 79.11 GiB of which 3.20 GiB is free."
    cause = "a rank needs more than its memory of 79.11 GiB: {}"
    more = lp.explain(text.format("7.83"), "llama3-8b", seq_len=4096)
    assert (more.best.cause, more.best.equations) == (
        cause.format("7.83 GiB > 3.20 GiB"),
        ("7.83 GiB > 3.20 GiB",),
    )
    assert "memory of a GPU" not in more.needs  # it stands in the text
    heavy = lp.explain(text.format("2.10"), "llama3.1-405b", gpus=8)
    assert heavy.best.cause == cause.format("405853388800 parameters × 2 B = 812 GB of weights")


def test_broken_models_and_layouts_are_refused() -> None:
    with pytest.raises(lp.ModelError, match="no model in this JSON"):
        lp.explain(KV, {"a": 1})
    with pytest.raises(lp.LayoutError, match="framework=3 is not known"):
        lp.explain(KV, framework=3)  # type: ignore[arg-type]
    with pytest.raises(lp.LayoutError, match=r"framework='torchtitn' is not known(.|\n)*try  torchtitan"):
        lp.explain(KV, framework="torchtitn")


# -- the vocabulary --------------------------------------------------------------------------------


def test_the_vocabulary_is_that_of_the_cases() -> None:
    cases = accuracy.read(accuracy.ORACLES / "error-cases.jsonl")
    assert {case["category"] for case in cases} <= set(CATEGORIES)
    assert {case["subtype"] for case in cases} - {None} <= set(SUBTYPES)
    assert set(VERDICTS) == {"sharding", "not_sharding", "unknown"}


def test_every_rule_has_a_category() -> None:
    assert set(RULE_BY_CODE) == set(CODES), "a code goes into llamapar/diagnosis/categories.toml"
    assert CODES["LP203"] == "position/rope"


def test_the_public_models_are_consistent() -> None:
    for name, config in public_models().items():
        assert config.n_heads % config.n_kv_heads == 0, name
    assert public_models()["llama-30b"].n_heads == 52
    assert lp.explain(KV, "Meta-Llama-3-8B-Instruct", tp=16).best.facts["n_kv_heads"] == 8


# -- time and order --------------------------------------------------------------------------------


def test_a_traceback_takes_milliseconds() -> None:
    text = "Traceback (most recent call last):\n" + '  File "a.py", line 3, in f\n    g(x)\n' * 12 + KV
    lp.explain(text)
    took = []
    for _ in range(9):
        start = time.process_time()
        lp.explain(text)
        took.append(time.process_time() - start)
    assert statistics.median(took) < 0.02


def test_the_public_door() -> None:
    assert lp.explain is diagnosis.explain
    door: Callable[..., Any] = lp.explain
    assert door(iter([KV])).best.category == "kv_heads_lt_tp"


def test_the_answer_does_not_hang_on_the_order_of_a_set() -> None:
    """A bare assertion that two rules of a framework share: each process names the causes in one order."""
    code = "import llamapar as lp; print(lp.explain('AssertionError', 'llama3-8b', {'tp': 3}, 'vllm'))"
    answers = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout
        for seed in range(5)
    }  # fmt: skip
    assert len(answers) == 1
    assert "ffn_dim 14336 over tp=3" in answers.pop()
