"""fairscale_load.json: what fairscale's layers hold on real ranks after loading a reshard of ours.

    pip install torch==2.13.0 fairscale==0.4.13 numpy (--no-deps for fairscale)
    python oracles/make_fairscale_load.py

Each case is a small model, resharded by llamapar to `tp` ranks under `padding`. As many gloo processes build
fairscale's VocabParallelEmbedding, ColumnParallelLinear and RowParallelLinear, load their own
consolidated.NN.pth with load_state_dict(strict=True), and run every layer on unit vectors: gathered, the
outputs must be the whole unsharded tensor, pads zero, KV heads repeated. `ranks`: crc32 of the bytes of every
parameter that a rank's modules then hold. The values are `counted` of tests/weights.py.
"""

import json
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from fairscale.nn.model_parallel import initialize_model_parallel
from fairscale.nn.model_parallel.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
)
from torch import nn

from fixture import write

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from llamapar import checkpoint
from llamapar.frameworks import padding_rule
from weights import counted, raw, save_meta, tiny

CASES: list[dict[str, Any]] = [
    {"model": {}, "tp": 2, "padding": "megatron"},
    {"model": {}, "tp": 4, "padding": "colossalai"},
    {"model": {"n_kv_heads": 2, "ffn_dim": 24}, "tp": 8, "padding": "64*tp"},
]


class Layers(nn.Module):
    """The parameters of the model with Meta's names, in fairscale's layers."""

    def __init__(self, model: Any, tp: int, vocab: int):
        super().__init__()
        copies = max(1, tp // model.n_kv_heads)
        self.whole: dict[str, torch.Tensor] = {}
        for p in model.parameters():
            out, into = [*p.shape, 0][:2]
            keep = {"bias": False, "init_method": nn.init.zeros_}
            made: nn.Module
            if p.key == "tok_embeddings":
                made = VocabParallelEmbedding(vocab, into, init_method=nn.init.zeros_)
            elif p.key == "norm":
                made = nn.LayerNorm(out, elementwise_affine=True, bias=False)
            elif p.key in ("wo", "w2"):
                made = RowParallelLinear(into, out, input_is_parallel=False, **keep)
            else:
                size = {"wk": out * copies, "wv": out * copies, "output": vocab}.get(p.key, out)
                made = ColumnParallelLinear(into, size, gather_output=True, **keep)
            at: nn.Module = self
            *path, name, _ = p.name.split(".")
            for step in path:
                if not hasattr(at, step):
                    at.add_module(step, nn.Module())
                at = getattr(at, step)
            at.add_module(name, made)


def seen_whole(layer: nn.Module) -> torch.Tensor:
    """The whole weight, as the layer's own forward shows it."""
    if isinstance(layer, VocabParallelEmbedding):
        return layer(torch.arange(layer.num_embeddings))
    if isinstance(layer, nn.LayerNorm):
        return layer.weight
    return layer(torch.eye(layer.in_features)).T


def rank_main(rank: int, tp: int, folder: str, case: dict[str, Any], model: Any, result: Any) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=tp)
    initialize_model_parallel(tp)
    vocab = padding_rule(case["padding"]).padded(model.vocab_size, tp)
    layers = Layers(model, tp, vocab)
    held = torch.load(f"{folder}/cut/consolidated.{rank:02d}.pth", weights_only=True)
    layers.load_state_dict(held, strict=True)
    for p in model.parameters():
        want = counted(model)[p.hf_name]
        if p.key in ("wk", "wv"):
            heads = want.view(model.n_kv_heads, -1, want.shape[1])
            want = heads.repeat_interleave(max(1, tp // model.n_kv_heads), 0).flatten(0, 1)
        if p.key in ("tok_embeddings", "output"):
            want = torch.cat([want, torch.zeros(vocab - len(want), want.shape[1])])
        with torch.no_grad():
            assert torch.equal(seen_whole(layers.get_submodule(p.name.removesuffix(".weight"))), want), p.name
    result[rank] = {name: zlib.crc32(raw(tensor)) for name, tensor in layers.state_dict().items()}
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    cases = []
    for case in CASES:
        model = tiny(**case["model"])
        with tempfile.TemporaryDirectory() as folder:
            names = {p.name: counted(model)[p.hf_name] for p in model.parameters()}
            save_meta(Path(folder) / "whole", model, [names])
            first = Path(folder) / "first"
            checkpoint.shard(Path(folder) / "whole", first, tp=2, padding="megatron")
            copies = case["tp"] > model.n_kv_heads
            cut = {"tp": case["tp"], "padding": case["padding"], "kv_replication": copies, "format": "meta"}
            checkpoint.reshard(first, Path(folder) / "cut", **cut)
            with mp.Manager() as manager:
                result = manager.dict()
                mp.spawn(rank_main, (case["tp"], folder, case, model, result), nprocs=case["tp"])
                ranks = [dict(result[rank]) for rank in range(case["tp"])]
        assert ranks == json.loads(json.dumps(ranks))
        cases.append({**case, "ranks": ranks})
    write(__file__, cases, packages=("fairscale", "torch"))


if __name__ == "__main__":
    main()
