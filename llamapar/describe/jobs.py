"""Jobs that ran, as published: the three rows of Table 4 of "The Llama 3 Herd of Models".

That paper (arXiv:2407.21783, section 3.3.2) prints GPUs, degrees, sequence length and sequences of a step. It
also says that sequences of 8,192 tokens needed no activation checkpointing. "Scaling Llama 3 Training with
Efficient Parallelism Strategies" (ISCA 2025) adds the rest. Each virtual stage has one layer, and the model
126 layers rather than 128, so that both ends have one less (section 3.1.2). A step with 2·pp micro-batches or
more uses ZeRO 1 with 1F1B; else it uses ZeRO 2 with all forwards before all backwards (section 3.1.3).
"""

from __future__ import annotations

from dataclasses import dataclass

from .hardware import DEFAULT_GPU, HARDWARE
from .job import Job
from .layout import Layout
from .models import PRESETS
from .options import offer


@dataclass(frozen=True)
class PublishedJob:
    """A published job that ran: its MFU, its trainer's row, and what its sources leave open.

    open: arguments of `lp.memory`.
    """

    job: Job
    source: str
    mfu: float
    framework: str = "llama3-trainer"
    open: tuple[str, ...] = ("loss",)

    @property
    def short(self) -> str:
        """Its GPUs and tokens: "8,192 GPUs, 8,192 tokens"."""
        return f"{self.job.gpus:,} GPUs, {self.job.seq_len:,} tokens"

    @property
    def note(self) -> str:
        """What its sources state and what they leave open, in two lines."""
        ran = f"it ran, at {self.mfu:.0%} MFU"
        return f"Llama 3 405B on {self.short} ({self.source}): {ran}\nnot published: {', '.join(self.open)}"

    def beside(self, predicted: str) -> str:
        """What was published beside what is predicted, and what would decide between them, in one line."""
        unknown = ", ".join((*self.open, *_UNTOLD))
        where = self.source.partition(",")[0]
        return (
            f"published: it ran, at {self.mfu:.0%} MFU ({where}); predicted: {predicted}; "
            f"what we cannot know: {unknown}. The difference is our error."
        )


_UNTOLD = ("attention kernel", "documents", "how MFU is counted")
"""What no source says and what changes the predicted time: docs/accuracy.md."""


def _row(cp: int, dp: int, sequences: int) -> Job:
    """A row of the table, with micro-batches of one sequence. sequences: per step and DP way."""
    early = sequences >= 2 * 16
    layout = Layout(tp=8, cp=cp, pp=16, dp=dp, virtual_stages=8, zero=1 if early else 2)
    return Job(
        PRESETS["llama3.1-405b"],
        layout,
        gpus=layout.world,
        seq_len=8192 * cp,
        micro_batch=1,
        global_batch=sequences * dp,
        layer_split="balanced ends",
        gpu=HARDWARE[DEFAULT_GPU],
        # At 131,072 tokens the papers do not say it.
        recompute="none" if cp == 1 else None,
        schedule="interleaved-1f1b" if early else "looped-bfs",
    )


_TABLE = "arXiv:2407.21783 table 4"

JOBS = {
    "paper-8k-gpus": PublishedJob(
        _row(cp=1, dp=64, sequences=32),
        _TABLE,
        0.43,
    ),
    "paper-16k-gpus": PublishedJob(
        _row(cp=1, dp=128, sequences=16),
        _TABLE,
        0.41,
    ),
    "paper-131k-tokens": PublishedJob(
        _row(cp=16, dp=8, sequences=16),
        f"{_TABLE}, dp=8 as in ISCA 2025 table 2",
        0.38,
        open=("recompute", "loss"),
    ),
}
"""Name → a published job of the paper."""

offer("job", JOBS)
