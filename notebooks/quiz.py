"""A question of the quiz: what is asked, its truth, and a hint for each wrong answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from exercises import Prediction


@dataclass(frozen=True)
class Question:
    """What is asked, its truth, and the hint for a wrong answer.

    slips: usual wrong answers, each with a hint of its own. choices: the words among which to choose.
    judge: what is wrong with an answer (empty for nothing), where more than one answer is right.
    """

    text: str
    truth: object
    hint: str
    slips: tuple[tuple[object, str], ...] = ()
    choices: tuple[str, ...] = ()
    judge: Callable[[object], str] | None = None

    def verdict(self, answer: object) -> str:
        """What is wrong with an answer, as a hint; empty for a right one."""
        if self.judge:
            return self.judge(answer)
        if Prediction(self.text, answer, self.truth).right:
            return ""
        if self.choices and answer not in self.choices:
            return f"choose one of these words: {', '.join(self.choices)}"
        for slip, hint in self.slips:
            if Prediction(self.text, answer, slip).right:
                return hint
        return self.hint
