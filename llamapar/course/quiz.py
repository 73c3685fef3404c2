"""A question of the quiz: what is asked, its truth, and a hint for each wrong answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .boxes import Item
from .guesses import is_right


@dataclass(frozen=True)
class Question:
    """What is asked, its truth, and the hint for a wrong answer.

    slips: usual wrong answers, each with a hint of its own. choices: the words among which to choose.
    judge: what is wrong with an answer (empty for nothing), where more than one answer is right. lesson: the
    notebook that teaches it.
    """

    text: str
    truth: object
    hint: str
    slips: tuple[tuple[object, str], ...] = ()
    choices: tuple[str, ...] = ()
    judge: Callable[[object], str] | None = None
    lesson: str = ""

    @property
    def way_back(self) -> str:
        """Where a miss sends the reader."""
        return f"The lesson is {self.lesson}."

    def verdict(self, answer: object) -> str:
        """What is wrong with an answer, as a hint; empty for a right one."""
        if self.judge:
            return self.judge(answer)
        if is_right(answer, self.truth):
            return ""
        if self.choices and answer not in self.choices:
            return f"choose one of these words: {', '.join(self.choices)}"
        for slip, hint in self.slips:
            if is_right(answer, slip):
                return hint
        return self.hint

    def item(self) -> Item:
        """The same for an answer box, whose hint is the question's own."""
        choices = tuple((word, word, "") for word in self.choices)
        return Item(
            self.text,
            self.truth,
            choices=choices,
            hints=(self.hint, self.way_back),
            slips=self.slips,
            judge=self.judge,
        )
