"""What each incident runs: a configuration goes in, and what came of it comes out.

A function is named in incidents.toml. It runs the real thing at a size that fits a laptop: ranks are
processes, a file is a file, a layout goes through `lp.check`. It is green only where the result equals what
one process computes of the whole, so a configuration that merely runs is not enough. Errors of ranks are what
an incident shows; they become the outcome's text. Configurations that no function could run are refused by
`incidents.py` before.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from llamapar.describe.layout import Coord, Layout
from llamapar.describe.models import ModelConfig, model
from llamapar.describe.splits import Padding
from llamapar.errors import LlamaparError
from llamapar.execution.engines.pool import pool
from llamapar.execution.engines.rank import Context
from llamapar.execution.execute import run
from llamapar.execution.replies import RankFailure
from llamapar.execution.result import Result
from llamapar.nodes.loading import loading
from llamapar.programs.saving import gather_then_unpad, unpad_then_gather
from llamapar.rules.report import check

Ran = tuple[bool, str]
"""Whether the configuration is repaired, and what ranks, file or check say."""

MOST_RANKS = 16
"""Processes that a laptop can start."""

_EXACT: dict[str, Any] = {"dtype": "float64", "device": "cpu", "backward": False}

PATIENCE = 3.0
"""Seconds without progress after which two ranks that wait for each other are given up."""


def _random(*shape: int) -> Tensor:
    """The same random numbers each time, in float64."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def _raised(errors: Sequence[BaseException], ranks: int) -> Ran:
    """That ranks raised, with the first line of the first error."""
    first = str(errors[0]).partition("\n")[0]
    return False, f"{len(errors)} of {ranks} ranks raise {type(errors[0]).__name__}: {first}"


def _of_ranks(result: Result, expected: Callable[[Coord], Tensor], name: str) -> Ran:
    """Errors of ranks, or how their output compares with what is expected at each coordinate."""
    if result.errors:
        return _raised([*result.errors.values()], result.ranks)
    layout = result.task.setting.layout
    wrong = []
    for rank in range(result.ranks):
        own = result.outputs[rank][name]
        right = expected(layout.coord_of(rank))
        if own.shape != right.shape:
            return False, f"rank {rank} has {list(own.shape)}, and {list(right.shape)} is needed"
        if not torch.allclose(own, right, rtol=0, atol=1e-9):
            wrong.append(rank)
    if wrong:
        return False, f"it runs, and {name} is wrong on {len(wrong)} of {result.ranks} ranks"
    return True, f"all {result.ranks} ranks have what one process computes"


def _attention(
    program: str, wide: ModelConfig, tp: int, dp: int, in_turn: bool = False, copy: bool = False
) -> Ran:
    """Attention of the model "tiny" on 16 ranks, forward, compared with one process.

    program: of `lp.run`. wide: the model, perhaps with its KV heads stored several times; in_turn: all of
    them once and then again, in place of the copies of each side by side. copy: whether ranks copy KV heads.
    """
    if tp * dp != MOST_RANKS:
        return False, f"that layout uses {tp * dp} of the {MOST_RANKS} GPUs"
    narrow = model("tiny")
    inputs = {"x": _random(MOST_RANKS, 8, narrow.dim), "wk": _random(narrow.kv_dim, narrow.dim) / 8}
    inputs |= {"wq": _random(narrow.dim, narrow.dim) / 8, "wo": _random(narrow.dim, narrow.dim) / 8}
    inputs |= {"wv": inputs["wk"] + 1}
    forward: dict[str, Any] = {"seq_len": 8, "global_batch": MOST_RANKS, "inputs": inputs, **_EXACT}
    one = run("attention", narrow, {"tp": 1}, **forward)
    for name in ("wk", "wv"):
        heads = inputs[name].view(narrow.n_kv_heads, narrow.head_dim, narrow.dim)
        copies = wide.n_kv_heads // narrow.n_kv_heads
        stored = heads.repeat_interleave(copies, 0)
        if in_turn:
            stored = heads.repeat(copies, 1, 1)
        inputs[name] = stored.reshape(-1, narrow.dim)
    result = run(
        program,
        wide,
        Layout(tp=tp, dp=dp, sequence_parallel=False),
        engine="processes",
        kv_replication=copy,
        force=True,
        **forward,
    )
    return _of_ranks(result, lambda at: one.outputs[0]["out"].chunk(dp)[at.dp], "out")


def kv_heads(n_kv_heads: int, copies: str, tp: int, dp: int) -> Ran:
    """Meta's own arithmetic of heads, with each KV head stored once or several times."""
    narrow = model("tiny")
    if n_kv_heads % narrow.n_kv_heads:
        return False, f"{n_kv_heads} is not a multiple of the {narrow.n_kv_heads} KV heads there are"
    return _attention("meta_attention", narrow.replace(n_kv_heads=n_kv_heads), tp, dp, copies == "in turn")


def half_heads(tp: int, dp: int, kv_replication: bool) -> Ran:
    """Attention whose KV heads TP may cut within a head, or store on several ranks."""
    return _attention("attention", model("tiny"), tp, dp, copy=kv_replication)


def saved_embedding(order: str, divisible_by: int, tp: int) -> Ran:
    """The embedding of 70B's vocabulary, saved from padded shards by every rank."""
    if tp > MOST_RANKS:
        return False, f"{tp} ranks; a replay starts {MOST_RANKS} at most"
    narrow = model("llama3.1-70b").replace(dim=16, n_heads=16, head_dim=2, ffn_dim=48, n_layers=1)
    whole = torch.arange(narrow.vocab_size * 16, dtype=torch.float64).view(-1, 16)
    program = gather_then_unpad
    if order.startswith("un-pad"):
        program = unpad_then_gather
    result = run(
        program,
        narrow,
        {"tp": tp},
        engine="processes",
        padding=Padding(divisible_by, per_tp=True),
        kv_replication=tp > narrow.n_kv_heads,
        inputs={"tok_embeddings": whole},
        **_EXACT,
    )
    return _of_ranks(result, lambda _: whole, "saved")


def counted_file(size_bits: int) -> Ran:
    """The incident's own file, of which a mark at the start of each tensor is stored, and its loader.

    The rest are holes, which take no room on a disk. The loader keeps the bytes of a tensor in that many
    bits. Raises LlamaparError where the disk knows no holes.
    """
    file = loading("llama3.1-405b-mp16")
    sizes = [file.bytes(tensor) for tensor in file.tensors]
    marks = [bytes([1 + n % 255]) for n in range(len(sizes))]
    misread = []
    with tempfile.TemporaryFile() as stored:
        try:
            stored.truncate(file.file_bytes)
            for mark, size in zip(marks, sizes, strict=True):
                stored.write(mark)
                stored.seek(size - 1, os.SEEK_CUR)
        except OSError as problem:
            what = f"a file of {file.file_bytes:,} bytes, nearly all of them holes, cannot be made"
            why = f"{tempfile.gettempdir()}: {problem.strerror}"
            raise LlamaparError(what, why, ["a folder on another disk, named by TMPDIR"]) from None
        stored.seek(0)
        for tensor, mark, size in zip(file.tensors, marks, sizes, strict=True):
            if stored.read(1) != mark:
                misread.append(tensor.name)
            stored.seek(size % 2**size_bits - 1, os.SEEK_CUR)
        missing = file.file_bytes - stored.tell()
    if misread:
        first = f"{len(misread):,} of {len(sizes):,} tensors are read wrongly, {misread[0]} first"
        return False, f"missingBytes is {missing:,} of {file.file_bytes:,}; {first}"
    return True, f"all {len(sizes):,} tensors are read to the last of {file.file_bytes:,} bytes"


def printed_row(tp: int, cp: int, pp: int, dp: int) -> Ran:
    """The paper's row for long sequences, checked."""
    report = check(
        "llama3.1-405b",
        Layout(tp=tp, cp=cp, pp=pp, dp=dp),
        gpus=16384,
        seq_len=131072,
        batch_tokens=2**24,
        batch_per_dp=16,
    )
    errors = [finding.message for finding in report.findings if finding.severity == "error"]
    return report.ok, "; ".join(errors) or "16,384 GPUs, and 16,777,216 tokens in a batch"


PARAMETERS = 64
"""What AdamW updates in `resumed`."""


def resumed(saved_dp: int, resumed_dp: int, loads: str) -> Ran:
    """A step under ZeRO 2, its optimizer's files, and a second step on another number of ranks."""
    weight = _random(PARAMETERS)
    gradients = [_random(dp, PARAMETERS) for dp in (saved_dp, resumed_dp)]
    if any(dp > MOST_RANKS or PARAMETERS % dp for dp in (saved_dp, resumed_dp)):
        return False, f"a DP of 1, 2, 4, 8 or {MOST_RANKS} is needed, for {PARAMETERS} parameters"
    whole = torch.nn.Parameter(weight.clone())
    adam = torch.optim.AdamW([whole])
    for gradient in gradients:
        whole.grad = gradient.mean(0)
        adam.step()
        # Under ZeRO 2 every rank has the whole weights; only gradients and the optimizer's state are cut.
        before = weight
        weight = whole.detach().clone()
    with tempfile.TemporaryDirectory() as folder, pool(saved_dp, threads=1) as ranks:
        first = ranks.run(_step_of_zero_2, folder, _random(PARAMETERS), gradients[0], [])
        assert all(answer.error is None for answer in first), first
        with pool(resumed_dp, threads=1) as fewer:
            files = [Path(folder) / f"rank_{rank}.pt" for rank in range(saved_dp)]
            own = files if loads == "all files" else None
            answers = fewer.run(_step_of_zero_2, folder, before, gradients[1], own)
    errors = [answer.error for answer in answers if answer.error is not None]
    if errors:
        return _raised(errors, resumed_dp)
    same = torch.allclose(torch.cat([answer.value for answer in answers]), weight, rtol=0, atol=1e-12)
    done = "the second step equals that of one process"
    return same, done if same else "it runs, and the weights are wrong"


def _step_of_zero_2(
    context: Context, folder: str, weight: Tensor, gradients: Tensor, files: list[Path] | None
) -> Tensor:
    """On a rank: its part of the summed gradients, and of the weights after AdamW; saves the state.

    files: those whose states together are the whole; None for the rank's own, [] for a first step.
    """
    context.note("a reduce_scatter")
    own = torch.empty_like(weight.chunk(context.world)[0])
    dist.reduce_scatter_tensor(own, gradients[context.rank] / context.world)
    context.note("")
    part = torch.nn.Parameter(weight.chunk(context.world)[context.rank].clone())
    adam = torch.optim.AdamW([part])
    if files != []:
        paths = files or [Path(folder) / f"rank_{context.rank}.pt"]
        states = [torch.load(path) for path in paths]
        state = states[0]["state"][0]
        for name in ("exp_avg", "exp_avg_sq"):
            joined = torch.cat([one["state"][0][name] for one in states])
            state[name] = joined.chunk(context.world)[context.rank] if files else joined
        adam.load_state_dict(states[0])
    part.grad = own
    adam.step()
    if files == []:
        torch.save(adam.state_dict(), Path(folder) / f"rank_{context.rank}.pt")
    return part.detach()


def imported_embedding(rows: str) -> Ran:
    """An embedding that is a DTensor over TP, filled with the rows of a checkpoint."""
    whole = torch.arange(151936 * 4, dtype=torch.float64).view(-1, 4)
    with pool(2, threads=1) as ranks:
        answers = ranks.run(_filled, whole, rows.endswith("tp"))
    errors = [answer.error for answer in answers if answer.error is not None]
    if errors:
        return _raised(errors, 2)
    same = all(answer.value.equal(whole) for answer in answers)
    return same, "both ranks gather the embedding of the checkpoint, row for row"


def _filled(context: Context, whole: Tensor, by_tp: bool) -> Tensor:
    """On a rank: a DTensor's own rows, filled, and the whole as it is gathered again."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (context.world,))
    table = distribute_tensor(torch.zeros_like(whole), mesh, [Shard(0)])
    rows = table.shape[0] * (context.world if by_tp else 1)
    padded = torch.nn.functional.pad(whole, (0, 0, 0, rows - len(whole)))
    own = table.to_local()
    sent = padded.chunk(context.world)[context.rank]
    if own.shape != sent.shape:
        raise ValueError(f"expected {tuple(own.shape)}, got {tuple(sent.shape)}")
    own.copy_(sent)
    return table.full_tensor()


def pipeline_pair(rank_0: str, rank_1: str) -> Ran:
    """Two ranks of a pipeline that exchange activations, each in the order that it is told."""
    try:
        with pool(2, threads=1) as ranks:
            answers = ranks.run(_exchanged, (rank_0, rank_1), timeout=PATIENCE)
    except RankFailure as failure:
        waits = [line.strip() for line in failure.why.splitlines()[:2]]
        return False, f"no rank made progress for {PATIENCE:g} s: {'; '.join(waits)}"
    swapped = [float(answer.value) for answer in answers] == [1.0, 0.0]
    return swapped, "both messages have arrived"


def _exchanged(context: Context, orders: tuple[str, str]) -> Tensor:
    """On a rank: the number of the other one, as it was sent."""
    other = 1 - context.rank
    got = torch.empty(())

    for step in orders[context.rank].split(", "):
        context.note(f"a {step} {'to' if step == 'send' else 'from'} rank {other}", (context.rank, other))
        if step == "send":
            dist.send(torch.tensor(float(context.rank)), other)
        else:
            dist.recv(got, other)
        context.note("")
    return got
