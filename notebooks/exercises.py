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
import questions_of_axes
import questions_of_checkpoints
import questions_of_context
import questions_of_data
import questions_of_heads
import questions_of_loading
import questions_of_memory
import questions_of_pipelines
import questions_of_start
import questions_of_steps
import questions_of_time
import questions_of_vocab
from boxes import ASK, Item, box
from guesses import difference, is_right, words
from llamapar.errors import one_of
from llamapar.records.tables import Table
from progress import keep, progress

__all__ = ["EXERCISES", "PREDICTIONS", "TARGETS", "check", "predict", "progress", "published_steps"]

_LESSONS = (
    questions_of_start,
    questions_of_axes,
    questions_of_heads,
    questions_of_vocab,
    questions_of_context,
    questions_of_data,
    questions_of_pipelines,
    questions_of_memory,
    questions_of_steps,
    questions_of_time,
    questions_of_checkpoints,
    questions_of_loading,
)

PREDICTIONS: dict[str, Callable[[], Item]] = {
    question: item for lesson in _LESSONS for question, item in lesson.PREDICTIONS.items()
}
EXERCISES: dict[str, Callable[[], Item]] = {
    name: item for lesson in _LESSONS for name, item in lesson.EXERCISES.items()
}
"""Questions and exercises that have a box, of all notebooks."""

_STEPS = Path(__file__).with_name("published_steps.json")
"""Published runs as `lp.cost` is asked for them, written by benchmarks/cost_accuracy.py --course."""

_PAPER = lp.Layout(tp=8, cp=16, pp=16, dp=8)

TARGETS: dict[str, Callable[[], Any]] = {
    # 06_pipeline
    "chunks of a schedule of your own": lambda: lp.schedule("1f1b", pp=2, micro_batches=3).in_flight,
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
}
"""What the right answer to each exercise is."""


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
