"""One table of options: functions, flags and controls say the same names, types, defaults and choices."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import llamapar as lp
from llamapar.cli.commands import Command, CommandGroup
from llamapar.cli.main import Commands
from llamapar.cli.output import as_flags
from llamapar.count import ACCOUNTINGS
from llamapar.count.in_flight import SCHEDULES
from llamapar.count.saved import RECOMPUTE
from llamapar.course.lessons import lesson
from llamapar.course.opening import open_course
from llamapar.describe import options
from llamapar.describe.hardware import HARDWARE
from llamapar.describe.job import Job
from llamapar.describe.layout import AXES, Degrees
from llamapar.describe.options import FACTS, LAYOUT, OPTIONS, OTHER_DEFAULTS, Option
from llamapar.errors import Choice
from llamapar.execution import execute
from llamapar.execution.capacity import DEVICES
from llamapar.nodes.loading import BLOCKS
from llamapar.panels.controls import CLINIC, DEFAULTS, EXPLORER
from llamapar.place.sequence_map import CHUNKINGS
from llamapar.spmd.setting import DTYPES

PACKAGE = Path(lp.__file__).parent

FUNCTIONS: dict[str, Callable[..., Any]] = (
    {name: value for name in lp.__all__ if inspect.isfunction(value := getattr(lp, name))}
    | {
        f"checkpoint.{name}": getattr(lp.checkpoint, name)
        for name in ("inspect", "shard", "gather", "reshard", "verify")
    }
    | {"lesson": lesson, "course": open_course}
)

SUBJECTS = {
    *(
        "model",
        "layout",
        "name",
        "program",
        "what",
        "record",
        "attempt",
        "make",
        "cost",
        "plan",
        "mesh",
        "source",
    ),
    *("target", "path", "text", "runs", "result", "folder"),
}
"""What a function is about: no option, and a command's own word where it is one."""

OF_PYTHON = {
    *("context", "inputs", "reference", "cancel", "progress", "ranks", "layers", "ep", "preset", "tab"),
    *("files", "overrides", "known", "number", "weak", "knob", "compare.loss"),
}
"""What is no plain value, or belongs to one function alone: compare's loss is a function, memory's a name."""

PANELS = ("explorer", "clinic")
"""Functions that open on values of their own."""


def parameters(name: str) -> Iterator[inspect.Parameter]:
    for parameter in inspect.signature(FUNCTIONS[name]).parameters.values():
        if not {parameter.name, f"{name}.{parameter.name}"} & (SUBJECTS | OF_PYTHON):
            yield parameter


def faults(name: str, table: Mapping[str, Option]) -> list[str]:
    """Where the signature of a function and the table differ, one line each."""
    found = []
    own = OTHER_DEFAULTS.get(name.split(".")[0], {})
    for parameter in parameters(name):
        option = table.get(parameter.name)
        if option is None:
            found.append(f"{parameter.name} is not in the table")
            continue
        kind = option.kind.__name__
        annotation = (
            str(parameter.annotation)
            .replace("GpuLike", "str | Mapping | Gpu")
            .replace("Sequence[str]", "tuple[str, ...]")
        )
        if kind not in annotation:
            found.append(f"{parameter.name} is {annotation}, and {kind} in the table")
        default = own.get(parameter.name, option.default)
        needed = parameter.default is inspect.Parameter.empty and option.default is None
        if parameter.default != default and not needed:
            found.append(f"{parameter.name}={parameter.default!r}, and {default!r} in the table")
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_and_the_table_say_the_same(name: str) -> None:
    assert faults(name, OPTIONS) == []


def test_another_table_would_be_noticed() -> None:
    for name, change, fault in (
        ("gpus_per_node", {"default": 4}, "gpus_per_node=8, and 4 in the table"),
        ("gpus_per_node", {"kind": str}, "gpus_per_node is int, and str in the table"),
        ("padding", {"default": "none"}, "padding=None, and 'none' in the table"),
    ):
        assert fault in faults("check", {**OPTIONS, name: replace(OPTIONS[name], **change)})  # type: ignore[arg-type]
    rest = {name: option for name, option in OPTIONS.items() if name != "gpus_per_node"}
    assert faults("check", rest) == ["gpus_per_node is not in the table"]


OF_A_LAYOUT = [name for name in FUNCTIONS if "layout" in inspect.signature(FUNCTIONS[name]).parameters]


@pytest.mark.parametrize("name", OF_A_LAYOUT)
def test_a_function_of_a_layout_takes_its_degrees_by_name(name: str) -> None:
    of_interest = AXES if name == "explain" else LAYOUT  # what a text cannot show is no fact of explain
    assert inspect.signature(FUNCTIONS[name]).parameters.keys() >= set(of_interest)


def test_degrees_by_name_say_the_same_as_a_layout() -> None:
    layout = lp.Layout(tp=4, cp=2, dp=2, zero=2)
    degrees: Degrees = {"tp": 4, "cp": 2, "dp": 2, "zero": 2}
    assert lp.heads("llama3-8b", **degrees) == lp.heads("llama3-8b", layout)
    assert lp.sequence(seq_len=64, **degrees) == lp.sequence(layout, 64)
    assert lp.ranks(rank=3, **degrees).peers == lp.ranks(layout, 3).peers
    assert lp.check("llama3-8b", **degrees).text() == lp.check("llama3-8b", layout).text()
    assert lp.cost("llama3-8b", seq_len=8192, **degrees) == lp.cost("llama3-8b", layout, seq_len=8192)
    assert lp.tape("mlp", "tiny", **degrees).steps == lp.tape("mlp", "tiny", layout).steps


def test_a_degree_by_name_replaces_that_of_the_layout() -> None:
    assert lp.check("llama3-8b", lp.Layout(tp=4, dp=2), tp=16).job.layout == lp.Layout(tp=16, dp=2)
    assert lp.check("llama3-8b", {"tp": 4, "dp": 2}, dp=1).job.layout == lp.Layout(tp=4)
    with pytest.raises(lp.LayoutError, match=r"^layout field='tpp' is not known"):
        lp.check("llama3-8b", {"tpp": 4}, dp=1)
    with pytest.raises(lp.LayoutError, match=r"^argument='tpp' is not known"):
        lp.check("llama3-8b", tpp=4)  # type: ignore[call-overload, unused-ignore]


def test_a_model_where_none_belongs_is_told_what_stands_there() -> None:
    """`ranks` and `sequence` take no model, and `traffic` takes a program first."""
    for function in (lp.ranks, lp.sequence):
        with pytest.raises(lp.LayoutError, match=r"^layout='llama3-8b': a layout is needed\n") as refusal:
            function("llama3-8b", tp=16)  # type: ignore[arg-type]
        assert refusal.value.why == "the degrees given by name are a layout: leave this argument out"
    with pytest.raises(lp.LayoutError, match=r"^not given: model\n") as refusal:
        lp.traffic("llama3-8b", tp=2, seq_len=8)  # type: ignore[call-arg]
    assert refusal.value.why == "traffic(program, model, layout) has no default for what it cannot know"


def test_a_default_of_its_own_is_one() -> None:
    """It belongs to a parameter of that function, and differs from the table's."""
    for function, own in OTHER_DEFAULTS.items():
        names = [name for name in FUNCTIONS if name.split(".")[0] == function]
        there = {parameter.name for name in names for parameter in parameters(name)}
        for name, default in own.items():
            assert name in there | OF_PYTHON | SUBJECTS, (function, name)
            assert function in PANELS or default != OPTIONS[name].default, (function, name)
            assert options.default(name, function) == default


def test_a_layout_and_a_job_have_the_options_that_are_theirs() -> None:
    fields = Job.__dataclass_fields__
    assert set(Degrees.__annotations__) == set(LAYOUT) == set(lp.Layout.__dataclass_fields__)
    assert set(FACTS) == set(fields) - {"model", "layout"}
    for record, names in ((lp.Layout, LAYOUT), (Job, FACTS)):
        for name in names:
            # A job's cp_method is its trainer's; a run has no trainer, and the table says its default.
            assert record.__dataclass_fields__[name].default == options.default(name, "check"), name


def test_the_table_has_every_choice_that_a_room_knows() -> None:
    known: dict[str, Any] = {"recompute": RECOMPUTE, "schedule": SCHEDULES, "accounting": ACCOUNTINGS}
    known |= {"chunking": CHUNKINGS, "format": BLOCKS, "framework": lp.FRAMEWORKS, "dtype": DTYPES}
    known |= {"engine": execute.ENGINES, "device": DEVICES}
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
def test_a_value_that_is_no_choice_is_refused_in_the_same_words(name: str) -> None:
    known = ", ".join(OPTIONS[name].choices)
    with pytest.raises(lp.LayoutError, match=f"^{name}='nonesuch' is not known") as refusal:
        OPTIONS[name].chosen("nonesuch")
    assert refusal.value.why == f"known are {known}"
    assert OPTIONS[name].chosen(OPTIONS[name].choices[-1]) == OPTIONS[name].choices[-1]


# -- flags ---------------------------------------------------------------------------------------

LEAVES: dict[str, Command] = {
    f"{command} {action}".strip(): leaf
    for command, made in Commands().items()
    for action, leaf in (made.commands.items() if isinstance(made, CommandGroup) else [("", made)])
    if isinstance(leaf, Command)
}

OF_THE_COMMAND = {
    *("model", "job", "shrink", "tape", "trace", "inventory", "file", "context", "json", "export"),
    *("config", "launch", "settings", "explain", "out", "slides"),
}


@pytest.mark.parametrize("name", [name for name in LEAVES if name not in ("model", "debug")])
def test_a_command_has_the_options_of_its_function(name: str) -> None:
    """A layout is its degrees; a command may leave out what it does not offer, and adds nothing."""
    function = "check" if name == "report" else name.replace(" ", ".")
    taken = {parameter.name for parameter in parameters(function)}
    if "layout" in inspect.signature(FUNCTIONS[function]).parameters or function == "explain":
        taken |= set(LAYOUT)
    if function == "memory":
        taken |= set(FACTS) | {"framework"}
    if function == "explorer":  # It opens on a job, in a browser.
        taken |= set(FACTS) | {"framework"} | {p.name for p in parameters("course")}
    assert set(LEAVES[name].options) - OF_THE_COMMAND <= taken
    if function in ("check", "loading", "checkpoint.reshard"):
        assert taken <= set(LEAVES[name].options)


def test_a_flag_says_the_default_of_its_function(run: Any) -> None:
    lines = {line.strip().split("  ")[0]: line for line in run("loading --help")[1].splitlines()}
    assert lines["--seq-len N"].endswith("tokens in the KV cache (default 4096)")
    assert lines["--nodes N"].endswith("(default 1)")
    assert "sequences in a micro-batch (default 1)" in run("memory --help")[1]
    assert "sequences in a micro-batch\n" in run("check --help")[1]


# -- controls ------------------------------------------------------------------------------------


def controls(panel: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {control["name"]: control for group in panel for control in group["controls"]}


@pytest.mark.parametrize("panel", [EXPLORER, CLINIC], ids=["explorer", "clinic"])
def test_a_control_is_an_option(panel: list[dict[str, Any]]) -> None:
    for name, control in controls(panel).items():
        if name in ("preset", "config"):
            continue
        option = OPTIONS[name]
        kinds = {"int": int, "axis": int, "bool": bool, "choice": str, "text": str}
        assert kinds[control["kind"]] is option.kind or name in ("zero", "documents")
        if control["kind"] == "choice" and option.choices and name != "engine":
            offered = [value for value, _ in control["options"]]
            assert set(offered) - {"", "own", None} == set(option.choices)


def test_the_explorer_opens_on_the_defaults_but_for_its_first_layout() -> None:
    own = {"preset", "tp", "pp", "dp", "zero", "sequence_parallel", "seq_len", "gpu", "rank"}
    empty = {"framework": "", "padding": "own", "layer_split": "own", "fault": "", "beside": ""}
    empty |= {"tab": "block", "job": ""}
    for name, value in DEFAULTS.items():
        if name not in own:
            assert value == empty.get(name, OPTIONS[name].default if name in OPTIONS else None), name


# -- choices as records --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "python", "flags"),
    [
        (Choice.of(tp=8, dp=2), "tp=8 dp=2", "--tp 8 --dp 2"),
        (Choice.of(force=True), "force=True", "--force"),
        (Choice.of(sequence_parallel=False), "sequence_parallel=False", "--no-sequence-parallel"),
        (
            Choice.of(layer_split="balanced ends"),
            "layer_split='balanced ends'",
            "--layer-split balanced-ends",
        ),
        (Choice.of(memory_gib=0.5), "memory_gib=0.5", "--memory-gib 0.5"),
        (Choice.of(documents=(8, 8)), "documents=(8, 8)", "--documents 8,8"),
        (Choice.of("if so", timeout=4.0), "timeout=4 if so", "--timeout 4 if so"),
        (Choice.of(head_dim=128, dim=64), "head_dim=128 dim=64", "--head-dim 128 --dim 64"),
        (Choice.of(backend="gloo"), "backend='gloo'", "backend='gloo'"),
        (Choice((("gpu", "a100-40gb"),), bare=True), "a100-40gb", "a100-40gb"),
    ],
)
def test_a_choice_in_the_words_of_python_and_of_the_command(choice: Choice, python: str, flags: str) -> None:
    assert str(choice) == python
    assert as_flags([choice]) == [flags]
    assert as_flags([python]) == [python]  # no door reads a text back: what a person wrote is theirs


def texts_as_choices(source: str) -> list[str]:
    """Texts such as "tp=8" that are handed to an error, where a record belongs."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith(("Error", "Failure")):
            continue
        for argument in [*node.args[2:3], *(k.value for k in node.keywords if k.arg == "choose")]:
            for part in ast.walk(argument):
                words = part.value if isinstance(part, ast.Constant) else None
                if isinstance(words, str) and words.partition("=")[0].isidentifier() and "=" in words:
                    found.append(words)
    return found


def test_errors_carry_choices_as_records() -> None:
    source = 'raise LayoutError(f"tp={tp}", "why", [f"tp={n}" for n in near], "tp")'
    assert texts_as_choices(source) == ["tp="]
    assert texts_as_choices('raise LayoutError("tp=8", "", [Choice.of(tp=8), "a folder"], "tp")') == []
    for path in PACKAGE.rglob("*.py"):
        assert texts_as_choices(path.read_text()) == [], path
