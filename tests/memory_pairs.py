"""Whether memory moves as it must: pairs of calls that differ in one thing, drawn at random.

Of each pair the first call may not need more than the second: less recomputation keeps more, a second TP way
or another ZeRO stage shares more, half the micro-batch keeps half. Left out, because they may need more: ZeRO
3 beside 2 and ZeRO 2 beside 1, which add gathered parameters and whole gradients in flight; sequence
parallelism beside none, whose gathers are kept; and tp past the KV heads, whose copies grow. The last kind
compares a trainer with the call that names none: its figure must lie in the interval.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import llamapar as lp
from llamapar.count import Memory
from llamapar.frameworks import FRAMEWORKS, Framework

MODELS = ("llama3.2-1b", "llama3.1-8b", "llama2-13b", "llama3.1-70b", "llama3.1-405b")
MODES = ("full", "selective", "none")

Pair = tuple[str, int, int, str]
"""A kind of pair, what the lesser call needs, what the other does, and the layout in words."""


def needs(model: str, layout: lp.Layout, **options: object) -> Memory:
    return lp.memory(model, layout, **options)  # type: ignore[arg-type]


def can_run(trainer: Framework, layout: lp.Layout) -> bool:
    """Whether a trainer runs a layout without another ZeRO stage or an axis that it has not."""
    axes = all(axis in trainer.axes for axis in lp.AXES if layout.size(axis) > 1)
    return trainer.trains and axes and trainer.settled(layout).zero == layout.zero


def drawn(rng: random.Random) -> Iterator[Pair]:
    """The pairs of one random layout. Raises LayoutError where nothing can run it."""
    model = rng.choice(MODELS)
    tp, cp, pp, dp = (rng.choice(ways) for ways in ((1, 2, 4), (1, 1, 2), (1, 1, 2, 4), (1, 2, 8, 64)))
    layout = lp.Layout(tp=tp, cp=cp, pp=pp, dp=dp, zero=rng.choice((0, 1, 1, 2, 3)))
    own = {"seq_len": rng.choice((2048, 4096, 8192)) * cp, "micro_batch": rng.choice((2, 4))}
    name = rng.choice([None, *(n for n, f in FRAMEWORKS.items() if f.trains)])
    trainer = FRAMEWORKS[name] if name else None
    options: dict[str, object] = own | {"framework": name}
    about = f"{model}, {layout}, zero={layout.zero}, {options}"

    one = {mode: needs(model, layout, recompute=mode, **options) for mode in MODES}
    yield "full, selective", one["full"].expected_bytes, one["selective"].expected_bytes, about
    yield "selective, none", one["selective"].expected_bytes, one["none"].expected_bytes, about
    mode = rng.choice(MODES)
    known = options | {"recompute": mode}
    base = one[mode]
    for figure in (base.figure(), *base.counters.values()):
        yield "low, expected", figure.low, figure.expected, about
        yield "expected, high", figure.expected, figure.high, about

    smaller = needs(model, layout, **known | {"micro_batch": own["micro_batch"] // 2})
    yield "half the micro-batch, all", smaller.expected_bytes, base.expected_bytes, about
    more = needs(model, layout.replace(tp=2 * tp), **known)
    if tp > 1:  # from 1 to 2 the matmuls' inputs begin to be gathered, and are kept beside their shards
        yield "twice tp, tp", more.expected_bytes, base.expected_bytes, about
    if layout.zero == 0 and dp > 1 and (trainer is None or {0, 1} <= {*trainer.zero}):
        shared = needs(model, layout.replace(zero=1), **known)
        yield "ZeRO 1, ZeRO 0", shared.expected_bytes, base.expected_bytes, about
    if layout.zero and dp > 1:
        wider = needs(model, layout.replace(dp=2 * dp), **known)
        yield "twice dp under ZeRO, dp", wider.expected_bytes, base.expected_bytes, about

    anyone = needs(model, layout, recompute=mode, **own)
    able = [name for name, one in FRAMEWORKS.items() if can_run(one, layout)]
    for each in rng.sample(able, min(2, len(able))):
        try:
            said = needs(model, layout, recompute=mode, **own, framework=each)
        except lp.LayoutError:
            continue
        within = f"{each}: {about}"
        yield "any trainer's low, a trainer", anyone.low_bytes, said.expected_bytes, within
        yield "a trainer, any trainer's high", said.expected_bytes, anyone.high_bytes, within


def pairs(wanted: int, seed: int = 0) -> Iterator[Pair]:
    """At least so many pairs, of layouts that run."""
    rng, found = random.Random(seed), 0
    while found < wanted:
        try:
            for pair in drawn(rng):
                found += 1
                yield pair
        except lp.LayoutError:
            continue  # of this layout nothing more can be compared
