"""Start a job of two machines with eight ranks each and shard a layer over its mesh."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

DP_REPLICATE, DP_SHARD, TP = 2, 2, 8


def build_mesh():
    shape = (DP_REPLICATE, DP_SHARD, TP)
    names = ("dp_replicate", "dp_shard", "tp")
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=16)
mesh = build_mesh()
layer = parallelize_module(nn.Linear(1024, 4096), mesh["tp"], ColwiseParallel())
print(layer(torch.randn(4, 1024)).shape)
