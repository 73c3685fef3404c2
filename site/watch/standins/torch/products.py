"""Operators that are products: of matrices, of vectors, and attention, which is two of them."""

from __future__ import annotations

import cmath
import math
import operator

from .numbers import expand, like, logsumexp, of_both, op
from .storage import Storage, broadcast, complex128, float64


def _rows(numbers: list, width: int) -> list[list]:
    return [numbers[i : i + width] for i in range(0, len(numbers), width)] if width else []


def product(rows: list[list], columns: list[list]) -> list:
    """All scalar products: of each row with each column."""
    return [sum(map(operator.mul, row, column)) for row in rows for column in columns]


@op
def mm(a: Storage, b: Storage) -> Storage:
    if a.shape[1] != b.shape[0]:
        sizes = f"{a.shape[0]}x{a.shape[1]} and {b.shape[0]}x{b.shape[1]}"
        raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({sizes})")
    if a.dtype is not b.dtype:
        raise RuntimeError(f"expected m1 and m2 to have the same dtype, but got: {a.dtype} != {b.dtype}")
    columns = b.seen(b.shape[::-1], b.strides[::-1]).flat()
    made = product(_rows(a.flat(), a.shape[1]), _rows(columns, b.shape[0]))
    return like(a, made, shape=(a.shape[0], b.shape[1]))


@op
def matmul(a: Storage, b: Storage) -> Storage:
    if len(a.shape) == 1 or len(b.shape) == 1:
        wide = matmul(*(_matrix(x, first) for x, first in ((a, True), (b, False))))
        left = [*wide.shape[:-2], *([] if len(a.shape) == 1 else wide.shape[-2:-1])]
        return like(wide, wide.flat(), shape=left + ([] if len(b.shape) == 1 else [wide.shape[-1]]))
    if len(b.shape) == 2:
        flat = like(a, a.flat(), shape=(math.prod(a.shape[:-1]), a.shape[-1]))
        return like(a, mm(flat, b).data, shape=(*a.shape[:-1], b.shape[1]))
    batch = broadcast(a.shape[:-2], b.shape[:-2])
    one, two = (expand(x, (*batch, *x.shape[-2:])) for x in (a, b))
    if a.shape[-1] != b.shape[-2]:
        n = math.prod(batch)
        wanted, got = f"[{n}, {a.shape[-1]}]", f"[{n}, {b.shape[-2]}]"
        what = "Expected size for first two dimensions of batch2 tensor to be: "
        raise RuntimeError(f"{what}{wanted} but got: {got}.")
    two = two.seen((*batch, *two.shape[:-3:-1]), (*two.strides[:-2], *two.strides[:-3:-1]))
    rows, columns = _rows(one.flat(), a.shape[-1]), _rows(two.flat(), a.shape[-1])
    n, m, made = a.shape[-2], b.shape[-1], []
    for i in range(math.prod(batch)):
        made += product(rows[i * n : (i + 1) * n], columns[i * m : (i + 1) * m])
    return like(a, made, shape=(*batch, n, m))


def _matrix(t: Storage, first: bool) -> Storage:
    if len(t.shape) > 1:
        return t
    return like(t, t.flat(), shape=(1, len(t.data)) if first else (t.shape[0], 1))


@op
def outer(a: Storage, b: Storage) -> Storage:
    second = b.flat()
    return like(a, [x * y for x in a.flat() for y in second], of_both(a, b), (*a.shape, *b.shape))


@op
def solve_triangular(a: Storage, b: Storage, *, upper: bool) -> Storage:
    """a [n, n], lower, x = b [n, m]: row after row."""
    assert not upper
    rows, given = _rows(a.flat(), a.shape[1]), _rows(b.flat(), b.shape[1])
    found: list[list] = []
    for i, row in enumerate(rows):
        left = list(given[i])
        for j in range(i):
            left = [x - row[j] * y for x, y in zip(left, found[j], strict=True)]
        found.append([x / row[i] for x in left])
    return like(b, [x for row in found for x in row])


@op
def polar(length: Storage, angle: Storage) -> Storage:
    return like(length, list(map(cmath.rect, length.flat(), angle.flat())), complex128)


def attention(q: Storage, k: Storage, v: Storage, dropout: float, causal: bool, *, scale: float):
    """torch's kernel for the CPU: q [b, h, n, d], k and v [b, h_kv, m, d] → like q, log-sum-exp [b, h, n]."""
    (batch, heads, n, d), (kv, m) = q.shape, k.shape[1:3]
    queries, keys, values = (_rows(x.flat(), d) for x in (q, k, v))
    out, sums = [], []
    for b in range(batch):
        for head in range(heads):
            first = (b * kv + head * kv // heads) * m
            by_dim = list(zip(*values[first : first + m], strict=True))
            for i, query in enumerate(queries[(b * heads + head) * n : (b * heads + head + 1) * n]):
                seen = min(i + 1, m) if causal else m
                scores = [scale * s for s in product([query], keys[first : first + seen])]
                total = logsumexp(scores)
                weights = [math.exp(s - total) for s in scores]
                out += product([weights], by_dim)
                sums.append(total)
    return like(q, out), like(q, sums, float64, (batch, heads, n))
