"""Runs that fail for other reasons: every error is raised by code that was run, and none is sharding's fault.

Wrong dtype, device, file or key, off by one, shapes that user code got wrong, too large a batch. Sizes are
drawn from those of language models, so that one is often a whole multiple of another.
"""

from __future__ import annotations

import json
import operator
import pickle
import random
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import llamapar as lp

WIDTHS = (
    64, 96, 128, 256, 320, 384, 512, 640, 768, 1000, 1024, 1152, 1280, 1408, 1536, 2048, 2560, 3072, 3584,
    4096, 5120, 6144, 8192, 11008, 14336,
)  # fmt: skip
LENGTHS = (7, 16, 33, 50, 77, 100, 128, 197, 256, 257, 512, 577, 1000, 1024, 2048)
META = "meta"


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


class Draw(random.Random):
    """Random sizes."""

    def width(self) -> int:
        return self.choice(WIDTHS)

    def two(self) -> tuple[int, int]:
        a, b = self.sample(WIDTHS, 2)
        return a, b

    def length(self) -> int:
        return self.choice(LENGTHS)

    def near(self, n: int) -> int:
        return n + self.choice((-1, 1, 2, 3))

    def batch(self) -> int:
        return self.choice((1, 2, 3, 4, 8, 16, 24, 32))


def linear(d: Draw) -> Any:
    a, b = d.two()
    return nn.Linear(a, d.width(), device=META)(empty(d.batch(), d.length(), b))


def matmul(d: Draw) -> Any:
    a, b = d.two()
    return empty(d.length(), a) @ empty(b, d.width())


def batched_matmul(d: Draw) -> Any:
    a, b = d.two()
    return torch.bmm(empty(d.batch(), d.length(), a), empty(d.batch() + 40, b, d.length()))


def wrong_dtype(d: Draw) -> Any:
    a, other = d.width(), d.choice((torch.bfloat16, torch.float16, torch.float64, torch.int64))
    return torch.ones(2, 8).to(other) @ torch.ones(8, a % 7 + 1)


def long_index(d: Draw) -> Any:
    return F.embedding(torch.zeros(2, d.batch()), torch.zeros(8, 4))


def wrong_device(d: Draw) -> Any:
    return empty(d.batch(), 8) + torch.ones(d.batch() + 50, 8)


def no_cuda(d: Draw) -> Any:
    return torch.empty(d.batch(), device=f"cuda:{d.randrange(8)}")


def token_past_the_vocabulary(d: Draw) -> Any:
    rows = d.choice((100, 1000, 5000))
    return F.embedding(torch.tensor([0, rows]), torch.zeros(rows, 2))


def index_past_the_end(d: Draw) -> Any:
    n = d.length()
    return torch.zeros(2, n)[:, n]


def list_past_the_end(d: Draw) -> Any:
    rows = list(range(d.length()))
    return rows[len(rows)]


def off_by_one(d: Draw) -> Any:
    n = d.length()
    return empty(d.batch(), n) + empty(1, d.near(n))


def targets_off_by_one(d: Draw) -> Any:
    n = d.length()
    return F.cross_entropy(torch.zeros(n, 8), torch.zeros(d.near(n), dtype=torch.int64))


def view_of_another_length(d: Draw) -> Any:
    b, n, heads, size = d.batch(), d.length(), d.choice((8, 12, 16)), d.choice((64, 80, 128))
    return empty(b, n, heads * size).view(b, d.near(n), heads, size)


def view_of_a_rest(d: Draw) -> Any:
    n = d.length() * d.batch() + 1
    return empty(n).view(-1, d.choice((2, 3, 7, 28 * 28)) * n + 1)


def flatten_of_an_image(d: Draw) -> Any:
    size = d.choice((28, 32, 64, 224))
    a = (size // 4) ** 2 * 16
    return nn.Linear(a, 10, device=META)(empty(d.batch(), a // d.choice((2, 4, 16))))


def image_in_patches(d: Draw) -> Any:
    side = d.choice((30, 50, 97, 223))
    return empty(d.batch(), 3, side, side).unflatten(2, (-1, 14 if side % 14 else 16))


def channels(d: Draw) -> Any:
    return nn.Conv2d(3, 8, 3, device=META)(empty(d.batch(), d.choice((1, 4)), 32, 32))


def groups(d: Draw) -> Any:
    return nn.GroupNorm(32, d.choice((48, 80, 100)), device=META)


def normalised(d: Draw) -> Any:
    a, b = d.two()
    return F.layer_norm(empty(d.batch(), b), (a,))


def heads_of_a_width(d: Draw) -> Any:
    return nn.MultiheadAttention(d.width() + 1, d.choice((8, 12, 16)), device=META)


def mask_of_another_length(d: Draw) -> Any:
    n = d.length()
    q = empty(d.batch(), 8, n, 64)
    return F.scaled_dot_product_attention(q, q, q, empty(n, d.near(n)))


def keys_of_another_head_size(d: Draw) -> Any:
    n, b = d.length(), d.batch()
    return F.scaled_dot_product_attention(empty(b, 8, n, 64), empty(b, 8, n, 80), empty(b, 8, n, 80))


def joined(d: Draw) -> Any:
    n = d.length()
    return torch.cat([empty(d.batch(), n, 64), empty(d.batch() + 40, d.near(n), 64)], 1)


def collated(d: Draw) -> Any:
    n = d.length()
    return torch.utils.data.default_collate([torch.zeros(n), torch.zeros(d.near(n))])


def split_sizes(d: Draw) -> Any:
    n = d.length()
    return empty(n, 2).split([n // 2, d.near(n - n // 2)])


def expanded(d: Draw) -> Any:
    n = d.length() + 1
    return empty(n, 4).expand(d.near(n), 4)


def summed_by_name(d: Draw) -> Any:
    a, b = d.two()
    return torch.einsum("bsd,de->bse", empty(d.batch(), d.length(), a), empty(b, 8))


def gathered(d: Draw) -> Any:
    return torch.gather(torch.zeros(4, 4), 1, torch.zeros(4, 4))


def copied(d: Draw) -> Any:
    n = d.length()
    return torch.zeros(n).copy_(torch.zeros(d.near(n)))


def missing_keys(d: Draw) -> Any:
    held = {f"model.layers.{d.randrange(80)}.mlp.gate_proj.weight": torch.zeros(1)}
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).load_state_dict(held)


def weights_of_another_model(d: Draw) -> Any:
    a = d.sample((3, 5, 7, 11, 13), 4)
    model = nn.ModuleDict({"fc": nn.Linear(a[0], a[1]), "out": nn.Linear(a[1], a[2])})
    return model.load_state_dict(nn.ModuleDict({"fc": nn.Linear(a[3], a[2]), "out": nn.Linear(a[2], a[0])})
                                 .state_dict())  # fmt: skip


def optimizer_of_another_model(d: Draw) -> Any:
    one, two = (torch.optim.AdamW([torch.zeros(1) for _ in range(n)]) for n in (d.batch(), 50))
    return one.load_state_dict(two.state_dict())


def no_file(d: Draw) -> Any:
    name = d.choice(("pytorch_model.bin", "consolidated.00.pth", "model-00001-of-00030.safetensors"))
    return torch.load(f"/nowhere/llama-{d.randrange(99)}b/{name}")


def no_weights_in_it(d: Draw) -> Any:
    return pickle.loads(d.choice((b"", b"version https://git-lfs.github.com/spec/v1", b"\x80\x04K")))


def broken_json(d: Draw) -> Any:
    return json.loads(d.choice(('{"hidden_size": 4096,', '{"n_heads" 32}', "")))


def missing_field(d: Draw) -> Any:
    return {"hidden_size": d.width()}[d.choice(("num_attention_heads", "vocab_size", "rope_theta"))]


def wrong_argument(d: Draw) -> Any:
    return nn.Linear(2, 2)(torch.zeros(2), **{d.choice(("attention_mask", "input_ids")): 1})


def no_such_attribute(d: Draw) -> Any:
    return getattr(nn.Linear(2, 2), d.choice(("q_proj", "num_heads", "tp_size", "device_mesh")))


def no_model(d: Draw) -> Any:
    return d.choice((operator.attrgetter("shape"), len, iter))(None)


def batch_too_large(d: Draw) -> Any:
    return torch.zeros(d.batch() * 2**20, d.width(), 2**20)


def no_batches(d: Draw) -> Any:
    steps_per_epoch = d.randrange(1, 8) // 8
    return 1000 // steps_per_epoch


def mean_of_nothing(d: Draw) -> Any:
    return sum([]) / float(len([]) * d.batch())


def user_check(d: Draw) -> Any:
    n, k = d.length() * 8 + 1, d.choice((2, 4, 8))
    raise ValueError(f"{n} images cannot be shown in {k} rows")


def no_gradient(d: Draw) -> Any:
    return torch.zeros(d.batch()).sum().backward()


def changed_in_place(d: Draw) -> Any:
    x = torch.ones(d.batch(), requires_grad=True)
    x += 1
    return x


def arrays(d: Draw) -> Any:
    n = d.length()
    return np.zeros((2, n)) + np.zeros((2, d.near(n)))


def array_product(d: Draw) -> Any:
    n = d.length()
    return np.zeros((2, n)) @ np.zeros((d.near(n), 2))


def array_reshaped(d: Draw) -> Any:
    n = d.length()
    return np.zeros(n * 3).reshape(d.near(n), 3)


def table_of_lists(d: Draw) -> Any:
    return torch.tensor([[0] * d.length(), [0]])


def bad_text(d: Draw) -> Any:
    return bytes([d.randrange(128, 192)]).decode()


def bad_number(d: Draw) -> Any:
    return int(d.choice(("4k", "1e3", "auto", "")))


def too_deep(d: Draw) -> Any:
    return (lambda f: f(f))(lambda f: f(f))


def two_images(d: Draw) -> Any:
    n = d.length()
    return torch.where(empty(d.batch() + 40, n) > 0, empty(1, d.near(n)), empty(1, 1))


FORMS: tuple[Callable[[Draw], Any], ...] = tuple(
    form
    for name, form in list(globals().items())
    if callable(form)
    and getattr(form, "__module__", "") == __name__
    and form.__annotations__.get("return") == "Any"
)


def failures(n: int) -> Iterator[tuple[str, BaseException, dict[str, Any]]]:
    """`n` errors, of every form in turn, half of them with the layout of a job that they befell."""
    draw = Draw(0)
    for i in range(n):
        form = FORMS[i % len(FORMS)]
        context: dict[str, Any] = {}
        if i // len(FORMS) % 2:
            context = {"model": draw.choice(list(lp.PRESETS)), "layout": {"tp": draw.choice((1, 2, 4))}}
            context["seq"] = 1024 * draw.choice((1, 2, 8))
            assert lp.check(context["model"], context["layout"], seq_len=context["seq"]).ok
        try:
            form(draw)
        except (Exception, RecursionError) as error:
            yield form.__name__, error, context
        else:
            raise AssertionError(f"{form.__name__} ran through")


def test_each_form_fails_in_a_way_of_its_own() -> None:
    told = {name: f"{type(error).__name__}: {error}" for name, error, _ in failures(len(FORMS))}
    assert len(told) == len(FORMS) >= 50
    assert len({"".join(c for c in text if not c.isdigit()) for text in told.values()}) >= 45


def test_other_failures_are_not_blamed_on_sharding(soak: bool) -> None:
    """By the exception and by its whole traceback, with and without the layout of the job."""
    n = 500 if soak else 120
    blamed: dict[str, list[str]] = {"exception": [], "traceback": []}
    for name, error, context in failures(n):
        text = "".join(traceback.format_exception(error))
        for how, what in (("exception", error), ("traceback", text)):
            if lp.explain(what, context=context).verdict == "sharding":
                blamed[how].append(f"{name}: {str(error)[:150]} {context}")
    for rows in blamed.values():
        assert len(rows) <= 0.02 * n, rows


@pytest.mark.parametrize(
    ("text", "subtype"),
    [
        ("RuntimeError: mat1 and mat2 must have the same dtype, but got BFloat16 and Float", "types_differ"),
        ("Expected all tensors to be on the same device, but found cpu and cuda:0!", "types_differ"),
        ("ImportError: cannot import name 'Cache' from 'transformers.cache_utils'", "not_there"),
        ("TypeError: forward() got an unexpected keyword argument 'num_items_in_batch'", "not_there"),
        ("OSError: model does not appear to have a file named config.json", "not_there"),
        ("safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge", "bad_data"),
        ("stack expects each tensor to be equal size, but got [9] at entry 0 and [7] at entry 1", "bad_data"),
        ("ValueError: Asking to pad but the tokenizer does not have a padding token.", "bad_data"),
        ("weight of size [8, 3, 3, 3], expected input[2, 4, 8, 8] to have 3 channels", "operator_rule"),
        ("ValueError: not enough values to unpack (expected 4, got 3)", "operator_rule"),
        ("RuntimeError: Trying to backward through the graph a second time", "operator_rule"),
        ("ValueError: Target modules {'q_proj'} not found in the base model.", "model_config"),
    ],
)  # fmt: skip
def test_families_of_errors_that_no_cut_makes(text: str, subtype: str) -> None:
    told = lp.explain(text)
    assert (told.verdict, told.best.title) == ("not_sharding", f"other / {subtype}")


@pytest.mark.parametrize(
    "text",
    [
        "pipeline stage 1: Expected all tensors to be on the same device, but found cuda:3 and cuda:0!",
        "TP rank 1: stack expects each tensor to be equal size, but got [512] at entry 0 and [498]",
        "KeyError: 'tp_group'",
        "IndexError: Dimension out of range (expected to be in range of [-1, 0], but got 1)",
        "RuntimeError: mat2 must be a matrix, got 1-D tensor",
        "ValueError: heads per rank must be an integer.",
        "ValueError: Invalid value for world_size: 12",
        "ValueError: You have to specify either input_ids or inputs_embeds",  # as a later stage does
        "RuntimeError: Trying to create tensor with negative dimension -3: [-3, 4096]",
        "AssertionError: Padding_idx must be within num_embeddings",
        "AttributeError: 'NoneType' object has no attribute 'size' in stage 1",
        "FileNotFoundError: [Errno 2] No such file or directory: 'ckpt/mp_rank_03/model.pt'",
    ],
)
def test_words_that_a_layout_may_lead_to_prove_nothing(text: str) -> None:
    assert lp.explain(text).verdict != "not_sharding"


def test_what_a_cut_explains_is_not_called_another_error() -> None:
    told = lp.explain("AttributeError: 'PPMissingLayer' object has no attribute 'weight'")
    assert (told.verdict, told.best.category) == ("sharding", "tied_embeddings")


PRODUCT = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (16x{} and {}x4096)"


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        (5120, 4096, "not_sharding"),  # no degree makes one of the other
        (1024, 4096, "unknown"),  # a quarter
        (1408, 4096, "unknown"),  # 11 heads of 128 of 32, over 3
        (3670, 3668, "unknown"),  # parts of 11008 over 3
        (2050, 2049, "unknown"),  # 683 on each of 3 ranks is 2049
    ],
)
def test_widths_that_no_degree_relates(a: int, b: int, verdict: str) -> None:
    assert lp.explain(PRODUCT.format(a, b)).verdict == verdict


def test_one_rank_cuts_nothing() -> None:
    text = PRODUCT.format(1024, 4096)
    assert lp.explain(text, gpus=4).verdict == "sharding"
    alone = lp.explain(text, gpus=1)
    assert (alone.verdict, alone.reason) == ("not_sharding", "one rank holds every tensor whole")
    assert lp.explain("IndexError: list index out of range", gpus=1).verdict == "not_sharding"
    shard = (
        "copying a param with shape torch.Size([16032, 4096]) from checkpoint, the shape in current model is "
    )
    shard = f"size mismatch for tok_embeddings.weight: {shard}torch.Size([128256, 4096])."
    assert lp.explain(shard, gpus=1).verdict == "sharding"  # cut by the run that saved it


def test_a_tensor_that_every_rank_holds_whole_is_another_model_s() -> None:
    loaded = "size mismatch for {}: copying a param with shape torch.Size({}) from checkpoint, the shape in current model is torch.Size({})."  # noqa: E501
    for name, a, b in (("score.weight", "[2, 4096]", "[1, 4096]"), ("norm.weight", "[4096]", "[5120]")):
        told = lp.explain(loaded.format(name, a, b))
        assert (told.verdict, told.best.title) == ("not_sharding", "other / model_config"), name
    assert lp.explain(loaded.format("norm.weight", "[512]", "[4096]")).verdict != "not_sharding"


COPIED = """Traceback (most recent call last):
  File "load.py", line 9, in fill
    target.copy_(source)
RuntimeError: The size of tensor a (2048) must match the size of tensor b (8192) at non-singleton dimension 0
"""
ROWS = (
    "size mismatch for lm_head.weight: copying a param with shape torch.Size([{}, 64]) from checkpoint, "
    "the shape in current model is torch.Size([{}, 64])."
)
NOTHING = "ValueError: optimizer got an empty parameter list"
STAGES = "layers_not_divisible_pp"


@pytest.mark.parametrize(
    ("text", "facts", "verdict", "title", "level"),
    [
        (COPIED, {"tp": 4, "dim": 8192}, "sharding", "checkpoint_tp_mismatch", "possible"),
        (ROWS.format(16000, 64000), {"tp": "4->1"}, "sharding", "embed_checkpoint_shape", "likely"),
        (ROWS.format(60032, 60001), {"tp": 2, "vocab": 60001}, "sharding", "vocab_padding", "likely"),
        (ROWS.format(60032, 60001), {}, "unknown", "vocab_padding", "likely"),
        ("shape '[6, 2, 512]' is invalid for input of size 7168", {}, "unknown", None, None),
        ("Invalid index 9, it should be in the interval [0, 7]", {}, "unknown", None, None),
        ("shape '[6, 12, 128]' is invalid for input of size 9600", {}, "unknown", "heads_not_divisible",
         "possible"),
        ("too many indices for tensor of dimension 1", {}, "unknown", "other / operator_rule", "possible"),
        ("too many indices for tensor of dimension 1", {"zero": 3}, "sharding", "other / operator_rule",
         "possible"),
        ("index out of range in self", {"seq": 900, "max_seq_len": 512}, "not_sharding",
         "position/rope", "likely"),
        (NOTHING, {"pp": 5}, "sharding", STAGES, "possible"),
        (NOTHING, {}, "unknown", STAGES, "possible"),
        ("AssertionError: the grid of ranks is not valid", {"world": 12, "tp": 2, "pp": 2, "dp": 2},
         "sharding", "world_size_product", "possible"),
        ("mat1 and mat2 shapes cannot be multiplied (8x2752 and 11008x16)", {"tp": 4, "ffn": 11008},
         "sharding", "lora_tp", "possible"),
    ],
)  # fmt: skip
def test_what_the_failing_line_and_the_known_facts_add(
    text: str, facts: dict[str, object], verdict: str, title: str | None, level: str | None
) -> None:
    told = lp.explain(text, context=facts)
    best = (told.best.title, str(told.best.level)) if told.best else (None, None)
    if title is not None:
        assert best == (title, level), told
    assert told.verdict == verdict, told


def test_a_cut_that_nothing_else_speaks_for_is_possible_at_most() -> None:
    text = "The size of tensor a (50304) must match the size of tensor b (50432) at non-singleton dimension 2"
    alone, ranks = lp.explain(text), lp.explain(f"[rank 3 of the model parallel group] {text}")
    assert str(alone.best.level) == "possible"
    assert (ranks.verdict, str(ranks.best.level)) == ("sharding", "likely")
