"""`llamapar memory` and `llamapar loading`: bytes on every stage, and on every machine that loads."""

from __future__ import annotations

from llamapar.describe.job import Job
from llamapar.describe.options import FACTS, LAYOUT
from llamapar.errors import Choice
from llamapar.frameworks import FRAMEWORKS, padding_rule
from llamapar.records.tables import cut
from llamapar.rules.capacity import memory_of
from llamapar.rules.machines import Count, counted, loading

from .commands import MODEL_WORD, Answer, Command, Given, answer
from .writing import as_text

_HOW = ("accounting", "cp_method", "loss", "float8_all_gather")
_LOADING_OPTIONS = ("format", "nodes", "memory_gib", "seq_len")
_EXITS = "0 it fits, 1 it does not or may not fit"


def _memory(given: Given) -> Answer:
    """Status 0 where the worst stage stays within the GPU's HBM, 1 where it does not."""
    model, layout, facts = given.model, given.layout, given.facts
    choose = [Choice.of(seq_len=8192), "llamapar memory --help"]
    given.needed("seq_len", "a sequence length is needed", "activations grow with it", choose)
    if "padding" in facts:
        facts["padding"] = padding_rule(facts["padding"])
    job = Job.of(model, layout, **facts)
    judge = FRAMEWORKS[given["framework"]] if given["framework"] is not None else None
    found = memory_of(job, judge, **given.of(*_HOW))
    return answer(found, found.fits, given.note)


def _loading(given: Given) -> Answer:
    """Status 0 where the model fits the machines, 1 where it does not."""
    found = loading(given.model, **given.of(*_LOADING_OPTIONS))
    wrapping = [_wrap(count) for count in found.overflows]
    return Answer(
        found.fits,
        lambda: "\n".join([as_text(found), *(as_text(wrapping[i]) for i in cut(len(wrapping)))]),
        found.as_dict,
    )


def _wrap(count: Count) -> str:
    holds = ", ".join(f"{name} holds {counted(count.value, name):,}" for name in count.wraps)
    return f"{count.tensor}: {count.what} = {count.value:,}; {holds}"


MEMORY = Command(
    _memory,
    "memory of a rank of every pipeline stage, term by term, beside a GPU's",
    "memory",
    ("model", "job", *LAYOUT, *FACTS, "framework", *_HOW),
    "llamapar memory --model llama3.1-405b --tp 8 --pp 16 --dp 128 --seq-len 8192 --micro-batch 1 "
    "--global-batch 2048\n"
    "  llamapar memory --job paper-16k-gpus\n"
    "  llamapar memory --model llama3.1-8b --dp 8 --seq-len 8192 --accounting megatron --json",
    exits=_EXITS,
    positional=MODEL_WORD,
    helps={
        **dict.fromkeys(
            ("order", "gpus", "gpus_per_node", "batch_tokens", "quant_group"),
            "as for `llamapar check`; no byte depends on it",
        ),
        "framework": "whose habits, padding and layer split there are, where they are not given",
        "global_batch": "sequences of a step, all DP groups together (default: two micro-batches a PP rank)",
    },
)

LOADING = Command(
    _loading,
    "bytes of a model's file and of every machine it is spread over, and counters that wrap",
    "loading",
    ("model", *_LOADING_OPTIONS),
    "llamapar loading --model llama3.1-405b --format q40 --nodes 4 --memory-gib 64",
    exits=_EXITS,
    positional=MODEL_WORD,
    helps={"seq_len": "tokens that the KV cache holds"},
)
