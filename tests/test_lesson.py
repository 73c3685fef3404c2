"""The kit for a reading group: scripts, slides, notes for the teacher, and the map of ideas."""

import base64
import json
import re
import runpy
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest

import llamapar as lp
from llamapar.cli.serving import shipped_folder
from llamapar.course.exercises import EXERCISES, PREDICTIONS
from llamapar.course.lessons import LESSONS, NOTES, lesson
from llamapar.course.notebook_cells import (
    SECONDS_TO_RUN,
    minutes_to_read,
    read_cells,
    sections,
)
from llamapar.course.questions import QUESTIONS

PROJECT = Path(__file__).resolve().parent.parent
PATHS = sorted((PROJECT / "notebooks").glob("*.ipynb"))
NAMES = ["paper-3.3", *(path.stem for path in PATHS)]


@cache
def whole(name):
    """A lesson as long as it takes to read, so with every section that asks."""
    return lesson(name)


def asked(name):
    """The questions of a notebook, by name."""
    return {
        question for cell in read_cells(PROJECT / "notebooks" / f"{name}.ipynb") for _, question in cell.asks
    }


# -- the notebooks as data -------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_sections_of_a_notebook_are_the_whole_of_it(path):
    cells = read_cells(path)
    found = sections(cells)
    assert all(any(cell.is_code for cell in own) for _, own in found)
    assert sum(minutes_to_read(own) for _, own in found) == pytest.approx(minutes_to_read(cells))
    assert [cell.number for _, own in found for cell in own if cell.is_code] == list(
        range(1, 1 + sum(cell.is_code for cell in cells))
    )


def stored(tmp_path, *cells, name="own.ipynb"):
    """A notebook of one's own; a cell needs a source, and outputs if it has some."""
    kinds = [
        {"cell_type": "code" if "code" in cell else "markdown", "metadata": {}, "execution_count": 1} | cell
        for cell in cells
    ]
    sources = [{**cell, "source": cell.get("code", cell.get("text"))} for cell in kinds]
    (tmp_path / name).write_text(json.dumps({"cells": sources}), encoding="utf-8")
    return tmp_path / name


def test_what_takes_time(tmp_path):
    png = {"data": {"image/png": "iVBORw0KGgo=", "text/plain": "one\ntwo"}}
    cells = read_cells(
        stored(
            tmp_path,
            {"text": "# One two\n[three](of/no/account)<details>" + "folded " * 99 + "</details>"},
            {"code": ["x = 1\n", "x"], "outputs": [{"text": ["a\n", "b\n"]}, png]},
            {"code": 'predict("how many?")'},
            {"code": 'lp.watch("mlp")\nlp.check("tiny")'},
            {"code": 'check("a")\ncheck("b")'},
        )
    )
    seconds = 4 * 0.3 + 7 * 3 + 2 * 1 + 20 + 15 + 20 + 90
    assert minutes_to_read(cells) == pytest.approx(seconds / 60)
    assert [cell.calls for cell in cells[2:]] == [
        (("predict", "how many?"),),
        (),
        (("check", "a"), ("check", "b")),
    ]


def test_the_notebooks_are_in_the_package_or_beside_it(tmp_path):
    assert shipped_folder() == PROJECT
    inside, beside = tmp_path / "pack" / "shipped", tmp_path
    for folder in (beside, inside):
        (folder / "notebooks").mkdir(parents=True)
        (folder / "notebooks" / "00_start_here.ipynb").touch()
        assert shipped_folder(tmp_path / "pack") == folder
    with pytest.raises(lp.LlamaparError, match=r"^the notebooks of the course are not here\n") as missing:
        shipped_folder(tmp_path / "elsewhere" / "pack")
    assert missing.value.why == "they come with the package, or with a checkout beside it"
    assert missing.value.choose[-1] == "a path, such as notebooks/03_attention_heads.ipynb"


# -- scripts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_script_has_all_that_its_sections_ask(name):
    made, script = whole(name), whole(name).text()
    assert sum(stop.minutes for stop in made.stops) + made.slack == made.minutes
    assert min(stop.minutes for stop in made.stops) >= 1
    about = made.as_dict()
    for other, taken in (made.needs | made.leads_to).items():
        assert f"- `{other}`: {taken}" in script
    for stop in (stop for stop in about["stops"] if not stop["notebook"]):
        assert f" {stop['part']} ({stop['minutes']} min)\n\n{made.parts[stop['part']]}\n" in script
        assert all(f"\n- {line}\n" in script for line in stop["slide"])
    for stop in (stop for stop in about["stops"] if stop["notebook"]):
        assert f"Takeaway: {stop['takeaway']}" in script or not stop["takeaway"]
        for step in (step for step in stop["steps"] if "shows" in step):
            assert f"{'Show' if step['picture'] else 'Run'} cell [{step['cell']}]: `" in script
        told = [step for step in stop["steps"] if "ask" in step]
        assert len(told) == len(stop["asks"])
        assert stop["writes"] == []
        assert re.search(
            rf"^###? \d:\d\d {re.escape(stop['title'])} \({stop['minutes']} min\)$", script, re.M
        )
        for step in told:
            assert f"**Ask** (cell [{step['cell']}]): {step['ask']}\n" in script
            assert f"**It is {step['truth']}.** {step['why']}".rstrip() in script
            assert f"> For you: {step['note']}" in script
            for wrong in step["wrong"]:
                assert f"- “{wrong['guess']}” → {wrong['reply']}" in script
            for hint in step["hints"]:
                assert hint in script
    for stop in about["homework"]:
        assert stop["writes"], "a lesson of its own length leaves only puzzles for home"
    if name != "paper-3.3":
        everywhere = about["stops"] + about["homework"]
        assert {question for stop in everywhere for question in stop["asks"]} == asked(name)
        puzzles = re.findall(r'puzzle\(\\"([^"\\]+)', (PROJECT / "notebooks" / f"{name}.ipynb").read_text())
        assert [puzzle for stop in about["homework"] for puzzle in stop["writes"]] == puzzles
        for puzzle in puzzles:
            assert f" · {puzzle}" in script
    assert "png" not in json.dumps(about)


@pytest.mark.parametrize("minutes", [5, 9, 12, 24, 60])
def test_what_does_not_fit_is_homework(minutes):
    made = lesson("03", minutes)
    assert made.minutes == minutes == sum(stop.minutes for stop in made.stops)
    titles = [stop.title for stop in (*made.stops, *made.homework)]
    assert titles == [
        title for title, _ in sections(read_cells(PROJECT / "notebooks/03_attention_heads.ipynb"))
    ]
    assert (len(made.homework) == 1) == (minutes >= 24), "only what is to be written"
    script = made.text()
    for stop in made.homework:
        assert (
            f"- `03_attention_heads`, {stop.title} ({stop.minutes} min)" in script.partition("## Homework")[2]
        )


def test_a_section_has_one_minute_and_its_share_of_the_rest():
    made = lesson("01", 60)
    taken = [minutes_to_read(stop.cells) for stop in made.stops]
    taken[0] += SECONDS_TO_RUN / 60
    for stop, own in zip(made.stops, taken, strict=True):
        assert abs(stop.minutes - 1 - (60 - len(taken)) * own / sum(taken)) <= 1


def test_an_hour_of_the_paper_is_three_notebooks_and_six_questions_and_more_time_brings_more():
    hour = lesson("paper-3.3", 60)
    assert {stop.notebook for stop in hour.stops} - {""} == {
        "00_start_here",
        "06_context_parallel",
        "07_pipeline",
    }
    assert sum(len(stop.as_dict()["asks"]) for stop in hour.stops) == 6
    assert (hour.slack, sum(stop.minutes for stop in hour.stops)) == (10, 50)
    assert [hour.stops[0].title, hour.stops[-1].title] == ["Opening", "End"]
    assert len([stop for stop in hour.stops if stop.slide]) == 2
    assert hour.text().count("## 0:0") >= 2
    longer = lesson("paper-3.3", 150)
    assert (longer.slack, longer.homework) == (25, ())
    assert len({stop.notebook for stop in longer.stops} - {""}) > 3
    titles = [stop.title for stop in longer.stops]
    assert [title for title in titles if title in {stop.title for stop in hour.stops}] == [
        stop.title for stop in hour.stops
    ], "the same walk, with more in between"
    parts = LESSONS["paper-3.3"]["parts"]
    assert list(dict.fromkeys(stop.part for stop in longer.stops)) == [part["heading"] for part in parts]
    script = longer.text()
    for part in parts:
        if "sections" in part:
            assert f"## {part['heading']}\n\n{part['says']}\n\n### " in script
    assert "In `07_pipeline`.\n" in script


def test_what_the_slides_of_the_paper_say_adds_up():
    """Table 5 of the paper counts its rows to 419, and two of its numbers do not go together."""
    says = " ".join(part["says"] + " ".join(part.get("slide", ())) for part in LESSONS["paper-3.3"]["parts"])
    for words in (
        "466 interruptions, 47 of them planned, 419 not",
        "192 racks, 3,072 GPUs",
        "35.3 %",
        "40.4 %",
    ):
        assert words in says
    assert 466 - 47 == 419 == 148 + 72 + 54 + 35 + 32 + 19 + 17 + 7 + 7 + 6 + 6 + 3 + 3 + 5 * 2
    assert (192 * 16, 8 * 192 * 16, round(100 * 148 / 419, 1), round(100 * 400 / 989, 1)) == (
        3072,
        24576,
        35.3,
        40.4,
    )
    assert round(30.1 + 17.2 + 4.5 + 4.1 + 1.4 + 1.4, 1) == 58.7


# -- names and errors ------------------------------------------------------------------------------


def test_a_notebook_has_several_names_and_may_lie_elsewhere(monkeypatch):
    monkeypatch.chdir(PROJECT)
    names = ("01_four_axes", "01", "four_axes", "notebooks/01_four_axes.ipynb")
    assert {lesson(name, 4).name for name in names} == {"01_four_axes"}
    assert lesson("notebooks/paper-3.3", 60).text() == lesson("paper-3.3", 60).text()


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        *(("paper-3.2", "paper-3.3"), ("03_atention", "03_attention_heads"), ("piplines", "07_pipeline")),
        *((name, "paper-3.3") for name in ("", "/", "no/such/folder/03", "a" * 5000 + "/03", "notebooks/")),
    ],
)
def test_another_name_is_refused_with_the_nearest(name, nearest):
    with pytest.raises(lp.LlamaparError, match=r"^lesson='.*' is not known\n") as refused:
        lesson(name)
    assert refused.value.choose[0] == nearest
    assert "/" in name or not name or refused.value.why == f"known are {', '.join(NAMES)}"


@pytest.mark.parametrize("minutes", [3, 0, -1, True, "60", 7.5, float("nan"), "x" * 999])
def test_minutes_that_cannot_work_say_the_smallest(minutes):
    with pytest.raises(
        lp.LlamaparError, match=r"^minutes=.*: minutes must be a whole number, at least 4\n"
    ) as bad:
        lesson("01", minutes)
    assert bad.value.why == "01_four_axes comes to its first question in 4 minutes"
    assert bad.value.choose == ("minutes=4",)
    assert len(str(bad.value)) < 300
    assert len(lesson("01", 4).stops) == 2


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cells": [1]}', '{"cells": [{"cell_type": "code"}]}'])
def test_what_is_no_notebook_is_refused(tmp_path, text):
    (tmp_path / "own.ipynb").write_text(text)
    with pytest.raises(lp.LlamaparError, match=r"own\.ipynb cannot be read as a notebook\n  why"):
        lesson(f"{tmp_path}/own")


def test_an_empty_notebook_is_an_empty_lesson_and_an_unknown_question_is_refused(tmp_path):
    assert lesson(str(stored(tmp_path))).stops == ()
    write = ({"text": "# Write it"}, {"code": 'puzzle("all-reduce from sends", f)'})
    assert [stop.title for stop in lesson(str(stored(tmp_path, *write))).homework] == ["Write it"]
    path = stored(tmp_path, {"text": "# Own"}, {"code": 'predict("The four peers of rank 14, as a list?")'})
    with pytest.raises(lp.LlamaparError, match=r"is not known") as refused:
        lesson(str(path))
    assert refused.value.choose[0] == "The four peers of rank 13, as a list?"


# -- slides ----------------------------------------------------------------------------------------

VOID = {"meta", "img"}


class Page(HTMLParser):
    """The tags of a page that is well formed: whatever opens is closed in order."""

    def __init__(self, html):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style",):
            self.words.append(data)


@pytest.mark.parametrize("name", ["paper-3.3", "00_start_here", "03_attention_heads", "13_twenty_questions"])
def test_slides_hold_the_pictures_and_the_questions_and_need_no_network(name):
    made, html = whole(name), whole(name).slides()
    page = Page(html)
    assert html.startswith("<!doctype html>\n")
    known = {"html", "head", "meta", "title", "style", "body", "main", "section"}
    known |= {"h1", "h2", "p", "img", "ul", "li", "pre"}
    assert {tag for tag, _ in page.tags} <= known, "no script, no link"
    assert not re.search(r"https?://|@import|url\(", re.sub(r'alt="[^"]*"', "", html))
    pictures = [attrs for tag, attrs in page.tags if tag == "img"]
    steps = [step for stop in made.stops for step in stop.steps]
    for line in (line for stop in made.stops for line in stop.slide):
        assert f"<li>{line}</li>" in html
    assert len(pictures) == sum(bool(step.png) for step in steps)
    for attrs in pictures:
        assert base64.b64decode(str(attrs["src"]).partition("base64,")[2], validate=True).startswith(
            b"\x89PNG"
        )
        assert str(attrs["alt"]).strip()
    said = "".join(page.words)
    for step in steps:
        if step.item:
            about = step.as_dict()
            assert said.count(about["ask"]) >= 2, "with its picture, and above its answer"
            assert about["truth"] in said
            assert about["why"] in said
            assert not about["note"] or about["note"] not in said, "the note is for the teacher"
    assert html.count('class="truth"') == sum(step.item is not None for step in steps)
    for slide in html.split("<section>"):
        assert not ('class="ask"' in slide and 'class="truth"' in slide)


def test_whatever_a_notebook_says_is_escaped(tmp_path):
    evil = '"><script>alert(1)</script>$title'
    output = {"data": {"image/png": f"AA{evil}", "text/plain": evil}}
    path = stored(
        tmp_path,
        {"text": f"# {evil}"},
        {"code": "1", "outputs": [output]},
        {"text": f"## 1. {evil}"},
        {"code": 'predict("The four peers of rank 13, as a list?")', "outputs": [{"text": evil}]},
        {"text": f"## 2. {evil}"},
        {"code": "1", "outputs": [{"evalue": evil}]},
        name=f"a<b>{'&'}.ipynb",
    )
    html = lesson(str(path)).slides()
    assert "<script" not in html
    assert "alert(1)" in html
    assert "a<b>" not in html
    Page(html)


# -- the command -----------------------------------------------------------------------------------


def test_the_command_writes_script_and_slides_and_refuses_files_before_the_work(run, tmp_path, monkeypatch):
    script, slides = tmp_path / "script.md", tmp_path / "slides.html"
    words = ["lesson", "01", "--minutes", "4", "--out", str(script), "--slides", str(slides)]
    title = "Which GPUs talk to which? (4 min)"
    assert run(words) == (0, f"{script}: {title}\n{slides}: {title}\n", "")
    assert script.read_text("utf-8") == run("lesson 01 --minutes 4")[1]
    assert slides.read_text("utf-8").startswith("<!doctype html>")
    status, out, err = run(words)
    assert (status, out, err) == (2, "", f"llamapar: {script} cannot be written: File exists\n")
    monkeypatch.setattr("llamapar.course.lessons.lesson", lambda *_, **__: pytest.fail("worked for nothing"))
    (tmp_path / "link.md").symlink_to(tmp_path / "elsewhere.md")
    missing, there = "No such file or directory", "File exists"
    for name, problem in (("nowhere/script.md", missing), ("link.md", there), (".", there)):
        refused = f"llamapar: {tmp_path / name} cannot be written: {problem}\n"
        assert run(["lesson", "01", "--slides", str(tmp_path / name)]) == (2, "", refused)


def test_the_command_says_the_same_in_json_and_refuses_as_the_library_does(run, tmp_path):
    slides = tmp_path / "slides.html"
    status, out, err = run(f"lesson 01 --minutes 4 --json --slides {slides}")
    told = json.loads(out)
    assert (status, err) == (0, "")
    assert told["written"] == [f"{slides}: Which GPUs talk to which? (4 min)"]
    assert told["stops"][1]["steps"][1]["truth"] == "[12, 15, 9, 5]"
    assert told["leads_to"]["02_collectives"] == "ranks and groups"
    without = "llamapar: a lesson is needed\n  try  llamapar lesson 03, or llamapar lesson paper-3.3\n"
    assert run("lesson") == (2, "", without)
    too_few = (
        "minutes must be a whole number, at least 4\n  why  01_four_axes comes to its first question in 4 "
    )
    for minutes, said in (("1,000x", "'1,000x'"), ("2", "2")):
        refused = f"llamapar: minutes={said}: {too_few}minutes\n  try  --minutes 4\n"
        assert run(f"lesson 01 --minutes {minutes}") == (2, "", refused)


WITHOUT = """
import sys
sys.modules["{missing}"] = None  # as if it were not installed
from llamapar.cli.main import main
sys.exit(main(["lesson", "01", "--minutes", "4"]))
"""


@pytest.mark.parametrize("missing", ["torch", "anywidget"])
def test_without_what_computes_the_answers_it_says_how_to_get_it(missing):
    code = f"import sys; sys.path.insert(0, {str(PROJECT)!r})\n{WITHOUT.format(missing=missing)}"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    said = (
        f"llamapar: {missing} is not installed, and the answers of a lesson are computed with it "
        "try pip install 'llamapar[lab]'"
    )
    assert " ".join(done.stderr.split()).endswith(said), "a busy machine may speak before"


# -- notes and the map -----------------------------------------------------------------------------


def test_every_question_has_its_note_and_no_note_is_left_over():
    known = {*PREDICTIONS, *EXERCISES, *QUESTIONS}
    assert set(NOTES) <= known
    lessons = [path.stem for path in PATHS if path.stem[:2].isdigit() and int(path.stem[:2]) <= 10]
    assert len(lessons) == 11
    assert set().union(*map(asked, lessons)) <= set(NOTES)
    assert min(len(note) for note in NOTES.values()) > 60
    assert len(set(NOTES.values())) == len(NOTES)


def test_the_notebooks_know_what_they_need():
    rows = {name: row for name, row in LESSONS.items() if "parts" not in row}
    assert list(rows) == [path.stem for path in PATHS]
    order = [*rows]
    for name, row in rows.items():
        for other in row.get("needs", {}):
            assert order.index(other) < order.index(name), f"{name} needs {other}"


def test_the_course_and_the_first_notebook_list_every_notebook_with_its_minutes(tmp_path):
    tool = runpy.run_path(str(PROJECT / "tools" / "idea_map.py"), run_name="idea_map")
    page = (PROJECT / "docs" / "course.md").read_text(encoding="utf-8")
    assert page == tool["course_page"](), "python tools/idea_map.py writes it anew"
    assert PATHS[0].read_text(encoding="utf-8") == tool["first_notebook"](), "python tools/idea_map.py"
    new = tmp_path / "14_new.ipynb"
    puzzle = {"cell_type": "code", "source": ['puzzle("x", f)'], "outputs": []}
    new.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": "# Why?\n\nText"}, puzzle]}))
    table = "".join(re.findall(r"^\| \[.*\n", page, re.MULTILINE))
    more = tool["listed"](table, "../notebooks/", [*PATHS, new], minutes=True)
    assert more == f"{table}| [14_new](../notebooks/14_new.ipynb) | Why? | `1` | `11` |\n"


def test_the_map_is_what_the_rows_say():
    tool = runpy.run_path(str(PROJECT / "tools" / "idea_map.py"), run_name="idea_map")
    page = (PROJECT / "docs" / "map.md").read_text(encoding="utf-8")
    assert page == tool["page"](), "python tools/idea_map.py writes it anew"
    rows = {name: row for name, row in LESSONS.items() if "parts" not in row}
    arrows = re.findall(r"^  n(\w\w) --> n(\w\w)$", page, re.MULTILINE)
    assert sorted(arrows) == sorted(
        (other[:2], name[:2]) for name, row in rows.items() for other in row.get("needs", {})
    )
    for name, row in rows.items():
        assert re.search(rf'^  n{name[:2]}\W+"{name[:2]} {re.escape(row["idea"])}"\W+$', page, re.MULTILINE)
        assert f"| [{name}](../notebooks/{name}.ipynb) | {row['idea']} |" in page
        for other, taken in row.get("needs", {}).items():
            assert f"{taken} ({other[:2]})" in page
        assert not set('"|<>[]()') & set(row["idea"] + "".join(row.get("needs", {}).values()))
