"""Answer boxes without a browser: truths, guesses as they are typed, hints, boards, what reaches the page."""

from __future__ import annotations

import json
import random
import re
from contextlib import suppress
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import IPython.display
import nbformat
import pytest

import llamapar as lp
from llamapar.course import exercises
from llamapar.course.boards import dealt, order_as_text, placed_operations
from llamapar.course.boxes import Item, box
from llamapar.course.exercises import EXERCISES, PREDICTIONS
from llamapar.course.questions import QUESTIONS, Quiz
from llamapar.course.veils import covered, veiled
from llamapar.panels.box_panel import Box
from llamapar.panels.page import for_browser
from test_notebooks import SPOILERS, in_sight, read
from truths import WORKED_OUT
from wire import press, receive

FIRST = "405B at TP 8: first and last query head of rank 3"
DEAL = "405B at TP 16: which KV head does each rank store?"
PLACE = "Two ranks, three micro-batches: place 1F1B"
ITEMS = {**PREDICTIONS, **EXERCISES}

TRUTHS: dict[str, object] = {
    FIRST: [3 * 128 // 8, 4 * 128 // 8 - 1],
    "After wo, do ranks 0 and 1 have the same numbers?": False,
    "128 and 8 heads at TP 16: which line fails, 1, 2 or 3?": 3,
    DEAL: [rank // 2 for rank in range(16)],
    "Tiled: still the output of the model with 8 heads?": False,
    "24 and 8 heads: which one TP above 8 works with copies?": 24,
    "The sum is forgotten: is the forward still right?": True,
    PLACE: ["F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"],
    "ranks with KV head 5": [5 * 4 + k for k in range(4)],
    **WORKED_OUT,
}
"""Worked out by hand, or known from the notebook's own runs."""


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What cells display."""
    found: list[Any] = []
    monkeypatch.setattr(IPython.display, "display", found.append)
    return found


@cache
def item_of(name: str) -> Item:
    """A row of the tables, made once: some truths are a run of real ranks."""
    return ITEMS[name]()


def asked(name: str) -> Box:
    kind = "predictions" if name in PREDICTIONS else "exercises"
    return box(item_of(name), kind, name, tells=name in PREDICTIONS)


# -- the course's tables ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ITEMS)
def test_a_truth_is_what_a_hand_works_out_and_each_slip_is_told_what_is_wrong(name: str) -> None:
    item, panel = item_of(name), asked(name)
    assert item.text == name or name in EXERCISES
    assert item.truth == TRUTHS[name]
    assert item.hints
    for slip, why in item.slips:
        panel.set(guess=slip)
        assert panel.verdict is not None
        assert panel.verdict.right is False
        assert why in panel.verdict.says
    panel.set(guess=item.truth)
    assert panel.verdict is not None
    assert panel.verdict.right is True
    assert panel.verdict.says.startswith("That is it")


def test_one_of_a_unit_is_said_in_the_singular() -> None:
    said = [[Item("How many?", 3, unit=unit).say(n) for n in (1, 2)] for unit in ("facts", "copies", "ms")]
    assert said == [["1 fact", "2 facts"], ["1 copy", "2 copies"], ["1 ms", "2 ms"]]


def test_a_first_guess_is_told_by_its_label() -> None:
    """The progress file keeps the value, which the reader has never seen."""
    item = Item("Which?", "row-2", choices=(("row-1", "the first", ""), ("row-2", "the second", "")))
    assert item.told("row-2", "row-1").says == "That is it: the second. Your first guess was the first."


def right(item: Item, answer: object) -> bool:
    """Whether an answer is right; one that is refused is not."""
    with suppress(lp.LlamaparError):
        return bool(item.is_right(item.read(answer)))
    return False


def misses(item: Item) -> list[Any]:
    """Wrong answers: the usual slips, one off, a power of ten off, an entry left out, two changed places."""
    truth: Any = item.truth
    near: list[Any] = [slip for slip, _ in item.slips]
    if item.choices:
        return [value for value, *_ in item.choices if value != truth]
    if item.kind == "number":
        near += [truth + 1, truth - 1, 0, 2 * truth, 10 * truth, 1000 * truth, -truth]
        near += [] if isinstance(truth, int) else [1.06 * truth, 0.94 * truth, 100 * truth]
    elif isinstance(truth, list | tuple) and not isinstance(truth[0], str):
        numbers = list(truth)
        near += [[n + (k == at) for k, n in enumerate(numbers)] for at in range(len(numbers))]
        near += [numbers[:-1] or [7], [*numbers, numbers[-1] + 1], numbers[::-1], numbers[1:] + numbers[:1]]
    return [one for one in near if not right(item, one)]


@pytest.mark.parametrize("name", [*ITEMS, *QUESTIONS])
def test_a_wrong_answer_gets_a_reason(name: str) -> None:
    """A slip's own, or why the truth is true; all but predictions keep it back and give the first hint."""
    item = Quiz(0).question(name) if name in QUESTIONS else item_of(name)
    panel = box(item, "of a test", name, tells=name in PREDICTIONS)
    reasons = [why for _, why in item.slips] + ([item.why] if name in PREDICTIONS else [item.hints[0]])
    for wrong in misses(item):
        try:
            panel.set(guess=wrong)
        except lp.LlamaparError:  # a board refuses it, which costs nothing
            continue
        assert panel.verdict.right is False
        assert (panel.payload["verdict"]["truth"] is not None) == (name in PREDICTIONS)
        assert item.judge or any(why and why in panel.verdict.says for why in reasons), panel.verdict.says
    panel.set(guess=item.truth)
    assert panel.verdict.right is True, panel.verdict.says


@pytest.mark.parametrize("name", ITEMS)
def test_nothing_that_gives_the_answer_away_reaches_the_page_before_a_guess(name: str) -> None:
    item, panel = item_of(name), asked(name)
    sent = json.dumps(panel.get_state())
    assert panel.payload["verdict"] is None
    assert all(note == "" for *_, note in panel.payload["choices"])
    assert not any(hint in sent for hint in item.hints)
    assert item.why not in sent or not item.why
    if item.picture and item.veiled:
        assert panel.payload["summary"].endswith("A part is veiled until you guess.")
        said = set(item.picture.summary.splitlines()) & set(panel.payload["summary"].splitlines())
        assert said == set()
    elif item.picture:
        assert panel.payload["figure"] is None
        assert panel.payload["summary"] == ""


NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb"))
ASKS = re.compile(r'\b(?:predict|check)\(\s*"((?:[^"\\]|\\.)*)"\s*\)')


def stands_in(number: str, text: str) -> bool:
    """Whether a text has a number as a whole."""
    return bool(re.search(rf"(?<![\w.,]){re.escape(number)}(?!\w|[.,]\d)", text))


def seen(cell: Any) -> str:
    """What a reader sees of a cell: its source and what it shows, but for what is folded."""
    data = [output.get("data", {"text/plain": output.get("text", "")}) for output in cell.get("outputs", [])]
    shown = [each.get("text/plain", "") for each in data if "<details>" not in each.get("text/html", "")]
    return "\n".join([ASKS.sub("", cell.source), *shown])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_answer_stands_before_its_question(path: Path) -> None:
    """A cell ends with the box that it asks in. A long number is in nothing above it: of a prediction in its
    section, of an exercise in the whole notebook. Of shorter answers only a reader can tell."""
    section = whole = ""
    for cell in nbformat.read(path, as_version=4).cells:
        section = "" if cell.source.startswith("## ") else section
        section, whole = section + seen(cell), whole + seen(cell)
        names = [name for name in ASKS.findall(cell.source) if name in ITEMS]
        for name, output in zip(names, cell.outputs[-len(names) :] if names else [], strict=True):
            item = item_of(name)
            assert output.data["text/html"].startswith(f"<details><summary><b>{escape(item.text)}</b>")
            if item.kind == "number" and isinstance(item.truth, int) and item.truth > 99:
                above = section if name in PREDICTIONS else whole
                forms = {form for form in (str(item.truth), f"{item.truth:,}") if form not in item.text}
                assert not [form for form in forms if stands_in(form, above)], name


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_three_cells_after_a_question_do_not_spoil_it(path: Path) -> None:
    notebook = read(path)
    for place, cell in enumerate(notebook.cells):
        for question in re.findall(r'predict\(\s*"((?:[^"\\]|\\.)*)"', cell.source):
            item = item_of(question)
            phrases = [*SPOILERS.get(question, [])]
            if item.kind in ("number", "list") and re.search(r"\d\D*\d", item.say(item.truth)):
                phrases.append(item.say(item.truth))
            assert phrases, f'write what would spoil "{question}" into tests/spoilers.toml'
            for after, other in enumerate(notebook.cells[place : place + 4]):
                seen = in_sight(other, own=after == 0)
                assert [phrase for phrase in phrases if phrase in seen] == [], (question, after)


def test_yes_and_no_are_in_balance() -> None:
    truths = [item.truth for item in map(item_of, ITEMS) if isinstance(item.truth, bool)]
    drawn = [Quiz(seed).question("enough KV heads").truth for seed in range(200)]
    for said in (truths, drawn):
        assert 0.4 <= sum(map(bool, said)) / len(said) <= 0.6


@pytest.mark.parametrize("name", ITEMS)
def test_no_truth_hangs_on_what_is_undecided_and_no_hint_says_it(name: str) -> None:
    """A hint may give the sum to work out. One digit may stand in it by chance, and so may what is asked."""
    item = item_of(name)
    words = [item.why, *item.hints, *(why for _, why in item.slips), *(note for *_, note in item.choices)]
    assert not [text for text in words if "undecided" in text]
    if isinstance(item.truth, bool):
        return
    said = item.say(item.truth)
    forms = {said, said.removesuffix(f" {item.unit}"), said.strip("[]()")}
    long = {form for form in forms if len(form) > 1 and form not in item.text}
    assert [(form, hint) for hint in item.hints for form in long if stands_in(form, hint)] == []


SIDE = r"\(?\d[\d,.()·/+−^ -]*\d\)?|\d"
OPERATORS = str.maketrans({"·": "*", "−": "-", "^": "**", ",": ""})


def test_both_sides_of_an_equation_in_the_words_are_equal() -> None:
    """To the digits that stand on the right."""
    equations = []
    for item in map(item_of, ITEMS):
        for text in (item.why, *item.hints, *(why for _, why in item.slips)):
            equations += re.findall(rf"(?<![\w.^])({SIDE}) = ({SIDE})(?!\w)", text)
    assert len(equations) > 25
    for left, right in equations:
        one, other = (eval(side.translate(OPERATORS), {}) for side in (left, right))
        assert round(one, len(right.partition(".")[2])) == other, f"{left} = {right}"


def test_a_question_that_the_tables_do_not_have_is_refused_with_the_nearest(shown: list[Any]) -> None:
    with pytest.raises(lp.LlamaparError, match="question='405B at TP 8: first and last query head of ran"):
        exercises.predict("405B at TP 8: first and last query head of rank 4")
    with pytest.raises(lp.LlamaparError, match="exercise='ranks with KV head 6' is not known"):
        exercises.check("ranks with KV head 6")
    assert shown == []


def test_an_exercise_with_several_right_answers_is_judged_alike_in_code_and_in_its_box(
    progress_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "chunks of a schedule of your own"
    too_many = "wrong: Rank 0 has 3 chunks in flight at once, and 2 is the most allowed."
    for rank_0, said in (
        ("F0 F1 B0 F2 B1 B2", "right"),
        ("F0 B0 F1 B1 F2 B2", "right"),  # it may also wait for every backward
        ("F0 F1 F2 B0 B1 B2", too_many),
    ):
        answer = [rank_0, "F0 B0 F1 B1 F2 B2"]
        exercises.check(name, answer)
        assert capsys.readouterr().out == f"{said}\n"
        panel = asked(name)
        assert receive(panel, kind="guess", value=str(answer)) is None
        assert panel.verdict is not None
        assert panel.verdict.right is (said == "right")
        assert said == "right" or panel.verdict.says == f"Not yet. {said.removeprefix('wrong: ')}"


def test_the_code_form_names_a_usual_slip_and_else_the_difference(capsys: pytest.CaptureFixture[str]) -> None:
    for answer in (5, "3", 7):
        exercises.check("in flight on stage 5", answer)
    exercises.check("bubble of 64 micro-batches", "15/64")
    assert capsys.readouterr().out.splitlines() == [
        "wrong: Count from the other end: the last stage keeps one.",
        "right",
        f"wrong: 7 is too large. {item_of('in flight on stage 5').hints[0]}",
        f"wrong: 0.234375 % is too small. {item_of('bubble of 64 micro-batches').hints[0]}",
    ]


# -- guessing --------------------------------------------------------------------------------------


def test_a_wrong_prediction_is_drawn_beside_the_truth_and_the_first_guess_stands(progress_file: Path) -> None:
    panel = asked(FIRST)
    before = panel.payload
    assert receive(panel, kind="hint", value=True) is None
    assert panel.payload["hints"] == list(item_of(FIRST).hints[:1])
    assert receive(panel, kind="guess", value="40, 55") is None
    assert panel.payload["verdict"]["value"] == [40, 55]
    assert panel.payload["verdict"]["answer"] == [48, 63]
    frames = [(one[5], 128 * one[1], 128 * one[2]) for one in panel.payload["figure"]["shapes"][-2:]]
    assert frames == [("truth", 48, 64), ("guess", 40, 56)]
    assert before["figure"]["labels"][-1][2] == "?"
    assert panel.payload["summary"].startswith("You said 40–55; it is 48–63.")
    assert panel.payload["verdict"]["drawn"] is True, "in the picture, so nowhere else"
    panel.set(guess=[48, 63])
    assert panel.verdict is not None
    assert panel.payload["figure"]["shapes"][-1][5] == "tp1", "nothing to draw beside the truth"
    assert panel.verdict.says.startswith("That is it: [48, 63]. Your first guess was [40, 55].")
    assert json.loads(progress_file.read_text())["predictions"][FIRST] == {
        "right": False,
        "guess": "[40, 55]",
    }
    again = asked(FIRST)  # the notebook is run anew
    assert again.verdict is not None
    assert again.verdict.says.startswith("Not quite: you said [40, 55], it is [48, 63].")


def test_a_guess_that_another_form_of_the_question_kept_is_said_in_words(progress_file: Path) -> None:
    kept = {FIRST: {"right": False, "guess": "no idea"}}
    progress_file.write_text(
        json.dumps({"form": exercises.progress.__globals__["FORM"], "predictions": kept})
    )
    verdict = asked(FIRST).verdict
    assert verdict is not None
    assert verdict.says == "You said no idea; it is [48, 63]."


def test_an_exercise_tells_the_truth_when_it_is_right_or_given_up(progress_file: Path) -> None:
    name = "ranks with KV head 5"
    panel = asked(name)
    assert panel.payload["gives_up"] is False
    panel.set(give_up=True)
    assert panel.verdict is not None  # who wants to know is told
    panel = asked(name)
    assert receive(panel, kind="guess", value="5, 13, 21, 29") is None
    assert panel.payload["verdict"] | {"says": ""} == {
        "right": False, "says": "", "guess": "[5, 13, 21, 29]", "truth": None, "value": [5, 13, 21, 29],
        "answer": None, "drawn": False,
    }  # fmt: skip
    assert panel.payload["gives_up"] is True
    assert panel.payload["figure"] is None
    assert receive(panel, kind="give_up", value=True) is None
    assert panel.payload["verdict"]["answer"] == [20, 21, 22, 23]
    assert panel.payload["gives_up"] is False
    assert json.loads(progress_file.read_text())["exercises"] == {name: {"right": False}}
    panel.set(guess=[20, 21, 22, 23])
    assert json.loads(progress_file.read_text())["exercises"] == {name: {"right": True}}
    solved = asked(name)
    assert solved.payload["verdict"]["says"] == "You have solved this before."
    assert solved.payload["figure"] is None, "the veil stays: it can be solved again"


def test_the_code_form_answers_the_box(shown: list[Any], progress_file: Path) -> None:
    exercises.predict(FIRST, [32, 47])
    exercises.predict(FIRST, None)
    exercises.predict(DEAL, [rank % 8 for rank in range(16)])
    exercises.predict("After wo, do ranks 0 and 1 have the same numbers?", "no")
    first, again, deal, same = shown
    assert "Ranks count from 0, too: those are rank 2's." in first.verdict.says
    assert again.verdict.guess == "[32, 47]", "None is not answered yet, and the first guess stands"
    data, _ = first._repr_mimebundle_()
    assert data["text/plain"].startswith(f"{FIRST} – Not quite: you said [32, 47], it is [48, 63].")
    assert again._repr_mimebundle_()[0]["text/html"].startswith("<details><summary>")
    assert [cell["wrong"] for cell in deal.payload["board"]["cells"][0]].count(True) == 14
    assert same.verdict.right is True
    with pytest.raises(lp.LlamaparError, match="a list of 16 KV heads is needed"):
        exercises.predict(DEAL, [1])


def test_a_file_of_somebody_else_is_said_in_the_box(progress_file: Path) -> None:
    progress_file.write_text("{")
    panel = asked("The sum is forgotten: is the forward still right?")
    panel.set(guess=True)
    assert panel.verdict is not None
    assert "progress.json was left as it is, and this is not kept in it" in panel.verdict.says
    assert progress_file.read_text() == "{"


def test_a_message_that_no_page_sends_changes_nothing() -> None:
    panel = asked(DEAL)
    before = panel.payload
    places = ([0, 16, 0], [0, 0, 8], [0, -1, 0], [0, True, 0], "000")
    for message in (
        *({"kind": "place", "value": value} for value in places),
        *({"kind": "place"}, {"kind": "veil", "value": False}, {"kind": "guess", "value": None}),
        {"kind": "load", "text": '{"a": 1}', "name": "x"},
    ):
        assert receive(panel, **message) is not None, message
        assert panel.payload == before
    (*_, answer) = press(panel, kind="hint", value=True)
    assert answer["content"]["problem"] is None


# -- boards ----------------------------------------------------------------------------------------


def test_a_head_of_which_all_copies_are_dealt_is_refused() -> None:
    board = dealt(lp.heads("llama3.1-405b", tp=16, kv_replication=True))
    cells = board.move(board.move(board.empty, 0, 4, 3), 0, 9, 3)
    why = (
        "KV head 3 is on rank 4 and rank 9 already\n"
        "  why  with 16 ranks for 8 KV heads each is stored 2 times\n"
        "  try  pressing one of those, which takes it off"
    )
    with pytest.raises(lp.LlamaparError, match=f"^{re.escape(why)}$"):
        board.move(cells, 0, 5, 3)
    assert board.move(cells, 0, 4, 3)[0][4] == ()
    assert board.move(cells, 0, 4, 1)[0][4] == (1,)
    with pytest.raises(
        lp.LlamaparError, match="ranks without a KV head: 14 of 16\n  why  the first is rank 0"
    ):
        board.read(cells)


ILLEGAL = [
    ("", "F0 0 1", "it needs F0 of rank 0, which is not placed"),
    ("F0 0 0", "F0 0 1", "it needs F0 of rank 0, which ends at 1\n  try  1 or later"),
    ("F0 0 0", "B0 1 0", "it needs B0 of rank 1, which is not placed"),
    ("F0 0 0, F0 1 1, B0 2 1", "B0 3 0", "it needs B0 of rank 1, which ends at 4\n  try  4 or later"),
    (
        "F0 0 0, F1 2 0, F0 1 1, F1 3 1",
        "B0 2 1",
        "F1 cannot start at 3 on rank 1\n  why  B0 runs there until 4\n  try  4 or later",
    ),
    ("F0 13 0", "F0 13 1", "it needs F0 of rank 0, which ends at 14"),
    ("F0 0 0, F0 1 1", "F0 0 0", "F0 cannot start at 1 on rank 1\n  why  it needs F0 of rank 0"),  # taken off
    ("F0 0 0, F0 1 1", "B0 13 1", "the board ends at 14"),
]
"""What stands on the board, what is put there (each an operation, a column and a rank), and why it cannot."""


@pytest.mark.parametrize(("before", "move", "why"), ILLEGAL)
def test_an_illegal_operation_is_refused_with_the_reason(before: str, move: str, why: str) -> None:
    board = placed_operations(lp.schedule("1f1b", pp=2, micro_batches=3))
    names, cells = ["F0", "F1", "F2", "B0", "B1", "B2"], board.empty
    *those, (what, column, rank) = (one.split() for one in f"{before}, {move}".removeprefix(", ").split(", "))
    for name, at, on in those:
        cells = board.move(cells, int(on), int(at), names.index(name))
    said = why if "cannot" in why else f"{what} cannot start at {column} on rank {rank}\n  why  {why}"
    with pytest.raises(lp.LlamaparError, match=f"^{re.escape(said)}"):
        board.move(cells, int(rank), int(column), names.index(what))


def test_what_is_placed_at_random_by_legal_moves_is_a_schedule_that_runs(counts: Any) -> None:
    """The second witness is the library's own check of a table, which knows nothing of boards."""
    full = 0
    for seed in range(counts(40, 100, 2000)):
        draw = random.Random(seed)
        asked_ = lp.schedule("1f1b", pp=draw.choice((2, 3)), micro_batches=2)
        board = placed_operations(asked_)
        cells = board.empty
        every = [(rank, thing) for rank in range(asked_.pp) for thing in range(4)]
        for _ in range(200):
            rank, thing = draw.choice(every)
            if any((thing,) == cell for cell in cells[rank]) and draw.random() < 0.95:
                continue
            free = [int(str(c["column"])) for c in board.drawn(cells)[rank] if c["text"] == ""]
            for column in free[draw.randrange(2) :]:
                with suppress(lp.LlamaparError):
                    cells = board.move(cells, rank, column, thing)
                    assert cells[rank][column] == (thing,)
                    break
        stand = sorted((r, cell[0]) for r, row in enumerate(cells) for cell in row if cell)
        if stand != every:
            continue
        full += 1
        rows = board.read(cells)
        assert isinstance(rows, list)
        schedule = lp.Schedule.read(
            [" ".join(f"{r}{one}" for one in row.split()) for r, row in enumerate(rows)]
        )
        assert schedule.ok, schedule.reason
        assert board.read(board.put(rows)) == rows
    assert full > 3


def test_a_board_of_a_schedule_reads_its_order_marks_what_is_wrong_and_spans_two_columns() -> None:
    asked_ = lp.schedule("1f1b", pp=2, micro_batches=3)
    board = placed_operations(asked_)
    order = ["F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"]
    assert board.read(board.put(order_as_text(asked_))) == order_as_text(asked_) == order
    with pytest.raises(lp.LlamaparError, match="a text for each of 2 ranks"):
        board.put(["F0 B0"])
    with pytest.raises(lp.LayoutError, match="1F1"):
        board.put(["F0 F1 F2 B0 B1 B2", "F0 B1 B0 F1 F2 B2"])
    rows = board.drawn(board.put(["F0 F1 F2 B0 B1 B2"] * 2), board.put(order))  # GPipe for 1F1B
    wrong = [[cell["text"] for cell in row if cell["wrong"]] for row in rows]
    assert wrong == [["F2", "B0", "B1"], ["F1", "F2", "B0", "B1"]]
    for row in board.drawn(board.put(order)):
        assert sum(int(str(cell["span"])) for cell in row) == len(board.columns)
        assert [cell["text"] for cell in row if cell["span"] == 2] == ["B0", "B1", "B2"]


# -- veils -----------------------------------------------------------------------------------------


def test_a_veil_takes_out_all_that_lies_under_it_and_nothing_else() -> None:
    view = lp.view(lp.heads("llama3.1-405b", tp=8))
    under = covered(view, lambda lane, x: x > 1 / 8, "Heads.")
    assert {(one[0], one[1] < 1 / 8) for one in under.spec["shapes"][:-1]} == {
        (lane, True) for lane in ("card", "q", "kv", "link")
    }
    assert [label[2] for label in under.spec["labels"]] == ["0", "0", "?"]
    assert [rank[2] for rank in under.spec["ranks"]] == [f"rank {k}" for k in range(8)]
    assert under.summary == under.spec["says"] == "Heads. A part is veiled until you guess."
    assert "48" not in json.dumps([under.spec["labels"], under.spec["ranks"], under.summary])
    tiled = lp.view(lp.heads("llama3.1-405b", tp=16, kv_replication=True, interleave=False))
    kept = covered(tiled, lambda lane, x: lane in ("kv", "link"), "Tiled.").spec
    assert {one[0] for one in kept["shapes"]} == {"card", "q", "veil"}
    assert [words for _, words in kept["legend"]] == ["one KV group", "the next"], (
        "nor does the legend say it"
    )
    assert for_browser(under.spec) == json.loads(json.dumps(under.spec))


def test_a_veil_over_a_schedule_takes_cells_numbers_and_its_end() -> None:
    view = lp.view(lp.schedule("gpipe", pp=4, micro_batches=8))
    under = veiled(view, (4, 48), "GPipe")
    maps = [trace for trace in under.spec["data"] if trace["type"] == "heatmap"]
    assert [len(trace["z"]) for trace in maps] == [8, 4], "half rows of four ranks, and their chunks"
    for trace in maps:
        assert {cell for row in trace["z"] for cell in row[4:]} == {None}
        assert None not in {cell for row in trace["z"] for cell in row[:4]}
    texts = [trace for trace in under.spec["data"] if trace.get("mode") == "text"]
    assert [(trace["x"], trace["text"]) for trace in texts] == [
        ([0.5, 1.5, 2.5, 3.5, 1.5, 2.5, 3.5, 2.5, 3.5, 3.5], [0, 1, 2, 3, 0, 1, 2, 0, 1, 0])
    ]
    (shape,) = under.spec["layout"]["shapes"]
    assert (shape["x0"], shape["x1"], shape["y0"], shape["y1"], shape["yref"]) == (4, 48, 0, 1, "paper")
    assert under.summary == "GPipe. A part is veiled until you guess."
    assert for_browser(under.spec) == json.loads(json.dumps(under.spec))


def test_the_peers_of_a_rank_are_veiled_and_it_stands_alone() -> None:
    item = item_of("The four peers of rank 13, as a list?")
    for view, places in (
        (item.picture, [(0, 12), (1, 4), (1, 8), (1, 12), (3, 12)]),
        (item.veiled, [(1, 12)]),
    ):
        marks = [trace for trace in view.spec["data"] if trace.get("mode") == "markers"]
        assert sorted(place for mark in marks for place in zip(mark["x"], mark["y"], strict=True)) == places
    assert "peer" not in json.dumps(for_browser(item.veiled.spec))


@pytest.mark.parametrize("name", ["8 tokens in order: how many pairs does rank 1 make?", "last over first"])
def test_the_work_of_ranks_is_veiled_and_nothing_else(name: str) -> None:
    before, after = item_of(name).veiled.spec, item_of(name).picture.spec
    assert [one for one in after["shapes"] if one[0] != "work"] == before["shapes"][:-1]
    assert {one[4][2] for one in after["shapes"] if one[0] == "work"} == {before["shapes"][-1][4][2]}
    assert not any(label[1] > before["shapes"][-1][4][2] for label in before["labels"] if label[2] != "?")


@pytest.mark.parametrize(
    ("name", "guess", "true", "drawn"),
    [
        ("128,256 rows, 8 ranks: who owns token 100,000?", 5, (6 / 8, 7 / 8), (5 / 8, 6 / 8)),
        ("128,256 rows, 8 ranks: who owns token 100,000?", 9, (6 / 8, 7 / 8), None),
        ("128,256 rows, 8 ranks: who owns token 100,000?", 5.5, (6 / 8, 7 / 8), None),
        ("At TP 16, how many of the 1,024 rows of wk does a rank get?", 128, (0, 1 / 16), (0, 1 / 8)),
        (FIRST, [63, 48], (48 / 128, 64 / 128), None),
    ],
)
def test_a_guess_is_framed_on_a_map_where_it_stands_anywhere(
    name: str, guess: object, true: tuple[float, float], drawn: tuple[float, float] | None
) -> None:
    shapes = item_of(name).marked(guess).spec["shapes"]
    frames = [(one[5], (one[1], one[2])) for one in shapes if one[5] in ("truth", "guess")]
    assert frames == [("truth", true), *([("guess", drawn)] if drawn else [])]
    if guess == 128:  # over two ranks' bands
        right, said = (one[4][1] - one[4][0] for one in shapes if one[5] in ("truth", "guess"))
        assert said > 1.9 * right
