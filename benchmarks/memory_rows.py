"""Measured peaks of memory beside what `llamapar memory` prints for them.

    .venv/bin/python benchmarks/memory_rows.py [--half even|odd] [--rows]
    .venv/bin/python benchmarks/memory_rows.py --fit     # what SHARES in llamapar/count/terms.py come from
    .venv/bin/python benchmarks/memory_rows.py --page    # writes docs/accuracy.md

Each row of tests/oracles/peaks_*.json becomes a command line with what the row tells and nothing else. Scored
is the counter that the row names, `max_reserved` where it names none. Nothing is chosen by a measured value.
A row that says too little, or that the command refuses, is left out with its reason. The intervals are fitted
to one half of the rows (even crc32 of the name); the other half scores them.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import _page
import llamapar as lp
from as_printed import ORACLES, SCORES, Answered, hugging_face, percentile, printed, scores, words
from llamapar.count.terms import CONTEXT_TERM, OUTSIDE, SHARES
from llamapar.describe.hardware import HARDWARE

SETS = {
    "ultrascale": "nanotron: the Ultra-Scale Playbook's figure",
    "published": "torchtitan: its publications",
    "measured": "a dozen trainers: logs and reports",
    "gathered": "public repositories",
    "fresh": "five sources",
    "later": "five sources, collected later",
    "unseen": "six sources, collected after those",
    "sixth": "nine sources, collected last",
}
"""Name of tests/oracles/peaks_NAME.json → what it holds, in the order in which they were collected."""

NAMES = {
    "hidden": ("hidden", "dim"),
    "heads": ("heads", "n_heads"),
    "micro_batch": ("micro_batch", "mbs"),
    "global_batch": ("global_batch_seqs", "gbs_seqs"),
    "virtual": ("vp", "virtual_stages"),
    "peak": ("peak_mem", "gpu_mem_gb"),
}
"""What is asked of a row or of its dims → the fields that may tell it."""

TRAINERS = {
    "whole-graph": "graph_trainer",
    "internevo": "internevo",
    "torchtitan": "torchtitan",
    "nanotron": "nanotron",
    "megatron-deepspeed": "megatron-deepspeed",
    "flagscale": "flagscale",
    "megatron": "megatron-lm",
    "deepspeed": "deepspeed",
    "hf trainer": "transformers",
    "trl": "transformers",
    "accelerate": "transformers",
    "atorch fsdp": "transformers",
    "litgpt": "litgpt",
    "torchtune": "torchtune",
    "prime-rl": "prime-rl",
    "picotron": "picotron",
    "fms-fsdp": "fms-fsdp",
    "llama-recipes": "llama-cookbook",
    "llama-cookbook": "llama-cookbook",
    "neox": "gpt-neox",
}
"""Word of a row's trainer → the trainer; a library that trains with Hugging Face's loop has its row."""

SOURCES: dict[str, dict[str, Any]] = {
    # config/parallelism_config.py: no recomputation; helpers.py:795: rank 0 writes the figure down, so it is
    # the first stage's; all @2411b022a7
    "ultrascale": {"trainer": "nanotron", "recompute": "none", "seq_len": 4096},
    # train_configs @9dec370: sequences of 8,192; metrics.py: the counter is max_reserved
    "torchtitan": {"trainer": "torchtitan", "counter": "reserved", "zero": 3, "seq_len": 8192},
    # prime-rl's benchmarks/README.md and its results, of January 2026
    "benchmark-": {"day": "2026-01-31"},
    # arXiv:2410.06511, of 2024-10-09
    "torchtitan-arxiv": {
        "trainer": "torchtitan",
        "counter": "reserved",
        "seq_len": 8192,
        "day": "2024-10-09",
    },
}
"""Beginning of a row's name → what its source says of all such rows."""

COUNTERS = {"allocated": "max_allocated", "reserved": "max_reserved", "device": "nvidia-smi"}
"""Word of a row → the counter, as the command names it."""

ZERO = {"zero-3": 3, "zero-2": 2, "zero-1": 1, "distributed optimizer": 1, "not resharded": 2, "fsdp": 3}
"""Words for what is sharded → ZeRO stage; the first that a row has counts."""

UNITS = {"gib": 2**30, "mib": 2**20, "gb": 10**9, "mb": 10**6, "bytes": 1}


class Unsaid(Exception):
    """A row does not say enough: the reason."""


@dataclass(frozen=True, kw_only=True)
class Scored(Answered):
    """A row beside its answer, in bytes: what the counter is expected to show, its interval, its terms.

    terms: what is counted of what this counter sees. whole: whether nothing that the command asks about is
    open.
    """

    name: str
    file: str
    trainer: str
    counter: str
    terms: float
    whole: bool

    @property
    def half(self) -> str:
        """The half that the intervals are fitted to is the even one."""
        return "odd" if crc32(self.name.encode()) % 2 else "even"


# -- what a row tells ------------------------------------------------------------------------------


def number(row: Mapping[str, Any], name: str) -> int | None:
    """A whole number that the row tells under any of a name's names."""
    value = next((row[n] for n in NAMES.get(name, (name,)) if row.get(n) not in (None, "")), None)
    return None if value is None else int(value)


def config_of(row: Mapping[str, Any], named: Mapping[str, Any], seq_len: int) -> dict[str, Any]:
    """The row's model as a config.json: its own dims, or those that the file gives its name."""
    dims = row.get("dims") or named.get(str(row.get("model")))
    if not dims:
        raise Unsaid("the model's dims")
    heads = number(dims, "heads")
    # Two matrices of a GPT's and two kept tensors of it: SwiGLU has three of two thirds.
    ffn = round(dims["ffn"] * 2 / 3) if "gelu" in str(dims.get("mlp")) else dims["ffn"]
    own = {"dim": number(dims, "hidden"), "n_layers": dims["layers"], "n_heads": heads, "ffn_dim": ffn}
    own |= {"n_kv_heads": dims.get("kv_heads") or heads, "vocab_size": dims["vocab"], "max_seq_len": seq_len}
    tied = bool(dims.get("tied", dims.get("tied_embeddings")))
    wide = {"head_dim": dims["head_dim"]} if dims.get("head_dim") else {}
    return hugging_face(own | {"tied": tied}) | wide


def measured_of(row: Mapping[str, Any]) -> float:
    """Bytes of the peak."""
    value = next((row[n] for n in NAMES["peak"] if row.get(n) is not None), None)
    if value is None:
        raise Unsaid("its peak")
    unit = re.search(r"gib|mib|gb|mb|bytes", str(row.get("peak_mem_unit")).lower())
    return float(value) * UNITS[unit[0] if unit else "gib"]


def degrees_of(row: Mapping[str, Any]) -> dict[str, int]:
    """Degrees of the axes; cp is 1 where nothing is said, and dp what the GPUs leave."""
    found = {axis: number(row, axis) or (1 if axis == "cp" else 0) for axis in lp.AXES}
    gpus = number(row, "gpus") or 8 * (number(row, "nodes") or 0)
    if not found["dp"] and gpus and found["tp"] and found["pp"]:
        found["dp"] = gpus // (found["tp"] * found["cp"] * found["pp"])
    if not all(found.values()):
        raise Unsaid("all degrees")
    return found


def day_of(row: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    """The day of the code, as its source or its name tells it: of a month its 28th; "" where neither does."""
    source = row.get("source")
    source = source if isinstance(source, Mapping) else {}
    named = re.search(r"[-_](20\d\d)(\d\d)?[-_]", f"{row.get('id')} {source.get('path')}")
    said = source.get("date") or known.get("day") or (f"{named[1]}-{named[2] or '06'}" if named else "")
    whole = re.fullmatch(r"(20\d\d)(?:-(\d\d)(?:-(\d\d))?)?.*", str(said))
    return f"{whole[1]}-{whole[2] or '06'}-{whole[3] or '28'}" if whole else ""


def recompute_of(row: Mapping[str, Any], known: Mapping[str, Any]) -> str | None:
    """A mode of recomputation, where the row or its source names one of ours."""
    said = row.get("recompute", known.get("recompute"))
    words = {True: "full", False: "none"}.get(said, str(said or "").lower())
    if "mlp" in words or "layernorm" in words:
        return None  # parts of a layer that no mode of ours names
    words = words.partition(" (full/block/0 layers)")[0].replace("graph default sac", "selective")
    return next((mode for mode in ("full", "selective", "none") if mode in words), None)


def gpu_of(row: Mapping[str, Any]) -> object:
    """The GPU that the row names, or one with the memory that it tells."""
    if row.get("gpu_gib"):
        return json.dumps({"memory_gib": row["gpu_gib"]}, separators=(",", ":"))
    words = re.sub(r"[^a-z0-9]", "", str(row.get("hardware") or "").lower())
    return next((gpu for gpu in HARDWARE if all(word in words for word in gpu.split("-"))), None)


def facts_of(row: Mapping[str, Any], file: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the command that the row tells."""
    found: dict[str, Any] = degrees_of(row)
    seq_len = number(row, "seq_len") or number(file, "seq_len") or known.get("seq_len")
    virtual, micro, batch = (
        number(row, "virtual") or 1,
        number(row, "micro_batch"),
        number(row, "global_batch"),
    )
    if micro and batch is None and number(row, "grad_acc"):
        batch = micro * row["grad_acc"] * found["dp"]
    if micro is None and batch:
        micro = max(1, batch // found["dp"] // (found["pp"] * virtual if found["pp"] > 1 else 1))
    if not (seq_len and micro):
        raise Unsaid("a sequence length and a micro-batch")
    found |= {"seq_len": seq_len, "micro_batch": micro, "virtual_stages": virtual, "kv_replication": True}
    if batch and batch % (found["dp"] * micro) == 0:
        found["global_batch"] = batch
    words = str(row.get("trainer") or "").lower()
    trainer = next((name for word, name in TRAINERS.items() if word in words), known.get("trainer"))
    day = day_of(row, known)
    if trainer:
        found["framework"] = f"{trainer}@{day}" if day else trainer
    sharding = f"{row.get('sharding') or ''} zero-{row.get('zero')}".lower()
    stages = (stage for word, stage in ZERO.items() if word in sharding)
    stage = row["zero"] if isinstance(row.get("zero"), int) else next(stages, known.get("zero", 1))
    if not (stage == 3 and found["pp"] > 1 and row.get("zero") is None):
        found["zero"] = stage  # in a pipeline FSDP keeps parameters or not, as its trainer does
    for name in ("dp_replicate", "sequence_parallel", "loss", "master_weights", "grad_dtype"):
        if row.get(name) is not None:
            found[name] = row[name]
    found |= {"recompute": recompute_of(row, known), "gpu": gpu_of(row)}
    if "all-forward" in str(row.get("schedule") or "").lower():
        found["schedule"] = "gpipe"
    return {name: value for name, value in found.items() if value is not None}


def share_of(row: Mapping[str, Any], facts: Mapping[str, Any], answer: Mapping[str, Any]) -> float:
    """What the PP rank whose counter the row shows needs, over what the worst one does."""
    totals = [stage["total_bytes"] for stage in answer["stages"]]
    first = str(facts.get("framework")).startswith("nanotron")  # rank 0 writes its counter down
    last = "LAST rank" in str(row.get("counted"))
    rank = row.get("pp_rank", 0 if first else (-1 if last else None))
    return 1.0 if rank is None else float(totals[rank] / max(totals))


def score(row: Mapping[str, Any], name: str, file: Mapping[str, Any], dated: bool = True) -> Scored:
    """The row beside what the command prints for it, told the day of the code or not. Raises Unsaid."""
    label = str(row.get("id") or f"{name}-{json.dumps(row)}")
    keys = [key for key in SOURCES if label.startswith(key)]
    known = SOURCES[max(keys, key=len)] if keys else {}
    measured, facts = measured_of(row), facts_of(row, file, known)
    if "framework" in facts and not dated:
        facts["framework"] = facts["framework"].partition("@")[0]
    config = config_of(row, file.get("model_dims_inferred", {}), facts["seq_len"])
    answer = printed(words("memory", config, facts))
    if "error" in answer:
        raise Unsaid(answer["error"]["message"])
    shows = f"{row.get('peak_mem_unit') or ''} {row.get('counter') or known.get('counter') or ''}"
    counter = next((kind for word, kind in COUNTERS.items() if word in shows), "max_reserved")
    share = share_of(row, facts, answer)
    low, expected, high = (share * end for end in answer["counters"][counter])
    worst = answer["worst"]
    terms = (worst["total_bytes"] - worst["terms"][CONTEXT_TERM]) * share
    trainer = facts.get("framework", "not known").partition("@")[0]
    return Scored(
        name=label,
        file=name,
        trainer=trainer,
        counter=counter,
        low=low,
        expected=expected,
        high=high,
        terms=terms,
        measured=measured,
        whole=not {"recompute", "framework"} & set(answer["open_facts"]),
    )


@cache
def rows(dated: bool = True) -> tuple[tuple[Scored, ...], dict[str, str]]:
    """Every measured peak that can be asked for, and the others with the reason."""
    found, left = list[Scored](), dict[str, str]()
    for name in SETS:
        file = json.loads((ORACLES / f"peaks_{name}.json").read_text(encoding="utf-8"))
        every = max((rows for rows in file.values() if isinstance(rows, list)), key=len)
        for row in every:
            try:
                found.append(score(row, name, file, dated))
            except Unsaid as why:
                left[str(row.get("id") or row)] = str(why).splitlines()[0]
    return tuple(found), left


# -- scores ----------------------------------------------------------------------------------------


def halves(found: Iterable[Scored], half: str | None) -> list[Scored]:
    """Those of a half; all without one."""
    return [row for row in found if half in (None, row.half)]


def lines(found: Sequence[Scored]) -> Iterator[tuple[str, ...]]:
    """The score of all, of each set and of each trainer outside the first set."""
    others = [row for row in found if row.file != "ultrascale"]
    yield scores("all but the Ultra-Scale Playbook's", others)
    for name, what in SETS.items():
        if same := [row for row in found if row.file == name]:
            yield scores(what, same)
    for trainer in sorted({row.trainer for row in others}):
        yield scores(f"`{trainer}`", [row for row in others if row.trainer == trainer])


def fits(found: Sequence[Scored]) -> Iterator[tuple[str, ...]]:
    """Counter and half → percentiles of what was shown over the terms that the counter sees."""
    for counter in COUNTERS.values():
        for half in ("even", "odd"):
            same = [row for row in halves(found, half) if row.counter == counter and row.whole]
            outside = OUTSIDE if counter == "nvidia-smi" else 0
            shares = [(row.measured - outside) / row.terms for row in same]
            ends = (f"{percentile(shares, share):.2f}" for share in (0.1, 0.5, 0.9))
            yield counter, half, str(len(same)), *ends, " / ".join(map(str, SHARES[counter]))


FIT = ("counter", "half", "rows", "10th", "50th", "90th", "in SHARES")


def tables() -> dict[str, list[str]]:
    """That of docs/accuracy.md."""
    found, _ = rows()
    others = [row for row in found if row.file != "ultrascale"]
    by_name = [row for row in rows(dated=False)[0] if row.file != "ultrascale"]
    differ = [
        row for row, told in zip(by_name, others, strict=True) if row.high / row.low > told.high / told.low
    ]
    lines = [
        scores("all but the Ultra-Scale Playbook's", others),
        scores("those to which no interval was fitted", halves(others, "odd")),
        scores("the 308, without the code's date", by_name),
        scores("of them, those that a date narrows", differ),
        scores("the Ultra-Scale Playbook's", [row for row in found if row.file == "ultrascale"]),
    ]
    return {"memory": _page.table(SCORES, lines)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--half", choices=("even", "odd"), help="one half of the rows")
    parser.add_argument("--rows", action="store_true", help="every row, worst first")
    parser.add_argument("--fit", action="store_true", help="the percentiles that SHARES come from")
    parser.add_argument("--page", action="store_true", help="write docs/accuracy.md")
    args = parser.parse_args()
    if args.page:
        _page.write(tables())
        return
    every, left = rows()
    found = halves(every, args.half)
    for row in sorted(found, key=lambda row: -abs(row.error)) if args.rows else ():
        sizes = (row.expected, row.low, row.high, row.measured)
        expected, low, high, measured = (size / 2**30 for size in sizes)
        about = f"{row.trainer} {row.counter} {row.name}"
        print(f"{row.error:+7.1%} {expected:6.1f} ({low:6.1f} to {high:6.1f}) for {measured:6.1f}  {about}")
    for name, why in left.items() if args.rows else ():
        print(f"left out: {name}: {why}")
    print(
        *(" | ".join(cells) for cells in ([FIT, *fits(every)] if args.fit else [SCORES, *lines(found)])),
        sep="\n",
    )


if __name__ == "__main__":
    main()
