"""Arithmetic that supports a cause: the numbers for a picture, and the text that people read.

A text is never parsed back into numbers: code that draws an equation reads its fields. Making a false
equation raises ValueError, so "0 ≠ 0" is never printed.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass


class Equation:
    """A true statement of arithmetic; `str` gives it as text."""

    @property
    def holds(self) -> bool:
        """Whether it is true."""
        return True

    def __post_init__(self) -> None:
        if not self.holds:
            raise ValueError(f"{self} is false")


@dataclass(frozen=True)
class Stated(Equation):
    """Arithmetic as free text, without a picture: "64 = 8·128/16 = half a head"."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Quotient(Equation):
    """n divided by k ≠ 0: "52/3 = 17.3333".

    floor: integer division, "126//16 = 7". after: words that follow.
    """

    n: int
    k: int
    floor: bool = False
    after: str = ""

    @property
    def whole(self) -> bool:
        """Whether k divides n."""
        return not self.n % self.k

    def __str__(self) -> str:
        slash = "/"
        if self.floor:
            slash = "//"
        return f"{self.n}{slash}{self.k} = {self._result()}{self.after}"

    def _result(self) -> str:
        whole, rest = divmod(self.n, self.k)
        if self.floor or not rest:
            return str(whole)
        if abs(self.n) > 10**15:
            return f"{whole} rest {rest}"
        return f"{self.n / self.k:.6g}"


def rest(n: int | None, k: int | None) -> Quotient | None:
    """The quotient n/k if it leaves a remainder; None if k divides n or a number is missing."""
    if n and k and n % k:
        return Quotient(n, k)
    return None


@dataclass(frozen=True)
class Product(Equation):
    """Factors and their product: "8·16·16·4 = 8192", "128256·16384·4 = 8405385216 B"."""

    factors: tuple[int, ...]
    unit: str = ""

    @property
    def value(self) -> int:
        return math.prod(self.factors)

    @property
    def label(self) -> str:
        return "·".join(map(str, self.factors))

    def __str__(self) -> str:
        return f"{self.label} = {self.value}{f' {self.unit}' if self.unit else ''}"


_TRUE = {"≠": operator.ne, "=": operator.eq, ">": operator.gt, "≥": operator.ge, "of": operator.lt}
"""Sign → the test that its two sides must pass; "≈" is not tested."""


@dataclass(frozen=True)
class Comparison(Equation):
    """A number or product compared with another number: "8·16·16·4 = 8192 ≠ 16384", "n ≥ 2^31".

    label: text of the right side, where it is not plain digits. before, after: words around it.
    """

    left: int | Product
    sign: str
    right: int
    label: str = ""
    before: str = ""
    after: str = ""

    @property
    def holds(self) -> bool:
        left = self.left if isinstance(self.left, int) else self.left.value
        read_rounded = bool(self.label) and 100 * abs(left - self.right) < self.right
        return self.sign == "≈" or (self.sign == "=" and read_rounded) or _TRUE[self.sign](left, self.right)

    def __str__(self) -> str:
        return f"{self.before}{self.left} {self.sign} {self.label or self.right}{self.after}"


@dataclass(frozen=True)
class Padded(Equation):
    """The rows of tp shards, and how many are padding: "16064·8 = 128512 = 128256 + 256 pad rows"."""

    shard: int
    tp: int
    rows: int

    @property
    def holds(self) -> bool:
        return self.padded > self.rows

    @property
    def padded(self) -> int:
        return self.shard * self.tp

    def __str__(self) -> str:
        return f"{Product((self.shard, self.tp))} = {self.rows} + {self.padded - self.rows} pad rows"


@dataclass(frozen=True)
class Multiples(Equation):
    """Numbers as multiples of one unit: "32000 = 500·64, 32256 = 504·64"."""

    numbers: tuple[int, ...]
    unit: int

    @property
    def holds(self) -> bool:
        return not any(n % self.unit for n in self.numbers)

    def __str__(self) -> str:
        return ", ".join(f"{n} = {n // self.unit}·{self.unit}" for n in self.numbers)
