"""What the notebook on memory asks of a model that fits and does not load: questions with truths and hints.

Every truth is computed by the library when the question is asked; the words state what the question fixes.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import llamapar as lp
from llamapar.nodes.loading import wrapped_count

from .boxes import Item

_FACTORS = (128256, 16384, 4)
"""Of the embedding of 405B in float32: rows, columns, bytes."""


def _root() -> Item:
    # The report: the first release, on four machines of 64 GiB.
    incident = lp.loading("llama3.1-405b-mp16", format="q40", nodes=4, memory_gib=64, seq_len=1024)
    root, worker = (node.total_bytes / 1e9 for node in incident.nodes[:2])
    return Item(
        "How many GB does the root need?",
        root,
        unit="GB",
        hints=(
            "Each machine holds a quarter of the matrices. What does the root hold besides?",
            "The embedding is 8.4 GB, and a quarter of the other 229.5 GB is 57.4. The KV cache is 0.5.",
        ),
        slips=(
            (worker, "So much a worker needs; the root holds the whole embedding as well."),
            (incident.file_bytes / 1e9, "That is the whole file; four machines share it."),
        ),
        why=f"A worker needs {worker:.1f} GB, and a machine of 64 GiB has 68.7: both fit.",
        shows=incident,
    )


def _left() -> Item:
    whole = prod(_FACTORS)
    return Item(
        "What does an unsigned 32-bit number hold of the product?",
        wrapped_count(whole, "uint32"),
        hints=(
            "It begins again at zero whenever it passes 2³².",
            "8,405,385,216 − 4,294,967,296.",
        ),
        slips=(
            (whole, "That is the product, and it is above 4,294,967,296."),
            (2**32 - 1, "It does not stop at the largest number; it wraps."),
            (wrapped_count(whole, "int32"), "That is what a signed number holds."),
        ),
        why="8,405,385,216 − 2³².",
    )


def _mended() -> Item:
    whole = prod(_FACTORS)
    held = {"the result": wrapped_count(whole, "uint32"), "a factor": wrapped_count(whole, "int64")}
    return Item(
        "Make the result 64 bits wide, or one of the factors: which gives the right size?",
        next(what for what, size in held.items() if size == whole),
        choices=(*((what, what, f"{size:,}") for what, size in held.items()), ("both", "both", "")),
        hints=(
            "How wide are the numbers while they are multiplied?",
            "A product of 32-bit numbers has 32 bits, and only then is it put into the wide one.",
        ),
        why="A product wraps while it is computed, so the width of its factors decides.",
    )


def _thirty_two() -> Item:
    tried = {n: lp.loading("llama3.1-405b-mp16", memory_gib=32, nodes=n) for n in (4, 8, 16)}
    refused = {n: file.limit(n) for n, file in tried.items()}
    roots = {n: f"the root needs {file.nodes[0].total_bytes / 2**30:.1f} GiB" for n, file in tried.items()}
    works = [n for n, file in tried.items() if file.fits and not refused[n]]
    return Item(
        "Machines of 32 GB: on how many of them does it run?",
        works[0] if works else "on none",
        choices=(*((n, str(n), refused[n] or roots[n]) for n in tried), ("on none", "on none of these", "")),
        hints=(
            "Machines are TP ranks. Which numbers divide the heads, and how many KV heads are there?",
            "On 8 machines each holds 29 GB, the root 8.4 GB more; and 32 GiB are 34.4 GB.",
        ),
        why="On 8 the root does not fit. This file has 16 KV heads, so 16 machines may share it.",
    )


def _first_that_wraps() -> Item:
    rows = next(n for n in range(1, 2**20) if wrapped_count(n * 16_384 * 4, "uint32") == 0)
    return Item(
        "Width 16,384, four bytes a number: the smallest vocabulary that a uint32 cannot count",
        rows,
        unit="rows",
        hints=(
            "A uint32 holds numbers below 2³².",
            "2³² over the bytes of a row.",
        ),
        slips=(
            (rows - 1, "Its size is still below 2³²."),
            (rows // 2, "That is where a signed number ends, at 2³¹."),
            (rows * 4, "A row takes 4 bytes a number."),
        ),
        why="4,294,967,296 / (16,384 · 4).",
    )


PREDICTIONS: dict[str, Callable[[], Item]] = {
    "How many GB does the root need?": _root,
    "What does an unsigned 32-bit number hold of the product?": _left,
    "Make the result 64 bits wide, or one of the factors: which gives the right size?": _mended,
    "Machines of 32 GB: on how many of them does it run?": _thirty_two,
}
"""By the question itself."""

EXERCISES: dict[str, Callable[[], Item]] = {
    "first vocabulary that wraps": _first_that_wraps,
}
"""By the name of the exercise."""
