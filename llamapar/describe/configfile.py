"""Reading an untrusted JSON config as data: size is bounded, and every failure is a ModelError."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from llamapar.errors import ModelError, encoding, shown

Values = dict[str, Any]
"""Values by name, as a person or a file gave them; their types are not checked yet."""

MAX_CONFIG_BYTES = 2**20
"""Largest config file that is read: a real config.json is a page of numbers."""


def is_json(source: object) -> TypeGuard[str]:
    return isinstance(source, str) and source.lstrip()[:1] in ("{", "[")


def exists(source: str | Path) -> bool:
    try:
        return Path(source).exists()
    except (OSError, ValueError):  # a name too long or with a NUL in it is not a file
        return False


def read_object(source: object, *names: str) -> tuple[Mapping[str, object], str]:
    """The JSON object at `source`, and a name for it. Raises ModelError for anything else."""
    if isinstance(source, Mapping):
        return source, ""
    if is_json(source):
        return parse_object(source, "this text"), ""
    if not isinstance(source, (str, Path)):
        raise ModelError(f"model={shown(source)}: a path or a dict is needed", field="model")
    path = Path(source)
    if not exists(path):
        raise ModelError(f"{shown(str(source), 200)}: no such file", field="model")
    if path.is_dir():
        files = [path / name for name in names if (path / name).is_file()]
        if not files:
            wanted = " or ".join(names)
            what = f"{shown(str(path), 200)}: the folder holds no {wanted}"
            raise ModelError(what, "", ["a run's own files, each by --config or --launch"], "model")
        path = files[0]
    named = shown(str(path), 200)
    try:
        if not path.is_file():
            raise ModelError(f"{named} is not a regular file", field="model")
        # Asked before reading: the path may be a checkpoint of many gigabytes.
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ModelError(
                f"{named} holds {path.stat().st_size} bytes; a config has at most {MAX_CONFIG_BYTES}",
                "this looks like weights, not a config",
                field="model",
            )
        data = path.read_bytes()
        text = data.decode(encoding(data))
    except UnicodeDecodeError:
        raise ModelError(f"{named} is not UTF-8 text", field="model") from None
    except OSError as problem:
        raise ModelError(f"{named}: {problem.strerror}", field="model") from None
    # Every model's file is called so, and its folder has the model's name.
    generic = path.stem in ("config", "params")
    return parse_object(text, path.name), path.resolve().parent.name if generic else path.stem


def parse_object(text: str, where: str, limit: int = MAX_CONFIG_BYTES) -> Values:
    """The JSON object in a text of at most `limit` characters. Raises ModelError; also for a repeated key."""
    if len(text) > limit:
        raise ModelError(f"{where} has {len(text)} characters; a config is smaller", field="model")

    def once(pairs: list[tuple[str, object]]) -> Values:
        made: Values = {}
        for key, value in pairs:
            if key in made:
                raise ModelError(
                    f"{where} says {shown(key)} twice: {shown(made[key])} and {shown(value)}",
                    "JSON readers keep the last, and which was meant cannot be known",
                    field=key,
                )
            made[key] = value
        return made

    try:
        raw = json.loads(text, object_pairs_hook=once)
    except ModelError:
        raise
    except json.JSONDecodeError as problem:
        raise ModelError(
            f"{where} is not JSON: {problem.msg} at line {problem.lineno}, column {problem.colno}",
            field="model",
        ) from None
    except (RecursionError, ValueError):  # nested too deep, or a number of thousands of digits
        raise ModelError(f"{where} is not a config: nested or long beyond reason", field="model") from None
    if not isinstance(raw, dict):
        raise ModelError(f"{where} holds {type(raw).__name__}, not an object", field="model")
    return raw


def required(raw: Mapping[str, object], key: str, where: str) -> object:
    if raw.get(key) is None:
        raise ModelError(f"{where} has no {key}", "the model's size depends on it", field=key)
    return raw[key]


def object_of(value: object, key: str) -> Mapping[str, object]:
    """The value of a key, which must be an object. Raises ModelError."""
    if not isinstance(value, Mapping):
        raise ModelError(f"{key}={shown(value)}: an object is needed", field=key)
    return value


def given(raw: Mapping[str, object], key: str, default: object) -> object:
    value = raw.get(key)
    if value is None:
        return default
    return value
