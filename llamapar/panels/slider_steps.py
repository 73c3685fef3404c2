"""The steps of the Explorer's sliders: degrees in powers of two, and dims that keep a model whole. Pure."""

from __future__ import annotations

from llamapar.describe.layout import AXES, divisors
from llamapar.describe.models import ModelConfig, public_models
from llamapar.describe.options import Values
from llamapar.figures import View

from .holding import is_count

POWERS = [2**k for k in range(8)]
"""Degrees of TP, CP and PP; DP goes further."""

SIZES = (32, 64, 96, 128, 160, 192, 256)
"""Sizes of a head that models have."""

HEAD = range(16, 513, 2)
"""Sizes of a head that a step may lead to: even ones, because RoPE turns pairs."""

LAYERS = (1, 2, *range(4, 161, 4))


def steps_of(values: Values, base: ModelConfig, view: View | None = None) -> dict[str, list[int]]:
    """The steps of each slider, in order; where a dim stands now is one of them.

    base: the model whose dims stand in for a number that is none. view: the picture, with its cursor.
    """
    dims = {}
    for name in ("dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size"):
        value = values[name]
        dims[name] = value if is_count(value, name) else getattr(base, name)
    dim = dims["dim"]
    heads = dims["n_heads"]
    kv_heads = dims["n_kv_heads"]
    found: dict[str, list[int]] = {
        "dim": [heads * size for size in SIZES],
        "n_layers": [*LAYERS, base.n_layers],
        "n_heads": [n for n in divisors(dim) if n % kv_heads == 0 and dim // n in HEAD],
        "n_kv_heads": divisors(heads),
        "vocab_size": [*(model.vocab_size for model in public_models().values()), base.vocab_size],
    }
    steps = {name: sorted({*found[name], now}) for name, now in dims.items()}
    powers = dict.fromkeys(AXES, POWERS) | {"dp": [*POWERS, *(2**k for k in range(8, 12))]}
    return steps | powers | {"step": [*range(_most_steps(values, view) + 1)]}


def _most_steps(values: Values, view: View | None) -> int:
    """How far the picture's cursor goes: through a layer, or around a ring."""
    if values["tab"] == "sequence" and values["cp_method"] == "ring" and is_count(values["cp"], "cp"):
        return int(values["cp"])
    steps: int = view.spec.get("layout", {}).get("meta", {}).get("steps", 0) if view else 0
    return steps
