"""The course's answer boxes: a question with its truth, hints and pictures, and the box that asks it.

An `Item` is a row of the course's tables: the question, the truth that the library computes, and what a
reader gets to see before and after a guess. `box` hands it to the panel, which knows nothing of the course,
and keeps the progress.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any

import llamapar as lp
from llamapar.figures import View, scenes
from llamapar.panels.box_panel import Board, Box, BoxQuestion, GuessVerdict

from .guesses import (
    as_guess,
    difference,
    is_right,
    read_choice,
    read_layout,
    read_numbers,
    singular,
)
from .progress import file, keep
from .progress import load_progress as read_progress

ASK = "Run the notebook to answer, or unfold the answer."


def choices_of(*words: str) -> tuple[tuple[str, str, str], ...]:
    """Choices that are their own labels, without notes."""
    return tuple((word, word, "") for word in words)


@dataclass(frozen=True)
class Item:
    """A question of the course.

    truth: what is right. choices: (value, label, note), whose note stands there once the truth is told.
    hints: from a nudge to nearly the answer. slips: usual wrong answers, each with what is wrong with it.
    why: the sentence after the truth. shows: the truth as a record or picture. veiled: the picture before a
    guess. marked: the picture with a guess drawn in it. judge: what is wrong with an answer, where several
    are right.
    """

    text: str
    truth: object
    unit: str = ""
    choices: tuple[tuple[object, str, str], ...] = ()
    hints: tuple[str, ...] = ()
    slips: tuple[tuple[object, str], ...] = ()
    why: str = ""
    shows: object = None
    veiled: View | None = None
    marked: Callable[[Any], View] | None = None
    board: Board | None = None
    judge: Callable[[Any], str] | None = None

    def __post_init__(self) -> None:
        """Adds the two choices of a question for yes or no."""
        if isinstance(self.truth, bool) and not self.choices:
            object.__setattr__(self, "choices", ((True, "yes", ""), (False, "no", "")))

    @property
    def kind(self) -> str:
        """The kind of input."""
        if self.board:
            return "board"
        if self.choices:
            return "choice"
        if isinstance(self.truth, int | float):
            return "number"
        if isinstance(self.truth, list | tuple | range):
            return "list"
        return "text"

    def read(self, answer: object) -> object:
        """An answer, from a box or from code, as the value that it gives: the course's one reader.

        Raises LlamaparError for what cannot be read, with forms that can; nothing is kept then.
        """
        if isinstance(self.truth, lp.Layout):
            return read_layout(answer)
        if self.choices:
            return read_choice(answer, self.choices)
        if self.kind == "number":
            return read_numbers(answer, unit=self.unit, whole=isinstance(self.truth, int))[0]
        if isinstance(self.truth, list | tuple | range):
            whole = isinstance(self.truth[0], int)
            if isinstance(self.truth[0], str):
                # The rows of a schedule, a text for each rank: a list, or "F0 B0; F0 B0", or a list's repr.
                if isinstance(answer, str):
                    parts = re.split(r"[\[\]'\";|\n]", answer.upper())
                    answer = [part for part in parts if re.search(r"[A-Z]\d", part)]
            else:
                # Whose ends are asked for may give them as a range; any other range is all its numbers.
                ends = "first and last" in self.text
                answer = read_numbers(answer, len(self.truth), self.unit, whole=whole, ends=ends)
            if self.board:
                answer = self.board.read(self.board.put(answer))
            return answer
        if not as_guess(answer).strip():
            raise lp.LlamaparError("there is no answer yet", "nothing was kept")
        return answer

    def wrong(self, guess: object) -> str:
        """What is wrong with a guess, as a sentence: by a slip that is known, else ""."""
        if self.judge:
            return self.judge(guess)
        return next((why for slip, why in self.slips if is_right(guess, slip)), "")

    def fault(self, guess: object) -> str:
        """What is said of a wrong guess: its slip, or where it leaves the truth, and a hint."""
        differs = difference(guess, self.truth)
        if self.unit == "%":
            differs = differs.replace(" is", " % is", 1)  # who gave a fraction sees how it was read
        return self.wrong(guess) or " ".join([f"{differs}.", *self.hints[:1]])

    def is_right(self, guess: object) -> bool:
        """Whether a guess is the truth, or one of several that are right."""
        if self.judge:
            return not self.judge(guess)
        return is_right(guess, self.truth)

    @property
    def answer(self) -> object:
        """The truth for the page."""
        if isinstance(self.truth, tuple | range):
            return list(self.truth)
        return self.truth

    @property
    def picture(self) -> View | None:
        """What is shown with the truth: a picture, or a record's text."""
        if self.shows is None or isinstance(self.shows, View):
            return self.shows
        spec = getattr(self.shows, "spec", None) or {"data": [], "layout": {}}
        return View(spec, str(self.shows))

    def say(self, value: object) -> str:
        """A value in words: by its label where there are choices, with the unit where it is a number."""
        label = next((label for each, label, _ in self.choices if each == value), "")
        if label or self.kind != "number":
            return label or as_guess(value)
        return f"{as_guess(value)} {singular(self.unit) if value == 1 else self.unit}".rstrip()

    def told(self, guess: object, first: str = "", says: str = "") -> GuessVerdict:
        """The verdict that tells the truth. first: the guess that stands, where that is another one."""
        right = self.is_right(guess)
        truth = self.say(self.truth)
        said = next((label for value, label, _ in self.choices if as_guess(value) == first), first)
        line = f"That is it: {truth}."
        wrong = ""
        marked = self.picture
        if not right:
            line = f"Not quite: you said {self.say(guess)}, it is {truth}."
            wrong = self.wrong(guess)
            if self.marked:
                marked = self.marked(guess)
        if self.board:
            line = "That is it." if right else "Not quite: the true one stands under yours."
        if first and first != as_guess(guess):
            line += f" Your first guess was {said}."
        line = " ".join(filter(None, (line, wrong, self.why, says)))
        return GuessVerdict(
            right, line, self.say(guess), truth, guess, self.answer, marked, self.marked is not None
        )


def box(item: Item, kind: str, name: str, guess: object = None, *, tells: bool = True) -> Box:
    """The box of a question; answered already where a guess is given, or stands in the progress file.

    kind, name: as what its progress is kept. tells: whether any guess is told the truth, as a prediction's
    is, or only the right one, as an exercise's.
    """

    def judge(given: object) -> GuessVerdict:
        own = item.read(given)
        notes = list[str]()
        right = item.is_right(own)
        entry = keep(kind, name, right, as_guess(own) if tells else None, say=notes.append)
        said = " ".join(notes)
        if tells:
            return item.told(own, str(entry.get("guess", "")), said)
        if right:
            return item.told(own, says=said)
        why = item.fault(own)
        line = " ".join(filter(None, ("Not yet.", why[:1].upper() + why[1:], said)))
        return GuessVerdict(False, line, item.say(own), value=own)

    def reveal() -> GuessVerdict:
        said = f"It is {item.say(item.truth)}."
        line = " ".join(filter(None, (said, item.why)))
        return GuessVerdict(None, line, "", said, None, item.answer, item.picture)

    first = judge(guess) if guess is not None else _before(item, kind, name, tells)
    asked = BoxQuestion(
        item.text,
        item.kind,
        judge,
        unit=item.unit,
        choices=item.choices,
        hints=item.hints,
        view=item.veiled,
        board=item.board,
        reveal=None if tells else reveal,
        first=first,
    )
    answered = first if guess is not None else None
    return Box(asked, lambda: still_box(item, answered))


UNSAID = object()
"""In place of an answer that a cell leaves out."""


def pose(item: Item, kind: str, name: str, answer: object) -> None:
    """UNSAID: shows a box. Else prints "not answered yet" (None), "right", or "wrong: …".

    Raises LlamaparError for an answer that cannot be read, and keeps nothing.
    """
    from IPython.display import display

    if answer is UNSAID:
        display(box(item, kind, name, tells=False))
        return
    if answer is None:
        print("not answered yet")
        return
    own = item.read(answer)
    right = item.is_right(own)
    keep(kind, name, right=right)
    if right:
        print("right")
    else:
        print(f"wrong: {item.fault(own)}")


def _before(item: Item, kind: str, name: str, tells: bool) -> GuessVerdict | None:
    """The verdict on the guess that stands in the progress file; None where none does."""
    path = file()
    if path is None:
        return None
    try:
        entry = read_progress(path).get(kind, {}).get(name)
    except lp.LlamaparError:
        return None  # whose file it is says the first guess
    if entry is None or not (tells or entry["right"]):
        return None
    if not tells:
        return GuessVerdict(True, "You have solved this before.", "")
    try:
        return item.told(item.read(entry["guess"]))
    except ValueError:  # kept by another form of the question
        truth = item.say(item.truth)
        return GuessVerdict(
            entry["right"], f"You said {entry['guess']}; it is {truth}.", entry["guess"], truth
        )


def still_box(item: Item, answered: GuessVerdict | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """What stands where no widget can live: the question, and its truth folded; or a verdict, open."""
    if answered is None:
        return folded(item)
    text = f"{item.text} – {answered.says}"
    seen = answered.view if answered.truth else None
    html = f"<p><b>{escape(item.text)}</b> {escape(answered.says)}</p>"
    data = {"text/plain": "\n".join(map(str, filter(None, (text, seen)))), "text/html": html}
    return data, {"llamapar": {"box": True}}


def folded(item: Item) -> tuple[dict[str, Any], dict[str, Any]]:
    """The question, and its truth folded. The metadata hold its figure, for the tool that stores it."""
    truth = item.say(item.truth)
    text = [item.text, truth]
    html = [f"<summary><b>{escape(item.text)}</b> {ASK}</summary><p><b>{escape(truth)}</b></p>"]
    metadata: dict[str, object] = {"box": True}
    record = item.shows
    drawn = item.picture is not None and item.picture.is_drawn
    if item.picture and item.picture.is_map:
        html.append(scenes.image(item.picture.spec))
    elif item.picture and drawn:
        spec = item.picture.spec
        drawn_from = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()
        html.append(f"<!--picture {drawn_from[:16]}-->")
        metadata["picture"] = spec
    if record is not None:
        text.append(str(record))
        as_html = getattr(record, "_repr_html_", None)
        in_words = as_html() if as_html else f"<pre>{escape(text[-1])}</pre>"
        again = f"<details><summary>The same in words</summary>{in_words}</details>"
        html.append(again if drawn else in_words)
    data = {"text/plain": "\n".join(text), "text/html": f"<details>{''.join(html)}</details>"}
    return data, {"llamapar": metadata}
