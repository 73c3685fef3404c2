"""Training loss over the logits of a column-parallel output head."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

MODEL = dict(vocab_size=4096, dim=128, seq=64, batch=4)
LAYOUT = dict(tp=4)


class Head(nn.Module):
    def __init__(self, dim, vocab_size):
        super().__init__()
        self.vocab_size = vocab_size
        self.norm = nn.RMSNorm(dim)
        self.output = nn.Linear(dim, vocab_size, bias=False)

    def forward(self, h, labels):
        logits = self.output(self.norm(h)).float()
        return F.cross_entropy(logits.view(-1, self.vocab_size), labels.view(-1))


def attempt(model, layout):
    mesh = init_device_mesh("cpu", (layout.tp,), mesh_dim_names=("tp",))
    head = parallelize_module(Head(model.dim, model.vocab_size), mesh, {"output": ColwiseParallel()})
    h = torch.randn(model.batch, model.seq, model.dim)
    labels = torch.randint(model.vocab_size, (model.batch, model.seq))
    return head(h, labels)


if __name__ == "__main__":
    layout = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.tp)
    attempt(SimpleNamespace(**MODEL), layout)
