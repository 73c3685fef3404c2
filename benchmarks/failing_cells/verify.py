"""Hold truth.toml to the word: run every failing program and every experiment that its truth speaks of.

    python benchmarks/failing_cells/verify.py             # all of it
    python benchmarks/failing_cells/verify.py --quick 07  # leaves out the plain `python file.py`; some cases

What is held: the program fails in a process of its own with the stated type at the stated line; the stated
expression stands there and is what the interpreter was evaluating; every operand and integer has, in the
frame that failed, the stated shape, dtype, placement and value; the process was what is stated; and
`attempt`, run in a fresh fake group on meta tensors, passes and fails at the degrees and dims of the truth.
"""

from __future__ import annotations

import argparse
import ast
import io
import os
import re
import subprocess
import sys
import tomllib
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from types import FrameType, SimpleNamespace, TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

HERE = Path(__file__).resolve().parent
DEGREES = (1, 2, 3, 4, 5, 6, 8, 16, 32, 64)
AXES = ("tp", "cp", "pp", "dp")


# -- what stood in the frame that failed ---------------------------------------------------------------------


def placement(one: Any) -> str:
    """A placement as truth.toml writes it, whichever way this torch prints it."""
    if isinstance(one, Replicate):
        return "Replicate()"
    if isinstance(one, Partial):
        return f"Partial({one.reduce_op})"
    if type(one) is Shard:
        return f"Shard({one.dim})"
    return f"StridedShard({one.dim}, {one.split_factor})"


def describe(value: torch.Tensor) -> str:
    """`[2, 16] float32`, and for a DTensor what this rank holds, how it is placed, and on which mesh."""
    said = f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, DTensor):
        mesh = dict(zip(value.device_mesh.mesh_dim_names or (), value.device_mesh.shape, strict=True))
        placed = ", ".join(map(placement, value.placements))
        said += f", here {list(value._local_tensor.shape)}, {placed} on {mesh}"
    return said


def innermost(trace: TracebackType | None, path: Path) -> tuple[FrameType, int, str]:
    """The deepest frame of this file in a traceback, its line, and the source text it was evaluating."""
    found: TracebackType | None = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            found = trace
        trace = trace.tb_next
    assert found is not None, "no frame of the file in the traceback"
    places = list(found.tb_frame.f_code.co_positions())[found.tb_lasti // 2]
    first, last, start, end = places
    assert first is not None
    assert last is not None
    lines = path.read_text().encode().splitlines()[first - 1 : last]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    return found.tb_frame, found.tb_lineno, b" ".join(lines).decode()


def run_as_main(path: Path) -> BaseException:
    """Run a file as `python file.py` does and hand back what it raises."""
    space = {"__name__": "__main__", "__file__": str(path)}
    try:
        exec(compile(path.read_text(), str(path), "exec"), space)
    except Exception as error:
        return error
    raise AssertionError("the program runs through")


def same(text: str) -> str:
    return re.sub(r"\s+", "", text)


def check_failure(name: str, truth: dict[str, Any]) -> list[str]:
    """What differs between the failure of a file and its truth."""
    path = HERE / f"{name}.py"
    error = run_as_main(path)
    frame, line, text = innermost(error.__traceback__, path)
    wrong = []
    if type(error).__name__ != truth["error"]:
        wrong.append(f"raises {type(error).__name__}, not {truth['error']}: {error}")
    if line != truth["line"]:
        wrong.append(f"fails at line {line}, not {truth['line']}")
    # an assert, an unpacking and an assignment are statements: the expression is what they look at
    at_line = same(path.read_text().splitlines()[line - 1])
    if same(text) != same(truth["expression"]) and not (
        at_line.startswith(("assert", same(text) + "=")) and same(truth["expression"]) in at_line
    ):
        wrong.append(f"was evaluating {text!r}, not {truth['expression']!r}")
    ast.parse(truth["expression"])
    if same(truth["expression"]) not in same(path.read_text()):
        wrong.append(f"{truth['expression']!r} does not stand in the file")
    for source, said in truth.get("operands", {}).items():
        value = eval(source, frame.f_globals, frame.f_locals)
        if describe(value) != said:
            wrong.append(f"{source} is {describe(value)}, not {said}")
    for source, number in truth.get("integers", {}).items():
        value = eval(source, frame.f_globals, frame.f_locals)
        if type(value) is not int or value != number:
            wrong.append(f"{source} is {value!r}, not {number}")
    there = dist.is_initialized()
    process = dict(
        initialised=there,
        rank=dist.get_rank() if there else 0,
        world=dist.get_world_size() if there else 1,
    )
    if process != truth["process"]:
        wrong.append(f"the process is {process}, not {truth['process']}")
    if there:
        dist.destroy_process_group()
    return wrong


# -- the experiments -----------------------------------------------------------------------------------------


def try_out(space: dict[str, Any], layout: dict[str, int], **dims: int) -> BaseException | None:
    """One run of `attempt` as rank 0 of a fresh fake group, on meta tensors: what it raises, or None."""
    full = {"tp": 1, "cp": 1, "pp": 1, "dp": 1} | layout
    world = full["tp"] * full["cp"] * full["pp"] * full["dp"]
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    torch.set_default_device("meta")
    try:
        space["attempt"](SimpleNamespace(**space["MODEL"] | dims), SimpleNamespace(**full))
    except Exception as error:
        return error
    finally:
        torch.set_default_device(None)
        dist.destroy_process_group()
    return None


def check_experiment(name: str, truth: dict[str, Any]) -> list[str]:
    """What differs between what `attempt` does at other degrees and dims and its truth."""
    path = HERE / f"{name}.py"
    said = truth.get("experiment")
    if ("def attempt(" in path.read_text()) != (said is not None):
        return ["attempt in the file and experiment in the truth go together"]
    if said is None:
        return []
    space: dict[str, Any] = {"__name__": name, "__file__": str(path)}
    exec(compile(path.read_text(), str(path), "exec"), space)
    wrong = []
    layout: dict[str, int] = space["LAYOUT"]
    error = try_out(space, layout)
    if type(error).__name__ != truth["error"]:
        wrong.append(f"on meta tensors attempt raises {error!r}, not {truth['error']}")
    else:
        assert error is not None
        line = innermost(error.__traceback__, path)[1]
        if line != truth["line"]:
            wrong.append(f"on meta tensors attempt fails at line {line}, not {truth['line']}")
    by_itself = try_out(space, {})
    alone = "fails" if by_itself else "passes"
    if alone != said["alone"]:
        wrong.append(f"alone it {alone}, not {said['alone']}")
    if by_itself and innermost(by_itself.__traceback__, path)[1] != truth["line"]:
        wrong.append(f"alone it fails at another line: {by_itself}")
    axes = [axis for axis in AXES if layout.get(axis, 1) > 1 and not try_out(space, layout | {axis: 1})]
    if axes != said["axes"]:
        wrong.append(f"axes {axes}, not {said['axes']}")
    for axis, stated in said.get("passes", {}).items():
        passes = [degree for degree in DEGREES if not try_out(space, layout | {axis: degree})]
        if passes != stated:
            wrong.append(f"passes at {axis} {passes}, not {stated}")
    for dim, size in said.get("dims", {}).items():
        if dim not in space["MODEL"] or space["MODEL"][dim] == size:
            wrong.append(f"{dim} = {size} changes nothing")
        elif error := try_out(space, layout, **{dim: size}):
            wrong.append(f"{dim} = {size} does not make it pass: {error}")
    return wrong


# -- one case, all cases -------------------------------------------------------------------------------------


def in_a_child(work: Callable[[], list[str]]) -> list[str]:
    """Do it in a forked child, so that no case sees another's process group or default device."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # DTensor logs what it fails at, trace by trace
        with os.fdopen(write, "w") as out:
            try:
                with redirect_stdout(io.StringIO()):
                    said = work()
            except BaseException:
                said = [traceback.format_exc()]
            out.write("\0".join(said))
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as back:
        heard = back.read()
    os.waitpid(child, 0)
    return heard.split("\0") if heard else []


def check_plain_run(name: str, truth: dict[str, Any]) -> list[str]:
    """What differs when the file runs as a user runs it: `python file.py`, its traceback read as text."""
    path = HERE / f"{name}.py"
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=300)
    if done.returncode == 0:
        return ["`python file.py` runs through"]
    heard = re.sub(r"^\[rank\d+\]: ?", "", done.stderr, flags=re.MULTILINE)  # torch's mark of a rank
    final = heard[heard.rindex("Traceback (most recent call last)") :]
    lines = re.findall(rf'File "{re.escape(str(path))}", line (\d+)', final)
    raised = re.findall(r"^([A-Za-z_.]+)(?::|$)", final, flags=re.MULTILINE)
    wrong = []
    if not lines or int(lines[-1]) != truth["line"]:
        wrong.append(f"`python file.py` fails at lines {lines}, not {truth['line']}")
    if truth["error"] not in [one.rpartition(".")[2] for one in raised]:
        wrong.append(f"`python file.py` raises {raised}, not {truth['error']}")
    return wrong


def check_text(name: str, truth: dict[str, Any]) -> list[str]:
    """A title of one line, a length of 10 to 60 lines, and a truth with everything that it must have."""
    text = (HERE / f"{name}.py").read_text()
    title = ast.get_docstring(ast.parse(text)) or ""
    wrong = []
    if not title or "\n" in title:
        wrong.append("no title of one line")
    if not 10 <= len(text.splitlines()) <= 60:
        wrong.append(f"{len(text.splitlines())} lines")
    missing = {"sharding", "why", "expression", "line", "error", "process"} - set(truth)
    if missing:
        wrong.append(f"the truth lacks {sorted(missing)}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("only", nargs="*", help="numbers or names of cases")
    parser.add_argument("--quick", action="store_true", help="leave out the plain `python file.py`")
    asked = parser.parse_args()
    truths = tomllib.loads((HERE / "truth.toml").read_text())
    files = {path.stem for path in HERE.glob("[0-9][0-9]_*.py")}
    bad = [f"{name}: a file without a truth, or the reverse" for name in sorted(files ^ set(truths))]
    print(*bad, sep="\n", end="\n" * bool(bad))
    names = [name for name in sorted(files & set(truths)) if name.startswith(tuple(asked.only) or "")]
    torch.set_num_threads(1)
    for name in names:
        truth = truths[name]
        wrong = check_text(name, truth)
        wrong += in_a_child(partial(check_failure, name, truth))
        wrong += in_a_child(partial(check_experiment, name, truth))
        if not asked.quick:
            wrong += check_plain_run(name, truth)
        print(f"{name}: {'; '.join(wrong) or 'holds'}", flush=True)
        bad += wrong
    held = [truths[name] for name in names]
    print(
        f"{len(names)} cases, {sum(one['sharding'] for one in held)} of sharding, "
        f"{sum(not one['sharding'] for one in held)} plain; "
        f"{sum('experiment' in one for one in held)} with attempt; {len(bad)} statements do not hold"
    )
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
