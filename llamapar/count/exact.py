"""The exact accounting: every known tensor of the step is counted; the rest is a stated assumption.

A term is a formula of named inputs, for one pipeline rank. A step has three moments that may be its peak:
terms of one moment are added up, those of different moments are not. Assumed, and not counted, are
workspaces, the allocator's slack and CUDA's context.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from llamapar.describe.dtypes import BYTES
from llamapar.describe.models import ModelConfig
from llamapar.frameworks.cross_entropy import LOSSES
from llamapar.frameworks.trainer import Habits
from llamapar.place.orders import ALL_FORWARD_FIRST

from .in_flight import in_flight
from .saved import kept_of_end, kept_of_layer
from .sizes import Sizes, StageHold
from .terms import ALLOCATOR_TERM, CONTEXT_TERM, GIB, Breakdown, Term

ALLOCATOR = GIB // 2
"""Assumed: workspaces of cuBLAS and NCCL and the allocator's slack, inside torch's own peak."""

CONTEXT = GIB // 2
"""Assumed: CUDA's context and the driver's share, which torch's counters do not see."""

_ADAM = "arXiv:1910.02054 section 3.1: Adam with float32 states"
_ZERO = "arXiv:1910.02054 section 5, over dp_shard · cp ranks (arXiv:2407.21783 section 3.3.2)"
_FSDP = (
    "torch.distributed.fsdp.fully_shard: dim 0 by torch.chunk, the sharded parameters are the master weights"
)

UNREDUCED = "unreduced gradients"
STEP_COPY = "optimizer's copy"
STEP_GRADIENTS = "gradients of the step"

_WAITING = (
    "torch's pipelining: a stage's gradients are added up whole, and reduced after its last micro-batch"
)


@dataclass(frozen=True)
class Account:
    """The settings of an exact accounting, besides model and layout: see `memory`."""

    grad_dtype: str
    recompute: str
    kernels: str
    schedule: str
    micro_batches: int
    nc: int | None
    master_weights: bool = True


def state_terms(sizes: Sizes, hold: StageHold, account: Account, habits: Habits) -> list[Term]:
    """Parameters, gradients, master weights and optimizer states of a PP rank."""
    layout = sizes.layout
    shard = layout.dp_shard * layout.cp
    item = sizes.item
    grad = BYTES[account.grad_dtype]
    fsdp = layout.zero == 3
    # Its sharded parameters are then float32 themselves, so there is no second copy of them.
    one_copy = fsdp and not habits.sharded_copies
    inputs = {
        "params": sizes.params(hold),
        # fully_shard cuts each tensor by rows; Megatron's and DeepSpeed's optimizers cut one flat buffer
        # of all.
        "own": sizes.params(hold, shard, by_row=one_copy) if layout.zero else sizes.params(hold),
        "item": item,
        "grad": grad,
        # States are as wide as the master weights, which are float32 or the parameters themselves.
        "wide": max(item, 4) if account.master_weights else item,
        "bucket": habits.bucket if fsdp or habits.overlaps else habits.bucket // 2,
        "zero": layout.zero,
        "copies": habits.step_copies,
    }
    # With one micro-batch a gradient is reduced as soon as it is made, and nothing waits.
    if layout.zero >= 2 and account.micro_batches > 1 and habits.reduces_once(layout.pp):
        inputs["waiting"] = item if habits.unreduced_in_dtype else grad
        inputs["unreduced"] = unreduced_gradients(sizes, hold, account.schedule)
    inputs["buckets"] = item if layout.zero in habits.buckets and shard * layout.dp_replicate > 1 else 0
    source = _FSDP if one_copy else _ZERO
    master = item < 4 and not one_copy and account.master_weights
    parameters = "params * item"
    if fsdp:
        parameters = "own * wide" if one_copy else "own * item"
    # A term that does not apply has the formula "0" and is dropped later, so the order is the same for
    # all trainers.
    rows = [
        (
            "parameters",
            parameters,
            source if fsdp else "bytes of the dtype",
        ),
        ("gradients", "own * grad" if layout.zero >= 2 else "params * grad", source),
        (
            UNREDUCED,
            "unreduced * waiting" if "unreduced" in inputs else "0",
            habits.source("reduces") or _WAITING,
        ),
        (
            "gradient buckets",
            "params * buckets" if inputs["buckets"] else "0",
            "torch DDP's buckets, in dtype",
        ),
        ("master weights", "own * 4" if master else "0", source),
        ("optimizer states", "2 * own * wide", f"{_ADAM}; {source}"),
    ]
    if habits.bucket and shard > 1:
        rows.append(("reduction buckets", "bucket * item", habits.source("bucket")))
    if habits.step_gradients and layout.zero:
        rows.append((STEP_GRADIENTS, habits.step_gradients, habits.source("step_gradients")))
    if habits.step_copies:
        rows.append((STEP_COPY, "copies * own * wide", habits.source("step_copies")))
    return [Term(name, formula, inputs, why) for name, formula, why in rows]


def unreduced_gradients(sizes: Sizes, hold: StageHold, schedule: str) -> int:
    """Parameters with whole gradients on a rank before a stage's last micro-batch, beyond its own shard.

    If all forwards come first, the backwards of one stage end before those of the next begin; then one stage
    counts at a time.
    """
    shard = sizes.layout.dp_shard * sizes.layout.cp
    last = len(hold.layers) - 1
    # Otherwise stages alternate, and gradients of all of them wait at the same time.
    stages = [hold]
    if schedule in ALL_FORWARD_FIRST:
        stages = [
            StageHold((layers,), hold.embedding and not i, hold.head and i == last)
            for i, layers in enumerate(hold.layers)
        ]
    return max(sizes.params(one) - sizes.params(one, shard) for one in stages)


def buffers(sizes: Sizes, hold: StageHold, account: Account, habits: Habits) -> list[Term]:
    """Communication buffers: ZeRO 3's gathered parameters, gradients in flight, and the pipeline's."""
    layout = sizes.layout
    inputs: dict[str, float] = dict(sizes.activations)
    for name, parts in sizes.parts.items():
        inputs[f"{name}_params"] = sum(part.numel for part in parts)
    inputs["grad"] = BYTES[account.grad_dtype]
    terms = []
    shared = layout.dp_shard * layout.cp > 1
    if layout.zero == 3 and shared:
        # Two layers: the one that computes and the next one, which is prefetched meanwhile.
        inputs["gathered_layers"] = 2
        units = "gathered_layers * layer_params"
        if hold.embedding:
            units += " + embedding_params"
        if hold.head:
            units += " + head_params"
        source = f"{_FSDP}; the next layer prefetched"
        # DeepSpeed limits gathered parameters by number and not by layer (stage3_max_live_parameters).
        if habits.live:
            inputs["live"], inputs["all"] = habits.live, sizes.params(hold)
            units = "min(live, all)"
            source = habits.source("live")
        terms.append(Term("gathered parameters", f"({units}) * item", inputs, source))
    if layout.zero >= 2 and shared:  # under ZeRO 2 as under 3 a layer's gradients are whole until reduced
        units = "layer_params * (item + grad)"
        terms.append(Term("gradients in flight", units, inputs, "one layer's, before and in its reduction"))
    # Without a pipeline nothing is sent between stages.
    if layout.pp > 1:
        sent = "2 * residual * item"
        terms.append(
            Term("pipeline buffers", sent, inputs, "a micro-batch received, one sent: arXiv:2104.04473")
        )
    return terms


def layer_terms(
    inputs: Mapping[str, float],
    kernels: str,
    recompute: str,
    times: str,
    model: ModelConfig | None,
) -> list[Term]:
    """What autograd keeps of as many layers and micro-batches as the input `times` says."""
    return [
        Term(f"activations: {row.part}", f"{times} * ({row.formula})", inputs, row.source)
        for row in kept_of_layer(kernels, recompute, model)
    ]


def activations(
    sizes: Sizes, hold: StageHold, flying: tuple[int, ...], account: Account, habits: Habits
) -> list[Term]:
    """What autograd keeps at the peak of a PP rank, the logits, and the backward's workspace.

    flying: micro-batches in flight at the peak, for each of its stages.
    """
    layout = sizes.layout
    inputs: dict[str, float] = dict(sizes.activations)
    inputs["layers"] = sum(n * count for n, count in zip(hold.layers, flying, strict=True))
    # The embedding is on the rank's first stage and the head on its last, each with its own chunks in flight.
    inputs["first"], inputs["last"] = flying[0], flying[-1]
    kernels = account.kernels
    recompute = account.recompute
    model = sizes.model
    # Gate, up and their product, and SiLU's output if it is kept.
    inputs["kept"] = 3 + habits.silu_kept
    again_cheaply = recompute == "none" and not habits.elementwise_kept
    if again_cheaply:
        inputs["kept"] -= 1
        # Without a gather the matmul's input is the norm's output itself, which is computed again.
        if inputs["column"] == inputs["residual"]:
            inputs["column"] = 0
    # Without GQA the merged projection of Q, K and V may stay alive as a whole, beside separate K and V.
    if sizes.model.n_kv_heads == sizes.model.n_heads:
        inputs["copies"] = 2 * inputs["k"] * (habits.merged_qkv or (habits.merged_v and kernels == "eager"))
    if habits.transposes and sizes.batch > 1:
        inputs["copies"] += inputs["q"]
    if habits.repeats_kv:
        inputs["copies"] += 2 * (inputs["q"] - inputs["k"])
    terms = layer_terms(inputs, kernels, recompute, "layers", model)
    if hold.embedding:
        row = kept_of_end("embedding", kernels)
        terms.append(Term("activations: embedding", f"first * ({row.formula})", inputs, row.source))
    # What the backward recomputes of one layer is what "none" would have kept and this mode did not.
    kept, every = (
        " + ".join(s.formula for s in kept_of_layer(kernels, r, model)) for r in (recompute, "none")
    )
    again = "0"
    if recompute != "none":
        again = f"({every}) - ({kept})"
    work = "0"
    if any(hold.layers):
        work = f"{again} + ({3 + again_cheaply} * ffn + 2 * gathered) * item"
    source = "gradients of w1, w3 and w2's inputs and of the residual stream, and what is recomputed"
    if hold.head:
        row = kept_of_end("head", kernels)
        terms.append(Term("activations: head", f"last * ({row.formula})", inputs, row.source))
        row = kept_of_end("loss", kernels)
        less, more, why = LOSSES[(layout.tp > 1 and habits.tp_loss) or habits.loss]
        own = row.formula if less == "0" else f"{row.formula} + {less}"
        every = own
        if inputs["last"] > 1:
            every = f"last * ({own})"
        terms.append(Term("logits and loss", f"{every} + {more}", inputs, f"{row.source}; {why}"))
        # The head's backward frees the logits before the layers' backward begins, so that memory is used
        # again.
        work = f"max(0, {work} - ({own} + {more}))"
        source += ", past what the logits have freed by then"
    return [*terms, Term("backward workspace", work, inputs, source)]


def breakdown(
    sizes: Sizes,
    hold: StageHold,
    rank: int,
    flying: tuple[int, ...],
    constant: list[Term],
    account: Account,
    habits: Habits,
) -> Breakdown:
    """The terms of a PP rank at its worst moment; empty terms are left out.

    constant: states and buffers, which ranks with the same stages share.
    """
    assumed = [
        Term(
            ALLOCATOR_TERM,
            "allocator",
            {"allocator": ALLOCATOR},
            "assumption: llamapar.count.exact.ALLOCATOR",
        ),
        Term(
            CONTEXT_TERM,
            "context",
            {"context": CONTEXT},
            "assumption: llamapar.count.exact.CONTEXT",
        ),
    ]
    every = [*constant, *activations(sizes, hold, flying, account, habits)]
    # Formulas of "0" end here.
    every = [term for term in every if term.bytes]
    # From the second micro-batch on, sums of gradients exist before the backward begins.
    stays = habits.gradients_stay or account.micro_batches > 1
    # The peak is one moment: adding up the maxima of all terms would count memory that is reused.
    worst = max(moments(every, hold.head, stays), key=lambda terms: sum(t.bytes for t in terms))
    names = {term.name for term in worst}
    return Breakdown(rank, (*worst, *assumed), tuple(term for term in every if term.name not in names))


def moments(terms: list[Term], head: bool, gradients_stay: bool) -> list[list[Term]]:
    """The terms at three moments: when the backward begins, when it ends, and in the optimizer's step.

    gradients_stay: gradients already exist before the backward makes them.
    """
    kept = ("activations", "logits and loss")
    passing = ("gathered parameters", "gradients in flight", "pipeline buffers", "backward workspace")

    def without(*names: str) -> list[Term]:
        return [t for t in terms if t.name not in names and t.name.partition(":")[0] not in names]

    # Named is what is NOT there: `begins` before the backward, `steps` in the optimizer's step.
    begins = [STEP_COPY, STEP_GRADIENTS]
    steps = [*passing, *kept, UNREDUCED]
    # A trainer that makes its own gradients for the step has freed the others by then.
    if any(t.name == STEP_GRADIENTS for t in terms):
        steps += ["gradients", "reduction buckets"]
    if head:
        begins.append("gradients in flight")  # the logits are there until the head's backward
    if not gradients_stay:
        begins.append("gradients")
    loss = without(*begins)
    if head and not any(term.name == "backward workspace" for term in loss):
        # Beside the logits only the last layer is gathered: the one before is prefetched for its own
        # backward.
        loss = [replace(term, inputs={**term.inputs, "gathered_layers": 1}) for term in loss]
    # In this order: the backward begins, it ends with all activations freed, the optimizer steps.
    return [loss, without(STEP_COPY, STEP_GRADIENTS, *kept), without(*steps)]


def exact(sizes: Sizes, account: Account, habits: Habits, fullest: bool = False) -> list[Breakdown]:
    """The breakdown of every PP rank; of ranks that hold the same, only the fullest where that is enough."""
    layout = sizes.layout
    many = account.micro_batches
    ranks: dict[tuple[StageHold, tuple[int, ...]], list[int]] = {}
    for rank, hold in enumerate(sizes.stages):
        flying = in_flight(account.schedule, rank, layout.pp, layout.virtual_stages, many, account.nc)
        ranks.setdefault((hold, flying), []).append(rank)
    kept: dict[StageHold, list[tuple[int, ...]]] = {}
    for hold, flying in ranks:
        kept.setdefault(hold, []).append(flying)
    found: dict[int, Breakdown] = {}
    for hold, every in kept.items():
        # States and buffers are the same on all of these ranks; more chunks in flight only add to them.
        constant = [*state_terms(sizes, hold, account, habits), *buffers(sizes, hold, account, habits)]
        most = max(every, key=lambda chunks: sum(n * c for n, c in zip(hold.layers, chunks, strict=True)))
        for flying in [most] if fullest else every:
            first, *alike = ranks[hold, flying]
            one = breakdown(sizes, hold, first, flying, constant, account, habits)
            found |= {rank: replace(one, stage=rank) for rank in (first, *alike)}
    return [found[rank] for rank in sorted(found)]
