"""The arguments of public functions: what Shift-Tab shows, and the errors for a wrong name or value.

A public function takes its options as `**options: Unpack[…]`: which there are, with their types and defaults,
says the table of options alone. Type checkers read the same from describe/keywords.pyi. The decorators here
make completion, error messages and the calls stored on records from the table.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterable, Mapping
from functools import wraps
from inspect import Parameter
from typing import TypeVar, cast

from llamapar.errors import LayoutError, one_of
from llamapar.late import PUBLIC
from llamapar.records.calls import Call
from llamapar.records.tables import Record

from .layout import Layout
from .option_rows import NEEDED, OTHER_TYPES
from .options import LAYOUT, OPTIONS, annotation, default, may_be_none, options_of

MOVED = {("run", "plan"): "lp.compare(make, plan, layout), for a module of your own"}
"""A function and an argument that it had → who has it now."""

BY_SUBJECT = ("live",)
"""Functions whose first argument, once given, decides which others there are: they refuse a wrong name."""

Function = TypeVar("Function", bound=Callable[..., object])


def checked_options(function: Function) -> Function:
    """Decorator of public functions: refuse wrong names and values, and complete the options.

    The function gets every option that the table says it takes, as given or as its default; degrees of a
    layout by name become part of `layout`. The decorated function raises LayoutError for an unknown argument,
    with the nearest names, for missing arguments, with their names, and for a value that its row does not
    allow. A record that it returns stores its call.
    """
    return _decorated(function, function.__name__, complete=True)


def named_options(whose: str) -> Callable[[Function], Function]:
    """Decorator of what takes the options of the panel or function `whose`: it refuses wrong names alone.

    The function gets what is given and no more, for what is not given stays as it is, or is unknown.
    """
    return lambda function: _decorated(function, whose, complete=False)


def _decorated(function: Function, whose: str, complete: bool) -> Function:
    signature = inspect.signature(function)
    *own, last = signature.parameters.values()
    options: dict[str, Parameter] = {}
    if last.kind is Parameter.VAR_KEYWORD:
        names = [name for name in options_of(whose) if name not in signature.parameters]
        options = {name: _parameter(name, whose) for name in names}
        signature = signature.replace(parameters=[*own, *options.values()])
    known = signature.parameters
    by_name = [p.name for p in known.values() if p.kind is Parameter.KEYWORD_ONLY]
    needed = {p.name for p in known.values() if p.default is p.empty and p.kind is not p.VAR_POSITIONAL}
    choices = by_name or [name for name in known if name != "self"]
    by_place = [name for name in known if name not in by_name]
    in_layout = [name for name in LAYOUT if name in options and "layout" in by_place]
    usual = {name: p.default for name, p in options.items() if name not in in_layout}
    nullable = {name for name in usual if may_be_none(name, whose)}
    judged = {name for name in usual if (name, whose) not in OTHER_TYPES}

    @wraps(function)
    def call(*args: object, **given: object) -> object:
        missing = needed.difference(by_place[: len(args)], given)
        if (missing or whose not in BY_SUBJECT) and not known.keys() >= given.keys():
            _refuse(function, given, known, choices)
        if missing:
            raise _not_given(function, by_place, [name for name in known if name in missing])
        said = dict(zip(known, args, strict=False)) | given
        if not complete or not options:
            made = function(*args, **given)
        else:  # every option, checked or as its default, beside the other arguments
            full = dict(said)
            degrees = {name: full.pop(name) for name in in_layout if name in full}
            if degrees:
                full["layout"] = Layout.of(full.get("layout"), **degrees)  # type: ignore[arg-type]
            for name in judged & full.keys():
                if full[name] is not None or name not in nullable:
                    full[name] = OPTIONS[name].checked(full[name])
            made = function(**usual | full)
        if isinstance(made, Record):
            vars(made)["_call"] = call_of(call, said)  # a frozen record: it keeps the call that made it
        return made

    # Python shows an Unpack as one parameter, of whose names completion would offer none.
    call.__signature__ = signature  # type: ignore[attr-defined]
    return cast(Function, call)


def _refuse(
    function: Callable[..., object], given: Iterable[str], known: Container[str], offer: list[str]
) -> None:
    """Raise LayoutError for the first given argument that the function does not have."""
    unknown = next(name for name in given if name not in known)
    if (function.__name__, unknown) in MOVED:
        what = f"{unknown}=… is no argument of lp.{function.__name__}"
        raise LayoutError(what, "", [MOVED[function.__name__, unknown]], unknown)
    one_of("argument", unknown, offer)


def _not_given(function: Callable[..., object], by_place: list[str], missing: list[str]) -> LayoutError:
    why = f"{function.__name__}({', '.join(by_place)}) has no default for what it cannot know"
    usable = [", ".join(f"{name}=…" for name in missing)]
    return LayoutError(f"not given: {', '.join(missing)}", why, usable, missing[0])


def _parameter(name: str, function: str) -> Parameter:
    """An option as a parameter of a public function."""
    usual = default(name, function)
    if name in NEEDED.get(function, ()):
        usual = Parameter.empty
    return Parameter(name, Parameter.KEYWORD_ONLY, default=usual, annotation=annotation(name, function))


def call_of(function: Callable[..., object], given: Mapping[str, object]) -> Call:
    """The call of a public function or of a record's method, with its arguments by name.

    Fields of a layout become arguments of their own (tp=8), except those at their defaults.
    """
    known = inspect.signature(function).parameters
    said = dict(given)
    owner = getattr(said.pop("self", None), "call", None)
    if said.get("layout") is not None and "tp" in known:
        layout, usual = vars(Layout.of(said.pop("layout"))), vars(Layout())  # type: ignore[arg-type]
        said = {n: v for n, v in layout.items() if v != usual[n] or n == "tp"} | said
    needed = [
        n for n, p in known.items() if n in said and p.default is p.empty and p.kind is not p.KEYWORD_ONLY
    ]
    arguments = dict.fromkeys(needed) | said  # what stands by position comes first
    # A method is called on the call of its record, a function on its module.
    home = owner or ("lp" if function.__name__ in PUBLIC else "lp.course")
    return Call(f"{home}.{function.__name__}", arguments, len(needed))
