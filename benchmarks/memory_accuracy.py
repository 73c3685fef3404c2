"""Predicted against measured peak memory, for every row of a file that says enough.

    .venv/bin/python benchmarks/memory_accuracy.py FILE.json [FILE.json ...] [--all]

A file is a list of rows, or holds one under any name; rows as in tests/oracles/peaks_*.json: either with
`dims`, `tp`, `cp`, `pp`, `dp`, `seq_len`, `micro_batch` or `global_batch_seqs`, `peak_mem` and its
`peak_mem_unit`, or the Ultra-Scale Playbook's (`mbs`, `grad_acc`, `zero`, `gpu_mem_gb`; dims by the name of
the model beside them). NAMES has what else a field may be called; without dims a known model's name will do.
Rows with `fits_dims` other than true are left out unless --all. A row left out is told with its reason.

One set of constants for all rows (`llamapar.count`). What a source's rows leave open is told once in
SETTINGS: what was recomputed, in which numbers, what its counter counts. Nothing there was fitted.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import llamapar as lp
from llamapar.count.exact import CONTEXT
from llamapar.describe.hardware import GPUS

RESERVED = 1.08
"""Assumed, as ALLOCATOR and CONTEXT are: what torch's caching allocator has reserved over its peak of use."""

ORACLES = Path(__file__).resolve().parent.parent / "tests" / "oracles"
UNITS = {"gib": 2**30, "mib": 2**20, "kib": 2**10, "gb": 10**9, "mb": 10**6, "kb": 10**3, "bytes": 1, "b": 1}

NAMES = {
    "hidden": ("hidden", "dim", "hidden_size", "d_model"),
    "layers": ("layers", "n_layers", "num_layers", "num_hidden_layers"),
    "heads": ("heads", "n_heads", "num_attention_heads"),
    "kv_heads": ("kv_heads", "n_kv_heads", "num_key_value_heads"),
    "ffn": ("ffn", "ffn_dim", "ffn_hidden_size", "intermediate_size"),
    "vocab": ("vocab", "vocab_size"),
    "seq_len": ("seq_len", "seq", "sequence_length"),
    "micro_batch": ("micro_batch", "mbs", "micro_batch_size", "micro_batch_seqs"),
    "global_batch": ("global_batch_seqs", "gbs_seqs", "global_batch", "gbs", "global_batch_size"),
    "virtual": ("vp", "virtual_stages", "virtual_pipeline"),
    "gpus": ("gpus", "n_gpus", "world_size"),
    "peak": (
        "peak_mem",
        "peak_memory",
        "gpu_mem",
        "peak_mem_gib",
        "peak_mem_gb",
        "gpu_mem_gb",
        "gpu_mem_gib",
    ),
}
"""What is asked of a row or of its dims → the fields that may tell it."""

SETTINGS: dict[str, dict[str, Any]] = {
    # nanotron: no recomputation by default (config/parallelism_config.py); gradients summed in float32 beside
    # DDP's bfloat16 buckets (optim/gradient_accumulator.py, scripts/scaling_benchmarks.py); cross-entropy
    # over vocabulary rows; stages by compute (models/base.py); "Mem Alloc (GB)" divides by 1024**3
    # (helpers.py:643); all @2411b022a7. Its runs took turns between modes of TP, and the rows do not tell:
    # gathered inputs are taken as kept, and as gathered again (tp_recompute_allgather) where keeping them
    # would not have fitted the GPU that the row ran on.
    "Ultra-Scale": {
        "unit": "GiB",
        "recompute": "none",
        "grad_buckets": True,
        "loss": "vocab_parallel",
        "split": "nanotron",
        "seq_len": 4096,
        "zero": 1,
        "regather": "to fit",
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


class Unsaid(Exception):
    """A row does not say enough, or says what cannot be read: the reason."""


def told(row: Mapping[str, Any], name: str) -> Any:
    """What the row says under any of a name's names; None where it says nothing."""
    return next((row[n] for n in NAMES.get(name, (name,)) if row.get(n) not in (None, "")), None)


def number(row: Mapping[str, Any], name: str) -> int | None:
    """A whole number from 1 that the row tells, maybe as text; None where it tells none."""
    value = told(row, name)
    if value is None:
        return None
    try:
        whole = float(str(value).replace(",", "").replace("_", ""))
    except ValueError:
        raise Unsaid(f"{name}={value!r} is no number") from None
    if isinstance(value, bool) or not math.isfinite(whole) or whole != int(whole) or whole < 1:
        raise Unsaid(f"{name}={value!r} is no whole number from 1")
    return int(whole)


def asked(row: Mapping[str, Any], name: str) -> int:
    """The same, and a reason where there is none."""
    value = number(row, name)
    if value is None:
        raise Unsaid(f"{name} is not told")
    return value


def preset_of(name: str) -> lp.ModelConfig | None:
    """The preset that a name means: "Meta-Llama-3.1-8B-Instruct", "Llama 3 70B", "qwen2.5 7b"."""
    words = re.sub(r"[^a-z0-9.]", "", name.lower())
    for preset, model in lp.PRESETS.items():
        family, _, size = preset.partition("-")
        if size and re.search(rf"{re.escape(family)}-?{re.escape(size.replace('-', ''))}(?![0-9.])", words):
            return model
    return None


def model_of(row: Mapping[str, Any], named: Mapping[str, Any]) -> lp.ModelConfig:
    """The row's model: its own dims, those that the file gives its name, or a preset's."""
    name = str(row.get("model") or "model")
    dims = row.get("dims") or named.get(name)
    if not isinstance(dims, Mapping):
        found = preset_of(name)
        if found is None:
            raise Unsaid(f"no dims, and no model is known as {name!r}")
        return found
    heads = asked(dims, "heads")
    return lp.ModelConfig(
        dim=asked(dims, "hidden"),
        n_layers=asked(dims, "layers"),
        n_heads=heads,
        n_kv_heads=number(dims, "kv_heads") or heads,
        ffn_dim=asked(dims, "ffn"),
        vocab_size=asked(dims, "vocab"),
        head_dim=number(dims, "head_dim"),
        tied=bool(dims.get("tied", dims.get("tied_embeddings"))),
        name=name,
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


def zero_of(row: Mapping[str, Any], known: Mapping[str, Any], pp: int) -> int:
    """The row's ZeRO stage: told, in its words, or its source's."""
    value = row.get("zero")
    words = f"{row.get('sharding') or ''} zero-{value}".lower()
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    stage = next((stage for word, stage in ZERO.items() if word in words), None)
    if stage is None:
        fsdp = 2 if "not resharded" in words else 3  # parameters stay gathered
        stage = fsdp if "fsdp" in words else known["zero"]
    return 1 if stage == 3 and pp > 1 else stage


def recomputation(value: Any, default: str) -> str:
    """A row's words for recomputation as one of ours."""
    words = ("full" if value is True else "none" if value is False else str(value or default)).lower()
    return next((mode for mode in ("full", "selective") if mode in words), "none")


def ways_of(row: Mapping[str, Any]) -> dict[str, int]:
    """Degrees of the axes; cp is 1 where nothing is said, and dp what the GPUs leave."""
    said = {axis: number(row, axis) or (1 if axis == "cp" else None) for axis in lp.AXES}
    gpus = number(row, "gpus") or 8 * (number(row, "nodes") or 0)
    ways = {axis: n for axis, n in said.items() if n is not None}
    missing = [axis for axis in said if axis not in ways]
    if missing == ["dp"] and gpus:
        each = ways["tp"] * ways["cp"] * ways["pp"]
        if gpus % each:
            raise Unsaid(f"{gpus} GPUs do not divide by tp·cp·pp = {each}")
        return ways | {"dp": gpus // each}
    if missing:
        raise Unsaid(f"{', '.join(missing)} not told")
    return ways


def measured_of(row: Mapping[str, Any], known: Mapping[str, Any]) -> float:
    """Bytes of the peak, by the row's unit or its source's."""
    value, field = told(row, "peak"), next((n for n in NAMES["peak"] if row.get(n) is not None), "")
    if value is None:
        raise Unsaid("no peak memory is told")
    text = f"{value} {row.get('peak_mem_unit') or ''}".lower()
    found = re.search(r"-?\d[\d,_]*(?:\.\d+)?(?:e[+-]?\d+)?", text)
    if isinstance(value, bool) or found is None or float(found[0].replace(",", "")) <= 0:
        raise Unsaid(f"a peak of {value!r}")
    unit = re.search(r"(?<![a-z])(gib|mib|kib|gb|mb|kb|bytes|b)(?![a-z])", text[found.end() :])
    own = unit[1] if unit else "gib" if field.endswith("_gib") else known["unit"].lower()
    return float(found[0].replace(",", "")) * UNITS[own]


def gpu_of(row: Mapping[str, Any], file: Mapping[str, Any]) -> str:
    """The GPU that the row names, by its name and size; an H100 of 80 GB where it names none."""
    words = re.sub(r"[^a-z0-9]", "", str(row.get("hardware") or file.get("hardware") or "").lower())
    named = [gpu for gpu in GPUS if all(word in words for word in gpu.split("-"))]
    return (named or [gpu for gpu in GPUS if gpu.split("-")[0] in words and "80" in gpu] or ["h100-80gb"])[0]


DTYPES = {"fp32": "float32", "float32": "float32", "fp16": "float16", "float16": "float16"}
"""Words for numbers → dtype; bfloat16 for all others, float8's among them, whose weights stay bfloat16."""


def score(row: Mapping[str, Any], file: Mapping[str, Any]) -> Score:
    """The row predicted. Raises Unsaid, or LlamaparError for what no such model can be."""
    text = f"{row.get('id', '')} {row.get('source', '')} {file.get('source', '')}"
    text += " Ultra-Scale" if "gpu_mem_gb" in row else ""
    known = SETTINGS[next(name for name in SETTINGS if name in text)]
    measured = measured_of(row, known)
    m = model_of(row, file.get("model_dims_inferred", {}))
    ways = ways_of(row)
    seq_len = number(row, "seq_len") or number(file, "seq_len") or known.get("seq_len")
    if seq_len is None:
        raise Unsaid("seq_len is not told")
    virtual = number(row, "virtual") or 1
    batch, micro = number(row, "global_batch"), number(row, "micro_batch")
    if batch is None and micro and number(row, "grad_acc"):
        batch = micro * asked(row, "grad_acc") * ways["dp"]
    if micro is None and batch:
        micro = max(1, batch // ways["dp"] // (ways["pp"] * virtual if ways["pp"] > 1 else 1))
    if micro is None:
        raise Unsaid("neither micro_batch nor global_batch is told")
    if batch is None or batch % (ways["dp"] * micro):
        batch = None
    zero = zero_of(row, known, ways["pp"])
    layout = lp.Layout(**ways, virtual_stages=virtual, zero=zero)
    options: dict[str, Any] = {
        "seq_len": seq_len,
        "micro_batch": micro,
        "global_batch": batch,
        "dtype": DTYPES.get(str(row.get("precision") or "").lower(), "bfloat16"),
        "recompute": recomputation(row.get("recompute"), known["recompute"]),
        "loss": "loss_parallel" if known["loss"] == "torch" and layout.tp > 1 else known["loss"],
        "grad_buckets": known.get("grad_buckets", False),
        "layer_split": nanotron_split(m, ways["pp"]) if known["split"] == "nanotron" else known["split"],
        "schedule": "gpipe" if "all-forward" in str(row.get("schedule") or "").lower() else "1f1b",
        "kv_replication": True,
        "gpu": gpu_of(row, file),
    }
    found = lp.memory(m, layout, **options)
    if known.get("regather") == "to fit" and layout.tp > 1 and not found.fits:
        found = lp.memory(m, layout, **options, regather=True)
    peak: float = found.worst.total_bytes - CONTEXT
    words = str(row.get("peak_mem_unit") or "")
    if "reserved" in words or ("allocated" not in words and known.get("counter") == "reserved"):
        peak *= RESERVED
    name = row.get("id") or f"{m.name} {layout} zero={zero} micro_batch={micro}"
    return Score(str(name), peak / 2**30, measured / 2**30)


def rows_of(file: Any) -> list[Any]:
    """The rows of a file: the list that it is, or the longest list of objects that it holds."""
    lists = [file] if isinstance(file, list) else [v for v in file.values() if isinstance(v, list)]
    rows = [found for found in lists if any(isinstance(row, Mapping) for row in found)]
    peaks = [
        found for found in rows if any(isinstance(r, Mapping) and told(r, "peak") is not None for r in found)
    ]
    return max(peaks or rows, key=len, default=[])


def scores(path: Path, every: bool = False) -> Iterator[Score | str]:
    """Each row of a file scored, or the reason why it is not, in words."""
    file = json.loads(path.read_text())
    shared = file if isinstance(file, Mapping) else {}
    for i, row in enumerate(rows_of(file)):
        try:
            if not isinstance(row, Mapping):
                raise Unsaid("no object")
            if not every and row.get("fits_dims", True) is not True:
                raise Unsaid("fits_dims is not true")
            yield score(row, shared)
        except (Unsaid, lp.LlamaparError, TypeError, ValueError, ArithmeticError) as refused:
            reason = str(refused).splitlines()[0]
            name = row.get("id") or row.get("model") if isinstance(row, Mapping) else None
            print(f"left out: row {i}, {name}: {reason}", file=sys.stderr)
            yield reason


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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, default=sorted(ORACLES.glob("peaks_*.json")))
    parser.add_argument("--all", action="store_true", help="rows with fits_dims false or null as well")
    args = parser.parse_args()
    every: list[Score] = []
    print(f"{'predicted':>9} {'measured':>9} {'error':>7}  GiB")
    for path in args.files:
        rows = list(scores(path, args.all))
        found = [s for s in rows if isinstance(s, Score)]
        for s in found:
            print(f"{s.predicted:9.2f} {s.measured:9.2f} {s.error:+7.1%}  {s.name}")
        every += found
        for reason, n in Counter(s for s in rows if isinstance(s, str)).most_common():
            print(f"{path.name}: left out {n}: {reason}")
        print(f"{path.name}: {summary(found)}" if found else f"{path.name}: no row says enough")
    if len(args.files) > 1 and every:
        print(f"all: {summary(every)}")


if __name__ == "__main__":
    main()
