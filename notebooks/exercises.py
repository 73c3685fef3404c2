"""What the course asks: `predict` before a result is seen, `check` for an exercise, `progress` for both.

`predict(question)` and `check(name)` show an answer box. The code form, with the answer in the call, stays:
`check(name, answer)` says not answered yet, wrong with a reason, or right. Each target is computed by the
library, so an exercise cannot drift from what the notebooks show.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llamapar as lp
import questions_of_checkpoints
import questions_of_heads
import questions_of_loading
import questions_of_memory
import questions_of_pipelines
import questions_of_steps
import questions_of_time
from boxes import ASK, Item, box
from guesses import difference, is_right, words
from llamapar.count.schedule import in_flight
from llamapar.count.sizes import Sizes
from llamapar.errors import one_of
from llamapar.records.tables import Table
from llamapar.rules.machines import counted
from progress import keep, progress

__all__ = ["EXERCISES", "PREDICTIONS", "TARGETS", "check", "predict", "progress", "published_steps"]

_TABLES = (
    questions_of_heads,
    questions_of_pipelines,
    questions_of_memory,
    questions_of_steps,
    questions_of_time,
    questions_of_checkpoints,
    questions_of_loading,
)

PREDICTIONS = {question: item for table in _TABLES for question, item in table.PREDICTIONS.items()}
EXERCISES = {name: item for table in _TABLES for name, item in table.EXERCISES.items()}
"""Questions and exercises that have a box of their own, of all notebooks."""

_STEPS = Path(__file__).with_name("published_steps.json")
"""Published runs as `lp.cost` is asked for them, written by benchmarks/cost_accuracy.py --course."""

_PAPER = lp.Layout(tp=8, cp=16, pp=16, dp=8)

TARGETS: dict[str, Callable[[], Any]] = {
    # 00_start_here
    "DP of the short row": lambda: 8192 // lp.Layout(tp=8, pp=16).world,
    "half the GPUs": lambda: {"dp": _PAPER.dp // 2, "batch_per_dp": 16 * 2**20 // 131072 // (_PAPER.dp // 2)},
    # 01_four_axes
    "coord of 5003": lambda: tuple(_PAPER.coord_of(5003)),
    "DP neighbour of 57": lambda: {
        name: lp.ranks(_PAPER.replace(order=lp.FRAMEWORKS[name].order), 57).peers["dp"][1]
        for name in ("picotron", "megatron-lm")
    },
    # 03_vocab_embedding
    "pad rows by rank": lambda: {
        share.rank: share.pads
        for share in lp.vocab("llama3.1-70b", {"tp": 64}, padding="megatron-lm").ranks
        if share.pads
    },
    # 04_context_parallel
    "last over first": lambda: round(_pairs_in_order(7) / _pairs_in_order(0), 1),
    # 05_data_parallel
    "slices of a norm": lambda: [
        len(lp.zero("llama3-8b", lp.Layout(dp=3, zero=3), parameter="norm").rows("parameters", place))
        for place in range(3)
    ],
    "ranks that share": lambda: lp.zero("llama3-8b", lp.Layout(tp=8, cp=4, pp=2, dp=8, dp_replicate=2)).ways,
    # 06_pipeline
    "chunks of a schedule of your own": lambda: lp.schedule("1f1b", pp=2, micro_batches=3).in_flight,
    # 07_memory
    "own bytes under ZeRO 3": lambda: lp.memory(
        "llama3.1-70b", lp.Layout(dp=64, zero=3), seq_len=8192
    ).worst.bytes("parameters", "gradients", "optimizer states"),
    "in flight on stage 5": lambda: in_flight("1f1b", 5, pp=8, virtual_stages=1, micro_batches=64)[0],
    "bytes of logits": lambda: (
        4 * Sizes(lp.model("llama3.1-8b"), lp.Layout(tp=8), seq_len=8192).activations["logits"]
    ),
    # 08_whole_step
    "norm of two ranks": lambda: _norm_of_two_ranks((9, 2), (14, 2)),
    "numbers for the norm": lambda: _sent_for_the_norm(lp.Layout(tp=2, cp=2, pp=4, dp=2)),
    # 09_time_and_plan
    "seconds of one layer": lambda: round(1e3 * lp.cost("llama3-8b", {}, seq_len=8192).layer.seconds[0], 1),
    "bubble of 64 micro-batches": lambda: round(100 * 15 / 8 / 64, 1),
    # 10_checkpoints
    "TP of 8064 rows": lambda: next(
        tp
        for tp in range(2, 65)
        if lp.vocab("llama3.1-70b", {"tp": tp}, padding="colossalai").padded == 8064 * tp
    ),
    "row 3 of a head": lambda: lp.model("llama3-8b").head_dim // 2 + 3 // 2,
    # 11_shape_clinic
    "TP of the saved head": lambda: next(
        tp for tp in range(1, 65) if len(lp.vocab("qwen2.5-7b", {"tp": tp}).rank(0).rows) == 19008
    ),
    "columns of a rank": lambda: {
        "columns": len(lp.heads("llama3-8b", {"tp": 32}).rank(0).kv_rows),
        "tp": 32,
    },
    # 12_my_run_broke
    "copies that the GPUs leave": lambda: 512 // lp.Layout(tp=8, pp=4).world,
    "smallest global batch": lambda: 4 * lp.Layout(dp=16).world,
    # 13_on_gpus
    "GPU 5 of the third machine": lambda: tuple(lp.Layout(tp=8, cp=2, dp=2).coord_of(2 * 8 + 5)),
    "torchrun for the paper": lambda: {"nnodes": _PAPER.world // 8, "nproc_per_node": 8},
    # a1_loading_405b
    "first vocabulary that wraps": lambda: next(
        n for n in range(1, 2**20) if counted(n * 65536, "uint32") == 0
    ),
    "70B on 16 GB machines": lambda: lp.loading("llama3.1-70b", memory_gib=16).smallest_nodes,
    "what uint32 holds of the file": lambda: counted(lp.loading("llama3.1-405b-mp16").file_bytes, "uint32"),
}
"""What the right answer to each exercise is."""


def _pairs_in_order(rank: int) -> int:
    """Causal pairs of a CP rank that holds the next eighth of 4,096 tokens."""
    return lp.sequence({"cp": 8}, 4096, chunking="contiguous").rank(rank).pairs


def _norm_of_two_ranks(*squares: tuple[float, float]) -> float:
    """The norm from each TP rank's squares of matrices and of norms."""
    from llamapar.execution.execute import prepare
    from llamapar.spmd.update import counted

    setting = prepare("step", "tiny", lp.Layout(tp=len(squares)))[0].setting
    shares = [counted(setting, name, 0) for name in ("output.weight", "norm.weight")]
    return sum(share * own for rank in squares for share, own in zip(shares, rank, strict=True)) ** 0.5


def _sent_for_the_norm(layout: lp.Layout) -> int:
    """Messages of rank 0 to other PP ranks, a number each."""
    from llamapar.execution.execute import prepare
    from llamapar.execution.messages import squares_to

    return len(squares_to(prepare("step", "tiny", layout)[0].setting, 0))


def published_steps() -> lp.Calibration:
    """Published runs beside what `lp.cost` says, each named by its row; the benchmark's own rows."""

    def predicted(row: dict[str, Any]) -> lp.Cost:
        return lp.cost(lp.ModelConfig(**row["model"]), lp.Layout(**row["layout"]), **row["settings"])

    rows = json.loads(_STEPS.read_text(encoding="utf-8"))
    return lp.calibrate([(predicted(row), row["measured"]) for row in rows])


_UNSAID = object()
"""In place of an answer that a cell leaves out."""


def check(name: str, answer: Any = _UNSAID) -> None:
    """Without an answer, a box for it. Else prints "not answered yet" (None), "wrong: …", or "right".

    Raises lp.LlamaparError for an exercise that is not there.
    """
    from IPython.display import display

    known = [*TARGETS, *EXERCISES]
    one_of("exercise", name, known, lp.LlamaparError)
    item = EXERCISES[name]() if name in EXERCISES else Item(name, TARGETS[name]())
    if answer is _UNSAID:
        display(box(item, "exercises", name, tells=False))
        return
    if answer is None:
        print("not answered yet")
        return
    found = difference(answer, item.truth)
    keep("exercises", name, right=not found)
    print(f"wrong: {found}" if found else "right")


def predict(question: str, guess: object = None, truth: object = _UNSAID, shows: object = None) -> None:
    """A box for a guess, which then stands beside the truth; where no widget can live the truth is folded.

    question: of the course's tables, which know its truth, or any other with a `truth`. guess: None, or
    what the reader put there: a value, or words, which are read and never evaluated. shows: a record or
    picture that says more than the truth alone.

    Raises lp.LlamaparError for a question that the tables do not have, and for what is no guess at all.
    """
    from IPython.display import display

    if truth is _UNSAID:
        item = PREDICTIONS[one_of("question", question, PREDICTIONS, lp.LlamaparError)]()
        display(box(item, "predictions", question, guess))
        return
    item = Item(question, truth, shows=shows, asks=ASK)
    if guess is None:
        display(box(item, "predictions", question))
        return
    right = is_right(guess, truth)
    entry = keep("predictions", question, right, words(guess))
    display(_verdict(item, guess, right, str(entry["guess"])))
    record = shows if item.judged else truth
    if isinstance(record, str):
        print(record)  # line by line; display would quote it
    elif record is not None:
        display(record)


def _verdict(item: Item, guess: object, right: bool | None, first: str) -> Table:
    """A guess beside the truth. first: the guess that stands in the progress file."""
    judged = {True: "that is it", False: "not quite", None: "compare for yourself"}[right]
    said = words(guess)
    again = "" if first == said else f" (your first guess was {first})"
    truth = words(item.truth) if item.judged else "below"
    return Table(f"{item.text} – {judged}{again}", ["you said", "it is"], [[said, truth]])
