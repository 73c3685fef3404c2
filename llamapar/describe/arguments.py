"""The arguments of public functions: what Shift-Tab shows of them, and what is said of a wrong name.

A function that hands options on says whose they are; its signature then names each of them, and a name
that is not one of them is refused in the same words everywhere, before anything is done.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from inspect import Parameter
from typing import TypeVar, cast

from llamapar.errors import LayoutError, one_of
from llamapar.records.calls import Call
from llamapar.records.tables import Record

from .layout import Layout

Function = TypeVar("Function", bound=Callable[..., object])


def keywords_of(function: Callable[..., object], *, without: Iterable[str] = ()) -> list[Parameter]:
    """What a function or class takes by name, or has a default for, some of it left out."""
    found = [p for p in inspect.signature(function).parameters.values() if p.name not in without]
    optional = [p for p in found if p.kind is Parameter.KEYWORD_ONLY or p.default is not Parameter.empty]
    return [p.replace(kind=Parameter.KEYWORD_ONLY) for p in optional]


def keywords(defaults: Mapping[str, object]) -> list[Parameter]:
    """Keyword-only parameters by name, with their defaults."""
    return [Parameter(name, Parameter.KEYWORD_ONLY, default=value) for name, value in defaults.items()]


DEGREES = keywords_of(Layout)
"""The parameters of a function that takes the fields of a layout by name."""


def named(options: Iterable[Parameter] = ()) -> Callable[[Function], Function]:
    """A decorator for a public function: `options` stand for its `**`, and wrong names are refused.

    The decorated function raises LayoutError with the nearest names for an argument that it does not have,
    and with the names of those that it needs and did not get. A record that it returns knows its call.
    """

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
        taken = {p.name for p in own}
        signature = signature.replace(parameters=[*own, *(p for p in options if p.name not in taken)])
        known = signature.parameters
        by_name = [p.name for p in signature.parameters.values() if p.kind is Parameter.KEYWORD_ONLY]
        several = Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD
        needed = [p.name for p in known.values() if p.default is Parameter.empty and p.kind not in several]
        by_place = [name for name in known if name not in by_name]

        @wraps(function)
        def call(*args: object, **given: object) -> object:
            if not known.keys() >= given.keys():
                unknown = next(name for name in given if name not in known)
                one_of("argument", unknown, by_name or [name for name in known if name != "self"])
            if missing := [name for name in needed if name not in (*by_place[: len(args)], *given)]:
                why = f"{function.__name__}({', '.join(by_place)}) has no default for what it cannot know"
                usable = [", ".join(f"{name}=…" for name in missing)]
                raise LayoutError(f"not given: {', '.join(missing)}", why, usable, missing[0])
            made = function(*args, **given)
            if isinstance(made, Record):
                made.note(call_of(call, dict(zip(known, args, strict=False)) | given))
            return made

        call.__signature__ = signature  # type: ignore[attr-defined]
        return cast(Function, call)

    return decorate


def call_of(function: Callable[..., object], given: Mapping[str, object]) -> Call:
    """The call of a public function, or of a record's method, with arguments by name.

    The fields of a layout are named like any other argument, unless they are at their defaults.
    """
    known, said = inspect.signature(function).parameters, dict(given)
    owner = getattr(said.pop("self", None), "call", None)
    if said.get("layout") is not None and "tp" in known:
        layout, usual = vars(Layout.of(said.pop("layout"))), vars(Layout())  # type: ignore[arg-type]
        said = {n: v for n, v in layout.items() if v != usual[n] or n == "tp"} | said
    needed = [
        n for n, p in known.items() if n in said and p.default is p.empty and p.kind is not p.KEYWORD_ONLY
    ]
    arguments = {name: said.pop(name) for name in needed} | said
    return Call(f"{owner or 'lp'}.{function.__name__}", arguments, len(needed))
