"""A tensor: a list of Python numbers, seen by shape, strides and an offset as torch sees its storage.

Views share the list, so that what is written into a view is seen by its base. Numbers are Python's: floats
are float64 whatever their dtype says, and the watched data is of float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


class NotHere(AttributeError):
    """A call of torch that this page has not."""

    def __init__(self, call: str) -> None:
        super().__init__(f"{call} is not in this page's stand-in of torch; `make lab` runs it")


class Size(tuple):
    """A shape."""

    def numel(self) -> int:
        return math.prod(self)

    def __repr__(self) -> str:
        return f"torch.Size({list(self)})"


class DType:
    """A dtype. rank: of two that meet the higher wins. made: what makes a number of it."""

    def __init__(self, name: str, rank: int, made: type, itemsize: int) -> None:
        self.name, self.rank, self.made, self.itemsize = name, rank, made, itemsize

    @property
    def is_floating_point(self) -> bool:
        return self.made is float

    def __repr__(self) -> str:
        return f"torch.{self.name}"


bool_ = DType("bool", 0, bool, 1)
uint8 = DType("uint8", 1, int, 1)
int32 = DType("int32", 2, int, 4)
int64 = DType("int64", 3, int, 8)
bfloat16 = DType("bfloat16", 4, float, 2)
float16 = DType("float16", 4, float, 2)
float32 = DType("float32", 5, float, 4)
float64 = DType("float64", 6, float, 8)
complex128 = DType("complex128", 7, complex, 16)
OF_NUMBERS = {bool: bool_, int: int64, float: float32, complex: complex128}


def steps(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a tensor whose numbers lie one after the other."""
    found, step = [], 1
    for size in reversed(shape):
        found.append(step)
        step *= size
    return tuple(reversed(found))


class Storage:
    """What every tensor is made of; `tensors.Tensor` adds what can be done with it."""

    requires_grad = False
    grad_fn = None
    is_meta = is_cuda = False

    def _set(self, data: list, shape: Iterable[int], dtype: DType, strides=None, offset: int = 0):
        self.data, self.shape, self.dtype, self.offset = data, Size(shape), dtype, offset
        self.strides = steps(self.shape) if strides is None else tuple(strides)
        return self

    @classmethod
    def of(cls, data: list, shape: Iterable[int], dtype: DType) -> Storage:
        return cls.__new__(cls)._set(data, shape, dtype)

    def seen(self, shape: Iterable[int], strides: Iterable[int], offset: int | None = None) -> Storage:
        """A view: the same numbers by another shape."""
        offset = self.offset if offset is None else offset
        return type(self).__new__(type(self))._set(self.data, shape, self.dtype, strides, offset)

    def lies_flat(self) -> bool:
        """Whether its numbers lie one after the other."""
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != step:
                return False
            step *= size
        return True

    def rows_at(self) -> list[int]:
        """Where each row along the last dim begins."""
        at = [self.offset]
        for size, stride in zip(self.shape[:-1], self.strides[:-1], strict=True):
            at = [i + j for i in at for j in range(0, size * stride, stride)] if stride else at_each(at, size)
        return at

    def flat(self) -> list:
        """Its numbers in order: a list that nobody else has."""
        if self.lies_flat():
            return self.data[self.offset : self.offset + self.shape.numel()]
        size, stride, data = self.shape[-1], self.strides[-1], self.data
        found: list = []
        for i in self.rows_at():
            found += data[i : i + (size - 1) * stride + 1 : stride] if stride and size else [data[i]] * size
        return found

    def write(self, numbers: list) -> None:
        """Other numbers in their places."""
        if self.lies_flat():
            self.data[self.offset : self.offset + self.shape.numel()] = numbers
            return
        size, stride, made = self.shape[-1], self.strides[-1], iter(numbers)
        for i in self.rows_at():
            for j in range(size):
                self.data[i + j * stride] = next(made)


def at_each(at: list[int], size: int) -> list[int]:
    """The same places for each index of a dim that is expanded."""
    return [i for i in at for _ in range(size)]


def dim_of(dim: int, dims: int) -> int:
    """A dim counted from the first."""
    if not -max(dims, 1) <= dim < max(dims, 1):
        what = f"Dimension out of range (expected to be in range of [{-max(dims, 1)}, {max(dims, 1) - 1}], "
        raise IndexError(f"{what}but got {dim})")
    return dim % max(dims, 1)


def shape_of(sizes: Sequence, numel: int) -> tuple[int, ...]:
    """The sizes of a view, of which one may be -1."""
    sizes = tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else tuple(sizes)
    known = math.prod(n for n in sizes if n != -1)
    free = sizes.count(-1)
    if free > 1:
        raise RuntimeError("only one dimension can be inferred")
    if (free and (known == 0 or numel % known)) or (not free and known != numel):
        raise RuntimeError(f"shape '{list(sizes)}' is invalid for input of size {numel}")
    return tuple(numel // known if n == -1 else n for n in sizes)


def strides_of_view(t: Storage, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides by which the numbers are seen in another shape where they lie; None where there are none."""
    if t.lies_flat():
        return steps(shape)
    blocks: list[list[int]] = []  # [numbers, stride of the last dim] of dims that lie in one piece
    for size, stride in zip(t.shape, t.strides, strict=True):
        if blocks and blocks[-1][1] == size * stride:
            blocks[-1] = [blocks[-1][0] * size, stride]
        elif size != 1:
            blocks.append([size, stride])
    found: list[int] = []
    left, stride = blocks.pop() if blocks else (1, 1)
    for size in reversed(shape):
        if left == 1 and size != 1 and blocks:
            left, stride = blocks.pop()
        if left % size:
            return None
        found.append(stride)
        left, stride = left // size, stride * size
    return tuple(reversed(found)) if left == 1 and not blocks else None


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape that all expand to. RuntimeError, in torch's words, for two that do not."""
    made: list[int] = []
    for shape in shapes:
        wide = max(len(made), len(shape))
        one = [1] * (wide - len(made)) + made
        two = [1] * (wide - len(shape)) + list(shape)
        for dim in reversed(range(wide)):
            if 1 not in (one[dim], two[dim]) and one[dim] != two[dim]:
                raise RuntimeError(
                    f"The size of tensor a ({one[dim]}) must match the size of tensor b ({two[dim]}) "
                    f"at non-singleton dimension {dim}"
                )
        made = [b if a == 1 else a for a, b in zip(one, two, strict=True)]
    return tuple(made)
