"""docs/api: what is committed is what the docstrings say now."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import llamapar as lp

PROJECT = Path(__file__).resolve().parent.parent
FOLDER = PROJECT / "docs" / "api"


def test_the_pages_are_those_that_the_tool_writes() -> None:
    command = [sys.executable, "tools/api.py", "--check"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, ""), f"make docs\n{done.stdout}{done.stderr}"


def test_every_public_name_is_listed_with_what_it_is() -> None:
    contents = (FOLDER / "README.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| \[`lp\.([\w.]+)`\]\(.*?\) \| (.*) \|$", contents, re.MULTILINE))
    names = {name for name in lp.__all__ if name not in ("checkpoint", "programs")}
    inner = {f"checkpoint.{name}" for name in ("inspect", "shard", "gather", "reshard", "verify")}
    assert names | inner <= set(listed)
    assert [name for name, about in listed.items() if not about] == []


def test_signatures_are_those_that_shift_tab_shows() -> None:
    """`check` takes the facts of a Job by name, which its source does not spell."""
    page = (FOLDER / "rules.md").read_text(encoding="utf-8")
    (call,) = re.findall(r"^lp\.check\((.*?)^\) -> Report$", page, re.MULTILINE | re.DOTALL)
    assert "    kv_replication: bool = False,\n" in call
    assert "**" not in call
