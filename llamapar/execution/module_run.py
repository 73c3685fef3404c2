"""A module that a user brings, on one rank: make it, load the common weights, cut it, run it both ways.

The same function runs the whole module in one process, the reference, where there is no mesh and no plan.
The whole module is made once from a seed. Its state is copied into every rank's module before the plan cuts
that, so a plan sees the weights that the reference has. What a rank holds is compared as it is, a DTensor by
its local tensor; only outputs and what submodules take and give are gathered where they are DTensors.
"""

from __future__ import annotations

import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from operator import methodcaller
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._pytree import tree_leaves, tree_map_only

from llamapar.errors import LlamaparError
from llamapar.spmd import compat

from .module_task import PLANS, Given, ModuleTask, Plan
from .recorder import Recorder
from .wrappers import buffers_of, inner_module, parameters_of, seen_through, wraps

Share = Callable[[Tensor], Tensor]
"""A whole input → this rank's sequences of it, or a LocalTensor of every rank's."""

Tensors = dict[str, Tensor]

Key = tuple[str, int]
"""A submodule's name, "" for the module itself, and the number of its call."""

VARIED = 0.1
"""Standard deviation of what is added to a constant parameter, as norms of ones and biases of zeros are."""

RAISED_IN = "raised in the forward of "
"""How the note on an error begins, before the name of the submodule."""


CUT_OUTPUT = "output"
"""The field of the error for an output that is a piece of the whole, which the default loss cannot take."""


class ModuleCall(NamedTuple):
    """A call of a submodule, with the floating-point tensors that it took and gave.

    caller: the call that was running; None for the module itself. tensors: those of its "input" and "output",
    of the "output's gradient", and of the "input's gradient" that comes from this use of the input alone.
    """

    key: Key
    caller: Key | None
    tensors: dict[str, dict[int, Tensor]]


class ModuleOutcome(NamedTuple):
    """What a rank's module held and made, or the whole module's.

    here: parameter → what the rank holds at the start; gradient: its gradient. outputs, loss: gathered where
    they are DTensors. tied: name → the first name of the same parameter. buffers: at the start; changed:
    those that the forward changes. drew: submodules that draw random numbers. calls: in the order in which
    they ended.
    """

    name: str
    here: Tensors
    gradient: Tensors
    outputs: tuple[Tensor, ...]
    loss: Tensor
    tied: dict[str, str]
    buffers: Tensors
    changed: tuple[str, ...]
    drew: tuple[str, ...]
    notes: tuple[str, ...]
    calls: tuple[ModuleCall, ...]
    targets: tuple[Tensor, ...]


def run_module_rank(
    task: ModuleTask,
    mesh: DeviceMesh | None,
    share: Share = lambda t: t,
    recorder: Recorder | None = None,
    device: str = "cpu",
) -> dict[int, ModuleOutcome]:
    """Run this rank's module, or as LocalTensors those of all ranks of the recorder; without a mesh the whole
    one, as rank 0's. The outcomes are in host memory.

    Raises LlamaparError for a module that is not the whole one when it is made, and for an output that the
    default loss cannot take. An error of the module has the name of the submodule that was running as a note.
    """
    module = task.made(device)
    notes = list[str]()
    made = type(inner_module(module)).__name__
    if task.state:
        _load(module, task.state)
    elif mesh is None:
        notes += _vary_constants(module, task.seed)
    if mesh is not None and recorder is not None:
        recorder.axes = compat.axis_names(mesh)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            module = _cut(module, mesh, task.plan)
        # What torch itself will drop one day is of no use here: importing its compiler warns of that.
        texts = [str(w.message) for w in said if not issubclass(w.category, DeprecationWarning)]
        notes += dict.fromkeys(f"the plan warns: {text.partition(chr(10))[0]}" for text in texts)

    parameters = parameters_of(module)
    of_module = buffers_of(module)
    first: dict[int, str] = {}
    tied = {name: first.setdefault(id(t), name) for name, t in parameters.items()}
    here = {name: _local(t).detach().clone() for name, t in parameters.items()}
    buffers = {name: _local(t).detach().clone() for name, t in of_module.items()}
    compiled = any(
        type(part).__name__ == "OptimizedModule" or vars(part).get("_compiled_call_impl")
        for part in module.modules()
    )
    if compiled:
        notes.append("torch.compile is left out: the code runs as it is written")

    args, kwargs = tree_map_only(Tensor, share, task.given)
    targets = tuple(map(share, task.targets))
    as_written = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
    with as_written, recorder or nullcontext():
        # The backward is not followed: there a checkpoint calls its submodules again.
        with followed_calls(module, task.followed, random=mesh is None) as (calls, drew):
            output = module(*args, **kwargs)
        loss, targets = _loss(task, output, (args, kwargs), targets)
        if task.backward:
            loss.backward()
    gradient = {}
    for name, t in parameters.items():
        if t.grad is not None:
            # A DTensor's may be summands, which the parameter itself never is.
            cut = getattr(t, "placements", None)
            dt = t.grad if cut is None else methodcaller("redistribute", placements=cut)(t.grad)
            gradient[name] = _local(dt)
    outcome = ModuleOutcome(
        made,
        here,
        gradient,
        tuple(leaves(output)),
        whole_of(loss),
        {name: of for name, of in tied.items() if name != of},
        buffers,
        # The whole module's alone.
        tuple(n for n, t in of_module.items() if mesh is None and not torch.equal(t, buffers[n])),
        tuple(drew),
        tuple(notes),
        tree_map_only(Tensor, whole_of, tuple(calls)),
        targets,
    )

    def own(t: Tensor, rank: int) -> Tensor:
        t = compat.of_rank(t, rank).detach()
        if t.is_cuda:
            return t.cpu()
        return t

    ranks: Iterable[int] = (0,)
    if recorder is not None:
        ranks = recorder.ranks
    return {rank: tree_map_only(Tensor, partial(own, rank=rank), outcome) for rank in ranks}


# -- making and cutting ----------------------------------------------------------------------------


def _load(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy the whole module's state into another one. Raises LlamaparError if their shapes differ."""
    with torch.no_grad():
        for name, t in (parameters_of(module, twice=False) | buffers_of(module)).items():
            if name not in state or t.shape != state[name].shape:
                there = "not there"
                if name in state:
                    there = str(list(state[name].shape))
                raise LlamaparError(
                    f"{name} is {list(t.shape)} where a rank makes the module, and {there} in one process",
                    "every rank makes the whole module, and the plan cuts it",
                    field="program",
                )
            t.copy_(state[name])


def _vary_constants(module: nn.Module, seed: int) -> list[str]:
    """Add random numbers to parameters that are one number throughout: in those a slip would not show."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for name, t in parameters_of(module, twice=False).items():
        if t.numel() > 1 and bool((t == t.flatten()[0]).all()):
            t.data += (torch.randn(t.shape, generator=generator, dtype=torch.float64) * VARIED).to(t)
            found.append(name)
    few = ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
    if found:
        return [f"random numbers were added to constants, which hide slips: {few}"]
    return []


def _cut(module: nn.Module, mesh: DeviceMesh, plan: Plan) -> nn.Module:
    """The module cut by its plan; torch's dict and transformers' own plan are of the axis "tp".

    A transformers model is cut in the steps of its `from_pretrained`. That function resolves the plan,
    distributes the modules and loads the weights; here the weights are there first, and distributing keeps
    them. Tied weights are two while it works, as there, and tied again.
    """
    if callable(plan):
        other = plan(module, mesh)
        if isinstance(other, nn.Module):
            return other
        return module
    tp = mesh["tp"]
    if tp.size() == 1:
        return module
    if not isinstance(plan, str):
        parallel = import_module("torch.distributed.tensor.parallel")  # slow to import, and rarely needed
        styled: nn.Module = parallel.parallelize_module(module, tp, dict(plan))
        return styled
    try:
        shards = import_module("transformers.distributed.tensor_parallel")
        config = import_module("transformers.distributed").DistributedConfig
        plans, *_ = methodcaller("_resolve_parallel_plans", config(tp_size=tp.size()))(module)
    except (ImportError, AttributeError) as missing:
        raise LlamaparError(
            f'plan="auto" for {type(module).__name__}: {missing}',
            "it is the own plan of a model of transformers 5.23 or newer",
            ["a dict for torch's parallelize_module", PLANS[1]],
            "plan",
        ) from None
    own = dict(module.named_parameters())
    twice = {n: t for n, t in module.named_parameters(remove_duplicate=False) if n not in own}
    for name, weight in twice.items():
        owner, _, key = name.rpartition(".")
        setattr(module.get_submodule(owner), key, nn.Parameter(weight.detach().clone()))
    shards.apply_tensor_parallelism(module, tp, plans)
    if twice:
        methodcaller("tie_weights")(module)
    return module


# -- what it makes ---------------------------------------------------------------------------------


def whole_of(t: Tensor) -> Tensor:
    """A DTensor gathered over its mesh, or summed, by all its ranks; another tensor itself."""
    if hasattr(t, "full_tensor"):
        return t.full_tensor()
    return t


def _local(t: Tensor) -> Tensor:
    """What this rank holds of a DTensor; another tensor itself."""
    if hasattr(t, "to_local"):
        return t.to_local()
    return t


def leaves(output: object) -> list[Tensor]:
    """The floating-point tensors of an output, DTensors gathered; of one with `.logits` those alone."""
    logits = getattr(output, "logits", None)
    found = tree_leaves(output if logits is None else logits)
    return [whole_of(t) for t in found if isinstance(t, Tensor) and t.is_floating_point()]


@contextmanager
def followed_calls(
    module: nn.Module, tensors: bool, random: bool
) -> Iterator[tuple[list[ModuleCall], dict[str, None]]]:
    """Follow a module's calls by hooks: (the calls, names of the submodules that draw random numbers).

    tensors: keep those that go in and come out, and the gradients of both. random: look at torch's random
    state, and name the innermost submodules whose call changed it. An error gets the name of the innermost
    running submodule as a note.
    """
    calls, running, count = list[ModuleCall](), list[tuple[ModuleCall, Tensor | None, int]](), Counter[str]()
    drew: dict[str, None] = {}

    def kept(call: ModuleCall, what: str, values: object) -> object:
        """The values, whose tensors are kept, as views: each has a gradient of its own."""
        found = call.tensors.setdefault(what, {})

        def keep(t: Tensor) -> Tensor:
            if not t.is_floating_point():
                return t
            i = len(found)
            t = t.view_as(t)
            # Copies, because the module may change a tensor in place later; what was sent is waited for.
            found[i] = t.detach().clone()
            if t.requires_grad:
                t.register_hook(partial(store, call.tensors.setdefault(f"{what}'s gradient", {}), i))
            return t

        if tensors:
            return tree_map_only(Tensor, keep, values)
        return None

    def store(gradients: dict[int, Tensor], i: int, gradient: Tensor) -> None:
        gradients[i] = gradient.detach().clone()

    def enter(name: str, _: nn.Module, args: object, kwargs: object) -> object:
        call = ModuleCall((name, count[name]), running[-1][0].key if running else None, {})
        count[name] += 1
        running.append((call, torch.get_rng_state() if random else None, len(drew)))
        return kept(call, "input", (args, kwargs))

    def leave(module: nn.Module, args: object, kwargs: object, output: object) -> object:
        call, state, before = running.pop()
        if state is not None and len(drew) == before and not torch.equal(state, torch.get_rng_state()):
            drew[f"{call.key[0] or 'the module itself'} ({type(module).__name__})"] = None
        calls.append(call)
        return kept(call, "output", output)

    hooks = [
        hook
        for name, submodule in module.named_modules()
        if not wraps(submodule)
        # Registered last, a hook sees what the plan's own hooks make of inputs and outputs.
        for hook in (
            submodule.register_forward_pre_hook(partial(enter, seen_through(module, name)), with_kwargs=True),
            submodule.register_forward_hook(leave, with_kwargs=True),
        )
    ]
    try:
        yield calls, drew
    except Exception as error:
        if running:
            error.add_note(f"{RAISED_IN}{running[-1][0].key[0] or 'the module itself'}")
        raise
    finally:
        for hook in hooks:
            hook.remove()


# -- the loss --------------------------------------------------------------------------------------


def _loss(
    task: ModuleTask, output: object, given: Given, targets: tuple[Tensor, ...]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """(the loss, its targets): the user's; else the cross-entropy of logits, or sum(output · targets) /
    sequences.

    Logits have a row for each of the tokens that went in. targets: one-hot tokens, or random numbers; without
    any they are made for these outputs, which are the whole module's.
    """
    if task.loss is not None:
        args, kwargs = given
        wanted = len(inspect.signature(task.loss).parameters)
        loss = task.loss(output, kwargs or args) if wanted > 1 else task.loss(output)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise LlamaparError(f"loss returned {type(loss).__name__}: one number is needed", field="loss")
        return whole_of(loss), ()
    outputs = leaves(output)
    tokens = [t for t in tree_leaves(given) if isinstance(t, Tensor) and not t.is_floating_point()]
    logits = any(t.dim() and y.shape[:-1] == t.shape for y in outputs[:1] for t in tokens)
    if not targets:
        generator = torch.Generator().manual_seed(task.seed + 1)
        for y in outputs:
            target = torch.empty_like(y)
            if logits:
                rows = torch.randint(y.shape[-1], y.shape[:-1], generator=generator)
                target = nn.functional.one_hot(rows, y.shape[-1]).to(y)
            else:
                target = torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y)
            targets = (*targets, target)
    for y, target in zip(outputs[: 1 if logits else None], targets, strict=False):
        if y.shape != target.shape:
            there = f"{list(target.shape)} of the whole module's is its share"
            raise LlamaparError(
                f"the output is {list(y.shape)} on a rank, and {there}",
                "the default loss needs the output whole, but for dp's sequences",
                ["a loss of the piece", "a plan that gathers the output"],
                CUT_OUTPUT,
            )
    if not any(y.requires_grad for y in outputs):
        raise LlamaparError("no output depends on a parameter", "", ["a loss that does"], "loss")
    if logits:
        rows = outputs[0].flatten(0, -2)
        expected = targets[0].flatten(0, -2)
        return nn.functional.cross_entropy(rows, expected), targets
    terms = [(y * target).sum() for y, target in zip(outputs, targets, strict=True)]
    return torch.stack(terms).sum() / max(1, outputs[0].shape[0] if outputs[0].dim() else 1), targets
