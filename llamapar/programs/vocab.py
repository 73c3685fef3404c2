"""The two ends of the model over TP by vocabulary rows: the embedding, and the output with its loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from llamapar.spmd import collectives
from llamapar.spmd.setting import Setting, at_least_float32

from .parts import column_input, row_output, row_range


def embedding(mesh: DeviceMesh, setting: Setting, tokens: Tensor, tok_embeddings: Tensor) -> Tensor:
    """tokens [batch, seq] → [batch, seq(/tp), dim]: own rows looked up, zeros for the others', summed."""
    first, past = row_range(mesh, setting, tokens.device)
    absent = (tokens < first) | (tokens >= past)
    local = (tokens - first).masked_fill(absent, 0)
    rows = F.embedding(local, tok_embeddings)  # [batch, seq, dim]
    partial = rows.masked_fill(absent[..., None], 0)  # zeros for the tokens of other ranks
    return row_output(partial, mesh, setting)


def embedding_reference(setting: Setting, tokens: Tensor, tok_embeddings: Tensor) -> Tensor:
    """The same on one device."""
    return F.embedding(tokens, tok_embeddings)


def loss(mesh: DeviceMesh, setting: Setting, x: Tensor, output: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """x [batch, seq(/tp), dim], targets [batch, seq] → "loss" [batch]: each sequence's mean cross-entropy."""
    x = column_input(x, mesh, setting)  # [batch, seq, dim]
    logits = x @ output.mT  # [batch, seq, vocab/tp]
    losses = cross_entropy(logits, targets, mesh, setting)
    return {"loss": losses}


def cross_entropy(logits: Tensor, targets: Tensor, mesh: DeviceMesh, setting: Setting) -> Tensor:
    """[batch]: log of the sum of exponentials minus the target's logit, no rank seeing all columns."""
    # The exponentials of a whole vocabulary are summed, for which bf16 has too few bits.
    logits = logits.to(at_least_float32(logits.dtype))
    first, past = row_range(mesh, setting, logits.device)
    columns = first + torch.arange(logits.shape[-1], device=logits.device)
    if not setting.pads_in_softmax:
        logits = logits.masked_fill(columns >= past, -torch.inf)
    top = collectives.maximum(logits.amax(-1), mesh, "tp")  # [batch, seq]
    # Every rank subtracts the same maximum, or their exponentials would have different scales.
    total = collectives.all_reduce((logits - top[..., None]).exp().sum(-1), mesh, "tp")
    absent = (targets < first) | (targets >= past)
    # A target of another rank reads column 0 and is set to 0 before the sum: one rank alone adds its
    # logit.
    own = logits.gather(-1, (targets - first).masked_fill(absent, 0)[..., None])[..., 0]
    chosen = collectives.all_reduce(own.masked_fill(absent, 0), mesh, "tp")
    lost = total.log() + top - chosen  # [batch, seq]
    # A CP rank has the sum over its own tokens; divided by the length of the whole sequence, the sum over
    # CP is the mean.
    return collectives.all_reduce(lost.sum(1), mesh, "cp") / setting.seq_len


def loss_reference(setting: Setting, x: Tensor, output: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """The same on one device, over the real vocabulary, by torch's cross_entropy."""
    logits = x @ output.mT
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return {"loss": F.cross_entropy(wide.transpose(1, 2), targets, reduction="none").mean(1)}
