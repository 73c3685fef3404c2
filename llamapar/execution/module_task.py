"""The task of running a module of a user's own: the module, its inputs, and what is refused before any rank
starts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._pytree import tree_leaves, tree_map_only

from llamapar.describe.layout import Layout, LayoutLike
from llamapar.errors import Choice, LayoutError, LlamaparError, flag, one_of, shown, whole
from llamapar.programs import Program
from llamapar.spmd.setting import DTYPES

from .engines.rank import MAX_WORLD
from .run_options import RunKeywords, RunOptions

Plan = Mapping[str, object] | str | Callable[[nn.Module, DeviceMesh], nn.Module | None]
"""What `lp.run` takes for a plan: torch's dict for `parallelize_module`, "auto" for the transformers model's
own plan, or a function (module, mesh) that cuts the module and may return another one.
"""

Given = tuple[tuple[object, ...], dict[str, object]]
"""Positional and keyword arguments of a forward."""

PLANS = ['a dict, {"layers.0.wq": ColwiseParallel(), …}', "a function plan(module, mesh)"]

OPTIONS_OF_MODULES = ("layout", "dtype", "seed", "seq_len", "global_batch", "inputs", "backward")
"""Options of a run that a module has too; the others are of llamapar's own programs."""

TOKENS = ("input_ids", "tokens")
"""Names of a forward's argument for which tokens are made."""


@dataclass(frozen=True)
class ModuleTask:
    """A module, its plan, and what all ranks have in common.

    given: the forward's positional and keyword arguments, whole, with `batch` sequences in dim 0. state: the
    whole module's parameters and buffers. targets: of the default loss, with the shapes of the whole module's
    outputs. followed: keep what goes into and comes out of every submodule.
    """

    make: Callable[[], object]
    plan: Plan
    layout: Layout
    given: Given = ((), {})
    batch: int = 1
    dtype: str = "float32"
    seed: int = 0
    loss: Callable[..., Tensor] | None = None
    eval_mode: bool = False
    backward: bool = True
    state: Mapping[str, Tensor] = field(default_factory=dict)
    targets: tuple[Tensor, ...] = ()
    followed: bool = False

    def in_float64(self) -> ModuleTask:
        """The same in float64, from the same numbers, with every submodule followed."""
        numbers = {"state": dict(self.state), "given": self.given, "targets": self.targets}
        numbers = tree_map_only(Tensor, partial(in_dtype, dtype="float64"), numbers)
        return replace(self, **numbers, dtype="float64", followed=True)

    def made(self, device: str = "cpu") -> nn.Module:
        """The whole module in the dtype of the run. Raises LlamaparError if `make` returns something else."""
        torch.manual_seed(self.seed)
        with torch.device("meta") if device == "meta" else nullcontext():
            module = self.make()
        if not isinstance(module, nn.Module):
            raise LlamaparError(
                f"{getattr(self.make, '__name__', 'make')}() returned {type(module).__name__}",
                "with plan=… a function is needed that makes a module",
                field="program",
            )
        module._apply(lambda t: in_dtype(t, self.dtype).to(device))
        return module.eval() if self.eval_mode else module


def in_dtype(t: Tensor, dtype: str) -> Tensor:
    """Floating point in this dtype, complex numbers in one as wide, and other tensors as they are.

    Module.to(dtype) would drop the imaginary part of a complex buffer, such as torchtitan's rotary table.
    """
    real = getattr(torch, dtype)
    if t.is_complex():
        return t.to(torch.promote_types(real, torch.complex64))
    return t.to(real) if t.is_floating_point() else t


def module_task(
    make: object,
    plan: Plan | None,
    model: object,
    layout: LayoutLike | None,
    loss: Callable[..., Tensor] | None,
    eval_mode: bool,
    engine: str,
    device: str,
    said: RunKeywords,
) -> tuple[ModuleTask, tuple[str, ...]] | None:
    """The task of `lp.run(make, layout, plan=…)` and the notes about it; None for a program, without a plan.

    model: where the layout stands if it is given by place. Raises LlamaparError for what cannot work with a
    module.
    """
    if plan is None:
        if model is None or loss or eval_mode or not isinstance(make, str):
            _require_program(make, model, loss=loss, eval_mode=eval_mode)
        return None
    if model is not None and layout is not None:
        raise LlamaparError(
            f"model={shown(model)} with plan=…: lp.run(make, layout, plan=…) takes no model",
            "the module is the model",
            field="model",
        )
    options = RunOptions.of(cast(LayoutLike, model) if layout is None else layout, **said)
    _require_possible(make, plan, loss, engine, device, options)
    task = ModuleTask(
        cast(Callable[[], object], make),
        plan,
        options.layout,
        dtype=one_of("dtype", options.dtype, DTYPES),
        seed=whole("seed", options.seed, 0),
        loss=loss,
        eval_mode=flag("eval_mode", eval_mode),
        backward=flag("backward", options.backward),
    )
    # A dp rank takes two sequences, for one would hide a mistake about the batch; a dry run compares nothing.
    dp = options.layout.dp
    usual = dp * (1 if engine == "dry" else 2)
    batch = usual if options.global_batch is None else whole("global_batch", options.global_batch)
    seq_len = max(16, 2 * options.layout.cp * options.layout.tp)
    seq_len = seq_len if options.seq_len is None else whole("seq_len", options.seq_len)
    given: object = options.inputs
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(task.seed)
        if given is None:
            given = _tokens(task, batch, seq_len, "meta" if engine == "dry" else "cpu")
        elif callable(given):
            given = given()
    args, kwargs = ((), dict(given)) if isinstance(given, Mapping) else (given, {})
    args = tuple(args) if isinstance(args, tuple | list) else (args,)
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    if not tensors or not tensors[0].dim():
        raise LlamaparError(
            f"inputs={shown(given)}: tensors are needed, with the batch in dim 0",
            "",
            ["a dict of keyword arguments", "a tuple of positional ones"],
            "inputs",
        )
    batch = tensors[0].shape[0]
    if batch % dp:
        raise LlamaparError(
            f"{batch} sequences over dp={dp}: they do not divide",
            "each dp rank takes as many",
            [Choice.of(global_batch=usual)],
            "global_batch",
        )
    note = f"inputs whose dim 0 is not the batch, {batch}, are whole on every dp rank"
    notes = (note,) if dp > 1 and any(t.shape[:1] != (batch,) for t in tensors) else ()
    inputs: Given = tree_map_only(Tensor, partial(in_dtype, dtype=task.dtype), (args, kwargs))
    return replace(task, given=inputs, batch=batch), notes


def _require_program(program: object, model: object, **of_modules: object) -> None:
    """Raise LlamaparError for a module without a plan, and LayoutError for a program without a model."""
    try:
        makes = not inspect.signature(cast(Callable[..., object], program)).parameters
    except (TypeError, ValueError):  # a name, or a builtin without a signature
        makes = False
    if isinstance(program, nn.Module) or (makes and not isinstance(program, Program)):
        raise LlamaparError(
            f"program={shown(program)} makes a module, and no plan is given",
            "lp.run(make, layout, plan=…) needs to know how ranks cut it",
            PLANS,
            "plan",
        )
    for name in (name for name, value in of_modules.items() if value):
        raise LlamaparError(
            f"{name} without plan",
            "it is of a module of your own",
            [Choice.of("or a dict, or a function", plan="auto")],
            name,
        )
    if model is None:
        raise LayoutError(
            "not given: model",
            "run(program, model, layout) has no default for what it cannot know",
            ["a preset's name, a path or a dict"],
            "model",
        )


def _require_possible(
    make: object, plan: object, loss: object, engine: str, device: str, options: RunOptions
) -> None:
    """Raise LlamaparError for the first thing that cannot work with a module."""
    layout, usual, real = options.layout, RunOptions(options.layout), Choice.of(engine="processes")
    here = "modules run in one process or on ranks of this machine"
    for name, value in vars(options).items():
        if name not in OPTIONS_OF_MODULES and value != getattr(usual, name):
            raise LlamaparError(
                f"{name}={shown(value)} with plan=…",
                "it is an option of llamapar's own programs",
                [f"leave {name} out"],
                name,
            )
    cases: list[tuple[bool, str, str, list[Choice | str], str]] = [
        (
            isinstance(make, nn.Module) or not callable(make),
            f"program={shown(make)}: with plan=… a function is needed that makes the module",
            "every rank makes its own",
            ["lambda: Model(config)"],
            "program",
        ),
        (
            not (callable(plan) or isinstance(plan, Mapping) or plan == "auto"),
            f"plan={shown(plan)}: torch's dict, 'auto' or a function is needed",
            "",
            [*PLANS],
            "plan",
        ),
        (
            layout.pp > 1,
            f"pp={layout.pp} with plan=…",
            "a module runs whole on the ranks of one stage",
            [Choice.of(pp=1, dp=layout.dp * layout.pp)],
            "pp",
        ),
        (
            layout.cp > 1 and not callable(plan),
            f"cp={layout.cp} with a plan that is no function",
            "styles of torch do not cut the sequence",
            [Choice.of(cp=1, dp=layout.dp * layout.cp), PLANS[1]],
            "cp",
        ),
        (
            loss is not None and not callable(loss),
            f"loss={shown(loss)}: a function of the output is needed",
            "",
            [],
            "loss",
        ),
        (engine == "torchrun", "engine='torchrun' with plan=…", here, [real], "engine"),
        (
            engine != "dry" and layout.world > MAX_WORLD,
            f"{layout.world} ranks, and at most {MAX_WORLD} run on one machine",
            "",
            [Choice.of(engine="dry")],
            "world",
        ),
        (
            engine == "local" and device == "cuda",
            "device='cuda' with plan=… and engine='local'",
            "its DTensors are in host memory",
            [real, Choice.of(device="cpu")],
            "device",
        ),
    ]
    for wrong, what, why, choose, name in cases:
        if wrong:
            raise LlamaparError(what, why, choose, name)


def _tokens(task: ModuleTask, batch: int, seq_len: int, device: str) -> dict[str, Tensor]:
    """Tokens [batch, seq_len] by the name that the module gives them, in which every sequence reads both edge
    rows of every rank's share of the embedding.
    """
    module = task.made("meta")
    names = list(inspect.signature(module.forward).parameters)
    name = next((name for name in TOKENS if name in names), None)
    # The rows of the first embedding, else the config's vocabulary, else the rows of the first matrix.
    known = [
        *(m.num_embeddings for m in module.modules() if isinstance(m, nn.Embedding)),
        getattr(getattr(module, "config", None), "vocab_size", None),
        *(p.shape[0] for p in module.parameters() if p.dim() == 2),
    ]
    rows = next((n for n in known if n), None)
    if name is None or rows is None:
        raise LlamaparError(
            f"{type(module).__name__}.forward({', '.join(names)}): what it takes is not known",
            f"tokens are made for an argument called {' or '.join(TOKENS)}",
            ['a dict, {"x": torch.randn(2, 16, 64)}', "a function that makes it"],
            "inputs",
        )
    if device == "meta":
        return {name: torch.empty(batch, seq_len, dtype=torch.int64, device="meta")}
    generator = torch.Generator().manual_seed(task.seed)
    # torch's shards, as of torch.chunk: all of the same size but the last.
    size = -(-rows // task.layout.tp)
    edges = [row for start in range(0, rows, size) for row in (start, min(rows, start + size) - 1)]
    tokens = torch.randint(rows, (batch, seq_len), generator=generator)
    for sequence in tokens:
        at = torch.randperm(seq_len, generator=generator)[: len(edges)]
        sequence[at] = torch.tensor(edges)[: len(at)]
    return {name: tokens}
