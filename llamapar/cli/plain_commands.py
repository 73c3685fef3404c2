"""The plain commands as rows: each calls a public function with its options, and writes the answer.

A function is imported when its command is typed, so that no command waits for the rooms of another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from llamapar.describe.job import Job
from llamapar.describe.options import FACTS, LAYOUT
from llamapar.errors import Choice
from llamapar.frameworks import framework
from llamapar.place.orders import ORDERS
from llamapar.records.tables import cut

from .commands import MODEL_WORD, Command, CommandAnswer, Given, answer_of, returned
from .output import as_text

if TYPE_CHECKING:
    from llamapar.timing.cost import Cost

_MEMORY = ("loss", "master_weights")


def _memory(given: Given) -> CommandAnswer:
    """The memory of a Job, which holds facts that `memory` itself does not take."""
    from llamapar.rules.memory_rule import memory_of
    from llamapar.rules.report import BATCH_FACTS, check_job, refuse_as_check

    job = Job.of(given.model, given.layout, **given.of(*FACTS))
    given.require()
    habits = None
    if given["framework"]:
        habits = framework(given["framework"])
    refuse_as_check(check_job(job, habits), BATCH_FACTS)
    return answer_of(given, memory_of(job, habits, **given.of(*_MEMORY)))


def _timeline(given: Given) -> CommandAnswer:
    """The schedule's timeline, in which a forward takes 1 and a backward 2."""
    from llamapar.place.schedule import schedule

    return answer_of(given, returned(given, schedule).timeline())


def _explorer(given: Given) -> CommandAnswer:
    """Becomes the server of an Explorer on the given job; without a value, on the paper's."""
    from .serving import open_explorer

    said = given.of("model", *LAYOUT, *FACTS, "framework")  # A flag that was not given is False.
    job = None
    if any(said.values()):
        job = Job.of(given.model, given.layout, **given.of(*FACTS))
    open_explorer(job, **given.of("framework", "browser", "port"))


def _reasons(given: Given, cost: Cost) -> list[str]:
    """With --explain, the arguments for a layout."""
    if not given["explain"]:
        return []
    from llamapar.timing.reasons import reasons

    return ["", as_text(reasons(cost))]


def _seq_len(command: str, why: str) -> tuple[str, str, tuple[object, ...]]:
    """The error without a sequence length."""
    return "a sequence length is needed", why, (Choice.of(seq_len=8192), f"llamapar {command} --help")


PLAIN: Mapping[str, Command] = {
    "ranks": Command(
        "coordinates of a global rank, and its peers on each axis",
        "ranks",
        "llamapar ranks --tp 8 --cp 16 --pp 16 --dp 8 --rank 12345\n"
        "  llamapar ranks --tp 8 --cp 16 --pp 16 --dp 8 --rank 12345 --order megatron-lm",
        exits="0 found",
    ),
    "memory": Command(
        "memory of a rank in each pipeline stage, term by term, against that of a GPU",
        "memory",
        "llamapar memory --model llama3.1-405b --tp 8 --pp 16 --dp 128 --seq-len 8192 --micro-batch 1 "
        "--global-batch 2048\n"
        "  llamapar memory --job paper-16k-gpus\n"
        "  llamapar memory --model llama3.1-8b --dp 8 --seq-len 8192 --json",
        exits="0 it fits, 1 it does not or may not fit",
        ok="fits",
        positional=MODEL_WORD,
        needs={"seq_len": _seq_len("memory", "activations grow with it")},
        answer=_memory,
        helps={
            **dict.fromkeys(
                ("order", "gpus", "gpus_per_node", "batch_tokens", "quant_group"),
                "as in `llamapar check`; it changes no number here",
            ),
            "framework": "framework whose habits, padding and layer split apply unless you set them",
            "global_batch": "sequences in a step, over all DP groups "
            "(default: two micro-batches per PP rank)",
        },
    ),
    "cost": Command(
        "how long a step takes, term by term with its formula, from published constants",
        "cost",
        "llamapar cost --model llama3.1-405b --tp 8 --pp 16 --dp 128 --virtual-stages 8 --seq-len 8192 "
        "--global-batch 2048 --recompute none --explain\n"
        "  llamapar cost --model llama3.1-8b --dp 8 --zero 3 --seq-len 8192 --gpu a100-80gb --json\n"
        "  llamapar cost --config train.toml --launch run.slurm",
        exits="0 estimated, 1 it does not fit the GPU, or the files leave facts open",
        ok="fits",
        positional=MODEL_WORD,
        needs={"seq_len": _seq_len("cost", "the time of a step grows with it")},
        below=_reasons,
        helps={
            "framework": "framework whose layer split and habits apply unless you set them",
            "global_batch": "sequences in a step, over all DP groups (default: enough to fill the pipeline)",
        },
    ),
    "explorer": Command(
        "the Explorer alone, in a browser",
        "explorer",
        "llamapar explorer\n  llamapar explorer llama3-70b --tp 8 --dp 8 --gpus 64",
        exits="the status of the server once it has ended",
        positional=MODEL_WORD,
        answer=_explorer,
        calls="check",  # It takes the same facts.
    ),
    "loading": Command(
        "file and memory of a model spread over several machines, and counters that overflow",
        "loading",
        "llamapar loading --model llama3.1-405b --format q40 --nodes 4 --memory-gib 64",
        exits="0 it fits, 1 it does not or may not fit",
        ok="fits",
        positional=MODEL_WORD,
        below=lambda _, found: [as_text(str(found.overflows[i])) for i in cut(len(found.overflows))],
        helps={"seq_len": "tokens in the KV cache"},
    ),
    "schedule": Command(
        "order and times of a pipeline's operations, and its bubble",
        "schedule",
        "llamapar schedule 1f1b --pp 4 --micro-batches 8\n"
        "  llamapar schedule interleaved-1f1b --pp 16 --virtual-stages 8 --micro-batches 16 --json",
        exits="0 found",
        positional=(("schedule", ", ".join(ORDERS)),),
        surplus="--pp {word}",
        needs={
            "schedule": (
                "a schedule is needed",
                f"schedules are {', '.join(ORDERS)}",
                ("llamapar schedule 1f1b", "llamapar schedule interleaved-1f1b"),
            ),
            "micro_batches": (
                "a number of micro-batches is needed",
                "a schedule is the order in which ranks take them",
                (Choice.of(micro_batches=8),),
            ),
        },
        answer=_timeline,
        helps={
            "virtual_stages": "stages per rank (default: 1 for gpipe and 1f1b, 2 for the others)",
            "micro_batches": "micro-batches in a step",
        },
    ),
}
"""Name → the command `llamapar NAME`."""
