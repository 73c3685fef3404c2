"""Modules that wrap another one and compute the same: what a name below them is without the wrapper.

DistributedDataParallel, what `torch.compile` returns, and checkpoints put a module inside another. Their
names stand for the same parameters, so a comparison looks through them.
"""

from __future__ import annotations

from torch import Tensor, nn

WRAPPERS = {
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "DistributedDataParallel": "module",
    "OptimizedModule": "_orig_mod",
}
"""Class of a module that wraps another and computes the same → the name under which it holds that."""


def wraps(module: nn.Module) -> str:
    """The name under which a wrapper holds its module; "" for a module that is none."""
    names = (WRAPPERS.get(kind.__name__, "") for kind in type(module).__mro__)
    return next(filter(None, names), "")


def inner_module(module: nn.Module) -> nn.Module:
    """The module inside wrappers; a module without one itself."""
    while held := wraps(module):
        module = module.get_submodule(held)
    return module


def seen_through(module: nn.Module, name: str) -> str:
    """The name of a submodule, parameter or buffer, as it would be without wrappers."""
    parts = list[str]()
    at = module
    for part in name.split(".") if name else ():
        if part != wraps(at):
            parts.append(part)
        at = getattr(at, part)
    return ".".join(parts)


def parameters_of(module: nn.Module, twice: bool = True) -> dict[str, Tensor]:
    """The parameters by the names that they have without wrappers. twice: tied ones by each of theirs."""
    named = module.named_parameters(remove_duplicate=not twice)
    return {seen_through(module, name): t for name, t in named}


def buffers_of(module: nn.Module) -> dict[str, Tensor]:
    """The buffers by the names that they have without wrappers."""
    return {seen_through(module, name): t for name, t in module.named_buffers()}
