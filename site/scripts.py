"""Python scripts that the site is built with, each with what it may import and no more."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
STANDINS = (PROJECT / "site" / "standins", PROJECT)
"""What a panel imports in the page's Python."""

OF_WATCH = (PROJECT / "site" / "watch", PROJECT / "site" / "watch" / "standins", *STANDINS)
"""And with a stand-in of torch, for ranks that are watched."""


def environment(imports: Sequence[Path], **own: object) -> dict[str, str]:
    """This one's, in which Python imports from these folders first."""
    named = {name: str(value) for name, value in own.items()}
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, imports)), **named}


def printed_by(script: Path, *words: object, imports: Sequence[Path], **own: object) -> str:
    """What a script prints. own: of its environment. Raises CalledProcessError where it fails."""
    command = [sys.executable, "-P", str(script), *map(str, words)]
    env = environment(imports, **own)
    return subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout
