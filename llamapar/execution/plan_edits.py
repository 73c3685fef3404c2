"""The style of a plan that is missing or wrong, found by trial on all ranks, beside one process.

A plan is torch's dict for `parallelize_module`. One entry is put in, replaced or taken out at a time; the
cheapest style that makes the ranks equal one process is the answer, shown as a diff of the plan. Left out:
two styles that are wrong at once, names with `*`, and plans that are functions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module

from torch import nn

from .module_task import ModuleTask

_PARALLEL = "torch.distributed.tensor.parallel"

Layouts = tuple[tuple[str, str], ...]
"""Arguments of a style: ("output_layouts", "Shard(1)"), ….

The sequence is dim 1, as torch's own SequenceParallel has it.
"""

_CUT = "Shard(1)"
_WHOLE = "Replicate()"
_IN = "input_layouts"
_OUT = "output_layouts"
_FAR = 0.4
"""What a step away from where the ranks part weighs, beside an argument of a style."""

_LINEAR: tuple[tuple[str, Layouts], ...] = tuple(
    (kind, (*given, *returned))
    for given in ((), ((_IN, _CUT),), ((_IN, _WHOLE),))
    for returned in ((), ((_OUT, _CUT),), ((_OUT, _WHOLE),))
    for kind in ("ColwiseParallel", "RowwiseParallel")
)
_NORM: tuple[tuple[str, Layouts], ...] = (("SequenceParallel", ()),)
_INPUT: tuple[tuple[str, Layouts], ...] = (
    ("PrepareModuleInput", ((_IN, _CUT), ("desired_input_layouts", _WHOLE))),
)


@dataclass(frozen=True)
class PlanEdit:
    """An entry of a plan that is changed. old, new: styles as code, "" for none. tried: edits before it."""

    name: str
    old: str
    new: str
    tried: int = 0

    @property
    def lines(self) -> tuple[str, ...]:
        """The edit as lines of a diff."""
        both = (("-", self.old), ("+", self.new))
        return tuple(f'{sign} "{self.name}": {style}' for sign, style in both if style)


def mended(
    task: ModuleTask, near: str, equal: Callable[[ModuleTask], bool], seconds: float
) -> PlanEdit | None:
    """The first edit with which the ranks equal one process. near: the submodule at which they part."""
    assert isinstance(task.plan, Mapping)
    end = time.monotonic() + seconds
    for tried, (name, old, new) in enumerate(_edits(task, near)):
        if time.monotonic() > end:
            return None
        plan = {key: style for key, style in task.plan.items() if key != name}
        if new is not None:
            plan[name] = _style(*new)
        try:
            fits = equal(replace(task, plan=plan))
        except Exception:  # Most styles do not fit, and each says so in its own way.
            fits = False
        if fits:
            return PlanEdit(name, _as_code(old), _written(*new) if new else "", tried + 1)
    return None


def _edits(task: ModuleTask, near: str) -> Iterator[tuple[str, object, tuple[str, Layouts] | None]]:
    """(entry, its style now, another one), simple styles of near entries first."""
    assert isinstance(task.plan, Mapping)
    plan = dict(task.plan)
    found: list[tuple[float, tuple[str, object, tuple[str, Layouts] | None]]] = []
    for name, module in task.made("meta").named_modules():
        old = plan.get(name)
        far = _distance(name, near)
        for kind, layouts in _styles(module):
            if _as_code(old) != _written(kind, layouts):
                # A style of the same class only lacks a layout.
                other = old is not None and type(old).__name__ != kind
                found.append((len(layouts) + other + _FAR * far, (name, old, (kind, layouts))))
        if old is not None:
            found.append((2 + _FAR * far, (name, old, None)))
    found.sort(key=lambda row: row[0])
    yield from (edit for _, edit in found)


def _styles(module: nn.Module) -> tuple[tuple[str, Layouts], ...]:
    """The styles that a module may have."""
    if isinstance(module, nn.Linear | nn.Embedding):
        return _LINEAR
    if any(True for _ in module.children()):
        return _INPUT
    if any(True for _ in module.parameters()):
        return _NORM
    return ()


def _distance(name: str, near: str) -> int:
    """How far an entry is from where the ranks part, in steps of its name."""
    one = name.replace("*", "0").split(".")
    other = near.split(".")
    same = next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
    return len(one) + len(other) - 2 * same


def _style(kind: str, layouts: Layouts) -> object:
    tensor = import_module("torch.distributed.tensor")  # slow to import, and rarely needed
    placed = {_CUT: tensor.Shard(1), _WHOLE: tensor.Replicate()}
    return getattr(import_module(_PARALLEL), kind)(**{name: placed[layout] for name, layout in layouts})


def _written(kind: str, layouts: Layouts) -> str:
    """A style as code."""
    return f"{kind}({', '.join(f'{name}={layout}' for name, layout in layouts)})"


def _as_code(style: object) -> str:
    """A style of a plan as code, without what is its default; "" of none."""
    if style is None:
        return ""
    kind = type(style).__name__
    own = vars(style)
    usual = {} if kind == "PrepareModuleInput" else vars(type(style)())
    words = []
    for name in (_IN, "desired_input_layouts", _OUT):
        if own.get(name) and own[name] != usual.get(name) and (name != "desired_input_layouts" or not usual):
            placed = ", ".join(map(_placement, own[name]))
            words.append(f"{name}=({placed})" if len(own[name]) > 1 else f"{name}={placed}")
    return f"{kind}({', '.join(words)})"


def _placement(placement: object) -> str:
    dim = getattr(placement, "dim", None)
    return f"{type(placement).__name__}({'' if dim is None else dim})"
