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
    per_token = []
    for job in (old, new):
        # The same sequences for both, or a change of dp would also change how much work a step is.
        if sequences := job.sequences or old.sequences:
            job = job.replace(global_batch=sequences, micro_batch=job.micro_batch_size)
        try:
            found = cost_of(job, Conditions.of_job(job, judge))
        except LlamaparError:
            return None
        per_token.append(found.step_seconds / found.tokens)
    return per_token[1] / per_token[0]
