"""`memory`: checks the arguments and counts every stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product
from typing import Unpack

from llamapar.describe.arguments import checked_options
from llamapar.describe.dtypes import TRAINED
from llamapar.describe.hardware import hardware
from llamapar.describe.job import Job
from llamapar.describe.keywords import MemoryKeywords
from llamapar.describe.layout import AXES, Layout, LayoutLike
from llamapar.describe.models import ModelLike
from llamapar.describe.options import Values
from llamapar.errors import Choice, LayoutError, one_of
from llamapar.frameworks import (
    FRAMEWORKS,
    Framework,
    as_run,
    habits_of,
    judge_of,
    recompute_of,
    split_of,
    versions_of,
)
from llamapar.place.orders import ORDERS

from .exact import Account, exact
from .saved import RECOMPUTE
from .sizes import Sizes
from .terms import SAVES, Breakdown, Meaning, Memory, fullest


@checked_options
def memory(
    model: ModelLike,
    layout: LayoutLike | None = None,
    **options: Unpack[MemoryKeywords],
) -> Memory:
    """Bytes of memory on the worst rank of every pipeline stage, term by term, beside a GPU's HBM.

    The terms add up to the expected figure; `low_bytes` to `high_bytes` holds eight of ten runs. What the
    call leaves open widens it: without `recompute` every mode counts, and without `framework` every trainer
    that can run the layout. `Memory.narrows` is the fact that narrows it most.

    seq_len: tokens of a sequence. micro_batch: sequences of a micro-batch. global_batch: sequences of a step
        over all dp ways; by default two micro-batches for each pipeline rank.
    recompute: "none", "selective" or "full"; None: the trainer's usual mode is expected.
    schedule: "1f1b" (interleaved with virtual_stages), "gpipe", or another of `schedule`'s; nc belongs to the
        flexible one. Chunks in flight are counted in its table. gpu: as in `cost`.
    dtype: of parameters and activations. grad_dtype: of the sums of gradients over micro-batches; by default
        the framework's, else float32.
    kernels: "fused" (RMSNorm and RoPE as one kernel each) or "eager" (this project's programs, to the byte).
    loss: a key of `llamapar.frameworks.cross_entropy.LOSSES`: "vocab_parallel", "in_place", "torch" for
        torch.nn.functional.cross_entropy, "held" if a script keeps the logits through the backward, "narrow"
        if they stay in dtype, "loss_parallel" for DTensor's, "compiled" or "chunked".
    master_weights: float32 weights and states beside narrower parameters.
    framework: a trainer, "torchtitan" or its code of a day, "torchtitan@2025-06-01". Its row of
        `llamapar/frameworks/trainers.toml` gives what the call leaves out, and the ZeRO stage that it has.
    saves: what the run does that is not counted, "lora", "8-bit-adam", "offload", "4-bit" for weights, or
        "zero" for a stage that is not known: every figure is then an upper bound, and the low end is
        what is left without the terms that it makes smaller.
    padding, kv_replication, cp_method: as in `run`.
    layer_split: as in `stages`, or layers of each stage; by default the framework's, else "balanced ends".

    ZeRO and sequence parallelism come from the layout: by default ZeRO 1, and on if tp > 1.
    Of a mixture of experts everything else is counted, so that the figure is a lower bound.

    Raises LayoutError for bad input, if tp cuts through a head, and if the layer split refuses.
    """
    judge = judge_of(options["framework"])
    facts = Values({name: options[name] for name in _JOB})  # type: ignore[literal-required]
    job = as_run(judge, Job.of(model, layout, **facts))
    dtype = one_of("dtype", options["dtype"], TRAINED)
    found = hardware(options["gpu"])
    counting = Counting(job, dtype, micro_batches_of(job), Values(options))
    mode = recompute_of(judge, options["recompute"])
    lay, stages = counting.stages(judge, mode, some=False)
    how = f"seq_len={job.seq_len}, micro_batch={job.micro_batch}: exact accounting, recompute {mode}"
    if judge is not None:
        how += f", as {judge.title}"
    if lay.zero != job.layout.zero:
        how += f", ZeRO {lay.zero}"
    if job.model.experts:
        how += ", without experts"
        if job.model.experts.latent:
            how += " and attention"
    open_facts = [name for name in ("recompute", "framework") if options[name] is None]
    if judge is not None and len(versions_of(judge)) > 1:
        open_facts.append("@date")
    return Memory(
        job.model,
        lay,
        how,
        tuple(stages),
        found,
        lambda: counting.meanings(judge, mode),
        tuple(open_facts),
        saves=tuple(one_of("saves", one, SAVES) for one in options["saves"]),
    )


@dataclass(frozen=True)
class Counting:
    """A job of which memory is counted as several trainers run it, and in several modes of recomputation.

    many: micro-batches of a step. options: those of `memory`.
    """

    job: Job
    dtype: str
    many: int
    options: Values

    @cached_property
    def sized(self) -> Callable[..., Sizes]:
        """The sizes of a rank, by what a trainer decides of them.

        A trainer cuts a model alike in every mode of recomputation, so a rank is measured once for all modes.
        Only the last one is kept, because answers are cached and would keep all of them.
        """
        options = self.options
        return lru_cache(maxsize=1)(
            lambda layout, padding, split, method, regather: Sizes(
                self.job.model,
                layout,
                seq_len=options["seq_len"],
                micro_batch=options["micro_batch"],
                kv_replication=self.job.kv_replication,
                padding=padding if options["padding"] is None else options["padding"],
                layer_split=options["layer_split"] or split,
                cp_method=options["cp_method"] or method,
                dtype=self.dtype,
                regather=regather,
                placement=ORDERS[self.job.schedule].placement,
            )
        )

    def stages(self, trainer: Framework | None, mode: str, some: bool) -> tuple[Layout, list[Breakdown]]:
        """The layout as a trainer runs it, and what its stages hold, or only the fullest of like ones."""
        layout = self.job.layout
        padding = None
        if trainer is not None:
            layout = trainer.settled(layout)
            padding = trainer.padding
        habits, really = habits_of(trainer).under(mode)
        options = self.options
        if options["loss"] is not None:
            habits = replace(habits, loss=options["loss"], tp_loss=None)
        sizes = self.sized(layout, padding, split_of(trainer), habits.cp_method, habits.regather)
        wide = options["master_weights"]
        if wide is None:
            wide = habits.master_weights
        # Without a wider copy of the weights, gradients are what autograd makes: of the weights' dtype.
        gradients = "float32"
        if habits.grads_in_dtype or not wide:
            gradients = self.dtype
        account = Account(
            options["grad_dtype"] or gradients,
            really,
            options["kernels"] or habits.kernels,
            self.job.schedule,
            self.many,
            self.job.nc,
            wide,
        )
        return layout, exact(sizes, account, habits, some)

    def meanings(self, judge: Framework | None, mode: str) -> Iterator[Meaning]:
        """Everything that the call may mean: other trainers, and other modes of recomputation."""
        modes = RECOMPUTE if self.options["recompute"] is None else (mode,)
        for trainer in [judge] if judge else _trainers(self.job.layout):
            for version, other in product(versions_of(trainer), modes):
                # A trainer may refuse the layout's other facts; then it is not the one that runs it.
                with suppress(LayoutError):
                    made = self.stages(version, other, some=True)[1]
                    yield Meaning(version.spelled if judge else trainer.name, other, fullest(made))


_JOB = ("seq_len", "micro_batch", "global_batch", "kv_replication", "schedule", "nc")
"""Options of `memory` that its job has as they are given."""


@lru_cache(maxsize=64)
def _trainers(layout: Layout) -> tuple[Framework, ...]:
    """Trainers with different habits that can run the layout."""
    found: dict[object, Framework] = {}
    for judge in FRAMEWORKS.values():
        has = all(axis in judge.axes for axis in AXES if layout.size(axis) > 1)
        several = judge.interleaves or layout.virtual_stages == 1
        one = judge.settled(layout)
        sp = layout.sequence_parallel in (None, one.sequence_parallel)
        if judge.trains and has and several and sp and one.zero == layout.zero:
            found.setdefault((judge.habits, judge.padding, judge.layer_split), judge)
    return tuple(found.values())


def micro_batches_of(job: Job) -> int:
    """Micro-batches of a step; by default as many as fill the pipeline. Raises LayoutError for none."""
    if job.global_batch is None:
        return job.layout.usual_micro_batches
    # None or 0 here means that the global batch does not divide.
    if job.n_micro_batches:
        return job.n_micro_batches
    step = job.layout.dp * job.micro_batch_size
    many = job.global_batch // step
    near = [Choice.of(global_batch=n * step) for n in (many, many + 1) if n]
    raise LayoutError(
        f"global_batch={job.global_batch} is no whole number of micro-batches",
        f"a micro-batch of every dp way is dp·micro_batch = {step} sequences",
        near,
        "global_batch",
    )
