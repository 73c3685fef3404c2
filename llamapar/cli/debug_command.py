"""`llamapar debug train.py …`: a script as Python runs it, with live facts under an error that ends it."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from llamapar.diagnosis.error_hook import watch_errors
from llamapar.errors import LlamaparError, shown
from llamapar.records.frames import is_library

from .commands import Command
from .output import write_line

_EXAMPLE = "llamapar debug train.py --steps 10"


def run(words: Sequence[str]) -> int:
    """Run a script, or with -m a module, as the main program with the words after it; its exit status."""
    is_module = words[0] == "-m"
    name, *arguments = words[is_module:] or [""]
    if not (name if is_module else Path(name).is_file()):
        what = "-m: a module is needed" if is_module else f"{shown(name, 200)} is no file"
        write_line(
            sys.stderr, str(LlamaparError(f"llamapar: {what}", "", [_EXAMPLE, "llamapar debug --help"]))
        )
        return 2
    sys.argv = [name, *arguments]
    sys.path[0:0] = [str(Path.cwd() if is_module else Path(name).resolve().parent)]
    watch_errors()
    try:
        if is_module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(name, run_name="__main__")
    except Exception as error:
        # What stands above the script in the traceback is Python's way to run it.
        trace = error.__traceback__
        while trace and trace.tb_next and is_library(trace.tb_frame.f_code.co_filename):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 1
    return 0


COMMAND = Command(
    "a script, with live facts under an error that ends it",
    "watch_errors",
    (),
    f"{_EXAMPLE}\n"
    "  torchrun --nproc-per-node 8 -m llamapar debug train.py --steps 10\n"
    "  llamapar debug -m package.train",
    exits="the script's own",
    positional=(("script", "a script, or -m and a module, with its own words after it"),),
    needs={"script": ("a script is needed", "", (_EXAMPLE, "llamapar debug --help"))},
)
