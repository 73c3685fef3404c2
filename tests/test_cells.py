"""`%%ranks`: a cell of a notebook on real ranks."""

import re

import pytest
import torch
import torch.distributed as dist
from IPython.testing.globalipapp import start_ipython

import llamapar as lp
from llamapar.execution.engines.pool import close_pool
from llamapar.execution.result import Result
from llamapar.jupyter import _degrees

pytestmark = pytest.mark.usefixtures("no_ranks_left")

NOTEBOOK = """
import torch
import torch.distributed as dist
import torch.distributed as dist
wq = torch.arange(64 * 32.0).view(64, 32)
def summed(x):
    y = x @ wq.mT
    dist.all_reduce(y, group=mesh.get_group("tp"))
    return y
"""


@pytest.fixture(scope="module")
def shell():
    ip = start_ipython()
    ip.run_line_magic("load_ext", "llamapar")
    ip.run_cell(NOTEBOOK)
    yield ip
    ip.run_line_magic("unload_ext", "llamapar")
    close_pool()


def ran(shell, degrees, *lines):
    shell.user_ns.pop("ranks", None)
    shell.run_cell("\n".join([f"%%ranks {degrees}", *lines]))
    found = shell.user_ns["ranks"]
    assert isinstance(found, Result)
    return found


def rows(found):
    return [[str(cell) for cell in row] for row in found._table()[2]]


def test_each_line_has_its_shapes_and_collectives(shell):
    found = ran(
        shell, "tp=2 cp=2", "x = torch.ones(3, 32)", "y = summed(x)", "z = y[:, : rank + 1]", "y.sum()"
    )
    assert found.ok
    x = torch.ones(3, 32) @ shell.user_ns["wq"].mT
    assert found.out == dict.fromkeys(range(4), 2 * x.sum())
    assert rows(found) == [
        ["cell:1", "x = torch.ones(3, 32)", "x: [3, 32] float32", ""],
        ["summed:1", "y = x @ wq.mT", "y: [3, 64] float32", ""],
        [
            "summed:2",
            'dist.all_reduce(y, group=mesh.get_group("tp"))',
            "y: [3, 64] float32",  # changed in place
            "all_reduce tp [3, 64] 768 B",  # of 2 ranks, the sums of both halves: as much as the tensor has
        ],
        ["summed:3", "return y", "return: [3, 64] float32", ""],
        ["cell:2", "y = summed(x)", "y: [3, 64] float32", ""],
        ["cell:3", "z = y[:, : rank + 1]", "z: [3, 1] float32 (rank 0)", ""],
        ["", "", "z: [3, 2] float32 (rank 1)", ""],
        ["", "", "z: [3, 3] float32 (rank 2)", ""],
        ["", "", "z: [3, 4] float32 (rank 3)", ""],
    ]


def test_what_each_collective_of_torch_sends(shell):
    """12 bytes over four ranks; of uneven pieces, all that a rank does not keep."""
    found = ran(
        shell,
        "tp=4",
        "x = torch.ones(3)",
        "dist.all_reduce(x)",
        "dist.broadcast(x, 0)",
        "whole = torch.empty(12)",
        "dist.all_gather_into_tensor(whole, x)",
        "dist.reduce_scatter_tensor(x, whole)",
        "dist.all_to_all_single(torch.empty(12), whole)",
        "splits = [rank == 0, 0, 0, 2 - (rank == 0)]",
        "back = [1, 0, 0, 0] if rank == 0 else [0, 0, 0, 0]",
        "back = [1, 2, 2, 2] if rank == 3 else back",
        "dist.all_to_all_single(torch.empty(sum(back)), torch.ones(2), back, splits)",
        "turned = [int(r == (rank + 1) % 4) for r in range(4)]",
        "came = [int(r == (rank - 1) % 4) for r in range(4)]",
        "dist.all_to_all_single(torch.empty(1, 3), x[None], came, turned)",
    )
    assert found.ok, found
    assert [row[3] for row in rows(found) if row[3]] == [
        "all_reduce tp [3] 18 B",
        "broadcast tp [3] 12 B",
        "all_gather tp [3] 36 B",
        "reduce_scatter tp [12] 36 B",
        "all_to_all tp [12] 36 B",
        "all_to_all tp [2] 4 B (rank 0)",
        "send tp [2] 8 B (ranks 1–2)",
        "all_to_all tp [2] 0 B (rank 3)",
        "send tp [1, 3] 12 B",
    ]


def test_ranks_in_different_calls_of_one_group_are_not_compared(shell):
    """Rank 0 rests after a scatter, in which only it gives tensors, and the others wait in the next call."""
    found = ran(
        shell,
        "tp=2",
        "x = torch.empty(3)",
        "parts = [torch.zeros(3), torch.ones(3)] if rank == 0 else None",
        "dist.scatter(x, parts, group=mesh.get_group('tp'))",
        "__import__('time').sleep(0.5 if rank == 0 else 0)",
        "dist.broadcast(torch.ones(5), 0, group=mesh.get_group('tp'))",
        "x.sum().item()",
    )
    assert found.out == {0: 0.0, 1: 3.0}, found


def test_what_ranks_print_is_told_by_rank(shell):
    found = ran(
        shell, "tp=4", "import sys", "print('even' if rank % 2 == 0 else 'odd')", "sys.stderr.write('!')"
    )
    foot = found._table()[3].splitlines()
    assert foot == [
        "ranks 0, 2 printed: even",
        "ranks 1, 3 printed: odd",
        "ranks 0–3 wrote to stderr: !",
        *foot[3:],
    ]


def test_names_stay_on_the_ranks_also_after_an_error(shell):
    ran(shell, "tp=2", "mine = torch.full((2,), rank)")
    wrong = ran(shell, "tp=2", "wrong = mine @ wq")
    assert not wrong.ok
    assert {type(a.error) for a in wrong.cell.answers} == {RuntimeError}
    said = wrong._table()[3]
    assert "at cell:1  wrong = mine @ wq, mine: [2] int64, wq: [64, 32] float32" in said
    assert ran(shell, "tp=2", "mine.tolist()").out == {0: [0, 0], 1: [1, 1]}
    shell.run_cell("mine = 5")  # the notebook's own now
    assert ran(shell, "tp=2", "mine").out == {0: 5, 1: 5}
    ran(shell, "tp=2", "mine = mine + rank")
    assert ran(shell, "tp=2", "mine").out == {0: 5, 1: 6}  # the notebook's has not changed


def test_what_cannot_be_copied_is_named_and_what_is_not_read_stays(shell):
    shell.run_cell("stream = (i for i in range(3))\nunread = (i for i in range(3))")
    found = ran(shell, "tp=2", "have = 'stream' in globals()", "if rank == 7:", "    stream", "have")
    assert found.out == {0: False, 1: False}
    assert list(found.cell.not_copied) == ["stream"]
    assert "not copied: stream, generator: " in found._table()[3]


def test_a_dtensor_says_where_it_is(shell):
    found = ran(
        shell,
        "tp=2",
        "from torch.distributed.tensor import Shard, distribute_tensor",
        "w = distribute_tensor(torch.ones(6, 4), mesh['tp'], [Shard(0)])",
    )
    assert re.fullmatch(r"w: \[3, 4\] of \[6, 4\] float32, tp: S(hard)?\((dim=)?0\)", rows(found)[0][2])


def test_a_rank_that_waits_is_named_with_its_line(shell, capsys):
    shell.run_cell("%%ranks tp=2 timeout=7\nif rank == 0:\n    dist.all_reduce(torch.ones(1))\ndone = 1")
    said = "".join(capsys.readouterr())
    assert "no progress for 5 s:" in said
    assert "rank 0" in said
    assert "line 2" in said


@pytest.mark.parametrize(
    ("line", "cell", "what"),
    [
        ("tpp=2", "1", "tpp=2 is no degree"),
        ("tp=0", "1", "tp=0"),
        ("tp=2 device=gpu", "1", "device='gpu' is not known"),
        ("tp=2", "x = (", "line 1 cannot be read"),
        ("tp=65", "1", "65"),
    ],
)
def test_bad_input_is_told(shell, line, cell, what, capsys):
    shell.run_cell(f"%%ranks {line}\n{cell}")
    assert what in "".join(capsys.readouterr())


def test_ranks_may_take_a_minute_between_two_signs_of_life():
    assert _degrees("tp=2")[1:] == ("auto", 60.0)


def test_a_cell_opens_in_watch(shell):
    found = ran(
        shell,
        "tp=2",
        "x = torch.full((2, 2), float(rank + 1))",
        'dist.all_reduce(x, group=mesh.get_group("tp"))',
        "y = x * 10",
        "large = torch.zeros(3000)",
    )
    x, summed, y, large = found.tape.steps
    assert [step.values[1].unique().tolist() for step in (x, summed, y)] == [[2.0], [3.0], [30.0]]
    assert [step.places["tp"].kind for step in (x, summed, y)] == ["own", "copy", "copy"]
    assert (summed.name, summed.reads, y.reads) == ("x", (0,), (1,))
    assert summed.event is not None
    assert not large.values  # too many numbers to be sent
    panel = lp.watch(found)
    assert panel.record is found.tape
    assert panel.film["source"] == found.cell.cell.source
    assert [step["line"] for step in panel.film["steps"]] == [1, 2, 3, 4]
    assert [step["made"] for step in panel.film["steps"]] == [[0], [1], [2], []]
    said = panel.snapshot().summary
    assert "a cell, tp=2 cp=1 pp=1 dp=1: 4 steps, 2 ranks" in said
    assert "All-reduce over TP: each rank gives its own x, and all get what the group makes of them." in said
    with pytest.raises(lp.LlamaparError, match="cannot be changed here"):
        panel.set(tp=4)


def test_the_line_that_raised_is_the_last_step(shell):
    found = ran(shell, "tp=2", "x = torch.ones(2, 3)", "if rank:", "    x @ x")
    (step,) = [step for step in lp.watch(found).film["steps"] if step["error"]]
    assert (step["line"], step["code"]) == (3, "x @ x")
    assert "RuntimeError" in step["error"]["1"]


def test_html_is_escaped(shell):
    found = ran(shell, "tp=2", "t = torch.ones(2)  # <script>", "'<b>bold</b>'")
    assert "<script>" not in found._repr_html_()
    assert "<b>bold" not in found._repr_html_()
    assert lp.Layout(tp=2) == found.layout


BRANCHES = {
    "it holds on ranks 0, 2 alone": lambda rank, world_rank: "first" if rank == 0 else "other",
    "it holds on ranks 1, 3 alone": lambda rank, world_rank: "other" if rank else "first",
    "it holds on rank 0 alone": lambda rank, world_rank: world_rank < 1,
    "each rank has its own number there": lambda rank, world_rank: ["a", "b", "c", "d"][world_rank],
}


@pytest.mark.parametrize("why", BRANCHES)
def test_a_branch_on_the_rank_is_refused_where_all_ranks_share_one_python(why):
    def program(mesh, setting, x):
        BRANCHES[why](mesh.get_local_rank("tp"), dist.get_rank())
        return x

    result = lp.run(program, "tiny", lp.Layout(tp=2, cp=2), engine="local", seq_len=8)
    said = str(result.reports[0].error)
    assert "a branch on the rank: test_cells.py:" in said
    assert "lambda rank, world_rank:" in said
    assert why in said
    assert "engine='processes'" in said
    assert dist.get_rank.__module__ == "torch.distributed.distributed_c10d"


def test_arithmetic_with_the_rank_is_each_ranks_own():
    def program(mesh, setting, x):
        rank = mesh.get_local_rank("tp")
        assert rank < 2  # the same answer on all ranks
        first = torch.arange(rank * 4, (rank + 1) * 4)
        return {"mine": first + dist.get_rank() + 0 * x.flatten()[:4]}

    result = lp.run(program, "tiny", lp.Layout(tp=2), engine="local", seq_len=8)
    assert result.reports[0].error is None
    assert [report.outputs["mine"].tolist() for report in result.reports] == [[0, 1, 2, 3], [5, 6, 7, 8]]


def test_a_line_that_some_ranks_skip_stands_where_it_was_written(shell):
    chain = (
        "if rank > 0: dist.recv(x, rank - 1)",
        "x = x + rank",
        "if rank < 3: dist.send(x, rank + 1)",
        "x",
    )
    found = ran(shell, "tp=4", "x = torch.ones(2)", *chain)
    assert [line.where for line in found.lines] == [f"cell:{n}" for n in (1, 2, 3, 4)]
    words = lp.watch(found).snapshot().summary
    assert "Recv over TP: x goes from ranks 0–2 to ranks 1–3." in words
    assert "Send over TP: x goes from ranks 0–2 to ranks 1–3. A rank sends 8 bytes." in words
