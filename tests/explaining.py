"""Error texts that tests of `lp.explain` put together, and its answer in a line."""

from __future__ import annotations

from typing import Any

import llamapar as lp

LOADED = "size mismatch for {}: copying a param with shape torch.Size({}) from checkpoint, the shape in "
LOADED += "current model is torch.Size({})."
MEET = "RuntimeError: The size of tensor a ({}) must match the size of tensor b ({}) at non-singleton "
MEET += "dimension {}"
VIEW = "RuntimeError: shape '{}' is invalid for input of size {}"
PRODUCT = "RuntimeError: mat1 and mat2 shapes cannot be multiplied ({}x{} and {}x4096)"
BATCHES = "ValueError: Expected input batch_size ({}) to match target batch_size ({})."
ZERO = "ZeroDivisionError: integer division or modulo by zero"
KV = VIEW.format("[1, 8192, -1, 128]", 524288)


def frame(line: str, message: str, function: str = "forward") -> str:
    """A traceback that ends in this line of source."""
    return f'Traceback (most recent call last):\n  File "x.py", line 3, in {function}\n    {line}\n{message}'


def said(what: Any, **known: Any) -> str:
    """`verdict: category, level` of the first cause, or the verdict alone."""
    told = lp.explain(what, context=known)
    return f"{told.verdict}: {told.best.title}, {told.best.level}" if told.best else str(told.verdict)


def categories(what: Any, **known: Any) -> list[str]:
    """Of every cause that is told, the likeliest first."""
    return [d.category for d in lp.explain(what, context=known).diagnoses]
