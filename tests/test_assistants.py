"""docs/assistants.md: ten questions, whose commands are run, and whose fields are in the answers."""

import contextlib
import json
import re
import runpy
import shlex
from pathlib import Path

import pytest

from weights import save_hf, tiny

PROJECT = Path(__file__).resolve().parent.parent
PAGE = (PROJECT / "docs" / "assistants.md").read_text(encoding="utf-8")
GOLDEN = runpy.run_path(str(PROJECT / "tools" / "golden.py"), run_name="golden")
HEAD, *PAIRS = re.split(r"^## (?=\d)", PAGE, flags=re.MULTILINE)

COMMAND = re.compile(r"^llamapar (.+) --json$", re.MULTILINE)
PATH = re.compile(r"`(\.[a-z][^`]*)`")
"""A path of jq: .layouts[0].tp, .settings.sources["layout.tp"]"""
STEP = re.compile(r"""\.(\w+)|\[(\d+)\]|\["([^"]+)"\]""")


def at(answer, path):
    """The value at a path. KeyError or IndexError where there is none."""
    assert STEP.sub("", path) == ""
    for name, index, key in STEP.findall(path):
        answer = answer[int(index)] if index else answer[name or key]
    return answer


def fields(pair):
    """The paths of a pair's table."""
    rows = [line.split(" | ")[0] for line in pair.splitlines() if line.startswith("| `")]
    return [path for row in rows for path in PATH.findall(row)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files that the questions are about."""
    made = tmp_path_factory.mktemp("assistants")
    save_hf(made / "my-checkpoint", tiny())
    (config,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (made / "train.toml").write_text(config)
    (made / "dumps").mkdir()
    named = (row for row in GOLDEN["rows"]("flights.jsonl.gz") if row["name"] == "late-5")
    for rank, text in next(named)["dumps"].items():
        (made / "dumps" / f"rank_{rank}").write_text(text)
    return made


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.partition(".")[0])
def test_the_answer_has_the_fields_that_the_page_names(folder, no_ranks_left, pair):
    (line,) = COMMAND.findall(pair)
    assert len(re.findall(r"^Do not ", pair, re.MULTILINE)) == 1
    with contextlib.chdir(folder):
        told = GOLDEN["answered"]([*shlex.split(line), "--json"])
    answer = json.loads(told["streams"][0])
    assert told["status"] in (0, 1)
    assert "error" not in answer
    named = fields(pair)
    assert len(named) >= 4
    for path in named:
        at(answer, path)


def test_there_are_ten_questions_in_order():
    assert [pair.partition(".")[0] for pair in PAIRS] == [str(number) for number in range(1, 11)]
    assert all(re.match(r"\d+\. .*\?", pair) for pair in PAIRS)


def test_the_answers_differ_as_the_page_says(folder):
    """What it says of single answers: an approval that is none, and a rank that is named."""
    with contextlib.chdir(folder):
        lines = [COMMAND.findall(pair)[0] for pair in PAIRS]
        said = {
            number: json.loads(GOLDEN["answered"]([*shlex.split(lines[number - 1]), "--json"])["streams"][0])
            for number in (2, 3, 4, 7, 9)
        }
    assert (said[2]["ok"], said[2]["findings"][0]["code"]) == (False, "LP104")
    assert (said[3]["verdict"], said[3]["diagnoses"][0]["level"]) == ("sharding", "likely")
    assert said[4]["settings"]["sources"]["layout.tp"].startswith("train.toml:5")
    assert (said[7]["hang"]["behind"], said[7]["diagnoses"][0]["level"]) == ([4], "likely")
    assert said[9]["ok"] is True
