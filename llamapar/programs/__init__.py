"""The programs: plain functions over tensors, a DeviceMesh and collectives, each beside its reference.

A program takes `mesh`, `setting` and the tensors that it names as arguments: a rank's pieces of parameters
("wq"), of activations ("x", "tokens"), of a layer's parameters ("layer", a dict) or of all ("weights", a
dict). A last argument `**more` takes the biases and norms that a model has beside the weights named. It
returns a tensor like x, or a dict of named tensors. The same function runs in every engine.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from llamapar.describe.placement import ACTIVATIONS
from llamapar.errors import LlamaparError, one_of, shown
from llamapar.spmd import collectives

from . import attention, llama, mlp, parts, saving, vocab
from .cases import CASES
from .faults import FAULTS


@dataclass(frozen=True)
class Program:
    """A program function(mesh, setting, …) with its reference(setting, …), which is the same on one device.

    out: the placement table's row for a returned tensor; dicts name theirs. stage: the program as pipeline
    stages, (mesh, setting, stage, x, positions, targets, weights), if it has them. trains: the program
    updates the weights, then starts the next step. own_name: the name, if it differs from the function's.
    """

    function: Callable[..., object]
    reference: Callable[..., object] | None = None
    out: str = "residual"
    stage: Callable[..., Tensor | dict[str, Tensor]] | None = None
    trains: bool = False
    own_name: str = ""

    @property
    def name(self) -> str:
        return self.own_name or getattr(self.function, "__name__", type(self.function).__name__)


ProgramLike = str | Callable[..., object] | Program
"""What `lp.run` takes for a program: a name, a function (mesh, setting, …tensors by name…), a Program."""

_LLAMA = Program(llama.llama, llama.llama_reference, stage=llama.llama_stage)

PROGRAMS = {
    program.name: program
    for program in (
        Program(attention.attention, attention.attention_reference),
        Program(vocab.embedding, vocab.embedding_reference),
        Program(vocab.loss, vocab.loss_reference),
        Program(mlp.mlp, mlp.mlp_reference),
        Program(llama.block, llama.block_reference),
        _LLAMA,
        replace(_LLAMA, own_name="step", trains=True),
        Program(attention.meta_attention, attention.attention_reference),
        Program(mlp.mlp_unfused, mlp.mlp_reference),
    )
}
"""Name → program, for `run`, `tape` and `traffic`."""


def program(
    given: ProgramLike, reference: Callable[..., object] | None = None, out: str = "residual"
) -> Program:
    """The Program for a name, or for a function of your own with its reference."""
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
    if known and reference is None:
        return known
    return Program(given, reference, out)


def show_source(given: ProgramLike) -> str:
    """Source text of a program, given by name or as a function; the text is what the ranks run."""
    return inspect.getsource(program(given).function)


__all__ = [
    "CASES",
    "FAULTS",
    "PROGRAMS",
    "Program",
    "ProgramLike",
    "attention",
    "collectives",
    "llama",
    "mlp",
    "parts",
    "program",
    "saving",
    "show_source",
    "vocab",
]
