"""Multi-head attention written with einsum."""

from types import SimpleNamespace

import torch

MODEL = dict(dim=256, n_heads=8, head_dim=32, seq=50, batch=3)
LAYOUT = dict()


def attention(x, wq, wk, wv, wo):
    q = torch.einsum("bsd,dhk->bshk", x, wq)
    k = torch.einsum("bsd,dhk->bshk", x, wk)
    v = torch.einsum("bsd,dhk->bshk", x, wv)
    scores = torch.einsum("bqhk,bthk->bhqt", q, k) / q.shape[-1] ** 0.5
    mixed = torch.einsum("bhqt,bhtk->bqhk", scores.softmax(-1), v)
    return torch.einsum("bqhk,hkd->bqd", mixed, wo)


def attempt(model, layout):
    inward = [torch.randn(model.dim, model.n_heads, model.head_dim) for _ in range(3)]
    outward = torch.randn(model.n_heads, model.head_dim, model.dim)
    x = torch.randn(model.batch, model.seq, model.dim)
    return attention(x, *inward, outward)


if __name__ == "__main__":
    attempt(SimpleNamespace(**MODEL), SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT))
