"""`llamapar loading`: bytes of a model's file, and on each machine that loads it."""

from __future__ import annotations

from llamapar.records.tables import cut
from llamapar.rules.machines import Count, loading, wrapped_count

from .commands import MODEL_WORD, Command, CommandAnswer, Given
from .output import as_text

_OPTIONS = ("format", "nodes", "memory_gib", "seq_len")


def _loading(given: Given) -> CommandAnswer:
    """Status 0 if the model fits the machines, 1 if it does not."""
    found = loading(given.model, **given.of(*_OPTIONS))
    wrapping = [_wrap(count) for count in found.overflows]
    return CommandAnswer(
        found.fits,
        lambda: "\n".join([as_text(found), *(as_text(wrapping[i]) for i in cut(len(wrapping)))]),
        found.as_dict,
    )


def _wrap(count: Count) -> str:
    holds = ", ".join(f"{name} holds {wrapped_count(count.value, name):,}" for name in count.wraps)
    return f"{count.tensor}: {count.what} = {count.value:,}; {holds}"


COMMAND = Command(
    _loading,
    "file and memory of a model spread over several machines, and counters that overflow",
    "loading",
    ("model", *_OPTIONS),
    "llamapar loading --model llama3.1-405b --format q40 --nodes 4 --memory-gib 64",
    exits="0 it fits, 1 it does not or may not fit",
    positional=MODEL_WORD,
    helps={"seq_len": "tokens in the KV cache"},
)
