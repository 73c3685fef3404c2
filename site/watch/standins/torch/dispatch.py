"""Operators: each runs for a tensor of one rank, for all ranks of a LocalTensor, and under torch's modes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

from .storage import Storage

MODES: list = []
"""Dispatch modes that are entered, the innermost last."""


class TorchDispatchMode:
    """Is given every operator while it is entered, itself put aside."""

    def __enter__(self):
        MODES.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        MODES.remove(self)


def tree_leaves(tree: object) -> list:
    if isinstance(tree, tuple | list):
        return [leaf for part in tree for leaf in tree_leaves(part)]
    if isinstance(tree, dict):
        return [leaf for part in tree.values() for leaf in tree_leaves(part)]
    return [tree]


def tree_map_only(kind: type, function: Callable, tree):
    if isinstance(tree, tuple | list):
        return type(tree)([tree_map_only(kind, function, part) for part in tree])
    if isinstance(tree, dict):
        return {name: tree_map_only(kind, function, part) for name, part in tree.items()}
    return function(tree) if isinstance(tree, kind) else tree


class Operator:
    """An operator as modes see it. together: it is given LocalTensors whole, for it communicates."""

    _schema = SimpleNamespace(returns=(SimpleNamespace(type="Tensor"),), is_mutable=False)

    def __init__(
        self, name: str, function: Callable, namespace: str = "aten", together: bool = False
    ) -> None:
        self.overloadpacket = SimpleNamespace(__name__=name)
        self.function, self.namespace, self.together = function, namespace, together
        self.default = self

    def __call__(self, *args, **kwargs):
        if not MODES:
            return self._run(args, kwargs)
        mode = MODES.pop()
        try:
            return mode.__torch_dispatch__(self, (), args, kwargs)
        finally:
            MODES.append(mode)

    def _run(self, args, kwargs):
        local = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, PerRank)]
        if not local or self.together:
            return self.function(*args, **kwargs)
        return _for_each_rank_run_func(self.function, sorted(local[0].pieces), args, kwargs)


class PerRank:
    """What has a value on every rank: pieces, rank → its own."""

    pieces: dict


OF_RANKS: list[type] = []
"""The class of tensors that have a piece on every rank, which is made of tensors."""


def _for_each_rank_run_func(function: Callable, ranks: list[int], args, kwargs):
    """By its name, and that of r, the library finds the rank whose turn it was when an error was raised."""
    made = {}
    for r in ranks:
        own_args, own_kwargs = tree_map_only(PerRank, lambda t: t.pieces[r], (args, kwargs))  # noqa: B023
        made[r] = function(*own_args, **own_kwargs)
    first = made[ranks[0]]
    if isinstance(first, Storage):
        return OF_RANKS[0](made)
    if isinstance(first, tuple | list) and first and isinstance(first[0], Storage):
        return tuple(OF_RANKS[0]({r: made[r][i] for r in ranks}) for i in range(len(first)))
    if any(made[r] != first for r in ranks):
        raise RuntimeError(f"ranks have different values, and the program asked for one: {made}")
    return first
