"""Predicted against measured peak memory, for every row of a file that says enough.

    .venv/bin/python benchmarks/memory_accuracy.py [FILE.json ...] [--rows] [--unknown]
    .venv/bin/python benchmarks/memory_accuracy.py --page    # writes docs/measured/memory_accuracy.md

A file is a list of rows, or holds one under any name; rows as in tests/oracles/peaks_*.json: either with
`dims`, `tp`, `cp`, `pp`, `dp`, `seq_len`, `micro_batch` or `global_batch_seqs`, `peak_mem` and its
`peak_mem_unit`, or the Ultra-Scale Playbook's (`mbs`, `grad_acc`, `zero`, `gpu_mem_gb`; dims by the name of
the model beside them). NAMES has what else a field may be called; without dims a known model's name will do.
A row left out is told with its reason; rows that a file marks (`fits_dims`, `half`, `doubtful`) count, and
are shown by themselves below the whole.

Every row gets a range (`Memory.counted`): both ends of every mode that it does not tell, and of its counter.
Printed are how often the range holds the measurement and how wide it is; the error of the nearer end of the
modes; and the error of the account at each end alone. Nothing is chosen by the measured value, but which end
is the nearer. One set of constants for all rows; what a source's rows leave open is told once in SETTINGS.

Last, what is said to fit, of all files together: where the account that is shown fits, and where all that is
not known fits too, which is `Memory.fits`; both on every known GPU, and on the one that a row names.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import _page
import llamapar as lp
from llamapar.count.terms import COUNTERS
from llamapar.describe.hardware import OFFERED

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
    # nanotron's defaults: no recomputation (config/parallelism_config.py); gradients summed in float32 beside
    # DDP's bfloat16 buckets (optim/gradient_accumulator.py); stages by compute (models/base.py); written by
    # rank 0, so the first stage's (helpers.py:795), in units of 1024**3 (helpers.py:643); all @2411b022a7.
    # Whether its runs kept gathered inputs is not told, nor which of torch's two counters the figure shows:
    # the range of what is reserved begins where that of what is allocated does.
    "Ultra-Scale": {
        "unit": "GiB",
        "trainer": "nanotron",
        "counter": "reserved",
        "recompute": "none",
        "seq_len": 4096,
        "zero": 1,
    },
    # torchtitan: its counter is max_reserved (metrics.py); FSDP2; under PP parameters stay gathered and
    # gradients whole until the last micro-batch, as in ZeRO 1, and a micro-batch is the local batch over the
    # stages (parallelisms/parallelize_llama.py, pipeline_llama.py @004b3148a9). seq_len 8192 in its
    # train_configs @9dec370.
    "torchtitan": {
        "unit": "GiB",
        "trainer": "torchtitan",
        "counter": "reserved",
        "recompute": "selective",
        "zero": 3,
        "split": "remainder middle",
        "seq_len": 8192,
    },
    # Anything else: what the row's own words say.
    "": {"unit": "GiB", "zero": 1},
}
"""Part of a row's id or source → what its rows leave open."""

TRAINERS = {
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
"""Word of a row's trainer → whose habits it has: a library that trains with Hugging Face's loop has its."""

WITHOUT_SP = ("deepspeed", "internevo", "gpt-neox", "picotron")
"""Trainers without sequence parallelism, unless a row says otherwise."""

HUGGING_FACE = ("transformers", "deepspeed", "llama-cookbook")
"""Trainers whose models are Hugging Face's code, of a version that rows do not tell."""


@dataclass(frozen=True)
class Score:
    """One row, in GiB: the range, the accounts at both ends of the modes, and what was measured.

    shown, upper: `Memory.worst` and `Memory.high_bytes` of the row, the most of what it leaves open.
    room: what the row's GPU has; None where it names none.
    """

    name: str
    low: float
    high: float
    least: float
    most: float
    measured: float
    marks: tuple[str, ...] = ()
    shown: float = 0.0
    upper: float = 0.0
    room: float | None = None

    @property
    def error(self) -> float:
        """Signed: the account at the upper end over measured, minus one."""
        return self.most / self.measured - 1

    @property
    def nearer(self) -> float:
        """The error of the account that is nearer, as it is counted."""
        return min(abs(self.least / self.measured - 1), abs(self.error))

    @property
    def held(self) -> bool:
        return self.low <= self.measured <= self.high


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


def split_of(m: lp.ModelConfig, trainer: str | None, pp: int) -> list[int] | str | None:
    """A trainer's layers per stage; None where its source or its habits tell."""
    if trainer == "megatron-deepspeed":  # PipelineModule's partition_method "type:transformer"
        return "equal"
    return nanotron_split(m, pp) if trainer == "nanotron" else None


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
    ffn = asked(dims, "ffn")
    if "gelu" in str(
        dims.get("mlp")
    ):  # two matrices and two kept tensors of it: SwiGLU has three of two thirds
        ffn = round(ffn * 2 / 3)
    return lp.ModelConfig(
        dim=asked(dims, "hidden"),
        n_layers=asked(dims, "layers"),
        n_heads=heads,
        n_kv_heads=number(dims, "kv_heads") or heads,
        ffn_dim=ffn,
        vocab_size=asked(dims, "vocab"),
        head_dim=number(dims, "head_dim") or 0,
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


def recomputations(
    row: Mapping[str, Any], default: str | None, trainer: str | None = None
) -> tuple[str, ...]:
    """A row's words for recomputation as ours; both ends where neither it nor its source tells.

    torchtitan's graph trainer makes all else "selective" (experiments/graph_trainer/configs.py:111-115).
    """
    value = row.get("recompute")
    if value is None and trainer == "graph_trainer":
        return ("selective",)
    if value is None and (default is None or "recompute" in row.get("unknown", ())):
        return ("full", "none")
    if "graph default sac" in str(value).lower():
        return ("selective",)
    words = ("full" if value is True else "none" if value is False else str(value or default)).lower()
    if "mlp" in words or "layernorm" in words:
        return ("full", "none")  # parts of a layer that no mode of ours names
    words = words.partition(" (full/block/0 layers)")[0]
    named = next((mode for mode in ("full", "selective", "none") if mode in words), None)
    return (named,) if named else ("full", "none")


def losses(row: Mapping[str, Any], trainer: str | None) -> tuple[str | None, ...]:
    """A row's cross-entropy; both ends where a trainer's settings or its date leave it open."""
    if row.get("loss"):
        pieces = row["loss"] == "pieces" and compiled_of(row)  # each is one kernel then
        return ("compiled",) if pieces else (row["loss"],)
    if trainer == "prime-rl" and "sft" in str(row.get("trainer")).lower():
        return ("held",)
    titan = trainer == "torchtitan" or "torchtitan" in str(row.get("trainer")).lower()
    if not titan:
        ends = (None, "shifted") if trainer in HUGGING_FACE else (None,)
        whole = trainer in HUGGING_FACE and row.get("compile")  # the model's forward has its loss in it
        return ("compiled", *ends) if whole else ends
    date, compiled = date_of(row), compiled_of(row)
    if trainer == "graph_trainer":  # its loss is a part of the graph, of which Inductor may take regions
        compiled = None
    if date and date < HELD_UNTIL:
        return ("held",)
    if compiled is False or any(start <= date < end for start, end in LOSS_UNCOMPILED):
        return (None,)
    ways: tuple[str | None, ...] = ("compiled",) if compiled else (None, "compiled")
    return ("chunked", *ways) if date >= CHUNKED_SINCE else ways


def date_of(row: Mapping[str, Any]) -> str:
    """The day that a row's source tells, or the month that its name does; "" where neither does."""
    source = row.get("source")
    told_by = str(source.get("date", "")) if isinstance(source, Mapping) else ""
    named = re.search(r"-(20\d\d)(\d\d)-", str(row.get("id")))
    return told_by or (f"{named[1]}-{named[2]}-31" if named else "")


def compiled_of(row: Mapping[str, Any]) -> bool | None:
    """Whether layers were compiled, as the row or its name tells."""
    said = row.get("compile")
    name = str(row.get("id"))
    if said is None and ("+compile" in name or name.endswith("-FSDP")):
        return "+compile" in name
    return said


def kernels(row: Mapping[str, Any], trainer: str | None) -> tuple[str, ...]:
    """Norms and rope in plain torch: Hugging Face's, and others' uncompiled; kernels may stand in."""
    plain = trainer in HUGGING_FACE and not re.search("foak|liger", str(row.get("id")))
    plain = plain or (trainer in ("torchtitan", "litgpt", "torchtune") and compiled_of(row) is False)
    return ("fused", "eager") if plain else ("fused",)


def float8_gathers(row: Mapping[str, Any]) -> tuple[bool, ...]:
    """Whether weights are gathered in float8; both where a row has float8 and does not tell."""
    words = f"{row.get('float8') or ''} {row.get('precision') or ''}".lower()
    if "all-gather" in words:
        return (True,)
    return (False, True) if "float8 linear" in words or words.strip() == "float8" else (False,)


def unit_factors(row: Mapping[str, Any]) -> tuple[float, float]:
    """How far down and up a peak may be read whose GB may be 10**9 or 2**30 bytes."""
    if "GB vs GiB" not in row.get("unknown", ()):
        return 1.0, 1.0
    apart = UNITS["gib"] / UNITS["gb"]
    return (1 / apart, 1.0) if "converted" in str(row.get("counted")) else (1.0, apart)


def ways_of(row: Mapping[str, Any]) -> dict[str, Any]:
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


GPUS = {gpu.name: gpu.hbm_bytes for gpu in OFFERED}
"""The GPUs of the rows → their bytes."""


def gpu_of(row: Mapping[str, Any], file: Mapping[str, Any]) -> str | None:
    """The GPU that the row names, by its name and size; None where it names none of GPUS."""
    words = re.sub(r"[^a-z0-9]", "", str(row.get("hardware") or file.get("hardware") or "").lower())
    named = [gpu for gpu in GPUS if all(word in words for word in gpu.split("-"))]
    return next(iter(named or [gpu for gpu in GPUS if gpu.split("-")[0] in words and "80" in gpu]), None)


DTYPES: dict[str, tuple[str, ...]] = {"fp32": ("float32",), "float32": ("float32",)}
DTYPES |= {"fp16": ("float16",), "float16": ("float16",)}
DTYPES["autocast"] = ("bfloat16", "float32")
"""Words for numbers → dtype; bfloat16 for all others, float8's among them, whose weights stay bfloat16.

Under torch.autocast matmuls and what they keep are in bfloat16; parameters, which FSDP gathers as they are,
the residual stream and norms stay in float32 (pytorch/pytorch, docs/source/amp.rst): both ends.
"""

HELD_UNTIL = "2024-06-12"
"""torchtitan's train.py held the logits through the backward until e29b6b4d4."""

LOSS_UNCOMPILED = (("2024", "2024-10-22"), ("2024-12-18", "2025-04-02"))
"""From a day to before another: torchtitan's loss was not compiled, whatever its layers (e10cb9494,
e8977b007, bbb1b616e)."""

SWIFT_NARROW = ("2026-02-16", "2026-06-18")
"""From a day to before another: Megatron-SWIFT summed gradients in bfloat16, for the setting did not reach
Megatron (modelscope/ms-swift, d7c7db3ad to b10e58df5)."""

CHUNKED_SINCE = "2026-04-27"
"""torchtitan's configurations cut the loss into chunks from 786e26f8e on; a later date may tell of either."""


def trainer_of(row: Mapping[str, Any], known: Mapping[str, Any]) -> str | None:
    """Whose habits the row's run had; None where its trainer is none that is known."""
    words = str(row.get("trainer") or "").lower()
    if "whole-graph" in words:
        return "graph_trainer"
    return next((name for word, name in TRAINERS.items() if word in words), known.get("trainer"))


def stages_of(row: Mapping[str, Any], trainer: str | None, pp: int) -> list[int | None]:
    """Whose PP rank's counter the row shows; None: that of the one that needs most."""
    if row.get("pp_rank") is not None:
        return [row["pp_rank"]]
    if trainer == "nanotron":
        return [0]  # rank 0 writes its counter down
    if "LAST rank" in str(row.get("counted")):
        return [pp - 1]
    if "rank of the counter" in row.get("unknown", ()):
        return list(range(pp))
    return [None]


def score(row: Mapping[str, Any], file: Mapping[str, Any], unknown: bool = False) -> Score:
    """The row predicted. Raises Unsaid, or LlamaparError for what no such model can be.

    unknown: as if nobody had told the trainer.
    """
    text = f"{row.get('id', '')} {row.get('source', '')} {row.get('trainer', '')} {file.get('source', '')}"
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
    trainer = None if unknown else trainer_of(row, known)
    if trainer == "torchtitan" and not zero:
        zero = 3  # parameters are the master weights, sharded or not
    layout = lp.Layout(
        **ways,
        dp_replicate=number(row, "dp_replicate") or 1,
        virtual_stages=virtual,
        zero=zero,
        sequence_parallel=row.get("sequence_parallel", False if trainer in WITHOUT_SP else None),
    )
    options: dict[str, Any] = {
        "seq_len": seq_len,
        "micro_batch": micro,
        "global_batch": batch,
        "grad_buckets": trainer == "nanotron" or (trainer == "litgpt" and not zero),  # torch's DDP
        "master_weights": row.get("master_weights"),
        "layer_split": split_of(m, trainer, ways["pp"]) or known.get("split"),
        "schedule": "gpipe" if "all-forward" in str(row.get("schedule") or "").lower() else "1f1b",
        "kv_replication": True,
        "framework": trainer,
        "padding": "none" if trainer in ("megatron-lm", "flagscale") and m.vocab_size % 128 else None,
    }
    open_options = {
        "recompute": recomputations(row, known.get("recompute"), trainer),
        "loss": losses(row, trainer),
        "float8_all_gather": float8_gathers(row),
        "kernels": kernels(row, trainer),
        "dtype": DTYPES.get(str(row.get("precision") or "").lower(), ("bfloat16",)),
    }
    if row.get("grad_dtype"):
        options["grad_dtype"] = row["grad_dtype"]
    elif "swift" in str(row.get("trainer")).lower() and SWIFT_NARROW[0] <= date_of(row) < SWIFT_NARROW[1]:
        options["grad_dtype"] = "bfloat16"
    if options["master_weights"] is False:
        options["grad_dtype"] = open_options["dtype"][0]
    words = f"{row.get('peak_mem_unit') or ''} {row.get('counter') or ''}"
    kind = next((kind for kind in COUNTERS if kind in words), known.get("counter"))
    cases: list[dict[str, Any]] = [
        dict(zip(open_options, ends, strict=True)) for ends in product(*open_options.values())
    ]
    accounts = [lp.memory(m, layout, **options, **case) for case in cases]
    stages = stages_of(row, trainer, layout.pp)
    ranges = [account.counted(kind, stage) for account in accounts for stage in stages]
    both = [account.ends(kind, stage) for account in accounts for stage in stages]
    lows, highs = zip(*ranges, strict=True)
    least, most = zip(*both, strict=True)
    gpu = gpu_of(row, file)
    room = [GPUS[gpu]] if gpu else []
    if row.get("gpu_gib"):
        room = [row["gpu_gib"] * 2**30]
    down, up = unit_factors(row)
    high = min([*room, max(highs) * up])  # it did fit its GPU
    ends = (min(lows) * down, high, min(least), min([*room, max(most)]))
    name = row.get("id") or f"{m.name} {layout} zero={zero} micro_batch={micro}"
    marks = [f"{mark} {row[mark]}" for mark in ("fits_dims", "half", "doubtful") if mark in row]
    marks += [f"trainer {trainer or 'not known'}", f"counter {kind or 'not told'}"]
    return Score(
        str(name),
        *(ends[0] / 2**30, ends[1] / 2**30, ends[2] / 2**30, ends[3] / 2**30),
        measured / 2**30,
        tuple(marks),
        max(account.worst.total_bytes for account in accounts) / 2**30,
        max(account.high_bytes for account in accounts) / 2**30,
        min(room) / 2**30 if room else None,
    )


def rows_of(file: Any) -> list[Any]:
    """The rows of a file: the list that it is, or the longest list of objects that it holds."""
    lists = [file] if isinstance(file, list) else [v for v in file.values() if isinstance(v, list)]
    rows = [found for found in lists if any(isinstance(row, Mapping) for row in found)]
    peaks = [
        found for found in rows if any(isinstance(r, Mapping) and told(r, "peak") is not None for r in found)
    ]
    return max(peaks or rows, key=len, default=[])


def scores(path: Path, unknown: bool = False) -> Iterator[Score | str]:
    """Each row of a file scored, or the reason why it is not, in words."""
    file = json.loads(path.read_text())
    shared = file if isinstance(file, Mapping) else {}
    for i, row in enumerate(rows_of(file)):
        try:
            if not isinstance(row, Mapping):
                raise Unsaid("no object")
            yield score(row, shared, unknown)
        except (Unsaid, lp.LlamaparError, TypeError, ValueError, ArithmeticError) as refused:
            reason = str(refused).splitlines()[0]
            name = row.get("id") or row.get("model") if isinstance(row, Mapping) else None
            print(f"left out: row {i}, {name}: {reason}", file=sys.stderr)
            yield reason


def found_in(name: str, unknown: bool = False) -> list[Score]:
    """The rows of tests/oracles/peaks_NAME.json that say enough, scored."""
    path = ORACLES / f"peaks_{name}.json"
    return [s for s in scores(path, unknown) if isinstance(s, Score)]


def quantile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(share * 100) // 100) - 1)]


def error_of(values: Iterable[float]) -> str:
    """Median and 90th percentile of the sizes of errors."""
    sizes = [abs(value) for value in values]
    return f"{statistics.median(sizes):.1%} (p90 {quantile(sizes, 0.9):.1%})"


def figures(found: list[Score]) -> tuple[str, str, str, str, str]:
    """How often the range holds, its width, and the errors of the nearer, the lower and the upper end."""
    return (
        f"{sum(s.held for s in found) / len(found):.1%}",
        f"{statistics.median(s.high / s.low - 1 for s in found):.0%}",
        error_of(s.nearer for s in found),
        error_of(s.least / s.measured - 1 for s in found),
        error_of(s.error for s in found),
    )


def summary(found: list[Score]) -> str:
    """The whole in one line."""
    held, wide, nearer, lower, upper = figures(found)
    return (
        f"{len(found)} rows: range holds {held}, is {wide} wide; "
        f"median |error| nearer end {nearer}, lower {lower}, upper {upper}"
    )


ACCOUNTS = {"shown": "the account shown", "upper": "the upper bound, which decides"}
"""Field of a Score → what it is."""


def fits(found: list[Score], name: str, own: bool) -> tuple[int, int, int, int]:
    """(cases, said to fit, wrong, with a peak above the account) by one of ACCOUNTS.

    own: each row on the GPU that it ran on; else on every known GPU.
    """
    sizes = [size / 2**30 for size in GPUS.values()]
    cases = [(s, s.room) for s in found if s.room] if own else [(s, room) for s in found for room in sizes]
    said = [(s, room) for s, room in cases if getattr(s, name) <= room]
    wrong = sum(s.measured > room for s, room in said)
    return len(cases), len(said), wrong, sum(s.measured > getattr(s, name) for s, _ in said)


def said_to_fit(found: list[Score]) -> list[str]:
    """How often a peak is above each account; what they say fits, on every GPU and on a row's own."""
    above = [sum(s.measured > getattr(s, name) for s in found) / len(found) for name in ACCOUNTS]
    lines = [f"{len(found)} rows: peaks above the account shown {above[0]:.1%}, upper {above[1]:.1%}"]
    for own, where in ((False, f"{len(GPUS)} GPUs"), (True, "its own GPU")):
        told = []
        for name in ACCOUNTS:
            cases, said, wrong, short = fits(found, name, own)
            told.append(f"{name} {said}, {wrong} wrong, {short} with a peak above the account")
        lines.append(f"said to fit, of {cases} rows on {where}: {'; '.join(told)}")
    return lines


# -- the page --------------------------------------------------------------------------------------

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


def tables(scored: Mapping[str, list[Score]], unknown: list[Score]) -> dict[str, list[str]]:
    """Those of its page. unknown: the rows of all but the first set, as if none told its trainer."""
    errors = ("range holds it", "width of the range", "nearer end", "lower end", "upper end")
    sets = [(len(scored[name]), what, *figures(scored[name])) for name, what in SETS.items()]
    named = [s for name, found in scored.items() if name != "ultrascale" for s in found]
    trainers = []
    for mark in sorted({mark for s in named for mark in s.marks if mark.startswith("trainer ")}):
        found = [s for s in named if mark in s.marks]
        trainers.append((mark.removeprefix("trainer "), len(found), *figures(found)[:3]))
    verdicts = []
    for who, found in (("with its trainer", named), ("without", unknown)):
        for name, what in ACCOUNTS.items():
            cases, said, wrong, _ = fits(found, name, own=False)
            verdicts.append((who, what, f"{said:,} of {cases:,}", wrong, f"{wrong / said:.1%}"))
    return {
        "sets": _page.table(("rows", "measured by", *errors), sets),
        "trainers": _page.table(("trainer", "rows", *errors[:3]), trainers),
        "verdicts": _page.table(("the run is judged", "by", "said to fit", "wrong", "share"), verdicts),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, default=sorted(ORACLES.glob("peaks_*.json")))
    parser.add_argument("--rows", action="store_true", help="every row")
    parser.add_argument("--unknown", action="store_true", help="as if no row told its trainer")
    parser.add_argument("--page", action="store_true", help="write docs/measured/memory_accuracy.md")
    args = parser.parse_args()
    if args.page:
        scored = {name: found_in(name) for name in SETS}
        unknown = [s for name in SETS if name != "ultrascale" for s in found_in(name, unknown=True)]
        _page.write(__file__, tables(scored, unknown))
        return
    if args.rows:
        print(f"{'low':>9} {'high':>9} {'measured':>9} {'error':>7}  GiB")
    together = []
    for path in args.files:
        rows = list(scores(path, args.unknown))
        found = [s for s in rows if isinstance(s, Score)]
        together += found
        for s in found if args.rows else ():
            outside = "" if s.held else "  outside"
            print(f"{s.low:9.2f} {s.high:9.2f} {s.measured:9.2f} {s.error:+7.1%}  {s.name}{outside}")
        for reason, n in Counter(s for s in rows if isinstance(s, str)).most_common():
            print(f"{path.name}: left out {n}: {reason}")
        print(f"{path.name}: {summary(found)}" if found else f"{path.name}: no row says enough")
        for mark in sorted({mark for s in found for mark in s.marks}):
            some = [s for s in found if mark in s.marks]
            if len(some) < len(found):
                print(f"  {mark}: {summary(some)}")
    print(*(said_to_fit(together) if together else ()), sep="\n")


if __name__ == "__main__":
    main()
