"""Break it on purpose: named faults, what still looks fine with each, and the check that catches it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from llamapar.records.tables import Plain, Record
from llamapar.spmd import collectives, compat, gradients, kernels, microbatches, setting, update, zero

from . import attention, broken, llama, vocab


@dataclass(frozen=True)
class Fault:
    """A named fault. looks_fine: what shapes and a finished run do not show. caught_by: the check that fails.

    program, layout: a run that shows it. needs: further options of that run. model: the fields of a model
    that are needed to show it. patch: owner and name of the right function, and the wrong one, which gets the
    right one before its arguments. changes: the fields of the Setting that the fault changes, if it changes
    any; patch then names a function that only a program which reads them calls.
    """

    looks_fine: str
    caught_by: str
    program: str
    layout: Plain
    patch: tuple[object, str, Callable[..., object]]
    needs: Plain = field(default_factory=dict)
    changes: Plain = field(default_factory=dict)
    model: Plain = field(default_factory=dict)

    @property
    def where(self) -> str:
        """The layout, model and options that show it: "tp=2, sequence_parallel=False"."""
        needed = (self.layout | self.model | self.needs).items()
        return ", ".join(f"{name}={value}" for name, value in needed) or "any layout"


_NO_SP = {"sequence_parallel": False}
_PIPELINE = {"micro_batches": 4}
_OVER_CP: tuple[str, Plain] = ("attention", {"cp": 2})
_OVER_PP: tuple[str, Plain] = ("llama", {"pp": 2})
_ANYWHERE: tuple[str, Plain] = ("attention", {})


class Faults(dict[str, Fault], Record):
    """The faults by name; shown as a table."""

    __str__ = Record.__str__
    __repr__ = Record.__repr__
    _left = True

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
            patch=(collectives, "all_reduce", broken.no_collective),
        ),
        "drop_backward_all_reduce": Fault(
            "every shape and the whole forward, to the last bit",
            "gradient of x and of all that lies before it",
            "mlp",
            {"tp": 2, **_NO_SP},
            patch=(collectives, "copy", broken.no_collective),
        ),
        "sum_twice": Fault(
            "every shape and the whole forward",
            "gradients are tp times too large",
            "mlp",
            {"tp": 2, **_NO_SP},
            patch=(
                collectives,
                "all_reduce",
                lambda right, x, *at: collectives.exchange(x, compat.all_reduce, compat.all_reduce, *at),
            ),
        ),
        "no_kv_grad_sum": Fault(
            "every shape, the forward, and the gradient of x",
            "gradients of wk and wv: each copy has only its own readers'",
            "attention",
            {"tp": 16},
            needs={"kv_replication": True},
            patch=(gradients, "sum_copies", broken.own_gradient),
        ),
        "tile_kv": Fault(
            "every shape",
            "forward: most ranks attend with another KV head",
            "attention",
            {"tp": 16},
            needs={"kv_replication": True},
            changes={"interleave": False},
            patch=(attention, "rope", lambda right, *given: right(*given)),
        ),
        "no_norm_grad_sum": Fault(
            "every shape, the forward, and the gradients of all matrices",
            "gradients of the norms: each rank saw its own tokens only",
            "block",
            {"tp": 2},
            patch=(gradients, "sum_tokens", broken.own_gradient),
        ),
        "contiguous_positions": Fault(
            "every shape; causality, for the mask knows the chunks",
            "forward: RoPE turns each token by another one's position",
            *_OVER_CP,
            patch=(setting.Setting, "own_positions", broken.contiguous_positions),
        ),
        "no_context_grad_sum": Fault(
            "every shape, the forward, and the gradient of x",
            "gradients of parameters: each CP rank saw its own tokens only",
            "attention",
            {"cp": 2, "zero": 1},
            patch=(gradients, "sum_context", broken.own_gradient),
        ),
        "no_data_grad_sum": Fault(
            "every shape, the forward, and the gradient of x",
            "gradients: dp ways drift apart",
            "mlp",
            {"dp": 2, "zero": 1},
            patch=(gradients, "sum_data", broken.own_gradient),
        ),
        "shards_not_summed": Fault(
            "every shape, the forward, and that each row of a gradient is somewhere",
            "gradients: each rank's slice is of its own sequences only",
            "mlp",
            {"dp": 2, "zero": 2},
            patch=(gradients, "sum_shards", lambda right, group, name, gradient: group.own(gradient)),
        ),
        "replicas_not_summed": Fault(
            "every shape, the forward, and the reduce-scatter",
            "gradients: the groups that hold the same slices drift apart",
            "mlp",
            {"dp": 4, "dp_replicate": 2, "zero": 2},
            patch=(gradients, "sum_replicas", broken.own_gradient),
        ),
        "shards_out_of_order": Fault(
            "every shape, every byte sent, and that all rows are there",
            "forward: gathered parameters have their rows in another order",
            "mlp",
            {"dp": 2, "zero": 3},
            patch=(zero.ZeroGroup, "own", broken.next_slice),
        ),
        "pad_in_softmax": Fault(
            "every shape, and a loss that is only a little off",
            "forward: the loss is too high by what the pad rows' exponentials add",
            "loss",
            {"tp": 8},
            changes={"pads_in_softmax": True},
            patch=(collectives, "maximum", lambda right, *given: right(*given)),
        ),
        "tied_not_summed": Fault(
            "every shape, the loss, and all gradients but one",
            "gradient of the embedding: each end of the pipeline has only its own part",
            *_OVER_PP,
            needs=_PIPELINE,
            model={"tied": True},
            patch=(microbatches, "both_ends", lambda right, own, other: own),
        ),
        "micro_batches_swapped": Fault(
            "every shape, every byte sent, and the size of the loss",
            "forward: the loss of a sequence is taken against another one's targets",
            *_OVER_PP,
            needs=_PIPELINE,
            patch=(
                microbatches,
                "targets_of",
                lambda right, targets, s, n: right(targets, s, min(n ^ 1, s.micro_batches - 1)),
            ),
        ),
        "loss_not_divided": Fault(
            "every shape, the loss, and the direction of each gradient",
            "gradients are as many times too large as there are micro-batches",
            *_OVER_PP,
            needs=_PIPELINE,
            patch=(microbatches, "objective", lambda right, loss, setting: loss.sum() / setting.micro_batch),
        ),
        "gradients_too_early": Fault(
            "every shape, the loss, and that gradients are sums over micro-batches",
            "gradients: the last micro-batch is missing",
            *_OVER_PP,
            needs=_PIPELINE,
            patch=(microbatches, "added", broken.added_but_the_last),
        ),
        "send_receive_crossed": Fault(
            "every rank has each operation once, and all bytes are right",
            "nothing moves: each rank is told with what it waits for, and from whom",
            *_OVER_PP,
            needs=_PIPELINE,
            patch=(microbatches, "row", broken.crossed_row),
        ),
        "norm_counts_copies": Fault(
            "every shape, the loss, all gradients, and seven digits of the weights, for AdamW divides too",
            "the norm, too large, and AdamW's means: what a rank only copies was counted tp times",
            "step",
            {"tp": 2},
            needs=_PIPELINE,
            patch=(update, "share_of_squares", lambda right, setting, name, pp_rank: 1.0),
        ),
        "norm_forgets_pp": Fault(
            "every shape, the loss, all gradients, and the weights' first digits after one step",
            "the norm, of which each PP rank has one of its own, and AdamW's means",
            "step",
            {"pp": 2},
            needs=_PIPELINE,
            patch=(update, "over_stages", lambda right, by_pp_rank, pp_rank: by_pp_rank[pp_rank]),
        ),
        "clipped_per_rank": Fault(
            "every shape, the loss, all gradients, the norm, and the weights' first digits after one step",
            "AdamW's means: stages were clipped by different factors",
            "step",
            {"pp": 2},
            needs=_PIPELINE,
            patch=(update, "clip_factor", lambda right, norm, own, training: right(own, own, training)),
        ),
        "averaged_over_context": Fault(
            "every shape, the loss, and the updated weights: clipping divides by the norm, which is as wrong",
            "gradients and norm, cp times too small",
            "step",
            {"cp": 2, "zero": 1},
            needs=_PIPELINE,
            patch=(
                gradients,
                "sum_context",
                lambda right, mesh, gradient: right(mesh, gradient) / compat.axis_size(mesh, "cp"),
            ),
        ),
        "neighbours_shard": Fault(
            "every shape, every byte sent, the loss, all gradients and the norm",
            "updated weights and AdamW's means: a rank updated its rows by those of another one",
            "step",
            {"dp": 2, "zero": 1},
            needs=_PIPELINE,
            patch=(update, "own_shard", broken.neighbours_shard),
        ),
        "weights_late": Fault(
            "every shape, every byte sent, all gradients, the norm and AdamW's state",
            "updated weights: they are those of the step before",
            "step",
            {"dp": 2},
            needs=_PIPELINE,
            patch=(update, "gathered_weight", lambda right, group, name, old, new: group.whole(old, name)),
        ),
        "last_row_missed": Fault(
            "every shape, every byte sent, and the result of most texts",
            "forward: tokens of a shard's last row are looked up nowhere",
            "embedding",
            {"tp": 2},
            patch=(vocab, "row_range", broken.without_last_row),
        ),
        "maximum_not_shared": Fault(
            "every shape; the backward runs",
            "forward: exponentials of different scales are added, where the ranks' maxima differ",
            "loss",
            {"tp": 2},
            patch=(collectives, "maximum", broken.no_collective),
        ),
        "slices_not_summed": Fault(
            "every shape; the backward runs",
            "forward: each rank has a slice of its own summand",
            "mlp",
            {"tp": 2},
            patch=(collectives, "reduce_scatter", broken.own_slice_of_sum),
        ),
        "gather_not_summed_backward": Fault(
            "every shape and the whole forward, to the last bit",
            "gradient of x and of all that lies before it",
            "mlp",
            {"tp": 2},
            patch=(collectives, "all_gather", broken.gathered_without_sum),
        ),
        "scale_forgotten": Fault(
            "every shape; that rows of the softmax add up to one",
            "forward: scores are sqrt(head_dim) times too large",
            *_ANYWHERE,
            patch=(kernels, "softmax_scale", lambda right, q, k: 1.0),
        ),
        "batch_for_sequence": Fault(
            "every shape, and every number of a batch of one",
            "forward: tokens of different sequences change places",
            *_ANYWHERE,
            needs={"global_batch": 2},
            patch=(attention, "split_heads", broken.heads_of_transposed),
        ),
        "kv_heads_in_turn": Fault(
            "every shape",
            "forward: query heads read the KV heads of other groups",
            *_ANYWHERE,
            patch=(attention, "causal", broken.kv_heads_in_turn),
        ),
        "rope_by_halves": Fault(
            "every shape, and the size of every number",
            "forward: RoPE turns other pairs of dims, as transformers stores them",
            *_ANYWHERE,
            patch=(attention, "rope", broken.rope_by_halves),
        ),
        "chunk_at_the_start": Fault(
            "every shape, every byte sent, and the first tokens",
            "forward: a rank masks as if its chunk began the sequence",
            *_OVER_CP,
            patch=(
                kernels,
                "segments",
                lambda right, chunks, documents=None: right([range(sum(map(len, chunks)))], documents),
            ),
        ),
        "tokens_as_they_came": Fault(
            "every shape, every byte sent, and that each rank has all tokens of its heads",
            "forward: queries attend to keys that stand at other places of the sequence",
            *_OVER_CP,
            needs={"cp_method": "ulysses"},
            patch=(attention, "in_order", lambda right, t, now, wanted: t),
        ),
        "heads_not_sent_home": Fault(
            "every shape, and the whole forward, to the last bit",
            "gradients: a rank keeps those of tokens and heads that other ranks sent it",
            *_OVER_CP,
            needs={"cp_method": "ulysses"},
            patch=(collectives, "all_to_all", broken.traded_one_way),
        ),
        "documents_ignored": Fault(
            "every shape, and the whole first document",
            "forward: tokens attend to the documents before theirs",
            *_ANYWHERE,
            needs={"documents": (3, 13), "seq_len": 16},
            patch=(kernels, "segments", lambda right, chunks, documents=None: right(chunks)),
        ),
        "norm_without_eps": Fault(
            "every shape, and all tokens that are not near zero",
            "forward: tokens near zero are blown up",
            "block",
            {},
            patch=(llama, "rms_norm", lambda right, x, weight, eps: right(x, weight, 0.0)),
        ),
        "never_clipped": Fault(
            "every shape, the loss, all gradients, the norm, and seven digits of the weights",
            "AdamW's means: gradients went in as large as they were",
            "step",
            {},
            needs=_PIPELINE,
            patch=(update, "clip_factor", lambda right, norm, own, training: torch.ones_like(norm)),
        ),
        "means_not_corrected": Fault(
            "every shape, the loss, all gradients, the norm and AdamW's means",
            "updated weights: the first steps are of another length",
            "step",
            {},
            needs=_PIPELINE,
            patch=(
                update,
                "adamw",
                lambda right, state, gradient, training, step: right(state, gradient, training, 10**6),
            ),
        ),
        "decay_in_gradient": Fault(
            "every shape, the loss, all gradients and the norm",
            "AdamW's means and the updated weights: the decay went through the means",
            "step",
            {},
            needs=_PIPELINE,
            patch=(update, "adamw", broken.decay_in_gradient),
        ),
    }
)
"""name → fault."""
