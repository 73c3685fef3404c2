"""Run a transformers Llama on a mesh by the tensor-parallel plan of its config."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import LlamaConfig, LlamaModel

MODEL = dict(vocab_size=512, dim=256, ffn_dim=768, n_layers=2, n_heads=8, n_kv_heads=2, seq=16, batch=1)
LAYOUT = dict(tp=4)
STYLES = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}


def attempt(model, layout):
    config = LlamaConfig(
        vocab_size=model.vocab_size,
        hidden_size=model.dim,
        intermediate_size=model.ffn_dim,
        num_hidden_layers=model.n_layers,
        num_attention_heads=model.n_heads,
        num_key_value_heads=model.n_kv_heads,
    )
    mesh = init_device_mesh("cpu", (layout.tp,), mesh_dim_names=("tp",))
    llama = LlamaModel(config)
    plan = {name: STYLES[style]() for name, style in config.base_model_tp_plan.items() if style in STYLES}
    parallelize_module(llama, mesh, plan)
    tokens = torch.randint(model.vocab_size, (model.batch, model.seq))
    return llama(input_ids=tokens).last_hidden_state


if __name__ == "__main__":
    layout = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.tp)
    attempt(SimpleNamespace(**MODEL), layout)
