"""`llamapar debug train.py …`: a script as Python runs it, and under an error its facts and a proved edit."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from llamapar.diagnosis.debugging import debugged
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
    if what := _missing(name, is_module):
        write_line(
            sys.stderr, str(LlamaparError(f"llamapar: {what}", "", [_EXAMPLE, "llamapar debug --help"]))
        )
        return 2
    sys.argv = [name, *arguments]
    sys.path.insert(0, str(Path.cwd() if is_module else Path(name).resolve().parent))
    watch_errors(debugged)
    try:
        if is_module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            run_script(Path(name).absolute())
    except Exception as error:
        # What stands above the script in the traceback is Python's way to run it.
        trace = error.__traceback__
        while trace and trace.tb_next and is_library(trace.tb_frame.f_code.co_filename):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 1
    return 0


def _missing(name: str, is_module: bool) -> str:
    """What keeps Python from running it, in a few words; "" if nothing does."""
    if is_module and not name:
        return "-m: a module is needed"
    if is_module:
        if _has_module(name):
            return ""
        return f"{shown(name, 200)} is no module that can be run from here"
    if Path(name).is_file():
        return ""
    return f"{shown(name, 200)} is no file"


def _has_module(name: str) -> bool:
    """Whether Python can run it as -m; True where its own package fails, for that error is to be seen."""
    path = list(sys.path)
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = find_spec(name)
        if found and found.submodule_search_locations:
            found = find_spec(f"{name}.__main__")
    except ModuleNotFoundError as missing:
        return missing.name is not None and not f"{name}.".startswith(f"{missing.name}.")
    except Exception:
        return True
    finally:
        sys.path[:] = path
    return found is not None


def run_script(path: Path) -> None:
    """Run a file as the main program: `__file__` is absolute, and sys.argv stays as it was typed."""
    main = ModuleType("__main__")
    main.__file__ = str(path)
    sys.modules["__main__"] = main
    exec(compile(path.read_bytes(), str(path), "exec"), vars(main))


COMMAND = Command(
    "a script; under an error its facts, and the edit that repairs it",
    "debug",
    f"{_EXAMPLE}\n"
    "  torchrun --nproc-per-node 8 -m llamapar debug train.py --steps 10\n"
    "  llamapar debug -m package.train",
    exits="the script's own",
    positional=(("script", "a script, or -m and a module, with its own words after it"),),
    needs={"script": ("a script is needed", "", (_EXAMPLE, "llamapar debug --help"))},
)
