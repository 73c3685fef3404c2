"""`memory`: checks the arguments and counts by the accounting that was asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Unpack

from llamapar.describe.arguments import checked_options
from llamapar.describe.dtypes import TRAINED
from llamapar.describe.hardware import DEFAULT_GPU, GpuLike, hardware
from llamapar.describe.job import Job
from llamapar.describe.layout import Degrees, Layout, LayoutLike
from llamapar.describe.models import ModelLike
from llamapar.describe.options import offer
from llamapar.describe.splits import Padding
from llamapar.errors import Choice, LayoutError, flag, one_of
from llamapar.frameworks import FRAMEWORKS, Framework
from llamapar.frameworks import framework as find_framework
from llamapar.frameworks.cross_entropy import LOSSES
from llamapar.frameworks.habits import HABITS, habits_of
from llamapar.frameworks.trainer import LAST, MOST, Habits
from llamapar.place.orders import ORDERS

from .exact import Account, exact
from .in_flight import SCHEDULES
from .published_rules import korthikanti, megatron, ultrascale
from .saved import KERNELS, RECOMPUTE
from .sizes import Sizes
from .terms import Breakdown, Memory

ACCOUNTINGS = ("exact", "megatron", "korthikanti", "ultrascale")
offer("accounting", ACCOUNTINGS)


@checked_options
def memory(
    model: ModelLike,
    layout: LayoutLike | None = None,
    *,
    seq_len: int,
    micro_batch: int = 1,
    global_batch: int | None = None,
    recompute: str = "selective",
    schedule: str = "1f1b",
    nc: int | None = None,
    accounting: str = "exact",
    gpu: GpuLike = DEFAULT_GPU,
    dtype: str = "bfloat16",
    grad_dtype: str | None = None,
    kernels: str = "fused",
    loss: str | None = None,
    grad_buckets: bool = False,
    master_weights: bool | None = None,
    float8_all_gather: bool = False,
    kv_replication: bool = False,
    padding: str | Padding | None = None,
    layer_split: str | Sequence[int] | None = None,
    cp_method: str = "all_gather",
    regather: bool | None = None,
    silu_kept: bool | None = None,
    elementwise_kept: bool | None = None,
    framework: str | Framework | None = None,
    **degrees: Unpack[Degrees],
) -> Memory:
    """Bytes of memory on the worst rank of every pipeline stage, term by term, beside a GPU's HBM.

    A choice that neither an argument nor `framework` decides makes the answer a range, `low_bytes` to
    `high_bytes`. The terms shown are those of its upper end. Without a framework, the terms follow the open
    choices alone; the upper end is then what any trainer may do, and the outcome is "fits" only if that fits.

    seq_len: tokens of a sequence. micro_batch: sequences of a micro-batch. global_batch: sequences of a step
        over all dp ways; by default two micro-batches for each pipeline rank.
    recompute: "none", "selective" or "full". schedule: "1f1b" (interleaved with virtual_stages), "gpipe", or
        another of `schedule`'s; nc belongs to the flexible one. Chunks in flight are counted in its table.
    accounting: "exact", or a published rule: "megatron", "korthikanti" (activations alone), "ultrascale";
        the rules know one stage, the most loaded. gpu: as in `cost`.
    dtype: of parameters and activations. grad_dtype: of the sums of gradients over micro-batches; by default
        the framework's, else float32.
    kernels: "fused" (RMSNorm and RoPE as one kernel each) or "eager" (this project's programs, to the byte).
    loss: a key of `llamapar.frameworks.cross_entropy.LOSSES`: "vocab_parallel", "in_place", "torch" for
        torch.nn.functional.cross_entropy, "shifted" for that of older transformers, "held" if a script
        keeps the logits through the backward, "narrow" if they stay in dtype, "loss_parallel" for
        DTensor's, "compiled" or "chunked".
    grad_buckets: gradients of a micro-batch are kept in dtype beside their sums, as in torch's DDP.
    master_weights: float32 weights and states beside narrower parameters; by default the framework's habit,
        else True.
    float8_all_gather: ZeRO 3 gathers the weights of layers in float8, as torchao's FSDP2 extension does.
    regather: under sequence parallelism, the backward gathers the inputs of column-parallel matmuls again
        instead of keeping them, as Megatron-LM does (arXiv:2205.05198 section 4.2.2). None: unknown.
    silu_kept: the backward of SwiGLU keeps SiLU's output instead of computing it again. None: unknown.
    elementwise_kept: without recomputation, outputs of norms and SwiGLU's product are kept for the matmuls
        that read them, instead of being computed again. None: unknown.
    framework: supplies habits (`llamapar.frameworks.habits`), padding and layer split as defaults.
    padding, kv_replication, cp_method: as in `run`.
    layer_split: as in `stages`, or layers of each stage; by default the framework's, else "balanced ends".

    ZeRO and sequence parallelism come from the layout: by default ZeRO 1, and on if tp > 1.
    Raises LayoutError for bad input, if tp cuts through a head, and if the layer split refuses.
    """
    for name, value, known in (
        ("recompute", recompute, RECOMPUTE),
        ("schedule", schedule, SCHEDULES),
        ("accounting", accounting, ACCOUNTINGS),
        ("dtype", dtype, TRAINED),
        ("grad_dtype", grad_dtype or dtype, TRAINED),
        ("kernels", kernels, KERNELS),
        ("loss", loss or "torch", LOSSES),
    ):
        one_of(name, value, known)
    lay, found = Layout.of(layout, **degrees), hardware(gpu)
    job = Job.of(model, lay, seq_len=seq_len, micro_batch=micro_batch, global_batch=global_batch)
    m, lay = job.model, job.layout
    many = micro_batches_of(job)
    how = f"seq_len={seq_len}, micro_batch={micro_batch}: {accounting} accounting, recompute {recompute}"
    judge, habits = _trainer(framework)
    if framework is not None:
        how += f", as {judge.title if judge else framework}"
    if regather is not None:
        habits = replace(habits, regather=flag("regather", regather))
    if silu_kept is not None:
        habits = replace(habits, silu_kept=flag("silu_kept", silu_kept))
    if elementwise_kept is not None:
        habits = replace(habits, elementwise_kept=flag("elementwise_kept", elementwise_kept))
    if loss is not None:
        habits = replace(habits, loss=loss, tp_loss=None)
    # An argument outranks the framework's habit, so the habits are replaced before anything is counted.
    if accounting == "exact":
        habits, mode = habits.under(recompute)
        # What is given here once serves several layouts below: the estimate shown, its lower end, and the
        # heaviest trainer's.
        item_grads = dtype if habits.grads_in_dtype else "float32"
        sizes = partial(
            Sizes,
            m,
            seq_len=seq_len,
            micro_batch=micro_batch,
            kv_replication=flag("kv_replication", kv_replication),
            padding=judge.padding if judge and padding is None else padding,
            layer_split=layer_split or (judge and judge.layer_split) or "balanced ends",
            cp_method=cp_method,
            dtype=dtype,
            placement=ORDERS[schedule].placement,
        )
        account = Account(
            grad_dtype or item_grads,
            mode,
            kernels,
            schedule,
            many,
            nc,
            flag("grad_buckets", grad_buckets),
            habits.master_weights if master_weights is None else flag("master_weights", master_weights),
            flag("float8_all_gather", float8_all_gather),
        )
        # A trainer that is not known may keep gradients from step to step, so moments of a step cannot be
        # told apart and all terms count together.
        most, together = habits.most(), habits.gradients_stay is None
        stages = exact(sizes(lay, regather=bool(most.regather)), account, most, together)
        least = habits.least()
        layouts = [lay]
        if lay.sp and lay.sequence_parallel is None and regather is None:  # which only it can do
            layouts.append(lay.replace(sequence_parallel=False))
        # Naming the framework closes most open choices at once; for one that is named, what is still open
        # is asked for.
        facts = ("framework",) if framework is None else tuple(n for n in habits.open if n in _SAID)
        if habits.open:
            return Memory(
                m,
                lay,
                how,
                tuple(stages),
                found,
                lambda: exact(sizes(lay, regather=bool(least.regather)), account, least, False),
                facts,
                None if framework is not None else partial(_heaviest, sizes, layouts, account, most),
            )
    elif accounting == "megatron":
        stages = [megatron(m, lay, seq_len, micro_batch, many, recompute)]
    else:
        # These authors' rules count no micro-batches.
        rule = korthikanti if accounting == "korthikanti" else ultrascale
        stages = [rule(m, lay, seq_len, micro_batch, recompute)]
    return Memory(m, lay, how, tuple(stages), found)


def _heaviest(
    sizes: Callable[..., Sizes], layouts: Sequence[Layout], account: Account, habits: Habits
) -> list[Breakdown]:
    """The upper bound for any trainer: for each stage, the layout that takes more.

    It assumes DTensor's loss, gradients in buckets beside their sums, and gradients whole until the last
    micro-batch. Recomputation is as given. Copies that only a few trainers' steps make are left out.
    """
    loss = "loss_parallel" if habits.loss == MOST["loss"] else habits.loss
    habits = replace(habits, loss=loss, reduces=LAST)
    account = replace(account, grad_buckets=True)
    # Stage by stage, because with and without sequence parallelism another stage may be the heavier one.
    made = (exact(sizes(one, regather=bool(habits.regather)), account, habits) for one in layouts)
    return [max(stages, key=lambda stage: stage.total_bytes) for stages in zip(*made, strict=True)]


_SAID = ("regather", "silu_kept", "elementwise_kept", "loss")
"""A trainer's choices that are also arguments of `memory`."""


def _trainer(name: str | Framework | None) -> tuple[Framework | None, Habits]:
    """The framework of a name (None for a trainer that is not a framework here), and its habits."""
    if name is None or (name in HABITS and name not in FRAMEWORKS):
        return None, habits_of(name)
    judge = find_framework(name)
    return judge, habits_of(judge)


def micro_batches_of(job: Job) -> int:
    """Micro-batches of a step; by default as many as fill the pipeline. Raises LayoutError for none."""
    if job.global_batch is None:
        return job.layout.usual_micro_batches
    # None or 0 here means that the global batch does not divide.
    if job.n_micro_batches:
        return job.n_micro_batches
    step = job.layout.dp * (job.micro_batch or 1)
    many = job.global_batch // step
    near = [Choice.of(global_batch=n * step) for n in (many, many + 1) if n]
    raise LayoutError(
        f"global_batch={job.global_batch} sequences are no whole number of micro-batches",
        f"a micro-batch of every dp way is dp·micro_batch = {step} sequences",
        near,
        "global_batch",
    )
