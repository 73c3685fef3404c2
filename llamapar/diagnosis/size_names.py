"""Names for sizes: "128 = n_heads·head_dim/tp = 512/4", from what a failing frame says of model and ranks.

A size may be a known number, heads times their columns, or one of these over a degree. Left out: a size for
which two names fit: then one fits by chance.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from llamapar.describe.layout import AXES
from llamapar.describe.options import Values
from llamapar.records.frames import stored

from .known import FACTS, MODEL_FIELDS

DEGREE = re.compile(r"(?:^|_)(tp|cp|pp|dp|sp|mp|world_size|world|ranks|shards|gpus|parallel)(?:_|$)")
"""Names of numbers of ranks."""

_HEADS = re.compile(r"head(?!.*(?:dim|size))|^n?h$")
_HEAD_DIM = re.compile(r"(?:dim|size).*head|head.*(?:dim|size)|^h?d$|^size$")

_COUNTER = re.compile(
    r"^(?:_*|i|j|r|idx|index|step|epoch|seed|copies)$|(?:^|[_.])(?:rank|idx|shape\[-?\d+\])$"
)
"""Names of numbers that are no size, or that name one by its place."""

_FEW = 8
"""Sequences in a batch up to which a rank's share of heads may be the same number."""


@dataclass(frozen=True)
class CutDim:
    """A dim of an operand of which this process holds a part. ranks: "tp=4", or "" for a part cut by hand."""

    operand: str
    dim: int
    part: int
    whole: int
    ranks: str = ""


@dataclass(frozen=True)
class NamedSize:
    """A size with its name: "512 = n_heads·head_dim". whole: of a cut dim, else n itself."""

    dim: int
    n: int
    whole: int
    name: str


class SizeNames:
    """Names for sizes, from the integers of the expression, the frame, its object and its config."""

    def __init__(self, numbers: Values, seen: Values, facts: Values, mesh: Mapping[str, int]) -> None:
        model = facts.get("model")
        layout = facts.get("layout")
        own = {**numbers, **seen, **(stored(seen["self"]) if "self" in seen else {}), **facts}
        own |= {name: getattr(model, name) for name in MODEL_FIELDS} if model else {}
        whole: dict[str, int] = {}
        known: set[tuple[int, bool, bool]] = set()
        for name, n in own.items():  # Of equal numbers the name that the expression uses, or the nearest.
            role = (n if type(n) is int else 0, bool(_HEADS.search(name)), bool(_HEAD_DIM.search(name)))
            if not _COUNTER.search(name) and type(n) is int and n > 1 and (role not in known or name in AXES):
                whole[name.rpartition(".")[2]] = n
                known.add(role)
        said = {name: n for name, n in whole.items() if DEGREE.search(name.lower())}
        said |= {axis: n for axis in AXES if layout and (n := getattr(layout, axis)) > 1}
        self.degrees: dict[str, int] = {**said, **mesh}
        self.sizes = {name: n for name, n in whole.items() if name not in self.degrees}

    def named(self, shape: tuple[int, ...], cuts: list[CutDim] | None = None) -> tuple[NamedSize, ...]:
        """Names for the sizes of a shape that have one: "n_heads·head_dim/tp = 512/4"."""
        exact = {cut.dim: cut for cut in cuts or () if cut.ranks}
        told = []
        for dim, n in enumerate(shape):
            cut = exact.get(dim)
            # The first of three dims or more is often a batch: a few sequences fit a share by chance.
            uncut = bool(cut) or (dim == 0 and len(shape) > 2 and n <= _FEW)
            found = list(self._candidates(cut.whole if cut else n, uncut))
            name = ""
            if len(found) == 1:
                name = found[0]
            axis, _, ranks = cut.ranks.partition("=") if cut else ("", "", "")
            part = name
            if cut:
                part = f"{name or 'whole'}/{axis} = {cut.whole}/{ranks}"
            if part:
                told.append(NamedSize(dim, n, cut.whole if cut else n, part))
        return tuple(told)

    def _candidates(self, n: int, whole: bool) -> Iterator[str]:
        """What a size may be: a known one, heads times their columns, or one of these over a degree."""
        heads = {name: k for name, k in self.sizes.items() if _HEADS.search(name)}
        columns = {name: k for name, k in self.sizes.items() if _HEAD_DIM.search(name)}
        # The model's width is its heads' columns by definition, so its own name stands for both.
        widths = [k for name, k in self.sizes.items() if FACTS.get(name) == "dim"]
        products = {f"{a}·{b}": heads[a] * columns[b] for a in heads for b in columns}
        wholes = {**self.sizes, **{name: k for name, k in products.items() if k not in widths}}
        yield from (name for name, size in wholes.items() if size == n > 1)
        for axis, ranks in self.degrees.items() if not whole else ():
            yield from (
                f"{name}/{axis} = {size}/{ranks}" for name, size in wholes.items() if size == n * ranks
            )
