"""A panel's state as one line of text, read back: a job in the command's words, or a line of code."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Mapping

from llamapar.describe.configfile import parse_object
from llamapar.describe.models import ModelConfig
from llamapar.describe.models import model as find_model
from llamapar.describe.options import OPTIONS, Values, default
from llamapar.errors import LlamaparError, one_of, shown
from llamapar.records.calls import Call, read_call

from .controls import DEFAULTS, FACTS, LAYOUT, STEP

PLAIN: Values = {name: default(name) for name in (*LAYOUT, *FACTS, *STEP, "padding", "layer_split")}
PLAIN |= {"gpu": DEFAULTS["gpu"], "framework": "", "job": ""}
"""Layout and job where nothing is said."""


def is_line(text: str) -> bool:
    """Whether a text is such a line, and not the name of a model."""
    return text.lstrip().startswith(("llamapar ", "--", "#"))


def read_line(text: str) -> tuple[ModelConfig | None, Values]:
    """The model and the settings in a line; a leading `llamapar check` is ignored. Raises LlamaparError."""
    try:
        words = shlex.split(text, comments=True)
    except ValueError as problem:
        raise LlamaparError(f"the line cannot be read: {problem}", field="line") from None
    if words[:1] == ["llamapar"]:
        words = words[1 if words[1:] and words[1].startswith("--") else 2 :]
    if not any(word.startswith("--") for word in words):
        raise LlamaparError(f"{shown(text)} sets nothing", "", ["--model llama3.1-8b --tp 8"], "line")
    model = None
    values = Values()
    while words:
        name, equals, value = words.pop(0).partition("=")
        if not name.startswith("--"):
            meant = [text.replace(name, f"--model {name}", 1)] if "--model" not in text else []
            raise LlamaparError(f"{shown(name)} is one word too many", "", meant, "line")
        field = name.removeprefix("--").replace("-", "_")
        off = field.startswith("no_")
        try:
            field = one_of("option", field.removeprefix("no_"), ("model", *DEFAULTS), LlamaparError)
        except LlamaparError as problem:
            raise _mended(problem, text, name, "--") from None
        if field in OPTIONS and OPTIONS[field].kind is bool:
            values[field] = not off
            continue
        if not equals:
            if not words:
                raise LlamaparError(f"{name} has no value", field="line")
            value = words.pop(0)
        if field == "model":
            try:
                model = find_model(parse_object(value, "--model") if value.startswith("{") else value)
            except LlamaparError as problem:
                raise _mended(problem, text, value) from None
        else:
            values[field] = _value(field, value)
    return model, values


def _mended(problem: LlamaparError, text: str, wrong: str, before: str = "") -> LlamaparError:
    """The problem with a word; its choices are the whole line with a replacement word."""
    words = [before + str(choice).replace("_", "-" if before else "_") for choice in problem.choices]
    lines = [text.replace(wrong, word, 1) for word in words if wrong]
    return type(problem)(problem.what, problem.why, lines, "line")


def _value(field: str, text: str) -> object:
    """A value in the form that its control stores."""
    option = OPTIONS.get(field)
    if option and option.is_count and text.isascii() and text.isdigit():
        return int(text)
    spaced = text.replace("-", " ")
    return spaced if option and spaced in option.choices else text


def read_arguments(
    line: str, function: str, within: Mapping[str, Callable[..., object]] = {}
) -> tuple[list[object], Values]:
    """The arguments of a call of `function` in a line of code, by position and by name. Raises LlamaparError.

    within: functions that an argument may call, by name. Such a call becomes a Call, and is not executed.
    """
    within = {"lp.ModelConfig": ModelConfig, **within}

    def made(value: object) -> object:
        if not isinstance(value, tuple):
            return value
        name, by_place, by_name = value
        what = f"{shown(name)} is no value here"
        if name not in within:
            raise LlamaparError(what, f"an argument may call {', '.join(within)}", field="line")
        try:
            given = inspect.signature(within[name]).bind_partial(*map(made, by_place), **by_name).arguments
            given = {each: made(value) for each, value in given.items()}
            return ModelConfig(**given) if name == "lp.ModelConfig" else Call(name, given)
        except TypeError as problem:
            raise LlamaparError(what, str(problem), field="line") from None

    name, by_place, by_name = read_call(line)
    if name != function:
        raise LlamaparError(f"the line calls {name}", f"this panel reads calls of {function}", field="line")
    return [made(value) for value in by_place], {each: made(value) for each, value in by_name.items()}
