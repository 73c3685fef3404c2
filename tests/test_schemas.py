"""docs/schemas: what a command prints with --json is what its schema says, and nothing else.

Each kind of answer has an example here, which is broken in every way that a schema can notice. The questions
of tools/golden.py are asked too: a few of each command in `make test`, all of them in `make soak`.
"""

import contextlib
import itertools
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import llamapar as lp
from llamapar import interrupts
from llamapar.cli.commands import SCHEMA
from llamapar.describe.job import Job
from llamapar.describe.layout import AXES, Layout
from llamapar.programs.faults import FAULTS
from weights import save_hf, tiny, values

PROJECT = Path(__file__).resolve().parent.parent
FOLDER = PROJECT / "docs" / "schemas"
PAGE = (PROJECT / "docs" / "programs.md").read_text(encoding="utf-8")
TOOL = runpy.run_path(str(PROJECT / "tools" / "schemas.py"), run_name="schemas")
GOLDEN = runpy.run_path(str(PROJECT / "tools" / "golden.py"), run_name="golden")
ANSWERS = TOOL["ANSWERS"]
FEW = {"explain": 8, "run": 3, "plan": 1, "lesson": 0}
"""Questions of a command that `make test` asks; 12 of any other."""

TITAN = """
[model]
name = "llama3"
flavor = "8B"
[parallelism]
tensor_parallel_degree = 8
[training]
seq_len = 8192
"""
SIZES = {field.name: getattr(lp.model("tiny"), field.name) for field in fields(lp.ModelConfig)}
MIXTURE = json.dumps(SIZES | {"experts": {"count": 8, "active": 2, "width": 32}})
OPEN = TITAN.replace("tensor_parallel_degree = 8", "")

EXAMPLES = {
    "model ModelAnswer": "model tiny --inventory --tp 2",
    "check CheckAnswer": "check --config train.toml --gpus 64 -- --parallelism.tensor_parallel_degree 16",
    "check NotJudged": "check --config open.toml",
    "check Settings": "check --config train.toml --settings",
    "ranks RankGrid": "ranks --tp 2 --dp 2 --rank 3",
    "run Result": "run step tiny --tp 2 --seq-len 16 --steps 1 --device cpu --tape --trace",
    "run Result.dry": "run llama tiny --engine dry --tp 2 --pp 2 --dp 2 --rank 3 --tape --trace",
    "run RefusedRun": "run mlp tiny --tp 3",
    "run LostRun": "run llama tiny --pp 2 --micro-batches 4 --fault send_receive_crossed --device cpu",
    "memory Memory": "memory tiny --seq-len 512",
    "memory MemoryOfMixture": f"memory --model {shlex.quote(MIXTURE)} --seq-len 512",
    "cost CostAnswer": "cost --config train.toml --gpus 8",
    "cost NotJudged": "cost --config open.toml",
    "plan PlanAnswer": "plan --config train.toml --gpus 8 --global-batch 8 --top 2",
    "plan NotJudged": "plan --config open.toml",
    "loading Loading": "loading llama3.1-405b",
    "schedule Timeline": "schedule zbv --pp 2 --micro-batches 4",
    "explain Explanation": "explain dumps",
    "course CourseCopy": "course mine --copy",
    "lesson LessonAnswer": "lesson 01 --minutes 4",
    "checkpoint-inspect Inspection": "checkpoint inspect cut",
    "checkpoint-shard MadeCheckpoint": "checkpoint shard old sharded --tp 2",
    "checkpoint-gather MadeCheckpoint": "checkpoint gather old gathered",
    "checkpoint-reshard MadeCheckpoint": "checkpoint reshard old resharded --tp 2",
    "checkpoint-verify Verification": "checkpoint verify old --against other",
}
"""Command and kind of answer → a line that gives it."""


@cache
def kinds(command):
    """Kind of answer → its schema."""
    schema = json.loads((FOLDER / f"{command}.json").read_text(encoding="utf-8"))
    return {
        kind["title"]: Draft202012Validator({"$defs": schema["$defs"], **kind}) for kind in schema["anyOf"]
    }


def kinds_of(command, answer):
    """The kinds of which an answer is one; if it is none, what is wrong with each."""
    found = [kind for kind, schema in kinds(command).items() if schema.is_valid(answer)]
    return found or [
        f"{kind}: {error.json_path}: {error.message[:300]}"
        for kind, schema in kinds(command).items()
        for error in schema.iter_errors(answer)
    ]


def command_of(words):
    """The file of a command line's schema; that of any where the words name no command."""
    name = f"{words[0]}-{words[1]}" if words[:1] == ["checkpoint"] else "".join(words[:1])
    return name if name in ANSWERS else "check"


def answered(line):
    """Exit status and answer of a command line."""
    words = shlex.split(line) if isinstance(line, str) else line
    end = words.index("--") if "--" in words else len(words)
    told = GOLDEN["answered"]([*words[:end], "--json", *words[end:]])
    return told["status"], json.loads(told["streams"][0])


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with what the lines name; docs/programs.md says what it is."""
    folder = tmp_path_factory.mktemp("programs")
    save_hf(folder / "old", tiny())
    save_hf(folder / "other", tiny(), values(tiny(), seed=1))
    shutil.copytree(folder / "old", folder / "cut")
    config = json.loads((folder / "cut/config.json").read_text())
    (folder / "cut/config.json").write_text(json.dumps(config | {"num_hidden_layers": 9}))
    for name, text in (("train.toml", TITAN), ("open.toml", OPEN)):
        (folder / name).write_text(text)
    (folder / "train.py").write_text("import sys\nif sys.argv[1:]:\n    raise ValueError(sys.argv[1])\n")
    row = next(row for row in GOLDEN["rows"]("flights.jsonl.gz") if row["form"] == "json")
    (folder / "dumps").mkdir()
    for rank, text in row["dumps"].items():
        (folder / "dumps" / f"rank_{rank}").write_text(text)
    return folder


@pytest.fixture(scope="module")
def examples(files, no_ranks_left):
    """Command and kind → an answer of it."""
    with contextlib.chdir(files):
        return {name: answered(line)[1] for name, line in EXAMPLES.items()}


# -- the files -------------------------------------------------------------------------------------


def test_the_files_are_as_the_code_has_them():
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    assert there == TOOL["written"](), "write them anew: python tools/schemas.py"


@pytest.mark.parametrize("command", ANSWERS)
def test_a_schema_is_one_and_describes_everything(command):
    schema = json.loads((FOLDER / f"{command}.json").read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    for record in (*schema["anyOf"], *(each for each in schema["$defs"].values() if "properties" in each)):
        assert record["additionalProperties"] is False
        assert len(record["description"]) > 10
        for name, about in record["properties"].items():
            assert len(about.get("description", "")) >= 8, f"{record['title']}.{name}"
    assert {kind["properties"]["schema"]["const"] for kind in schema["anyOf"]} == {SCHEMA}


def test_a_fix_may_change_any_fact_of_a_layout_or_job():
    facts = [field.name for record in (Layout, Job) for field in fields(record)]
    named = [name for name in TOOL["properties"]("Fix") if name.endswith("?")]
    # What a run saves is not part of a fix, and the layout is given by its fields.
    assert named == [f"{name}?" for name in facts if name not in (*AXES, "layout", "saves")]


# -- answers ---------------------------------------------------------------------------------------


def test_every_kind_of_answer_has_an_example():
    wanted = [f"{command} {kind}" for command, made in ANSWERS.items() for kind in made]
    assert [name for name in EXAMPLES if "." not in name] == wanted


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_of_its_kind_alone(examples, name):
    command, kind = name.partition(".")[0].split()
    assert kinds_of(command, examples[name]) == [kind]
    assert next(iter(examples[name])) == "schema"


@pytest.mark.parametrize("command", ANSWERS)
def test_an_error_is_one_of_every_command(command):
    status, answer = answered([*command.split("-"), "--no-such-option"])
    assert (status, kinds_of(command, answer)) == (2, ["ErrorAnswer"])


def test_what_may_be_missing_is_there_somewhere(examples):
    with_more = examples | {"explain Explanation again": lp.explain("nothing here is divided").as_dict()}
    for name in (name for name in EXAMPLES if "." not in name):
        command, kind = name.split()
        schema = kinds(command)[kind].schema
        given = {key for other, answer in with_more.items() if other.startswith(name) for key in answer}
        assert schema["properties"].keys() - given <= {"live"}, name  # of an exception: below


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_broken_answer_is_noticed(examples, name):
    """One without a property, or with a wrong one; that no record takes one more is asserted above."""
    command, kind = name.partition(".")[0].split()
    schema, answer = kinds(command)[kind], examples[name]
    for each in answer:
        rest = {other: value for other, value in answer.items() if other != each}
        assert schema.is_valid(rest) == (each not in schema.schema["required"]), f"without {each}"
        assert not schema.is_valid(answer | {each: [{"?": {}}]}), f"wrong {each}"
    assert not schema.is_valid(answer | {"schema": SCHEMA + 1})


def test_live_facts_are_as_the_schema_says():
    import torch

    try:
        torch.zeros(4, 6) @ torch.zeros(3, 2)
    except RuntimeError as error:
        told = {"schema": SCHEMA, **lp.explain(error).as_dict()}
    assert told["where"]
    assert kinds_of("explain", json.loads(json.dumps(told))) == ["Explanation"]


def more_lines():
    """Questions that golden.py does not ask: costs, dry runs, faults, errors of ranks, lessons, a folder."""
    sizes = ("--tp 8", "--tp 4 --cp 2 --pp 2 --dp 2 --zero 2", "--dp 64 --zero 3", "--tp 3")
    for program in ("attention", "mlp", "llama", "step"):
        yield ["run", program, "llama3.2-1b", *sizes[1].split(), "--engine", "dry", "--seq-len", "256"]
    for name, layout in itertools.product(sorted(lp.FRAMEWORKS), sizes):
        asked = ["llama3-8b", *layout.split(), "--seq-len", "8192", "--framework", name]
        yield ["memory", *asked]
        yield ["cost", *asked]
        yield ["check", *asked, "--gpu", "h100-80gb"]
    for program, fault in itertools.product(("attention", "mlp"), list(FAULTS)[:12]):
        yield ["run", program, "tiny", "--tp", "2", "--cp", "2", "--seq-len", "32", "--fault", fault]
    yield ["run", "attention", "llama3-8b", "--tp", "16", "--shrink", "--force", "--tape"]
    for path in sorted(Path().glob("*/*")):
        option = "--launch" if path.suffix == ".sh" else "--config"
        yield ["cost", option, str(path)]
        yield ["explain", "n_kv_heads (8) must be divisible by tp (16)", option, str(path)]
    yield ["check", "."]
    for lesson in ("01", "07", "paper-3.3"):
        yield ["lesson", lesson, "--minutes", "30"]


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """A folder with the files of golden.py's questions, and the questions by command."""
    folder, found = tmp_path_factory.mktemp("asked"), dict[str, list[list[str]]]()
    with contextlib.chdir(folder):
        for lines in (GOLDEN["command_lines"](), GOLDEN["plan_lines"](), GOLDEN["run_lines"](), more_lines()):
            for words in lines:
                if "--help" not in words:
                    found.setdefault(command_of(words), []).append(words)
    return folder, found


@pytest.mark.parametrize("command", ANSWERS)
def test_real_answers_are_as_their_schema_says(asked, sample, no_ranks_left, command):
    folder, lines = asked
    with contextlib.chdir(folder):
        for words in sample(lines.get(command, []), FEW.get(command, 12)):
            status, answer = answered(words)
            found = kinds_of(command, answer)
            assert len(found) == 1, (words, found)
            assert (status == 2) == (found == ["ErrorAnswer"]), words


# -- the page --------------------------------------------------------------------------------------


def table(head):
    """The rows of the page's table with these columns."""
    lines = PAGE.splitlines()
    at = lines.index(head) + 2
    rows = (line.strip("| ") for line in lines[at : lines.index("", at)])
    return [[cell.strip() for cell in re.split(r" ?(?<!\\)\| ?", row)] for row in rows]


def test_the_page_lists_the_schemas():
    rows = table("| command | schema | answers, and how to tell them apart |")
    listed = {link: re.findall(r"`([A-Z]\w+)`", told) for _, link, told in rows}
    assert listed == {f"[{name}.json](schemas/{name}.json)": kinds for name, kinds in ANSWERS.items()}
    assert [f"`{name.replace('-', ' ')}`" for name in ANSWERS] == [command for command, *_ in rows]
    assert f"together: `{SCHEMA}`" in PAGE


@pytest.mark.parametrize("row", table("| command | schema | answers, and how to tell them apart |"))
def test_the_page_tells_the_answers_apart(examples, row):
    command = row[0].strip("`").replace(" ", "-")
    for told in row[2].split("; "):
        kind, *marks = [word for word in re.findall(r"`([^`]*)`", told) if not word.startswith("-")]
        for mark in marks:
            has = {
                name.split()[1]: mark in answer
                for name, answer in examples.items()
                if name.split()[0] == command
            }
            without = "no `" + mark in told
            assert has[kind] != without, (kind, mark)
            if len(marks) == 1:
                assert [other for other, there in has.items() if there] == [kind]


def test_the_page_shows_an_error_as_it_is():
    (shown,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert json.loads(shown) == answered("check tiny --tp 0")[1]


STATUSES = table("| command | `0` | `1` | `2` |")


def test_the_page_has_the_statuses_of_every_command():
    assert [row[0].strip("`") for row in STATUSES] == [
        *(name.replace("-", " ") for name in ANSWERS),
        "debug",
        "explorer",
    ]
    for name, about in TOOL["commands"]().items():
        (cells,) = (row[1:] for row in STATUSES if row[0].strip("`") == name.replace("-", " "))
        assert [bool(cell) for cell in cells] == [True, re.search(r"\b1 ", about.exits) is not None, True]


@pytest.mark.parametrize("row", STATUSES, ids=lambda row: row[0].strip("`"))
def test_a_command_ends_as_the_page_says(files, no_ranks_left, row):
    for status, cell in enumerate(row[1:]):
        for line in re.findall(r"`([^`]+)`", cell):
            if line.startswith("debug"):
                words = [sys.executable, "-m", "llamapar", *shlex.split(line)]
                found = subprocess.run(words, cwd=files, capture_output=True, check=False).returncode
            else:
                with contextlib.chdir(files):
                    found = GOLDEN["answered"](shlex.split(line))["status"]
            assert found == status, line


def test_the_page_says_how_an_interrupt_ends():
    assert f"`{interrupts.STATUS}` after Ctrl-C" in PAGE
