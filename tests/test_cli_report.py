"""`llamapar report`: its text whole, and that it says nothing private."""

from __future__ import annotations

import json
import platform
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import llamapar as lp
from llamapar.cli import report_command

PROJECT = Path(__file__).resolve().parent.parent
CANARY = "kanarienvogel"
"""Stands in every name and path that a person could mind; no output may hold it."""

PACKAGES = ("torch", "numpy", "cloudpickle", "jupyterlab", "ipywidgets", "anywidget", "plotly", "pyyaml")
VERSIONS = {name: metadata.version(name) for name in PACKAGES}
HEAD = f"""\
llamapar  {lp.__version__}
python    {platform.python_version()}
platform  {platform.system()} {platform.machine()}
packages  {", ".join(f"{name} {version}" for name, version in VERSIONS.items())}
gpus      none
"""


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The driver's folder, empty on every machine."""
    monkeypatch.setattr(report_command, "_GPUS", tmp_path / "gpus")
    return tmp_path / "gpus"


def test_report_without_a_layout(run: Any) -> None:
    assert run("report") == (0, HEAD, "")
    about: dict[str, Any] = {"schema": 2, "llamapar": lp.__version__, "python": platform.python_version()}
    about |= {"platform": f"{platform.system()} {platform.machine()}", "packages": VERSIONS, "gpus": []}
    status, out, err = run("report --json")
    assert (status, json.loads(out), err) == (0, about, "")


def test_report_of_a_layout(run: Any) -> None:
    line = "llama3-8b --tp 16 --gpus 16 --framework titan --no-sequence-parallel --layer-split equal"
    again = "llamapar check --model llama3-8b --tp 16 --cp 1 --pp 1 --dp 1 --no-sequence-parallel --gpus 16 "
    again += "--layer-split equal --framework torchtitan"
    status, out, err = run(f"report {line}")
    found = {
        finding["code"]: finding["severity"]
        for finding in json.loads(run(f"check {line} --json")[1])["findings"]
    }
    assert "LP104" in found
    listed = ", ".join(" ".join(pair) for pair in found.items())
    assert (status, out, err) == (0, f"{HEAD}check     {again}\nfindings  {listed}\n", "")
    told = json.loads(run(f"report {line} --json")[1])
    assert (told["check"], told["findings"]) == (again, found)
    assert run(again.removeprefix("llamapar ")) == run(f"check {line}")
    assert run("report tiny")[1].endswith("findings  none\n")
    assert json.loads(run("report tiny --json")[1])["findings"] == {}


def test_what_is_missing_is_said(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_command, "_PACKAGES", ("numpy", "no-such-package"))
    assert f"\npackages  numpy {VERSIONS['numpy']}, no-such-package not installed\n" in run("report")[1]
    packages = json.loads(run("report --json")[1])["packages"]
    assert packages == {"numpy": VERSIONS["numpy"], "no-such-package": None}


def test_gpus_are_named_and_not_numbered(run: Any, no_gpus: Path) -> None:
    for bus in ("0000:01:00.0", "0000:02:00.0"):
        (no_gpus / bus).mkdir(parents=True)
        lines = ["Model: \t\t NVIDIA H100 80GB HBM3", "IRQ:   \t\t 42", f"GPU UUID: \t GPU-{CANARY}"]
        (no_gpus / bus / "information").write_text("\n".join(lines))
    assert "\ngpus      NVIDIA H100 80GB HBM3, NVIDIA H100 80GB HBM3\n" in run("report")[1]
    assert json.loads(run("report --json")[1])["gpus"] == ["NVIDIA H100 80GB HBM3"] * 2


def test_a_layout_needs_a_model(refused: Any) -> None:
    refused("report --tp 8", "a model is needed", "llamapar report --help")


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A folder with a model, a GPU, settings and a script, in which all names are private."""
    folder = tmp_path / CANARY
    folder.mkdir()
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config |= {"intermediate_size": 96, "vocab_size": 100, "_name_or_path": CANARY}
    config |= {"rope_scaling": {"rope_type": CANARY, "factor": 2.0}}
    (folder / "config.json").write_text(json.dumps(config))
    gpu = {"name": CANARY, "source": CANARY, "base": "h100-80gb", "memory_gib": 40}
    (folder / "gpu.json").write_text(json.dumps(gpu))
    (folder / "train.sh").write_text(
        f"export WANDB_NAME={CANARY}\n# {CANARY}\ntorchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py "
        "--tensor-model-parallel-size 2 --num-layers 2 --hidden-size 64 --num-attention-heads 4 "
        "--ffn-hidden-size 96 --vocab-size 100 --seq-length 128 --max-position-embeddings 128 "
        "--micro-batch-size 1 --global-batch-size 16 --swiglu --untie-embeddings-and-output-weights "
        "--group-query-attention --num-query-groups 4 --normalization RMSNorm "
        "--position-embedding-type rope "
        f"--data-path /{CANARY}/data --save /{CANARY}/out\n"
    )
    return folder


def test_report_says_nothing_private(private: Path) -> None:
    """HOME, USER, the host's name, variables, paths and files hold a word that no stream may show."""
    environment = {
        "HOME": str(private),
        "USER": CANARY,
        "LOGNAME": CANARY,
        "HOSTNAME": CANARY,
        "TOKEN": CANARY,
    }
    environment |= {"PATH": f"{private}:/usr/bin:/bin", "PYTHONPATH": str(PROJECT)}
    start = f"import os, platform, socket; socket.gethostname = platform.node = lambda: {CANARY!r}; "
    start += f"os.uname = lambda: os.uname_result(('Linux', {CANARY!r}, {CANARY!r}, {CANARY!r}, 'x86_64')); "
    start += "import sys; from llamapar.cli.main import main; sys.exit(main(sys.argv[1:]))"
    lines = [
        "report",
        f"report {private} --tp 2",
        f"report {private}/config.json --tp 3 --gpu {private}/gpu.json",
    ]
    lines += [f"report --launch {private}/train.sh"]
    for line in lines:
        for words in (shlex.split(line), [*shlex.split(line), "--json"]):
            done = subprocess.run(
                [sys.executable, "-c", start, *words],
                cwd=private,
                env=environment,
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert done.returncode == 0, done.stderr
            shown = done.stdout + done.stderr
            assert [line for line in shown.splitlines() if CANARY in line.lower()] == []
            assert str(PROJECT) not in shown
            assert sys.executable not in shown


def test_a_model_of_a_file_is_its_numbers(run: Any, private: Path) -> None:
    line = f"{private} --tp 3 --gpu {private}/gpu.json"
    told = json.loads(run(f"report {line} --json")[1])
    words = shlex.split(told["check"])
    model, gpu = (json.loads(words[words.index(flag) + 1]) for flag in ("--model", "--gpu"))
    sizes = {"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 4, "ffn_dim": 96, "vocab_size": 100}
    assert sizes.items() <= model.items()
    assert (gpu["name"], gpu["hbm_bytes"]) == ("custom", 40 * 2**30)
    # What a maintainer runs from the report finds the same.
    found = json.loads(run([*words[1:], "--json"])[1])["findings"]
    assert {finding["code"]: finding["severity"] for finding in found} == told["findings"]
    assert "LP101" in told["findings"] or "LP102" in told["findings"]
