"""RoPE scaling: how frequencies are stretched past the trained context, and how a config.json says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llamapar.errors import MAX_SIZE, ModelError, real, shown, whole

from .configfile import given


@dataclass(frozen=True)
class RopeScaling:
    """How RoPE frequencies are stretched past the context of the first training.

    Source of Llama 3.1's rule ("llama3"): llama-models, models/llama3/model.py `apply_scaling`,
    @a9c89c471f793423afd4cc3ca8671d6e56fe64cb.
    """

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_seq_len: int = 8192
    kind: str = "llama3"

    @classmethod
    def from_hf(cls, rope: Mapping[str, object]) -> RopeScaling | None:
        """The scaling in a config.json's "rope_scaling" or "rope_parameters"; None without one."""
        # Older configs of transformers say "type".
        kind = rope.get("rope_type", rope.get("type"))
        if kind in (None, "default"):
            return None
        if not isinstance(kind, str):
            raise ModelError(f"rope_type={shown(kind)}: a text is needed", field="rope_scaling")

        def number(key: str, default: float) -> float:
            return real(f"rope_scaling.{key}", given(rope, key, default), 0.0, 1e9, ModelError)

        first = given(rope, "original_max_position_embeddings", 8192)
        return cls(
            number("factor", 8.0),
            number("low_freq_factor", 1.0),
            number("high_freq_factor", 4.0),
            whole("rope_scaling.original_max_position_embeddings", first, 1, MAX_SIZE, ModelError),
            kind,
        )
