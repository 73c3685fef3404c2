"""The statements of a message, as relations and roles instead of whole wordings.

"A must be divisible by B", "B must divide A", "assert A % B == 0" and "cannot split A over B" are one
observation, `Divides`. Likewise all ways to say that two sizes differ are one `Pair`, and all ways to say
that a view does not fit are one `View`. What caused them is left to `causes` and `slips`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise, takewhile

from .reading import Concept, Reading, Shape
from .words import pattern


@dataclass(frozen=True)
class Divides:
    """`number` of `subject` must be a multiple of `divisor`, a size of the concepts in `by`."""

    subject: str
    number: int | None
    by: frozenset[str]
    divisor: int | None
    beside: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ViewCall:
    """A tensor of `numel` elements should get shape `target` (-1 stands for the remaining elements)."""

    target: Shape
    numel: int


@dataclass(frozen=True)
class Matmul:
    """[..., a] times [b, ...], where a should be b."""

    a: int
    b: int
    rest: int = 0


@dataclass(frozen=True)
class Pair:
    """Two sizes of one dim that should agree; `name` is the tensor's name if the text gives it."""

    a: int
    b: int
    dim: int | None = None
    name: str = ""
    shapes: tuple[Shape, Shape] | None = None


@dataclass(frozen=True)
class LoneShape:
    """The shape of a tensor, with no other shape to compare."""

    name: str
    shape: Shape


@dataclass(frozen=True)
class Unequal:
    """Two counts that should be equal but differ: ranks, layers, samples."""

    terms: tuple[Concept, ...]
    values: tuple[int, ...]


Observation = Divides | ViewCall | Matmul | Pair | LoneShape | Unequal

_LEFT = pattern("is_not_divided")  # The dividend stands on the left.
_RIGHT = pattern("does_not_divide")  # The dividend stands on the right.
MOST = 8
"""Relations of one kind that are read in one message."""

_STOP = re.compile(r"(?<=[a-z)\]'\"])\. |\n|;|error: |failed: ?|assert ")
AXES = ("tp", "pp", "cp", "dp", "ep")
_WEAK = frozenset(("dimension", "hidden", "checkpoint", "lora", "fused"))


_PARTITIONED = pattern("axis_is_partitioned")


def divides(r: Reading) -> Iterator[Divides]:
    """Every divisibility that the text states."""
    # JAX names the array's axis, its size and the mesh axis that cuts it; the shape tells which array it is.
    match = _PARTITIONED.search(r.low)
    if match is not None:
        size = int(match["size"] or match["size2"])
        yield Divides("", size, frozenset(("tp",)), int(match["ranks"] or match["ranks2"]))
        return
    stops = list(_STOP.finditer(r.low))
    for relation in (_LEFT, _RIGHT):
        for match in islice(relation.finditer(r.low), MOST):
            start = max((m.end() for m in stops if m.end() <= match.start()), default=0)
            end = min((m.start() for m in stops if m.start() >= match.end()), default=len(r.low))
            middle = match.start() + 1 if match.group().startswith("%") else match.end()
            left = (start, match.start())
            right = (middle, end)
            if relation is _RIGHT:
                left, right = right, left
            yield _divides(r, left, right)


def _divides(r: Reading, left: tuple[int, int], right: tuple[int, int]) -> Divides:
    ours = r.within(*left)
    theirs = r.within(*right)
    strong = [t for t in ours if t.concept not in {*AXES} | _WEAK | {"world"}]
    widths = [t for t in ours if t.concept == "hidden"]
    ranks = [t for t in ours if t.concept == "world"] or [t for t in ours if t.concept in AXES]
    # Of several sizes the one with a number counts: "the embedding's output … seq_len 1001 is not divisible".
    counted = [t for t in strong if t.number is not None]
    subject = next(iter(counted + strong + widths + ranks + ours), None)
    number = None
    concept = ""
    if subject:
        number = subject.number
        concept = subject.concept
    # If a side has several numbers, the one next to the relation counts.
    nearest = 0
    there = None
    if left < right:
        nearest = -1
        there = _FOUND.search(r.low, *right)
    if number is None or (there and "equal to" in there[0]):
        inside = [int(there.group(1))] if there else _counts(r, *left)
        number = None
        if inside:
            number = inside[nearest]
    if number is None and subject:  # "num_heads must be divisible by tp, got num_heads=20 and tp=8"
        number = r.beside(subject.concept)
    factors = _factors(r, theirs)
    named = None
    if theirs and theirs[0].number is None:
        named = r.beside(theirs[0].concept)
    if named and theirs[0].concept != concept:
        factors = (named,)
    if concept == "world" and number and number % (math.prod(factors) or 1) == 0:
        factors = tuple(t.number for t in theirs if t.concept in AXES and t.number)  # "tp 8 and pp 2"
    divisor = None
    inside = _counts(r, *right)
    if factors:
        divisor = math.prod(factors)
    elif inside:
        divisor = inside[-1 - nearest]
    written = _REMAINDER.search(r.low) or (
        None if subject and subject.number else _BOTH.search(r.low, *right)
    )
    if written:
        number = int(written[1])
        divisor = int(written[2])
    part = _DIM_OF.search(r.text, *left) or _DIM_OF.search(r.text, *right)
    shape = next((s for s, at in r.shapes if part and at == part.end()), ())
    dim = 0
    if part:
        dim = int(part.group(1))
    if dim < len(shape):  # "dim 1 of [1, 500, 3072]": of three dims the second is the sequence
        number = shape[dim]
        if (len(shape), dim) == (3, 1):
            concept = "seq"
    by, beside = (frozenset(t.concept for t in terms) for terms in (theirs, ours))
    return Divides(concept, number, by, divisor, beside)


_REMAINDER = re.compile(r"\b(\d{1,20}) % \(?(\d{1,20})\b(?! ?\*)")
_BOTH = re.compile(r"\bgot \(?(\d{1,20})(?:,| and) (\d{1,20})\b")
"""Two numbers of which the first is not a multiple of the second: "13696 % 192", "got 62 and 8"."""

_TIMES = re.compile(r"\D{0,3}\d{1,20}\W{0,3}(?:[*·×x]|times|multiplied by) ?\W?")
"""What stands between two names whose numbers are multiplied: "tp (8) x pp (2)", "tp=8 * pp=2"."""


def _factors(r: Reading, terms: list[Concept]) -> Shape:
    """The number that a side names, or each factor if the side is a product."""
    counted = [t for t in terms if t.number is not None and t.concept != "dimension"]
    first = counted[:1]
    more = takewhile(lambda pair: _TIMES.fullmatch(r.low, pair[0].end, pair[1].start), pairwise(counted))
    return tuple(t.number or 0 for t in [*first, *(after for _, after in more)])


_DIM_OF = re.compile(
    r"dim(?:ension)? (\d)(?: of|:) (?:a |the )?(?:tensor )?(?:of )?(?:shape )?(?:torch\.Size)?\(?(?=[\[(])"
)
_FOUND = re.compile(
    r"(?:but it is|but is|is equal to|but got|got|found|was|with size) (?:equal to )?\(?(\d{1,20})"
)


def _counts(r: Reading, start: int, end: int) -> list[int]:
    """Numbers between two positions that count something."""
    return [n for n, at in r.numbers if start <= at < end]


_VIEW = pattern("view")
_UNFLATTEN = re.compile(r"multiply up to the size of dim \d \((\d{1,20})\)")
_CLOSED = re.compile(r"[\])]")
_MATMUL = pattern("product")
_SIZES = pattern("one_size_must_match")
_EXPECTED = pattern("expected_but_got")
_WIDTHS = pattern("two_widths")
"""The widths of two tensors that a contraction, a norm or another operator wants to be one."""

LABELS = "labels"
_LABELS = re.compile(r"expected input batch_size \((\d{1,20})\) to match target batch_size \((\d{1,20})\)")
_INT = re.compile(r"\d{1,20}")
_ENTRY = re.compile(r"at entry 0 and .{1,80} at entry (\d{1,6})")
_SPLIT = re.compile(r"sum exactly to (\d{1,20}).{0,80}split_sizes=(\[[\d, ]{1,120}\])")
_NAME = re.compile(
    r"[A-Za-z_]\w{0,60}(?:\.\w{1,60}){1,12}|\b[A-Za-z_]\w{0,30}(?:_proj|_embeddings?|_tokens|_head)\b"
)
_NO_NAME = re.compile(
    r"^(torch|self|np|jnp|aten)\.|\.(py|cu|cpp|cc|h|pt|pth|bin|json|safetensors|size)$|Error$", re.I
)


def names(r: Reading) -> list[str]:
    """Dotted names of tensors."""
    return [n for n in _NAME.findall(r.text) if not _NO_NAME.search(n)]


def shape_observations(r: Reading) -> Iterator[Observation]:
    """Views, products and pairs of sizes."""
    found = [shape for shape, _ in r.shapes]
    wide = [shape for shape in found if len(shape) > 1]
    if _VIEW.search(r.low) and wide:
        target = wide[-1]
        if width := _UNFLATTEN.search(r.low):
            yield ViewCall((1, *target), int(width.group(1)))
            return
        ends = [(at, _CLOSED.search(r.text, at)) for _, at in r.shapes]
        free = [n for n, at in r.numbers if not any(a <= at < end.end() for a, end in ends if end)]
        numel = math.prod(wide[0]) if len(wide) > 1 else max(free, default=0)
        if numel > 0 or 0 in target:
            yield ViewCall(target, numel)
            return
    if _MATMUL.search(r.low) and len(wide) > 1:
        a = wide[0]
        b = wide[1]
        if a[-1] != b[-2]:
            yield Matmul(a[-1], b[-2], b[-1])
            return
    last = _ENTRY.search(r.low)
    if last and len(found) == 2 and found[0][:-1] == found[1][:-1] and found[0][-1] > found[1][-1]:
        *lead, part = found[0]  # equal parts of a width, and what is left of it; or two that were stacked
        if lead or int(last[1]) > 1:
            yield ViewCall((*lead, -1, part), math.prod(lead) * (int(last[1]) * part + found[1][-1]))
            yield from _pairs(found, "", r)
            return
    split = _SPLIT.search(r.low)
    if split:
        yield Pair(int(split[1]), sum(map(int, _INT.findall(split[2]))))
        return
    labels = _LABELS.search(r.low)
    if labels:
        yield Pair(int(labels.group(1)), int(labels.group(2)), None, LABELS)
        return
    widths = _WIDTHS.search(r.low)
    if widths:
        yield Matmul(*(int(n) for n in widths.groups() if n))
        return
    sizes = _SIZES.search(r.low) or _EXPECTED.search(r.low)
    name = next(iter(names(r)), "")
    if sizes:
        dim = None
        if sizes.re is _SIZES:
            dim = sizes.group(3)
        yield Pair(int(sizes.group(1)), int(sizes.group(2)), int(dim) if dim else None, name)
    elif found:
        yield from _pairs(found, name, r)
    if not sizes and len(set(found)) == 1 and (name or found == wide[:1]):
        yield LoneShape(name, found[0])


_AT = re.compile(r"(?:not match|mismatch\w{0,2}|differs?) (?:at|in|on) dim(?:ension)? (\d)")
_INDEXED = re.compile(r"shape of the mask .{1,80}at index (\d) does not match")


def _pairs(found: list[Shape], name: str, r: Reading) -> Iterator[Pair]:
    low = r.low
    for first, second in pairwise(found):
        if "broadcast" in low and (len(first) != len(second) or 1 in (*first, *second)):
            yield from _broadcast(first, second, name)
            return
        if len(first) == len(second) and first != second:
            off = [i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a != b]
            at = _AT.search(low)
            off = [i for i in off if at is None or i == int(at.group(1))] or off
            if len(off) > (2 if r.loading else 1):
                continue
            dim = off[0]
            yield Pair(first[dim], second[dim], dim, name, (first, second))
            return
        mask = _INDEXED.search(low)
        if mask and int(mask[1]) < min(len(first), len(second)):
            yield Pair(first[int(mask[1])], second[int(mask[1])], None, name)
            return
        sizes = (math.prod(first), math.prod(second))
        flat = r.loading and 1 in (len(first), len(second)) and max(sizes) % (min(sizes) or 1) == 0
        if first != second and (0 in sizes or flat):
            yield Pair(*sizes, None, name, (first, second))  # a placeholder of ZeRO-3
            return


def _broadcast(first: Shape, second: Shape, name: str) -> Iterator[Pair]:
    """Shapes are aligned at their last dims; the dim is counted in the longer one."""
    n = max(len(first), len(second))
    a, b = ((1,) * (n - len(shape)) + shape for shape in (first, second))
    for dim, (x, y) in enumerate(zip(a, b, strict=True)):
        if x != y and 1 not in (x, y):
            yield Pair(x, y, dim, name, (a, b))
            return


_DIFFER = pattern("counts_differ")


def observe(r: Reading) -> list[Observation]:
    """Everything the text states, the most exact statements first."""
    cut = list(dict.fromkeys(divides(r)))
    counts = all(o.subject in ("world", "tp") or (not o.subject and "world" in o.by) for o in cut)
    shapes = list(shape_observations(r))
    found = [*shapes, *cut]
    if counts and not any(isinstance(o, ViewCall | Matmul | Pair) for o in shapes):
        written = bool(r.products) and len(r.values) > len(r.products[0][0])
        if written or "vocab" in r.concepts or _DIFFER.search(r.low):
            found.append(Unequal(tuple(r.terms), tuple(r.values)))
    return found
