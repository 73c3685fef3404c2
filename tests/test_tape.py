"""The shape tape: what each rank holds after each line of a program, on the meta device."""

from __future__ import annotations

import re
import resource
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import llamapar as lp
from llamapar import Layout, Padding
from llamapar.programs import attention, llama
from llamapar.records.trace import Tape
from llamapar.spmd import collectives

INCIDENT = "RuntimeError: shape '[1, 8192, -1, 128]' is invalid for input of size 524288"


def shape_of(
    tape: Tape, name: str
) -> tuple[tuple[int, ...] | None, tuple[int, ...], dict[int, tuple[str, ...]]]:
    """Global shape, the shape on every rank (which must be one), and the cut of the last `name`."""
    step = tape.step(name)
    assert step.even
    assert len(step.local) == tape.ranks
    return step.global_shape, next(iter(step.local.values())), dict(step.cut)


def test_incident_3_at_its_line() -> None:
    """8 KV heads over 16 ranks, in the words that torch used then, on every rank."""
    tape = lp.tape("attention", "llama3-8b", Layout(tp=16), seq_len=8192)
    failed = tape.failed
    assert (failed.name, failed.code) == ("k", "k = split_heads(x @ wk.mT, setting.model.head_dim)")
    assert failed.where == "attention:18"
    assert failed.error == dict.fromkeys(range(16), INCIDENT)
    assert failed.global_shape == (1, 8192, 8, 128)
    assert failed.why == (
        "tp=16 does not divide n_kv_heads=8 (llama3-8b): a rank would need half a KV head; "
        "tp may be 1, 2, 4, 8"
    )
    assert shape_of(tape, "q") == ((1, 8192, 32, 128), (1, 8192, 2, 128), {2: ("tp",)})
    assert tape.steps[-1] == failed
    assert f"ranks 0–15: {INCIDENT}" in str(tape)
    assert failed.cause == (
        "a rank holds 64 columns, half a head of 128: 8 KV heads over tp=16; "
        "8192 × 64 = 524288; 64 = 8·128/16 = half a head"
    )
    assert str(tape).endswith(f"ranks 0–15: {INCIDENT}\n{failed.why}\n{failed.cause}")
    assert [row.partition("  ")[0] for row in str(tape).splitlines() if "✗" in row] == ["attention:18 ✗"]
    assert f"<p>{failed.why}</p><p>{failed.cause}</p>" in tape._repr_html_()


def test_405b_at_its_true_size_allocates_nothing() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    layout, long = Layout(tp=8, cp=16), {"seq_len": 131072}
    block = lp.tape("block", "llama3.1-405b", layout, **long)
    loss = lp.tape("loss", "llama3.1-405b", layout, **long)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 200 * 2**20  # one rank's logits alone are 500 MiB
    assert (block.world, block.ranks) == (128, 9)  # the ends of each axis
    assert not block.errors
    assert shape_of(block, "x") == ((1, 131072, 16384), (1, 8192, 16384), {1: ("cp",)})
    assert shape_of(block, "q") == ((1, 131072, 128, 128), (1, 8192, 16, 128), {1: ("cp",), 2: ("tp",)})
    assert shape_of(block, "k") == ((1, 131072, 8, 128), (1, 8192, 1, 128), {1: ("cp",), 2: ("tp",)})
    assert shape_of(block, "hidden")[1] == (1, 8192, 53248 // 8)
    assert shape_of(loss, "logits") == ((1, 131072, 128256), (1, 8192, 16032), {1: ("cp",), 2: ("tp",)})


def test_no_process_group_is_left() -> None:
    lp.tape("mlp", "tiny", Layout(tp=2))
    assert not dist.is_initialized()
    assert torch.get_default_dtype() == torch.float32


def test_cut_dims_name_every_axis_that_cuts_them() -> None:
    tape = lp.tape("block", "tiny", Layout(tp=2, cp=4, dp=2, order="dp-cp-tp-pp"), seq_len=64, global_batch=4)
    x = tape.steps[0]
    assert (x.where, x.code, x.name) == ("block:0", "argument", "x")
    assert x.global_shape == (4, 64, 128)
    assert set(x.local.values()) == {(2, 8, 128)}
    assert x.cut == {0: ("dp",), 1: ("tp", "cp")}
    assert "dim 0 by dp, dim 1 by tp·cp" in str(tape)
    assert tape.ranks == tape.world == 16
    assert shape_of(tape, "w2") == ((128, 384), (128, 192), {1: ("tp",)})
    assert shape_of(tape, "positions") == ((64,), (16,), {0: ("cp",)})


def test_uneven_ranks_are_told_apart() -> None:
    tape = lp.tape("loss", lp.model("tiny").replace(vocab_size=1001, head_dim=8), Layout(tp=4), seq_len=64)
    logits = tape.step("logits")
    assert logits.local == {0: (1, 64, 251), 1: (1, 64, 251), 2: (1, 64, 251), 3: (1, 64, 248)}
    assert not logits.even
    assert logits.global_shape == (1, 64, 1001)
    assert "[1, 64, 251] on ranks 0–2; [1, 64, 248] on rank 3" in str(tape)


def test_only_the_ranks_that_fail_carry_the_error() -> None:
    """18 query heads over 4 ranks: 36 rows each for heads of 8 columns, and what torch says of that."""
    model = lp.model("tiny").replace(n_heads=3, n_kv_heads=3, head_dim=8, ffn_dim=10)
    tape = lp.tape("mlp", model, Layout(tp=4), seq_len=64)  # 10 columns over 4: 3, 3, 3, 1
    assert not tape.errors
    assert list(tape.step("hidden").local.values()) == [(1, 64, 3)] * 3 + [(1, 64, 1)]

    def unequal(mesh: Any, setting: Any, x: Tensor, w1: Tensor) -> Tensor:
        rows = w1.view(3, -1)
        return x @ rows.mT

    tape = lp.tape(unequal, model, Layout(tp=4, sequence_parallel=False), seq_len=64)
    assert tape.errors == {3: "RuntimeError: shape '[3, -1]' is invalid for input of size 128"}
    failed = tape.failed
    assert (failed.code, failed.local) == ("rows = w1.view(3, -1)", {})


def _helper(x: Tensor) -> Tensor:
    doubled = x + x
    return doubled.contiguous()


def test_a_program_of_ones_own_with_helpers_branches_and_loops() -> None:
    def mine(mesh: Any, setting: Any, x: Tensor, w1: Tensor) -> Tensor:
        total = collectives.all_gather(x, mesh, "tp", 1)
        for _ in range(2):
            total = _helper(total)
        hidden = total @ w1.mT  # a comment is no code
        if hidden.shape[-1] < 5:
            hidden = hidden * 2
        return hidden

    tape = lp.tape(mine, "tiny", Layout(tp=4, dp=2), seq_len=8, global_batch=2)
    made = [(step.where, step.name) for step in tape.steps]
    assert made == [
        ("mine:0", "x"),
        ("mine:0", "w1"),
        ("mine:1", "total"),
        ("_helper:0", "x"),
        ("_helper:1", "doubled"),
        ("_helper:2", "return"),
        ("mine:3", "total"),
        ("_helper:0", "x"),
        ("_helper:1", "doubled"),
        ("_helper:2", "return"),
        ("mine:3", "total"),
        ("mine:4", "hidden"),
        ("mine:7", "return"),
    ]
    assert tape.step("hidden").code == "hidden = total @ w1.mT"
    assert shape_of(tape, "hidden") == ((2, 8, 384), (1, 8, 96), {0: ("dp",), 2: ("tp",)})
    assert tape.program == "mine"


def test_an_error_that_the_program_handles_is_none_and_one_that_its_end_makes_is_told() -> None:
    def careful(mesh: Any, setting: Any, x: Tensor) -> Any:
        try:
            y = x.view(7, -1)
        except RuntimeError:
            y = x
        return [y]

    tape = lp.tape(careful, "tiny", Layout(tp=2))
    assert shape_of(tape, "y")[1] == (1, 32, 128)
    text = "LlamaparError: the program returned list\n  why  a tensor or a dict of tensors is needed"
    assert tape.errors == {0: text, 1: text}


def test_a_run_carries_its_tape() -> None:
    result = lp.run("attention", "tiny", Layout(tp=16), force=True)
    assert set(result.tape.errors) == set(range(16))
    assert result.tape.errors[0] == f"RuntimeError: {result.errors[0]}"
    assert str(result.tape) == str(lp.tape("attention", "tiny", Layout(tp=16), global_batch=2))


def test_padded_vocabulary_on_the_tape() -> None:
    tape = lp.tape("loss", "llama3.1-70b", Layout(tp=8), seq_len=64, padding=Padding(128, per_tp=True))
    assert shape_of(tape, "logits")[1] == (1, 64, 16128)  # 129024 rows over 8
    assert shape_of(lp.tape("loss", "llama3.1-70b", Layout(tp=8), seq_len=64), "logits")[1] == (1, 64, 16032)


def test_both_forms_and_their_escapes() -> None:
    tape = lp.tape("loss", "tiny", Layout(tp=2), seq_len=64)
    text, html = str(tape), tape._repr_html_()
    lines = text.splitlines()
    assert lines[0] == "loss, tp=2 cp=1 pp=1 dp=1: shapes of 2 of 2 ranks"
    assert lines[1].split() == ["line", "code", "name", "global", "shape", "cut", "on", "a", "rank"]
    assert len(lines) == 2 + len(tape.steps)
    assert "absent = (targets < first) | (targets >= past)" in text
    assert "absent = (targets &lt; first) | (targets &gt;= past)" in html
    allowed = r'<(?!(?:/?(?:p|b|table|tr|th|td|code)|t[hd] style="text-align:left"|code style="[a-z:-]*")>)'
    assert re.findall(allowed, html) == []
    assert html.count("<tr>") == 1 + len(tape.steps)
    failed = lp.tape("attention", "tiny", Layout(tp=16))._repr_html_()
    assert "RuntimeError: shape &#x27;[1, 64, -1, 8]&#x27; is invalid for input of size 256" in failed


def _whole(mesh: Any, setting: Any, tokens: Tensor, positions: Tensor, targets: Tensor, weights: Any) -> Any:
    """Llama as a program of one's own, which runs on every rank with every layer."""
    return llama.llama(mesh, setting, tokens, positions, targets, weights)


@pytest.mark.parametrize(
    ("layout", "options"),
    [
        (Layout(tp=2), {}),
        (Layout(tp=2, cp=2, dp=2, order="dp-cp-tp-pp"), {"documents": (40, 24), "cp_method": "ring"}),
        (Layout(tp=4), {"kv_replication": True}),
        (Layout(tp=4), {}),  # half a KV head: every rank raises in the first layer
        (Layout(tp=3, sequence_parallel=False), {}),  # the last rank raises another error
        (Layout(tp=2, dp=3), {"global_batch": 4}),  # two ranks raise, the others go through all layers
        (Layout(cp=4), {"seq_len": 66, "chunking": "contiguous"}),  # only the last CP rank raises
        (Layout(cp=4), {"seq_len": 70}),
        (Layout(tp=2), {"padding": Padding(128, per_tp=True)}),
    ],
)
def test_ranks_and_layers_that_are_alike_are_taped_as_if_each_had_run(
    layout: Layout, options: dict[str, Any]
) -> None:
    model = lp.model("tiny").replace(n_layers=2, n_kv_heads=2, vocab_size=1001, qk_norm=True)
    known, each = (lp.tape(program, model, layout, **options) for program in ("llama", _whole))
    assert known.steps == tuple(step for step in each.steps if not step.where.startswith("_whole:"))
    assert (known.ranks, known.world) == (each.ranks, each.world)
    assert sum(step.code.startswith("x = block(") for step in known.steps) in (0, 2)


def test_one_layer_of_one_rank_runs_for_all_that_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    right = attention.causal

    def counted(*args: Any) -> Tensor:
        ran.append(dist.get_rank())
        return right(*args)

    monkeypatch.setattr(attention, "causal", counted)
    taped = lp.tape("llama", "llama3-8b", Layout(tp=8))
    assert (len(taped.steps), taped.step("q").local) == (993, dict.fromkeys(range(8), (1, 64, 4, 128)))
    assert len(ran) == 3, "uncut, with tp alone, and one of eight ranks"
    ran.clear()
    lp.tape("llama", lp.model("tiny").replace(vocab_size=1001), Layout(tp=4))
    assert len(ran) == 4, "the last rank holds fewer rows of the vocabulary"
    ran.clear()
    lp.tape(_whole, "tiny", Layout(tp=4))
    assert len(ran) == 4 * (2 + 4), "four layers, and every rank of a program of one's own"
