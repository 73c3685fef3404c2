"""llamapar shows how Llama-style transformers are cut across GPUs: checked, drawn, executed and explained.

One Layout object is checked (`check`, `require`), drawn (`heads`, `vocab`, `sequence`, `stages`, `ranks`,
`schedule`, `zero`, `view`, `live`, `explorer`), executed (`run`, `tape`, `record`, `watch`) and explained
(`explain`, `clinic`). Each name is imported at its first use, so `import llamapar` is quick and needs no
third-party package.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

# This import comes first, so that Ctrl-C can already end the command during the imports below.
from . import interrupts as _interrupts
from .errors import LlamaparError
from .errors import install as _install
from .late import PUBLIC as _PUBLIC
from .late import RESULTS as _RESULTS
from .late import late as _late

if TYPE_CHECKING:
    from .diagnosis import Explanation

__version__ = "0.1.0"

__all__ = list(_PUBLIC)

_ON_TORCH = ("", "checkpoint", "execution", "panels")
"""Rooms of public names that need torch; "" for `lp.checkpoint` and `lp.programs` themselves."""


def __getattr__(name: str) -> Any:
    if name in _RESULTS:
        raise AttributeError(f"lp has no {name}: use `from llamapar.{_RESULTS[name]} import {name}`")
    if name not in _PUBLIC:
        from difflib import get_close_matches

        nearest = " or ".join(get_close_matches(name, __all__))
        raise AttributeError(f"llamapar has no {name!r}" + (f"; is it {nearest}?" if nearest else ""))
    needs_torch = _PUBLIC[name].partition(".")[0] in _ON_TORCH
    if needs_torch and "torch._C" in sys.modules and "torch" not in sys.modules:
        what = "torch is half imported in this process: its import was interrupted, and cannot be done again"
        raise LlamaparError(what, f"lp.{name} needs it", ["a restart of the kernel, or of Python"])
    try:
        # Defer Ctrl-C: after a broken-off import, torch cannot be imported again.
        with _interrupts.deferred():
            value = _late(name)
    except ModuleNotFoundError as problem:
        rest = "lab"
        if problem.name in ("torch", "numpy", "cloudpickle"):
            rest = "run"
        what = f"lp.{name} needs {problem.name}, which is not installed"
        raise ModuleNotFoundError(f"{what}\n  try  {_install(rest)}", name=problem.name) from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


# -- in a notebook -------------------------------------------------------------------------------


def _show_explanation(explanation: Explanation) -> None:
    from .jupyter import show

    show(explanation)


def _register_display() -> None:
    """Teach IPython to show an explanation as words and a picture, and to put the docstring first on
    Shift-Tab.
    """
    ipython = sys.modules.get("IPython")
    shell = None
    if ipython:
        shell = ipython.get_ipython()
    if shell is None:
        return
    shell.display_formatter.ipython_display_formatter.for_type_by_name(
        "llamapar.diagnosis.explanation", "Explanation", _show_explanation
    )

    def docstring_first(seen: Any) -> list[tuple[str, str]] | None:
        """Shift-Tab's text for a function or class of llamapar; None leaves the object to IPython, as for
        `??`.
        """
        known = seen.info_dict
        signature = known["definition"] or known["init_definition"]
        ours = str(getattr(seen.obj, "__module__", "")).partition(".")[0] == __name__
        if not ours or not signature or not known["docstring"] or seen.detail_level:
            return None
        called = "Signature", shell.inspector.format(signature)
        rest = [(title, known[key]) for title, key in (("File", "file"), ("Type", "type_name")) if known[key]]
        return [("Docstring", known["docstring"]), called, *rest]

    shell.inspector.mime_hooks = {**shell.inspector.mime_hooks, "text/plain": docstring_first}


_register_display()


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext llamapar`: explain shape-like errors under tracebacks; adds `%explain` and `%clinic`."""
    from .jupyter import register

    register(shell)


def unload_ipython_extension(shell: Any) -> None:
    """`%unload_ext llamapar`: remove the explanations, `%explain` and `%clinic`."""
    from .jupyter import unload

    unload(shell)
