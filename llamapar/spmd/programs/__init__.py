"""The programs: plain functions over tensors, a DeviceMesh and collectives, each beside its reference.

A program takes `mesh`, `setting` and, by name, the tensors that it wants: a rank's pieces of parameters
("wq"), of activations ("x", "tokens") or of all parameters ("weights", a dict). It returns a tensor like
x, or a dict of named ones. The same function runs in every engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llamapar.errors import LlamaparError, one_of, shown
from llamapar.shard import ACTIVATIONS

from .attention import attention, attention_reference, meta_attention
from .llama import block, block_reference, llama, llama_reference
from .mlp import mlp, mlp_reference, mlp_unfused
from .vocab import embedding, embedding_reference, loss, loss_reference


@dataclass(frozen=True)
class Program:
    """function(mesh, setting, …) with reference(setting, …), the same on one device.

    out: the row of the placement table for a returned tensor; dicts name theirs.
    """

    function: Callable[..., Any]
    reference: Callable[..., Any] | None = None
    out: str = "residual"

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)


PROGRAMS = {
    program.name: program
    for program in (
        Program(attention, attention_reference),
        Program(embedding, embedding_reference),
        Program(loss, loss_reference),
        Program(mlp, mlp_reference),
        Program(block, block_reference),
        Program(llama, llama_reference),
        Program(meta_attention, attention_reference),
        Program(mlp_unfused, mlp_reference),
    )
}


def program(given: object, reference: Callable[..., Any] | None = None, out: str = "residual") -> Program:
    """The Program of a name, or of a function of somebody's own with its reference."""
    if isinstance(given, Program):
        return given
    if isinstance(given, str):
        if reference is not None or out != "residual":
            raise LlamaparError(
                f"program={given!r} has its own reference and output",
                "reference and out are for a function of your own",
                field="reference" if reference is not None else "out",
            )
        return PROGRAMS[one_of("program", given, PROGRAMS)]
    if not callable(given):
        raise LlamaparError(
            f"program={shown(given)}: a name or a function is needed", "", list(PROGRAMS)[:3], "program"
        )
    one_of("out", out, ACTIVATIONS, LlamaparError)
    if reference is not None and not callable(reference):
        raise LlamaparError(
            f"reference={shown(reference)}: a function (setting, …) is needed", field="reference"
        )
    known = next((p for p in PROGRAMS.values() if p.function is given), None)
    return known if known and reference is None else Program(given, reference, out)


__all__ = ["PROGRAMS", "Program", "program"]
