"""One table of options: functions, flags and controls say the same names, types, defaults and choices."""

import ast
import inspect
import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import llamapar as lp
from llamapar.cli.commands import Command, CommandGroup
from llamapar.cli.main import Commands
from llamapar.count.in_flight import SCHEDULES
from llamapar.count.saved import RECOMPUTE
from llamapar.describe import options
from llamapar.describe.hardware import HARDWARE
from llamapar.describe.job import Job
from llamapar.describe.layout import AXES
from llamapar.describe.options import FACTS, LAYOUT, OPTIONS
from llamapar.execution.capacity import DEVICES
from llamapar.nodes.loading import BLOCKS
from llamapar.panels.controls import CLINIC, DEFAULTS, EXPLORER
from llamapar.place.sequence_map import CHUNKINGS
from llamapar.spmd.setting import DTYPES

PACKAGE = Path(lp.__file__).parent

FUNCTIONS = {name: value for name in lp.__all__ if inspect.isfunction(value := getattr(lp, name))} | {
    name: getattr(lp.checkpoint, name) for name in ("inspect", "shard", "gather", "reshard", "verify")
}

_OF_MODULES = {"loss", "inputs"}
"""Keywords of `lp.compare` that are of a module; the rows are those of `memory` and `run`."""


def called(call):
    """The name of what is called, without what stands before a dot."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def declared(source):
    """Each typed declaration of an option in a file: its name, and what declares it."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            # A method of a record has words of its own: an operation's `backward` is a time.
            decorators = [] if node.col_offset else node.decorator_list
            public = any("checked_options" in ast.unparse(each) for each in decorators)
            options = [*node.args.kwonlyargs] if public else []
            found += [(each.arg, "function") for each in options if each.arg in OPTIONS]
        elif isinstance(node, ast.ClassDef):
            fields = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
            names = [each.id for each in fields if isinstance(each, ast.Name) and each.id in OPTIONS]
            stores = any("dataclass" in ast.unparse(each) for each in [*node.decorator_list, *node.bases])
            stores |= any("NamedTuple" in ast.unparse(each) for each in node.bases)
            found += [(name, "value" if stores else "class") for name in names]
        elif isinstance(node, ast.Call) and called(node) == "TypedDict" and node.args[1:]:
            found += [
                (each.value, "dict") for each in ast.walk(node.args[1]) if isinstance(each, ast.Constant)
            ]
        elif isinstance(node, ast.Call) and called(node) == "add_argument":
            found += [(str(each.value), "flag") for each in node.args if isinstance(each, ast.Constant)]
        elif isinstance(node, ast.Call) and called(node) == "Option":
            found += [(str(each.value), "row") for each in node.args[:1] if isinstance(each, ast.Constant)]
    return found


def test_an_option_is_declared_once():
    """A row of the table is the one declaration of an option.

    A declaration says that a person may give a value by this name: a keyword of a public function, a key of
    a TypedDict, a flag, a row. Two things are none. A field of a frozen value (Layout, Job, Setting, …)
    stores what was given, and people construct some of them; a parameter of an internal function, or one
    that a public function takes by place because it is what the call is about, passes it on.
    """
    found = Counter[str]()
    others = []
    for path in PACKAGE.rglob("*.py"):
        for name, kind in declared(path.read_text()):
            found[name] += kind == "row"
            if kind not in ("row", "value"):
                others.append((path.relative_to(PACKAGE).as_posix(), name, kind))
    assert {name: n for name, n in found.items() if n != 1 and name in OPTIONS} == {}
    assert found.keys() >= OPTIONS.keys()
    of_package = [other for other in others if other[0] not in OWN_DECLARATIONS]
    assert [other for other in of_package if other[1] not in _OF_MODULES] == []


OWN_DECLARATIONS = {"cli/parsing.py"}
"""Files with flags of argparse's own, such as --version."""


def test_whoever_takes_an_option_is_there():
    taken = " ".join(option.takers for option in OPTIONS.values()).split()
    public = {*FUNCTIONS, "Layout", "Job", "compare"}
    assert {name.removesuffix("()") for name in taken if name.endswith("()")} <= public
    commands = {name.split()[-1] for name in LEAVES}
    assert {name.removeprefix("--") for name in taken if name.startswith("--")} <= commands
    assert {name for name in taken if name.isalpha()} <= public & commands
    assert [option.name for option in OPTIONS.values() if not option.takers] == ["json"]


OF_A_LAYOUT = [name for name in FUNCTIONS if "layout" in inspect.signature(FUNCTIONS[name]).parameters]


@pytest.mark.parametrize("name", OF_A_LAYOUT)
def test_a_function_of_a_layout_takes_its_degrees_by_name(name):
    of_interest = AXES if name == "explain" else LAYOUT  # what a text cannot show is no fact of explain
    assert {*options.options_of(name)} >= {*of_interest}


def test_degrees_by_name_say_the_same_as_a_layout():
    layout = lp.Layout(tp=4, cp=2, dp=2, zero=2)
    degrees = {"tp": 4, "cp": 2, "dp": 2, "zero": 2}
    assert lp.heads("llama3-8b", **degrees) == lp.heads("llama3-8b", layout)
    assert lp.sequence(seq_len=64, **degrees) == lp.sequence(layout, 64)
    assert lp.ranks(rank=3, **degrees).peers == lp.ranks(layout, 3).peers
    assert lp.check("llama3-8b", **degrees).text() == lp.check("llama3-8b", layout).text()
    assert lp.cost("llama3-8b", seq_len=8192, **degrees) == lp.cost("llama3-8b", layout, seq_len=8192)
    assert lp.tape("mlp", "tiny", **degrees).steps == lp.tape("mlp", "tiny", layout).steps


def test_a_degree_by_name_replaces_that_of_the_layout():
    assert lp.check("llama3-8b", lp.Layout(tp=4, dp=2), tp=16).job.layout == lp.Layout(tp=16, dp=2)
    assert lp.check("llama3-8b", {"tp": 4, "dp": 2}, dp=1).job.layout == lp.Layout(tp=4)
    with pytest.raises(lp.LayoutError, match=r"^layout field='tpp' is not known"):
        lp.check("llama3-8b", {"tpp": 4}, dp=1)
    with pytest.raises(lp.LayoutError, match=r"^argument='tpp' is not known"):
        lp.check("llama3-8b", tpp=4)  # type: ignore[call-overload, unused-ignore]


def test_a_model_where_none_belongs_is_told_what_stands_there():
    """`ranks` and `sequence` take no model, and `traffic` takes a program first."""
    for function in (lp.ranks, lp.sequence):
        with pytest.raises(lp.LayoutError, match=r"^layout='llama3-8b': a layout is needed\n") as refusal:
            function("llama3-8b", tp=16)  # type: ignore[arg-type]
        assert refusal.value.why == "the degrees given by name are a layout: leave this argument out"
    with pytest.raises(lp.LayoutError, match=r"^not given: model\n") as refusal:
        lp.traffic("llama3-8b", tp=2, seq_len=8)  # type: ignore[call-arg]
    assert refusal.value.why == "traffic(program, model, layout) has no default for what it cannot know"


def test_a_layout_and_a_job_have_the_options_that_are_theirs():
    fields = Job.__dataclass_fields__
    assert set(LAYOUT) == set(lp.Layout.__dataclass_fields__)
    assert set(FACTS) == set(fields) - {"model", "layout"}
    for record, names in ((lp.Layout, LAYOUT), (Job, FACTS)):
        for name in names:
            # A job's cp_method is its trainer's; a run has no trainer, and the table says its default.
            assert record.__dataclass_fields__[name].default == options.default(name, "check"), name


def test_the_table_has_every_choice_that_a_room_knows():
    known = {"recompute": RECOMPUTE, "schedule": SCHEDULES}
    known |= {"chunking": CHUNKINGS, "format": BLOCKS, "framework": lp.FRAMEWORKS, "dtype": DTYPES}
    known |= {"device": DEVICES}
    known |= {"fault": lp.programs.FAULTS, "gpu": HARDWARE}
    for name, choices in known.items():
        option = OPTIONS[name]
        if name != "gpu":  # which may be one's own
            assert option.choices == tuple(choices), name
        about = option.about(option.default)
        assert all(choice in about for choice in choices if name != "fault"), name
    for option in OPTIONS.values():
        if option.choices and option.default not in (None, ()):
            assert option.default in option.choices


@pytest.mark.parametrize("name", [o.name for o in OPTIONS.values() if o.choices and o.name != "format"])
def test_a_value_that_is_no_choice_is_refused_in_the_same_words(name):
    known = ", ".join(OPTIONS[name].choices)
    with pytest.raises(lp.LayoutError, match=f"^{name}='nonesuch' is not known") as refusal:
        OPTIONS[name].chosen("nonesuch")
    assert refusal.value.why == f"known are {known}"
    assert OPTIONS[name].chosen(OPTIONS[name].choices[-1]) == OPTIONS[name].choices[-1]


# -- flags ---------------------------------------------------------------------------------------

LEAVES = {
    f"{command} {action}".strip(): leaf
    for command, made in Commands().items()
    for action, leaf in (made.commands.items() if isinstance(made, CommandGroup) else [("", made)])
    if isinstance(leaf, Command)
}


def test_a_flag_says_the_default_of_its_function(run):
    lines = {line.strip().split("  ")[0]: line for line in run("loading --help")[1].splitlines()}
    assert lines["--seq-len N"].endswith("tokens in the KV cache (default 4096)")
    assert lines["--nodes N"].endswith("(default 1)")
    assert "sequences in a micro-batch (default 1)" in run("memory --help")[1]
    assert "sequences in a micro-batch\n" in run("check --help")[1]


# -- controls ------------------------------------------------------------------------------------


def controls(panel):
    return {control["name"]: control for group in panel for control in group["controls"]}


@pytest.mark.parametrize("panel", [EXPLORER, CLINIC], ids=["explorer", "clinic"])
def test_a_control_is_an_option(panel):
    for name, control in controls(panel).items():
        if name in ("preset", "config"):
            continue
        option = OPTIONS[name]
        kinds = {"int": int, "slider": int, "bool": bool, "choice": str, "text": str}
        assert kinds[control["kind"]] is option.kind or name in ("zero", "documents")
        if control["kind"] == "choice" and option.choices and name != "engine":
            offered = [value for value, _ in control["options"]]
            assert set(offered) - {"", "own", None} == set(option.choices)


def test_the_explorer_opens_on_the_defaults_but_for_its_first_layout():
    own = {"preset", "tp", "pp", "dp", "zero", "sequence_parallel", "seq_len", "gpu", "rank"}
    empty = {"framework": "", "padding": "own", "layer_split": "own", "fault": "", "beside": ""}
    empty |= {"tab": "heads", "job": ""}
    for name, value in DEFAULTS.items():
        if name not in own:
            assert value == empty.get(name, OPTIONS[name].default if name in OPTIONS else None), name


# -- a new one -----------------------------------------------------------------------------------

NEW_ROW = """TABLE = (
    Option(
        "medium", str, "disk", "where the file lies: {choices}", "loading explorer",
        choices=("disk", "network", "tape"), label="storage", hint="it is read once",
    ),
"""
NEW_USE = """    if options["medium"] == "tape":
        raise LayoutError("a tape is too slow", field="medium")
    return Loading("""

ASK = """
import inspect, json
import llamapar as lp
from llamapar.cli.main import main
refused = []
for value in ("dsk", "tape"):
    try:
        lp.loading("tiny", medium=value)
    except lp.LayoutError as problem:
        refused.append([problem.what, *problem.choose])
panel = lp.explorer("tiny", medium="network")
controls = [each for group in panel.schema for each in group["controls"] if each["name"] == "medium"]
print(json.dumps([str(inspect.signature(lp.loading).parameters["medium"]), refused, controls,
    panel.payload["values"]["medium"]]))
main(["loading", "tiny", "--medium", "disc"])
main(["loading", "--help"])
"""

USER = """
from typing import Unpack
from llamapar.describe.keywords import LoadingKeywords
def loading(**options: Unpack[LoadingKeywords]) -> None: ...
loading(medium="disk")
loading(medium=3)
loading(medum="disk")
"""


def test_a_new_option_is_a_row_and_its_use(tmp_path):
    """In a copy of the package: the flag, the keyword, the refusal, the control and the types follow."""
    shutil.copytree(PACKAGE, tmp_path / "llamapar", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(PACKAGE.parent / "tools", tmp_path / "tools")
    for name, old, new in (
        ("describe/option_rows.py", "TABLE = (\n", NEW_ROW),
        ("nodes/loading.py", "    return Loading(", NEW_USE),
    ):
        path = tmp_path / "llamapar" / name
        source = path.read_text()
        assert source.count(old) == 1
        path.write_text(source.replace(old, new))

    def said(*words):
        command = [sys.executable, *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)

    asked = said("-c", ASK)
    answer, *rest = asked.stdout.splitlines()
    shown, refused, controls, value = json.loads(answer)
    assert shown == "medium: 'str' = 'disk'"
    assert refused == [["medium='dsk' is not known", "disk"], ["a tape is too slow"]]
    choices = [["disk", "disk"], ["network", "network"], ["tape", "tape"]]
    control = {"name": "medium", "label": "storage", "kind": "choice", "help": "it is read once"}
    assert (controls, value) == ([control | {"options": choices}], "network")
    assert "medium='disc' is not known" in asked.stderr
    assert "try  --medium disk" in asked.stderr or "try  disk" in asked.stderr
    text = " ".join(" ".join(rest).split())
    assert "--medium MEDIUM where the file lies: disk (default), network or tape" in text

    stub = tmp_path / "llamapar" / "describe" / "keywords.pyi"
    assert said("tools/keywords.py").stdout == "llamapar/describe/keywords.pyi written\n"
    (tmp_path / "user.py").write_text(USER)
    checked = said("-m", "mypy", "--follow-imports=skip", "--no-error-summary", str(stub), "user.py").stdout
    assert [line.partition("error: ")[2] for line in checked.splitlines()] == [
        'Argument "medium" to "loading" has incompatible type "int"; expected "str"  [arg-type]',
        'Unexpected keyword argument "medum" for "loading"; did you mean "medium"?  [call-arg]',
    ]


# -- choices as records --------------------------------------------------------------------------


def texts_as_choices(source):
    """Texts such as "tp=8" that are handed to an error, where a record belongs."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not called(node).endswith(("Error", "Failure")):
            continue
        for argument in [*node.args[2:3], *(k.value for k in node.keywords if k.arg == "choose")]:
            for part in ast.walk(argument):
                words = part.value if isinstance(part, ast.Constant) else None
                if isinstance(words, str) and words.partition("=")[0].isidentifier() and "=" in words:
                    found.append(words)
    return found


def test_errors_carry_choices_as_records():
    source = 'raise LayoutError(f"tp={tp}", "why", [f"tp={n}" for n in near], "tp")'
    assert texts_as_choices(source) == ["tp="]
    assert texts_as_choices('raise LayoutError("tp=8", "", [Choice.of(tp=8), "a folder"], "tp")') == []
    for path in PACKAGE.rglob("*.py"):
        assert texts_as_choices(path.read_text()) == [], path
