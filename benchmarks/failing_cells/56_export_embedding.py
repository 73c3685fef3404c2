"""Export the embedding of a finished tensor-parallel run to a single model file."""

import tempfile
from pathlib import Path

import torch
from torch import nn

VOCAB, DIM, TP = 32100, 48, 8


def save_run(folder):
    rows = -(-VOCAB // (128 * TP)) * 128
    for rank in range(TP):
        torch.save({"embed_tokens.weight": torch.randn(rows, DIM)}, folder / f"mp_rank_{rank:02d}.pt")


def load_whole(folder, model):
    parts = [torch.load(file)["embed_tokens.weight"] for file in sorted(folder.glob("mp_rank_*.pt"))]
    with torch.no_grad():
        model.embed_tokens.weight.copy_(torch.cat(parts))


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, DIM)


with tempfile.TemporaryDirectory() as name:
    save_run(Path(name))
    model = LanguageModel()
    load_whole(Path(name), model)
    torch.save(model.state_dict(), Path(name) / "model.pt")
