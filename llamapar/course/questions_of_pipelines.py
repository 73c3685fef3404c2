"""What the notebook on pipelines asks: each question with its truth, hints and pictures.

Every truth is computed by the library when the question is asked; the words state what the question fixes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import llamapar as lp
from llamapar.figures import View

from .boards import order_as_text, placed_operations, schedule_of_guess
from .boxes import Item
from .veils import veiled

_FOUR = {"pp": 4, "micro_batches": 8}
"""The pipeline of the notebook's first four sections."""

_SHARE = "It is a share of the time, at most 1: write 27 % or 0.27."


def _opened(schedule: lp.Schedule, until: int, end: int) -> View:
    """The picture of a schedule up to a time; the rest is veiled, on an axis that says no end."""
    view = lp.view(schedule)
    title = f"{schedule.title}: the first {until} columns"
    under = veiled(view, (until, end), title)
    axis = {**view.spec["layout"]["xaxis"], "range": [0, end]}
    return View({**under.spec, "layout": {**under.spec["layout"], "xaxis": axis}}, under.summary)


def _small_gpipe() -> Item:
    shape = {"pp": 2, "micro_batches": 2}
    asked = lp.schedule("gpipe", **shape)
    early = lp.schedule("1f1b", **shape)
    backwards = [row.replace("B0 B1", "B1 B0") for row in order_as_text(asked)]
    return Item(
        "Two ranks, two micro-batches: place GPipe",
        order_as_text(asked),
        hints=(
            "Both ranks do F0 and F1 first. Rank 1 waits for F0 of rank 0.",
            "Then B0 of rank 1, as soon as its forwards are done; rank 0 needs it for its own B0.",
        ),
        slips=(
            (order_as_text(early), "Rank 1 goes back before it did all forwards; GPipe does not."),
            (backwards, "That runs too; here the backwards come in the order of the forwards."),
        ),
        why="It ends at 9.",
        board=placed_operations(asked),
    )


def _idle() -> Item:
    gpipe = lp.schedule("gpipe", **_FOUR)
    line = gpipe.timeline()
    return Item(
        "For what share of the time is a GPU idle?",
        line.idle_share,
        hints=(
            "A GPU runs 8 forwards of 1 and 8 backwards of 2: 24 of work.",
            "The last rank begins at 3. Its last backward then has 3 ranks to go back through, so the step "
            "ends at 33.",
        ),
        slips=(
            (line.bubble, "That is 9 of 24, of the computing time; asked is the whole time."),
            (3 / 4, "That is one micro-batch alone: with several, ranks work at once."),
            (100 * line.idle_share, _SHARE),
        ),
        why="A GPU computes for 24 of 33, idle for 9: 27.3%.",
        shows=lp.view(gpipe),
        veiled=_opened(gpipe, gpipe.pp, 48),
    )


def _smaller() -> Item:
    both = [lp.schedule(name, **_FOUR) for name in ("gpipe", "1f1b")]
    bubbles = [s.timeline().bubble for s in both]
    flights = [max(s.in_flight) for s in both]
    found = {"bubble": bubbles[1] < bubbles[0], "memory": flights[1] < flights[0]}
    return Item(
        "What does 1F1B make smaller: bubble, memory, or bubble and memory?",
        " and ".join(what for what, smaller in found.items() if smaller),
        choices=(
            ("bubble", "bubble", "37.5% before, 37.5% now"),
            ("memory", "memory", "activations of 8 micro-batches before, of 4 now"),
            ("bubble and memory", "bubble and memory", ""),
        ),
        hints=(
            "How long does the first rank wait for its first backward, in either order?",
            "The first micro-batch still goes through all ranks and back. But what does rank 0 keep by then?",
        ),
        why="The waits at both ends stay; what is kept until a backward has used it does not.",
        shows=lp.view(both[1]),
        veiled=_opened(both[1], both[1].pp, 48),
    )


def _two_stages() -> Item:
    one = lp.schedule("1f1b", **_FOUR)
    two = lp.schedule("interleaved-1f1b", **_FOUR, virtual_stages=2)
    return Item(
        "How many times smaller is the bubble with two stages on each GPU?",
        one.timeline().bubble / two.timeline().bubble,
        hints=(
            "The wait is still 3 steps. How long is a step now?",
            "A stage has half of the layers, so a step takes half the time. The work stays.",
        ),
        slips=(
            (1, "The number of steps stays, and each is shorter."),
            (4, "Twice as many stages, but a micro-batch meets the same ranks: only the step is halved."),
        ),
        why="37.50% becomes 18.75%: the same number of steps, each half as long.",
        shows=lp.view(two),
        veiled=_opened(two, 2 * two.pp, 80),
    )


def _zbv() -> Item:
    zbv = lp.schedule("zbv", **_FOUR)
    bubble = zbv.timeline().bubble
    return Item(
        "What is the bubble of ZBV, as a share of the computing time?",
        bubble,
        hints=(
            "The pause at the end is filled. What of the 18.75% cannot be filled?",
            "A rank waits 3 columns for its first micro-batches, and computes for 48.",
        ),
        slips=(
            (0, "At the start there is no work yet, so something stays."),
            (0.1875, "That is the interleaved schedule, whose backwards are whole."),
            (0.09375, "More is gone than half: the way back is filled as well."),
            (100 * bubble, "It is a share, so 6 % rather than 6."),
        ),
        why="A rank waits 3 and computes 48: 6.25%.",
        shows=lp.view(zbv),
        veiled=_opened(zbv, zbv.pp, 80),
    )


def _ends_last() -> Item:
    shape = {"pp": 4, "virtual_stages": 2, "micro_batches": 12}
    rows = {
        "all forward": lp.schedule("looped-bfs", **shape),
        "flexible": lp.schedule("flexible", **shape, nc=6),
        "1F1B": lp.schedule("interleaved-1f1b", **shape),
    }
    lines = {name: made.timeline(p2p=0.5) for name, made in rows.items()}
    return Item(
        "Which of the three ends last?",
        max(lines, key=lambda name: lines[name].end),
        choices=tuple((name, name, f"ends at {line.end:g}") for name, line in lines.items()),
        hints=(
            "Which order uses each message in the moment in which it is sent?",
            "Micro-batches in rounds of only pp leave a rank nothing else to do meanwhile.",
        ),
        slips=(
            ("all forward", "While a message travels, it works on other micro-batches: it waits for none."),
            ("flexible", "Rounds of six leave a rank other micro-batches while a message travels."),
        ),
        why="It waits for a message again and again, and the others work on other micro-batches.",
    )


def _can_run() -> Item:
    made = lp.Schedule.read(["0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"])
    return Item(
        "Can the two ranks run this?",
        made.ok,
        hints=(
            "Follow both rows: what does rank 0 need for 0B0, and when does rank 1 make it?",
            "Rank 1 runs 1F1 before 1B0. Where does 1F1 get its input?",
        ),
        why="They wait: rank 0 cannot run 0B0 until rank 1 has run 1B0; rank 1 cannot run 1F1 until rank 0 "
        "has run 0F1.",
        shows=made.reason,
    )


SLIPS = ("tied_not_summed", "micro_batches_swapped", "loss_not_divided", "gradients_too_early")
"""The four faults of the notebook."""


@cache
def _wrong_losses() -> Item:
    size = {"n_layers": 2, "dim": 32, "n_heads": 4, "n_kv_heads": 2, "head_dim": 8, "ffn_dim": 48}
    tied = lp.model("tiny").replace(tied=True, **size)
    wrong = []
    for slip in SLIPS:
        run = lp.run(
            "llama", tied, {"pp": 2}, fault=slip, micro_batches=2, backward=False, seq_len=16,
            dtype="float64", device="cpu",
        )  # fmt: skip
        wrong += [slip] if run.output_errors["loss"] > run.tolerance else []
    return Item(
        "In how many of the four is the loss wrong?",
        len(wrong),
        unit="of the four",
        hints=(
            "The loss is known after the forward. Which of the four happen before?",
            "Three of them spoil gradients only. In one, a micro-batch meets the words of another.",
        ),
        slips=(
            (4, "What goes wrong in the backward comes after the loss."),
            (0, "One of the four happens in the forward: which?"),
            (2, "The loss is divided where its gradient begins, so the loss that is logged stays right."),
        ),
        why="Only micro_batches_swapped changes the forward.",
    )


_IN_TURN = 6
"""Columns more than 1F1B takes where rank 0, too, goes back at once: right, and slow."""


def _chunks_of_your_own() -> Item:
    shape = {"pp": 2, "micro_batches": 3}
    asked = lp.schedule("1f1b", **shape)
    most = asked.in_flight

    def judge(answer: object) -> str:
        found = schedule_of_guess(answer, asked.pp).check().in_flight
        over = [rank for rank, allowed in enumerate(most) if found[rank] > allowed]
        if not over:
            return ""
        rank = over[0]
        many = found[over[0]]
        return f"Rank {rank} has {many} chunks in flight at once, and {most[rank]} is the most allowed."

    return Item(
        "Place two ranks and three micro-batches, so that rank 0 never has more than two chunks in flight, "
        "and rank 1 never more than one",
        order_as_text(asked),
        hints=(
            "Rank 1 goes back at once with each micro-batch.",
            "Rank 0 is one micro-batch ahead, then it waits for a backward.",
        ),
        why="It ends at 12; GPipe has 3 chunks in flight on each rank.",
        judge=judge,
        board=placed_operations(asked, spare=_IN_TURN),
    )


PREDICTIONS: dict[str, Callable[[], Item]] = {
    "Two ranks, two micro-batches: place GPipe": _small_gpipe,
    "For what share of the time is a GPU idle?": _idle,
    "What does 1F1B make smaller: bubble, memory, or bubble and memory?": _smaller,
    "How many times smaller is the bubble with two stages on each GPU?": _two_stages,
    "What is the bubble of ZBV, as a share of the computing time?": _zbv,
    "Which of the three ends last?": _ends_last,
    "Can the two ranks run this?": _can_run,
    "In how many of the four is the loss wrong?": _wrong_losses,
}
"""By the question itself."""

EXERCISES: dict[str, Callable[[], Item]] = {"chunks of a schedule of your own": _chunks_of_your_own}
"""By the name of the exercise."""
