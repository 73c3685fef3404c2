"""Hand every data-parallel rank its part of a global batch of tokens."""

from types import SimpleNamespace

import torch

MODEL = dict(global_batch=36, seq=256, vocab_size=32000)
LAYOUT = dict(dp=8)


def my_part(batch, rank, dp):
    per_rank = batch.shape[0] // dp
    return batch.view(dp, per_rank, batch.shape[1])[rank]


def attempt(model, layout):
    tokens = torch.randint(model.vocab_size, (model.global_batch, model.seq + 1))
    parts = [my_part(tokens, rank, layout.dp) for rank in range(layout.dp)]
    return [(part[:, :-1], part[:, 1:]) for part in parts]


if __name__ == "__main__":
    attempt(SimpleNamespace(**MODEL), SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT))
