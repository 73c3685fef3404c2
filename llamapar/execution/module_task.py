"""The task of running a module of a user's own: the module, its inputs, and what is refused before any rank
starts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._pytree import tree_leaves, tree_map_only

from llamapar.describe.layout import Layout
from llamapar.errors import Choice, LlamaparError, shown, whole

from .engines.rank import MAX_WORLD
from .wrappers import inner_module

Plan = Mapping[str, object] | str | Callable[[nn.Module, DeviceMesh], nn.Module | None]
"""What `lp.compare` takes for a plan: torch's dict for `parallelize_module`, "auto" for the transformers
model's own plan, or a function (module, mesh) that cuts the module and may return another one.
"""

Inputs = Mapping[str, object] | tuple[object, ...] | Callable[[], object]
"""What it takes for inputs: keyword arguments, positional ones, or a function that makes either."""

Given = tuple[tuple[object, ...], dict[str, object]]
"""Positional and keyword arguments of a forward."""

PLANS = ['a dict, {"layers.0.wq": ColwiseParallel(), …}', "a function plan(module, mesh)"]

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
                "a function is needed that makes a module",
                field="make",
            )
        module._apply(lambda t: in_dtype(t, self.dtype).to(device))
        if self.eval_mode:
            return module.eval()
        return module


def in_dtype(t: Tensor, dtype: str) -> Tensor:
    """Floating point in this dtype, complex numbers in one as wide, and other tensors as they are.

    Module.to(dtype) would drop the imaginary part of a complex buffer, such as torchtitan's rotary table.
    """
    real = getattr(torch, dtype)
    if t.is_complex():
        return t.to(torch.promote_types(real, torch.complex64))
    if t.is_floating_point():
        return t.to(real)
    return t


def with_inputs(
    task: ModuleTask, inputs: object, seq_len: int | None, global_batch: int | None
) -> tuple[ModuleTask, tuple[str, ...]]:
    """The task with its inputs, and the notes about them; arguments as in `lp.compare`.

    Raises LlamaparError for inputs that cannot be cut.
    """
    # A dp rank takes two sequences, for one would hide a mistake about the batch.
    layout = task.layout
    dp = layout.dp
    usual = dp * 2
    batch = usual if global_batch is None else whole("global_batch", global_batch)
    tokens = max(16, 2 * layout.cp * layout.tp) if seq_len is None else whole("seq_len", seq_len)
    given = inputs
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(task.seed)
        if given is None:
            given = _tokens(task, batch, tokens)
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
    notes: tuple[str, ...] = ()
    if dp > 1 and any(t.shape[:1] != (batch,) for t in tensors):
        notes = (note,)
    own: Given = tree_map_only(Tensor, partial(in_dtype, dtype=task.dtype), (args, kwargs))
    return replace(task, given=own, batch=batch), notes


def sequences(task: ModuleTask, _: str, whole_input: Tensor, coord: Mapping[str, int]) -> Tensor:
    """A rank's sequences of an input; one whose dim 0 is not the batch stays whole."""
    if not whole_input.dim() or whole_input.shape[0] != task.batch:
        return whole_input.clone()
    own = task.batch // task.layout.dp
    return whole_input.narrow(0, coord["dp"] * own, own).clone()


def require_possible(
    make: object, plan: object, loss: object, engine: str, device: str, layout: Layout
) -> None:
    """Raise LlamaparError for the first thing that cannot work with a module."""
    real = Choice.of(engine="processes")
    cases: list[tuple[bool, str, str, list[Choice | str], str]] = [
        (
            isinstance(make, nn.Module) or not callable(make),
            f"make={shown(make)}: a function is needed that makes the module",
            "every rank makes its own",
            ["lambda: Model(config)"],
            "make",
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
            f"pp={layout.pp} with a module",
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
        (
            engine in ("torchrun", "dry"),
            f"engine={engine!r} with a module",
            "modules are compared by their numbers, in one process or on ranks of this machine",
            [real],
            "engine",
        ),
        (
            layout.world > MAX_WORLD,
            f"{layout.world} ranks, and at most {MAX_WORLD} run on one machine",
            "",
            ["a smaller layout"],
            "world",
        ),
        (
            engine == "local" and device == "cuda",
            "device='cuda' with engine='local'",
            "its DTensors are in host memory",
            [real, Choice.of(device="cpu")],
            "device",
        ),
    ]
    for wrong, what, why, choose, name in cases:
        if wrong:
            raise LlamaparError(what, why, choose, name)


def _tokens(task: ModuleTask, batch: int, seq_len: int) -> dict[str, Tensor]:
    """Tokens [batch, seq_len] by the name that the module gives them, in which every sequence reads both edge
    rows of every rank's share of the embedding.
    """
    module = task.made("meta")
    own = inner_module(module)
    names = list(inspect.signature(own.forward).parameters)
    name = next((name for name in TOKENS if name in names), None)
    # The rows of the first embedding, else the config's vocabulary, else the rows of the first matrix.
    known = [
        *(m.num_embeddings for m in module.modules() if isinstance(m, nn.Embedding)),
        getattr(getattr(own, "config", None), "vocab_size", None),
        *(p.shape[0] for p in module.parameters() if p.dim() == 2),
    ]
    rows = next((n for n in known if n), None)
    if name is None or rows is None:
        raise LlamaparError(
            f"{type(own).__name__}.forward({', '.join(names)}): what it takes is not known",
            f"tokens are made for an argument called {' or '.join(TOKENS)}",
            ['a dict, {"x": torch.randn(2, 16, 64)}', "a function that makes it"],
            "inputs",
        )
    generator = torch.Generator().manual_seed(task.seed)
    # torch's shards, as of torch.chunk: all of the same size but the last.
    size = -(-rows // task.layout.tp)
    edges = [row for start in range(0, rows, size) for row in (start, min(rows, start + size) - 1)]
    tokens = torch.randint(rows, (batch, seq_len), generator=generator)
    for sequence in tokens:
        at = torch.randperm(seq_len, generator=generator)[: len(edges)]
        sequence[at] = torch.tensor(edges)[: len(at)]
    return {name: tokens}
