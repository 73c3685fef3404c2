"""Operators that compute: one number from one or two, and one from a row."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

from .storage import (
    OF_NUMBERS,
    DType,
    Storage,
    bool_,
    broadcast,
    dim_of,
    float32,
    int64,
    uint8,
)

OPERATORS: dict[str, Callable] = {}
"""Name → function of tensors of one rank."""


def op(function: Callable) -> Callable:
    OPERATORS[function.__name__] = function
    return function


def like(t: Storage, numbers: list, dtype: DType | None = None, shape=None) -> Storage:
    return type(t).of(numbers, t.shape if shape is None else shape, dtype or t.dtype)


def expand(t: Storage, *sizes) -> Storage:
    shape = tuple(sizes[0]) if isinstance(sizes[0], tuple | list) else sizes
    more = len(shape) - len(t.shape)
    own, strides = (1,) * more + t.shape, (0,) * more + t.strides
    for dim, (size, wanted) in enumerate(zip(own, shape, strict=True)):
        if size not in (1, wanted) and wanted != -1:
            raise RuntimeError(
                f"The expanded size of the tensor ({wanted}) must match the existing size ({size}) at "
                f"non-singleton dimension {dim}.  Target sizes: {list(shape)}.  Tensor sizes: {list(t.shape)}"
            )
    made = [size if wanted == -1 else wanted for size, wanted in zip(own, shape, strict=True)]
    return t.seen(made, [s if n == w else 0 for n, w, s in zip(own, made, strides, strict=True)], t.offset)


op(expand)

# -- one number from one or two ----------------------------------------------------------------


def of_both(a: object, b: object) -> DType:
    """The dtype of two that meet; of a number beside a tensor only its kind counts."""
    tensors = [x.dtype for x in (a, b) if isinstance(x, Storage)]
    found = max(tensors, key=lambda dtype: dtype.rank)
    for x in (a, b):
        if not isinstance(x, Storage):
            own = OF_NUMBERS[type(x)]
            kinds = (bool, int, float, complex)
            found = own if kinds.index(own.made) > kinds.index(found.made) else found
    return found


def pairs(a: object, b: object):
    """(tensor whose class it is, shape, the numbers of a, those of b)."""
    if isinstance(a, Storage) and isinstance(b, Storage):
        shape = broadcast(a.shape, b.shape)
        return a, shape, *(x.flat() if x.shape == shape else expand(x, shape).flat() for x in (a, b))
    if isinstance(a, Storage):
        numbers = a.flat()
        return a, a.shape, numbers, [b] * len(numbers)
    numbers = b.flat()
    return b, b.shape, [a] * len(numbers), numbers


def _two(of: Callable, result: Callable[[DType], DType] = lambda dtype: dtype) -> Callable:
    def compute(a, b):
        t, shape, first, second = pairs(a, b)
        return like(t, list(map(of, first, second)), result(of_both(a, b)), shape)

    return compute


def _divided(x, y):
    try:
        return x / y
    except ZeroDivisionError:
        return math.nan if x == 0 or x != x else math.copysign(math.inf, x) * math.copysign(1, y)


def _logaddexp(x: float, y: float) -> float:
    high, low = max(x, y), min(x, y)
    return high if low == -math.inf or high == math.inf else high + math.log1p(math.exp(low - high))


def _float(dtype: DType) -> DType:
    return dtype if dtype.made in (float, complex) else float32


def _bool(_: DType) -> DType:
    return bool_


_BINARY = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "pow": operator.pow,
    "maximum": max,
    "minimum": min,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
}
_COMPARED = ("lt", "le", "gt", "ge", "eq", "ne")
OPERATORS |= {name: _two(of) for name, of in _BINARY.items()}
OPERATORS |= {name: _two(getattr(operator, name), _bool) for name in _COMPARED}
OPERATORS |= {"div": _two(_divided, _float), "logaddexp": _two(_logaddexp, _float)}


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else math.exp(max(x, -745.0)) * (x > -math.inf)


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf if x == 0 else math.nan


def _sqrt(x: float) -> float:
    return math.sqrt(x) if x >= 0 else math.nan


def _near(x: float) -> float:
    return float(round(x)) if math.isfinite(x) else x


_FLOATS = {
    "exp": _exp,
    "log": _log,
    "sqrt": _sqrt,
    "rsqrt": lambda x: _divided(1.0, _sqrt(x)),
    "cos": math.cos,
    "sin": math.sin,
    "tanh": math.tanh,
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "relu": lambda x: max(x, 0.0),
    "round": _near,
}
_SAME = {"neg": operator.neg, "abs": abs, "square": lambda x: x * x}
_ASKED = {"isnan": lambda x: x != x, "isinf": lambda x: abs(x) == math.inf, "logical_not": operator.not_}


def _one(of: Callable, result: Callable[[DType], DType] = lambda dtype: dtype) -> Callable:
    return lambda t: like(t, list(map(of, t.flat())), result(t.dtype))


OPERATORS |= {name: _one(of, _float) for name, of in _FLOATS.items()}
OPERATORS |= {name: _one(of) for name, of in _SAME.items()} | {n: _one(f, _bool) for n, f in _ASKED.items()}


@op
def bitwise_not(t: Storage) -> Storage:
    of = operator.not_ if t.dtype is bool_ else operator.invert
    return like(t, list(map(of, t.flat())))


@op
def nan_to_num(t: Storage, nan=0.0, posinf=None, neginf=None) -> Storage:
    high = 1.7976931348623157e308 if posinf is None else posinf
    swap = {math.inf: high, -math.inf: -high if neginf is None else neginf}
    return like(t, [nan if x != x else swap.get(x, x) for x in t.flat()])


@op
def clamp(t: Storage, min=-math.inf, max=math.inf) -> Storage:
    return like(t, [min if x < min else max if x > max else x for x in t.flat()])


@op
def to(t: Storage, dtype: object) -> Storage:
    if not isinstance(dtype, DType) or dtype is t.dtype:
        return t  # a device: there is one
    if dtype is uint8:
        return like(t, [int(x) % 256 for x in t.flat()], dtype)
    return like(t, list(map(dtype.made, t.flat())), dtype)


@op
def masked_fill(t: Storage, mask: Storage, value) -> Storage:
    shape = broadcast(t.shape, mask.shape)
    given, covered = expand(t, shape).flat(), expand(mask, shape).flat()
    value = t.dtype.made(value.item() if isinstance(value, Storage) else value)
    return like(t, [value if m else x for x, m in zip(given, covered, strict=True)], shape=shape)


@op
def where(mask: Storage, a, b) -> Storage:
    one, two = (x if isinstance(x, Storage) else like(mask, [x], of_both(mask, x), ()) for x in (a, b))
    shape = broadcast(mask.shape, one.shape, two.shape)
    chosen = zip(*(expand(x, shape).flat() for x in (mask, one, two)), strict=True)
    return like(one, [x if m else y for m, x, y in chosen], of_both(one, two), shape)


@op
def lerp_(t: Storage, end: Storage, weight: Storage) -> Storage:
    given = (t.flat(), *(expand(x, t.shape).flat() for x in (end, weight)))
    t.write([a + w * (b - a) if w < 0.5 else b - (b - a) * (1 - w) for a, b, w in zip(*given, strict=True)])
    return t


@op
def allclose(a: Storage, b: Storage, rtol=1e-5, atol=1e-8, equal_nan=False) -> bool:
    _, _, first, second = pairs(a, b)
    return first == second or all(
        x == y or abs(x - y) <= atol + rtol * abs(y) for x, y in zip(first, second, strict=True)
    )


# -- many numbers from rows --------------------------------------------------------------------


def _along(of: Callable, dtype: Callable[[DType], DType], dims, keepdim: bool, t: Storage) -> Storage:
    """`of` of each list of numbers that lie along some dims; of all where none are named."""
    every = dims is None
    dims = range(len(t.shape)) if every else [dims] if isinstance(dims, int) else dims
    away = sorted({dim_of(dim, len(t.shape)) for dim in dims}) if t.shape else []
    kept = [dim for dim in range(len(t.shape)) if dim not in away]
    order = [*kept, *away]
    turned = t.seen([t.shape[d] for d in order], [t.strides[d] for d in order]).flat()
    n = math.prod(t.shape[d] for d in away)
    count = math.prod(t.shape[d] for d in kept)
    made = [of(turned[i * n : (i + 1) * n]) for i in range(count)]
    shape = [1 if d in away else size for d, size in enumerate(t.shape) if keepdim or d not in away]
    return like(t, made, dtype(t.dtype), shape)


def _sum_type(dtype: DType) -> DType:
    return dtype if dtype.made in (float, complex) else int64


def _mean(row: list) -> float:
    return _divided(sum(row), float(len(row)))


def _furthest(of: Callable) -> Callable:
    return lambda row: next((x for x in row if x != x), None) or of(row)


def logsumexp(row: list) -> float:
    top = max(row)
    return top + math.log(sum(math.exp(x - top) for x in row)) if math.isfinite(top) else top


_ROWS = {
    "sum": (sum, _sum_type),
    "mean": (_mean, _float),
    "amax": (_furthest(max), lambda dtype: dtype),
    "amin": (_furthest(min), lambda dtype: dtype),
    "argmax": (lambda row: row.index(max(row)), lambda _: int64),
    "argmin": (lambda row: row.index(min(row)), lambda _: int64),
    "prod": (math.prod, _sum_type),
    "all": (all, _bool),
    "any": (any, _bool),
    "logsumexp": (logsumexp, _float),
}


def _reduction(of: Callable, dtype: Callable[[DType], DType]) -> Callable:
    def reduce(t: Storage, dim=None, keepdim: bool = False) -> Storage:
        return _along(of, dtype, dim, keepdim, t)

    return reduce


OPERATORS |= {name: _reduction(*how) for name, how in _ROWS.items()}


def _extreme(name: str, at: str) -> Callable:
    def found(t: Storage, dim=None, keepdim: bool = False):
        values = OPERATORS[name](t, dim, keepdim)
        return values if dim is None else (values, OPERATORS[at](t, dim, keepdim))

    return found


OPERATORS |= {"max": _extreme("amax", "argmax"), "min": _extreme("amin", "argmin")}


@op
def softmax(t: Storage, dim: int) -> Storage:
    low = OPERATORS["sub"](t, _along(logsumexp, _float, dim, True, t))
    return OPERATORS["exp"](low)


@op
def vector_norm(t: Storage, dim=None, keepdim: bool = False, dtype: DType | None = None) -> Storage:
    return _along(lambda row: math.sqrt(sum(x * x for x in row)), _float, dim, keepdim, t)


@op
def argsort(t: Storage) -> Storage:
    numbers = t.flat()
    return like(t, sorted(range(len(numbers)), key=numbers.__getitem__), int64)
