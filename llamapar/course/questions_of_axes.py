"""What the notebook on the four axes asks: each question with its truth, hints and pictures.

Every truth is computed by the library when the question is asked; nothing is typed in.
"""

from __future__ import annotations

from collections.abc import Callable

import llamapar as lp

from .boxes import Item
from .sketches import with_ranks, without_peers
from .veils import covered

_SMALL = lp.Layout(tp=2, cp=2, pp=2, dp=2)
_PAPER = lp.Layout(tp=8, cp=16, pp=16, dp=8)
_SWAPPED = _PAPER.replace(order="cp-tp-pp-dp")
_NODE = 8
"""GPUs of a node."""

_LONG = 131072
_FAILED = 12345


def _peers() -> Item:
    rank = 13
    peers = [next(other for other in _SMALL.group(axis, rank) if other != rank) for axis in lp.AXES]
    strides = [abs(peer - rank) for peer in peers]
    ahead = [rank + stride for stride in strides]
    return Item(
        "The four peers of rank 13, as a list?",
        peers,
        unit="ranks, in the order TP, CP, PP, DP",
        hints=(
            f"The strides are {', '.join(map(str, strides))}. Write {rank} as a sum of some of them.",
            f"{rank} = 1 + 4 + 8. Where a stride is in the sum, rank {rank} is the second of two: "
            "its peer is behind it.",
        ),
        slips=(
            (sorted(peers), "Those are the four; they are asked for in the order TP, CP, PP, DP."),
            (ahead, f"Rank {rank} is the second on some axes, so there its peer is behind it."),
            (strides, "Those are the peers of rank 0."),
        ),
        why="On TP, PP and DP rank 13 is the second, so its peer is 1, 4 and 8 behind; on CP it is 2 ahead.",
        shows=lp.view(lp.ranks(_SMALL, rank)),
        veiled=without_peers(_SMALL, rank),
        marked=lambda guess: with_ranks(_SMALL, rank, guess),
    )


def _place(rank: int, text: str) -> Item:
    """The coordinates of a rank of the paper's layout."""
    place = _PAPER.coord_of(rank)
    quotient = rank // _PAPER.tp

    return Item(
        text,
        tuple(place),
        unit="tp, cp, pp, dp",
        hints=(
            f"Divide {rank:,} by {_PAPER.tp}: the remainder is tp. Go on with the quotient.",
            f"{rank:,} = {quotient:,} · {_PAPER.tp} + {place.tp}. Now divide {quotient:,} by {_PAPER.cp}.",
        ),
        slips=(
            (
                tuple(reversed(place)),
                "TP is the fastest axis: the first remainder is tp, and it stands first.",
            ),
        ),
        why=f"{place.tp} + 8 · ({place.cp} + 16 · ({place.pp} + 16 · {place.dp})) = {rank:,}.",
        shows=lp.view(lp.ranks(_PAPER, rank)),
    )


def _nodes() -> Item:
    group = _SWAPPED.group("tp", _FAILED)
    before = {rank // _NODE for rank in _PAPER.group("tp", _FAILED)}
    step = group[1] - group[0]
    return Item(
        "With CP fastest: over how many nodes is a TP group of 8 spread?",
        len({rank // _NODE for rank in group}),
        unit="nodes",
        hints=(
            "The stride of TP is now the degree of the axis before it, CP.",
            f"The TP peers are {step} ranks apart, and a node holds {_NODE} ranks.",
        ),
        slips=(
            (len(before), "That is so with TP fastest. Now CP takes the neighbouring numbers."),
            (step, f"That is the stride: the group has only {len(group)} ranks."),
        ),
        why=f"Its ranks are {step} apart, more than the {_NODE} ranks of a node, so each is in another one.",
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
    record = lp.sequence(_PAPER, _LONG, chunking="contiguous")
    view, cp = lp.view(record), _PAPER.cp
    return Item(
        "In order: how many times the average work has the last rank?",
        record.imbalance,
        unit="times",
        hints=(
            "A token's work is the number of tokens that it looks back at. Halfway, that is the average.",
            f"The last rank's tokens stand between {cp - 1}/{cp} and the end of the sequence.",
        ),
        slips=(
            (1, "It has as many tokens as the others, but each looks back at more."),
            (cp, "Its work is compared with the average of all ranks, and the others have some, too."),
        ),
        why=f"Its tokens look back at {1 - 1 / (2 * cp):.0%} of the sequence on average; all tokens at 50%.",
        shows=view,
        veiled=covered(view, lambda trace: trace.get("xaxis") == "x2", "x2"),
    )


def _same_parameters() -> Item:
    copies = _PAPER.size("dp-cp")
    return Item(
        "How many of the 16,384 GPUs hold the same parameters as rank 12,345?",
        copies,
        unit="GPUs",
        hints=(
            "Two axes cut the parameters, and two cut the data.",
            f"Ranks that differ only in CP ({_PAPER.cp}) or DP ({_PAPER.dp}) hold the same parameters.",
        ),
        slips=(
            (_PAPER.dp, "That is DP alone. CP cuts the tokens, so CP ranks hold the same parameters, too."),
            (_PAPER.cp, "That is CP alone. DP ranks hold the same parameters, too."),
            (_PAPER.cp + _PAPER.dp, "A rank can differ in both at once, so the degrees multiply."),
            (copies - 1, "Count rank 12,345 itself as well."),
        ),
        why=f"{_PAPER.cp} CP ranks times {_PAPER.dp} DP ranks.",
    )


def _neighbours() -> Item:
    rank, names = 57, ("picotron", "megatron-lm")
    layouts = [_PAPER.replace(order=lp.FRAMEWORKS[name].order) for name in names]
    second = [layout.group("dp", rank)[1] for layout in layouts]
    return Item(
        "Rank 57 is the first of its DP group. Which rank is the second, in picotron's order and in "
        "Megatron-LM's default?",
        second,
        unit="picotron, Megatron-LM",
        hints=(
            "The stride of DP is the product of the degrees of the axes before it.",
            f"picotron has {layouts[0].order}, Megatron-LM {layouts[1].order}: what stands before dp?",
        ),
        slips=(
            (second[::-1], "The other way round: picotron keeps the paper's order, with DP last."),
            ([rank + 1, rank + 1], "Only the fastest axis, TP, has its peers next door."),
            ([n - rank for n in second], "Those are the strides; begin at 57."),
        ),
        why=f"The strides are {second[0] - rank:,} and {second[1] - rank:,}.",
    )


PREDICTIONS: dict[str, Callable[[], Item]] = {
    "The four peers of rank 13, as a list?": _peers,
    "(tp, cp, pp, dp) of rank 12,345?": lambda: _place(_FAILED, "(tp, cp, pp, dp) of rank 12,345?"),
    "With CP fastest: over how many nodes is a TP group of 8 spread?": _nodes,
    "Does rank 4 have the same place in both?": _same_place,
    "In order: how many times the average work has the last rank?": _last_of_cp,
    "How many of the 16,384 GPUs hold the same parameters as rank 12,345?": _same_parameters,
}
"""By the question itself."""

EXERCISES: dict[str, Callable[[], Item]] = {
    "coord of 5003": lambda: _place(5003, "The (tp, cp, pp, dp) of rank 5003 in the paper's layout?"),
    "DP neighbour of 57": _neighbours,
}
"""By the name of the exercise."""
