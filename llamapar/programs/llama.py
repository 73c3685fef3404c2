"""A transformer block, a pipeline stage and a whole small Llama, put together from the other programs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from llamapar.place.stage_map import Stage
from llamapar.spmd.setting import Setting, short

from . import plain
from .attention import WEIGHTS, attention, attention_reference
from .mlp import mlp, mlp_reference
from .parts import column_input, rms_norm
from .vocab import cross_entropy, embedding, loss_reference


def block(
    mesh: DeviceMesh,
    setting: Setting,
    x: Tensor,
    positions: Tensor,
    layer: Mapping[str, Tensor],
) -> Tensor:
    """x [batch, seq(/tp), dim] → the same shape: norm, attention, norm, MLP, each added to its input.

    layer: the parameters of one layer by their short names, "wq", "attention_norm".
    """
    eps = setting.model.norm_eps
    normed = rms_norm(x, layer["attention_norm"], eps)
    x = x + attention(mesh, setting, normed, positions, **of_attention(layer))
    normed = rms_norm(x, layer["ffn_norm"], eps)
    return x + mlp(mesh, setting, normed, layer["w1"], layer["w2"], layer["w3"])


def block_reference(setting: Setting, x: Tensor, positions: Tensor, layer: Mapping[str, Tensor]) -> Tensor:
    """The same on one device."""
    eps = setting.model.norm_eps
    normed = plain.norm(x, layer["attention_norm"], eps)
    x = x + attention_reference(setting, normed, positions, **of_attention(layer))
    normed = plain.norm(x, layer["ffn_norm"], eps)
    return x + mlp_reference(setting, normed, layer["w1"], layer["w2"], layer["w3"])


def of_attention(layer: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters of a layer that attention takes."""
    return {name: layer[name] for name in layer if name in WEIGHTS}


def layer_weights(weights: Mapping[str, Tensor], layer: int) -> dict[str, Tensor]:
    """The parameters of one layer by their short names."""
    start = f"layers.{layer}."
    return {short(name): weights[name] for name in weights if name.startswith(start)}


def llama(
    mesh: DeviceMesh,
    setting: Setting,
    tokens: Tensor,
    positions: Tensor,
    targets: Tensor,
    weights: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """tokens [batch, seq] → {"loss": [batch], "logits": [batch, seq, vocab/tp]}: the whole model."""
    # The whole model is one stage with both ends, so the layers are written once for both forms.
    whole = Stage(0, 0, range(setting.model.n_layers), embedding=True, head=True)
    made = llama_stage(mesh, setting, whole, tokens, positions, targets, weights)
    assert not isinstance(made, Tensor)
    return made


def llama_stage(
    mesh: DeviceMesh,
    setting: Setting,
    stage: Stage,
    x: Tensor,
    positions: Tensor,
    targets: Tensor | None,
    weights: Mapping[str, Tensor],
) -> Tensor | dict[str, Tensor]:
    """One pipeline stage: what the stage before made → what the next one takes, or loss and logits.

    x: [batch, seq(/tp), dim], but on the stage with the embedding the tokens [batch, seq]. targets: for the
    stage with the head. weights: of this stage.
    """
    if stage.embedding:
        x = embedding(mesh, setting, x, weights["tok_embeddings.weight"])
    for layer in stage.layers:
        x = block(mesh, setting, x, positions, layer_weights(weights, layer))
    if not stage.head:
        return x
    assert targets is not None
    x = column_input(rms_norm(x, weights["norm.weight"], setting.model.norm_eps), mesh, setting)
    head = weights["tok_embeddings.weight" if setting.model.tied else "output.weight"]
    logits = x @ head.mT  # [batch, seq, vocab/tp]
    # Logits are shown and compared, but the gradient comes from the loss alone.
    return {"loss": cross_entropy(logits, targets, mesh, setting), "logits": logits.detach()}


def llama_reference(
    setting: Setting, tokens: Tensor, positions: Tensor, targets: Tensor, weights: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The same on one device."""
    x = torch.nn.functional.embedding(tokens, weights["tok_embeddings.weight"])
    for layer in range(setting.model.n_layers):
        x = block_reference(setting, x, positions, layer_weights(weights, layer))
    x = plain.norm(x, weights["norm.weight"], setting.model.norm_eps)
    head = weights["tok_embeddings.weight" if setting.model.tied else "output.weight"]
    return loss_reference(setting, x, head, targets) | {"logits": (x @ head.mT).detach()}
