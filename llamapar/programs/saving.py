"""Saving an embedding from padded shards: gather, then un-pad, and the other order, which loses rows.

The other order was hpcaitech/ColossalAI #6108, mended by #6168. There as here an attribute of a tensor says
that it is a shard (`dist_layout`, colossalai/tensor/d_tensor/api.py @4f9953b); what is cut out of it is a
tensor of its own without that attribute, and what is no shard is not gathered.
"""

from __future__ import annotations

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from llamapar.spmd import compat
from llamapar.spmd.setting import Setting

MARK = "dist_layout"


def gather_then_unpad(mesh: DeviceMesh, setting: Setting, tok_embeddings: Tensor) -> dict[str, Tensor]:
    """tok_embeddings [padded/tp, dim] → "saved" [vocab_size, dim], on every rank."""
    shard = marked(tok_embeddings)
    whole = gathered(shard, mesh)
    return {"saved": unpadded(whole, setting)}


def unpad_then_gather(mesh: DeviceMesh, setting: Setting, tok_embeddings: Tensor) -> dict[str, Tensor]:
    """The wrong order: where rows are padded, "saved" is the rank's own shard."""
    shard = marked(tok_embeddings)
    short = unpadded(shard, setting)
    return {"saved": gathered(short, mesh)}


def marked(shard: Tensor) -> Tensor:
    """The tensor with the mark of a shard."""
    shard = shard.view_as(shard)
    setattr(shard, MARK, "tp, dim 0")
    return shard


def gathered(t: Tensor, mesh: DeviceMesh) -> Tensor:
    """All ranks' rows where `t` is marked as a shard; else `t`."""
    return compat.all_gather(t, mesh, "tp", 0) if hasattr(t, MARK) else t


def unpadded(t: Tensor, setting: Setting) -> Tensor:
    """`t` without the rows from vocab_size on, where the vocabulary is padded."""
    if setting.vocab.pad_rows:
        return t[: setting.model.vocab_size].clone()
    return t
