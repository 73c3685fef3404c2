"""An answer box: a question, an input that fits its answer, hints, and the verdict on a guess.

The box knows no questions. The caller passes an `Asked`: the question, the kind of input, hints, and a
function that judges a guess. Anything that gives the answer away (the truth, its picture) reaches the page
only with the verdict on a guess. Left out: storing guesses, which the caller does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from llamapar.describe.options import Values
from llamapar.errors import LlamaparError, one_of, shown, whole
from llamapar.figures import NO_FIGURE, View

from .page import Page, source, style
from .runs import figure_of

KINDS = ("number", "list", "choice", "text", "board")

Cells = tuple[tuple[tuple[int, ...], ...], ...]
"""Of a board: by row and column the numbers of the things that stand there."""


@dataclass(frozen=True)
class Board:
    """A grid on which the reader places things: heads on ranks, operations of a schedule in time.

    rows, columns: labels beside and above the cells. across: the name of the columns. above: rows of the map
    above the cells, each with a text and a tint for every column. things: what can be placed. tints: the
    colour of each thing, by its number. spans: number of columns of each thing; 1 by default.

    move: the cells after a thing was placed in, or removed from, a row and column; raises LlamaparError with
    the reason for an illegal move. read: cells as a guess. put: a guess as cells.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    things: tuple[str, ...]
    tints: tuple[int, ...]
    move: Callable[[Cells, int, int, int], Cells]
    read: Callable[[Cells], object]
    put: Callable[[object], Cells]
    across: str = ""
    above: tuple[tuple[str, tuple[tuple[str, int], ...]], ...] = ()
    spans: tuple[int, ...] = ()

    @property
    def empty(self) -> Cells:
        """The board without any thing."""
        return (((),) * len(self.columns),) * len(self.rows)

    def drawn(self, cells: Cells, beside: Cells | None = None) -> list[list[dict[str, object]]]:
        """Rows of cells for the page: column, text, tint, span, and whether the cell differs from
        `beside`.
        """
        made = []
        for r, row in enumerate(cells):
            line = []
            taken = 0
            for c, things in enumerate(row):
                if c < taken:
                    continue
                span = max((self.spans[thing] for thing in things), default=1) if self.spans else 1
                taken = c + span
                line.append(
                    {
                        "column": c,
                        "text": " ".join(self.things[thing] for thing in things),
                        "tint": self.tints[things[0]] if things else None,
                        "span": span,
                        "wrong": bool(things) and beside is not None and set(beside[r][c]) != set(things),
                    }
                )
            made.append(line)
        return made


@dataclass(frozen=True)
class GuessVerdict:
    """The verdict on a guess.

    right: None if nothing can judge. says: its sentence. guess: the guess as understood, in words. value: the
    guess as read. truth, answer: the truth in words, and as a guess; None keeps it hidden. view: the picture.
    drawn: whether the picture includes the guess; if not, the box marks it.
    """

    right: bool | None
    says: str
    guess: str
    truth: str | None = None
    value: object = None
    answer: object = None
    view: View | None = None
    drawn: bool = False


@dataclass(frozen=True)
class BoxQuestion:
    """A question for a box.

    kind: one of KINDS. judge: the verdict on a guess; raises LlamaparError if the text is no guess at all.
    reveal: the verdict for a reader who gives up; without it every guess shows the truth. choices: (value,
    label, note); the note appears with the truth. hints: from a nudge to almost the answer. view: the picture
    while its answer is hidden. board: for kind "board". first: an existing verdict.
    """

    question: str
    kind: str
    judge: Callable[[object], GuessVerdict]
    unit: str = ""
    choices: tuple[tuple[object, str, str], ...] = ()
    hints: tuple[str, ...] = ()
    view: View | None = None
    board: Board | None = None
    reveal: Callable[[], GuessVerdict] | None = None
    first: GuessVerdict | None = None


@dataclass(frozen=True)
class BoxState:
    """The state of a box: the number of hints taken, its board, the last verdict."""

    asked: BoxQuestion
    cells: Cells
    hints: int = 0
    verdict: GuessVerdict | None = None

    @property
    def status(self) -> str:
        if self.verdict is None:
            return f"{self.asked.question} – not answered yet"
        return f"{self.asked.question} – {self.verdict.says}"

    @property
    def synced(self) -> Values:
        """The trait: how many hints were taken."""
        return {"hints": self.hints}

    @property
    def value(self) -> object:
        """The guess as it was read; None before one."""
        if self.verdict is None:
            return None
        return self.verdict.value

    def change(self, changes: Values) -> BoxState:
        """The state after a guess, a hint, or a move on the board (row, column, thing); a fresh state without
        any.

        Raises LlamaparError, before anything changes, for unreadable input and for an illegal move.
        """
        made = self
        for name, value in changes.items():
            one_of("argument", name, ("guess", "hint", "place", "clear", "give_up"))
            if name == "hint":
                made = replace(made, hints=min(made.hints + 1, len(self.asked.hints)))
            elif name == "give_up" and self.asked.reveal:
                made = replace(made, verdict=self.asked.reveal())
            elif name == "guess":
                made = made._guessed(value)
            elif self.asked.board and name == "clear":
                made = replace(made, cells=self.asked.board.empty)
            elif self.asked.board and name == "place":
                made = replace(made, cells=self.asked.board.move(made.cells, *made._place(value)))
        return made

    def _guessed(self, value: object) -> BoxState:
        board = self.asked.board
        if board is None:
            return replace(self, verdict=self.asked.judge(value))
        verdict = self.asked.judge(board.read(self.cells) if value is None else value)
        return replace(self, cells=board.put(verdict.value), verdict=verdict)

    def _place(self, value: object) -> tuple[int, int, int]:
        """A row, a column and a thing of the board. Raises LlamaparError."""
        board = self.asked.board
        assert board is not None
        place = list(value) if isinstance(value, list | tuple) else []
        if len(place) != 3:
            raise LlamaparError(f"place={shown(value)}: a row, a column and a thing, as whole numbers")
        ends = ("row", board.rows), ("column", board.columns), ("thing", board.things)
        row, column, thing = (
            whole(name, n, 0, len(end) - 1, LlamaparError) for (name, end), n in zip(ends, place, strict=True)
        )
        return row, column, thing

    def traits(self, seq: int) -> Values:
        """Everything that the page shows, as its payload number `seq`."""
        asked = self.asked
        verdict = self.verdict
        told = verdict is not None and verdict.truth is not None
        view = asked.view
        if verdict is not None and verdict.view is not None:
            view = verdict.view
        payload: dict[str, object] = {
            "seq": seq,
            "question": asked.question,
            "kind": asked.kind,
            "unit": asked.unit,
            "choices": [[value, label, note if told else ""] for value, label, note in asked.choices],
            "hints": list(asked.hints[: self.hints]),
            "more": len(asked.hints) - self.hints,
            "gives_up": asked.reveal is not None and verdict is not None and not told and not verdict.right,
            "folds": asked.reveal is None,
            "verdict": None,
            "board": self._drawn(verdict),
            **figure_of(view),
            "values": {"tab": asked.kind},
            "problem": None,
        }
        if verdict is not None:
            own = ("right", "says", "guess", "truth", "value", "answer", "drawn")
            payload["verdict"] = {name: getattr(verdict, name) for name in own}
        return {"payload": payload}

    def _drawn(self, verdict: GuessVerdict | None) -> Mapping[str, object] | None:
        board = self.asked.board
        if board is None:
            return None
        true = board.put(verdict.answer) if verdict is not None and verdict.answer is not None else None
        return {
            "rows": list(board.rows),
            "across": board.across,
            "columns": list(board.columns),
            "things": [[name, tint] for name, tint in zip(board.things, board.tints, strict=True)],
            "above": [[label, list(cells)] for label, cells in board.above],
            "cells": board.drawn(self.cells, true),
            "true": None if true is None or true == self.cells else board.drawn(true),
            "left": [
                sum(thing in cell for row in self.cells for cell in row) for thing in range(len(board.things))
            ],
        }


class Box(Page[BoxState]):
    """An answer box. `set` does from code what the page does: guess=, hint=, place=, clear=, give_up=.

    still: the static form for a notebook without widgets, by MIME type, with its metadata.
    """

    _esm = source("page.js", "map.js", "box.js")
    _css = style("box.css")

    def __init__(self, asked: BoxQuestion, still: Callable[[], tuple[Values, Values]] | None = None) -> None:
        one_of("kind", asked.kind, KINDS)
        self._still = still
        cells: Cells = ()
        if asked.board:
            stands = asked.first is not None and asked.first.value is not None
            cells = asked.board.put(asked.first.value) if asked.first and stands else asked.board.empty
        super().__init__(BoxState(asked, cells, verdict=asked.first))

    @property
    def verdict(self) -> GuessVerdict | None:
        """The verdict on the last guess; None before the first guess."""
        return self._state.verdict

    def snapshot(self) -> View:
        """The picture as it is now, and the box's sentences as text."""
        state = self._state
        payload = state.traits(0)["payload"]
        assert isinstance(payload, dict)
        lines = [state.status, *(f"hint: {hint}" for hint in payload["hints"]), payload["summary"]]
        return View(payload["figure"] or NO_FIGURE, "\n".join(filter(None, lines)))

    def _repr_mimebundle_(self, **_: object) -> tuple[dict[str, object], dict[str, object]]:
        data, metadata = super()._repr_mimebundle_()
        if self._still is None:
            return data, metadata
        own = {kind: value for kind, value in data.items() if "widget-view" in kind}
        said, more = self._still()
        return own | dict(said), dict(more)

    def _press(self, kind: str, content: Values, current: bool) -> None:
        self.set(**{kind: content.get("value")})
