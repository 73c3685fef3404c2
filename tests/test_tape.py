"""The shape tape: what each rank holds after each line of a program, on the meta device."""

import re
import resource

import pytest
import torch
import torch.distributed as dist

import llamapar as lp
from llamapar import Layout, Padding
from llamapar.programs import attention, llama
from llamapar.spmd import collectives


def shape_of(tape, name):
    """Global shape, the shape on every rank (which must be one), and the cut of the last `name`."""
    step = tape.step(name)
    assert step.even
    assert len(step.local) == tape.ranks
    return step.global_shape, next(iter(step.local.values())), dict(step.cut)


def test_405b_at_its_true_size_allocates_nothing():
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


def test_no_process_group_is_left():
    lp.tape("mlp", "tiny", Layout(tp=2))
    assert not dist.is_initialized()
    assert torch.get_default_dtype() == torch.float32


def _helper(x):
    doubled = x + x
    return doubled.contiguous()


# Programs of one's own, whose tapes stand in texts/tape.txt.


def mine(mesh, setting, x, w1):
    total = collectives.all_gather(x, mesh, "tp", 1)
    for _ in range(2):
        total = _helper(total)
    hidden = total @ w1.mT  # a comment is no code
    if hidden.shape[-1] < 5:
        hidden = hidden * 2
    return hidden


def unequal(mesh, setting, x, w1):
    rows = w1.view(3, -1)
    return x @ rows.mT


def careful(mesh, setting, x):
    try:
        y = x.view(7, -1)
    except RuntimeError:
        y = x
    return [y]


def test_a_run_carries_its_tape():
    result = lp.run("attention", "tiny", Layout(tp=16), force=True)
    assert set(result.tape.errors) == set(range(16))
    assert result.tape.errors[0] == f"RuntimeError: {result.errors[0]}"
    assert str(result.tape) == str(lp.tape("attention", "tiny", Layout(tp=16), global_batch=2))


def test_both_forms_and_their_escapes():
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


def _whole(mesh, setting, tokens, positions, targets, weights):
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
def test_ranks_and_layers_that_are_alike_are_taped_as_if_each_had_run(layout, options):
    model = lp.model("tiny").replace(n_layers=2, n_kv_heads=2, vocab_size=1001, qk_norm=True)
    known, each = (lp.tape(program, model, layout, **options) for program in ("llama", _whole))
    assert known.steps == tuple(step for step in each.steps if not step.where.startswith("_whole:"))
    assert (known.ranks, known.world) == (each.ranks, each.world)
    assert sum(step.code.startswith("x = block(") for step in known.steps) in (0, 2)


def test_one_layer_of_one_rank_runs_for_all_that_are_alike(monkeypatch):
    ran = []
    right = attention.causal

    def counted(*args):
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
