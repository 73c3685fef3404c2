"""`memory`: the arguments, checked, and the account that was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from llamapar.describe.arguments import named
from llamapar.describe.dtypes import TRAINED
from llamapar.describe.hardware import GPUS
from llamapar.describe.job import Job
from llamapar.describe.layout import LayoutLike
from llamapar.describe.models import ModelLike
from llamapar.describe.options import offer
from llamapar.describe.splits import Padding
from llamapar.errors import Choice, LayoutError, flag, one_of
from llamapar.frameworks import Framework
from llamapar.frameworks import framework as find_framework
from llamapar.frameworks.habits import HABITS, UNKNOWN_TRAINER

from .exact import LOSSES, Account, exact
from .published import korthikanti, megatron, ultrascale
from .saved import KERNELS, RECOMPUTE
from .schedule import SCHEDULES
from .sizes import Sizes
from .terms import Memory

ACCOUNTINGS = ("exact", "megatron", "korthikanti", "ultrascale")
offer("accounting", ACCOUNTINGS)


@named()
def memory(
    model: ModelLike,
    layout: LayoutLike,
    *,
    seq_len: int,
    micro_batch: int = 1,
    global_batch: int | None = None,
    recompute: str = "selective",
    schedule: str = "1f1b",
    accounting: str = "exact",
    gpu: str = "h100-80gb",
    dtype: str = "bfloat16",
    grad_dtype: str = "float32",
    kernels: str = "fused",
    loss: str = "vocab_parallel",
    grad_buckets: bool = False,
    kv_replication: bool = False,
    padding: str | Padding | None = None,
    layer_split: str | Sequence[int] | None = None,
    cp_method: str = "all_gather",
    regather: bool | None = None,
    framework: str | Framework | None = None,
) -> Memory:
    """Bytes of memory on the worst rank of every pipeline stage, term by term, beside a GPU's HBM.

    A mode that neither is said nor follows from `framework` makes the answer a range, `low_bytes` to
    `high_bytes`; the terms are those of its upper end.

    seq_len: tokens of a sequence. micro_batch: sequences of a micro-batch. global_batch: sequences of a step
        over all dp ways; without it there are as many micro-batches as keep the pipeline full.
    recompute: "none", "selective" or "full". schedule: "1f1b" (interleaved with virtual_stages) or "gpipe".
    accounting: "exact", or a published rule: "megatron", "korthikanti" (activations alone), "ultrascale";
        those know one stage, the most loaded. gpu: a name of `GPUS`.
    dtype: of parameters and activations; grad_dtype: of the sums of gradients over micro-batches.
    kernels: "fused" (RMSNorm and RoPE as one kernel each) or "eager" (this project's programs, to the byte).
    loss: "vocab_parallel", "torch" for torch.nn.functional.cross_entropy, or "loss_parallel" for DTensor's.
    grad_buckets: gradients of a micro-batch are kept in dtype beside their sums, as in torch's DDP.
    regather: under sequence parallelism the inputs of column-parallel matmuls are gathered again in the
        backward rather than kept, as Megatron-LM does (arXiv:2205.05198 section 4.2.2). None: not known.
    framework: whose habits (`llamapar.frameworks.habits`), padding and layer split there are, unless said.
    padding, kv_replication, cp_method: as in `run`. layer_split: as `split` in `stages`, or layers per stage;
        "balanced ends" unless it is said or the framework's.

    ZeRO and sequence parallelism are the layout's: by default ZeRO 1, and on where tp > 1.
    Raises LayoutError for bad input, where tp cuts through a head, and for a layer split that refuses.
    """
    for name, value, known in (
        ("recompute", recompute, RECOMPUTE),
        ("schedule", schedule, SCHEDULES),
        ("accounting", accounting, ACCOUNTINGS),
        ("gpu", gpu, GPUS),
        ("dtype", dtype, TRAINED),
        ("grad_dtype", grad_dtype, TRAINED),
        ("kernels", kernels, KERNELS),
        ("loss", loss, LOSSES),
    ):
        one_of(name, value, known)
    job = Job.of(model, layout, seq_len=seq_len, micro_batch=micro_batch, global_batch=global_batch)
    m, lay = job.model, job.layout
    many = _micro_batches(job)
    how = f"seq_len={seq_len}, micro_batch={micro_batch}: {accounting} accounting, recompute {recompute}"
    judge = None if framework is None else find_framework(framework)
    habits = HABITS.get(judge.name, UNKNOWN_TRAINER) if judge else UNKNOWN_TRAINER
    if regather is None:
        regather = habits.regather
    if accounting == "exact":
        sizes = partial(
            Sizes,
            m,
            lay,
            seq_len=seq_len,
            micro_batch=micro_batch,
            kv_replication=flag("kv_replication", kv_replication),
            padding=judge.padding if judge and padding is None else padding,
            layer_split=layer_split or (judge and judge.layer_split) or "balanced ends",
            cp_method=cp_method,
            dtype=dtype,
        )
        buckets = flag("grad_buckets", grad_buckets)
        account = Account(grad_dtype, recompute, kernels, schedule, many, buckets, loss)
        stages = exact(sizes(regather=bool(regather)), account)
        if regather is None and lay.sp:
            return Memory(
                m,
                lay,
                how,
                tuple(stages),
                gpu,
                lambda: exact(sizes(regather=True), account),
                ("framework", "regather"),
            )
    elif accounting == "megatron":
        stages = [megatron(m, lay, seq_len, micro_batch, many, recompute)]
    else:
        rule = korthikanti if accounting == "korthikanti" else ultrascale
        stages = [rule(m, lay, seq_len, micro_batch, recompute)]
    return Memory(m, lay, how, tuple(stages), gpu)


def _micro_batches(job: Job) -> int:
    """Micro-batches of a step; without a global batch as many as fill the pipeline."""
    if job.global_batch is None:
        return 2 * job.layout.stages
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
