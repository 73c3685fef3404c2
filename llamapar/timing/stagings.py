"""The stages of a pipeline that a search tries: how layers split, what they keep, and how long ranks wait.

The bubble of equal stages is a closed form (arXiv:2104.04473 section 2.2); a schedule's table says the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from llamapar.count.in_flight import in_flight
from llamapar.describe.job import Job
from llamapar.describe.models import ModelConfig
from llamapar.describe.splits import LAYER_SPLITS
from llamapar.errors import LlamaparError
from llamapar.frameworks import Framework
from llamapar.place.orders import ORDERS
from llamapar.place.schedule import SEVERAL

SPLIT = ("interleaved-zero-bubble", "zbv", "dualpipev")
"""Schedules that split backwards."""

HIDDEN = 0.005
"""A pipeline's bubble, as a share of the step, below which no more virtual stages are tried."""


@dataclass(frozen=True)
class Stages:
    """Layers of a pipeline. longest: of the longest stage. rank: of the rank with the most.

    last: of the rank with the head. first: of each stage of ranks 0 and 1, which keep the most activations.
    """

    longest: int
    rank: int
    last: int
    first: tuple[tuple[int, ...], ...]


@lru_cache(maxsize=4096)
def stages_of(model: ModelConfig, pp: int, virtual_stages: int, split: str) -> Stages | None:
    """The Stages of a split; None if the split refuses."""
    try:
        counts = LAYER_SPLITS[split](model.n_layers, pp * virtual_stages, model.head_layers)
    except LlamaparError:
        return None
    # Loop placement: every pp-th stage lies on the same rank.
    ranks = [sum(counts[rank::pp]) for rank in range(pp)]
    return Stages(
        max(counts), max(ranks), ranks[-1], tuple(tuple(counts[rank::pp]) for rank in range(min(2, pp)))
    )


class Staging(NamedTuple):
    """Stages of a pipeline with micro-batches.

    split: as in a Candidate. layers: of the fuller of ranks 0 and 1. kept: those whose activations it keeps,
    each of one micro-batch.
    """

    virtual_stages: int
    split: str
    stages: Stages
    kept: int
    layers: int


def waits_of(
    schedule: str, pp: int, virtual_stages: int, many: int, forward: float, backward: float
) -> float:
    """Seconds that ranks wait for a pipeline with stages of `forward` and `backward` seconds.

    With split backwards, a full pipeline waits for one forward for each further rank, or for one half of a
    backward if that is longer. The schedule's table says the same if they are equal.
    """
    # A V has two stages a rank and is full with twice as many micro-batches.
    full = pp
    if ORDERS[schedule].placement == "v":
        full = 2 * pp
    if schedule in SPLIT and many >= full:
        return (pp - 1) * max(forward, backward / 2)
    # 1F1B and GPipe wait for pp - 1 of the others' stages. With fewer micro-batches than ranks, every further
    # stage of a rank also waits until the round is full.
    bubble = pp - 1 + (virtual_stages - 1) * max(0, pp - many)
    return bubble * (forward + backward)


def stagings_of(
    job: Job, pp: int, many: int, splits: tuple[str, ...], judge: Framework | None
) -> Iterator[Staging]:
    """Numbers of virtual stages with layer splits.

    Uneven stages are left out where neither the longest of them nor the fullest rank has fewer layers.
    """
    own = ORDERS[job.schedule].virtual_stages
    ways: Iterable[int] = range(1, max(1, (job.model.n_layers + 2) // pp) + 1)
    if own is not None and job.schedule not in SEVERAL:
        # ZBV and DualPipeV fix two stages a rank. 1f1b and gpipe fix one, but have looped forms for several.
        ways = (own,)
    elif pp == 1 or many % max(1, many // pp) or (judge and not judge.interleaves):
        ways = (1,)
    for split in splits:
        found: list[Stages] = []
        hidden = 1
        for v in ways:
            # The bubble is (pp - 1) / (v · many) of the step; once a smaller v hides it, more gain nothing.
            own_choice = v == job.layout.virtual_stages
            if found and pp - 1 <= HIDDEN * hidden * many and not own_choice:
                continue
            made = stages_of(job.model, pp, v, split)
            if made is None:
                continue
            even = any(layers % (pp * v) == 0 for layers in (job.model.n_layers, job.model.n_layers + 2))
            # The order of these tests is that of their cost.
            if own_choice or even or all(made.longest < o.longest or made.rank < o.rank for o in found):
                found.append(made)
                hidden = v
                fullest = _fullest(job.schedule, pp, v, many, made)
                if fullest:
                    yield Staging(v, "" if split == splits[0] else split, made, *fullest)


@lru_cache(maxsize=4096)
def _fullest(schedule: str, pp: int, virtual_stages: int, many: int, made: Stages) -> tuple[int, int] | None:
    """Layers whose activations the fuller of ranks 0 and 1 keeps, and all of its layers.

    None if the schedule is not defined.
    """
    found = []
    try:
        for rank, layers in enumerate(made.first):
            flying = in_flight(schedule, rank, pp, virtual_stages, many)
            found.append((sum(n * chunks for n, chunks in zip(layers, flying, strict=True)), sum(layers)))
    except LlamaparError:
        return None
    return max(found)
