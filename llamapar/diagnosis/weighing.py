"""A hypothesis, weighed against the known facts: what one process cannot have met, what nothing suggests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from .hypothesis import LIKELY, POSSIBLE, Hypothesis
from .known import Known
from .observations import AXES
from .reading import Reading
from .vocabulary import CATEGORIES

_BEYOND = frozenset(
    (
        "checkpoint_tp_mismatch", "embed_checkpoint_shape", "world_size_product", "microbatch_divisibility",
        "counter_overflow", "memory_oom_layout",
    )
)  # fmt: skip
"""Causes that one rank may meet too: of the run that saved, of the counts, or of a size alone."""


def clear_unsharded(h: Hypothesis, r: Reading, known: Known) -> Hypothesis:
    """Clear the sharding verdict when every axis it depends on is 1.

    A tensor read from a file may have been cut by another run, so the axes of this run do not clear it.
    """
    if known.alone() and h.parallel is None and not r.loading:
        return replace(h, parallel=False)
    if known.changes or h.category in _BEYOND:
        return h
    asked = h.needs
    if r.loading:
        asked = ()
    axes = [axis for axis in CATEGORIES[h.category].axes or asked if axis in AXES]
    if known.alone(*axes):
        return replace(h, parallel=False)
    return h


_BY_WORDS = frozenset(("memory_oom_layout", "counter_overflow", "quant_group_vs_tp"))
"""Causes that a text names without a word of ranks."""


def as_sure_as_shown(h: Hypothesis) -> Hypothesis:
    """`h`, at most possible unless arithmetic supports it."""
    if h.arithmetic:
        return h
    return replace(h, level=min(h.level, POSSIBLE))


def lower_unsuggested(h: Hypothesis, r: Reading, known: Known) -> Hypothesis:
    """`h`, lowered to possible unless something else suggests the cut: a word about ranks, or a known
    degree.
    """
    named = {h.category, h.subtype} & _BY_WORDS
    if h.level < LIKELY or not h.parallel or named or r.parallel or known.changes:
        return h
    if any(map(known.get, (*AXES, "world"))):
        return h
    return replace(h, level=POSSIBLE)


def weigh(h: Hypothesis, r: Reading, known: Known) -> Hypothesis:
    """`h`, weighed against the known facts."""
    h = clear_unsharded(h, r, known)
    axes: Iterable[str] = CATEGORIES[h.category].axes
    if h.category == "checkpoint_tp_mismatch":  # Without named needs, any axis can be meant.
        axes = [axis for axis in AXES if axis in h.needs] or AXES
    absent = "files of the checkpoint" in h.needs  # This can be absent on one rank as well.
    if h.parallel is None and not absent and any((known.get(axis) or 1) > 1 for axis in axes):
        h = replace(h, parallel=True)  # The axis is in use here, so the tensor is cut.
    return lower_unsuggested(h, r, known)
