"""Twenty questions whose numbers are drawn from a seed: `Quiz(seed).ask(name, answer)`.

Every truth is computed by the library from what was drawn. A question knows the usual slips, each with a
hint of its own, and has one for every other wrong answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import llamapar as lp
from llamapar.errors import one_of

from . import questions_of_runs as runs
from .boxes import UNSAID, Item, choices_of, pose

_PAPER = lp.Layout(tp=8, cp=16, pp=16, dp=8)
_MODELS = ("llama3-8b", "llama3.1-70b", "llama3.1-405b")


class Quiz:
    """The questions with the numbers of one seed."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def question(self, name: str) -> Item:
        """The question of that name; the same seed draws the same numbers. Raises lp.LlamaparError."""
        make = QUESTIONS[one_of("question", name, QUESTIONS, lp.LlamaparError)]
        lesson = next(lesson for lesson, names in LESSONS.items() if name in names)
        item = make(Random(f"{self.seed} {name}"))
        back = f"The lesson is {lesson}."
        slips = tuple((slip, f"{why} {back}") for slip, why in item.slips)
        return replace(item, hints=(f"{item.hints[0]} {back}",), slips=slips)

    def ask(self, name: str, answer: object = UNSAID) -> None:
        """Without an answer, a box for it. Else prints the question and what `check` prints of an answer.

        Raises lp.LlamaparError for a question that is not there, and for an answer that cannot be read.
        """
        item = self.question(name)
        if answer is not UNSAID:
            print(item.text)
        pose(item, "questions", name, answer)


# -- inside a layer ----------------------------------------------------------------------------


def _heads(draw: Random) -> Item:
    model = lp.model(draw.choice(_MODELS))
    tp = draw.choice((2, 4, 8))
    group = model.n_heads // model.n_kv_heads
    return Item(
        f"{model.name} has {model.n_heads} query heads. How many does a rank hold at TP {tp}?",
        len(lp.heads(model, {"tp": tp}).rank(0).q_heads),
        unit="heads",
        hints=(f"TP deals the {model.n_heads} query heads out evenly, whole heads only.",),
        slips=(
            (model.n_heads, "That is the whole layer: TP cuts it."),
            (group, "That is how many query heads share one KV head."),
        ),
    )


def _enough(draw: Random) -> Item:
    kv, tp = draw.choice([(kv, tp) for kv in (6, 10, 12, 20) for tp in (2, 3, 4, 5, 6) if kv > tp])
    model = lp.model("llama3-8b").replace(name="yours", n_heads=60, n_kv_heads=kv, head_dim=64)
    fits = all(f.code != "LP104" for f in lp.check(model, lp.Layout(tp=tp)).findings)
    return Item(
        f"A model has {kv} KV heads, and TP is {tp}, so there is at least one for each rank. Can TP deal "
        "them out without copies?",
        fits,
        hints=("Having enough heads is not the rule: each rank must get the same whole number.",),
        slips=(
            (
                not fits,
                f"Divide: {kv} / {tp} = {kv / tp:g} heads for each rank. Is that a whole number?",
            ),
        ),
    )


def _copies(draw: Random) -> Item:
    tp = draw.choice((16, 32))
    head = draw.randrange(8)
    held = lp.heads("llama3.1-405b", {"tp": tp}, kv_replication=True).shared()[head]
    return Item(
        f"405B has 8 KV heads. At TP {tp} each is stored more than once. Which TP ranks hold KV head {head}? "
        "Answer with a list.",
        list(held),
        unit="ranks",
        hints=(
            f"{tp} ranks over 8 heads make {tp // 8} copies of each, and the copies stand beside each other.",
        ),
        slips=(
            ([head], f"That is one copy; {tp} ranks over 8 heads need {tp // 8}."),
            (
                list(range(head, tp, 8)),
                "Copies stand side by side, for query heads are dealt out in order and need their own KV "
                "head.",
            ),
        ),
    )


def _pads(draw: Random) -> Item:
    tp = draw.choice((16, 32, 64))
    vocab = lp.vocab("llama3.1-70b", {"tp": tp}, padding="megatron-lm")
    return Item(
        "Llama 3.1's vocabulary has 128,256 rows. Megatron-LM pads it to a multiple of 128 · TP. How "
        f"many pad rows are there at TP {tp}, over all ranks?",
        vocab.pad_rows,
        unit="rows",
        hints=(f"Round 128,256 up to a multiple of {128 * tp:,}, and subtract.",),
        slips=(
            (0, f"128,256 / {128 * tp:,} = {128256 / (128 * tp):g}, which is not whole."),
            (vocab.padded, "That is the padded vocabulary; how much of it is padding?"),
        ),
    )


# -- who and where -----------------------------------------------------------------------------


def _coord(draw: Random) -> Item:
    rank = draw.randrange(1000, _PAPER.world)
    turned = _PAPER.replace(order="dp-pp-cp-tp").coord_of(rank)
    return Item(
        f"TP 8, CP 16, PP 16, DP 8, in the order TP, CP, PP, DP, fastest first. Which (tp, cp, pp, dp) has "
        f"rank {rank:,}?",
        tuple(_PAPER.coord_of(rank)),
        unit="tp, cp, pp, dp",
        hints=("Long division: the remainder by 8 is tp; go on with the quotient, by 16, by 16 and by 8.",),
        slips=((tuple(turned), "You divided by DP first; TP is the fastest axis, so it comes first."),),
    )


def _peer(draw: Random) -> Item:
    axis = draw.choice(("cp", "pp", "dp"))
    rank = draw.randrange(8)
    group = _PAPER.group(axis, rank)
    return Item(
        f"TP 8, CP 16, PP 16, DP 8, TP fastest. Rank {rank} is the first of its {axis.upper()} group. "
        "Which rank is the second?",
        group[1],
        hints=(f"The stride of {axis.upper()} is the product of the degrees of the axes before it.",),
        slips=((rank + 1, "Only the fastest axis, TP, has its peers next door."),),
    )


def _nodes(draw: Random) -> Item:
    axis = draw.choice(("cp", "dp"))
    tp = draw.choice((2, 4))
    layout = lp.Layout(tp=tp, cp=4, dp=8)
    group = layout.group(axis, 0)
    return Item(
        f"{layout} with 8 GPUs in a node and the usual order. How many nodes does a {axis.upper()} group "
        "touch?",
        len({rank // 8 for rank in group}),
        unit="nodes",
        hints=(f"Write the group of rank 0 down: {len(group)} ranks, {group[1]} apart. Then divide by 8.",),
        slips=(
            (len(group), "That is its number of ranks; some of them may share a node."),
            (1, f"Its ranks are {group[1]} apart, and a node holds 8."),
        ),
    )


def _sums(draw: Random) -> Item:
    layout = lp.Layout(tp=4, cp=2)
    terms = lp.traffic("attention", "llama3-8b", layout, seq_len=8192).terms
    term = draw.choice([term for term in terms if term.axis in ("tp", "cp")])
    others = [axis for axis in lp.AXES if axis != term.axis]
    when = {
        "forward": "In the forward pass",
        "backward": "In the backward pass",
        "gradients": "After the backward pass",
    }
    what = f"the gradient of {term.part}" if term.phase == "gradients" else term.part
    return Item(
        f"Attention under {layout}. {when[term.phase]}, over which axis runs the "
        f"{term.kind.replace('_', '-')} of {what}?",
        term.axis,
        hints=("TP cuts heads and the columns and rows of matrices; CP cuts the tokens.",),
        slips=tuple(
            (axis, f"{axis.upper()} does not cut what this collective joins again.") for axis in others
        ),
        choices=choices_of(*lp.AXES),
    )


# -- what travels ------------------------------------------------------------------------------


def _tokens(draw: Random) -> Item:
    cp = draw.choice((4, 8, 16))
    seq_len = draw.choice((8192, 32768, 131072))
    rank = draw.randrange(1, cp - 1)
    chunks = lp.sequence({"cp": cp}, seq_len).rank(rank).chunks
    return Item(
        f"{seq_len:,} tokens over CP {cp} in head-tail chunks. At which positions do the two chunks of CP "
        f"rank {rank} begin? Answer with a list.",
        [chunk.start for chunk in chunks],
        hints=(
            f"Cut the sequence into {2 * cp} chunks. A rank holds the one with its own number and its mirror "
            "image.",
        ),
        slips=(
            (
                [rank * seq_len // cp, rank * seq_len // cp + seq_len // (2 * cp)],
                "Those are two neighbours: late tokens attend to more, so the last rank would do most of "
                "the work.",
            ),
        ),
    )


def _key_bytes(draw: Random) -> Item:
    tp = draw.choice((2, 4, 8))
    seq_len = draw.choice((16384, 65536))
    layout = lp.Layout(tp=tp, cp=8)
    terms = lp.traffic("attention", "llama3-8b", layout, seq_len=seq_len, dtype="bfloat16").terms
    gathered = sum(t.count * t.payload for t in terms if (t.part, t.phase) == ("K and V", "forward"))
    return Item(
        f"llama3-8b (8 KV heads of 128) in bfloat16 under {layout}, {seq_len:,} tokens, one sequence. How "
        "many bytes do K and V have together after CP has gathered them, in one layer, on one rank?",
        gathered,
        unit="bytes",
        hints=("K and V · tokens of the whole sequence · KV heads of a TP rank · 128 · 2 bytes.",),
        slips=(
            (gathered * tp, "TP has already dealt the KV heads out: a rank gathers its own only."),
            (gathered // 2, "K and V are two tensors."),
            (gathered // 8, "That is before the gather: a CP rank holds an eighth of the tokens."),
        ),
    )


def _ways(draw: Random) -> Item:
    layout = lp.Layout(tp=8, cp=draw.choice((2, 4, 8)), dp=draw.choice((4, 8, 16)), zero=1)
    return Item(
        f"{layout} with ZeRO 1. Over how many ranks are the optimizer states of one parameter sharded?",
        lp.zero("llama3-8b", layout).ways,
        unit="ranks",
        hints=("All ranks that hold the same slice of the parameters and saw different tokens.",),
        slips=(
            (layout.dp, "CP ranks hold the same parameters too, and saw other tokens: they take part."),
            (layout.world, "TP ranks hold other slices of the parameters, so they do not take part."),
        ),
    )


QUESTIONS: dict[str, Callable[[Random], Item]] = {
    "heads of a rank": _heads,
    "where a rank sits": _coord,
    "pad rows": _pads,
    "layers of a stage": runs.layers,
    "enough KV heads": _enough,
    "chunks of a rank": _tokens,
    "bytes of Adam": runs.states,
    "the next peer": _peer,
    "waiting": runs.bubble,
    "TP from a message": runs.implied,
    "shards of a state": _ways,
    "copies of a KV head": _copies,
    "which axis": _sums,
    "micro-batches in flight": runs.flight,
    "nodes of a group": _nodes,
    "bytes of K and V": _key_bytes,
    "micro-batches of a step": runs.batch,
    "cause of a message": runs.cause,
    "the stage that overflows": runs.overflow,
    "a layout for a machine": runs.machine,
}
"""The course's last questions, in its order: neighbours are of different lessons."""

LESSONS: dict[str, tuple[str, ...]] = {
    "01_four_axes": ("where a rank sits", "the next peer", "nodes of a group"),
    "02_collectives": ("which axis",),
    "03_attention_heads": ("heads of a rank", "enough KV heads", "copies of a KV head"),
    "04_vocab_embedding": ("pad rows",),
    "05_data_parallel": ("shards of a state",),
    "06_context_parallel": ("chunks of a rank", "bytes of K and V"),
    "07_pipeline": ("layers of a stage", "waiting", "micro-batches in flight", "micro-batches of a step"),
    "08_memory": ("bytes of Adam", "the stage that overflows"),
    "10_time_and_plan": ("a layout for a machine",),
    "12_shape_debugger": ("TP from a message", "cause of a message"),
}
"""Notebook → the questions that it teaches, so that a miss leads back."""
