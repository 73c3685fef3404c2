"""`llamapar report`: its text whole, and that it says nothing private."""

from __future__ import annotations

import json
import platform
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


def test_report_says_nothing_private(tmp_path: Path) -> None:
    """HOME, USER, the host's name, variables and paths hold a word that no stream may show."""
    private = tmp_path / CANARY
    private.mkdir()
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
    for words in (["report"], ["report", "--json"]):
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
