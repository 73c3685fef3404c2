"""The course on the page: which code makes each panel, what PyTorch recorded, and a lesson on stand-ins."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from llamapar.course import exercises
from llamapar.course.boxes import Item
from llamapar.figures import View

PROJECT = Path(__file__).resolve().parent.parent
SITE = PROJECT / "site"


def module(name):
    spec = importlib.util.spec_from_file_location(f"lesson_{name}", SITE / "lessons" / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    sys.modules[f"lesson_{name}"] = found
    spec.loader.exec_module(found)
    return found


cells, kept = module("cells"), module("kept")


def code(*lines, panel=False):
    tags = ["nbval-ignore-output"] if panel else []
    outputs = [{"output_type": "execute_result"}] if panel else []
    return {"cell_type": "code", "source": "\n".join(lines), "metadata": {"tags": tags}, "outputs": outputs}


def keys_and_code(*notebook):
    return [(one.key, one.code) for one in cells.shown_in({"cells": list(notebook)})]


def test_a_panel_s_code_is_what_it_needs_and_no_more():
    first = code(
        "import llamapar as lp",
        "from exercises import check, predict",
        "a = lp.Layout(tp=2)",
        "b = open('x')",
    )
    second = code("c = a.replace(cp=2)", "print(c)", "lp.check('tiny', c)", "lp.ranks(c).live()", panel=True)
    assert keys_and_code(first, {"cell_type": "markdown"}, second) == [
        ("2-0", "import llamapar as lp\na = lp.Layout(tp=2)\nc = a.replace(cp=2)\nlp.ranks(c).live()")
    ]


def test_a_panel_is_as_its_own_cell_sets_it_and_as_it_was_bound_last():
    first = code("import llamapar as lp", "panel = lp.explorer()")
    second = code("panel.set(tp=3)", "print(panel)")
    third = code("panel = lp.watch('mlp')", "panel.set(phase='backward')", "panel", panel=True)
    assert [one for _, one in keys_and_code(first, second, third)] == [
        "import llamapar as lp\npanel = lp.watch('mlp')\npanel.set(phase='backward')\npanel"
    ]


def test_what_is_added_to_is_needed_and_a_function_s_own_names_are_not():
    first = code("n = 1", "x = 2", "n += 1", "def f(x):", "    y = x + n", "    return y")
    second = code("y = 5", "f(3)", panel=True)
    assert keys_and_code(first, second) == [
        ("1-0", "n = 1\nn += 1\ndef f(x):\n    y = x + n\n    return y\nf(3)")
    ]


def test_a_puzzle_s_code_has_the_answer_that_is_folded_after_it_and_those_before():
    def folded(*lines):
        return {"cell_type": "markdown", "source": "\n".join(("```python solution", *lines, "```", ""))}

    one = (code("def f(t): ..."), code("puzzle('a', f)"), folded("import torch", "def f(t):", "    return t"))
    two = (code("def g(t): ..."), code("puzzle('b', g)"), folded("def g(t):", "    return torch.ones(t)"))
    assert list(cells.puzzles_in({"cells": [*one, *two]})) == [
        (1, "def f(t):\n    return t\npuzzle('a', f)"),
        (4, "import torch\ndef g(t):\n    return torch.ones(t)\npuzzle('b', g)"),
    ]


def test_every_question_of_a_cell_has_its_own_code():
    asked = code(
        "%load_ext llamapar", "from exercises import check, predict", "predict('a')", "check('b')", "print(1)"
    )
    assert keys_and_code(asked) == [
        ("0-0", "from exercises import check, predict\npredict('a')"),
        ("0-1", "from exercises import check, predict\ncheck('b')"),
    ]
    assert not cells.only_asks(asked)
    assert cells.only_asks(code("from exercises import predict", "predict('a')"))
    assert not cells.only_asks(code("import llamapar as lp"))


def test_a_question_is_kept_and_comes_back_with_its_pictures(tmp_path):
    view = View({"data": [{"type": "bar", "x": [1]}], "layout": {}}, "a bar")
    wrong = View({"data": [], "layout": {"title": "wrong"}}, "not this")
    item = Item(
        "Which?",
        "b",
        choices=(("a", "A", "no"), ("b", "B", "yes")),
        hints=("look",),
        slips=(("a", "why not"),),
        shows=view,
        veiled=wrong,
    )
    items = {"x": kept.keep(item)}
    (tmp_path / "kept.json").write_text(json.dumps(items))
    back = kept.kept_items(tmp_path / "kept.json")
    for guess in ("a", "b"):
        own, other = item.told(guess), back["x"].told(guess)
        assert (own.right, own.says, own.truth) == (other.right, other.says, other.truth)
        assert own.view == other.view
        assert own.view
    assert back["x"].veiled == wrong
    assert kept.kept_items(tmp_path / "none.json") == {}
    with pytest.raises(ValueError, match="Which\\?: it is judged by a function"):
        kept.keep(Item("Which?", 3, judge=lambda guess: ""))


# -- a lesson, driven ----------------------------------------------------------------------------

DRIVE = """
import json, sys
import page_python
heard = []
receive = page_python.begin("00_start_here", lambda text: heard.append(json.loads(text)))
for message in json.loads(sys.argv[1]):
    receive(json.dumps(message))
print(json.dumps(heard))
"""


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """What a lesson's Python needs, without recordings, and with a panel that no page can make."""
    found = tmp_path_factory.mktemp("archive")
    sys.path.insert(0, str(SITE))
    making = importlib.import_module("lessons.making")
    making.write_archive(found, sorted((PROJECT / "notebooks").glob("*.ipynb")))
    codes = json.loads((found / "lessons.json").read_text())
    codes["00_start_here"]["bad"] = "import llamapar as lp\nlp.run('mlp', 'tiny', {'tp': 2})"
    (found / "lessons.json").write_text(json.dumps(codes))
    (found / "films").mkdir()
    (found / "films" / "index.json").write_text("[]")
    return found


def driven(archive, *messages):
    """All that the page hears."""
    scripts = importlib.import_module("scripts")
    own = {"LLAMAPAR_FILMS": archive / "films", "LLAMAPAR_PROGRESS": archive / "progress.json"}
    env = scripts.environment((archive, *scripts.OF_WATCH), **own)
    command = [sys.executable, "-P", "-c", DRIVE, json.dumps(messages)]
    made = subprocess.run(command, env=env, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    (archive / "progress.json").unlink(missing_ok=True)
    return json.loads(made.stdout)


def place(question):
    """The key of a question of notebook 00."""
    source = json.loads((PROJECT / "notebooks" / "00_start_here.ipynb").read_text())
    return next(one.key for one in cells.shown_in(source) if question in one.code)


def test_a_lesson_keeps_what_is_guessed_and_goes_on_after_a_refusal(archive):
    question = "At TP 16, how many of the 1,024 rows of wk does a rank get?"
    key = place(question)
    guess = {"to": key, "content": {"kind": "guess", "value": "128", "id": "g", "seq": 0}}
    heard = driven(archive, {"progress": ""}, {"open": key}, guess)
    assert heard[0]["to"] == key
    assert heard[0]["state"]["payload"]["question"] == question
    assert heard[0]["state"]["payload"]["verdict"] is None
    shown = [message["state"]["payload"] for message in heard[1:] if "payload" in message.get("state", {})]
    truth = exercises.PREDICTIONS[question]().told(128)
    assert shown[-1]["verdict"]["says"] == truth.says
    (progress,) = [message["progress"] for message in heard if "progress" in message]
    assert json.loads(progress)["predictions"][question] == {"right": False, "guess": "128"}
    opened = [{"open": "bad"}, {"progress": "no JSON at all"}, {"progress": progress}, {"open": key}]
    refused, *again = driven(archive, *opened)
    assert "this runs on PyTorch, which a page has not" in refused["failed"]
    assert again[0]["state"]["payload"]["verdict"]["guess"] == "128 rows"
    assert [message for message in again if "progress" in message] == []


def test_every_lesson_has_panels_and_each_cell_s_code_is_python():
    for path in sorted((PROJECT / "notebooks").glob("*.ipynb")):
        found = list(cells.shown_in(json.loads(path.read_text())))
        assert found, path.stem
        assert len({one.key for one in found}) == len(found)
        for one in found:
            compile(one.code, one.key, "exec")
