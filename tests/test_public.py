"""The public names: what they are called, what Shift-Tab shows of them, and what a wrong one is told."""

import importlib
import inspect
import json
import pkgutil
import re
from pathlib import Path
from typing import get_args, get_origin

import pytest

import llamapar as lp
from llamapar.late import RESULTS, imported
from llamapar.panels.clinic_panel import Clinic
from llamapar.panels.explorer_panel import Explorer

FUNCTIONS = {name: value for name in lp.__all__ if inspect.isfunction(value := getattr(lp, name))} | {
    f"checkpoint.{name}": getattr(lp.checkpoint, name)
    for name in ("inspect", "shard", "gather", "reshard", "verify")
}


def modules():
    found = pkgutil.walk_packages(lp.__path__, "llamapar.")
    return [module.name for module in found if not module.name.endswith("__main__")]


def test_import_as_gives_the_module():
    """`import llamapar.models as m` binds what the parent's attribute is: a function hides its module."""

    def bound(name):
        parent, _, leaf = name.rpartition(".")
        return getattr(importlib.import_module(parent), leaf)

    assert [name for name in modules() if importlib.import_module(name) is not bound(name)] == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_names_its_arguments(name):
    kinds = {p.kind for p in inspect.signature(FUNCTIONS[name]).parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds
    assert inspect.Parameter.VAR_POSITIONAL not in kinds or name == "read_settings"  # of any number of files


@pytest.mark.parametrize("call", [Explorer, Explorer.set, Clinic, Clinic.set])
def test_so_do_the_panels(call):
    named_there = list(inspect.signature(call).parameters)
    assert {"tp", "cp", "pp", "dp", "seq_len", "framework", "gpus"} <= set(named_there)


@pytest.mark.parametrize(
    "name", [n for n in FUNCTIONS if n not in ("model", "view", "record", "watch_errors")]
)
def test_a_wrong_name_is_told_in_the_same_words(name):
    parameters = inspect.signature(FUNCTIONS[name]).parameters
    right = next(iter(reversed(parameters)))
    with pytest.raises(
        lp.LayoutError, match=f"^argument='{right}x' is not known\n  why  known are "
    ) as refusal:
        FUNCTIONS[name](**{f"{right}x": 1})
    assert refusal.value.choose[0] == right
    assert refusal.value.field == "argument"


def test_a_name_that_is_not_there_finds_the_nearest():
    with pytest.raises(AttributeError, match=r"^llamapar has no 'chek'; is it check.*\?$"):
        lp.chek  # noqa: B018
    with pytest.raises(AttributeError, match=r"^llamapar has no 'xyzzyx'$"):
        lp.xyzzyx  # noqa: B018


def returned(function):
    """The types of llamapar that a function says it returns."""
    inner = inspect.unwrap(function)
    text = str(inner.__annotations__["return"])
    module = inspect.getmodule(inner)
    names = [name for name in re.findall(r"[A-Za-z_]+", text) if hasattr(module, name)]
    found = [getattr(module, name) for name in names]
    return [kind for kind in found if isinstance(kind, type) and kind.__module__.startswith("llamapar")]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_a_public_function_returns_can_be_imported(name):
    kinds = returned(FUNCTIONS[name])
    assert kinds or name in ("show_source", "watch_errors")
    for kind in kinds:
        home = imported(RESULTS[kind.__name__]) if kind.__name__ in RESULTS else lp
        assert getattr(home, kind.__name__) is kind


def test_a_type_of_results_is_imported_from_its_room():
    assert len(lp.__all__) <= 78
    for name, module in RESULTS.items():
        message = f"lp has no {name}: use `from llamapar.{module} import {name}`"
        with pytest.raises(AttributeError, match=f"^{message}$"):
            getattr(lp, name)
        assert isinstance(getattr(imported(module), name), type)


def test_every_error_has_a_public_name():
    for name in modules():
        importlib.import_module(name)

    def below(kind):
        yield kind
        for more in kind.__subclasses__():
            yield from below(more)

    for kind in below(lp.LlamaparError):
        if kind.__module__.startswith("llamapar."):
            assert getattr(lp, kind.__name__) is kind


def test_what_a_model_or_a_layout_may_be_given_as_has_a_public_name(tmp_path):
    tiny = lp.PRESETS["tiny"]
    fields = {name: getattr(tiny, name) for name in tiny.__dataclass_fields__}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    models = ["tiny", tmp_path / "config.json", fields, tiny]
    for given, kind in zip(models, get_args(lp.ModelLike), strict=True):
        assert isinstance(given, get_origin(kind) or kind)
        assert lp.model(given) == tiny
    layouts = [lp.Layout(tp=2), {"tp": 2}]
    for layout, kind in zip(layouts, get_args(lp.LayoutLike), strict=True):
        assert isinstance(layout, get_origin(kind) or kind)
        assert lp.heads("tiny", layout).tp == 2


def test_types_travel_with_the_package():
    """Flit packs whatever lies in the package; type checkers look for this file (PEP 561)."""
    assert (Path(lp.__file__).parent / "py.typed").is_file()
