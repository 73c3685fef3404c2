"""`llamapar memory`: bytes on a rank of each stage."""

from __future__ import annotations

from llamapar.describe.job import Job
from llamapar.describe.options import FACTS, LAYOUT
from llamapar.errors import Choice
from llamapar.frameworks import FRAMEWORKS, padding_rule
from llamapar.rules.memory_rule import memory_of

from .commands import MODEL_WORD, Command, CommandAnswer, Given, answer

_HOW = ("accounting", "cp_method", "loss", "float8_all_gather")


def _memory(given: Given) -> CommandAnswer:
    """Status 0 if the worst stage fits the GPU's HBM, 1 if it does not."""
    model, layout, facts = given.model, given.layout, given.facts
    choose = [Choice.of(seq_len=8192), "llamapar memory --help"]
    given.needed("seq_len", "a sequence length is needed", "activations grow with it", choose)
    if "padding" in facts:
        facts["padding"] = padding_rule(facts["padding"])
    job = Job.of(model, layout, **facts)
    judge = FRAMEWORKS[given["framework"]] if given["framework"] is not None else None
    found = memory_of(job, judge, **given.of(*_HOW))
    return answer(found, found.fits, given.note)


COMMAND = Command(
    _memory,
    "memory of a rank in each pipeline stage, term by term, against that of a GPU",
    "memory",
    ("model", "job", *LAYOUT, *FACTS, "framework", *_HOW),
    "llamapar memory --model llama3.1-405b --tp 8 --pp 16 --dp 128 --seq-len 8192 --micro-batch 1 "
    "--global-batch 2048\n"
    "  llamapar memory --job paper-16k-gpus\n"
    "  llamapar memory --model llama3.1-8b --dp 8 --seq-len 8192 --accounting megatron --json",
    exits="0 it fits, 1 it does not or may not fit",
    positional=MODEL_WORD,
    helps={
        **dict.fromkeys(
            ("order", "gpus", "gpus_per_node", "batch_tokens", "quant_group"),
            "as in `llamapar check`; it changes no number here",
        ),
        "framework": "framework whose habits, padding and layer split apply unless you set them",
        "global_batch": "sequences in a step, over all DP groups (default: two micro-batches per PP rank)",
    },
)
