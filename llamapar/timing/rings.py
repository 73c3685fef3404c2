"""A group of ranks in a ring: how fast its links are, and how long it takes to start."""

from __future__ import annotations

import math
from dataclasses import dataclass

from llamapar.describe.hardware import Gpu

RING_SOURCE = (
    "arXiv:2205.05198 section 4.2.2; a ring of n ranks moves (n - 1)/n of the bytes over each link; "
    "NCCL's src/graph/tuning.cc: a ring's start, its hops over NVLink and over the net"
)
START = 8.4e-6
HOP = 3.4e-6
NET_HOP = 14e-6
"""Seconds to start a collective, for a hop over the fast link, and for a hop over the network."""


@dataclass(frozen=True)
class Ring:
    """A group of ranks in a ring. inside: how many of them the fast link joins."""

    size: int
    inside: int

    @classmethod
    def of(cls, gpu: Gpu, size: int, stride: int) -> Ring:
        """The ring of an axis with `size` ranks, `stride` apart."""
        # Ranks `stride` apart: of a fast link's domain of GPUs, every stride-th belongs to this ring.
        return cls(size, min(size, max(1, gpu.domain // stride)))

    def rate(self, gpu: Gpu) -> float:
        """Bytes/s of its slowest link. The NICs of all its ranks on a machine carry the ring side by side."""
        # A ring runs at the pace of its slowest link, so one hop over the network decides.
        fast = gpu.link_rate * gpu.link
        if self.inside == self.size:
            return fast
        return min(fast, gpu.net_rate * gpu.net * self.inside)

    def trade_rate(self, gpu: Gpu) -> float:
        """Bytes/s of an all-to-all, counted as of a ring: every rank sends 1/n of its tensor to each other.

        What leaves the fast link's domain goes through a rank's own NIC, beside what stays inside (assumed).
        """
        inside, outside = self.inside - 1, self.size - self.inside
        slowest = max(inside / (gpu.link_rate * gpu.link), outside / (gpu.net_rate * gpu.net))
        if slowest:
            return (self.size - 1) / slowest
        return math.inf

    @property
    def latency(self) -> float:
        """Seconds until the last rank has the first byte."""
        # A ring that crosses machines has one hop over the network for each of them, and fast ones between.
        nodes = -(-self.size // self.inside)
        return START + (self.size - nodes) * HOP + (nodes if nodes > 1 else 0) * NET_HOP
