"""What tests are given: random models, layouts and jobs, bad values, and what real tools said."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterable
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from llamapar import FRAMEWORKS, PRESETS, Layout, ModelConfig, Padding
from llamapar.describe.hardware import HARDWARE
from llamapar.describe.layout import MAX_WORLD, ORDERS
from llamapar.describe.splits import LAYER_SPLITS


def drawn(cases: Iterable[Any], n: int) -> list[Any]:
    """`n` of the cases, or all where there are no more: seeded, and in their order."""
    every = list(cases)
    return [every[i] for i in sorted(random.Random(0).sample(range(len(every)), min(n, len(every))))]


def few(cases: Iterable[Any], n: int, *, others: str = "soak") -> list[Any]:
    """The cases as parameters of a test: `n` seeded ones always, the others where they have the time.

    others: the mark of the others, "soak" or "deep".
    """
    every = list(cases)
    always = drawn(every, n)
    late = getattr(pytest.mark, others)
    return [case if case in always else pytest.param(case, marks=late) for case in every]


class Hostile:
    """A value whose own text cannot be had."""

    def __repr__(self) -> str:
        raise RuntimeError("no text for you")


class Evil:
    """An object whose unpickling makes a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


BAD_COUNTS = {
    "zero": 0,
    "negative": -1,
    "fraction": 2.5,
    "text": "8",
    "nan": float("nan"),
    "infinity": float("inf"),
    "huge": 10**30,
    "absurd": 10**5000,
    "none": None,
    "true": True,
    "list": [1],
    "hostile": Hostile(),
}
"""Values that are no degree, size or count, by what is wrong with them."""


def oracle(name: str) -> list[dict[str, Any]]:
    """The cases of a fixture in oracles/, made by the tools that its make_*.py names."""
    text = (Path(__file__).parent / "oracles" / f"{name}.json").read_text()
    cases: list[dict[str, Any]] = json.loads(text)["cases"]
    return cases


DEGREES = (1, 1, 1, 2, 2, 4, 8, 16, 3, 5, 6, 7, 12, 32, 64)


EXTRAS: tuple[dict[str, Any], ...] = ({}, {"qkv_bias": True}, {"qk_norm": True}, {"family": "gemma2"})


@st.composite
def models(draw: st.DrawFn) -> ModelConfig:
    """A preset, or dimensions that no preset has: odd groups, odd widths, tied or not, Qwens."""
    if draw(st.booleans()):
        return PRESETS[draw(st.sampled_from(sorted(PRESETS)))]
    n_kv_heads = draw(st.sampled_from([1, 2, 3, 4, 8, 10, 12]))
    n_heads = n_kv_heads * draw(st.sampled_from([1, 2, 3, 4, 8]))
    head_dim = draw(st.sampled_from([1, 4, 8, 64, 128]))
    dim = n_heads * head_dim
    return ModelConfig(
        dim=draw(st.sampled_from([dim, dim + 4])),
        n_layers=draw(st.integers(1, 130)),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        ffn_dim=draw(st.integers(1, 64)) * draw(st.sampled_from([1, 32, 256])),
        vocab_size=draw(st.sampled_from([1, 1000, 32000, 32001, 50257, 128256, 152064])),
        max_seq_len=draw(st.sampled_from([2048, 8192, 131072])),
        tied=draw(st.booleans()),
        **draw(st.sampled_from(EXTRAS)),
    )


@st.composite
def layouts(draw: st.DrawFn, degrees: tuple[int, ...] = DEGREES) -> Layout:
    """Any degrees and order; HSDP, virtual stages and ZeRO now and then."""
    tp, cp, pp, dp = (draw(st.sampled_from(degrees)) for _ in range(4))
    return Layout(
        tp=tp,
        cp=cp,
        pp=pp,
        dp=dp,
        dp_replicate=draw(st.sampled_from([n for n in range(1, dp + 1) if dp % n == 0])),
        sequence_parallel=draw(st.sampled_from([None, None, True, False])),
        virtual_stages=draw(st.sampled_from([1, 1, 1, 2, 3, 8])),
        zero=draw(st.sampled_from([0, 1, 1, 2, 3])),
        order=draw(st.sampled_from(["tp-cp-pp-dp", *ORDERS])),
    )


@st.composite
def facts(draw: st.DrawFn, layout: Layout) -> dict[str, Any]:
    """What else `check` may be told; some of it true, some of it a slip."""
    known: dict[str, Any] = {}

    def maybe(name: str, *values: Any) -> None:
        value = draw(st.sampled_from([None, None, *values]))
        if value is not None:
            known[name] = value

    maybe("gpus", layout.world, layout.world, min(2 * layout.world, MAX_WORLD), 8, 64, 1000)
    maybe("gpus_per_node", 4, 8, 72)
    maybe("seq_len", 2048, 8192, 131072, 8200, 100, 1)
    maybe("batch_per_dp", 1, 3, 16, 2 * layout.pp)
    maybe("micro_batch", 1, 2, 3)
    maybe("global_batch", layout.dp, 16 * layout.dp, 100)
    maybe("micro_batches", 1, 4, 7, layout.pp, 3 * layout.pp)
    maybe("batch_tokens", 2**24, 8192 * 16 * layout.dp)
    maybe("kv_replication", True, False)
    maybe("padding", Padding(128, per_tp=True), Padding(64), "none", "colossalai")
    maybe("quant_group", 32, 128)
    maybe("layer_split", *LAYER_SPLITS)
    maybe("gpu", *HARDWARE, {"base": "h100-80gb", "memory_gib": 79.6}, {"memory_gib": 48})
    maybe("recompute", "none", "full")
    maybe("precision", "float8")
    return known


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    """The arguments of `lp.check`, by name."""
    layout = draw(layouts())
    asked = {"model": draw(models()), "layout": layout, **draw(facts(layout))}
    return {**asked, "framework": draw(st.sampled_from([None, None, *FRAMEWORKS]))}


def words(text: str) -> str:
    """What a plotly text says, in one line."""
    return unescape(text.replace("<br>", " "))


class Page(HTMLParser):
    """The texts of a page; refuses scripts, tags that do not match, and attributes (ids among them), but
    those of a link to a framework's source."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            [(href, to), *more] = attrs
            assert href == "href"
            assert re.fullmatch(r"https://github\.com/[\w./-]+(#L\d+(-L\d+)?)?", to or "")
            assert more == [("rel", "noopener")]
        else:
            assert attrs == []
        assert tag in {
            *("p", "b", "br", "hr", "i", "a", "small", "code", "details", "summary"),
            *("table", "tr", "th", "td"),
        }
        if tag not in {"br", "hr"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


TEN_KV_HEADS = {
    "model_type": "llama",
    "hidden_size": 5120,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "num_key_value_heads": 10,
    "intermediate_size": 13824,
    "vocab_size": 32000,
}
"""A config.json whose 10 KV heads do not divide over TP 4."""


KV = "RuntimeError: shape '[1, 8192, -1, 128]' is invalid for input of size 524288"
TITAN = f"""\
[rank0]:[titan] root - INFO - Building llama3 8B with ModelArgs(dim=4096, n_layers=32, n_heads=32)
[rank0]:[titan] root - INFO - tensor_parallel_degree=16
[rank0]:Traceback (most recent call last):
[rank0]:  File "/opt/torchtitan/torchtitan/models/llama/model.py", line 216, in forward
[rank0]:    xk = xk.view(bs, seqlen, -1, self.head_dim)
[rank0]:{KV}
"""
"""Incident 3: its message, and as torchtitan tells it."""
