"""Scenes of the steps beside the one that is shown, so that a page can draw a step before the answer comes.

A round trip to the kernel is most of what a step of a slider costs. The panel sends these scenes after its
own payload, as a message of their own, and the page draws one as soon as its step is taken; the answer then
finds the picture standing as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from llamapar.errors import LlamaparError
from llamapar.figures import View

from .page import State


def scenes_ahead(
    state: State, steps: Mapping[str, Iterable[object]], shown: Callable[[State], View | None]
) -> dict[str, object]:
    """ "tp=16" → the scene after this step, for each value of each knob of `steps`.

    shown: the picture of a state. What is refused, and what is no map, is left out.
    """
    scenes: dict[str, object] = {}
    for name, values in steps.items():
        for value in values:
            with suppress(LlamaparError):
                view = shown(state.change({name: value}))
                if view is not None and view.is_map:
                    scenes[f"{name}={value}"] = view.spec
    return scenes
