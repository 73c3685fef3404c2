"""Every slip with every cut: two sizes meet of which one was cut and the other was not, or both unevenly.

The sizes are worked out here, from the model and the degree alone, and put into torch's own words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import llamapar as lp

B, S = 2, 512
CATEGORIES = {
    "ffn_dim": "hidden_or_ffn_not_divisible",
    "vocab_size": "vocab_not_divisible",
    "n_heads": "heads_not_divisible",
    "n_kv_heads": "kv_heads_lt_tp",
}
PRODUCT = "mat1 and mat2 shapes cannot be multiplied ({}x{} and {}x4096)"
MEET = "The size of tensor a ({}) must match the size of tensor b ({}) at non-singleton dimension {}"
JOINED = (
    "Sizes of tensors must match except in dimension 0. Expected size {} but got size {} for tensor number 1"
)
VIEW = "shape '{}' is invalid for input of size {}"
SUM = (
    "split_with_sizes expects split_sizes to sum exactly to {} (input tensor's size), but got split_sizes={}"
)
LABELS = "Expected input batch_size ({}) to match target batch_size ({})."
EINSUM = (
    "einsum(): subscript e has size {} for operand 1 which does not broadcast with previously seen size {}"
)
UNFLATTEN = "unflatten: Provided sizes {} don't multiply up to the size of dim 2 ({}) in the input tensor"


@dataclass(frozen=True)
class Slip:
    text: str
    facts: dict[str, object]
    category: str


def widths(name: str, tp: int) -> Iterator[Slip]:
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


def heads(name: str, tp: int) -> Iterator[Slip]:
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


def tokens(cp: int, seq: int) -> Iterator[Slip]:
    """A rank's tokens beside those of the whole sequence."""
    share, facts = -(-seq // cp), {"cp": cp, "seq_len": seq}
    found = "other" if seq % cp == 0 else "seq_not_divisible"
    yield Slip(MEET.format(share, seq, 3), facts, found)
    yield Slip(LABELS.format(B * share, B * seq), facts, found)
    yield Slip(VIEW.format([B, seq, 32, 128], B * share * 32 * 128), facts, found)
    if seq % cp:
        yield Slip(VIEW.format([B, cp, seq // cp, 4096], B * seq * 4096), facts, found)
        yield Slip(MEET.format(share * cp, seq, 1), facts, found)


LAYOUTS = {"llama3-8b": (2, 3, 16), "qwen2.5-7b": (5, 7)}
CUT = [slip for name in LAYOUTS for tp in LAYOUTS[name] for cut in (widths, heads) for slip in cut(name, tp)]
SLIPS = CUT + [slip for cp, seq in ((2, 1024), (3, 1024), (4, 1026)) for slip in tokens(cp, seq)]


def test_there_are_slips_of_every_kind() -> None:
    assert len(SLIPS) > 100
    assert {slip.category for slip in SLIPS} == {*CATEGORIES.values(), "seq_not_divisible", "other"}


@pytest.mark.parametrize("category", sorted({slip.category for slip in SLIPS}))
def test_with_model_and_degree_the_cut_is_named(category: str) -> None:
    slips = [slip for slip in SLIPS if slip.category == category]
    told = [(slip, lp.explain(f"RuntimeError: {slip.text}", context=slip.facts)) for slip in slips]
    assert [(slip.text, str(answer)) for slip, answer in told if answer.best.category != category] == []
    assert {answer.verdict for _, answer in told} == {"sharding"}


def test_alone_no_text_is_answered_surely_and_wrongly() -> None:
    for slip in SLIPS:
        told = lp.explain(f"RuntimeError: {slip.text}")
        sure = told.verdict == "sharding" and told.best.level is lp.Level.LIKELY
        assert told.verdict != "not_sharding", slip.text
        assert not sure or told.best.category == slip.category, slip.text


def test_a_cut_is_exact_or_not_named() -> None:
    """14336 columns over 3 ranks are 4779 and 4778; 4700 is no share, and 4779 none over 4."""
    facts = {"model": "llama3-8b", "tp": 3}
    assert lp.explain(MEET.format(4779, 4778, 2), context=facts).best.level is lp.Level.LIKELY
    assert lp.explain(MEET.format(4700, 14336, 2), context=facts).best.level is not lp.Level.LIKELY
    assert lp.explain(MEET.format(4779, 4778, 2), context=facts | {"tp": 4}).verdict != "sharding"


@pytest.mark.parametrize(
    ("text", "facts", "category", "equation"),
    [
        (MEET.format(262144, 349526, 0), {"dp": "6->8"},
         "checkpoint_tp_mismatch", "262144·8 = 2097152 ≈ 2097156"),
        (VIEW.format([8, 26, 128], 8 * 3424), {"ffn_dim": 13696, "tp": 4, "quant_group": 128},
         "quant_group_vs_tp", "107/4 = 26.75"),
        (VIEW.format([5, 2, -1], 61), {"n_layers": 61, "pp": 5}, "layers_not_divisible_pp", "61/5 = 12.2"),
        (VIEW.format([-1, 152064], 19445184), {"vocab_size": 152064, "tp": 8}, "other", "152064/8 = 19008"),
        ("Split sizes doesn't match total dim 0 size", {"n_heads": 36, "gpus": 5},
         "heads_not_divisible", "36/5 = 7.2"),
    ],
)  # fmt: skip
def test_cuts_of_every_kind_of_size(
    text: str, facts: dict[str, object], category: str, equation: str
) -> None:
    told = lp.explain(f"RuntimeError: {text}", context=facts)
    assert (told.verdict, told.best.category, told.best.level) == ("sharding", category, lp.Level.LIKELY)
    assert equation in told.best.equations


def test_a_change_of_degrees_that_does_not_make_the_sizes_is_not_named() -> None:
    told = lp.explain(MEET.format(262144, 349526, 0), context={"dp": "6->7"})
    assert told.best.level is not lp.Level.LIKELY


def test_the_parts_of_anything_are_no_two_vocabularies() -> None:
    """Both numbers may be anything's; as rows of an embedding they are two models'."""
    assert lp.explain(MEET.format(262144, 349526, 0)).verdict == "unknown"
    loaded = "size mismatch for tok_embeddings.weight: copying a param with shape torch.Size([{}, 64]) from "
    loaded = f"{loaded}checkpoint, the shape in current model is torch.Size([{{}}, 64])."
    assert lp.explain(loaded.format(128256, 50257)).verdict == "not_sharding"


FRAMES = (
    'Traceback (most recent call last):\n  File "a.py", line 3\n    {}\nIndexError: list index out of range'
)


def test_the_failing_line_tells_what_an_index_is_past() -> None:
    rows = lp.explain(FRAMES.format("return self.rows[i]"))
    assert (rows.verdict, rows.best.title) == ("not_sharding", "other / bad_data")
    stage = lp.explain(FRAMES.format("return [layers[i] for i in range(pp_rank * per_stage, end)]"))
    assert (stage.verdict, stage.best.category) == ("sharding", "layers_not_divisible_pp")
    assert lp.explain(FRAMES.format("return w.chunk(tp)[rank]")).verdict == "unknown"


def test_positions_past_the_table_of_a_rank() -> None:
    frames = 'Traceback (most recent call last):\n  File "a.py", line 3\n    cos = table[positions]\n'
    text = f"{frames}IndexError: index 8192 is out of bounds for dimension 0 with size 4096"
    told = lp.explain(text, cp=3, seq_len=12288)
    assert (told.verdict, told.best.category) == ("sharding", "position/rope")
    assert lp.explain(text).verdict == "unknown"


def test_gloo_s_own_question_is_no_hang() -> None:
    text = "op.preamble.length <= op.nbytes. 40960 vs 32768. Is there a distributed collective mismatch?"
    assert "rank_mapping_hang" not in [d.category for d in lp.explain(text).diagnoses]


@pytest.mark.parametrize(
    ("text", "facts", "category"),
    [
        (MEET.format(40, 30, 2), {"tp": 16}, "hidden_or_ffn_not_divisible"),  # shares of 630
        ("stack expects each tensor: shape '[2, 8, 3, 5, 64]' is invalid for input of size 16384",
         {"n_heads": 16, "cp": 3}, "heads_not_divisible"),
        (VIEW.format([4, -1, 128], 4 * 1728) + " while scales are applied", {"ffn_dim": 13824, "tp": 8},
         "quant_group_vs_tp"),
    ],
)  # fmt: skip
def test_a_known_degree_alone_names_the_cut(text: str, facts: dict[str, int], category: str) -> None:
    told = lp.explain(text, context=facts)
    assert (told.verdict, told.best.category) == ("sharding", category)


def test_a_ratio_proves_a_cut_but_not_which_tensor_was_cut() -> None:
    """10 of 30 over tp=3 is a slice of an activation, of a file's weight or of an adapter."""
    told = lp.explain(MEET.format(10, 30, 1), tp=3)
    assert (told.verdict, told.best.level) == ("sharding", lp.Level.POSSIBLE)
    assert lp.explain(MEET.format(10, 30, 1), tp=3, dim=30).best.level is lp.Level.LIKELY


def test_processes_that_do_not_find_each_other_are_no_hang() -> None:
    text = "The client socket has timed out after 1000ms while trying to connect to (10.0.0.1, 29500)."
    assert lp.explain(text).verdict == "not_sharding"


def test_a_number_of_ranks_beside_a_tensor_makes_it_no_list_of_ranks() -> None:
    text = '  File "a.py", line 3\n    x = rewards.view(num_devices, n)\nRuntimeError: ' + VIEW.format(
        [2, 8], 17
    )
    told = lp.explain(f"Traceback (most recent call last):\n{text}")
    assert "world_size_product" not in [d.category for d in told.diagnoses]
