"""Exchange heads for sequence before attention, in a job with tensor and context parallelism."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_to_all_single
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

MODEL = dict(n_heads=12, head_dim=64, seq=512, batch=1)
LAYOUT = dict(tp=2, cp=4)


def heads_to_sequence(x, cp, group):
    b, s, heads, head_dim = x.shape
    x = x.view(b, s, cp, heads // cp, head_dim)
    x = x.permute(2, 1, 0, 3, 4).contiguous()
    x = all_to_all_single(x, None, None, group)
    return x.flatten(0, 1).transpose(0, 1)


def attempt(model, layout):
    mesh = init_device_mesh("cpu", (layout.cp, layout.tp), mesh_dim_names=("cp", "tp"))
    heads = model.n_heads // mesh["tp"].size()
    q = torch.randn(model.batch, model.seq // layout.cp, heads, model.head_dim)
    return heads_to_sequence(q, mesh["cp"].size(), mesh["cp"].get_group())


if __name__ == "__main__":
    layout = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.cp * layout.tp)
    attempt(SimpleNamespace(**MODEL), layout)
