"""What `lp.watch` can open instead of a plain program: faults, puzzles and incidents.

A fault is one of `FAULTS`. A puzzle is a program's source in which one line does nothing yet; the reader
writes it, and the ranks that run it are compared with the program that has the answer. An incident is what
happened to somebody, as a program on ranks in which it happens again, at the size of a teaching model. What
no ranks show is left out: a checkpoint's file, an overflow of its size, a slip in a table.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from llamapar.records.tables import Plain

from . import attention, vocab
from .faults import FAULTS

BREAK, WRITE, HAPPENED = "break it", "write it", "it happened"
"""Groups of cases, in the words of the panel."""


@dataclass(frozen=True)
class Case:
    """A start for `lp.watch`. group: BREAK, WRITE or HAPPENED. says: the task or the event, in words.

    program, model, layout, needs: a run that shows it, with its options. fault: a name of FAULTS, or "".
    function, edit: of a puzzle, whose source is edited, and the replacements in it. gap: the code of the open
    line. answer: the code that solves it.
    """

    group: str
    title: str
    says: str
    program: str
    layout: Plain
    model: str | None = None
    needs: Plain = field(default_factory=dict)
    fault: str = ""
    function: Callable[..., object] | None = None
    edit: tuple[str, str] = ("", "")
    gap: str = ""
    answer: str = ""

    @cached_property
    def text(self) -> str:
        """The source that the reader starts with; "" stands for the program's own source."""
        if self.function is None:
            return ""
        before, after = self.edit
        return inspect.getsource(self.function).replace(before, after).rstrip("\n")

    @cached_property
    def solved(self) -> str:
        """The source with the answer filled in."""
        return self.text.replace(self.gap, self.answer)


_NO_SP = {"sequence_parallel": False}

_SUMMED = """    if "bo" in more:
        return more["bo"] + row_output(partial, mesh, setting)
    return row_output(partial, mesh, setting)"""

_LOSS = """    first, past = row_range(mesh, setting, logits.device)
    columns = torch.arange(logits.shape[-1])  # write it: 0 is the rank's first column
    logits = logits.masked_fill(past <= columns, -torch.inf)  # pad columns
    top = collectives.maximum(logits.amax(-1), mesh, "tp")
    total = collectives.all_reduce((logits - top[..., None]).exp().sum(-1), mesh, "tp")
    own = torch.where(columns == targets[..., None], logits, 0).sum(-1)
    chosen = collectives.all_reduce(own, mesh, "tp")
    lost = top + total.log() - chosen  # [batch, seq]
    losses = collectives.all_reduce(lost.sum(-1), mesh, "cp") / setting.seq_len
"""

_CAUSAL = """    chunks = [part.chunks for part in setting.sequence.ranks]  # of each CP rank
    tokens = torch.tensor([t for part in chunks for c in part for t in c])  # as they are gathered
    k, v = collectives.all_gather(k, mesh, "cp", 1), collectives.all_gather(v, mesh, "cp", 1)
    k, v = k[:, :], v[:, :]  # write it: tokens in the order of the sequence
    mine = lambda coord: kernels.segments(chunks[coord["cp"]], setting.documents)
    heads = kernels.attend(q, k, v, mine, each=lambda *given: compat.each_rank(mesh, *given))
"""

_COPIES = """    from llamapar.spmd.gradients import kv_copy_mesh

    copies = kv_copy_mesh(mesh, setting) or mesh  # its axis "tp": ranks that hold the same KV head
    wk, wv = wk[:], wv[:]  # write it: forward a copy, backward the sum over the copies
    x = column_input"""

_TIED_MODEL = "llama3.2-1b"
"""Its embedding is its output."""

_PUZZLES = {
    "write_all_reduce": Case(
        WRITE,
        "all-reduce of a row-parallel matmul",
        "Each rank has a summand, made of its own heads. Write the line that gives every rank the sum. "
        '`collectives.all_reduce(t, mesh, "tp")` adds up over TP.',
        "attention",
        {"tp": 4, **_NO_SP},
        function=attention.attention,
        edit=(
            _SUMMED,
            "    out = partial  # write it: the sum over TP\n    return out",
        ),
        gap="out = partial",
        answer="out = row_output(partial, mesh, setting)",
    ),
    "write_backward_all_reduce": Case(
        WRITE,
        "all-reduce of the backward",
        "The forward is right. Backward, each rank's gradient of `x` comes from its own heads alone. Write "
        "the line that sends nothing forward and sums the gradient: "
        '`collectives.copy(t, mesh, "tp")` does that.',
        "attention",
        {"tp": 2, **_NO_SP},
        function=attention.attention,
        edit=(
            "x = column_input(x, mesh, setting)  # [batch, seq, dim]",
            "x = x[:]  # write it: forward a copy, backward the sum over TP",
        ),
        gap="x = x[:]",
        answer="x = column_input(x, mesh, setting)",
    ),
    "write_mask": Case(
        WRITE,
        "mask of rows that other ranks hold",
        "A rank looks up row 0 of its own in place of a row that another rank holds; `absent` says for which "
        "tokens. Write the line that keeps these rows out of the sum.",
        "embedding",
        {"tp": 4, **_NO_SP},
        function=vocab.embedding,
        edit=(
            "partial = rows.masked_fill(absent[..., None], 0)  # zeros for the tokens of other ranks",
            "partial = rows[:]  # write it: zeros for the tokens of other ranks",
        ),
        gap="partial = rows[:]",
        answer="partial = rows.masked_fill(absent[..., None], 0)",
    ),
    "write_vocab_shift": Case(
        WRITE,
        "shift of the vocabulary's columns",
        "A target is a number of the whole vocabulary, and a rank counts its columns from 0. `first` is the "
        "number of its first column. Write the line that gives each column its number in the whole.",
        "loss",
        {"tp": 4, **_NO_SP},
        function=vocab.loss,
        edit=("    losses = cross_entropy(logits, targets, mesh, setting)\n", _LOSS),
        gap="columns = torch.arange(logits.shape[-1])",
        answer="columns = first + torch.arange(logits.shape[-1])",
    ),
    "write_chunk_order": Case(
        WRITE,
        "order of head-tail chunks",
        "A CP rank holds a chunk from the head of the sequence and one from its tail, so that gathered keys "
        "and values stand in the order of the ranks. `tokens` says which token stands where. Write the line "
        "that puts them into the order of the sequence.",
        "attention",
        {"cp": 2},
        function=attention.attention,
        edit=(
            "    heads = causal(q, k, v, mesh, setting)  # [batch, seq, n_heads/tp, head_dim]\n",
            _CAUSAL,
        ),
        gap="k, v = k[:, :], v[:, :]",
        answer="k, v = k[:, tokens.argsort()], v[:, tokens.argsort()]",
    ),
    "write_kv_gradient_sum": Case(
        WRITE,
        "sum of copied KV heads' gradients",
        "Four ranks share two KV heads, so each head is there twice, and each copy's gradient comes from the "
        "query heads of its own rank. The library's own sum over the copies is switched off. Write the line "
        'that does it: `collectives.copy(t, copies, "tp")` sends nothing forward and sums the gradient.',
        "attention",
        {"tp": 4},
        model="qwen2.5-1.5b",
        needs={"kv_replication": True},
        fault="no_kv_grad_sum",
        function=attention.attention,
        edit=("    x = column_input", _COPIES),
        gap="wk, wv = wk[:], wv[:]",
        answer='wk, wv = collectives.copy(wk, copies, "tp"), collectives.copy(wv, copies, "tp")',
    ),
}

_INCIDENTS = {
    "llama_405b_mp16": Case(
        HAPPENED,
        "405B at model parallel 16",
        "meta-llama/llama-models #42: Llama 3.1 405B has 8 KV heads. At model parallel 16, "
        "`n_local_kv_heads` is 8 // 16 = 0, and the next line divides by it. The checkpoint for 16 ranks "
        "stores each KV head twice, and its config says `n_kv_heads = 16`.",
        "meta_attention",
        {"tp": 16},
        model="llama3.1-405b",
    ),
    "torchtitan_tp16": Case(
        HAPPENED,
        "torchtitan, Llama 3 8B at TP 16",
        "pytorch/torchtitan #932: `wk` has 8 KV heads · 128 = 1024 rows; at TP=16 a rank holds 64 of them, "
        "half a head. Q passes, and K is the first to fail. There the text was: shape '[1, 8192, -1, 128]' "
        "is invalid for input of size 524288, which is 8192 tokens · 64 rows. Here it has the sizes of the "
        "teaching model.",
        "attention",
        {"tp": 16},
        model="llama3-8b",
    ),
}

CASES = {
    **{
        name: Case(
            BREAK,
            name.replace("_", " "),
            f"What still looks fine with this fault: {fault.looks_fine}.",
            fault.program,
            fault.layout,
            _TIED_MODEL if fault.model else None,
            fault.needs,
            fault=name,
        )
        for name, fault in FAULTS.items()
    },
    **_PUZZLES,
    **_INCIDENTS,
}
"""Name → case."""
