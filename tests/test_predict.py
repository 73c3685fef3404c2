"""notebooks/exercises.py's predict and notebooks/progress.py: guesses folded, shown, kept, added up."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import IPython.display
import pytest
from nbformat.v4 import new_output

import exercises
import llamapar as lp
import progress

PROJECT = Path(__file__).resolve().parent.parent
saving = runpy.run_path(str(PROJECT / "jupyter" / "saving.py"), run_name="saving")
bake = runpy.run_path(str(PROJECT / "tools" / "bake.py"), run_name="bake")
PNG = "iVBORw0KGgo="
LAYOUT = lp.Layout(tp=2, cp=2)


@pytest.fixture
def predict(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """`predict`, which returns what it displayed."""

    def call(*args: Any, **options: Any) -> list[Any]:
        shown: list[Any] = []
        monkeypatch.setattr(IPython.display, "display", shown.append)
        exercises.predict(*args, **options)
        return shown

    return call


def test_the_truth_is_folded_until_there_is_a_guess(
    predict: Callable[..., list[Any]], progress_file: Path
) -> None:
    (box,) = predict("GPUs with work", None, 8192)
    data, metadata = box._repr_mimebundle_()
    assert saving["WIDGET"] in data, "answered on the page where a widget can live"
    output = new_output("display_data", data, metadata=metadata)
    assert saving["as_saved"](output)["metadata"] == {}
    assert saving["as_saved"](output)["data"] == {
        "text/plain": "GPUs with work\n8,192",
        "text/html": "<details><summary><b>GPUs with work</b> Put your guess in place of None and run "
        "the cell, or unfold the answer.</summary><p><b>8,192</b></p></details>",
    }
    assert bake["shown_in"](output) is None, "no picture of the box is stored"
    assert not progress_file.exists(), "a cell that nobody answered keeps nothing"


@pytest.mark.parametrize(
    ("guess", "truth", "words"),
    [
        (8192, 8192, "that is it"),
        ("8,192", 8192, "that is it"),
        (" Yes ", True, "that is it"),
        (True, 1, "not quite"),
        (0.98, 1.0, "that is it"),
        (0.9, 1.0, "not quite"),
        ("CP ", "cp", "that is it"),
        ([1, 2, 4, 8], (1, 2, 4, 8), "that is it"),
        ([1, 2, 4], (1, 2, 4, 8), "not quite"),
        ("__import__('os').getcwd()", 8192, "not quite"),
        ("a few", lp.ranks(LAYOUT, 0), "compare for yourself"),
    ],
)
def test_a_guess_stands_beside_the_truth(
    predict: Callable[..., list[Any]], progress_file: Path, guess: object, truth: object, words: str
) -> None:
    verdict, *rest = predict("how many?", guess, truth)
    assert verdict.title == f"how many? – {words}"
    assert rest == ([] if words != "compare for yourself" else [truth])
    right = {"that is it": True, "not quite": False}.get(words)
    assert json.loads(progress_file.read_text())["predictions"]["how many?"]["right"] is right


def test_a_guess_is_shown_as_it_was_typed_and_escaped(
    predict: Callable[..., list[Any]], progress_file: Path
) -> None:
    (verdict,) = predict("<b>?", "<script>alert(1)</script>" + "x" * 999, 3)
    html = verdict._repr_html_()
    assert "<script" not in html
    assert "<b>?" not in html
    assert "&lt;script&gt;alert(1)" in html
    assert len(html) < 600


def test_the_first_guess_stands(predict: Callable[..., list[Any]], progress_file: Path) -> None:
    predict("how many?", 4, 8)
    (verdict,) = predict("how many?", 8, 8)
    assert verdict.title == "how many? – that is it (your first guess was 4)"
    assert json.loads(progress_file.read_text())["predictions"] == {
        "how many?": {"right": False, "guess": "4"}
    }


def test_words_behind_a_guess_are_printed_line_by_line(
    predict: Callable[..., list[Any]], progress_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(predict("does it run?", True, False, shows="it waits\n  why  for another")) == 1
    assert capsys.readouterr().out == "it waits\n  why  for another\n"


def test_a_picture_is_live_after_a_guess_and_stored_as_a_picture_before(
    predict: Callable[..., list[Any]], progress_file: Path
) -> None:
    view = lp.view(lp.ranks(LAYOUT, 0))
    assert predict("the groups", "three", view)[1:] == [view]
    assert predict("ranks", 4, 4, shows=view)[1:] == [view]
    (folded,) = predict("ranks", None, 4, shows=view)
    data, metadata = folded._repr_mimebundle_()
    output = new_output("display_data", data, metadata=metadata)
    assert set(data) == {"text/plain", "text/html", saving["WIDGET"]}
    assert bake["shown_in"](output) == ("figure", view.spec)
    assert (
        f"<summary>The same in words</summary><pre>{view.summary}</pre></details></details>"
        in data["text/html"]
    )

    stored = bake["clean"](new_output("display_data", dict(data)), "")
    assert set(stored.data) == {"text/plain", "text/html"}
    stored.data["text/html"] = bake["TO_DRAW"].sub(bake["image"](PNG), data["text/html"])
    assert f'src="data:image/png;base64,{PNG}"' in stored.data["text/html"]
    assert saving["says_the_same"](output, stored)
    assert "metadata" in saving["as_saved"](output)
    assert saving["as_saved"](output)["metadata"] == {}
    # nbval compares what the picture was drawn from, and nothing of the picture
    ((pattern, put),) = re.findall(
        "^regex: (.*)$\n^replace: (.*)$", (PROJECT / "tests/data/nbval.cfg").read_text(), re.MULTILINE
    )
    assert re.sub(pattern, put, stored.data["text/html"]) == data["text/html"]
    other = predict("ranks", None, 4, shows=lp.view(lp.ranks(LAYOUT, 1)))[0]._repr_mimebundle_()[0]
    assert saving["TO_DRAW"].search(other["text/html"])[1] != saving["TO_DRAW"].search(data["text/html"])[1]


def test_exercises_are_kept_and_the_best_try_stands(
    progress_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exercises.check("DP of the short row", None)
    assert not progress_file.exists()
    for answer in (3, 64, 5):
        exercises.check("DP of the short row", answer)
    assert capsys.readouterr().out.splitlines()[-1].startswith("wrong: ")
    assert json.loads(progress_file.read_text()) == {
        "form": progress.FORM,
        "exercises": {"DP of the short row": {"right": True}},
    }


def test_the_page_adds_up(progress_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert progress.progress() is None
    assert capsys.readouterr().out == progress.NOTHING + "\n"
    exercises.check("DP of the short row", 64)
    exercises.check("half the GPUs", {"dp": 3})
    page = progress.progress()
    assert page is not None
    rows = {row[0]: row[2] for row in page.rows}
    total = sum(kind == "exercises" for asked in progress.asked().values() for kind, _ in asked)
    assert rows["00_start_here"] == "2 of 2, 1 right"
    assert rows["together"] == f"2 of {total}, 1 right"
    known = len(exercises.TARGETS | exercises.EXERCISES)
    assert total == known, "every exercise is asked somewhere, and once"


def test_no_question_of_the_course_is_asked_twice() -> None:
    """A guess is kept by its question."""
    asked = [question for questions in progress.asked().values() for question in questions]
    assert len(asked) == len(set(asked))
    assert sum(kind == "predictions" for kind, _ in asked) > 30


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "it cannot be read: Expecting property name enclosed in double quotes"),
        ("[" * 100_000, "it cannot be read: "),
        ("\udcff", "it cannot be read: "),
        ('{"form": "another\'s"}', "it does not begin as this course writes it"),
        (
            json.dumps({"form": progress.FORM, "exercises": []}),
            "its exercises are not as this course writes them",
        ),
        (json.dumps({"form": progress.FORM, "predictions": {"a": {"right": 7}}}), "its predictions are not"),
    ],
)
def test_a_file_that_is_not_ours_stays_and_a_sentence_says_so(
    progress_file: Path, capsys: pytest.CaptureFixture[str], text: str, why: str
) -> None:
    before = text.encode("utf-8", "surrogateescape")
    progress_file.write_bytes(before)
    exercises.check("DP of the short row", 64)
    said = capsys.readouterr().out
    assert said.startswith("progress.json was left as it is, and this is not kept in it\n")
    assert why in said
    assert said.endswith("right\n")
    assert progress.progress() is None
    assert progress_file.read_bytes() == before
    assert list(progress_file.parent.iterdir()) == [progress_file]


def test_a_folder_that_cannot_be_written_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LLAMAPAR_PROGRESS", str(tmp_path / "gone" / "progress.json"))
    exercises.check("DP of the short row", 64)
    assert capsys.readouterr().out == (
        "progress.json could not be written (No such file or directory); this is not kept\nright\n"
    )


def test_a_test_run_keeps_nothing() -> None:
    assert progress.file() is None  # conftest.py sees to it, for the notebooks' kernels too
    assert progress.keep("exercises", "DP of the short row", True) == {"right": True}
    ignored = (PROJECT / ".gitignore").read_text().splitlines()
    assert progress.FILE.relative_to(PROJECT).as_posix() in ignored


KEEPER = """
import sys
import progress
for n in range(20):
    progress.keep("questions", f"{sys.argv[1]} {n}", True)
"""


def test_notebooks_that_answer_at_once_lose_nothing(progress_file: Path) -> None:
    run = [sys.executable, "-c", KEEPER]
    path = os.pathsep.join([str(PROJECT), str(PROJECT / "notebooks")])
    environment = {**os.environ, "LLAMAPAR_PROGRESS": str(progress_file), "PYTHONPATH": path}
    keepers = [subprocess.Popen([*run, str(k)], env=environment) for k in range(4)]
    assert [keeper.wait(timeout=60) for keeper in keepers] == [0] * 4
    assert len(progress.read(progress_file)["questions"]) == 4 * 20
    assert list(progress_file.parent.iterdir()) == [progress_file]
