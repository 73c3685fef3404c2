"""How a model lies in a checkpoint: which tensor, under which name, in which shard, cut where.

Every boundary comes from the placement table and the maps. Two families of names are known: Meta's (also
torchtitan's), whose Q and K rows interleave the two halves of a rotary pair, and Hugging Face's, which has
one half after the other (huggingface/transformers, convert_llama_weights_to_hf.py, `permute`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llamapar.describe.layout import Layout
from llamapar.describe.models import ModelConfig, Parameter
from llamapar.describe.placement import PARAMETERS, Shard
from llamapar.describe.rope import RopeScaling
from llamapar.describe.splits import LAYER_SPLITS, NO_PADDING, Padding
from llamapar.errors import CheckpointError, LayoutError, one_of, shown
from llamapar.place.cut import place
from llamapar.place.head_map import HeadMap
from llamapar.place.held import held
from llamapar.place.vocab_map import VocabMap

HEAD = {"hf": "lm_head.weight", "meta": "output.weight"}
"""Families of names, each with its name of the output head."""

_ROTARY = ("wq", "wk", "bq", "bk")
_WRAPPERS = ("module.", "_orig_mod.", "model.", "_fsdp_wrapped_module.")
_COMPUTED = ("rope.freqs", "freqs_cis", "rotary_emb.inv_freq")


@dataclass(frozen=True)
class Sharding:
    """One way for `model` to lie in files: a shard for every (stage, tp rank).

    kv_replication: past n_kv_heads, each KV head is stored by tp / n_kv_heads ranks, side by side.
    embedding_columns: the embedding is cut by columns, as Meta's files of Llama 1 and 2 have it.
    """

    model: ModelConfig
    tp: int = 1
    pp: int = 1
    padding: Padding = NO_PADDING
    kv_replication: bool = False
    layer_split: str = "balanced ends"
    naming: str = "hf"
    embedding_columns: bool = False

    @cached_property
    def heads(self) -> HeadMap:
        return HeadMap(self.model, self.tp, self.kv_replication)

    @cached_property
    def vocab(self) -> VocabMap:
        return VocabMap(self.model, self.tp, self.padding)

    @cached_property
    def stages(self) -> list[dict[str, Parameter]]:
        """Stored name → parameter, for every stage. A tied head is the embedding under a second name."""
        counts = LAYER_SPLITS[self.layer_split](self.model.n_layers, self.pp)
        found: list[dict[str, Parameter]] = [{} for _ in range(self.pp)]
        for placed in place(self.model, Layout(tp=self.tp, pp=self.pp), counts):
            found[placed.stage][named(placed.parameter, self.naming)] = placed.parameter
        if self.model.tied and (self.naming == "meta" or self.pp > 1):
            embedding = next(self.model.parameters())
            found[-1][HEAD[self.naming]] = embedding
        return found

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Every (stage, tp rank)."""
        return ((stage, rank) for stage in range(self.pp) for rank in range(self.tp))

    def cut(self, parameter: Parameter, rank: int) -> tuple[int, range] | None:
        """(dim, the rows or columns of it) that TP rank `rank` stores; None where it stores all.

        Of a vocabulary they are rows of the padded one.
        """
        placed = PARAMETERS[parameter.key]
        if not isinstance(placed, Shard):
            return None
        if self.embedding_columns and parameter.key == "tok_embeddings":
            placed = Shard(1, "embedding column")
        return placed.dim, held(placed, parameter.shape[placed.dim], rank, self.heads, self.vocab)

    def shape(self, parameter: Parameter, rank: int) -> tuple[int, ...]:
        """Shape of the parameter in the shards of TP rank `rank`."""
        shape = list(parameter.shape)
        if found := self.cut(parameter, rank):
            shape[found[0]] = len(found[1])
        return tuple(shape)

    def __str__(self) -> str:
        parts = [f"tp={self.tp}", f"pp={self.pp}"] if self.pp > 1 else [f"tp={self.tp}"]
        parts += [str(self.padding)] if self.tp > 1 or self.padding != NO_PADDING else []
        parts += [f"KV heads in {self.heads.replicas} copies"] if self.heads.replicas > 1 else []
        parts += ["embedding cut by columns"] if self.embedding_columns else []
        return ", ".join(parts) if self.tp * self.pp > 1 or len(parts) > 1 else "whole"

    def as_dict(self) -> dict[str, Any]:
        """Plain values for the manifest; `from_dict` reads them back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Any, where: str) -> Sharding:
        """Raises CheckpointError for anything but what `as_dict` writes."""
        try:
            values = dict(raw)
            dims = dict(values.pop("model"))
            scaling = dims.pop("rope_scaling")
            model = ModelConfig(**dims, rope_scaling=RopeScaling(**scaling) if scaling else None)
            layout = Layout(tp=values["tp"], pp=values["pp"])
            one_of("layer_split", values["layer_split"], LAYER_SPLITS)
            one_of("naming", values["naming"], HEAD)
            values |= {"tp": layout.tp, "pp": layout.pp, "padding": Padding(**values["padding"])}
            made = cls(model, **values)
            _ = made.stages  # the layer split may refuse
            return made
        except (LayoutError, TypeError, ValueError, KeyError) as problem:
            raise CheckpointError(
                f"{where} describes no sharding: {str(problem).splitlines()[0][:200]}"
            ) from None


def named(parameter: Parameter, naming: str) -> str:
    """A parameter's name in a family of names."""
    return parameter.name if naming == "meta" else parameter.hf_name


def plain(name: str, known: Any) -> str | None:
    """A stored name without the prefixes that wrappers put before it; None for a computed buffer.

    Raises CheckpointError for a name that `known` has not.
    """
    short = name
    while short not in known:
        prefix = next((p for p in _WRAPPERS if short.startswith(p)), None)
        if prefix is None:
            if short.endswith(_COMPUTED):
                return None
            raise CheckpointError(f"{shown(name, 120)} is no tensor of this model")
        short = short.removeprefix(prefix)
    return short


def reordered(model: ModelConfig, key: str, source: str, target: str) -> NDArray[np.int64] | None:
    """Row index that takes wq or wk (or their biases) from one family's order to the other's.

    Row (head, half j, i) of Hugging Face's is row (head, i, j) of Meta's. None where nothing moves.
    """
    if key not in _ROTARY or source == target:
        return None
    n = model.q_dim if key in ("wq", "bq") else model.kv_dim
    half = model.head_dim // 2
    halves = (half, 2) if target == "hf" else (2, half)
    return np.arange(n).reshape(-1, *halves).swapaxes(1, 2).reshape(-1)
