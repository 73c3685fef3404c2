"""`lp.explain`: what stays ambiguous, what is said once, the categories of rules, time and order."""

import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace

import pytest

import llamapar as lp
from explaining import BATCHES, KV, VIEW
from llamapar.diagnosis.engine import verdict_of
from llamapar.diagnosis.hypothesis import LIKELY, Hypothesis
from llamapar.diagnosis.known import Known
from llamapar.diagnosis.lines import sourced
from llamapar.diagnosis.vocabulary import CODES
from llamapar.rules.table import RULE_BY_CODE

# -- what stays ambiguous --------------------------------------------------------------------------

FUSED = VIEW.format("[1, 28, 64, 128]", 28672)


MATMUL = "RuntimeError: a and b must have same reduction dim, but got [4096, 1024] X [4096, 4096]."
TRIED = (
    MATMUL,
    FUSED,
    "The input size is not aligned with the quantized weight shape. This can be caused by too large tensor "
    "parallel size.",
    BATCHES.format(16, 8),
)


def test_a_cause_and_what_to_pass_are_said_once():
    for text in TRIED:
        lines = [line for line in str(lp.explain(text)).splitlines() if not line.startswith("sure")]
        assert [line for line in lines if line[7:] and sum(line[7:] in other for other in lines) > 1] == []


@pytest.mark.parametrize(
    ("shapes", "what"),
    [
        ("(4096,1024) (2,4096,8192)", "1024 is 1/8 of 8192: a rank's slice (tp=8)"),  # met at their last dims
        ("(2,16032,64) (2,128256,64)", "16032 is 1/8 of 128256: a rank's slice (tp=8)"),  # no rows of a table
    ],
)
def test_the_dims_that_clash_are_named_as_what_they_are(shapes, what):
    text = f"ValueError: operands could not be broadcast together with shapes {shapes}"
    assert what in str(lp.explain(text, tp=8))


def test_causes_that_are_equally_sure_and_disagree_give_no_verdict():
    cut, whole = (Hypothesis("heads", "it", LIKELY, parallel=blame) for blame in (True, False))
    said = [verdict_of(found, Known(), False)[0] for found in ([cut, whole], [cut], [whole])]
    assert said == ["unknown", "sharding", "not_sharding"]


def test_the_names_of_a_librarys_files_tell_nothing_of_a_users_tensor():
    line = "return handle(*args)"
    assert sourced(line, "/venv/site-packages/torch/nn/embedding.py", "lookup") == line
    assert sourced(line, "/home/me/embedding.py", "lookup") == f"{line}  # embedding lookup"


# -- fixes and forms -------------------------------------------------------------------------------


def test_a_command_to_copy_stays_on_its_line():
    command = f"llamapar debug train.py {'--option value ' * 12}--last"
    assert command in str(replace(lp.explain(KV), next=(command,)))


# -- the vocabulary --------------------------------------------------------------------------------


def test_every_rule_has_a_category():
    assert set(RULE_BY_CODE) == set(CODES), "a code goes into llamapar/diagnosis/categories.toml"
    assert CODES["LP203"] == "position/rope"


# -- time and order --------------------------------------------------------------------------------


def test_a_traceback_takes_milliseconds():
    text = "Traceback (most recent call last):\n" + '  File "a.py", line 3, in f\n    g(x)\n' * 12 + KV
    lp.explain(text)
    took = []
    for _ in range(9):
        start = time.process_time()
        lp.explain(text)
        took.append(time.process_time() - start)
    assert statistics.median(took) < 0.02


def test_the_answer_does_not_hang_on_the_order_of_a_set():
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
