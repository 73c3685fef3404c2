"""`llamapar memory` and `llamapar loading`: bytes on every stage, and on every machine that loads."""

from __future__ import annotations

import argparse
import json

from llamapar.describe.job import Job
from llamapar.errors import LlamaparError
from llamapar.frameworks import FRAMEWORKS, padding_rule
from llamapar.records.tables import cut
from llamapar.rules.machines import Count, held, loading
from llamapar.rules.remedies import memory_of

from . import words
from .words import FACTS, LAYOUT, Answer, Command, as_text, given

_STEP = ("recompute", "schedule", "accounting", "gpu", "cp_method")
_LOADING_OPTIONS = ("format", "nodes", "memory_gib", "seq_len")
_EXITS = "0 it fits, 1 it does not fit"


def _memory(args: argparse.Namespace) -> Answer:
    """Status 0 where the worst stage stays within the GPU's HBM, 1 where it does not."""
    model, layout, facts = words.model(args), words.layout(args, *LAYOUT), given(args, *FACTS)
    if "seq_len" not in facts:
        choose = ["--seq-len 8192", "llamapar memory --help"]
        raise LlamaparError("a sequence length is needed", "activations grow with it", choose, "seq_len")
    judge = FRAMEWORKS[facts.pop("framework")] if "framework" in facts else None
    if "padding" in facts:
        facts["padding"] = padding_rule(facts["padding"])
    job = Job.of(model, layout, kv_replication=args.kv_replication, **facts)
    if judge is not None:
        split = job.layer_split or judge.layer_split
        job = job.replace(padding=job.padding or judge.padding, layer_split=split)
    found = memory_of(job, **given(args, *_STEP))
    return 0 if found.fits else 1, json.dumps(found.as_dict()) if args.json else as_text(found)


def _loading(args: argparse.Namespace) -> Answer:
    """Status 0 where the model fits the machines, 1 where it does not."""
    found = loading(words.model(args), **given(args, *_LOADING_OPTIONS))
    if args.json:
        return 0 if found.fits else 1, json.dumps(found.as_dict())
    wrapping = [_wrap(count) for count in found.overflows]
    shown = [wrapping[i] for i in cut(len(wrapping))]
    return 0 if found.fits else 1, "\n".join([as_text(found), *map(as_text, shown)])


def _wrap(count: Count) -> str:
    holds = ", ".join(f"{name} holds {held(count.value, name):,}" for name in count.wraps)
    return f"{count.tensor}: {count.what} = {count.value:,}; {holds}"


MEMORY = Command(
    _memory,
    "memory of a rank of every pipeline stage, term by term, beside a GPU's",
    ("model", "sequence_parallel", "kv_replication", *LAYOUT, *FACTS, *_STEP),
    "llamapar memory --model llama3.1-405b --tp 8 --pp 16 --dp 128 --seq-len 8192 --micro-batch 1 "
    "--global-batch 2048\n"
    "  llamapar memory --model llama3.1-8b --dp 8 --seq-len 8192 --accounting megatron --json",
    exits=_EXITS,
    surplus="--model {word}",
    helps={
        **dict.fromkeys(
            ("order", "gpus", "gpus_per_node", "batch_tokens", "quant_group"),
            "as for `llamapar check`; no byte depends on it",
        ),
        "framework": "whose padding and layer split there are, where they are not given",
        "micro_batch": "sequences of a micro-batch (default 1)",
        "global_batch": "sequences of a step, all DP groups together (default: enough for a full pipeline)",
    },
)

LOADING = Command(
    _loading,
    "bytes of a model's file and of every machine it is spread over, and counters that wrap",
    ("model", *_LOADING_OPTIONS),
    "llamapar loading --model llama3.1-405b --format q40 --nodes 4 --memory-gib 64",
    exits=_EXITS,
    surplus="--model {word}",
    helps={"seq_len": "tokens that the KV cache holds (default 4096)"},
)
