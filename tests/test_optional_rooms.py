"""The library without one of its optional rooms: the others work, and its doors say how to get it."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import llamapar as lp
from inputs import few
from llamapar.late import OPTIONAL, PUBLIC, imported

PROJECT = Path(__file__).resolve().parent.parent
PACKAGE = PROJECT / "llamapar"

BROKEN = "shape '[1, 8192, -1, 128]' is invalid for input of size 524288"

FILES = {
    "train.toml": '[model]\nname = "llama3"\nflavor = "8B"\n[parallelism]\ntensor_parallel_degree = 2\n',
    "run.slurm": "torchrun --nproc_per_node=2 -m torchtitan.train --job.config_file train.toml\n",
    "hang.log": f"RuntimeError: {BROKEN}\n[rank1]: [PG 0 Rank 1] WorkNCCL(SeqNum=7, OpType=ALLREDUCE, "
    "NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600001 milliseconds before timing out.\n",
    "train.py": "import torch\ntorch.zeros(2, 3) @ torch.zeros(4, 2)\n",
}
"""The files that the commands name."""

PLAN = ["plan", "tiny", "--gpus=2", "--seq-len=64", "--global-batch=8"]

README = {
    "explain": (0, ["explain", BROKEN, "--model=llama3-8b", "--tp=16"]),
    "check": (1, ["check", "--model=llama3.1-405b", "--tp=8", "--cp=16", "--pp=16", "--gpus=16384"]),
    "plan": (0, PLAN),
    "explorer": (0, ["explorer"]),
    "debug": (1, ["debug", "train.py"]),
}
"""README's commands that need no optional room: the word, and the exit status of an example."""

README_OF_ROOMS = {
    "check --config": ("configs", 0, ["check", "--config=train.toml", "--launch=run.slurm"]),
    "checkpoint": ("checkpoint", 2, ["checkpoint", "inspect", "not-there"]),
    "course": ("course", 0, ["course", "mine", "--copy"]),
}
"""README's commands that need one: the room, and the exit status where all rooms are there."""

OTHERS = {
    "check alike": (1, ["check", "llama3-8b", "--tp=16"]),
    "run": (0, ["run", "mlp", "tiny", "--tp=2"]),
    "help": (0, ["--help"]),
    "a hang's log": (0, ["explain", "--file=hang.log", "--model=llama3-8b", "--tp=16"]),
    "export cli": (0, [*PLAN, "--export=cli"]),
}
OTHERS_OF_ROOMS = {
    "explain --config": ("configs", 0, ["explain", BROKEN, "--config=train.toml"]),
    "cost --config": ("configs", 1, ["cost", "--config=train.toml"]),
    "lesson": ("course", 0, ["lesson", "03"]),
    "lesson --help": ("course", 0, ["lesson", "--help"]),
    "a folder of flight records": ("hangs", 2, ["explain", "dumps"]),
    "verify": ("checkpoint", 2, ["checkpoint", "verify", "not-there"]),
}

TOLD_BESIDE = {("help", "course"), ("a hang's log", "hangs")}
"""Command and room, where an answer without the room says that it is missing."""

SCRIPT = r"""
import contextlib, io, json, os, sys

def left(*words):
    raise SystemExit(0)

os.execv = left  # a server would replace this process

import llamapar as lp
from llamapar.cli.main import main
from llamapar.late import PUBLIC

assert lp.__file__.startswith(os.getcwd()), lp.__file__
commands = json.load(sys.stdin)
answers = {}
for name, words in commands.items():
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(words)
    answers[name] = status, out.getvalue(), err.getvalue()

panel = lp.explorer("tiny", tp=2)
panel.set(tp=1, dp=2)
answers["panel"] = str(panel.job.layout), panel.snapshot().summary
sent = []
panel.send = lambda content, buffers=None: sent.append(content)
seq = panel.payload["seq"]
for message in (
    {"kind": "copy", "name": "CLI"},
    {"kind": "settings", "files": [["train.toml", open("train.toml").read()]]},
):
    panel._receive(None, {"id": 1, "seq": seq, **message}, None)
answers["sent"] = sent

refusals = {}
for name, module in PUBLIC.items():
    try:
        getattr(lp, name)
    except lp.LlamaparError as refused:
        refusals[name] = str(refused)
answers["public"] = refusals

def attempt():
    import torch

    tp, heads = 2, 4
    return torch.zeros(3, heads * 2 // tp).view(3, heads, 2)

answers["library"] = lp.check("llama3-8b", {"tp": 2}).ok, lp.run("mlp", "tiny", tp=2).ok
answers["lp.debug"] = str(lp.debug(attempt, seconds=20))
answers["lp.clinic"] = str(lp.clinic("8 is not 4").snapshot().summary)
json.dump(answers, sys.stdout)
"""


def refusal(room):
    """What whoever needs a missing room is told."""
    return (
        f"llamapar.{room} is missing from this installation\n"
        f"  why  it {OPTIONAL[room]}\n"
        "  try  pip install --force-reinstall --no-deps llamapar"
    )


def answers_without(room, folder):
    """What every door answers from a copy of the package without a room: one process asks them all."""
    shutil.copytree(PACKAGE, folder / "llamapar")
    shutil.rmtree(folder / "llamapar" / room)
    for name in ("notebooks", "jupyter", "docs"):
        (folder / name).symlink_to(PROJECT / name)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "dumps").mkdir()
    (folder / "ask.py").write_text(SCRIPT)
    commands = {name: words for name, (_, words) in (README | OTHERS).items()}
    commands |= {name: words for name, (_, _, words) in (README_OF_ROOMS | OTHERS_OF_ROOMS).items()}
    done = subprocess.run(
        [sys.executable, "ask.py"],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=folder,
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state")},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("room", few(OPTIONAL, 1))
def test_the_others_work_without_a_room_and_its_doors_say_how_to_get_it(room, tmp_path):
    answers, missing = answers_without(room, tmp_path), refusal(room)
    for name, (status, _) in (README | OTHERS).items():
        got, out, err = answers[name]
        assert (got, "is missing from" in err) == (status, False), (name, err)
        assert ("is missing from" in out) == ((name, room) in TOLD_BESIDE), (name, out)
    for name, (needed, status, _) in (README_OF_ROOMS | OTHERS_OF_ROOMS).items():
        got, out, err = answers[name]
        if needed == room:
            assert (got, out) == (2, ""), name
            assert err.endswith(f"llamapar: {missing}\n"), (name, err)
        else:
            assert (got, "is missing from" in err) == (status, False), (name, err)
    (layout, summary), sent = answers["panel"], answers["sent"]
    assert layout == "tp=1 cp=1 pp=1 dp=2"
    assert "tiny" in summary
    texts = [message["text"].splitlines()[-1][:14] for message in sent if message["kind"] == "copied"]
    problems = [message["problem"] for message in sent if message["kind"] == "answered"]
    assert texts[0] == "llamapar check"
    if room == "configs":
        assert problems[0] is None
        ((install, _),) = problems[1]["choose"]
        assert f"{problems[1]['what']}\n  why  {problems[1]['why']}\n  try  {install}" == missing
    else:
        assert problems == [None] * 2
    here = {name for name, module in PUBLIC.items() if (module or name).partition(".")[0] == room}
    assert answers["public"] == dict.fromkeys(here, missing)
    assert answers["library"] == [True, True]
    assert answers["lp.debug"].startswith("heads = 4 is all of them, and this rank has 2 (tp = 2)")
    assert "8 is not 4" in answers["lp.clinic"]


def test_every_command_of_readme_is_tried():
    text = (PROJECT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:`|\$ )llamapar ([a-z]+)", text))
    assert named <= {name.partition(" ")[0] for name in (README | README_OF_ROOMS)}


def test_only_a_room_is_called_missing(monkeypatch):
    """A module of the core and a package from outside keep Python's own error."""
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'llamapar\.rules\.nothing'$"):
        imported("rules.nothing")
    with pytest.raises(lp.LlamaparError, match=f"^{re.escape(refusal('configs'))}$"):
        imported("configs.nothing")

    def without_numpy(name):
        raise ModuleNotFoundError("No module named 'numpy'", name="numpy")

    monkeypatch.setattr("llamapar.late.import_module", without_numpy)
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'numpy'$"):
        imported("checkpoint")
