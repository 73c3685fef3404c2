"""Predicted against measured peak memory, for every row of a file that says enough.

    .venv/bin/python benchmarks/memory_accuracy.py FILE.json [FILE.json ...] [--all]

A file is {"measured": [...]} or {"rows": [...]} (or the list alone), rows as in tests/oracles/peaks_*.json:
either with `dims`, `tp`, `cp`, `pp`, `dp`, `seq_len`, `micro_batch` or `global_batch_seqs`, `peak_mem` and
`peak_mem_unit`, or the Ultra-Scale Playbook's (`mbs`, `grad_acc`, `zero`, `gpu_mem_gb`; dims by the name of
the model beside them). Rows with `fits_dims` other than true are left out unless --all.

One set of constants for all rows (`llamapar.budget`). What a source's rows leave open is told once in
SETTINGS: what was recomputed, in which numbers, what its counter counts. Nothing there was fitted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import llamapar as lp
from llamapar.budget.exact import CONTEXT

RESERVED = 1.08
"""Assumed: what torch's caching allocator has reserved at its peak over what is allocated then."""

ORACLES = Path(__file__).resolve().parent.parent / "tests" / "oracles"
UNITS = {"GiB": 2**30, "GB": 10**9}

SETTINGS: dict[str, dict[str, Any]] = {
    # nanotron: no recomputation by default (config/parallelism_config.py); gradients summed in float32 beside
    # DDP's bfloat16 buckets (optim/gradient_accumulator.py, scripts/scaling_benchmarks.py); cross-entropy
    # over vocabulary rows; stages by compute (models/base.py); "Mem Alloc (GB)" divides by 1024**3
    # (helpers.py:643); all @2411b022a7. Its runs took turns between modes of TP: sequence parallelism with
    # gathered inputs kept is one of three, and the rows do not tell.
    "Ultra-Scale": {
        "unit": "GiB",
        "recompute": "none",
        "grad_buckets": True,
        "loss": "vocab_parallel",
        "split": "nanotron",
        "seq_len": 4096,
        "zero": 1,
    },
    # torchtitan: its counter is max_reserved (metrics.py); FSDP2; cross-entropy by torch, by DTensor's
    # loss_parallel where tp > 1; under PP parameters stay gathered and gradients whole until the last
    # micro-batch, as in ZeRO 1, and a micro-batch is the local batch over the stages (parallelisms/
    # parallelize_llama.py, pipeline_llama.py @004b3148a9). seq_len 8192 in its train_configs @9dec370.
    "torchtitan": {
        "unit": "GiB",
        "counter": "reserved",
        "recompute": "selective",
        "zero": 3,
        "loss": "torch",
        "split": "remainder middle",
        "seq_len": 8192,
    },
    # Anything else: our own defaults, and what the row's own words say.
    "": {
        "unit": "GiB",
        "zero": 1,
        "recompute": "selective",
        "loss": "vocab_parallel",
        "split": "balanced ends",
    },
}


@dataclass(frozen=True)
class Score:
    """One row: GiB predicted and measured."""

    name: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Signed: predicted over measured, minus one."""
        return self.predicted / self.measured - 1


def nanotron_split(m: lp.ModelConfig, pp: int) -> list[int]:
    """Layers per stage when blocks fill stages up to equal shares of compute; the head counts too.

    huggingface/nanotron, src/nanotron/models/base.py:204-226 @2411b022a7: a stage ends with the block that
    passes its threshold.
    """
    layer = 4 * m.n_heads * m.head_dim * m.dim + 3 * m.ffn_dim * m.dim
    counts, stage = [0] * pp, 0
    total = m.n_layers * layer + m.vocab_size * m.dim
    for cost in accumulate([layer] * m.n_layers):
        counts[stage] += 1
        if cost > total * (stage + 1) / pp and stage < pp - 1:
            stage += 1
    return counts


def model_of(row: Mapping[str, Any], named: Mapping[str, Any]) -> lp.ModelConfig | None:
    """The row's model, from its own dims or from those that the file gives its name; None without."""
    dims = row.get("dims") or named.get(row.get("model"))
    if not dims or any(dims.get(k) is None for k in ("hidden", "layers", "heads", "ffn", "vocab")):
        return None
    return lp.ModelConfig(
        dim=dims["hidden"],
        n_layers=dims["layers"],
        n_heads=dims["heads"],
        n_kv_heads=dims.get("kv_heads") or dims["heads"],
        ffn_dim=dims["ffn"],
        vocab_size=dims["vocab"],
        tied=bool(dims.get("tied", dims.get("tied_embeddings"))),
        name=str(row.get("model") or "model"),
    )


ZERO = {
    "zero-3": 3,
    "zero 3": 3,
    "zero-2": 2,
    "zero 2": 2,
    "zero-1": 1,
    "zero 1": 1,
    "distributed optimizer": 1,
}
"""Words for what is sharded → ZeRO stage."""


def zero_of(row: Mapping[str, Any], known: Mapping[str, Any]) -> int:
    """The row's ZeRO stage: told, in its words, or its source's."""
    if row.get("zero") is not None:
        return row["zero"]
    words = (row.get("sharding") or "").lower()
    told = next((stage for word, stage in ZERO.items() if word in words), None)
    if told is None:
        fsdp = 2 if "not resharded" in words else 3  # parameters stay gathered
        told = fsdp if "fsdp" in words else known["zero"]
    return 1 if told == 3 and row["pp"] > 1 else told


def recomputation(text: str | None, default: str) -> str:
    """A row's words for recomputation as one of ours."""
    words = (text or default).lower()
    return next((mode for mode in ("full", "selective") if mode in words), "none")


def score(row: Mapping[str, Any], file: Mapping[str, Any]) -> Score | None:
    """The row predicted, or None where it does not say enough or says what no such model can be."""
    text = f"{row.get('id', '')} {row.get('source', '')} {file.get('source', '')}"
    text += " Ultra-Scale" if "gpu_mem_gb" in row else ""
    known = SETTINGS[next(name for name in SETTINGS if name in text)]
    m = model_of(row, file.get("model_dims_inferred", {}))
    measured = row.get("peak_mem", row.get("gpu_mem_gb"))
    ways = {axis: row.get(axis) or (1 if axis == "cp" else None) for axis in lp.AXES}
    if ways["dp"] is None and row.get("gpus") and None not in (ways["tp"], ways["cp"], ways["pp"]):
        ways["dp"] = row["gpus"] // (ways["tp"] * ways["cp"] * ways["pp"]) or None
    seq_len = row.get("seq_len") or file.get("seq_len") or known.get("seq_len")
    if m is None or not measured or not seq_len or None in ways.values():
        return None
    virtual = row.get("vp") or 1
    batch = row.get("global_batch_seqs", row.get("gbs_seqs"))
    micro = row.get("micro_batch", row.get("mbs"))
    if micro is None and batch:
        micro = max(1, batch // ways["dp"] // (ways["pp"] * virtual if ways["pp"] > 1 else 1))
    if micro is None:
        return None
    zero = zero_of(row, known)
    if batch is None or batch % (ways["dp"] * micro):
        batch = None
    split = nanotron_split(m, ways["pp"]) if known["split"] == "nanotron" else known["split"]
    schedule = "gpipe" if "all-forward" in (row.get("schedule") or "").lower() else "1f1b"
    try:
        layout = lp.Layout(**ways, virtual_stages=virtual, zero=zero)
        found = lp.memory(
            m,
            layout,
            seq_len=seq_len,
            micro_batch=micro,
            global_batch=batch,
            recompute=recomputation(row.get("recompute"), known.get("recompute", "none")),
            loss="loss_parallel" if known["loss"] == "torch" and layout.tp > 1 else known["loss"],
            grad_buckets=known.get("grad_buckets", False),
            layer_split=split,
            schedule=schedule,
            kv_replication=True,
        )
    except lp.LayoutError as refused:
        print(f"left out: {row.get('id', m.name)}: {refused}".splitlines()[0], file=sys.stderr)
        return None
    peak = found.worst.total_bytes - CONTEXT
    words = row.get("peak_mem_unit") or ""
    if "reserved" in words or ("allocated" not in words and known.get("counter") == "reserved"):
        peak *= RESERVED
    unit = next((u for u in UNITS if u in (words or known["unit"])), "GiB")
    name = row.get("id") or f"{m.name} {layout} zero={zero} micro_batch={micro}"
    return Score(name, peak / 2**30, measured * UNITS[unit] / 2**30)


def scores(path: Path, every: bool = False) -> Iterator[Score]:
    """The rows of a file that can be scored."""
    file = json.loads(path.read_text())
    if isinstance(file, list):
        file = {"rows": file}
    for row in file.get("measured") or file.get("rows") or file.get("cases", []):
        if every or row.get("fits_dims", True) is True:
            found = score(row, file)
            if found is not None:
                yield found


def quantile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(share * 100) // 100) - 1)]


def summary(found: list[Score]) -> str:
    errors = [abs(s.error) for s in found]
    signed = statistics.median(s.error for s in found)
    return (
        f"{len(found)} rows: median |error| {statistics.median(errors):.1%}, "
        f"p90 {quantile(errors, 0.9):.1%}, median error {signed:+.1%}"
    )


def milliseconds(repeats: int = 50) -> float:
    """Median time of one call with all of its totals."""
    layout, took = lp.Layout(tp=8, pp=16, dp=128), []
    for _ in range(repeats):
        started = time.perf_counter()
        lp.memory("llama3.1-405b", layout, seq_len=8192, global_batch=2048).as_dict()
        took.append(time.perf_counter() - started)
    return statistics.median(took) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, default=sorted(ORACLES.glob("peaks_*.json")))
    parser.add_argument("--all", action="store_true", help="rows with fits_dims false or null as well")
    parser.add_argument("--time", action="store_true", help="time memory() for 405B on 16,384 ranks as well")
    args = parser.parse_args()
    every: list[Score] = []
    print(f"{'predicted':>9} {'measured':>9} {'error':>7}  GiB")
    for path in args.files:
        found = list(scores(path, args.all))
        for s in found:
            print(f"{s.predicted:9.2f} {s.measured:9.2f} {s.error:+7.1%}  {s.name}")
        every += found
        print(f"{path.name}: {summary(found)}" if found else f"{path.name}: no row says enough")
    if len(args.files) > 1 and every:
        print(f"all: {summary(every)}")
    if args.time:
        print(f"memory() for 405B on 16,384 ranks: {milliseconds():.2f} ms")


if __name__ == "__main__":
    main()
