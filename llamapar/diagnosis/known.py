"""The known facts besides the text: the model or some of its numbers, degrees, the framework."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

from llamapar.describe.job import Job
from llamapar.describe.layout import AXES, PAPER_ORDER, Layout
from llamapar.describe.models import PRESETS, ModelConfig, public_models
from llamapar.describe.models import model as find_model
from llamapar.describe.options import OPTIONS
from llamapar.errors import LlamaparError, ModelError
from llamapar.frameworks import Framework
from llamapar.frameworks import framework as find_framework

MODEL_FIELDS = ("dim", "n_layers", "n_heads", "n_kv_heads", "ffn_dim", "vocab_size", "head_dim")

_ALIASES = """
world: gpus world_size | dim: hidden hidden_size | n_layers: layers num_hidden_layers
ffn_dim: ffn intermediate_size | n_heads: heads num_attention_heads | n_kv_heads: kv_heads num_key_value_heads
vocab_size: vocab | head_dim: | seq_len: seq | max_seq_len: |
zero: zero_stage | micro_batch: batch | global_batch: | quant_group: group_size
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


_COMMANDS = {
    "memory": ("tp", "cp", "pp", "dp", "seq_len", "micro_batch", "global_batch"),
    "check": ("tp", "cp", "pp", "dp", "gpus", "seq_len", "micro_batch", "global_batch"),
    "plan": ("gpus", "seq_len", "global_batch"),
}
"""A command → the facts that it takes."""

_DROPPED = re.compile(r"deepseek-r1-distill|meta|instruct|chat|hf|base|vl|omni|coder(?=.*qwen)|[^a-z0-9.]")


def _folded(name: str) -> str:
    return _DROPPED.sub("", name.lower())


@cache
def _by_folded() -> list[tuple[str, ModelConfig]]:
    """Names sorted longest first, so that llama3.1-70b is not read as llama3.1-7."""
    rows = [(_folded(name), config) for name, config in public_models().items()]
    return sorted(rows, key=lambda row: -len(row[0]))


def model_named(text: str) -> ModelConfig | None:
    """The public model that a free text names, such as "Meta-Llama-3-70B-Instruct (MP8)"; or None."""
    folded = _folded(text[:200])
    for name, config in _by_folded():
        at = folded.find(name)
        if at >= 0 and not folded[at + len(name) : at + len(name) + 1].isdigit():
            return config
    return None


@cache
def _shapes() -> tuple[ModelConfig, ...]:
    """The public models, each shape once."""
    shapes = {tuple(getattr(m, name) for name in MODEL_FIELDS): m for m in reversed(public_models().values())}
    return tuple(reversed(shapes.values()))


_FIRST = re.compile(r"(\d{1,12})(?!\d)")
_CHANGE = re.compile(r"(\w{1,12}) ?(?:->|→|vs\.?) ?(\d{1,12})")


def on_a_rank(width: int, degree: int) -> tuple[int, int, int]:
    """The possible shards of a width: rounded up, the remainder on the last rank, or rounded down on each."""
    most = -(-width // degree)
    return most, width - (degree - 1) * most, width // degree


@dataclass(frozen=True)
class Known:
    """Facts besides the text; each may be missing.

    numbers: facts by name. changes: facts that differ between two sides ("1->2"). name: the model's name, if
    given in words.
    """

    model: ModelConfig | None = None
    numbers: Mapping[str, int] = field(default_factory=dict)
    changes: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    framework: Framework | None = None
    layout: Layout | None = None
    name: str = ""

    @classmethod
    def of(cls, model: Any, layout: Any, framework: Any, context: Mapping[str, Any]) -> Known:
        """The facts that a person gives; an unknown free-text name of a model is kept as a name.

        Raises ModelError or LayoutError for a broken file, dict, number or framework's name.
        """
        numbers: dict[str, int] = {}
        changes: dict[str, tuple[str, str]] = {}
        if isinstance(layout, Layout):
            given: dict[str, Any] = {axis: getattr(layout, axis) for axis in AXES}
            given |= {"world": layout.world, "virtual_stages": layout.virtual_stages}
        else:
            given = dict(layout or {})
            layout = None
        for name, value in {**given, **context}.items():
            fact = FACTS.get(name)
            if fact is None or value is None:
                continue
            if isinstance(value, str):
                changed = _CHANGE.search(value[:60])
                first = _FIRST.search(value[:60])
                if changed and changed[1] != changed[2]:
                    changes[fact] = (changed.group(1), changed.group(2))
                elif first and value.strip()[:1].isdigit() and " or " not in value:
                    numbers[fact] = int(first.group(1))
            # True is an int in Python, but it is no degree and no size.
            elif isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40:
                numbers[fact] = value
        judge = None
        if framework is not None:
            judge = find_framework(framework)
        config, name = _model(model)
        return cls(config, numbers, changes, judge, layout, name)

    @property
    def unknown_model(self) -> bool:
        """Whether a model was named that is not known here."""
        return bool(self.name) and self.model is None

    def also(self, facts: Mapping[str, int]) -> Known:
        """These facts, completed by those that the text states; given facts win."""
        return replace(self, numbers={**facts, **self.numbers})

    def get(self, fact: str) -> int | None:
        """A number that was given, or that the given model has."""
        if fact in self.numbers:
            return self.numbers[fact]
        if self.model is not None and fact in MODEL_FIELDS:
            return int(getattr(self.model, fact))
        if fact == "head_dim" and self.get("dim") and self.get("n_heads"):
            return (self.get("dim") or 0) // (self.get("n_heads") or 1) or None
        if fact == "world" and self.numbers.keys() >= {*AXES}:
            return math.prod(self.numbers[axis] for axis in AXES)
        if fact in AXES and self.numbers.get("world") == 1 and not self.changes:
            return 1  # With one GPU, every axis is 1.
        return None

    def fits(self, **facts: int) -> bool:
        """Whether no known fact contradicts `facts`."""
        return all((known := self.get(name)) is None or known == value for name, value in facts.items())

    @cached_property
    def models(self) -> tuple[ModelConfig, ...]:
        """The model, or else every public model that the known numbers allow, each shape once."""
        if self.model is not None:
            return (self.model,)
        asked = {name: number for name in MODEL_FIELDS if (number := self.get(name)) is not None}
        fit = (m for m in _shapes() if all(getattr(m, name) == n for name, n in asked.items()))
        return tuple(fit)

    def alone(self, *axes: str) -> bool:
        """Whether every one of `axes` is known to be 1."""
        single = self.get("world") == 1 and not self.changes
        return single or (bool(axes) and all(self.get(axis) == 1 for axis in axes))

    def command(self, name: str) -> str:
        """A `llamapar` command with the known facts filled in: "check", "memory" or "plan"."""
        model = "MODEL"
        if self.model and PRESETS.get(self.model.name) == self.model:
            model = self.model.name
        words = ["llamapar", name, "--model", model]
        numbers = {ARGUMENTS[fact]: number for fact, number in self.numbers.items()}
        for fact in _COMMANDS[name]:
            if fact in numbers:
                words += OPTIONS[fact].words(numbers[fact])
        if name == "plan" and "gpus" not in numbers:
            words += ["--gpus", "GPUS"]
        return shlex.join(words)

    def whole_layout(self) -> Layout | None:
        """The layout, if the facts decide every degree and do not contradict each other.

        Its order of ranks is the framework's, else the paper's. Raises LayoutError for a degree out of range.
        """
        degrees = {axis: n for axis in AXES if (n := self.get(axis))}
        missing = [axis for axis in AXES if axis not in degrees]
        world = self.get("world") or 0
        product = math.prod(degrees.values())
        if world and (world == product or (len(missing) == 1 and world % product == 0)):
            degrees |= dict.fromkeys(missing, world // product)
        if self.layout is not None or len(degrees) < len(AXES) or math.prod(degrees.values()) != world:
            return self.layout
        of_ranks = {"order": (self.framework and self.framework.order) or PAPER_ORDER}
        return Layout.of({**degrees, **of_ranks, "zero": self.get("zero") or 1})

    def job(self) -> Job | None:
        """The job that the facts describe, if a model and a degree are known."""
        degrees = {a: self.numbers[a] for a in AXES if a in self.numbers}
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
            kv_heads = self.get("n_kv_heads") or 1  # A run may copy those of the model.
            return Job.of(self.model.replace(n_kv_heads=kv_heads), self.layout or degrees, **known)
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


PLAUSIBLE = (2, 4, 8, 16, 32, 64, 3, 6, 5, 7, 12, 10, 24, 9, 128, 20, 14, 15, 18, 48, 40, 256, 512, 1024)
"""Degrees of an axis that nobody gave: powers of two, then other small numbers."""
