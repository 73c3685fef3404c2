"""Public functions that take what `read_settings` read in place of a model and its layout."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from inspect import Parameter
from typing import ParamSpec, Protocol, TypeVar, cast, overload

from llamapar.errors import LayoutError

from .reading import Settings

Given = ParamSpec("Given")
Otherwise = ParamSpec("Otherwise")
Result = TypeVar("Result", covariant=True)


class TakesSettings(Protocol[Given, Otherwise, Result]):
    """A function of a model, or of settings and of what is to be otherwise than they say."""

    @overload
    def __call__(self, settings: Settings, /, *_: Otherwise.args, **given: Otherwise.kwargs) -> Result: ...
    @overload
    def __call__(self, *args: Given.args, **given: Given.kwargs) -> Result: ...


def takes_settings(
    otherwise: Callable[Otherwise, object],
) -> Callable[[Callable[Given, Result]], TakesSettings[Given, Otherwise, Result]]:
    """Settings in the place of `model` say it, the layout, the framework and every fact that is not given.

    otherwise: the TypedDict of what may be given beside settings, which type checkers read.
    The decorated function raises LlamaparError for what it needs, and neither settings nor caller say.
    """

    def decorate(function: Callable[Given, Result]) -> TakesSettings[Given, Otherwise, Result]:
        known = inspect.signature(function).parameters

        @wraps(function)
        def call(*args: object, **given: object) -> object:
            if not args or not isinstance(args[0], Settings):
                return cast("Callable[..., object]", function)(*args, **given)
            settings, said = args[0], dict(zip([*known][1:], args[1:], strict=False)) | given
            held = {name: value for name, value in settings.facts().items() if name in known}
            held |= {"framework": settings.judge} | said
            if "layout" in known and held.get("layout") is None:
                held["layout"] = settings.to_layout()
            for name, parameter in known.items():
                if parameter.default is Parameter.empty and name not in held and name != "model":
                    why = settings.unknown.get(name, "the files do not say it")
                    raise LayoutError(f"{name} is not known", why, [f"{name}=…"], name)
            return cast("Callable[..., object]", function)(settings.model_config(), **held)

        return cast("TakesSettings[Given, Otherwise, Result]", call)

    return decorate
