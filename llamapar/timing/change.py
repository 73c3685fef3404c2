"""How much longer a changed job takes for the same tokens; `check` says it of every fix."""

from __future__ import annotations

from llamapar.describe.job import Job
from llamapar.errors import LlamaparError
from llamapar.frameworks import Framework

from .cost import cost_of
from .layer import Conditions


def times_longer(old: Job, new: Job, judge: Framework | None) -> float | None:
    """Seconds per token of `new` over those of `old`, as `cost` counts both.

    A job without a batch has the sequences of `old`; if that has none either, both have as many as `cost`
    takes by default. None without a sequence length, and if shards or batch do not divide.
    """
    if old.seq_len is None or new.seq_len is None:
        return None
    try:
        before, after = (_seconds_per_token(job, job.sequences or old.sequences, judge) for job in (old, new))
    except LlamaparError:
        return None
    return after / before


def _seconds_per_token(job: Job, sequences: int | None, judge: Framework | None) -> float:
    if sequences is not None:
        # The same sequences for both, or a change of dp would also change how much work a step is.
        job = job.replace(global_batch=sequences, micro_batch=job.micro_batch_size)
    found = cost_of(job, Conditions.of_job(job, judge))
    return found.step_seconds / found.tokens
