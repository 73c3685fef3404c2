"""What is known besides the text: the model or some of its numbers, degrees, the framework."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from llamapar.describe.job import Job
from llamapar.describe.layout import Layout
from llamapar.describe.models import PRESETS, ModelConfig
from llamapar.describe.models import model as find_model
from llamapar.describe.options import OPTIONS
from llamapar.errors import MAX_DEGREE, LlamaparError, ModelError, whole
from llamapar.frameworks import Framework
from llamapar.frameworks import framework as find_framework

_ROWS = """
llama-7b open-llama-7b vicuna-7b|4096 32 32 32 11008 32000
llama-13b vicuna-13b|5120 40 40 40 13824 32000
llama-30b llama-33b wizardlm-33b|6656 60 52 52 17920 32000
llama-65b|8192 80 64 64 22016 32000
open-llama-3b|3200 26 32 32 8640 32000
tinyllama-1.1b|2048 22 32 4 5632 32000
codellama-34b|8192 48 64 8 22016 32000
llama4-scout llama-4-scout|5120 48 40 8 16384 202048 128
qwen-7b qwen1.5-7b|4096 32 32 32 11008 151936
qwen-14b qwen1.5-14b|5120 40 40 40 13696 152064
qwen-72b qwen1.5-72b|8192 80 64 64 24576 152064
qwen2-0.5b qwen2.5-0.5b|896 24 14 2 4864 151936
qwen2-1.5b qwen2.5-1.5b qwen-1.5b|1536 28 12 2 8960 151936
qwen2.5-3b|2048 36 16 2 11008 151936
qwen2-7b|3584 28 28 4 18944 152064
qwen2.5-14b|5120 48 40 8 13824 152064
qwen2.5-32b qwq-32b|5120 64 40 8 27648 152064
qwen2-72b|8192 80 64 8 29568 152064
qwen3-0.6b|1024 28 16 8 3072 151936 128
qwen3-1.7b|2048 28 16 8 6144 151936 128
qwen3-4b|2560 36 32 8 9728 151936 128
qwen3-8b|4096 36 32 8 12288 151936
qwen3-14b|5120 40 40 8 17408 151936
qwen3-32b|5120 64 64 8 25600 151936 128
qwen3-30b-a3b|2048 48 32 4 6144 151936 128
qwen3-235b-a22b|4096 94 64 4 12288 151936 128
mixtral-8x7b|4096 32 32 8 14336 32000
mixtral-8x22b|6144 56 48 8 16384 32768
codestral-22b|6144 56 48 8 16384 32768
mistral-nemo mistral-12b|5120 40 32 8 14336 131072 128
mistral-small-24b|5120 40 32 8 32768 131072 128
mistral-large-123b|12288 88 96 8 28672 32768
gemma-2b|2048 18 8 1 16384 256000 256
gemma-7b|3072 28 16 16 24576 256000 256
gemma2-9b|3584 42 16 8 14336 256000 256
gemma2-27b|4608 46 32 16 36864 256000 128
falcon-7b|4544 32 71 1 18176 65024
falcon-40b|8192 60 128 8 32768 65024
gpt2-small gpt2-117m|768 12 12 12 3072 50257
gpt2-medium|1024 24 16 16 4096 50257
gpt2-large gpt-large|1280 36 20 20 5120 50257
gpt2-xl|1600 48 25 25 6400 50257
gpt-j-6b|4096 28 16 16 16384 50400
gpt-neox-20b|6144 44 64 64 24576 50432
pythia-6.9b|4096 32 32 32 16384 50432
mpt-7b|4096 32 32 32 16384 50432
mpt-30b|7168 48 64 64 28672 50432
opt-6.7b|4096 32 32 32 16384 50272
opt-13b|5120 40 40 40 20480 50272
opt-30b|7168 48 56 56 28672 50272
opt-66b|9216 64 72 72 36864 50272
bloom-560m|1024 24 16 16 4096 250880
bloom-7b1|4096 30 32 32 16384 250880
bloom-176b|14336 70 112 112 57344 250880
starcoder-15b|6144 40 48 1 24576 49152
starcoder2-15b|6144 40 48 4 24576 49152
santacoder-1.1b|2048 24 16 1 8192 49280
chatglm2-6b chatglm3-6b|4096 28 32 2 13696 65024
glm4-9b glm-4-9b|4096 40 32 2 13696 151552
yi-6b|4096 32 32 4 11008 64000
yi-34b|7168 60 56 8 20480 64000
baichuan-7b|4096 32 32 32 11008 64000
baichuan2-13b|5120 40 40 40 13696 125696
internlm2-7b|4096 32 32 8 14336 92544
internlm2-20b|6144 48 48 8 16384 92544
internvl2-26b-vision internvit-6b|3200 45 25 25 12800 92553
phi-2|2560 32 32 32 10240 51200
phi3-mini|3072 32 32 32 8192 32064
phi3-medium|5120 40 40 10 17920 32064
phi-4|5120 40 40 10 17920 100352
deepseek-7b deepseek-llm-7b|4096 30 32 32 11008 102400
deepseek-67b|8192 95 64 8 22016 102400
deepseek-coder-33b|7168 62 56 8 19200 32256
deepseek-v2-lite deepseek-coder-v2-lite|2048 27 16 16 10944 102400 128
deepseek-v3 deepseek-r1|7168 61 128 128 18432 129280 128
dbrx|6144 40 48 8 10752 100352
command-r|8192 40 64 64 22528 256000
command-r-plus|12288 64 96 8 33792 256000
solar-10.7b|4096 48 32 8 14336 32000
granite-3-8b granite-3.1-8b granite-3.2-8b|4096 40 32 8 12800 49155
gpt-oss-20b|2880 24 64 8 2880 201088 64
gpt-oss-120b|2880 36 64 8 2880 201088 64
"""
"""Dimensions of public models, from the config.json each is published with (Hugging Face, 2025).

name and other names | dim layers heads kv_heads ffn vocab [head_dim]. Of a mixture the dense widths
that TP cuts in attention and vocabulary are what counts here.
"""

_FIELDS = ("dim", "n_layers", "n_heads", "n_kv_heads", "ffn_dim", "vocab_size", "head_dim")

_ALIASES = """
world: gpus world_size | dim: hidden hidden_size | n_layers: layers num_hidden_layers
ffn_dim: ffn intermediate_size | n_heads: heads num_attention_heads | n_kv_heads: kv_heads num_key_value_heads
vocab_size: vocab | head_dim: | seq_len: seq | micro_batch: batch | global_batch: | quant_group: group_size
tp: tensor_parallel_size mp | pp: pipeline_parallel_size | cp: context_parallel_size | dp: data_parallel_size
ep: expert_parallel_size | virtual_stages: vp
"""
FACTS: dict[str, str] = {
    name: fact.strip()
    for part in _ALIASES.replace("\n", "|").split("|")
    if part.strip()
    for fact, _, others in [part.partition(":")]
    for name in (fact.strip(), *others.split())
}
"""Names under which a fact may be given → its own name; others are ignored."""

ARGUMENTS = {fact: {"world": "gpus"}.get(fact, fact) for fact in FACTS.values()}
"""A fact's own name → the argument of `explain` for it, which is named as everywhere."""


@cache
def zoo() -> dict[str, ModelConfig]:
    """The presets and the public models by name, other names included."""
    models = {name: config for name, config in PRESETS.items() if name != "tiny"}
    for row in _ROWS.strip().splitlines():
        names, _, numbers = row.partition("|")
        dims: dict[str, Any] = dict(zip(_FIELDS, map(int, numbers.split()), strict=False))
        for name in names.split():
            models.setdefault(name, ModelConfig(name=names.split()[0], **dims))
    return models


_DROPPED = re.compile(r"deepseek-r1-distill|meta|instruct|chat|hf|base|vl|omni|coder(?=.*qwen)|[^a-z0-9.]")


def _folded(name: str) -> str:
    return _DROPPED.sub("", name.lower())


@cache
def _by_folded() -> list[tuple[str, ModelConfig]]:
    """Longest name first, so that llama3.1-70b is not read as llama3.1-7."""
    rows = [(_folded(name), config) for name, config in zoo().items()]
    return sorted(rows, key=lambda row: -len(row[0]))


def model_named(text: str) -> ModelConfig | None:
    """The public model that a free text names: "Meta-Llama-3-70B-Instruct (MP8)"; or None."""
    folded = _folded(text[:200])
    for name, config in _by_folded():
        at = folded.find(name)
        if at >= 0 and not folded[at + len(name) : at + len(name) + 1].isdigit():
            return config
    return None


_FIRST = re.compile(r"(\d{1,12})(?!\d)")
_CHANGE = re.compile(r"(\w{1,12}) ?(?:->|→|vs\.?) ?(\d{1,12})")


VOCABULARIES = frozenset(
    (30522, 32000, 50257, 50265, 50280, 50304, 50432, 51200, 65024, 250880, 256000, 262144)
)
"""Vocabulary sizes of public models of other families: BERT, GPT-2, NeoX, Bloom, Gemma and others."""

_CUT_OVER = (
    ("kv_heads_lt_tp", "n_kv_heads", "tp"),
    ("heads_not_divisible", "n_heads", "tp"),
    ("hidden_or_ffn_not_divisible", "ffn_dim", "tp"),
    ("seq_not_divisible", "seq_len", "cp"),
    ("seq_not_divisible", "seq_len", "tp"),
    ("microbatch_divisibility", "global_batch", "dp"),
)
"""Category, size and axis: what each axis cuts."""


@dataclass(frozen=True)
class Known:
    """Facts beside the text; every one may be missing.

    numbers: facts by name. changes: facts that differ between two sides ("1->2").
    name: the model's name where it is told in words.
    """

    model: ModelConfig | None = None
    numbers: Mapping[str, int] = field(default_factory=dict)
    changes: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    framework: Framework | None = None
    layout: Layout | None = None
    name: str = ""

    @classmethod
    def of(cls, model: Any, layout: Any, framework: Any, context: Mapping[str, Any]) -> Known:
        """From what a person gives; a model's free-text name that is not known is kept as a name.
        ModelError or LayoutError for a file, dict, number or framework's name that is broken."""
        numbers: dict[str, int] = {}
        changes: dict[str, tuple[str, str]] = {}
        if isinstance(layout, Layout):
            given: dict[str, Any] = {axis: getattr(layout, axis) for axis in ("tp", "cp", "pp", "dp")}
            given |= {"world": layout.world, "virtual_stages": layout.virtual_stages}
        else:
            given, layout = dict(layout or {}), None
        for name, value in {**given, **context}.items():
            fact = FACTS.get(name)
            if fact is None or value is None:
                continue
            if isinstance(value, str):
                changed, first = _CHANGE.search(value[:60]), _FIRST.search(value[:60])
                if changed:
                    changes[fact] = (changed.group(1), changed.group(2))
                elif first and value.strip()[:1].isdigit() and " or " not in value:
                    numbers[fact] = int(first.group(1))
            elif isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40:
                numbers[fact] = value
        judge = find_framework(framework) if framework is not None else None
        config, name = _model(model)
        return cls(config, numbers, changes, judge, layout, name)

    def also(self, facts: Mapping[str, int]) -> Known:
        """With facts that the text states where nothing else was given."""
        return replace(self, numbers={**facts, **self.numbers})

    def get(self, fact: str) -> int | None:
        """A number given as such, or the given model's."""
        if fact in self.numbers:
            return self.numbers[fact]
        if self.model is not None and fact in _FIELDS:
            return int(getattr(self.model, fact))
        if fact == "head_dim" and self.get("dim") and self.get("n_heads"):
            return (self.get("dim") or 0) // (self.get("n_heads") or 1) or None
        return None

    def fits(self, **facts: int) -> bool:
        """Whether nothing known contradicts `facts`."""
        return all((known := self.get(name)) is None or known == value for name, value in facts.items())

    def models(self) -> Iterator[ModelConfig]:
        """The model, or else every public one that the known numbers allow, each shape once."""
        if self.model is not None:
            yield self.model
            return
        seen = set()
        for config in zoo().values():
            key = tuple(getattr(config, name) for name in _FIELDS)
            if key not in seen and self.fits(**dict(zip(_FIELDS, key, strict=True))):
                seen.add(key)
                yield config

    def alone(self, *axes: str) -> bool:
        """Whether every one of `axes` is known to be 1."""
        if self.get("world") == 1 and not self.changes:
            return True
        return bool(axes) and all(self.get(axis) == 1 for axis in axes)

    def uneven(self) -> list[tuple[str, str, int, str, int]]:
        """(category, fact, size, axis, degree) of each known size that a known degree does not divide."""
        rows = []
        for category, fact, axis in _CUT_OVER:
            size, degree = self.get(fact), self.get(axis)
            if size and degree and size % degree:
                rows.append((category, fact, size, axis, degree))
        return rows

    def memory_command(self) -> str:
        """The `llamapar memory` that counts what a rank holds, with what is known filled in."""
        model = self.model.name if self.model and PRESETS.get(self.model.name) == self.model else "MODEL"
        words = ["llamapar", "memory", "--model", model]
        for fact in ("tp", "cp", "pp", "dp", "seq_len", "micro_batch", "global_batch"):
            if fact in self.numbers:
                words += OPTIONS[fact].words(self.numbers[fact])
        return shlex.join(words)

    def job(self) -> Job | None:
        """The job that the facts make, where a model and a degree are known."""
        degrees = {a: self.numbers[a] for a in ("tp", "cp", "pp", "dp") if a in self.numbers}
        if self.model is None or not (degrees or self.layout):
            return None
        known = {
            k: self.numbers[k]
            for k in ("seq_len", "micro_batch", "global_batch", "quant_group")
            if k in self.numbers
        }
        if "world" in self.numbers:
            known["gpus"] = self.numbers["world"]
        try:
            if self.layout is None and "virtual_stages" in self.numbers:
                degrees["virtual_stages"] = self.numbers["virtual_stages"]
            if self.layout is None and "dp" not in degrees and "world" in self.numbers:
                ranks = degrees.get("tp", 1) * degrees.get("cp", 1) * degrees.get("pp", 1)
                degrees["dp"] = max(1, self.numbers["world"] // ranks)
            return Job.of(self.model, self.layout or degrees, **known)
        except LlamaparError:
            return None


def _model(model: Any) -> tuple[ModelConfig | None, str]:
    if model is None:
        return None, ""
    if not isinstance(model, str):
        return find_model(model), ""
    try:
        return find_model(model), model
    except ModelError:
        named = model_named(model)
        return named, model


def degrees(known: Known, axis: str = "tp") -> list[int]:
    """Degrees of an axis worth trying: the known one, else powers of two, then other small ones."""
    given = known.get(axis)
    if given:
        return [whole(axis, min(given, MAX_DEGREE))]
    return [2, 4, 8, 16, 32, 64, 3, 6, 5, 7, 12, 10, 24, 9, 128, 20, 14, 15, 18, 48, 40, 256, 512, 1024]
