"""The boxes and the progress of llamapar.course: guesses folded, shown, kept, added up."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from nbformat.v4 import new_output

import llamapar as lp
from llamapar.course import exercises, progress
from llamapar.course.boxes import Item, box
from llamapar.panels.box_panel import Box
from llamapar.panels.page import for_browser

PROJECT = Path(__file__).resolve().parent.parent
saving = runpy.run_path(str(PROJECT / "jupyter" / "saving.py"), run_name="saving")
bake = runpy.run_path(str(PROJECT / "tools" / "bake.py"), run_name="bake")
PNG = "iVBORw0KGgo="
LAYOUT = lp.Layout(tp=2, cp=2)
FORM = f'{{"form": {json.dumps(progress.FORM)}'


def asked(item: Item, guess: object = None) -> Box:
    """The box of a question, as `predict` shows it."""
    return box(item, "predictions", item.text, guess)


def test_the_truth_is_folded_until_there_is_a_guess(progress_file: Path) -> None:
    data, metadata = asked(Item("GPUs with work", 8192))._repr_mimebundle_()
    assert saving["WIDGET"] in data, "answered on the page where a widget can live"
    output = new_output("display_data", data, metadata=metadata)
    assert saving["as_saved"](output)["metadata"] == {}
    assert saving["as_saved"](output)["data"] == {
        "text/plain": "GPUs with work\n8,192",
        "text/html": "<details><summary><b>GPUs with work</b> Run the notebook to answer, or unfold the "
        "answer.</summary><p><b>8,192</b></p></details>",
    }
    assert bake["shown_in"](output) is None, "no picture of the box is stored"
    assert not progress_file.exists(), "a cell that nobody answered keeps nothing"


@pytest.mark.parametrize(
    ("guess", "truth", "right"),
    [
        (8192, 8192, True),
        (0.9, 1.0, False),
        ([1, 2, 4, 8], (1, 2, 4, 8), True),
    ],
)
def test_a_guess_stands_beside_the_truth(
    progress_file: Path, guess: object, truth: object, right: bool
) -> None:
    verdict = asked(Item("how many?", truth), guess).verdict
    assert verdict.right is right
    begins = {True: "That is it", False: "Not quite: you said"}
    assert verdict.says.startswith(begins[right])
    assert json.loads(progress_file.read_text())["predictions"]["how many?"]["right"] is right


def test_a_guess_is_shown_as_it_was_typed_and_escaped(progress_file: Path) -> None:
    typed = "<script>alert(1)</script>" + "x" * 999
    data, _ = asked(Item("<b>?", "tp"), typed)._repr_mimebundle_()
    assert "<script" not in data["text/html"]
    assert "<b>?" not in data["text/html"]
    assert "&lt;script&gt;alert(1)" in data["text/html"]
    assert len(data["text/html"]) < 600


def test_a_picture_is_live_after_a_guess_and_stored_as_a_picture_before(progress_file: Path) -> None:
    view = lp.view(lp.ranks(LAYOUT, 0))
    assert asked(Item("ranks", 4, shows=view), 4).payload["figure"] == for_browser(view.spec)
    folded = asked(Item("ranks again", 4, shows=view))
    data, metadata = folded._repr_mimebundle_()
    output = new_output("display_data", data, metadata=metadata)
    assert set(data) == {"text/plain", "text/html", saving["WIDGET"]}
    assert bake["shown_in"](output) == ("figure", view.spec)
    same = f"<summary>The same in words</summary><pre>{view.summary}</pre></details></details>"
    assert same in data["text/html"]

    stored = bake["clean"](new_output("display_data", dict(data)), "")
    assert set(stored.data) == {"text/plain", "text/html"}
    stored.data["text/html"] = bake["TO_DRAW"].sub(bake["image"](PNG), data["text/html"])
    assert f'src="data:image/png;base64,{PNG}"' in stored.data["text/html"]
    assert saving["says_the_same"](output, stored)
    assert "metadata" in saving["as_saved"](output)
    assert saving["as_saved"](output)["metadata"] == {}
    # nbval compares what the picture was drawn from, and nothing of the picture
    (pattern, put), *_ = re.findall(
        "^regex: (.*)$\n^replace: (.*)$", (PROJECT / "tests/data/nbval.cfg").read_text(), re.MULTILINE
    )
    assert re.sub(pattern, put, stored.data["text/html"]) == data["text/html"]
    other = asked(Item("ranks again", 4, shows=lp.view(lp.ranks(LAYOUT, 1))))._repr_mimebundle_()[0]
    assert saving["TO_DRAW"].search(other["text/html"])[1] != saving["TO_DRAW"].search(data["text/html"])[1]


def test_exercises_are_kept_and_the_best_try_stands(
    progress_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exercises.check("DP of the short row", None)
    with pytest.raises(lp.LlamaparError, match="is not a whole number"):
        exercises.check("DP of the short row", "__import__('os').getcwd()")
    assert not progress_file.exists()
    for answer in (3, 64, 5):
        exercises.check("DP of the short row", answer)
    assert capsys.readouterr().out.splitlines()[-1].startswith("wrong: ")
    assert json.loads(progress_file.read_text()) == {
        "form": progress.FORM,
        "exercises": {"DP of the short row": {"right": True}},
    }


def test_the_page_adds_up(
    progress_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "FOLDER", PROJECT / "notebooks")  # where a notebook's kernel starts
    assert progress.progress() is None
    assert capsys.readouterr().out == progress.NOTHING + "\n"
    exercises.check("DP of the short row", 64)
    exercises.check("half the GPUs", [3, 3])
    rows = {row[0]: row[2] for row in progress.progress().rows}
    total = sum(kind == "exercises" for asked in progress.questions_asked().values() for kind, _ in asked)
    assert rows["00_start_here"] == "2 of 2, 1 right"
    assert rows["together"] == f"2 of {total}, 1 right"
    assert total == len(exercises.EXERCISES), "every exercise is asked somewhere, and once"
    asked = [question for questions in progress.questions_asked().values() for question in questions]
    assert len(asked) == len(set(asked)), "a guess is kept by its question"
    assert sum(kind == "predictions" for kind, _ in asked) > 30


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "it cannot be read: Expecting property name enclosed in double quotes"),
        ("[" * 100_000, "it cannot be read: "),
        ("\udcff", "it cannot be read: "),
        ('{"form": "another\'s"}', "it does not begin as this course writes it"),
        (f'{FORM}, "exercises": []}}', "its exercises are not as this course writes them"),
        (f'{FORM}, "predictions": {{"a": {{"right": 7}}}}}}', "its predictions are not"),
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


def test_a_folder_that_cannot_be_written_is_said_and_a_test_run_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert progress.file() is None  # conftest.py sees to it, for the notebooks' kernels too
    assert progress.keep("exercises", "DP of the short row", True) == {"right": True}
    ignored = (PROJECT / ".gitignore").read_text().splitlines()
    assert f"notebooks/{progress.FILE.name}" in ignored
    monkeypatch.setenv("LLAMAPAR_PROGRESS", "")
    monkeypatch.setattr(progress, "FOLDER", tmp_path)
    assert progress.file() is None  # where no notebook lies
    (tmp_path / "own.ipynb").touch()
    assert progress.file() == progress.FILE
    monkeypatch.setenv("LLAMAPAR_PROGRESS", str(tmp_path / "gone" / "progress.json"))
    exercises.check("DP of the short row", 64)
    said = "progress.json could not be written (No such file or directory); this is not kept\nright\n"
    assert capsys.readouterr().out == said


KEEPER = """
import sys
from llamapar.course import progress
for n in range(20):
    progress.keep("questions", f"{sys.argv[1]} {n}", True)
"""


def test_notebooks_that_answer_at_once_lose_nothing(progress_file: Path) -> None:
    run = [sys.executable, "-c", KEEPER]
    environment = {**os.environ, "LLAMAPAR_PROGRESS": str(progress_file), "PYTHONPATH": str(PROJECT)}
    keepers = [subprocess.Popen([*run, str(k)], env=environment) for k in range(4)]
    assert [keeper.wait(timeout=60) for keeper in keepers] == [0] * 4
    assert len(progress.load_progress(progress_file)["questions"]) == 4 * 20
    assert list(progress_file.parent.iterdir()) == [progress_file]
