"""What kind of answer `lp.explain` gives to a text: never surer than its arithmetic, and always a way on."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import explain_accuracy as accuracy
import llamapar as lp
from explaining import VIEW
from llamapar.diagnosis import Level

DEBUG = "llamapar debug SCRIPT.py"


@pytest.mark.parametrize(
    ("text", "reason", "step"),
    [
        # Counts that agree are multiplied, and prove nothing.
        (
            "the curves part on 32 GPUs with TP=4, PP=4, DP=2",
            "4·4·2 = 32 agrees; no arithmetic in this text",
            "llamapar check --model MODEL --tp 4 --pp 4 --dp 2 --gpus 32",
        ),
        # A question is no error.
        (
            "Which layout fits Llama 3.1 8B on A100 cards?",
            "no error text",
            "llamapar plan --model llama3.1-8b --gpus GPUS --gpu a100-40gb",
        ),
        # Words of ranks, of types and of files have no cause here.
        ("RuntimeError: expected scalar type Half but found Float", "no arithmetic in this text", DEBUG),
        ("FileNotFoundError: no such file: /data/tokens.bin", "no arithmetic in this text", DEBUG),
        ("AssertionError: heads must divide evenly among the workers", "no arithmetic in this text", DEBUG),
        ("ValueError: gate and up are in the wrong order at TP=2", "no arithmetic in this text",
         "llamapar check --model MODEL --tp 2"),
    ],
)  # fmt: skip
def test_a_text_without_arithmetic_gets_the_command_that_goes_on(text: str, reason: str, step: str) -> None:
    told = lp.explain(text)
    assert (told.verdict, told.diagnoses, told.next) == ("unknown", (), (step,))
    assert str(told).splitlines() == [f"Not known: {reason}", f"where  {text}", f"next   {step}"]


def test_degrees_that_do_not_multiply_to_the_gpus_are_multiplied() -> None:
    told = lp.explain("the curves part on 32 GPUs with TP=4, PP=4, DP=4")
    multiplied = "the degrees that are given multiply to 64, not to 32"
    assert told.summary == f"Possibly a sharding problem: {multiplied}"
    assert told.best.equations == ("64 ≠ 32",)


@pytest.mark.parametrize(
    ("text", "cause", "equation"),
    [
        # The size with a number is meant, not the first that is named.
        ("the logits of the lm_head come out wrong: sequence length 2050 is not a multiple of cp 4",
         "2050 tokens cannot be cut evenly over 4", "2050/4 = 512.5"),
        # The numbers of a rule may stand behind it, in either order.
        ("ValueError: num_heads must be divisible by tp, but num_heads=36 and tp=8",
         "36 query heads cannot be cut evenly over 8", "36/8 = 4.5"),
        ("num_layers should be divisible by pp, got 61 and 4", "61 layers cannot be cut evenly over 4",
         "61/4 = 15.25"),
        ("Check failed: inter_size % (tp * 64) == 0 (9728 % 384)",
         "9728 FFN columns cannot be cut evenly over 384", "9728/384 = 25.3333"),
    ],
)  # fmt: skip
def test_the_numbers_of_a_rule_are_found(text: str, cause: str, equation: str) -> None:
    told = lp.explain(text)
    assert (told.verdict, told.best.cause, told.best.equations) == ("sharding", cause, (equation,))


def test_each_error_line_is_judged_by_itself() -> None:
    lines = [VIEW.format([2, 256, 32, 128], 2 * 256 * 8 * 128), VIEW.format([1, 640, 32, 128], 640 * 8 * 128)]
    alone = [lp.explain(line, "llama3-8b", tp=1) for line in lines]
    both = lp.explain("\n".join(lines), "llama3-8b", tp=1)
    assert (both.verdict, both.reason) == (alone[0].verdict, alone[0].reason)
    assert both.best.equations == alone[0].best.equations
    assert both.rivals == (f"by itself, {lines[1]}: the same",)
    whole = VIEW.format([1, 640, -1, 128], 640 * 64)
    other = lp.explain(f"{lines[0]}\n{whole}", "llama3-8b", tp=1)
    assert other.rivals == (f"by itself, {whole}: {lp.explain(whole, 'llama3-8b', tp=1).summary}",)


def test_where_model_and_degrees_are_known_check_is_asked() -> None:
    told = lp.explain("the gradients explode after a restart", "llama3-8b", tp=3)
    assert told.summary == "Possibly a sharding problem: ffn_dim 14336 over tp=3 does not divide"
    judged = lp.explain("the gradients explode after a restart", "llama3-8b", tp=16, framework="torchtitan")
    assert [d.category for d in judged.diagnoses] == ["kv_heads_lt_tp"]
    assert judged.best.fixes[0].changes[0] == ("tp", 8)


@pytest.mark.parametrize(
    ("text", "category"),
    [
        ("aten.bmm.default got mixed torch.Tensor and DTensor, need to convert all", "other"),
        ("AssertionError: tensor model parallel group is not initialized", "other"),
        ("Detected mismatch between collectives on ranks. Rank 1 is running BARRIER", "rank_mapping_hang"),
        ("Assertion `missingBytes == 0' failed.", "counter_overflow"),
        ("ZeroDivisionError: integer division or modulo by zero", "kv_heads_lt_tp"),
    ],
)
def test_a_sentence_of_a_framework_without_numbers_is_possible(text: str, category: str) -> None:
    told = lp.explain(text)
    assert (told.best.category, str(told.best.level), told.best.equations) == (category, "possible", ())
    assert told.summary.startswith(("Possibly ", "Not known; possibly "))


CASES = [case for path in accuracy.known() for case in accuracy.read(path)]


@given(st.sampled_from(CASES), st.booleans())
def test_nothing_is_likely_without_an_equation_and_no_heading_is_surer(
    case: accuracy.Case, alone: bool
) -> None:
    told = lp.explain(case["message"], context=None if alone else case.get("context"))
    assert all(d.arithmetic for d in told.diagnoses if d.level is Level.LIKELY)
    if told.verdict != "unknown" and told.best and told.reason.startswith(told.best.cause):
        assert told.summary.startswith("Possibly ") == (told.best.level is not Level.LIKELY)
    assert told.diagnoses or told.next
    json.dumps(told.as_dict())
