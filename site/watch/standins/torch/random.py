"""torch's random numbers on the CPU: the same MT19937, the same way from bits to numbers."""

from __future__ import annotations

import math
import random


class Generator:
    """Seeded as torch's is: by init_genrand, which Python's own `seed` is not."""

    def manual_seed(self, seed: int) -> Generator:
        state = [seed & 0xFFFFFFFF]
        for i in range(1, 624):
            state.append((1812433253 * (state[-1] ^ (state[-1] >> 30)) + i) & 0xFFFFFFFF)
        self.bits = random.Random()
        self.bits.setstate((3, (*state, 624), None))
        return self

    def uniform(self) -> float:
        """[0, 1), of 53 bits: the first 32 are the upper ones."""
        return ((self.bits.getrandbits(32) << 32 | self.bits.getrandbits(32)) & (2**53 - 1)) / 2**53

    def below(self, n: int) -> int:
        return self.bits.getrandbits(32) % n

    def normal(self, n: int) -> list[float]:
        """Box and Muller's, of eight numbers and the eight after them; the last sixteen are made anew."""
        if n < 16:
            return self._few(n)
        found = [self.uniform() for _ in range(n)]
        for first in range(0, n - 15, 16):
            found[first : first + 16] = _turned(found[first : first + 16])
        if n % 16:
            found[-16:] = _turned([self.uniform() for _ in range(16)])
        return found

    def _few(self, n: int) -> list[float]:
        found: list[float] = []
        while len(found) < n:
            angle, long = 2 * math.pi * self.uniform(), math.sqrt(-2 * math.log1p(-self.uniform()))
            found += [long * math.cos(angle), long * math.sin(angle)]
        return found[:n]


def _turned(uniform: list[float]) -> list[float]:
    long = [math.sqrt(-2 * math.log(1 - u)) for u in uniform[:8]]
    angles = [2 * math.pi * u for u in uniform[8:]]
    cosines = [r * math.cos(a) for r, a in zip(long, angles, strict=True)]
    return cosines + [r * math.sin(a) for r, a in zip(long, angles, strict=True)]
