"""`llamapar debug` and `llamapar.watch_errors()`: what a rank that fails prints, alone and under torchrun."""

import re
import subprocess
import sys

import pytest

ALONE = """\
import sys
import torch

def project(x, w):
    return x @ w.T

print(sys.argv, __name__, sys.path[0])
{}
project(torch.zeros(2, 5), torch.zeros(4, 6))
"""
RANKS = """\
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = nn.Sequential(nn.Linear(66, 66, bias=False))
parallelize_module(model, init_device_mesh("cpu", (world,), mesh_dim_names=("tp",)), {"0": ColwiseParallel()})
heads, size = 6, 11
WHERE
    model(torch.zeros(3, 66 if rank != ODD else 60)).unflatten(-1, (heads, size))
dist.barrier()
"""


ALONE_WORDS = "one process, and nothing that the failing code names is cut"


def of_python(*words, folder):
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_script_runs_as_python_runs_it_and_its_error_has_facts_as_with_the_one_line(tmp_path):
    (tmp_path / "train.py").write_text(ALONE.format(""))
    ran = of_python("-m", "llamapar", "debug", "train.py", "--steps", "10", "--help", folder=tmp_path)
    assert ran.returncode == 1
    assert ran.stdout == f"['train.py', '--steps', '10', '--help'] __main__ {tmp_path}\n"
    trace, _, facts = ran.stderr.partition("llamapar: ")
    assert "runpy" not in trace
    assert trace.splitlines()[-1] == "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x5 and 6x4)"
    assert facts.splitlines() == [
        "where it failed",
        "Not a sharding problem: one process fails as well, and no likely edit of this line runs",
        "where  train.py, project, line 5: x @ w.T",
        "       one process, torch.distributed not initialised",
        "       name  on this rank",
        "       x     [2, 5] float32",
        "       w     [4, 6] float32",
        *(line for line in facts.splitlines() if "without an effect outside" in line),
    ]
    as_module = of_python("-m", "llamapar", "debug", "-m", "train", folder=tmp_path)
    assert (as_module.returncode, as_module.stderr.partition("llamapar: ")[2]) == (1, facts)
    (tmp_path / "own.py").write_text(ALONE.format("import llamapar; llamapar.watch_errors()"))
    own = of_python("own.py", folder=tmp_path)
    # The one line explains; only the command tries edits.
    explained = facts.replace("one process fails as well, and no likely edit of this line runs", ALONE_WORDS)
    explained = "".join(line for line in explained.splitlines(keepends=True) if " tried, " not in line)
    assert own.returncode == 1
    explained = explained.replace("train.py", "own.py") + "next   llamapar debug own.py\n"
    assert own.stderr.partition("llamapar: ")[2] == explained


def test_a_module_runs_as_python_runs_it(tmp_path):
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv, __name__)\n1 / 0\n")
    alone, ran = (
        of_python(*words, "-m", "train", "--steps", folder=tmp_path)
        for words in ((), ("-m", "llamapar", "debug"))
    )
    assert (ran.returncode, ran.stdout) == (alone.returncode, alone.stdout)
    assert ran.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert "runpy" not in ran.stderr


@pytest.mark.parametrize(
    ("ends", "status", "said"),
    [
        ("sys.exit(7)", 7, ""),
        ("sys.exit('no')", 1, "no\n"),
        ("", 0, ""),
        ("def f(:", 1, "SyntaxError"),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("raise KeyboardInterrupt", -2, "KeyboardInterrupt"),
        ("assert False", 1, "AssertionError"),
    ],
)
def test_a_script_without_an_error_of_shapes_ends_as_it_would(tmp_path, ends, status, said):
    (tmp_path / "train.py").write_text(f"import sys\nprint('done')\n{ends}\n")
    ran = of_python("-m", "llamapar", "debug", "train.py", folder=tmp_path)
    assert (ran.returncode, ran.stdout) == (status, "" if said == "SyntaxError" else "done\n")
    assert said in ran.stderr
    assert bool(said) == bool(ran.stderr)
    assert "llamapar: " not in ran.stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "a script is needed"),
        (["nowhere.py"], "'nowhere.py' is no file"),
        (["-m"], "-m: a module is needed"),
        (["-m", "no_such_module"], "'no_such_module' is no module that can be run from here"),
        (["-m", "no_such.module"], "'no_such.module' is no module that can be run from here"),
        (["-m", "json"], "'json' is no module that can be run from here"),  # a package without __main__
    ],
)
def test_without_a_script_it_says_what_is_missing(run, words, complaint):
    status, _, err = run(["debug", *words])
    assert status == 2
    assert err.startswith(f"llamapar: {complaint}\n")


def test_a_script_knows_its_file_as_python_tells_it(tmp_path):
    (tmp_path / "train.py").write_text("print(__file__)\n")
    alone, ran = (
        of_python(*words, "train.py", folder=tmp_path) for words in ((), ("-m", "llamapar", "debug"))
    )
    assert (ran.returncode, ran.stdout) == (0, alone.stdout)
    assert ran.stdout == f"{tmp_path / 'train.py'}\n"


def test_a_package_that_fails_shows_its_own_error(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("import no_such_library\n")
    (tmp_path / "package" / "train.py").write_text("")
    ran = of_python("-m", "llamapar", "debug", "-m", "package.train", folder=tmp_path)
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'no_such_library'"


@pytest.mark.soak
@pytest.mark.parametrize(
    ("where", "odd", "told"),
    [
        ("if True:", 5, {0: "llamapar: ranks 0–2 failed"}),
        ("if rank > 0:", 5, {1: "llamapar: ranks 1–2 failed"}),
        ("if True:", 1, {0: "llamapar: ranks 0–2 failed, rank 1 in another way", 1: "llamapar: rank 1"}),
    ],
)
def test_under_torchrun_one_rank_tells_for_those_alike(tmp_path, where, odd, told):
    (tmp_path / "train.py").write_text(RANKS.replace("WHERE", where).replace("ODD", str(odd)))
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "3", "--no-python")
    command = (sys.executable, "-m", "llamapar", "debug", "train.py")
    ran = of_python(*torchrun, *command, folder=tmp_path)
    assert ran.returncode == 1
    lines = [match.groups() for match in re.finditer(r"^\[rank(\d)\]: (.*)$", ran.stderr, re.MULTILINE)]
    heads = {int(rank): line for rank, line in lines if line.startswith("llamapar: ")}
    assert heads == told
    teller = min(told)
    own = [line for rank, line in lines if int(rank) == teller]
    facts = own[own.index(told[teller]) :]
    assert len(facts) <= 16
    shown = "\n".join(facts)
    assert "line 12: model(torch.zeros(3, 66 if rank != " in shown
    assert f"rank {teller} of 3, mesh tp=3" in shown
    assert "next " not in shown
    assert "\x1b" not in "".join(facts)
