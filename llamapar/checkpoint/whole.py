"""Gather and cut: a whole parameter from its shards, and a shard from the whole.

reshard(a → b) is a `cut_shard` of b over each `whole_parameter` of a, one parameter at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from llamapar.describe.models import ModelConfig, Parameter
from llamapar.describe.placement import KV_PARAMETERS, Shard
from llamapar.errors import CheckpointError, Choice, LayoutError
from llamapar.errors import whole as whole_number

from .sharding import Sharding, reordered
from .source import Placement
from .stored import Bytes

_COPIES_DIFFER = (
    "ranks that replicate a tensor must hold the same bytes; a file is of another step or damaged, "
    "or KV heads lie as 0, 1, …, 0, 1, … and not as 0, 0, 1, 1, …"
)

Homes = Mapping[str, list[tuple[tuple[int, int], str, Parameter]]]
"""Meta's name of a parameter → ((stage, tp rank), stored name, parameter) of each shard of it."""


def dtype_of_shards(source: Placement, parameter: Parameter) -> str:
    """The dtype of a parameter. Raises CheckpointError if its shards have several."""
    dtypes = {stored.dtype: stored for _, stored in source.by_parameter[parameter.name]}
    if len(dtypes) > 1:
        first, second = list(dtypes.values())[:2]
        found = f"is {first.dtype} in {first.file} and {second.dtype} in {second.file}"
        raise CheckpointError(f"{parameter.name} {found}", "shards of one tensor have one dtype")
    return next(iter(dtypes))


def whole_parameter(source: Placement, parameter: Parameter) -> Bytes:
    """The unsharded and unpadded parameter, [*shape, itemsize], rows in the order of the source's family.

    Raises CheckpointError if copies on several ranks differ.
    """
    parts: dict[tuple[int, int], tuple[Bytes, str]] = {}
    for rank, stored in source.by_parameter[parameter.name]:
        rows = source.sharding.rows(parameter.key, rank)
        # Ranks with equal rows hold copies; a parameter that is not cut has one span, and all ranks hold it.
        span = (0, 0)
        if rows is not None:
            span = (rows.start, rows.stop)
        data = stored.read()
        first, file = parts.setdefault(span, (data, stored.file))
        if first is not data and not np.array_equal(first, data):
            what = f"{parameter.name}: the copies in {file} and {stored.file} differ"
            raise CheckpointError(what, _COPIES_DIFFER)
    placement = source.sharding.placement(parameter.key)
    dim = 0
    if isinstance(placement, Shard):
        dim = placement.dim
    # Sorted by the span and not by the rank: with tiled or copied heads the two differ.
    ordered = [parts[span][0] for span in sorted(parts)]
    joined = np.concatenate(ordered, axis=dim) if len(ordered) > 1 else ordered[0]
    return joined[: parameter.shape[0]]


def with_kv_heads(source: ModelConfig, target: ModelConfig, parameter: Parameter, whole: Bytes) -> Bytes:
    """The parameter for a model with another n_kv_heads: each KV head stored more or fewer times.

    Copies lie side by side (0, 0, 1, 1, …), as in Meta's 405B for 16 ranks. Raises CheckpointError if the
    heads to merge are not equal.
    """
    old = source.n_kv_heads
    new = target.n_kv_heads
    if old == new or parameter.key not in KV_PARAMETERS:
        return whole
    shape = (new * source.head_dim, *whole.shape[1:])
    if new > old:
        return whole.reshape(old, -1).repeat(new // old, axis=0).reshape(shape)
    copies = whole.reshape(new, old // new, -1)
    if (copies != copies[:, :1]).any():
        what = f"{parameter.name} with {new} KV heads for {old}: the copies of a head differ"
        raise CheckpointError(what, _COPIES_DIFFER)
    return copies[:, 0].reshape(shape)


def kv_target(source: ModelConfig, n_kv_heads: int | None) -> ModelConfig:
    """The model with another number of stored KV heads. Raises LayoutError if neither number divides the
    other.
    """
    if n_kv_heads is None or n_kv_heads == source.n_kv_heads:
        return source
    few, many = sorted((source.n_kv_heads, whole_number("n_kv_heads", n_kv_heads, 1, source.n_heads)))
    if many % few:
        what = f"n_kv_heads={n_kv_heads}: {source.name} has {source.n_kv_heads}"
        choose = [Choice.of(n_kv_heads=source.n_kv_heads * n) for n in (1, 2)]
        raise LayoutError(what, "KV heads are stored a whole number of times", choose, "n_kv_heads")
    return source.replace(n_kv_heads=n_kv_heads)


def cut_shard(target: Sharding, parameter: Parameter, rank: int, whole: Bytes) -> Bytes:
    """The shard of TP rank `rank` of the target, cut from the whole parameter; pad rows are zeros."""
    placement = target.placement(parameter.key)
    span = target.rows(parameter.key, rank)
    if not isinstance(placement, Shard) or span is None:
        return whole
    if placement.dim == 1:
        return whole[:, span.start : span.stop]
    own = whole[span.start : span.stop]
    if len(own) == len(span):
        return own
    return np.concatenate([own, np.zeros((len(span) - len(own), *own.shape[1:]), np.uint8)])


def homes(target: Sharding) -> Homes:
    """Where each parameter is stored."""
    found: dict[str, list[tuple[tuple[int, int], str, Parameter]]] = {}
    for at in target:
        for name, parameter in target.tensors[at[0]].items():
            found.setdefault(parameter.name, []).append((at, name, parameter))
    return found


def shards_of(
    source: Placement, target: Sharding, parameter: Parameter, stored: Homes
) -> Iterator[tuple[tuple[int, int], str, Bytes]]:
    """(stage, tp rank), stored name and bytes of every shard of one of the source's parameters."""
    model = source.sharding.model
    # Copies first, while rows are in the source's order; then the rows within each head are put into the
    # target's.
    whole = with_kv_heads(model, target.model, parameter, whole_parameter(source, parameter))
    wanted = stored[parameter.name]
    index = reordered(target.model, wanted[0][2], source.sharding.naming, target.naming)
    if index is not None:
        whole = whole[index]
    for at, name, own in wanted:
        yield at, name, cut_shard(target, own, at[1], whole)
