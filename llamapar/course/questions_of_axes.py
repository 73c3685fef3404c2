"""What the notebook on the four axes asks: each question with its truth, hints and pictures.

Every truth is computed by the library when the question is asked; the words state what the question fixes.
"""

from __future__ import annotations

from collections.abc import Callable

import llamapar as lp

from .boxes import Item
from .veils import without, without_work

_SMALL = lp.Layout(tp=2, cp=2, pp=2, dp=2)
_PAPER = lp.Layout(tp=8, cp=16, pp=16, dp=8)
_SWAPPED = _PAPER.replace(order="cp-tp-pp-dp")
_NODE = 8
"""GPUs of a node."""

_FAILED = 12345


def _peers() -> Item:
    rank = 13
    view = lp.view(lp.ranks(_SMALL, rank))
    peers = [next(other for other in _SMALL.group(axis, rank) if other != rank) for axis in lp.AXES]
    return Item(
        "The four peers of rank 13, as a list?",
        peers,
        unit="ranks, in the order TP, CP, PP, DP",
        hints=(
            "The strides are 1, 2, 4, 8. Write 13 as a sum of some of them.",
            "13 = 1 + 4 + 8. Where a stride is in the sum, rank 13 is the second of two: its peer is "
            "behind it.",
        ),
        slips=(
            ([5, 9, 12, 15], "Those are the four; they are asked for in the order TP, CP, PP, DP."),
            ([14, 15, 17, 21], "Rank 13 is the second on some axes, so there its peer is behind it."),
            ([1, 2, 4, 8], "Those are the peers of rank 0."),
        ),
        why="On TP, PP and DP rank 13 is the second, so its peer is 1, 4 and 8 behind; on CP it is 2 ahead.",
        shows=view,
        veiled=without(view, lambda trace: " · " in str(trace.get("name", ""))),
    )


def _place(rank: int, text: str) -> Item:
    """The coordinates of a rank of the paper's layout."""
    place = _PAPER.coord_of(rank)
    quotient = rank // 8
    return Item(
        text,
        tuple(place),
        unit="tp, cp, pp, dp",
        hints=(
            f"Divide {rank:,} by 8: the remainder is tp. Go on with the quotient.",
            f"{rank:,} = {quotient:,} · 8 + {place.tp}. Now divide {quotient:,} by 16.",
        ),
        slips=(
            (tuple(place)[::-1], "TP is the fastest axis: the first remainder is tp, and it stands first."),
        ),
        why=f"{place.tp} + 8 · ({place.cp} + 16 · ({place.pp} + 16 · {place.dp})) = {rank:,}.",
        shows=lp.view(lp.ranks(_PAPER, rank)),
    )


def _nodes() -> Item:
    group = _SWAPPED.group("tp", _FAILED)
    return Item(
        "With CP fastest: over how many nodes is a TP group of 8 spread?",
        len({rank // _NODE for rank in group}),
        unit="nodes",
        hints=(
            "The stride of TP is now the degree of the axis before it, CP.",
            "The TP peers are 16 ranks apart, and a node holds 8 ranks.",
        ),
        slips=(
            (1, "That is so with TP fastest. Now CP takes the neighbouring numbers."),
            (16, "That is the stride: the group has only 8 ranks."),
        ),
        why="Its ranks are 16 apart, more than the 8 ranks of a node, so each is in another one.",
        shows=lp.view(lp.ranks(_SWAPPED, _FAILED)),
    )


def _same_place() -> Item:
    places = {
        name: _SMALL.replace(order=lp.FRAMEWORKS[name].order).coord_of(4) for name in ("picotron", "nanotron")
    }
    orders = [f"{name} counts {lp.FRAMEWORKS[name].order}, fastest first" for name in places]
    return Item(
        "Does rank 4 have the same place in both?",
        len(set(places.values())) == 1,
        hints=(
            "Which axis has the stride 4 depends on the order of the axes.",
            f"{'; '.join(orders)}.",
        ),
        why=" ".join(f"In {name} it is pp {at.pp}, dp {at.dp}." for name, at in places.items()),
    )


def _last_of_cp() -> Item:
    record = lp.sequence(_PAPER, 131072, chunking="contiguous")
    view = lp.view(record)
    return Item(
        "In order: how many times the average work does the last rank do?",
        record.imbalance,
        unit="times",
        hints=(
            "A token's work is the number of tokens that it looks back at. Halfway, that is the average.",
            "The last rank's tokens stand between 15/16 and the end of the sequence.",
        ),
        slips=(
            (1, "It has as many tokens as the others, but each looks back at more."),
            (16, "Its work is compared with the average of all ranks, and the others have some, too."),
        ),
        why="Its tokens look back at 97% of the sequence on average; all tokens at 50%.",
        shows=view,
        veiled=without_work(view),
    )


def _same_parameters() -> Item:
    return Item(
        "How many of the 16,384 GPUs hold the same parameters as rank 12,345?",
        _PAPER.size("dp-cp"),
        unit="GPUs",
        hints=(
            "Two axes cut the parameters, and two cut the data.",
            "Ranks that differ only in CP (16) or DP (8) hold the same parameters.",
        ),
        slips=(
            (8, "That is DP alone. CP cuts the tokens, so CP ranks hold the same parameters, too."),
            (16, "That is CP alone. DP ranks hold the same parameters, too."),
            (24, "A rank can differ in both at once, so the degrees multiply."),
            (127, "Count rank 12,345 itself as well."),
        ),
        why="16 CP ranks times 8 DP ranks.",
    )


def _neighbours() -> Item:
    orders = [lp.FRAMEWORKS[name].order for name in ("picotron", "megatron-lm")]
    return Item(
        "Rank 57 is the first of its DP group. Which rank is the second, in picotron's order and in "
        "Megatron-LM's default?",
        [_PAPER.replace(order=order).group("dp", 57)[1] for order in orders],
        unit="picotron, Megatron-LM",
        hints=(
            "The stride of DP is the product of the degrees of the axes before it.",
            f"picotron has {orders[0]}, Megatron-LM {orders[1]}: what stands before dp?",
        ),
        slips=(
            ([185, 2105], "The other way round: picotron keeps the paper's order, with DP last."),
            ([58, 58], "Only the fastest axis, TP, has its peers next door."),
            ([2048, 128], "Those are the strides; begin at 57."),
        ),
        why="The strides are 2,048 and 128.",
    )


PREDICTIONS: dict[str, Callable[[], Item]] = {
    "The four peers of rank 13, as a list?": _peers,
    "(tp, cp, pp, dp) of rank 12,345?": lambda: _place(_FAILED, "(tp, cp, pp, dp) of rank 12,345?"),
    "With CP fastest: over how many nodes is a TP group of 8 spread?": _nodes,
    "Does rank 4 have the same place in both?": _same_place,
    "In order: how many times the average work does the last rank do?": _last_of_cp,
    "How many of the 16,384 GPUs hold the same parameters as rank 12,345?": _same_parameters,
}
"""By the question itself."""

EXERCISES: dict[str, Callable[[], Item]] = {
    "coord of 5003": lambda: _place(5003, "The (tp, cp, pp, dp) of rank 5003 in the paper's layout?"),
    "DP neighbour of 57": _neighbours,
}
"""By the name of the exercise."""
