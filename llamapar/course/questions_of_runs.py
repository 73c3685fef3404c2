"""Questions about memory, pipelines, messages and machines; `questions` asks them."""

from __future__ import annotations

from random import Random

import llamapar as lp
from llamapar.diagnosis.vocabulary import CATEGORIES

from .boxes import Item, choices_of

# -- memory and pipelines ----------------------------------------------------------------------


def states(draw: Random) -> Item:
    name = draw.choice(("llama3-8b", "llama3.1-70b"))
    dp = draw.choice((8, 16, 32))
    model = lp.model(name)
    layout = lp.Layout(dp=dp, zero=1)
    own = lp.memory(model, layout, seq_len=8192).worst.bytes("optimizer states") / 1e9
    return Item(
        f"{name} has {model.n_params:,} parameters. Adam keeps two float32 numbers for each. With DP {dp} "
        "and ZeRO 1, how many GB (10⁹ bytes) of them does a rank hold?",
        own,
        unit="GB",
        hints=(f"8 bytes for each parameter, shared by {dp} ranks.",),
        slips=(
            (own * dp, f"Those are all of them; ZeRO 1 shares them among {dp} ranks."),
            (own / 2, "Adam keeps two numbers for each parameter: the mean and the mean square."),
        ),
    )


def layers(draw: Random) -> Item:
    pp = draw.choice((4, 8, 16))
    stages = lp.stages("llama3.1-405b", lp.Layout(pp=pp)).stages
    stage = draw.randrange(pp)
    average = 126 / pp
    return Item(
        f"405B has 126 layers. PP {pp} balances the ends: the first stage also holds the embedding and "
        f"the last one the head. How many layers has stage {stage}?",
        len(stages[stage].layers),
        unit="layers",
        hints=(f"126 and two more for embedding and head are 128 units of work, over {pp} stages.",),
        slips=((average, f"{average:g} is the average, and layers are not cut."),),
    )


def bubble(draw: Random) -> Item:
    pp = draw.choice((4, 8))
    micro_batches = draw.choice((8, 12, 16))
    bubble = lp.schedule("1f1b", pp=pp, micro_batches=micro_batches).timeline().bubble
    return Item(
        f"1F1B, {pp} stages, {micro_batches} micro-batches. How long does a stage wait, as a fraction of "
        "the time for which it works?",
        bubble,
        hints=("Each stage waits as long as the other stages take for one micro-batch.",),
        slips=(
            (
                (pp - 1) / (micro_batches + pp - 1),
                "That is the fraction of the whole step, waiting included.",
            ),
            (pp / micro_batches, "A stage does not wait for itself."),
        ),
    )


def flight(draw: Random) -> Item:
    pp = 8
    stage = draw.randrange(1, 7)
    flight = lp.schedule("1f1b", pp=pp, micro_batches=32).in_flight[stage]
    return Item(
        f"1F1B, {pp} stages (0 is the first), 32 micro-batches. Of how many micro-batches does stage "
        f"{stage} keep activations at its fullest moment?",
        flight,
        unit="micro-batches",
        hints=(
            "A stage begins as many forwards as there are stages from itself to the end, then alternates.",
        ),
        slips=(
            (32, "That is GPipe, which runs all forwards first; 1F1B frees one before it begins the next."),
            (stage + 1, "Count from the other end: the first stage waits longest for its first backward."),
        ),
    )


def batch(draw: Random) -> Item:
    layout = lp.Layout(tp=8, cp=draw.choice((1, 2)), pp=4, dp=draw.choice((4, 8)))
    global_batch = draw.choice((256, 512))
    cost = lp.cost("llama3.1-70b", layout, seq_len=8192, global_batch=global_batch)
    return Item(
        f"{layout}: {layout.world} GPUs, a global batch of {global_batch} sequences, one sequence in a "
        "micro-batch. How many micro-batches does a pipeline run in a step?",
        cost.micro_batches,
        unit="micro-batches",
        hints=("Only DP divides the batch: TP, CP and PP work together on the same sequences.",),
        slips=(
            (global_batch // layout.world, "TP, CP and PP ranks do not get sequences of their own."),
            (global_batch, "Each DP group runs its share only."),
        ),
    )


def overflow(draw: Random) -> Item:
    jobs = [(pp, seq) for pp in (2, 4, 8) for seq in (16384, 24576, 32768)]
    draw.shuffle(jobs)
    for pp, seq_len in jobs:
        layout = lp.Layout(tp=8, pp=pp, dp=2)
        memory = lp.memory("llama3.1-70b", layout, seq_len=seq_len, global_batch=2 * 4 * pp)
        over = [one.stage for one in memory.stages if one.total_bytes > memory.hbm_bytes]
        if 0 < len(over) < pp:
            break
    sizes = ", ".join(f"{one.stage}: {one.bytes('parameters') / 2**30:.1f}" for one in memory.stages)
    return Item(
        f"llama3.1-70b under {layout}, {seq_len:,} tokens, 1F1B, H100 with 80 GB. GiB of parameters by "
        f"stage: {sizes}. The others are alike, so what differs is activations in flight. Which stages are "
        "expected to need more than the GPU has? Ask lp.memory or the Explorer, and answer with a list.",
        over,
        unit="stages",
        hints=(
            f'lp.memory("llama3.1-70b", lp.Layout(tp=8, pp={pp}, dp=2), seq_len={seq_len}, '
            f"global_batch={8 * pp}).stages lists them.",
        ),
        slips=(
            ([pp - 1], "The last stage has the head, but the fewest micro-batches in flight."),
            (list(range(pp)), "Not all: each later stage keeps one micro-batch less in flight."),
        ),
    )


# -- messages and machines ---------------------------------------------------------------------


def _message(draw: Random) -> tuple[str, str, lp.Layout, str]:
    """A message of a run, the model that it is of, its layout, and the category of its cause."""
    if draw.random() < 0.5:
        tp = draw.choice((4, 8, 16))
        rows = len(lp.vocab("llama3.1-70b", {"tp": tp}, padding="colossalai").rank(0).rows)
        text = f"size mismatch for embed_tokens.weight: copying a param with shape torch.Size([{rows}, 8192])"
        text += " from checkpoint, the shape in current model is torch.Size([128256, 8192])."
        return text, "llama3.1-70b", lp.Layout(tp=tp), "embed_checkpoint_shape"
    tp = draw.choice((16, 32))
    tokens = draw.choice((2048, 4096))
    columns = len(lp.heads("llama3-8b", {"tp": tp}).rank(0).kv_rows)
    text = f"xk.view(1, {tokens}, -1, 128): shape '[1, {tokens}, -1, 128]' is invalid for input of size "
    text += f"{tokens * columns}"
    return text, "llama3-8b", lp.Layout(tp=tp), "kv_heads_lt_tp"


def implied(draw: Random) -> Item:
    text, model, layout, _ = _message(draw)
    tp = layout.tp
    return Item(
        f"A run of {model} stops: {text}\nOver how many TP ranks was the tensor cut?",
        tp,
        hints=("Divide the size of the whole (after padding, if any) by the size of a rank's part.",),
        slips=(
            (tp // 2, "Half of it: is the rank's part as large as you think?"),
            (128, "That is the width of a head; what share of the KV columns has a rank?"),
        ),
    )


def cause(draw: Random) -> Item:
    text, model, layout, category = _message(draw)
    kinds = ("kv_heads_lt_tp", "embed_checkpoint_shape", "heads_not_divisible", "vocab_not_divisible")
    causes = [CATEGORIES[kind].what for kind in kinds]
    truth = CATEGORIES[category].what
    return Item(
        f"{model} at TP {layout.tp} says: {text.rstrip('.')}.\nWhat is the cause?",
        truth,
        hints=("Which tensor has the first size, and which axis cuts it?",),
        slips=tuple(
            (words, f"Then another size would stand in the message. Not: {words}.")
            for words in causes
            if words != truth
        ),
        choices=choices_of(*causes),
    )


def machine(draw: Random) -> Item:
    gpus, seq_len = draw.choice((32, 64, 128)), draw.choice((8192, 16384))
    plan = lp.plan("llama3.1-70b", gpus=gpus, seq_len=seq_len, global_batch=gpus, top=1)

    def judge(answer: lp.Layout) -> str:
        report = lp.check(
            "llama3.1-70b", answer, gpus=gpus, gpu="h100-80gb", seq_len=seq_len, global_batch=gpus
        )
        errors = [finding for finding in report.findings if finding.severity == "error"]
        if errors:
            return f"{errors[0].code}: {errors[0].message}."
        memory = lp.memory(
            "llama3.1-70b", answer, gpu="h100-80gb", seq_len=seq_len, micro_batch=1, global_batch=gpus
        )
        if memory.expected_bytes <= memory.hbm_bytes:
            return ""
        needs = memory.expected_bytes / 2**30
        has = memory.hbm_bytes / 2**30
        return f"A rank is expected to need {needs:.2f} GiB, and the GPU has {has:.2f}."

    return Item(
        f"Train llama3.1-70b on {gpus} H100s of 80 GB, {seq_len:,} tokens, {gpus} sequences a step. "
        "Answer with a layout that is legal and fits.",
        plan.best.layout,
        hints=("lp.plan searches them all.",),
        judge=judge,
    )
