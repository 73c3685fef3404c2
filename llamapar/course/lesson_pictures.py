"""The lessons' own pictures with knobs, which `lp.live` shows beside those of the library."""

from __future__ import annotations

from llamapar.describe.hardware import DEFAULT_GPU
from llamapar.panels.ladders import Subject

from .collective_costs import KINDS, RANKS, SIZES, collective
from .overlap_pictures import overlap, roofline

SUBJECTS = {
    "collective": Subject(
        collective,
        {"kind": "all-reduce", "ranks": 8, "mib": 64, "gpu": DEFAULT_GPU},
        {"ranks": RANKS, "kind": tuple(KINDS), "mib": SIZES},
        lambda record: f"{record.sent_bytes / 2**20:.4g} MiB, {1e3 * record.seconds:.2g} ms",
        lambda record: record.sentence,
    ),
    "overlap": Subject(
        overlap,
        {"tokens": 8192, "tp": 1, "zero": 3, "micro_batches": 1},
        {
            "tokens": (512, 1024, 2048, 4096, 8192, 16384),
            "tp": (1, 2, 4, 8),
            "zero": (0, 1, 2, 3),
            "micro_batches": (1, 2, 4),
        },
        lambda record: f"{record.waiting:.0%} waiting",
        lambda record: record.sentence,
    ),
    "roofline": Subject(
        roofline,
        {"tokens": 8192},
        {"tokens": (1, 16, 256, 8192, 65536)},
        lambda record: f"memory limits {len(record.limited)} of 3",
        lambda record: record.sentence,
    ),
}
"""Name → its live picture; the record of each is made by a function of the course."""
