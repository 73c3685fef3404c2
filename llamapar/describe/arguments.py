"""The arguments of public functions: what Shift-Tab shows, and the error for a wrong name.

A function names its options in its own annotations: as keyword arguments, or as `**options: Unpack[…]` of a
TypedDict. Type checkers read the annotations, and so does `checked_options`: it makes completion, error
messages and the calls stored on records from them. It does not check the types of values; each function does
that itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter
from typing import TypeVar, cast, get_args

from llamapar.errors import LayoutError, one_of
from llamapar.late import PUBLIC
from llamapar.records.calls import Call
from llamapar.records.tables import Record

from .layout import Layout
from .options import default

MOVED = {("run", "plan"): "lp.compare(make, plan, layout), for a module of your own"}
"""A function and an argument that it had → who has it now."""

Function = TypeVar("Function", bound=Callable[..., object])


def checked_options(function: Function) -> Function:
    """Decorator of public functions: refuse wrong names, and list each option of a `**` in the signature.

    The decorated function raises LayoutError for an unknown argument, with the nearest names, and for missing
    arguments, with their names. A record that it returns stores its call.
    """
    signature = inspect.signature(function)
    *own, last = signature.parameters.values()
    if last.kind is Parameter.VAR_KEYWORD:
        # Only this annotation is evaluated: others may name what is imported for type checkers alone.
        (options,) = get_args(eval(last.annotation, function.__globals__))
        whose = function.__qualname__.partition(".")[0].lower()  # Explorer.set takes what lp.explorer takes
        for name, kind in options.__annotations__.items():
            kind = getattr(kind, "__forward_arg__", kind)  # in the words of its TypedDict
            own.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default(name, whose), annotation=kind))
        signature = signature.replace(parameters=own)
    known = signature.parameters
    by_name = [p.name for p in known.values() if p.kind is Parameter.KEYWORD_ONLY]
    needed = [p.name for p in known.values() if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    by_place = [name for name in known if name not in by_name]

    @wraps(function)
    def call(*args: object, **given: object) -> object:
        if not known.keys() >= given.keys():
            unknown = next(name for name in given if name not in known)
            if (function.__name__, unknown) in MOVED:
                what = f"{unknown}=… is no argument of lp.{function.__name__}"
                raise LayoutError(what, "", [MOVED[function.__name__, unknown]], unknown)
            one_of("argument", unknown, by_name or [name for name in known if name != "self"])
        if missing := [name for name in needed if name not in (*by_place[: len(args)], *given)]:
            why = f"{function.__name__}({', '.join(by_place)}) has no default for what it cannot know"
            usable = [", ".join(f"{name}=…" for name in missing)]
            raise LayoutError(f"not given: {', '.join(missing)}", why, usable, missing[0])
        made = function(*args, **given)
        if isinstance(made, Record):
            made.note(call_of(call, dict(zip(known, args, strict=False)) | given))
        return made

    # Python shows an Unpack as one parameter, of whose names completion would offer none.
    call.__signature__ = signature  # type: ignore[attr-defined]
    return cast(Function, call)


def call_of(function: Callable[..., object], given: Mapping[str, object]) -> Call:
    """The call of a public function or of a record's method, with its arguments by name.

    Fields of a layout become arguments of their own (tp=8), except those at their defaults.
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
    # A method is called on the call of its record, a function on its module.
    home = owner or ("lp" if function.__name__ in PUBLIC else "course")
    return Call(f"{home}.{function.__name__}", arguments, len(needed))
