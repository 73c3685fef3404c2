"""Break it on purpose: named faults, what still looks fine with each, and the check that catches it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from llamapar.place.orders import Action
from llamapar.place.pipeline import Schedule
from llamapar.records.tables import Plain, Record, html_table
from llamapar.spmd import collectives, compat, gradients, microbatches, setting, update, zero
from llamapar.spmd.training import Training


@dataclass(frozen=True)
class Fault:
    """A named fault. looks_fine: what shapes and a finished run do not show. caught_by: the check that fails.

    program, layout: a run that shows it. needs: further options of that run. model: the fields of a model
    that are needed to show it. changes: the fields of the Setting that the fault changes, if it changes any
    of them. patch: the function to replace, given as its owner and its name, and the replacement.
    """

    looks_fine: str
    caught_by: str
    program: str
    layout: Plain
    needs: Plain = field(default_factory=dict)
    changes: Plain = field(default_factory=dict)
    model: Plain = field(default_factory=dict)
    patch: tuple[object, str, Callable[..., object]] | None = None

    @property
    def where(self) -> str:
        """The layout, and the model if it matters, that show it: "tp=2, sequence_parallel=False"."""
        return ", ".join(f"{name}={value}" for name, value in (self.layout | self.model).items())


def _own_gradient(*given: Tensor) -> Tensor:
    """In place of a sum of gradients over ranks, or over groups: the gradient, which is the last argument."""
    return given[-1]


def _own_slice(group: zero.ZeroGroup, name: str, gradient: Tensor) -> Tensor:
    """In place of the reduce-scatter: the rank's slice of what it has."""
    return group.own(gradient)


_right_own = zero.ZeroGroup.own


def _next_slice(group: zero.ZeroGroup, whole: Tensor) -> Tensor:
    """The slice of the rank that comes next, where slices are equal: the rows are turned by one of them."""
    rows = -(-whole.shape[0] // group.shards.ranks)
    return _right_own(group, whole.roll(-rows, 0))


def _sum_twice(x: Tensor, mesh: DeviceMesh, axis: str) -> Tensor:
    """All-reduce forward and, wrongly, all-reduce backward."""
    return collectives.exchange(x, compat.all_reduce, compat.all_reduce, mesh, axis)


_right_part = setting.Setting.part


def _contiguous_positions(self: setting.Setting, name: str, whole: Tensor, coord: compat.Coord) -> Tensor:
    if setting.kind(name) != "positions":
        return _right_part(self, name, whole, coord)
    n = self.seq_len // self.layout.cp
    return whole[coord["cp"] * n : (coord["cp"] + 1) * n].clone()


def _own_end(own: Tensor, other: Tensor) -> Tensor:
    """In place of the sum over both ends of the pipeline."""
    return own


_right_targets = microbatches.targets_of


def _neighbours_targets(targets: Tensor, setting: setting.Setting, number: int) -> Tensor:
    """The targets of the micro-batch beside it; the last of an odd number keeps its own."""
    return _right_targets(targets, setting, min(number ^ 1, setting.micro_batches - 1))


def _undivided(loss: Tensor, setting: setting.Setting) -> Tensor:
    return loss.sum() / setting.micro_batch


_right_sum = microbatches.added


def _added_but_the_last(total: Tensor | None, own: Tensor, setting: setting.Setting, number: int) -> Tensor:
    """The sum as it is before the last micro-batch."""
    if total is not None and number == setting.micro_batches - 1:
        return total
    return _right_sum(total, own, setting, number)


_right_row = microbatches.row


def _crossed_row(schedule: Schedule, pp_rank: int) -> tuple[Action, ...]:
    """On the first rank the first backward before its forward: it waits for what its sending would start."""
    row = list(_right_row(schedule, pp_rank))
    if pp_rank == 0 and schedule.pp > 1:
        first = row.pop(0)
        backward = next(
            at for at, action in enumerate(row) if action.kind in "BI" and action[1:] == first[1:]
        )
        row.insert(backward + 1, first)
    return tuple(row)


def _every_copy(setting: setting.Setting, name: str, pp_rank: int) -> float:
    return 1.0


def _own_stages(by_pp_rank: Sequence[Tensor], pp_rank: int) -> Tensor:
    """In place of the sum over the pipeline."""
    return by_pp_rank[pp_rank]


def _clip_by_own(norm: Tensor, own: Tensor, training: Training) -> Tensor:
    return _right_clip(own, own, training)


_right_clip = update.clip_factor


def _mean_over_context(mesh: DeviceMesh, gradient: Tensor) -> Tensor:
    """The mean over cp too, of a loss that is a mean over all tokens already."""
    return _right_context(mesh, gradient) / compat.axis_size(mesh, "cp")


_right_context = gradients.sum_context


def _neighbours_shard(group: zero.ZeroGroup, whole: Tensor) -> Tensor:
    """The shard of the next dp way, of which this rank has no state."""
    ways = group.setting.layout.dp

    def shard(coord: compat.Coord, t: Tensor) -> Tensor:
        return group.setting.shard(t, {**coord, "dp": (coord["dp"] + 1) % ways})

    return compat.each_rank(group.mesh, shard, whole)


def _gathered_late(group: zero.ZeroGroup, name: str, before: Tensor, after: Tensor) -> Tensor:
    return group.whole(before, name)


_NO_SP = {"sequence_parallel": False}
_PIPELINE = {"micro_batches": 4}


class Faults(dict[str, Fault], Record):
    """The faults by name; shown as a table."""

    __str__ = Record.__str__
    __repr__ = Record.__repr__

    def _repr_html_(self) -> str:
        return html_table(*self._table(), left=True)

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        head = ["fault", "shows in", "what still looks fine", "the check that catches it"]
        rows: list[list[object]] = [
            [name, f"{fault.program}, {fault.where}", fault.looks_fine, fault.caught_by]
            for name, fault in self.items()
        ]
        return "Faults that lp.run(..., fault=name) injects", head, rows, ""


FAULTS = Faults(
    {
        "drop_all_reduce": Fault(
            "every shape; the backward runs",
            "forward: each rank has its own summand",
            "attention",
            {"tp": 2, **_NO_SP},
            patch=(collectives, "all_reduce", collectives.same),
        ),
        "drop_backward_all_reduce": Fault(
            "every shape and the whole forward, to the last bit",
            "gradient of x and of all that lies before it",
            "mlp",
            {"tp": 2, **_NO_SP},
            patch=(collectives, "copy", collectives.same),
        ),
        "sum_twice": Fault(
            "every shape and the whole forward",
            "gradients are tp times too large",
            "mlp",
            {"tp": 2, **_NO_SP},
            patch=(collectives, "all_reduce", _sum_twice),
        ),
        "no_kv_grad_sum": Fault(
            "every shape, the forward, and the gradient of x",
            "gradients of wk and wv: each copy has only its own readers'",
            "attention",
            {"tp": 16},
            needs={"kv_replication": True},
            patch=(gradients, "sum_copies", _own_gradient),
        ),
        "tile_kv": Fault(
            "every shape",
            "forward: most ranks attend with another KV head",
            "attention",
            {"tp": 16},
            needs={"kv_replication": True},
            changes={"interleave": False},
        ),
        "no_norm_grad_sum": Fault(
            "every shape, the forward, and the gradients of all matrices",
            "gradients of the norms: each rank saw its own tokens only",
            "block",
            {"tp": 2},
            patch=(gradients, "sum_tokens", _own_gradient),
        ),
        "contiguous_positions": Fault(
            "every shape; causality, for the mask knows the chunks",
            "forward: RoPE turns each token by another one's position",
            "attention",
            {"cp": 2},
            patch=(setting.Setting, "part", _contiguous_positions),
        ),
        "no_context_grad_sum": Fault(
            "every shape, the forward, and the gradient of x",
            "gradients of parameters: each CP rank saw its own tokens only",
            "attention",
            {"cp": 2, "zero": 1},
            patch=(gradients, "sum_context", _own_gradient),
        ),
        "no_data_grad_sum": Fault(
            "every shape, the forward, and the gradient of x",
            "gradients: dp ways drift apart",
            "mlp",
            {"dp": 2, "zero": 1},
            patch=(gradients, "sum_data", _own_gradient),
        ),
        "shards_not_summed": Fault(
            "every shape, the forward, and that each row of a gradient is somewhere",
            "gradients: each rank's slice is of its own sequences only",
            "mlp",
            {"dp": 2, "zero": 2},
            patch=(gradients, "sum_shards", _own_slice),
        ),
        "replicas_not_summed": Fault(
            "every shape, the forward, and the reduce-scatter",
            "gradients: the groups that hold the same slices drift apart",
            "mlp",
            {"dp": 4, "dp_replicate": 2, "zero": 2},
            patch=(gradients, "sum_replicas", _own_gradient),
        ),
        "shards_out_of_order": Fault(
            "every shape, every byte sent, and that all rows are there",
            "forward: gathered parameters have their rows in another order",
            "mlp",
            {"dp": 2, "zero": 3},
            patch=(zero.ZeroGroup, "own", _next_slice),
        ),
        "pad_in_softmax": Fault(
            "every shape, and a loss that is only a little off",
            "forward: the loss is too high by what the pad rows' exponentials add",
            "loss",
            {"tp": 8},
            changes={"pads_in_softmax": True},
        ),
        "tied_not_summed": Fault(
            "every shape, the loss, and all gradients but one",
            "gradient of the embedding: each end of the pipeline has only its own part",
            "llama",
            {"pp": 2},
            needs=_PIPELINE,
            model={"tied": True},
            patch=(microbatches, "both_ends", _own_end),
        ),
        "micro_batches_swapped": Fault(
            "every shape, every byte sent, and the size of the loss",
            "forward: the loss of a sequence is taken against another one's targets",
            "llama",
            {"pp": 2},
            needs=_PIPELINE,
            patch=(microbatches, "targets_of", _neighbours_targets),
        ),
        "loss_not_divided": Fault(
            "every shape, the loss, and the direction of each gradient",
            "gradients are as many times too large as there are micro-batches",
            "llama",
            {"pp": 2},
            needs=_PIPELINE,
            patch=(microbatches, "objective", _undivided),
        ),
        "gradients_too_early": Fault(
            "every shape, the loss, and that gradients are sums over micro-batches",
            "gradients: the last micro-batch is missing",
            "llama",
            {"pp": 2},
            needs=_PIPELINE,
            patch=(microbatches, "added", _added_but_the_last),
        ),
        "send_receive_crossed": Fault(
            "every rank has each operation once, and all bytes are right",
            "nothing moves: each rank is told with what it waits for, and from whom",
            "llama",
            {"pp": 2},
            needs=_PIPELINE,
            patch=(microbatches, "row", _crossed_row),
        ),
        "norm_counts_copies": Fault(
            "every shape, the loss, all gradients, and seven digits of the weights, for AdamW divides too",
            "the norm, too large, and AdamW's means: what a rank only copies was counted tp times",
            "step",
            {"tp": 2},
            needs=_PIPELINE,
            patch=(update, "share_of_squares", _every_copy),
        ),
        "norm_forgets_pp": Fault(
            "every shape, the loss, all gradients, and the weights' first digits after one step",
            "the norm, of which each PP rank has one of its own, and AdamW's means",
            "step",
            {"pp": 2},
            needs=_PIPELINE,
            patch=(update, "over_stages", _own_stages),
        ),
        "clipped_per_rank": Fault(
            "every shape, the loss, all gradients, the norm, and the weights' first digits after one step",
            "AdamW's means: stages were clipped by different factors",
            "step",
            {"pp": 2},
            needs=_PIPELINE,
            patch=(update, "clip_factor", _clip_by_own),
        ),
        "averaged_over_context": Fault(
            "every shape, the loss, and the updated weights: clipping divides by the norm, which is as wrong",
            "gradients and norm, cp times too small",
            "step",
            {"cp": 2, "zero": 1},
            needs=_PIPELINE,
            patch=(gradients, "sum_context", _mean_over_context),
        ),
        "neighbours_shard": Fault(
            "every shape, every byte sent, the loss, all gradients and the norm",
            "updated weights and AdamW's means: a rank updated its rows by those of another one",
            "step",
            {"dp": 2, "zero": 1},
            needs=_PIPELINE,
            patch=(update, "own_shard", _neighbours_shard),
        ),
        "weights_late": Fault(
            "every shape, every byte sent, all gradients, the norm and AdamW's state",
            "updated weights: they are those of the step before",
            "step",
            {"dp": 2},
            needs=_PIPELINE,
            patch=(update, "gathered_weight", _gathered_late),
        ),
    }
)
"""name → fault."""


@contextmanager
def injected(name: str | None) -> Iterator[None]:
    """Context manager that injects the named fault into this process until the block ends."""
    patch = FAULTS[name].patch if name is not None else None
    if patch is None:
        yield
        return
    owner, attribute, replacement = patch
    right = getattr(owner, attribute)
    setattr(owner, attribute, replacement)
    try:
        yield
    finally:
        setattr(owner, attribute, right)
