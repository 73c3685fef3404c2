"""What the course asks: `predict` before a result is seen, `check` for an exercise, `progress` for both.

`predict(question)` and `check(name)` show an answer box. The code form, with the answer in the call, stays:
`check(name, answer)` says not answered yet, wrong with a reason, or right. Each truth stands in a table of
its lesson and is computed by the library, so it cannot drift from what the notebooks show.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules

import llamapar as lp
from llamapar import course
from llamapar.errors import one_of

from .boxes import UNSAID, Item, box, pose
from .progress import progress

__all__ = ["EXERCISES", "PREDICTIONS", "check", "predict", "progress"]

_LESSONS = [
    import_module(f".{found.name}", __package__)
    for found in iter_modules(course.__path__)
    if found.name.startswith("questions_of_")
]
"""The modules of questions, so that a lesson's own need not be listed. That of the exam has no tables."""

PREDICTIONS: dict[str, Callable[[], Item]] = {
    question: item for lesson in _LESSONS for question, item in getattr(lesson, "PREDICTIONS", {}).items()
}
EXERCISES: dict[str, Callable[[], Item]] = {
    name: item for lesson in _LESSONS for name, item in getattr(lesson, "EXERCISES", {}).items()
}
"""Questions and exercises that have a box, of all notebooks."""


def check(name: str, answer: object = UNSAID) -> None:
    """Without an answer, a box for it. Else prints "not answered yet" (None), "wrong: …", or "right".

    Raises lp.LlamaparError for an exercise that is not there, and for an answer that cannot be read.
    """
    pose(EXERCISES[one_of("exercise", name, EXERCISES, lp.LlamaparError)](), "exercises", name, answer)


def predict(question: str, guess: object = None) -> None:
    """A box for a guess, which then stands beside the truth; where no widget can live the truth is folded.

    question: of the course's tables, which know its truth. guess: None, or what the reader put there: a
    value, or words, which are read and never evaluated.

    Raises lp.LlamaparError for a question that the tables do not have, and for what is no guess at all.
    """
    from IPython.display import display

    item = PREDICTIONS[one_of("question", question, PREDICTIONS, lp.LlamaparError)]()
    display(box(item, "predictions", question, guess))
