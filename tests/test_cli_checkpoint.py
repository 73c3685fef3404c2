"""`llamapar checkpoint`: its five actions through the shell, their texts, JSON, statuses and refusals."""

import io
import json
import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import llamapar as lp
from llamapar import checkpoint
from llamapar.checkpoint import progress_line
from weights import contents, save_hf, tiny

PROJECT = Path(__file__).resolve().parent.parent
MODEL = tiny()


@pytest.fixture
def run(run, tmp_path, monkeypatch):
    """`run("inspect …")` in a folder that holds the checkpoint `old`: exit status, stdout, stderr."""
    save_hf(tmp_path / "old", MODEL)
    monkeypatch.chdir(tmp_path)
    return lambda line: run(["checkpoint", *shlex.split(line)])


# -- the five actions --------------------------------------------------------------------------------


def test_options_reach_the_library(run):
    same = [
        ("--tp 2 --layer-split remainder-last --pp 2", dict(tp=2, pp=2, layer_split="remainder last")),
        ("--tp 4 --padding 64 --n-kv-heads 8", dict(tp=4, padding="64", n_kv_heads=8)),
        ("--tp 4 --padding Colossal-AI", dict(tp=4, padding="colossalai")),
        ("--format meta --padding none", dict(format="meta", padding="none")),
        ("--model old/config.json", dict(model=MODEL.replace(name="old"))),
    ]
    for i, (line, options) in enumerate(same):
        assert run(f"reshard old shell{i} {line}")[0] == 0
        checkpoint.reshard("old", f"python{i}", **options)
        assert contents(Path(f"shell{i}")) == contents(Path(f"python{i}"))


def test_what_lies_in_it(run):
    found = checkpoint.inspect("old")
    assert run("inspect old") == (0, f"{found}\n", "")
    status, out, err = run("inspect old --json")
    told = json.loads(out)
    assert (status, err) == (0, "")
    assert told == {"schema": 2, **found.as_dict()}
    assert (told["ok"], told["bytes"]) == (True, 31_680)
    assert {t["name"]: t["shape"] for t in told["tensors"]} == {
        p.hf_name: list(p.shape) for p in MODEL.parameters()
    }


def test_json_of_what_was_made(run):
    status, out, err = run("shard old cut --tp 2 --json")
    assert (status, err) == (0, "llamapar: writing cut; if it is interrupted, it starts over\n")
    files = {p.name: p.stat().st_size for p in sorted(Path("cut").glob("*.safetensors"))}
    nbytes = checkpoint.opened("cut").nbytes
    assert json.loads(out) == dict(
        schema=2, path="cut", sharding="tp=2, no padding", bytes=nbytes, files=files
    )


# -- refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["numpy", "safetensors", "torch"])
def test_without_a_package_it_says_what_is_needed(missing, tmp_path):
    main = f"import sys; sys.modules[{missing!r}] = None; from llamapar.cli.main import main; "
    main += "sys.exit(main(['checkpoint', 'inspect', 'old']))"
    env = {**os.environ, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run([sys.executable, "-c", main], env=env, cwd=tmp_path, capture_output=True, text=True)
    told = f"llamapar: {missing} is not installed, and reading checkpoints needs it\n"
    told += "  try  pip install 'llamapar[run]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", told)


# -- on a terminal -----------------------------------------------------------------------------------


@pytest.mark.soak
def test_progress_on_a_terminal(run):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "llamapar", "checkpoint", "gather", "old", "new"]
    environment = os.environ | {"PYTHONPATH": str(Path(lp.__file__).parent.parent)}
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, text=True, env=environment)
    os.close(theirs)
    told = os.read(ours, 65536).decode()
    os.close(ours)
    assert (done.returncode, done.stdout) == (0, "new: whole, 31,680 bytes in 1 file\n")
    lines = told.replace("\r\n", "\n").split("\r")
    assert lines[0] == "llamapar: writing new; if it is interrupted, it starts over\n"
    assert re.fullmatch(r"0\.00 of 0\.00 GB, 0 s left\s*", lines[-1])
    quiet = subprocess.run([*command[:-1], "other"], capture_output=True, text=True, env=environment)
    begun = "llamapar: writing other; if it is interrupted, it starts over\n"
    assert (quiet.returncode, quiet.stderr) == (0, begun)


def test_progress_names_the_time_left(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress_line.time, "monotonic", lambda: now[0])
    out = io.StringIO()
    line = progress_line.ProgressLine(out)
    for second, done in ((1.0, 10), (2.0, 50), (9.0, 100)):
        now[0] = 100 + second
        line(done * 10**7, 10**9)
    shown = [text.rstrip(" ") for text in out.getvalue().rstrip("\n").split("\r")[1:]]
    assert shown == ["0.10 of 1.00 GB, 9 s left", "0.50 of 1.00 GB, 2 s left", "1.00 of 1.00 GB, 0 s left"]
    assert out.getvalue().endswith("\n")
