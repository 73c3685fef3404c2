"""The `llamapar` command and `python -m llamapar`."""

from __future__ import annotations

import sys
from typing import NoReturn

from . import interrupts
from .cli.main import main


def command() -> NoReturn:
    """Run the command line of this process, and exit with its status."""
    status = main()
    interrupts.no_more()
    sys.exit(status)


if __name__ == "__main__":
    command()
