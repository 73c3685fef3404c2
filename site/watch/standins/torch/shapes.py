"""Operators that move numbers: views, pieces, what is put together, and indexes."""

from __future__ import annotations

import itertools
import math

from .numbers import expand, like, op
from .storage import Storage, bool_, broadcast, complex128, dim_of, float64, int64, shape_of, strides_of_view


@op
def view(t: Storage, *sizes) -> Storage:
    shape = shape_of(sizes, t.shape.numel())
    strides = strides_of_view(t, shape)
    if strides is None:
        what = (
            "view size is not compatible with input tensor's size and stride (at least one dimension spans "
        )
        raise RuntimeError(f"{what}across two contiguous subspaces). Use .reshape(...) instead.")
    return t.seen(shape, strides)


@op
def reshape(t: Storage, *sizes) -> Storage:
    shape = shape_of(sizes, t.shape.numel())
    strides = strides_of_view(t, shape)
    return like(t, t.flat(), shape=shape) if strides is None else t.seen(shape, strides)


@op
def flatten(t: Storage, start: int = 0, end: int = -1) -> Storage:
    start, end = dim_of(start, len(t.shape)), dim_of(end, len(t.shape))
    return reshape(t, *t.shape[:start], math.prod(t.shape[start : end + 1]), *t.shape[end + 1 :])


@op
def unflatten(t: Storage, dim: int, sizes) -> Storage:
    dim = dim_of(dim, len(t.shape))
    return view(t, *t.shape[:dim], *shape_of(sizes, t.shape[dim]), *t.shape[dim + 1 :])


@op
def permute(t: Storage, *dims) -> Storage:
    order = dims[0] if isinstance(dims[0], tuple | list) else dims
    order = [dim_of(dim, len(t.shape)) for dim in order]
    return t.seen([t.shape[d] for d in order], [t.strides[d] for d in order])


@op
def transpose(t: Storage, one: int, two: int) -> Storage:
    order = list(range(len(t.shape)))
    one, two = dim_of(one, len(order)), dim_of(two, len(order))
    order[one], order[two] = order[two], order[one]
    return permute(t, order)


@op
def movedim(t: Storage, source: int, to: int) -> Storage:
    order = list(range(len(t.shape)))
    order.insert(dim_of(to, len(order)), order.pop(dim_of(source, len(order))))
    return permute(t, order)


@op
def contiguous(t: Storage) -> Storage:
    return t if t.lies_flat() else like(t, t.flat())


@op
def clone(t: Storage) -> Storage:
    return like(t, t.flat())


@op
def detach(t: Storage) -> Storage:
    return t.seen(t.shape, t.strides)


@op
def view_as(t: Storage, other: Storage) -> Storage:
    return view(t, other.shape)


@op
def unsqueeze(t: Storage, dim: int) -> Storage:
    dim %= len(t.shape) + 1
    return t.seen((*t.shape[:dim], 1, *t.shape[dim:]), (*t.strides[:dim], 0, *t.strides[dim:]))


@op
def squeeze(t: Storage, dim: int) -> Storage:
    dim = dim_of(dim, len(t.shape))
    return select(t, dim, 0) if t.shape[dim] == 1 else t.seen(t.shape, t.strides)


@op
def select(t: Storage, dim: int, index: int) -> Storage:
    dim = dim_of(dim, len(t.shape))
    size = t.shape[dim]
    if not -size <= index < size:
        raise IndexError(f"index {index} is out of bounds for dimension {dim} with size {size}")
    offset = t.offset + index % size * t.strides[dim]
    return t.seen(t.shape[:dim] + t.shape[dim + 1 :], t.strides[:dim] + t.strides[dim + 1 :], offset)


@op
def narrow(t: Storage, dim: int, start: int, length: int) -> Storage:
    dim = dim_of(dim, len(t.shape))
    if start + length > t.shape[dim]:
        raise RuntimeError(f"start ({start}) + length ({length}) exceeds dimension size ({t.shape[dim]}).")
    shape = (*t.shape[:dim], length, *t.shape[dim + 1 :])
    return t.seen(shape, t.strides, t.offset + start * t.strides[dim])


@op
def split(t: Storage, sizes, dim: int = 0) -> tuple:
    whole = t.shape[dim]
    if isinstance(sizes, int):
        sizes = [min(sizes, whole - at) for at in range(0, whole, sizes)]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(narrow(t, dim, at, size) for at, size in zip(starts, sizes, strict=True))


@op
def chunk(t: Storage, chunks: int, dim: int = 0) -> tuple:
    return split(t, -(-t.shape[dim] // chunks), dim)


@op
def unbind(t: Storage, dim: int = 0) -> tuple:
    return tuple(select(t, dim, i) for i in range(t.shape[dim]))


# -- put together ------------------------------------------------------------------------------


@op
def cat(tensors, dim: int = 0) -> Storage:
    first, dim = tensors[0], dim_of(dim, len(tensors[0].shape))
    for i, t in enumerate(tensors):
        for size, own in zip(first.shape[:dim] + first.shape[dim + 1 :], t.shape[:dim] + t.shape[dim + 1 :]):  # noqa: B905
            if size != own:
                what = f"Sizes of tensors must match except in dimension {dim}. Expected size {size} but got "
                raise RuntimeError(f"{what}size {own} for tensor number {i} in the list.")
    widths = [math.prod(t.shape[dim:]) for t in tensors]
    flats, made = [t.flat() for t in tensors], []
    for i in range(math.prod(first.shape[:dim])):
        for numbers, width in zip(flats, widths, strict=True):
            made += numbers[i * width : (i + 1) * width]
    dtype = max((t.dtype for t in tensors), key=lambda dtype: dtype.rank)
    total = sum(t.shape[dim] for t in tensors)
    return like(first, made, dtype, (*first.shape[:dim], total, *first.shape[dim + 1 :]))


@op
def stack(tensors, dim: int = 0) -> Storage:
    return cat([unsqueeze(t, dim) for t in tensors], dim % (len(tensors[0].shape) + 1))


@op
def repeat(t: Storage, *times) -> Storage:
    wide = t.seen(
        (1,) * (len(times) - len(t.shape)) + t.shape, (0,) * (len(times) - len(t.shape)) + t.strides
    )
    for dim, n in enumerate(times):
        wide = cat([wide] * n, dim)
    return wide


@op
def repeat_interleave(t: Storage, times: int, dim: int) -> Storage:
    return index_select(t, dim, [i for i in range(t.shape[dim]) for _ in range(times)])


@op
def roll(t: Storage, shift: int, dim: int) -> Storage:
    return index_select(t, dim, [(i - shift) % t.shape[dim] for i in range(t.shape[dim])])


@op
def index_select(t: Storage, dim: int, index) -> Storage:
    rows = index.flat() if isinstance(index, Storage) else index
    dim = dim_of(dim, len(t.shape))
    if any(not 0 <= i < t.shape[dim] for i in rows):
        raise IndexError("index out of range in self")
    width, size, numbers = math.prod(t.shape[dim + 1 :]), t.shape[dim], t.flat()
    made: list = []
    for i in range(math.prod(t.shape[:dim])):
        for j in rows:
            at = (i * size + j) * width
            made += numbers[at : at + width]
    return like(t, made, shape=(*t.shape[:dim], len(rows), *t.shape[dim + 1 :]))


@op
def gather(t: Storage, dim: int, index: Storage) -> Storage:
    dim = dim_of(dim, len(t.shape))
    assert dim == len(t.shape) - 1
    size, width, numbers, made = t.shape[-1], index.shape[-1], t.flat(), []
    for i, j in enumerate(index.flat()):
        if not 0 <= j < size:
            raise RuntimeError(f"index {j} is out of bounds for dimension {dim} with size {size}")
        made.append(numbers[i // width * size + j])
    return like(t, made, shape=index.shape)


@op
def embedding(index: Storage, table: Storage) -> Storage:
    return like(table, index_select(table, 0, index).data, shape=(*index.shape, *table.shape[1:]))


@op
def pad(t: Storage, sizes, mode: str = "constant", value=0.0) -> Storage:
    for i in range(0, len(sizes), 2):
        dim = len(t.shape) - 1 - i // 2
        for n, at_end in ((sizes[i], False), (sizes[i + 1], True)):
            if n > 0:
                shape = (*t.shape[:dim], n, *t.shape[dim + 1 :])
                more = like(t, [t.dtype.made(value)] * math.prod(shape), shape=shape)
                t = cat([t, more] if at_end else [more, t], dim)
            elif n < 0:
                t = narrow(t, dim, 0 if at_end else -n, t.shape[dim] + n)
    return t


@op
def triu(t: Storage, diagonal: int = 0) -> Storage:
    rows, columns = t.shape[-2:]
    keep = [j - i >= diagonal for i in range(rows) for j in range(columns)]
    zero = t.dtype.made(0)
    return like(t, [x if keep[i % len(keep)] else zero for i, x in enumerate(t.flat())])


@op
def tril(t: Storage, diagonal: int = 0) -> Storage:
    rows, columns = t.shape[-2:]
    keep = [j - i <= diagonal for i in range(rows) for j in range(columns)]
    zero = t.dtype.made(0)
    return like(t, [x if keep[i % len(keep)] else zero for i, x in enumerate(t.flat())])


@op
def one_hot(t: Storage, classes: int) -> Storage:
    made = [int(i == j) for i in t.flat() for j in range(classes)]
    return like(t, made, int64, (*t.shape, classes))


@op
def view_as_complex(t: Storage) -> Storage:
    numbers = t.flat()
    return like(t, list(map(complex, numbers[::2], numbers[1::2])), complex128, t.shape[:-1])


@op
def view_as_real(t: Storage) -> Storage:
    return like(t, [part for x in t.flat() for part in (x.real, x.imag)], float64, (*t.shape, 2))


@op
def copy_(t: Storage, other: Storage) -> Storage:
    t.write(list(map(t.dtype.made, expand(other, t.shape).flat())))
    return t


# -- indexes -----------------------------------------------------------------------------------


@op
def nonzero(t: Storage) -> Storage:
    found = [i for i, x in enumerate(t.flat()) if x]
    made = []
    for i in found:
        place = []
        for size in reversed(t.shape):
            place.append(i % size)
            i //= size
        made += reversed(place)
    return like(t, made, int64, (len(found), len(t.shape)))


def _seen_by(t: Storage, index) -> tuple[Storage, dict[int, Storage]]:
    """The view that an index of numbers, slices, None and … asks for, and dim → the tensors left in it."""
    index = list(index) if isinstance(index, tuple) else [index]
    taken = sum(len(i.shape) if _masks(i) else 1 for i in index if i is not None and i is not Ellipsis)
    if Ellipsis in [i for i in index if not isinstance(i, Storage)]:
        at = next(n for n, i in enumerate(index) if i is Ellipsis)
        index[at : at + 1] = [slice(None)] * (len(t.shape) - taken)
    elif taken > len(t.shape):
        raise IndexError(f"too many indices for tensor of dimension {len(t.shape)}")
    dim, tensors = 0, {}
    for i in index:
        if i is None:
            t, dim = unsqueeze(t, dim), dim + 1
        elif isinstance(i, slice):
            start, stop, step = i.indices(t.shape[dim])
            size, strides = len(range(start, stop, step)), list(t.strides)
            strides[dim] *= step
            shape = (*t.shape[:dim], size, *t.shape[dim + 1 :])
            t, dim = t.seen(shape, strides, t.offset + (start * t.strides[dim] if size else 0)), dim + 1
        elif _masks(i):
            for own in unbind(nonzero(i), 1):
                tensors[dim], dim = own, dim + 1
        elif (isinstance(i, Storage) and i.shape) or isinstance(i, list):
            tensors[dim] = i if isinstance(i, Storage) else like(t, i, int64, (len(i),))
            dim += 1
        else:
            t = select(t, dim, int(i))
    return t, tensors


def _masks(index: object) -> bool:
    return isinstance(index, Storage) and index.dtype is bool_


def _places(t: Storage, tensors: dict[int, Storage]) -> tuple[list[int], tuple[int, ...]]:
    """Where the numbers lie that tensors ask for, and their shape. The tensors' dims are neighbours."""
    dims = sorted(tensors)
    first, last = dims[0], dims[-1]
    shape = broadcast(*(i.shape for i in tensors.values()))
    each = [0] * math.prod(shape)
    for dim in dims:
        size, stride = t.shape[dim], t.strides[dim]
        for n, i in enumerate(expand(tensors[dim], shape).flat()):
            if not -size <= i < size:
                raise IndexError(f"index {i} is out of bounds for dimension {dim} with size {size}")
            each[n] += i % size * stride
    at = [t.offset]
    for size, stride in zip(t.shape[:first], t.strides[:first], strict=True):
        at = [i + j * stride for i in at for j in range(size)]
    at = [i + j for i in at for j in each]
    for size, stride in zip(t.shape[last + 1 :], t.strides[last + 1 :], strict=True):
        at = [i + j * stride for i in at for j in range(size)]
    return at, (*t.shape[:first], *shape, *t.shape[last + 1 :])


@op
def getitem(t: Storage, index) -> Storage:
    if _masks(index) and index.shape == t.shape:  # the usual case, at once
        chosen = list(itertools.compress(t.flat(), index.flat()))
        return like(t, chosen, shape=(len(chosen),))
    seen, tensors = _seen_by(t, index)
    if not tensors:
        return seen
    at, shape = _places(seen, tensors)
    return like(t, [seen.data[i] for i in at], shape=shape)


@op
def setitem(t: Storage, index, value) -> None:
    seen, tensors = _seen_by(t, index)
    at, shape = _places(seen, tensors) if tensors else (None, seen.shape)
    numbers = expand(value, shape).flat() if isinstance(value, Storage) else [value] * math.prod(shape)
    numbers = list(map(t.dtype.made, numbers))
    if at is None:
        seen.write(numbers)
        return
    for i, number in zip(at, numbers, strict=True):
        seen.data[i] = number
