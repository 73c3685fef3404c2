"""Experiments on numbers that differ: what one process makes under a common mistake, which sequences a
gradient sums, and whether a factor is a degree.

Each runs the reference or the ranks once more, so they come after the patterns that need only the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from llamapar.describe.placement import ACTIVATIONS, PARAMETERS
from llamapar.errors import LlamaparError
from llamapar.spmd.setting import kind

from .body import Task, call_function, differentiated, inputs, leaf, reference, uncut
from .ends import axes_in, end_tensors, pieces_of
from .engines import local
from .module_reading import taken
from .patterns import Pieces, equal_names, factor_in_words, factor_of, sum_in_words, weights
from .recorder import Recorder
from .run_pairs import MOST_RANKS
from .unsharded import unsharded

MOST_SEQUENCES = 16
"""Sequences whose gradients are made one by one."""


def what_if(task: Task, found: Sequence[Pieces], tick: Callable[[], None]) -> str:
    """The mistake with which one process makes all these outputs of the ranks; "" for none."""
    for words, mistaken in _mistakes(task):
        with suppress(LlamaparError, RuntimeError), Recorder(tick=tick):
            made = reference(mistaken).outputs
            # The whole of it is as large as the right one, so the ranks' parts are the same.
            if not any(replace(t, whole=made[t.name]).ranks for t in found):
                return f"it is what one process makes {words}"
    return ""


def _mistakes(task: Task) -> Iterator[tuple[str, Task]]:
    """Common mistakes in words, each with a task whose reference makes it."""
    setting = task.setting
    model = setting.model
    layout = setting.layout
    given = {name: t.detach() for name, t in inputs(task, uncut).items()}

    def of(change: Callable[[Tensor], Tensor], *kinds: str) -> Task:
        changed = {name: change(t) for name, t in given.items() if name in kinds or kind(name) in kinds}
        return replace(task, given=given | changed, backward=False)

    def read(kv_head: Callable[[int], int]) -> Task:
        """Query heads that read other KV heads: those of each in a row, for queries and for the output."""
        order = torch.tensor(sorted(range(model.n_heads), key=kv_head))

        def moved(t: Tensor, dim: int) -> Tensor:
            return t.unflatten(dim, (model.n_heads, -1)).index_select(dim, order).flatten(dim, dim + 1)

        queries = of(lambda t: moved(t, 0), "wq").given
        outputs = of(lambda t: moved(t, 1), "wo").given
        changed = {name: outputs[name] if kind(name) == "wo" else t for name, t in queries.items()}
        return replace(task, given=changed, backward=False)

    def setting_with(**changes: Any) -> Task:
        return replace(task, setting=replace(setting, **changes), given=given, backward=False)

    if setting.documents is not None:
        yield "when tokens attend to other documents, too", setting_with(documents=None)
    if layout.cp > 1:
        tokens = [token for part in setting.sequence.ranks for chunk in part.chunks for token in chunk]
        order = torch.tensor(tokens).argsort()
        yield (
            "when each rank counts its tokens as if they were contiguous",
            of(lambda t: t[order], "positions"),
        )
    if "targets" in given:
        yield "when targets are those of the next token", of(lambda t: t.roll(-1, 1), "targets")
        yield "when targets are those of the last token", of(lambda t: t.roll(1, 1), "targets")
    if setting.micro_batches > 1:
        pairs = torch.arange(setting.global_batch).view(-1, setting.micro_batch)
        swapped = [n ^ 1 if n ^ 1 < len(pairs) else n for n in range(len(pairs))]
        other = of(lambda t: t[pairs[swapped].flatten()], "targets")
        yield "when neighbouring micro-batches have each other's targets", other
    if "wq" in map(kind, given):
        on_rank = model.n_heads // layout.tp
        own = max(1, model.n_kv_heads // layout.tp)
        if setting.heads.replicas > 1:
            words = "when copies of KV heads are laid out in turn, rank r with KV head r mod n_kv_heads"
            yield words, read(lambda head: head // on_rank % model.n_kv_heads)
        elif on_rank > own > 1:
            words = "when query heads read a rank's KV heads in turn, not in groups"
            yield words, read(lambda head: head // on_rank * own + head % on_rank % own)
        halves = torch.arange(model.head_dim).view(2, -1).mT.flatten()
        by_halves = of(lambda t: t.unflatten(0, (-1, model.head_dim))[:, halves].flatten(0, 1), "wq", "wk")
        yield "when RoPE turns dims i and i + head_dim/2 together, not neighbours", by_halves
        longer = of(lambda t: t * model.head_dim**0.5, "wq")
        yield "when scores are not divided by sqrt(head_dim)", longer
    yield "when norms have no eps", setting_with(model=model.replace(norm_eps=0.0))


def sequences_summed(task: Task, found: Sequence[Pieces], tick: Callable[[], None]) -> dict[str, str]:
    """Name of a gradient → the sequences that it sums, with their weights; of those that are such a sum."""
    setting = task.setting
    sequences = setting.global_batch
    if not 1 < sequences <= MOST_SEQUENCES:
        return {}
    assert task.program.reference is not None
    function = partial(task.program.reference, replace(setting, global_batch=1))
    whole = inputs(task, uncut)
    columns = list[dict[str, Tensor]]()
    for n in range(sequences):
        given = {name: leaf(t[n : n + 1]) if kind(name) in ACTIVATIONS else t for name, t in whole.items()}
        with Recorder(tick=tick):
            made = call_function(function, given)
            columns.append(differentiated(task, made, given, sequences, partial(_sequence, n)))
    words = dict[str, str]()
    for t in [t for t in found if kind(t.name) in PARAMETERS]:
        sums = dict[int, str]()
        for rank in t.off:
            parts = [taken(column[t.name].double(), t.parts[rank]) for column in columns]
            got = weights(t.pairs[rank][0], parts, t.limit)
            if got is not None:
                sums[rank] = f"{sum_in_words(got, 'sequence')}, of {sequences}"
        if len(sums) == len(t.off):
            of_rank = ""
            if len({*sums.values()}) > 1:
                of_rank = f"on rank {min(sums)} "
            words[t.name] = f"{of_rank}it is {sums[min(sums)]}"
    return words


def _sequence(n: int, name: str, make: Callable[[], Tensor]) -> Tensor:
    """One sequence of a whole tensor."""
    return make()[n : n + 1]


def factor_at_another_degree(
    task: Task, t: Pieces, names: Callable[[Task], Mapping[str, float]], tick: Callable[[], None]
) -> str:
    """A factor in words, with those of its names that it is also where one of its degrees is twice as large.

    "" for what is no factor. names: a task → the names of its factors.
    """
    factor = factor_of(t)
    if factor is None:
        return ""
    equal = equal_names(factor, names(task))
    tried = ""
    for axis in task.layout.axes:
        if axis not in equal or len(equal) == 1 or task.layout.world * 2 > MOST_RANKS:
            continue
        degree = 2 * task.layout.size(axis)
        layout = task.layout.replace(**{axis: degree})
        batch = task.setting.global_batch * layout.dp // task.layout.dp
        # Tensors that were given have the batch that they have.
        if task.given and axis == "dp":
            continue
        with suppress(LlamaparError, RuntimeError):
            there = replace(task, setting=replace(task.setting, layout=layout, global_batch=batch))
            ends = end_tensors(there, local.run(there, "cpu", tick), unsharded(there, tick))
            end = next(end for end in ends if (end.kind, end.name) == (t.kind, t.name))
            its = factor_of(pieces_of(end, axes_in(there, end)))
            if its is not None:
                equal = [name for name in equal if name in equal_names(its, names(there))]
                tried = f"; at {axis}={degree} it is {its:.6g}"
    return factor_in_words(factor, equal) + tried
