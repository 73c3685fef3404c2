"""How a model lies in a checkpoint: each tensor's name, shard and cut.

Every boundary comes from `place.Cut`. Two families of names are supported: Meta's (also torchtitan's), whose
Q and K rows interleave the two halves of a rotary pair, and Hugging Face's, which puts one half after the
other (huggingface/transformers, convert_llama_weights_to_hf.py, `permute`).
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from llamapar.describe.layout import Layout
from llamapar.describe.models import ModelConfig, Parameter
from llamapar.describe.rope import RopeScaling
from llamapar.describe.splits import LAYER_SPLITS, NO_PADDING, Padding
from llamapar.errors import CheckpointError, LayoutError, one_of
from llamapar.place.cut import Cut
from llamapar.records.tables import Plain

HEAD = {"hf": "lm_head.weight", "meta": "output.weight"}
"""Families of names, each with its name of the output head."""

_OPTIONS = ("kv_replication", "layer_split", "naming", "embedding_columns")
"""Fields of a Sharding that a manifest holds as they are."""

_ROTARY = ("wq", "bq", "wk", "bk", "q_norm", "k_norm")
_WRAPPERS = ("module.", "_orig_mod.", "model.", "_fsdp_wrapped_module.")
COMPUTED = ("rope.freqs", "freqs_cis", "rotary_emb.inv_freq")
"""Ends of the names of buffers that a model computes; files may hold them."""


@dataclass(frozen=True, kw_only=True)
class Sharding(Cut):
    """One way to store `model` in files: one shard for each (stage, tp rank).

    naming: "hf" or "meta", the family of names.
    """

    naming: str = "hf"

    @property
    def tp(self) -> int:
        return self.layout.tp

    @property
    def pp(self) -> int:
        return self.layout.pp

    @cached_property
    def tensors(self) -> list[dict[str, Parameter]]:
        """Stored name → parameter, for each stage. A tied head is the embedding under a second name."""
        found: list[dict[str, Parameter]] = [{} for _ in range(self.pp)]
        for parameter in self.model.parameters():
            name = parameter.hf_name
            if self.naming == "meta":
                name = parameter.name
            found[self.stage(parameter)][name] = parameter
        # Hugging Face's file of a whole tied model stores the tensor once; a last stage of its own needs
        # it too.
        if self.model.tied and (self.naming == "meta" or self.pp > 1):
            embedding = next(self.model.parameters())
            found[-1][HEAD[self.naming]] = embedding
        return found

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Each (stage, tp rank)."""
        return ((stage, rank) for stage in range(self.pp) for rank in range(self.tp))

    def file_name(self, at: tuple[int, int]) -> str:
        """The file of a (stage, tp rank); a whole model in safetensors may have several."""
        stage, rank = at
        if self.naming == "meta":
            return f"consolidated.{rank:02d}.pth"
        return f"tp{rank:02d}-pp{stage:02d}.safetensors"

    def __str__(self) -> str:
        parts = [f"tp={self.tp}", f"pp={self.pp}"] if self.pp > 1 else [f"tp={self.tp}"]
        if self.tp > 1 or self.padding != NO_PADDING:
            parts += [str(self.padding)]
        if self.heads.replicas > 1:
            parts += [f"KV heads in {self.heads.replicas} copies"]
        if self.embedding_columns:
            parts += ["embedding cut by columns"]
        if self.tp * self.pp > 1 or len(parts) > 1:
            return ", ".join(parts)
        return "whole"

    def as_dict(self) -> Plain:
        """Plain values for the manifest; `from_dict` reads them back."""
        options = {name: getattr(self, name) for name in ("tp", "pp", *_OPTIONS)}
        return {"model": asdict(self.model), "padding": asdict(self.padding), **options}

    @classmethod
    def from_dict(cls, raw: Plain, where: str) -> Sharding:
        """The sharding that `as_dict` wrote. Raises CheckpointError for anything else."""
        try:
            dims = dict(raw["model"])
            scaling = dims.pop("rope_scaling")
            model = ModelConfig(**dims, rope_scaling=RopeScaling(**scaling) if scaling else None)
            layout = Layout(tp=raw["tp"], pp=raw["pp"])
            padding = Padding(**raw["padding"])
            one_of("layer_split", raw["layer_split"], LAYER_SPLITS)
            one_of("naming", raw["naming"], HEAD)
            made = cls(model, layout, padding=padding, **{name: raw[name] for name in _OPTIONS})
            _ = made.tensors  # The layer split may refuse these numbers.
            return made
        except (LayoutError, TypeError, ValueError, KeyError) as problem:
            raise CheckpointError(
                f"{where} describes no sharding: {str(problem).splitlines()[0][:200]}"
            ) from None


def unwrapped(name: str, known: Container[str]) -> str | None:
    """A stored name without wrappers' prefixes: as many are removed as it takes to reach a known name."""
    while name not in known:
        wrapper = next((p for p in _WRAPPERS if name.startswith(p)), None)
        if wrapper is None:
            return None
        name = name.removeprefix(wrapper)
    return name


def reordered(model: ModelConfig, parameter: Parameter, source: str, target: str) -> NDArray[np.int64] | None:
    """Row index that converts wq or wk (or their biases or norms) from one family's order to the other's.

    Row (head, half j, i) of Hugging Face's is row (head, i, j) of Meta's. None if no row moves.
    """
    if parameter.key not in _ROTARY or source == target:
        return None
    half = model.head_dim // 2
    # To Hugging Face's order: [head, half, 2] becomes [head, 2, half], which puts the pairs' first
    # members in front.
    halves = (half, 2) if target == "hf" else (2, half)
    return np.arange(parameter.shape[0]).reshape(-1, *halves).swapaxes(1, 2).reshape(-1)
