"""What is certain of incomplete settings stays true with whatever the open facts are."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import llamapar as lp
from llamapar.configs.incomplete import judge_incomplete
from llamapar.rules.memory_rule import memory_of

DROPPED = (
    *("tp", "cp", "pp", "dp", "dim", "n_layers", "n_heads", "n_kv_heads", "ffn_dim", "vocab_size"),
    *("seq_len", "gpus", "micro_batch", "micro_batches", "global_batch", "virtual_stages", "zero"),
)
TRAINERS = (None, "megatron-lm", "torchtitan", "nanotron", "picotron", "vllm", "llama-models", "deepspeed")


def complete(dice: random.Random) -> lp.Settings:
    """Settings of a random job, in which sizes often do not divide."""
    group, heads = dice.choice([1, 2, 4, 8]), dice.choice([1, 2, 3, 7, 8, 16])
    model = {
        "n_kv_heads": heads,
        "n_heads": heads * group,
        "dim": dice.choice([1024, 4096, 1000]),
        "head_dim": 64,
    }
    model |= {"n_layers": dice.choice([1, 3, 32, 126]), "ffn_dim": dice.choice([3072, 14336, 1001])}
    model |= {"vocab_size": dice.choice([128256, 32000, 50257, 11]), "tied": dice.random() < 0.2}
    layout: dict[str, Any] = {axis: dice.choice([1, 1, 2, 3, 4, 8]) for axis in lp.AXES}
    layout |= {"virtual_stages": dice.choice([1, 1, 2, 5]), "zero": dice.choice([0, 1, 2, 3])}
    layout["sequence_parallel"] = dice.choice([None, True, False])
    if layout["pp"] == 1 and dice.random() < 0.8:
        layout["virtual_stages"] = 1
    world = layout["tp"] * layout["cp"] * layout["pp"] * layout["dp"]
    job: dict[str, Any] = {"gpus": world, "gpus_per_node": 8}
    job |= {"seq_len": dice.choice([8192, 4096, 1000]), "micro_batch": dice.choice([1, 2, 3])}
    job["micro_batches"] = dice.choice([1, 2, 8, 9])
    job["global_batch"] = layout["dp"] * job["micro_batch"] * job["micro_batches"] + dice.choice([0, 0, 1])
    return lp.Settings("a test", dice.choice(TRAINERS), model, layout, job, {}, {}, (), (), (), ())


def without(settings: lp.Settings, names: list[str]) -> lp.Settings:
    model, layout, job = (
        {name: value for name, value in held.items() if name not in names}
        for held in (settings.model, settings.layout, settings.job)
    )
    return replace(settings, model=model, layout=layout, job=job, unknown=dict.fromkeys(names, "dropped"))


def test_what_is_certain_holds_whatever_the_open_facts_are(counts: Callable[[int, int, int], int]) -> None:
    dice, judged, certain = random.Random(7), 0, 0
    for _ in range(counts(150, 1500, 10_000)):
        whole = complete(dice)
        try:
            report = lp.check(whole)
        except lp.LlamaparError:
            continue
        true = {f.code: (f.severity, f.message) for f in report.arithmetic}
        names = dice.sample(DROPPED, dice.choice([1, 1, 2, 3, 5]))
        part = judge_incomplete(without(whole, names))
        for code, severity, message, _ in part.findings:
            assert true.get(code) == (severity, message), (names, code)
        open_codes = {code for codes in part.needs.values() for code in codes}
        said = {code for code, *_ in part.findings}
        missed = {code: true[code] for code in true if code not in open_codes | said}
        assert not missed, names
        judged += 1
        certain += len(part.findings)
    assert judged > 100
    assert certain > judged / 2


def test_memory_of_an_open_vocabulary_lies_between_its_ends() -> None:
    """Between what the memory rule counts for the least and for the most that is filled in."""
    layout = {"tp": 4, "pp": 2, "dp": 2, "cp": 1, "zero": 1, "virtual_stages": 1}
    job = {"gpus": 16, "seq_len": 4096, "micro_batch": 1, "global_batch": 8}
    model = lp.model("llama3-8b")
    dims = {name: getattr(model, name) for name in ("dim", "n_layers", "n_heads", "n_kv_heads", "ffn_dim")}
    whole = lp.Settings(
        "a test", "megatron-lm", dims | {"vocab_size": 0}, layout, job, {}, {}, (), (), (), ()
    )
    part = judge_incomplete(without(whole, ["vocab_size"]))
    judged = [lp.check(replace(whole, model=dims | {"vocab_size": rows})) for rows in (32_000, 262_144)]
    counted = [memory_of(report.job, report.judge) for report in judged]
    low, high = counted[0].low_bytes, counted[1].high_bytes
    assert part.memory == (
        f"{low / 2**30:.1f} to {high / 2**30:.1f} GiB on the fullest rank, "
        "for vocab_size from 32,000 to 262,144"
    )
    assert low < high
