"""`Tensor` and `LocalTensor`, whose value is one tensor on every rank, and what makes tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from . import shapes
from .dispatch import OF_RANKS, Operator, PerRank
from .numbers import OPERATORS
from .products import attention
from .random import Generator
from .storage import OF_NUMBERS, DType, NotHere, Size, Storage, bool_, float32, float64, int32, int64, uint8

assert shapes  # whose operators are in the table now
CALLED = {name: Operator(name, function) for name, function in OPERATORS.items()}
KERNEL = "_scaled_dot_product_flash_attention_for_cpu"
CALLED[KERNEL] = Operator(KERNEL, attention)

DUNDERS = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "truediv": "div",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "pow",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "matmul": "matmul",
}
COMPARED = ("lt", "le", "gt", "ge", "eq", "ne")
OTHER = {"neg": "neg", "abs": "abs", "invert": "bitwise_not", "getitem": "getitem", "setitem": "setitem"}
ASSIGNED = ("add", "sub", "mul", "div")
NO_METHOD = ("cat", "stack", "where", "embedding", "pad", "one_hot", "polar", "vector_norm", KERNEL)


class Device(str):
    """There is one."""

    type = "cpu"


CPU = Device("cpu")


class Tensor(Storage):
    """A tensor of one rank."""

    device = CPU

    def __getattr__(self, name: str):
        if name.startswith("_") or name in Storage.__annotations__ or name == "pieces":
            raise AttributeError(name)
        raise NotHere(f"Tensor.{name}")

    @property
    def mT(self) -> Tensor:
        return self.transpose(-2, -1)

    @property
    def T(self) -> Tensor:
        return self.transpose(0, 1) if self.dim() == 2 else self.permute(*reversed(range(self.dim())))

    def dim(self) -> int:
        return len(self.shape)

    ndim = property(dim)

    def size(self, dim: int | None = None):
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        return self.shape.numel()

    def element_size(self) -> int:
        return self.dtype.itemsize

    def stride(self, dim: int | None = None):
        return self.strides if dim is None else self.strides[dim]

    def is_contiguous(self) -> bool:
        return self.lies_flat()

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point

    def is_complex(self) -> bool:
        return self.dtype.made is complex

    def requires_grad_(self, wanted: bool = True) -> Tensor:
        return self  # no gradients here: the backward is a recording

    def untyped_storage(self) -> list:
        return self.data

    def cpu(self) -> Tensor:
        return self

    def type_as(self, other: Tensor) -> Tensor:
        return self.to(other.dtype)

    def double(self) -> Tensor:
        return self.to(float64)

    def float(self) -> Tensor:
        return self.to(float32)

    def long(self) -> Tensor:
        return self.to(int64)

    def int(self) -> Tensor:
        return self.to(int32)

    def byte(self) -> Tensor:
        return self.to(uint8)

    def bool(self) -> Tensor:
        return self.to(bool_)

    def new_zeros(self, *shape, dtype: DType | None = None) -> Tensor:
        return full(_sizes(shape), 0, dtype=dtype or self.dtype)

    def new_full(self, shape, value, dtype: DType | None = None) -> Tensor:
        return full(shape, value, dtype=dtype or self.dtype)

    def expand_as(self, other: Tensor) -> Tensor:
        return self.expand(other.shape)

    def masked_fill_(self, mask: Tensor, value) -> Tensor:
        return self.copy_(self.masked_fill(mask, value))

    def item(self):
        numbers = self.tolist()
        while isinstance(numbers, list):
            if len(numbers) != 1:
                n = self.numel()
                raise RuntimeError(f"a Tensor with {n} elements cannot be converted to Scalar")
            numbers = numbers[0]
        return numbers

    def __bool__(self) -> bool:
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    __index__ = __int__

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self):
        return iter(self.unbind(0))

    def __repr__(self) -> str:
        return f"tensor({self.tolist()})"

    __hash__ = object.__hash__

    def tolist(self):
        return _tolist(self)


def _nested(t: Storage):
    numbers = t.flat()
    for size in reversed(t.shape[1:]):
        numbers = [numbers[i : i + size] for i in range(0, len(numbers), size)]
    return numbers if t.shape else numbers[0]


_tolist = Operator("tolist", _nested)


def _method(called: Operator, turned: bool = False) -> Callable:
    if turned:
        return lambda self, other: called(other, self)
    return lambda self, *args, **kwargs: called(self, *args, **kwargs)


def _assigned(called: Operator) -> Callable:
    return lambda self, other: self.copy_(called(self, other))


for _name, _called in CALLED.items():
    if _name not in NO_METHOD:
        setattr(Tensor, _name, _method(_called))
for _name, _of in DUNDERS.items():
    setattr(Tensor, f"__{_name}__", _method(CALLED[_of]))
    setattr(Tensor, f"__r{_name}__", _method(CALLED[_of], turned=True))
for _name in COMPARED:
    setattr(Tensor, f"__{_name}__", _method(CALLED[_name]))
for _name, _of in OTHER.items():
    setattr(Tensor, f"__{_name}__", _method(CALLED[_of]))
for _name in ASSIGNED:
    _change = _assigned(CALLED[_name])
    setattr(Tensor, f"{_name}_", _change)
    setattr(Tensor, f"__i{'truediv' if _name == 'div' else _name}__", _change)


class LocalTensor(Tensor, PerRank):
    """One value on every rank: pieces, rank → its tensor. Operators compute rank after rank."""

    def __init__(self, pieces: dict[int, Tensor]) -> None:
        self.pieces = dict(pieces)

    @property
    def _local_tensors(self) -> dict[int, Tensor]:
        return self.pieces

    @property
    def _ranks(self) -> frozenset[int]:
        return frozenset(self.pieces)

    def _of_all(self, what: str):
        found = {getattr(t, what) for t in self.pieces.values()}
        if len(found) > 1:
            raise NotHere(f"the {what} of a tensor that differs between ranks ({sorted(map(str, found))})")
        return found.pop()

    @property
    def shape(self) -> Size:
        return self._of_all("shape")

    @property
    def strides(self) -> tuple[int, ...]:
        return self._of_all("strides")

    @property
    def dtype(self) -> DType:
        return self._of_all("dtype")

    def lies_flat(self) -> bool:
        return all(t.lies_flat() for t in self.pieces.values())

    def contiguous(self) -> Tensor:
        return self if self.lies_flat() else CALLED["contiguous"](self)

    def to(self, dtype: object, **_: object) -> Tensor:
        return CALLED["to"](self, dtype) if isinstance(dtype, DType) and dtype is not self.dtype else self


OF_RANKS.append(LocalTensor)


# -- what makes tensors ------------------------------------------------------------------------


def _sizes(shape) -> tuple[int, ...]:
    return tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], tuple | list) else tuple(shape)


def full(shape, value, *, dtype: DType | None = None, **_: object) -> Tensor:
    dtype = dtype or OF_NUMBERS[type(value)]
    return Tensor.of([dtype.made(value)] * math.prod(shape), shape, dtype)


def zeros(*shape, dtype: DType = float32, **_: object) -> Tensor:
    return full(_sizes(shape), 0, dtype=dtype)


def ones(*shape, dtype: DType = float32, **_: object) -> Tensor:
    return full(_sizes(shape), 1, dtype=dtype)


def _full_like(t: Storage, value, *, dtype: DType | None = None, **_: object) -> Storage:
    return full(t.shape, value, dtype=dtype or t.dtype)


_like = Operator("full_like", _full_like)


def full_like(t: Tensor, value, **how: object) -> Tensor:
    return _like(t, value, **how)


def zeros_like(t: Tensor, **how: object) -> Tensor:
    return _like(t, 0, **how)


def ones_like(t: Tensor, **how: object) -> Tensor:
    return _like(t, 1, **how)


def arange(start, stop=None, step=1, *, dtype: DType | None = None, **_: object) -> Tensor:
    start, stop = (0, start) if stop is None else (start, stop)
    dtype = dtype or OF_NUMBERS[type(start + stop + step)]
    numbers = [dtype.made(start + i * step) for i in range(max(0, math.ceil((stop - start) / step)))]
    return Tensor.of(numbers, (len(numbers),), dtype)


def tensor(value, *, dtype: DType | None = None, **_: object) -> Tensor:
    shape: list[int] = []
    numbers = [value]
    while numbers and isinstance(numbers[0], list | tuple | range):
        shape.append(len(numbers[0]))
        numbers = [x for row in numbers for x in row]
    if dtype is None:
        dtype = max((OF_NUMBERS[type(x)] for x in numbers), key=lambda own: own.rank, default=float32)
    return Tensor.of(list(map(dtype.made, numbers)), shape, dtype)


def eye(rows: int, columns: int | None = None, *, dtype: DType = float32, **_: object) -> Tensor:
    columns = rows if columns is None else columns
    return Tensor.of(
        [dtype.made(i == j) for i in range(rows) for j in range(columns)], (rows, columns), dtype
    )


def randn(shape: Iterable[int], *, generator: Generator, dtype: DType = float32) -> Tensor:
    shape = tuple(shape)
    if dtype is not float64:
        raise NotHere(f"torch.randn of {dtype}")
    return Tensor.of(generator.normal(math.prod(shape)), shape, dtype)


def randint(high: int, shape: Iterable[int], *, generator: Generator) -> Tensor:
    shape = tuple(shape)
    return Tensor.of([generator.below(high) for _ in range(math.prod(shape))], shape, int64)


def promote_types(a: DType, b: DType) -> DType:
    return a if a.rank >= b.rank else b
