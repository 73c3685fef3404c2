"""Gather and cut as lazy expressions: a whole parameter from its shards, and a shard from the whole.

reshard(a → b) is `shard` of b over `whole` of a, with no intermediate copy in memory or on disk.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from llamapar.describe.dtypes import STORED_BYTES
from llamapar.describe.models import ModelConfig, Parameter
from llamapar.describe.placement import KV_PARAMETERS, Shard
from llamapar.errors import CheckpointError, Choice, LayoutError
from llamapar.errors import whole as whole_number

from .rows import LazyRows, Output, agreed, beside, columns_of, joined_rows, of, picked, rows_of
from .sharding import Sharding, reordered
from .source import Placement


def whole_parameter(source: Placement, parameter: Parameter) -> tuple[str, LazyRows]:
    """(dtype, the unsharded and unpadded parameter, with rows in the order of the source's family of names).

    Copies on several ranks are compared while they are read. Raises CheckpointError if the shards have
    different dtypes.
    """
    pieces = source.by_parameter[parameter.name]
    dtypes = {stored.dtype: stored for _, stored in pieces}
    if len(dtypes) > 1:
        first, second = list(dtypes.values())[:2]
        found = f"is {first.dtype} in {first.file} and {second.dtype} in {second.file}"
        raise CheckpointError(f"{parameter.name} {found}", "shards of one tensor have one dtype")
    parts: dict[tuple[int, int], list[LazyRows]] = {}
    for rank, stored in pieces:
        span = source.sharding.rows(parameter.key, rank)
        # Ranks with equal spans hold copies; a parameter that is not cut has one span, and all ranks hold
        # it.
        parts.setdefault((span.start, span.stop) if span is not None else (0, 0), []).append(of(stored))
    # Sorted by the span and not by the rank: with tiled or copied heads the two differ.
    ordered = [agreed(parameter.name, parts[span]) for span in sorted(parts)]
    placement = source.sharding.placement(parameter.key)
    join = beside if isinstance(placement, Shard) and placement.dim == 1 else joined_rows
    # Empty pieces of uneven splits are left out; if all are empty, one stays to give the shape.
    joined = join([part for part in ordered if part.nbytes] or ordered[:1])
    return pieces[0][1].dtype, rows_of(joined, range(parameter.shape[0]))


def with_kv_heads(source: ModelConfig, target: ModelConfig, parameter: Parameter, rows: LazyRows) -> LazyRows:
    """The parameter for a model with another n_kv_heads: each KV head stored more or fewer times.

    Copies lie side by side (0, 0, 1, 1, …), as in Meta's 405B for 16 ranks. Raises CheckpointError, while
    reading, if the heads to merge are not equal.
    """
    old, new = source.n_kv_heads, target.n_kv_heads
    if old == new or parameter.key not in KV_PARAMETERS:
        return rows
    if new > old:
        # 0, 0, 1, 1, …: the first row of the head that each new head is a copy of.
        first_rows = np.repeat(np.arange(old), new // old) * source.head_dim
        return picked(rows, (first_rows[:, None] + np.arange(source.head_dim)).reshape(-1))
    # [new head, copy, row]: all copies of one head lie together and have to be equal.
    index = np.arange(old * source.head_dim).reshape(new, old // new, source.head_dim)
    copies = [picked(rows, index[:, i].reshape(-1)) for i in range(old // new)]
    return agreed(f"{parameter.name} with {new} KV heads for {old}", copies)


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


def cut_shard(target: Sharding, parameter: Parameter, rank: int, rows: LazyRows, itemsize: int) -> LazyRows:
    """The shard of TP rank `rank` of the target, cut from the whole parameter; pad rows are zeros."""
    placement, span = target.placement(parameter.key), target.rows(parameter.key, rank)
    if not isinstance(placement, Shard) or span is None:
        return rows
    if placement.dim == 0:
        return rows_of(rows, span)
    # A row is cut as bytes, so columns are counted in bytes too.
    return columns_of(rows, range(span.start * itemsize, span.stop * itemsize))


def expressions(source: Placement, target: Sharding) -> Iterator[tuple[tuple[int, int], str, Output]]:
    """(stage, rank), stored name and lazy expression of every tensor that the target stores."""
    model = source.sharding.model
    parameters = {p.name: p for p in model.parameters()}
    made: dict[str, tuple[str, LazyRows]] = {}
    for at in target:
        for name, parameter in target.tensors[at[0]].items():
            if parameter.name not in made:
                dtype, rows = whole_parameter(source, parameters[parameter.name])
                # Copies first, while rows are in the source's order; then the rows within each head are
                # put into the target's.
                rows = with_kv_heads(model, target.model, parameter, rows)
                index = reordered(target.model, parameter, source.sharding.naming, target.naming)
                made[parameter.name] = dtype, rows if index is None else picked(rows, index)
            dtype, rows = made[parameter.name]
            shape = target.local_shape(parameter, at[1])
            yield (
                at,
                name,
                Output(dtype, shape, cut_shard(target, parameter, at[1], rows, STORED_BYTES[dtype])),
            )
