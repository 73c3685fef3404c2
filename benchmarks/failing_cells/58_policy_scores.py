"""Log-probabilities of the chosen tokens, computed on one data-parallel rank of a policy."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

MODEL = dict(vocab_size=1024, seq=32, global_batch=64)
LAYOUT = dict(dp=4)


def token_logprobs(logits, actions):
    logp = logits.log_softmax(dim=-1)
    return logp.gather(-1, actions)


def attempt(model, layout):
    local_batch = model.global_batch // layout.dp
    logits = torch.randn(local_batch, model.seq, model.vocab_size)
    actions = torch.randint(model.vocab_size, (local_batch, model.seq))
    chosen = token_logprobs(logits, actions)
    score = chosen.sum(-1).mean()
    dist.all_reduce(score)
    return score / layout.dp


if __name__ == "__main__":
    layout = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.dp)
    attempt(SimpleNamespace(**MODEL), layout)
