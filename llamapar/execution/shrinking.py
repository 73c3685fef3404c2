"""A model and a layout small enough to run here, which keep their cuts and their faults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

from llamapar.count.wire import WHOLE
from llamapar.describe.arguments import checked_options
from llamapar.describe.keywords import ShrinkKeywords
from llamapar.describe.layout import Layout, LayoutLike, divisors
from llamapar.describe.models import ModelConfig, ModelLike
from llamapar.describe.models import model as find_model
from llamapar.describe.splits import Padding
from llamapar.frameworks import padding_rule

MAX_RANKS = 64
"""Most ranks that an engine runs on one machine."""


@dataclass(frozen=True)
class Shrunk:
    """The smaller model and layout, and the changes in words."""

    model: ModelConfig
    layout: Layout
    notes: tuple[str, ...]


@checked_options
def shrink(
    model: ModelLike,
    layout: LayoutLike | None = None,
    *,
    ranks: int = MAX_RANKS,
    layers: int = 2,
    **options: Unpack[ShrinkKeywords],
) -> Shrunk:
    """The same heads, KV heads and TP degree, with narrow heads and few rows, on at most `ranks` ranks.

    model, layout, padding: as in `check`. layers: upper bound of transformer layers. program: the one to run.
    Sizes that do not divide still do not: FFN columns and vocabulary rows keep their remainder over tp and
    their pad rows. dp, to two shards and two copies at most, then cp, then pp shrink to divisors; two layers
    a stage are kept. pp becomes 1 for a program that is part of a stage, because such a run covers the ranks
    of one stage.
    """
    model = find_model(model)
    layout = Layout.of(layout)
    tp = layout.tp
    most = max(1, ranks // layout.tp)
    pp = 1
    if options["program"] in WHOLE:
        pp = max(d for d in divisors(layout.pp) if d <= most)
    virtual_stages = 1
    if pp > 1:
        virtual_stages = layout.virtual_stages
    if pp > 1:
        layers = max(layers, 2 * pp * max(2, virtual_stages))
    small = _small(model, tp, padding_rule(options["padding"]), layers)
    cp = max(d for d in divisors(layout.cp) if d <= most // pp)
    room = most // pp // cp
    shards = max(d for d in divisors(layout.dp_shard) if d <= min(2, room))
    copies = max(d for d in divisors(layout.dp_replicate) if d <= min(2, room // shards))
    ways = {"dp": shards * copies, "dp_replicate": copies}
    fitted = layout.replace(**{"pp": pp, "virtual_stages": virtual_stages, "cp": cp, **ways})
    old = {"pp": layout.pp, "cp": layout.cp, "dp": layout.dp}
    notes = [
        f"{axis}={n} runs as {getattr(fitted, axis)}" for axis, n in old.items() if n != getattr(fitted, axis)
    ]
    if small != model:
        notes.append(
            f"{model.name} with head_dim {small.head_dim}, dim {small.dim}, ffn_dim {small.ffn_dim}, "
            f"{small.vocab_size} tokens and {small.n_layers} layers"
        )
    return Shrunk(small, fitted, tuple(notes))


def _small(model: ModelConfig, tp: int, padding: Padding, layers: int) -> ModelConfig:
    head_dim = min(model.head_dim, 8)
    dim = head_dim * model.n_heads
    ffn = min(model.ffn_dim, tp * max(1, 2 * dim // tp) + model.ffn_dim % tp)
    unit = padding.unit(tp)
    pads = padding.padded(model.vocab_size, tp) - model.vocab_size
    if unit > 1:
        vocab = unit * max(1, -(-1024 // unit)) - pads
    else:
        vocab = tp * max(1, 1024 // tp) + model.vocab_size % tp
    if vocab >= model.vocab_size:
        vocab = model.vocab_size
    if (dim, ffn, vocab) == (model.dim, model.ffn_dim, model.vocab_size) and model.n_layers <= layers:
        return model
    return model.replace(
        dim=dim,
        head_dim=head_dim,
        ffn_dim=ffn,
        vocab_size=vocab,
        n_layers=min(layers, model.n_layers),
        name=f"small {model.name}",
    )
