"""llamapar/course/questions.py: every question takes its own truth and refuses the usual slips."""

import ast
import json
import re
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

import llamapar as lp
from llamapar.course import progress, questions_of_messages
from llamapar.course.questions import LESSONS, QUESTIONS, Quiz
from llamapar.diagnosis.vocabulary import CATEGORIES

NOTEBOOK = Path(__file__).resolve().parent.parent / "notebooks" / "13_twenty_questions.ipynb"


SLOW = {"a layout for a machine", "the stage that overflows"}
"""Questions that search or count for a moment, drawn less often."""


@pytest.mark.parametrize("name", sorted(QUESTIONS))
def test_every_drawn_truth_is_right_and_a_slip_gets_its_hint(name, counts):
    texts, lesson = [], next(lesson for lesson, names in LESSONS.items() if name in names)
    for seed in range(counts(2, 10, 200) if name in SLOW else counts(20, 60, 1000)):
        question = Quiz(seed).question(name)
        assert question.is_right(question.read(question.truth)), (seed, question.text)
        texts.append(question.text)
        if seed > 2:
            continue
        slips = [(slip, hint) for slip, hint in question.slips if slip != question.truth]
        assert slips or question.judge, f"no usual slip: {question.text}"
        assert question.hints[0].endswith(f"The lesson is {lesson}.")
        for slip, hint in slips:
            assert not question.is_right(slip)
            assert hint == question.fault(slip), f"{slip} to {question.text}"
            assert hint.endswith(f" The lesson is {lesson}.")
    assert len(set(texts)) > 1, "nothing is drawn"
    assert Quiz(0).question(name).text == texts[0], "the same seed asks the same"


def test_the_degree_of_a_message_is_the_one_that_was_drawn(counts):
    """By arithmetic on the question's words: 1,024 columns of K, or 128,256 rows padded to 64·tp."""
    for seed in range(counts(60, 200, 1000)):
        question = Quiz(seed).question("TP from a message")
        tp, numbers = question.truth, [int(n) for n in re.findall(r"\d+", question.text)]
        if "xk.view" in question.text:
            tokens, size = numbers[-4], numbers[-1]
            assert size * tp == tokens * 1024, (seed, question.text)
        else:
            rows = numbers[-4]
            assert rows * tp == -(-128256 // (64 * tp)) * 64 * tp, (seed, question.text)


def test_the_cause_of_a_message_is_what_explain_says(counts):
    for seed in range(counts(20, 200, 1000)):
        question = Quiz(seed).question("cause of a message")
        found = lp.explain(question.text, "llama3-8b" if "xk.view" in question.text else "llama3.1-70b").best
        assert CATEGORIES[found.category].what == question.truth, (seed, question.text)


def test_the_truths_are_the_library_s():
    """Some of them worked out here once more, by hand."""
    heads = Quiz(0).question("heads of a rank")
    assert heads.text == "llama3.1-405b has 128 query heads. How many does a rank hold at TP 2?"
    assert heads.truth == 128 // 2
    waiting = Quiz(0).question("waiting")
    assert "8 stages, 16 micro-batches" in waiting.text
    assert waiting.truth == pytest.approx(7 / 16)
    shards = Quiz(0).question("shards of a state")
    assert "tp=8 cp=8 pp=1 dp=4" in shards.text
    assert shards.truth == 8 * 4


def test_each_layout_is_judged_as_check_and_memory_judge_it(counts):
    question, draw = Quiz(0).question("a layout for a machine"), Random(0)
    needs = lp.memory(
        "llama3.1-70b", lp.Layout(tp=8, dp=16), gpu="h100-80gb", seq_len=16384, global_batch=128
    )
    assert needs.low_bytes < needs.hbm_bytes < needs.expected_bytes, "it may fit, and nobody plans on that"
    gib = [size / 2**30 for size in (needs.expected_bytes, needs.hbm_bytes)]
    wrong = f"A rank is expected to need {gib[0]:.2f} GiB, and the GPU has {gib[1]:.2f}."
    assert question.judge(lp.Layout(tp=8, dp=16)) == wrong
    right = 0
    for _ in range(counts(15, 100, 300)):
        rest, degrees = 128, {}
        for axis in draw.sample(lp.AXES, 3):
            degrees[axis] = 2 ** draw.randrange(4)
            rest //= degrees[axis]
        last = next(axis for axis in lp.AXES if axis not in degrees)
        layout = lp.Layout(**degrees, **{last: max(rest, 1)}, zero=draw.randrange(4))
        job = {"gpu": "h100-80gb", "seq_len": 16384, "global_batch": 128}
        verdict = question.judge(layout)
        if not lp.check("llama3.1-70b", layout, gpus=128, **job).ok:
            assert re.match(r"LP\d+: ", verdict), layout
            continue
        memory = lp.memory("llama3.1-70b", layout, **job)
        assert (verdict == "") == (memory.expected_bytes <= memory.hbm_bytes), layout
        right += not verdict
    assert right


def test_a_question_in_a_notebook(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LLAMAPAR_PROGRESS", str(tmp_path / "progress.json"))
    quiz = Quiz(0)
    for answer in (None, 128, 64, 128):
        quiz.ask("heads of a rank", answer)
    asked = "llama3.1-405b has 128 query heads. How many does a rank hold at TP 2?\n"
    hint = "wrong: That is the whole layer: TP cuts it. The lesson is 03_attention_heads.\n"
    said = f"{asked}not answered yet\n{asked}{hint}{asked}right\n{asked}{hint}"
    assert capsys.readouterr().out == said
    kept = progress.load_progress(tmp_path / "progress.json")
    assert kept["questions"] == {"heads of a rank": {"right": True}}
    with pytest.raises(lp.LlamaparError, match="question"):
        quiz.ask("heads of a rnk", 1)


def test_each_question_leads_back_to_a_notebook_that_is_there():
    assert sorted(name for names in LESSONS.values() for name in names) == sorted(QUESTIONS)
    assert {path.stem for path in NOTEBOOK.parent.glob("*.ipynb")} >= set(LESSONS)


def test_neighbours_are_of_different_lessons():
    lesson_of = {name: lesson for lesson, names in LESSONS.items() for name in names}
    order = [lesson_of[name] for name in QUESTIONS]
    assert [one for one, other in pairwise(order) if one == other] == []


def test_the_notebook_asks_all_twenty_in_order():
    every = progress.questions_asked(NOTEBOOK.parent)[NOTEBOOK.stem]
    asked = [name for kind, name in every if kind == "questions"]
    assert asked == list(QUESTIONS)
    assert len(asked) == 20


@pytest.mark.parametrize(
    ("lesson", "name", "text"),
    [
        ("12_shape_debugger", "wild", questions_of_messages.WILD),
        ("12_shape_debugger", "train", questions_of_messages.TRAIN),
    ],
)
def test_the_texts_that_a_question_reads_are_those_of_its_notebook(lesson, name, text):
    cells = json.loads(NOTEBOOK.with_name(f"{lesson}.ipynb").read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    known = {}
    for source in sources:
        for node in ast.parse(source.replace("%", "#%")).body if f"{name} = " in source else []:
            if isinstance(node, ast.Assign) and not any(isinstance(n, ast.Call) for n in ast.walk(node)):
                alone = ast.Module([node], type_ignores=[])
                exec(compile(alone, lesson, "exec"), known)
    assert known[name] == text
