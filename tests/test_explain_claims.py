"""No diagnosis shows arithmetic that refutes its own sentence, whatever numbers a text holds."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

import explain_accuracy as accuracy
import llamapar as lp

MESSAGES = [case["message"] for path in accuracy.known() for case in accuracy.read(path)]

# -- what a sentence and the arithmetic under it claim, read from the printed words alone ----------------

DENIALS = ("evenly", "not divide", "no factor", "no usual degree", "no shard", "contradict")
QUOTIENT = re.compile(r"(\d+)/(\d+) = \S+")
UNLIKE = re.compile(r"(\d+) ≠ (?:\S+ = )?(\d+)$")
AGAINST = re.compile(r"(\d+) against (\d+)$")
OVER = (
    re.compile(r"(\d+) [^:]{0,80}cannot be cut evenly over (?:[\d·]+ = )?(\d+)"),
    re.compile(r"(\d+) over \S+?=(\d+)(?:, which)? (?:does not divide|cannot be cut evenly)"),
    re.compile(r"(\d+) \w+ do not divide into (\d+) equal parts"),
)
MULTIPLY = re.compile(r"multiply to (\d+), not to (\d+)")
PADDED = re.compile(r"(\d+) pad rows")


def refuted(told):
    """Each claim of an explanation that its own numbers refute."""
    bad = []
    for d in told.diagnoses:
        whole = [m for e in d.equations for m in QUOTIENT.finditer(e) if int(m[1]) % int(m[2]) == 0]
        bad += [f"{d.cause}: {m[0]}" for m in whole if any(word in d.cause for word in DENIALS)]
        bad += [e for e in d.equations if (m := UNLIKE.search(e)) and int(m[1]) == int(m[2])]
        against = [sorted(map(int, m.groups())) for e in d.equations if (m := AGAINST.search(e))]
        bad += [d.cause for a, b in against if a and b % a == 0 and "no whole factor" in d.cause]
        bad += [d.cause for over in OVER if (m := over.search(d.cause)) and int(m[1]) % int(m[2]) == 0]
        bad += [d.cause for m in MULTIPLY.finditer(d.cause) if m[1] == m[2]]
        bad += [e for e in d.equations for m in PADDED.finditer(e) if int(m[1]) == 0]
    return bad


def test_no_text_of_the_sets_is_answered_with_a_refuted_claim(soak):
    asked = MESSAGES if soak else MESSAGES[::8]
    assert [bad for text in asked for bad in refuted(lp.explain(text))] == []


SIZES = st.sampled_from([0, 1, 2, 3, 4, 6, 7, 8, 12, 16, 24, 32, 64, 96, 128, 1000, 1024, 4096, 8192, 14336,
                         16032, 16064, 32000, 128256, 131072, 524288, 2**31, 2**32])  # fmt: skip
FACTS = st.dictionaries(
    st.sampled_from(["tp", "pp", "cp", "dp", "gpus", "n_heads", "n_kv_heads", "seq_len", "n_layers",
                     "vocab_size", "ffn_dim", "dim", "global_batch", "micro_batch", "zero", "quant_group"]),
    st.sampled_from([1, 2, 3, 4, 8, 16, 24, 64, 96, 128, 1000, 4096, 8192, 14336, 128256, "2->2", "2->4"]),
    max_size=6,
)  # fmt: skip


@settings(max_examples=200)
@given(st.sampled_from(MESSAGES), st.lists(SIZES, min_size=1, max_size=6), FACTS)
def test_no_numbers_make_a_refuted_claim(text, sizes, facts):
    """Texts of every cause, with other numbers: those of a text in turn, which makes many of them equal."""
    place = iter(sizes * len(text))
    other = re.sub(r"(?<![\w.])\d+", lambda _: str(next(place)), text)
    assert refuted(lp.explain(other, context=facts)) == []


# -- a divisor that is a product -------------------------------------------------------------------------


def test_a_target_of_no_elements_has_no_ratio():
    text = "RuntimeError: shape '[0, 8192, -1, 2, 128]' is invalid for input of size 1"
    told = lp.explain(text, context={"cp": 128, "n_heads": 128, "dim": 3, "seq_len": 128})
    assert told.diagnoses
    assert refuted(told) == []
