"""What the notebook on loading 405B asks: each question with its truth and hints.

Every truth is computed by the library when the question is asked; the words state what the question fixes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod

import llamapar as lp
from llamapar.nodes.loading import Loading, wrapped_count

from .boxes import Item

_FACTORS = (128256, 16384, 4)
"""Of the embedding of 405B in float32: rows, columns, bytes."""

_WRAP = 2**32


@cache
def _incident() -> Loading:
    """The report: the first release, on four machines of 64 GiB."""
    return lp.loading("llama3.1-405b-mp16", format="q40", nodes=4, memory_gib=64, seq_len=1024)


def _file() -> Item:
    size = _incident().file_bytes
    published = lp.loading("llama3.1-405b").file_bytes
    model = lp.model("llama3.1-405b-mp16")
    return Item(
        "GB of the file with 16 KV heads?",
        size / 1e9,
        unit="GB",
        hints=(
            "410 billion weights, of which 32 take 18 bytes.",
            "That is 231 GB; the embedding's 2.1 billion take 4 bytes.",
        ),
        slips=(
            (2 * model.n_params / 1e9, "That is bfloat16; here 32 weights take 18 bytes."),
            (model.n_params / 2e9, "A block has 16 bytes for 32 weights, and a scale of 2 bytes."),
        ),
        why=f"With 8 KV heads it would be {published / 1e9:.1f} GB.",
    )


def _root() -> Item:
    incident = _incident()
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
            (_WRAP - 1, "It does not stop at the largest number; it wraps."),
            (wrapped_count(whole, "int32"), "That is what a signed number holds."),
        ),
        why="8,405,385,216 − 2³².",
    )


def _wrong_sizes() -> Item:
    incident = _incident()
    sizes = [incident.bytes(tensor) for tensor in incident.tensors]
    wrong = sum(wrapped_count(size, "uint32") != size for size in sizes)
    return Item(
        "How many of the 1,137 sizes are wrong in 32 bits?",
        wrong,
        unit="of the 1,137",
        hints=(
            "Which tensors take more than 4,294,967,296 bytes?",
            "After the embedding, the largest tensor takes 1,182,007,296 bytes.",
        ),
        slips=(
            (
                1137,
                "A size below 2³² is counted rightly; where the tensor is looked for is another matter.",
            ),
            (2, "The output head has as many weights as the embedding, but 32 of them take 18 bytes."),
        ),
        why="Only the embedding is larger than 2³² bytes.",
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


def _seventy() -> Item:
    smaller = lp.loading("llama3.1-70b", nodes=4, memory_gib=64)
    share = smaller.bytes(smaller.tensors[0]) / _WRAP
    return Item(
        "70B's embedding, as a fraction of 2^32 bytes?",
        share,
        hints=(
            "70B has as many rows and half as many columns, 8,192.",
            "128,256 · 8,192 · 4 over 2³² is 128,256 over 131,072.",
        ),
        slips=(
            (2 * share, "That is 405B's; 70B has half as many columns."),
            (share / 2, "The embedding is float32, 4 bytes a number."),
            (100 * share, "As a fraction it is below 1."),
        ),
        why="128,256 / 131,072: it just fits.",
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


def _sixteen_gib() -> Item:
    smallest = lp.loading("llama3.1-70b", memory_gib=16).smallest_nodes
    half = lp.loading("llama3.1-70b", memory_gib=16, nodes=2)
    sizes = [node.total_bytes / 2**30 for node in half.nodes]
    too_little = f"a worker takes {sizes[1]:.1f} GiB, and the root {sizes[0]:.1f}."
    return Item(
        "70B in Q40: the smallest number of machines of 16 GB",
        smallest,
        unit="machines",
        hints=(
            "The root holds the whole embedding besides its share.",
            f"On 2 machines {too_little}",
        ),
        slips=(
            (2, f"There {too_little}"),
            (3, "Machines are TP ranks: the number must divide the heads."),
            (8, "4 are enough, for the root with the whole embedding, too."),
        ),
        why="On 2 not even a worker fits, and 3 does not divide the heads.",
    )


def _end_of_file() -> Item:
    size = lp.loading("llama3.1-405b").file_bytes
    return Item(
        "A uint32 counts all bytes of the file with 8 KV heads: what does it hold at the end?",
        wrapped_count(size, "uint32"),
        unit="bytes",
        hints=(
            f"The file has {size:,} bytes.",
            f"It wraps {size // _WRAP} times; what is left?",
        ),
        slips=(
            (size - _WRAP, f"It wraps more than once: {size // _WRAP} times."),
            (wrapped_count(prod(_FACTORS), "uint32"), "That is what is left of the embedding alone."),
        ),
        why=f"{size:,} − {size // _WRAP} · 2³².",
    )


PREDICTIONS: dict[str, Callable[[], Item]] = {
    "GB of the file with 16 KV heads?": _file,
    "How many GB does the root need?": _root,
    "What does an unsigned 32-bit number hold of the product?": _left,
    "How many of the 1,137 sizes are wrong in 32 bits?": _wrong_sizes,
    "Make the result 64 bits wide, or one of the factors: which gives the right size?": _mended,
    "70B's embedding, as a fraction of 2^32 bytes?": _seventy,
    "Machines of 32 GB: on how many of them does it run?": _thirty_two,
}
"""By the question itself."""

EXERCISES: dict[str, Callable[[], Item]] = {
    "first vocabulary that wraps": _first_that_wraps,
    "70B on 16 GB machines": _sixteen_gib,
    "what uint32 holds of the file": _end_of_file,
}
"""By the name of the exercise."""
