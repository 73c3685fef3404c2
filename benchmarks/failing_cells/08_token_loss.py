"""The loss of a small language model over a batch of token sequences."""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

MODEL = dict(vocab_size=1000, dim=128, n_heads=4, seq=64, batch=8)
LAYOUT = dict()


def attempt(model, layout):
    embed = nn.Embedding(model.vocab_size, model.dim)
    body = nn.TransformerEncoderLayer(model.dim, model.n_heads, batch_first=True)
    head = nn.Linear(model.dim, model.vocab_size, bias=False)
    tokens = torch.randint(model.vocab_size, (model.batch, model.seq + 1))
    inputs, labels = tokens[:, :-1], tokens[:, 1:]
    logits = head(body(embed(inputs)))
    loss = F.cross_entropy(logits, labels)
    return loss.backward()


if __name__ == "__main__":
    attempt(SimpleNamespace(**MODEL), SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT))
