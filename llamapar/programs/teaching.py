"""Tensors that draw: a model and inputs whose sums over ranks complete a word that one can read.

Random numbers look like confetti, and a summand of a sum looks like the sum. Here every query head draws one
letter of a word into the output, and a part of the line under it; so do sixteen hidden columns of the MLP.
Each row of the embedding draws a row of the word. A rank's summand is the letters of its own heads, and the
sum over ranks is the word. The programs do not know: attention still attends, and RoPE still turns.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from llamapar.describe.layout import Layout
from llamapar.describe.models import ModelConfig
from llamapar.spmd.setting import Setting

from . import plain

ROWS = 8
"""Rows of a letter, and the head_dim of a teaching model: seven of the letter, one of the line under it."""

WIDTH = 6
"""Columns of a letter, the gap after it counted."""

TOKENS = 16
"""Fewest tokens of a teaching sequence: two to a row of a letter."""

WORDS = {1: "O", 2: "TP", 4: "HEAD", 8: "LLAMAPAR", 16: "GROUPEDATTENTION"}
"""By the number of letters; other numbers take letters of the longest, again and again."""

SILU_IS_ONE = 1.2784645427610738
"""silu of it is 1, so that a gate lets w3's part through as it is."""

_LETTERS = {
    "A": "01110 10001 10001 11111 10001 10001 10001",
    "D": "11110 10001 10001 10001 10001 10001 11110",
    "E": "11111 10000 10000 11110 10000 10000 11111",
    "G": "01110 10001 10000 10111 10001 10001 01110",
    "H": "10001 10001 10001 11111 10001 10001 10001",
    "I": "01110 00100 00100 00100 00100 00100 01110",
    "L": "10000 10000 10000 10000 10000 10000 11111",
    "M": "10001 11011 10101 10101 10001 10001 10001",
    "N": "10001 11001 10101 10011 10001 10001 10001",
    "O": "01110 10001 10001 10001 10001 10001 01110",
    "P": "11110 10001 10001 11110 10000 10000 10000",
    "R": "11110 10001 10001 11110 10100 10010 10001",
    "T": "11111 00100 00100 00100 00100 00100 00100",
    "U": "10001 10001 10001 10001 10001 10001 01110",
}
"""Letter → its seven rows of five dots."""


WHOLE = ("llama", "step")
"""Programs of a whole model."""

MARKS = 4
"""Columns of a whole model's stream that say which micro-batch a sequence is of."""


def teaching_model(model: ModelConfig | None, layout: Layout, layers: int = 0) -> ModelConfig:
    """A model small enough to be drawn, with the KV heads of `model` and one or two query heads to each.

    model: None takes four KV heads, eight where TP is larger. At most eight KV heads are kept, so that a TP
    that divides them still does, and one that tears a head still tears it. layers: of a model that is run
    whole. It takes two KV heads where TP allows it, and has room beside the letters, see `_llama`.
    """
    # The fewest KV heads that are enough for TP. Past eight they stay eight, and a larger TP tears them.
    kv = next(n for n in ((2, 4, 8) if layers else (4, 8)) if layout.tp <= n or n == 8)
    group = 2
    if model is not None:
        kv = min(model.n_kv_heads, 8)
        group = min(model.group_size, 2)
    heads = kv * group
    # The letters take WIDTH columns each. Beside them a whole model's stream says row and micro-batch;
    # the other inputs have a column for each token and one that all tokens share.
    width = WIDTH * heads + ROWS + MARKS if layers else max(WIDTH * heads, even_tokens(layout) + 2)
    return ModelConfig(
        dim=-(-width // 8) * 8,
        n_layers=layers or 2,
        n_heads=heads,
        n_kv_heads=kv,
        head_dim=ROWS,
        ffn_dim=2 * ROWS * heads,
        vocab_size=ROWS * (heads + 2 if layers else max(1, heads - 1)),  # the last rank of TP has pad rows
        tied=model is not None and model.tied and layers > 0,
        max_seq_len=max(TOKENS, even_tokens(layout)),
        rope_theta=10000.0,
        name=f"teaching model, {heads} heads and {kv} KV heads",
    )


def even_tokens(layout: Layout) -> int:
    """Tokens of a sequence that every axis cuts evenly: head-tail chunks, and rows of TP within them."""
    # Head-tail makes 2·cp chunks, and sequence parallelism cuts within a chunk.
    unit = 2 * layout.cp * layout.tp
    return -(-TOKENS // unit) * unit


def teaching_inputs(program: str, setting: Setting) -> dict[str, Tensor]:
    """Name → global tensor, of the inputs that draw; what is not named stays random."""
    own = {
        "attention": _attention,
        "meta_attention": _attention,
        "mlp": _mlp,
        "embedding": _embedding,
        "loss": _loss,
        "block": _block,
        "llama": _llama,
        "step": _llama,
    }
    # A function of one's own may ask for any of them by name.
    found = own.get(program, lambda one: _mlp(one) | _attention(one))(setting)
    if program not in ("loss", *WHOLE):
        found["cotangent"] = _picture(setting)
    return {name: t.to(setting.torch_dtype) if t.is_floating_point() else t for name, t in found.items()}


def _picture(setting: Setting) -> Tensor:
    """[batch, seq, dim]: the word as an output has it, which is also what its gradient begins with."""
    return (
        word(setting, setting.model.dim).sum(0)[_row_of(setting)].expand(setting.global_batch, -1, -1).clone()
    )


def word(setting: Setting, width: int) -> Tensor:
    """[n, 8, width]: what each of the n query heads draws, one letter and its share of the line under it."""
    n = setting.model.n_heads
    letters = WORDS.get(n) or "".join(WORDS[16][i % 16] for i in range(n))
    each = width // n
    drawn = torch.zeros(n, ROWS, width, dtype=torch.float64)
    for i, letter in enumerate(letters):
        dots = torch.tensor([[float(dot) for dot in row] for row in _LETTERS[letter].split()])
        drawn[i, : ROWS - 1, i * each : i * each + 5] = dots
    # The line under the word is drawn by all heads together, so a summand has only a faint part of it.
    drawn[:, ROWS - 1] = 1 / n
    return drawn


def _row_of(setting: Setting) -> Tensor:
    """[seq]: the row of the letters that each token draws."""
    return torch.arange(setting.seq_len) * ROWS // setting.seq_len


def _stream(setting: Setting) -> Tensor:
    """x [batch, seq, dim]: a token's own column, and one column that all tokens share; later sequences are
    fainter."""
    t = setting.seq_len
    x = torch.zeros(setting.global_batch, t, setting.model.dim, dtype=torch.float64)
    # Sequences of a batch are told apart by their ink, which shows when they change places.
    faint = 1 / (1 + torch.arange(setting.global_batch, dtype=torch.float64))
    x[:, torch.arange(t), torch.arange(t)] = faint[:, None]
    x[..., t] = 1
    return x


def _attention(setting: Setting) -> dict[str, Tensor]:
    """Queries and keys are alike for all tokens, so RoPE alone decides: a token attends to those near it.

    A head's output at a token has to be the row of the letter that the token draws. So its values V solve
    A·V = rows, where A [seq, seq] is the head's attention. wo holds the letters.
    """
    m = setting.model
    t = setting.seq_len
    wq = torch.zeros(m.q_dim, m.dim, dtype=torch.float64)
    wk = torch.zeros(m.kv_dim, m.dim, dtype=torch.float64)
    wv = torch.zeros(m.kv_dim, m.dim, dtype=torch.float64)
    rows = torch.nn.functional.one_hot(_row_of(setting), ROWS).to(torch.float64)
    for head in range(m.n_kv_heads):
        # RoPE turns (3, 2, 1, 1), one number for each of the four pairs, and leaves the zeros between
        # them to be turned into. Each KV head gets slightly other numbers, so that reading the wrong one
        # shows.
        own = slice(head * ROWS, (head + 1) * ROWS)
        same = torch.zeros(ROWS, dtype=torch.float64)
        same[0::2] = torch.tensor([3.0, 2.0, 1.0, 1.0]) * (1 + head / (4 * m.n_kv_heads))
        wk[own, t] = same
        for query in range(head * m.group_size, (head + 1) * m.group_size):
            wq[query * ROWS : (query + 1) * ROWS, t] = same
        # Causal weights are lower triangular with a diagonal above 0, so the system always has one
        # solution.
        wv[own, :t] = torch.linalg.solve_triangular(_weights(setting, same), rows, upper=False).T
    wo = word(setting, m.dim).flatten(0, 1).T
    return {"x": _stream(setting), "wq": wq, "wk": wk, "wv": wv, "wo": wo.contiguous()}


def _weights(setting: Setting, same: Tensor) -> Tensor:
    """[seq, seq]: causal attention where every query and key is `same` before RoPE."""
    t = setting.seq_len
    turned = plain.rotated(same.expand(1, t, 1, ROWS), torch.arange(t), setting.model)[0, :, 0]
    scores = turned @ turned.T / math.sqrt(ROWS)
    return scores.masked_fill(torch.ones(t, t).triu(1) > 0, -torch.inf).softmax(-1)


def _mlp(setting: Setting) -> dict[str, Tensor]:
    """Sixteen hidden columns draw a letter, two of them each row of it, with half the ink.

    w3 says which row a token draws, w2 holds the letters.
    """
    m = setting.model
    t = setting.seq_len
    w1 = torch.zeros(m.ffn_dim, m.dim, dtype=torch.float64)
    # The column that all tokens share holds 1, so every gate is silu(SILU_IS_ONE) = 1.
    w1[:, t] = SILU_IS_ONE
    w3 = torch.zeros(m.ffn_dim, m.dim, dtype=torch.float64)
    w3[:, :t] = torch.nn.functional.one_hot(_row_of(setting), ROWS).T.repeat(2 * m.n_heads, 1)
    w2 = word(setting, m.dim).repeat(1, 2, 1).flatten(0, 1).T / 2
    return {"x": _stream(setting), "w1": w1, "w2": w2.contiguous(), "w3": w3}


def _embedding(setting: Setting) -> dict[str, Tensor]:
    """Each row of the table is a row of the whole word; neighbouring tokens look theirs up on other ranks."""
    m = setting.model
    table = word(setting, m.dim).sum(0).repeat(m.vocab_size // ROWS, 1)
    place = torch.arange(setting.seq_len) % (m.vocab_size // ROWS)
    tokens = (place * ROWS + _row_of(setting)).expand(setting.global_batch, -1)
    return {"tokens": tokens.contiguous(), "tok_embeddings": table}


def _loss(setting: Setting) -> dict[str, Tensor]:
    """Logits are the word, written across the vocabulary; each token's target is a dot of its row."""
    m = setting.model
    t = setting.seq_len
    logits = 4 * word(setting, m.vocab_size).sum(0)[_row_of(setting)]  # [seq, vocab]
    output = torch.zeros(m.vocab_size, m.dim, dtype=torch.float64)
    output[:, :t] = logits.T
    # Targets spread over the vocabulary, so that every rank of TP holds some.
    own = (torch.arange(t, dtype=torch.float64) * m.vocab_size / t).long()
    targets = torch.stack([_dot_near(row, int(at)) for row, at in zip(logits, own, strict=True)])
    return {"x": _stream(setting), "output": output, "targets": targets.repeat(setting.global_batch, 1)}


def _dot_near(row: Tensor, at: int) -> Tensor:
    """The column of a dot that is nearest to a column."""
    dots = (row > 0).nonzero()[:, 0]
    return dots[(dots - at).abs().argmin()]


def _block(setting: Setting) -> dict[str, Tensor]:
    """Attention draws its word into the stream, and the MLP draws it once more."""
    found = _attention(setting)
    # A norm divides by this size, so a weight of the same size makes it the identity for the first sequence.
    size = found["x"][0].square().mean(-1).add(setting.model.norm_eps).sqrt()  # of every token alike
    norm = size[0].expand(setting.model.dim).clone()  # gives back what the norm was given
    return _mlp(setting) | found | {"attention_norm": norm, "ffn_norm": norm}


def _llama(setting: Setting) -> dict[str, Tensor]:
    """Each layer draws letters of its own into the stream, so that a stage is seen by what it adds.

    Eight columns say which row a token draws, and four which micro-batch it is of: these the embedding
    writes. Each layer's MLP adds its letters to the row; its attention, of each head the letter, faintly, as
    an average over the rows so far. The head reads the row, and writes the word across the vocabulary.
    """
    m = setting.model
    letters = torch.zeros(m.n_heads, ROWS, m.dim, dtype=torch.float64)
    letters[..., ROWS + MARKS :] = word(setting, m.dim - ROWS - MARKS)
    stream = torch.eye(ROWS, m.dim, dtype=torch.float64)  # of a token of each row, but for its mark
    table = stream.repeat(m.vocab_size // ROWS, 1)
    numbers = torch.arange(m.vocab_size) // ROWS % MARKS
    table[torch.arange(m.vocab_size), ROWS + numbers] = 1
    found = {"tok_embeddings.weight": table}
    # `stream` follows what the stream holds after each layer, because the next layer has to read past it.
    for layer in range(m.n_layers):
        read = _rows_read(stream, setting)
        # Letters are dealt out to the layers in turn; each layer's MLP draws its own and no other.
        own = (torch.arange(m.n_heads) % m.n_layers == layer)[:, None, None] * letters
        weights = {
            "attention.wq": torch.outer(_alike(m.n_heads), read.sum(0)),
            "attention.wk": torch.outer(_alike(m.n_kv_heads), read.sum(0)),
            "attention.wv": read.repeat(m.n_kv_heads, 1),
            # A tenth, so that attention shows in the picture without covering what the MLPs draw.
            "attention.wo": letters.flatten(0, 1).T / 10,
            "feed_forward.w1": SILU_IS_ONE * read.sum(0).expand(m.ffn_dim, -1),
            "feed_forward.w2": own.repeat(1, 2, 1).flatten(0, 1).T / 2,
            "feed_forward.w3": read.repeat(2 * m.n_heads, 1),
            "attention_norm": torch.ones(m.dim),
            "ffn_norm": torch.ones(m.dim),
        }
        found |= {f"layers.{layer}.{name}.weight": t.contiguous() for name, t in weights.items()}
        stream = stream + own.sum(0)
    written = 4 * word(setting, m.vocab_size).sum(0)  # [8, vocab]: logits of a token of each row
    found |= {"norm.weight": torch.ones(m.dim), "output.weight": written.T @ _rows_read(stream, setting)}
    row = _row_of(setting)
    each = setting.global_batch // setting.layout.dp
    tokens = []
    targets = []
    for sequence in range(setting.global_batch):
        # The micro-batch within the dp way, which the four marked columns of the embedding then show.
        number = sequence % each // setting.micro_batch
        tokens.append(number * ROWS % m.vocab_size + row)
        # Each sequence's targets start five columns further, so that swapped micro-batches get another
        # loss.
        begins = torch.arange(setting.seq_len) * m.vocab_size // setting.seq_len + 5 * sequence
        at = (begins % m.vocab_size).tolist()
        targets.append(torch.stack([_dot_near(written[r], n) for r, n in zip(row, at, strict=True)]))
    return found | {"tokens": torch.stack(tokens), "targets": torch.stack(targets)}


def _rows_read(stream: Tensor, setting: Setting) -> Tensor:
    """[8, dim]: row i gives 1 for the normed stream of a token of row i, and 0 for those of other rows."""
    size = (stream.square().sum(-1) + 1) / setting.model.dim + setting.model.norm_eps  # 1: of its mark
    return torch.eye(ROWS, setting.model.dim, dtype=torch.float64) * size.sqrt()[:, None]


def _alike(heads: int) -> Tensor:
    """[heads·8]: a query or a key that is alike for all tokens, so that they attend to those near them."""
    each = torch.zeros(ROWS, dtype=torch.float64)
    each[0::2] = torch.tensor([3.0, 2.0, 1.0, 1.0])
    return each.repeat(heads)
