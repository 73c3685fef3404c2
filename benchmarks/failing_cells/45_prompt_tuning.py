"""Prompt tuning: learned vectors stand before the embedded text of a transformers Llama."""

from types import SimpleNamespace

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

MODEL = dict(vocab_size=512, dim=128, ffn_dim=256, n_layers=1, n_heads=4, prefix=8, seq=24, batch=2)
LAYOUT = dict()


def attempt(model, layout):
    config = LlamaConfig(
        vocab_size=model.vocab_size,
        hidden_size=model.dim,
        intermediate_size=model.ffn_dim,
        num_hidden_layers=model.n_layers,
        num_attention_heads=model.n_heads,
    )
    llama = LlamaForCausalLM(config)
    prefix = nn.Parameter(torch.randn(model.prefix, model.dim) * 0.02)
    tokens = torch.randint(model.vocab_size, (model.batch, model.seq))
    text = llama.get_input_embeddings()(tokens)
    embeds = torch.cat((prefix.expand(model.batch, -1, -1), text), dim=1)
    loss = llama(inputs_embeds=embeds, labels=tokens).loss
    return loss.backward()


if __name__ == "__main__":
    attempt(SimpleNamespace(**MODEL), SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT))
