"""What ranks raise is a failing cell: the edit of a module's code, of its plan, of a cell of `%%ranks`."""

import contextlib
import io

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from traitlets.config import Config

import llamapar as lp
from llamapar.diagnosis.edits.candidates import Edit
from llamapar.execution.engines.pool import close_pool, pool
from llamapar.execution.engines.rank import MOST_PRINTED, capped
from llamapar.execution.repairing import _of_any_rank

PLAN = {"wq": ColwiseParallel(), "wo": RowwiseParallel()}


class Heads(nn.Module):
    """Reads all heads in a view, as code of one process does."""

    n_heads, hd = 4, 6

    def __init__(self):
        super().__init__()
        self.wq, self.wo = nn.Linear(20, 24, bias=False), nn.Linear(24, 20, bias=False)

    def forward(self, x):
        q = self.wq(x).view(*x.shape[:2], self.n_heads, self.hd)
        return self.wo(q.softmax(-1).flatten(2))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(12, 32), nn.Linear(32, 12)

    def forward(self, x):
        return self.down(self.up(x).relu())


@pytest.fixture
def shell():
    InteractiveShell.clear_instance()
    options = Config(HistoryManager={"enabled": False})
    one = InteractiveShell.instance(config=options)
    one.run_cell("%load_ext llamapar\nimport torch")
    yield one
    InteractiveShell.clear_instance()
    close_pool()


def shown(shell, cell):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        shell.run_cell(cell, store_history=True)
    return out.getvalue()


def test_the_code_of_a_module_is_edited_and_proved_on_its_ranks():
    result = lp.compare(Heads, PLAN, {"tp": 2}, inputs={"x": torch.randn(2, 5, 20)}, device="cpu")
    found = result.explanation
    assert found is not None
    assert found.edit[-1] == "+ q = self.wq(x).view(*x.shape[:2], self.n_heads // tp, self.hd)"
    assert found.proof == ("proved: equals one process on 2 ranks, output and gradients",)
    assert found.live is not None
    assert found.live.function == "test_repairing.py, Heads.forward"
    assert "self.wq.weight  [12, 20] float32" in str(found)


def test_the_part_of_the_control_run_becomes_each_ranks_own_and_no_element_does():
    parts = ("w.chunk(tp, 0)[0]", "w.chunk(tp, 0)[0][0]")
    made = [_of_any_rank(Edit("", (), "w", part, "cut", None, 1.0, part)).new for part in parts]
    assert made == ["w.chunk(tp, 0)[rank]", "w.chunk(tp, 0)[0][0]"]


@pytest.mark.parametrize(
    ("plan", "edit"),
    [
        (
            {"up": ColwiseParallel(), "down": ColwiseParallel()},
            ('- "down": ColwiseParallel()', '+ "down": RowwiseParallel()'),
        ),
        ({"up": ColwiseParallel()}, ('+ "down": RowwiseParallel()',)),
    ],
)
def test_a_style_of_the_plan_is_edited(plan, edit):
    given = {"inputs": {"x": torch.randn(2, 3, 12)}, "device": "cpu", "dtype": "float64"}
    found = lp.compare(Mlp, plan, {"tp": 2}, **given).explanation
    assert found is not None
    assert found.edit == edit
    assert found.proof[0].startswith("proved: equals one process on 2 ranks; ")
    name = edit[-1].split('"')[1]
    mended = plan | {name: RowwiseParallel()}
    assert lp.compare(Mlp, mended, {"tp": 2}, **given).ok


CELL = """%%ranks tp=2
mine = w.chunk(world)[rank]
h = x @ mine.T + b
if rank == 0:
    print("once")
dist.all_reduce(h)
"""


def test_a_cell_that_fails_is_explained_mended_and_fails_again(shell):
    shell.run_cell("w, b, x = torch.randn(8, 6), torch.randn(8), torch.randn(3, 6)")
    for _ in range(2):
        text = shown(shell, CELL)
        assert text.count("RuntimeError: The size of tensor a (4) must match") == 2, (
            text
        )  # of ranks; of the line
        assert "+ h = x @ mine.T + b.chunk(world, 0)[rank]\nproved: equals one process" in text, text
        assert "on 2 ranks" in text
        mended = shown(shell, CELL.replace("+ b", "+ b.chunk(world)[rank]"))
        assert mended.count("once") == 1, mended
        assert "error" not in mended


def test_uneven_tensors_are_named_before_anything_aborts(shell):
    text = shown(shell, "%%ranks tp=2\nx = torch.ones(2, 3 + rank)\ndist.all_reduce(x)")
    assert "rank 0: all_reduce over tp, [2, 3] float32; rank 1: all_reduce over tp, [2, 4] float32" in text
    assert "out  rank 1: 1" in shown(shell, "%%ranks tp=2 device=cpu\nrank")


def test_an_abort_names_its_line_and_the_next_cell_runs(shell):
    text = shown(shell, "%%ranks tp=2\nimport os\nif rank == 1:\n    os.abort()\ndist.barrier()")
    assert "rank 1 was killed by SIGABRT on line 3 of <cell on ranks" in text
    assert "os.abort()" in text
    assert "out  ranks 0–1: 2" in shown(shell, "%%ranks tp=2\nworld")


def test_an_error_of_a_rank_travels_with_the_facts_of_its_frame():
    def fails(context):
        h, w = torch.ones(2, 3), torch.ones(4, 5)
        return h @ w

    [answer] = pool(1).run(fails)
    found = lp.explain(answer.error)
    assert found.live is not None
    assert [one.shape for one in found.live.operands] == [(2, 3), (4, 5)]
    close_pool()


def test_output_is_cut_with_a_count():
    assert capped("a\nb\n") == "a\nb\n"
    assert capped("line\n" * (MOST_PRINTED + 1234)) == "line\n" * MOST_PRINTED + "… 1,234 more lines\n"
