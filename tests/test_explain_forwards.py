"""Every slip with every cut: two sizes meet of which one was cut and the other was not, or both unevenly.

The sizes are worked out here, from the model and the degree alone, and put into torch's own words.
"""

from dataclasses import dataclass

import pytest

import llamapar as lp
from explaining import BATCHES, MEET, PRODUCT, VIEW
from llamapar.diagnosis import Level

B, S = 2, 512
CATEGORIES = {
    "ffn_dim": "hidden_or_ffn_not_divisible",
    "vocab_size": "vocab_not_divisible",
    "n_heads": "heads_not_divisible",
    "n_kv_heads": "kv_heads_lt_tp",
}
JOINED = "RuntimeError: Sizes of tensors must match except in dimension 0. Expected size {} but got size {} "
JOINED += "for tensor 1"
SUM = (
    "RuntimeError: split_with_sizes expects split_sizes to sum exactly to {} (input tensor's size), but got "
)
SUM += "split_sizes={}"
EINSUM = "RuntimeError: einsum(): subscript e has size {} for operand 1 which does not broadcast with "
EINSUM += "previously seen size {}"
UNFLATTEN = "RuntimeError: unflatten: Provided sizes {} don't multiply up to the size of dim 2 ({}) in the "
UNFLATTEN += "input tensor"


@dataclass(frozen=True)
class Slip:
    text: str
    facts: dict[str, object]
    category: str


def widths(name, tp):
    """A size that tp cuts: the whole meets a share, or two shares meet, or equal parts are asked for."""
    model, facts = lp.model(name), {"model": name, "tp": tp}
    for fact, category in CATEGORIES.items():
        count = int(getattr(model, fact))
        columns = model.head_dim if "heads" in fact else 1
        whole, share = count * columns, -(-count * columns // tp)
        if fact == "n_heads" and whole == model.dim and count % tp:
            continue  # as many columns as the model has: either is said
        found = "other" if count % tp == 0 else category
        for text in (PRODUCT.format(B * S, whole, share), PRODUCT.format(B * S, share, whole),
                     MEET.format(share, whole, 2), EINSUM.format(share, whole)):  # fmt: skip
            yield Slip(text, facts, found)
        if columns == 1 and count % tp:
            last, each = whole - (tp - 1) * share, whole // tp
            texts = MEET.format(share, last, 2), JOINED.format(share, last), SUM.format(whole, [each] * tp)
            views = VIEW.format([B, S, tp, each], B * S * whole), UNFLATTEN.format([tp, each], whole)
            for text in (*texts, *views):
                yield Slip(text, facts, category)


def heads(name, tp):
    """Views with the whole model's heads of a share, or with a rank's heads of the whole."""
    model, facts = lp.model(name), {"model": name, "tp": tp}
    for count in (model.n_heads, model.n_kv_heads):
        if count % tp == 0:
            numel = B * S * count * model.head_dim
            yield Slip(VIEW.format([B, S, count, model.head_dim], numel // tp), facts, "other")
            yield Slip(VIEW.format([B, S, count // tp, model.head_dim], numel), facts, "other")
    if model.n_heads % tp:
        columns = -(-model.n_heads * model.head_dim // tp)
        yield Slip(VIEW.format([B, S, -1, model.head_dim], B * S * columns), facts, "heads_not_divisible")


def tokens(cp, seq):
    """A rank's tokens beside those of the whole sequence."""
    share, facts = -(-seq // cp), {"cp": cp, "seq_len": seq}
    found = "other" if seq % cp == 0 else "seq_not_divisible"
    yield Slip(MEET.format(share, seq, 3), facts, found)
    yield Slip(BATCHES.format(B * share, B * seq), facts, found)
    yield Slip(VIEW.format([B, seq, 32, 128], B * share * 32 * 128), facts, found)
    if seq % cp:
        yield Slip(VIEW.format([B, cp, seq // cp, 4096], B * seq * 4096), facts, found)
        yield Slip(MEET.format(share * cp, seq, 1), facts, found)


LAYOUTS = {"llama3-8b": (2, 3, 16), "qwen2.5-7b": (5, 7)}
CUT = [slip for name in LAYOUTS for tp in LAYOUTS[name] for cut in (widths, heads) for slip in cut(name, tp)]
SLIPS = CUT + [slip for cp, seq in ((2, 1024), (3, 1024), (4, 1026)) for slip in tokens(cp, seq)]


def test_there_are_slips_of_every_kind():
    assert len(SLIPS) > 100
    assert {slip.category for slip in SLIPS} == {*CATEGORIES.values(), "seq_not_divisible", "other"}


@pytest.mark.parametrize("category", sorted({slip.category for slip in SLIPS}))
def test_with_model_and_degree_the_cut_is_named(category):
    slips = [slip for slip in SLIPS if slip.category == category]
    told = [(slip, lp.explain(slip.text, context=slip.facts)) for slip in slips]
    assert [(slip.text, str(answer)) for slip, answer in told if answer.best.category != category] == []
    assert {answer.verdict for _, answer in told} == {"sharding"}


def test_alone_no_text_is_answered_surely_and_wrongly():
    for slip in SLIPS:
        told = lp.explain(slip.text)
        sure = told.verdict == "sharding" and told.best.level is Level.LIKELY
        assert told.verdict != "not_sharding", slip.text
        assert not sure or told.best.category == slip.category, slip.text
