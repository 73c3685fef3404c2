"""Embed a chat prompt, special tokens included, with a table made from a config."""

import torch
from torch import nn

CONFIG = {"vocab_size": 32000, "dim": 64, "pad_id": 0}
SPECIAL = {"<|user|>": 32000, "<|assistant|>": 32001, "<|end|>": 32002}


def encode(turns):
    ids = []
    for role, words in turns:
        ids.append(SPECIAL[f"<|{role}|>"])
        ids += [sum(map(ord, word)) % 31000 + 3 for word in words.split()]
        ids.append(SPECIAL["<|end|>"])
    return torch.tensor([ids])


table = nn.Embedding(CONFIG["vocab_size"], CONFIG["dim"], padding_idx=CONFIG["pad_id"])
prompt = encode([("user", "how many layers has the small one"), ("assistant", "sixteen")])
hidden = table(prompt)
print(hidden.norm(dim=-1))
