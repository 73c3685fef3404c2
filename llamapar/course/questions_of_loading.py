"""What the notebook on loading 405B asks: each question with its truth and hints.

Every truth is computed by the library when the question is asked; nothing is typed in.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod

import llamapar as lp
from llamapar.nodes.loading import wrapped_count

from .boxes import Item

_FACTORS = (128256, 16384, 4)
"""Of the embedding of 405B in float32: rows, columns, bytes."""

_WRAP = 2**32


@cache
def _incident() -> lp.Loading:
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
            f"{model.n_params / 1e9:.0f} billion weights, of which 32 take 18 bytes.",
            f"That is {model.n_params * 18 / 32 / 1e9:.0f} GB; the embedding's 2.1 billion take 4 bytes.",
        ),
        slips=(
            (2 * model.n_params / 1e9, "That is bfloat16; here 32 weights take 18 bytes."),
            (model.n_params / 2e9, "A block has 16 bytes for 32 weights, and a scale of 2 bytes."),
        ),
        why=f"With 8 KV heads it would be {published / 1e9:.1f} GB.",
    )


def _fits() -> Item:
    incident = _incident()
    root = incident.nodes[0].total_bytes / 2**30
    return Item(
        "Does the model fit, on the root too?",
        incident.fits,
        hints=(
            "64 GiB are 68.7 GB. The root holds its quarter of the matrices, and the whole embedding.",
            "The embedding is 8.4 GB. A quarter of the other 229.5 is 57.4.",
        ),
        why=f"The root takes {root:.2f} of 64 GiB.",
        shows=incident,
    )


def _left() -> Item:
    whole = prod(_FACTORS)
    return Item(
        "What does an unsigned 32-bit number hold of the product?",
        wrapped_count(whole, "uint32"),
        hints=(
            "It begins again at zero whenever it passes 2³².",
            f"{whole:,} − {_WRAP:,}.",
        ),
        slips=(
            (whole, f"That is the product, and it is above {_WRAP:,}."),
            (_WRAP - 1, "It does not stop at the largest number; it wraps."),
            (wrapped_count(whole, "int32"), "That is what a signed number holds."),
        ),
        why=f"{whole:,} − 2³².",
    )


def _wrong_sizes() -> Item:
    incident = _incident()
    sizes = [incident.bytes(tensor) for tensor in incident.tensors]
    wrong = sum(wrapped_count(size, "uint32") != size for size in sizes)
    largest = sorted(sizes)[-2]
    return Item(
        "How many of the 1,137 sizes are wrong in 32 bits?",
        wrong,
        unit="tensors",
        hints=(
            f"Which tensors take more than {_WRAP:,} bytes?",
            f"Only the embedding is float32. The next largest tensor takes {largest:,} bytes.",
        ),
        slips=(
            (
                len(sizes),
                "A size below 2³² is counted rightly; where the tensor is looked for is another matter.",
            ),
            (2, "The output head has as many weights as the embedding, but 32 of them take 18 bytes."),
        ),
        why="Only the embedding is larger than 2³² bytes.",
    )


def _hasty() -> Item:
    held = wrapped_count(prod(_FACTORS), "uint32")
    return Item(
        "Does the hasty fix help?",
        held == prod(_FACTORS),
        hints=(
            "How wide are the numbers while they are multiplied?",
            "The product wraps first, and the wide number is made of what is left.",
        ),
        why=f"The 64 bits hold {held:,}, which is what was left in 32.",
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
    fewest = lp.loading("llama3.1-405b", memory_gib=32).smallest_nodes
    return Item(
        "Is there a number of 32 GB machines that works?",
        fewest is not None,
        hints=(
            "Machines are TP ranks. Which numbers divide the heads, and how many KV heads are there?",
            "On 8 machines each holds 28 GB, the root 8.4 GB more; and 32 GiB are 34.4 GB.",
        ),
        why="There are at most as many machines as KV heads, 8, and on 8 the root does not fit.",
    )


def _first_that_wraps() -> Item:
    _, width, item = _FACTORS
    rows = next(n for n in range(1, 2**20) if wrapped_count(n * width * item, "uint32") == 0)
    return Item(
        f"Width {width:,}, four bytes a number: the smallest vocabulary that a uint32 cannot count",
        rows,
        unit="rows",
        hints=(
            "A uint32 holds numbers below 2³².",
            "2³² over the bytes of a row.",
        ),
        slips=(
            (rows - 1, "Its size is still below 2³²."),
            (rows // 2, "That is where a signed number ends, at 2³¹."),
            (rows * item, f"A row takes {item} bytes a number."),
        ),
        why=f"{_WRAP:,} / ({width:,} · {item}).",
    )


def _sixteen_gib() -> Item:
    smallest = lp.loading("llama3.1-70b", memory_gib=16).smallest_nodes
    assert smallest is not None
    half = lp.loading("llama3.1-70b", memory_gib=16, nodes=smallest // 2)
    sizes = [node.total_bytes / 2**30 for node in half.nodes[:2]]
    return Item(
        "70B in Q40: the smallest number of machines of 16 GB",
        smallest,
        unit="machines",
        hints=(
            "The root holds the whole embedding besides its share.",
            f"On {smallest // 2} machines a worker takes {sizes[1]:.1f} GiB, and the root {sizes[0]:.1f}.",
        ),
        slips=(
            (smallest // 2, f"There a worker takes {sizes[1]:.1f} GiB, and the root {sizes[0]:.1f}."),
            (smallest // 2 + 1, "Machines are TP ranks: the number must divide the heads."),
            (2 * smallest, f"{smallest} are enough, for the root with the whole embedding, too."),
        ),
        why=f"On {smallest // 2} not even a worker fits, and {smallest // 2 + 1} does not divide the heads.",
    )


def _end_of_file() -> Item:
    size = _incident().file_bytes
    return Item(
        "A uint32 counts all bytes of the file with 16 KV heads: what does it hold at the end?",
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
    "Does the model fit, on the root too?": _fits,
    "What does an unsigned 32-bit number hold of the product?": _left,
    "How many of the 1,137 sizes are wrong in 32 bits?": _wrong_sizes,
    "Does the hasty fix help?": _hasty,
    "70B's embedding, as a fraction of 2^32 bytes?": _seventy,
    "Is there a number of 32 GB machines that works?": _thirty_two,
}
"""By the question itself."""

EXERCISES: dict[str, Callable[[], Item]] = {
    "first vocabulary that wraps": _first_that_wraps,
    "70B on 16 GB machines": _sixteen_gib,
    "what uint32 holds of the file": _end_of_file,
}
"""By the name of the exercise."""
