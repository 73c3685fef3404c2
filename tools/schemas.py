"""docs/schemas: a JSON Schema (draft 2020-12) of what each command prints with --json. For authors.

    python tools/schemas.py            # write them anew: where an answer's JSON changed
    python tools/schemas.py --check    # write nothing; exit 1 where a file would change

A record that says in `json_names` what its JSON holds is read in the code: types from its annotations, words
from its docstrings. tools/schemas.toml has the rest: records with an `as_dict` of their own, better words,
and which record a command answers with. Every property has words, and none is allowed beside them, so that a
new one makes tests/test_schemas.py red. docs/programs.md says what raises the version.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from llamapar.cli.commands import SCHEMA, Command, CommandGroup  # noqa: E402
from llamapar.cli.main import Commands  # noqa: E402
from llamapar.count.terms import FITS, TOO_MUCH, UNDECIDED, Memory  # noqa: E402
from llamapar.course.lessons import Lesson  # noqa: E402
from llamapar.describe.experts import Experts  # noqa: E402
from llamapar.describe.models import ModelConfig  # noqa: E402
from llamapar.describe.rope import RopeScaling  # noqa: E402
from llamapar.diagnosis import vocabulary  # noqa: E402
from llamapar.diagnosis.hypothesis import Level  # noqa: E402
from llamapar.frameworks.base import VERDICTS  # noqa: E402
from llamapar.frameworks.settings import Contradiction  # noqa: E402
from llamapar.nodes.loading import Loading, Node  # noqa: E402
from llamapar.records.trace import CollectiveEvent, Tape, TapeStep, Trace  # noqa: E402
from llamapar.rules.report import Finding, Report  # noqa: E402
from llamapar.rules.table import SEVERITIES  # noqa: E402
from llamapar.timing.plan import Plan  # noqa: E402
from llamapar.timing.ranking import TIGHT  # noqa: E402

FOLDER = PROJECT / "docs" / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]

TOLD: dict[str, dict[str, Any]] = tomllib.loads((PROJECT / "tools/schemas.toml").read_text(encoding="utf-8"))
ANSWERS: dict[str, list[str]] = {name: row["answers"] for name, row in TOLD.pop("commands").items()}
"""Command → the records that it answers with; checkpoint's commands as "checkpoint-verify"."""

_READ = (
    *(Report, Finding, Contradiction, ModelConfig, Experts, RopeScaling),
    *(Memory, Plan, Loading, Node, Tape, TapeStep, Trace, CollectiveEvent, Lesson),
)
RECORDS: dict[str, type] = {record.__name__: record for record in _READ}
"""The records that are read in the code."""

WORDS: dict[str, tuple[str, ...]] = {
    "Severity": SEVERITIES,
    "FrameworkVerdict": VERDICTS,
    "MemoryOutcome": (FITS, UNDECIDED, TOO_MUCH),
    "PlanOutcome": (FITS, TIGHT, UNDECIDED),
    "ExplainVerdict": vocabulary.VERDICTS,
    "Level": tuple(dict.fromkeys(map(str, Level))),
    "ActionKind": ("F", "B", "I", "W"),
}
"""Names of types that are one of a few words."""

SHORT = {
    "Value": "int | float | str | bool | list[Value] | dict[str, Value] | None",
    "Distance": "float | 'inf' | 'nan' | None",
    "Number": "float | 'inf' | '-inf' | 'nan'",
}
"""Names of longer types. What is no finite number is a word, because JSON has no infinity."""

_TYPES = {"int": "integer", "float": "number", "str": "string", "bool": "boolean"}
_LISTS, _MAPS = ("list", "Sequence"), ("dict", "Mapping")


# -- types -----------------------------------------------------------------------------------------


def typed(text: str) -> Schema:
    """The schema of a type that is written as in Python: "dict[str, list[int]] | None"."""
    return _of(ast.parse(text, mode="eval").body)


def _of(node: ast.expr) -> Schema:
    match node:
        case ast.Constant(value=None):
            return {"type": "null"}
        case ast.Constant(value=value):
            return {"const": value}
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _either(_of(left), _of(right))
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Tuple(elts=[_, held])) if name in _MAPS:
            return {"type": "object", "additionalProperties": _of(held)}
        case ast.Subscript(
            value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[held, ast.Constant(value=v)])
        ) if v is ...:
            return {"type": "array", "items": _of(held)}
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=each)):
            first = [_of(held) for held in each]
            return {"type": "array", "prefixItems": first, "items": False, "minItems": len(first)}
        case ast.Subscript(value=ast.Name(id=name), slice=held) if name in _LISTS:
            return {"type": "array", "items": _of(held)}
        case ast.Name(id=name) if name in _TYPES:
            return {"type": _TYPES[name]}
        case ast.Name(id=name) if name in WORDS:
            return {"enum": list(WORDS[name])}
        case ast.Name(id=name) if name in {**SHORT, **TOLD, **RECORDS}:
            return {"$ref": f"#/$defs/{name}"}
    raise SystemExit(f"tools/schemas.py: {ast.unparse(node)} is no type that it knows")


def _either(left: Schema, right: Schema) -> Schema:
    """One of two schemas: {"type": ["integer", "null"]} where both are plain."""
    if left.keys() == right.keys() == {"type"}:
        both = [left["type"], right["type"]]
        return {"type": [name for one in both for name in (one if isinstance(one, list) else [one])]}
    several = [each for one in (left, right) for each in (one["anyOf"] if one.keys() == {"anyOf"} else [one])]
    return {"anyOf": several}


# -- records ---------------------------------------------------------------------------------------


def properties(name: str) -> dict[str, Schema]:
    """The properties of a record: one that may be missing ends in "?"."""
    told = {key: value for key, value in TOLD.get(name, {}).items() if not key.startswith("_")}
    found = {key: value for of in TOLD.get(name, {}).get("_of", ()) for key, value in properties(of).items()}
    if (record := RECORDS.get(name)) is None:
        return found | {key: typed(kind) | {"description": words} for key, (kind, words) in told.items()}
    names = getattr(record, "json_names", None) or [field.name for field in fields(record)]
    for key in names:
        words = told.pop(key, None)
        kind, words = words if isinstance(words, list) else (annotation(record, key), words)
        found[key] = typed(kind) | {"description": words or documented(record, key)}
    if told:
        raise SystemExit(f"tools/schemas.toml: {name} has no {', '.join(told)}")
    return found


def annotation(record: type, name: str) -> str:
    """The type of a field or of a property, as its source has it."""
    for field in fields(record):
        if field.name == name:
            return str(field.type)
    value = inspect.getattr_static(record, name)
    function = value.func if isinstance(value, cached_property) else value.fget
    return str(function.__annotations__["return"])


def documented(record: type, name: str) -> str:
    """What a docstring says of a name: "name: words.", or the first sentence of a property's own."""
    text = " ".join((inspect.getdoc(record) or "").split())
    listed = r"(?:(?<=^)|(?<=[.:;)] ))(?:\w+, )*%s(?:, \w+)*: (.*?)(?=\.? ?$|\. \w+(?:, \w+)*: |\. [A-Z])"
    if found := re.search(listed % name, text):
        return found[1]
    value = inspect.getattr_static(record, name, None)
    function = value.func if isinstance(value, cached_property) else getattr(value, "fget", None)
    own = (
        " ".join((inspect.getdoc(function) or "").split()).partition(". ")[0].rstrip(".") if function else ""
    )
    return own[:1].lower() + own[1:]


def object_of(name: str, **more: Schema) -> Schema:
    """The schema of a record as an object. more: properties in front of its own."""
    every = more | properties(name)
    words = TOLD.get(name, {}).get("_is") or (inspect.getdoc(RECORDS[name]) or "").partition("\n\n")[0]
    return {
        "title": name,
        "description": " ".join(words.split()),
        "type": "object",
        "properties": {key.rstrip("?"): value for key, value in every.items()},
        "required": [key for key in every if not key.endswith("?")],
        "additionalProperties": False,
    }


def names_in(schema: object) -> Iterator[str]:
    """The definitions that a schema refers to."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"].rpartition("/")[2]
        schema = list(schema.values())
    if isinstance(schema, list):
        for each in schema:
            yield from names_in(each)


# -- commands --------------------------------------------------------------------------------------


def commands() -> dict[str, Command]:
    """Every command that answers in JSON, by the name of its file.

    debug runs a script and explorer a server, which have none.
    """
    found: dict[str, Command] = {}
    for name, command in Commands().items():
        inner = command.commands if isinstance(command, CommandGroup) else {"": command}
        found |= {
            f"{name}-{word}".rstrip("-"): each for word, each in inner.items() if isinstance(each, Command)
        }
    return {name: command for name, command in found.items() if name not in ("debug", "explorer")}


def schema_of(name: str) -> Schema:
    """What a command prints with --json."""
    command = commands()[name]
    version = {
        "const": SCHEMA,
        "description": "the version of this schema: docs/programs.md says what raises it",
    }
    answers = [object_of(answer, schema=version) for answer in (*ANSWERS[name], "ErrorAnswer")]
    defined: dict[str, Schema] = {}
    waiting = list(names_in(answers))
    while waiting:
        if (one := waiting.pop()) not in defined:
            defined[one] = typed(SHORT[one]) if one in SHORT else object_of(one)
            waiting += names_in(defined[one])
    what = command.what[:1].upper() + command.what[1:]
    return {
        "$schema": DIALECT,
        "title": f"llamapar {name.replace('-', ' ', 1)} --json",
        "description": f"{what}. Exit status: {command.exits}, 2 bad usage or bad input.",
        "anyOf": answers,
        "$defs": dict(sorted(defined.items())),
    }


def written() -> dict[str, str]:
    """File name → text, of every schema."""
    return {
        f"{name}.json": f"{json.dumps(schema_of(name), indent=2, ensure_ascii=False)}\n"
        for name in commands()
    }


if __name__ == "__main__":
    from generated import settle  # It lies beside this script.

    schemas = {FOLDER / name: text for name, text in written().items()}
    sys.exit(settle(__doc__, schemas, FOLDER.glob("*.json")))
