"""`llamapar.watch_errors()`: live facts under the traceback of an error that ends a process.

For a script at two in the morning there is no notebook. Every rank that fails tells the others through the
store of torch.distributed. The lowest of them prints the facts and which ranks failed; another prints its own
only if its shapes differ. Without colours.
"""

from __future__ import annotations

import json
import shlex
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType

from llamapar.records.frames import Held
from llamapar.records.trace import some

from .explanation import Explanation

WAIT = 2.0
"""Seconds in which ranks that fail are counted."""

_TELLS = 0.5
"""Seconds that the rank that tells has before another one ends: a launcher then ends them all."""

_KEY = "llamapar/failed/{}"
_PAUSE = 0.05
_OPERANDS = 4
"""Operands that are listed."""


def watch_errors(explained: Callable[[BaseException], Explanation] | None = None) -> None:
    """From here on, print live facts under the traceback of an error that ends this process.

    The facts are the failing expression, its tensors with shape, dtype and placement, and what the process
    is. Under torchrun the lowest rank that fails says which ranks failed, as far as it learns it within 2 s.
    Call it once, anywhere in a script; `llamapar debug train.py` runs a script that does not. In a
    notebook, where no error ends the process, it is `%load_ext llamapar`. explained: what explains the error,
    `explain` by default.
    """
    if "IPython" in sys.modules and (shell := sys.modules["IPython"].get_ipython()):
        shell.extension_manager.load_extension("llamapar")
        return
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        previous(kind, error, trace)
        # An interrupt says nothing of shapes, and an error in here would hide the user's.
        if isinstance(error, Exception):
            try:
                for line in report(error, explained):
                    print(line, file=sys.stderr)
                sys.stderr.flush()
            except Exception:
                return

    sys.excepthook = hook


def report(
    error: BaseException, explained: Callable[[BaseException], Explanation] | None = None
) -> list[str]:
    """What to print about an error on this rank; nothing if a lower rank says the same."""
    from . import explain

    found = (explained or explain)(error)
    if not found.of_shapes or found.live is None:
        return []
    # Numbers such as the rank differ in any case.
    operands = found.live.operands[:_OPERANDS]
    shapes = [found.live.expression, *(f"{one.name} {one.shape}" for one in operands)]
    rank, failed = _failed(shapes)
    who = "llamapar: where it failed"
    if failed:
        teller = min(failed)
        others = [r for r in sorted(failed) if failed[r] != failed[teller]]
        who = f"llamapar: {some(sorted(failed))} failed"
        if others:
            who += f", {some(others)} in another way"
        if rank != teller:
            time.sleep(_TELLS)
            if failed[teller] == shapes:
                return []
            who = f"llamapar: rank {rank}"
    few = replace(found.live, operands=operands)
    told = replace(found, live=few)
    if explained is None and not failed:  # Beside other ranks no edit can be tried.
        told = replace(told, next=(shlex.join(["llamapar", "debug", *sys.argv]),))
    return [who, *str(told).splitlines()]


def _failed(shapes: list[str]) -> tuple[int, dict[int, list[str]]]:
    """This rank, and the ranks that fail within `WAIT` seconds, itself among them, with their facts; none
    without ranks.
    """
    dist: Held = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized() or dist.get_backend() == "fake":
        return 0, {}
    rank = dist.get_rank()
    world = dist.get_world_size()
    found = {rank: shapes}
    # A store whose process is gone may block, so a thread asks it, and the process can end without it.
    asks = threading.Thread(target=_ask, args=(found, rank, world), daemon=True)
    asks.start()
    asks.join(WAIT + _TELLS)
    return rank, dict(found)


def _ask(found: dict[int, list[str]], rank: int, world: int) -> None:
    from torch.distributed.distributed_c10d import _get_default_store

    try:
        store = _get_default_store()
        store.set(_KEY.format(rank), json.dumps(found[rank]))
        deadline = time.monotonic() + WAIT
        while len(found) < world and time.monotonic() < deadline:
            for other in sorted(set(range(world)) - found.keys()):
                if store.check([_KEY.format(other)]):
                    found[other] = json.loads(store.get(_KEY.format(other)))
            time.sleep(_PAUSE)
    except Exception:  # The process that holds the store may have ended: then this rank speaks for itself.
        return
