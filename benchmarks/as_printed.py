"""What the command prints beside what was measured: it is told what a row tells, and nothing else.

    .venv/bin/python benchmarks/as_printed.py [--rows] [--only PREFIX]
    .venv/bin/python benchmarks/as_printed.py --page    # writes docs/accuracy.md

Each row becomes a command line, `llamapar cost … --json`, and what comes back is scored: the expected figure,
the interval, and the order of two rows of the same job. What a source says of all its rows stands in
`SOURCES`, with where it says so. Nothing is chosen by a measured value. A row that says too little, or that
the command refuses, is named with its reason. A GPT's two matrices of 4·dim are told as three of 8/3·dim: the
same FLOPs. A trainer that the command does not know is not named.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import _page
from llamapar.cli.main import main as command
from llamapar.describe.models import PRESETS
from llamapar.describe.options import OPTIONS
from llamapar.errors import LlamaparError
from llamapar.frameworks import framework

ORACLES = Path(__file__).resolve().parent.parent / "tests" / "oracles"


@dataclass(frozen=True)
class Told:
    """A measured row as a person would tell it.

    group: whose it is. kind: rows of another kind differ in what nobody tells. half: "seen" if a profile or
    an interval was fitted to it. model: fields of a ModelConfig. facts: options of the command. key, value:
    what was measured, by its name in the answer. why: it cannot be asked.
    """

    name: str
    group: str
    kind: str
    half: str
    model: dict[str, Any]
    facts: dict[str, Any]
    key: str = ""
    value: float = 0.0
    why: str = ""

    @property
    def job(self) -> tuple[object, ...]:
        """What two rows of the same job share."""
        same = ("seq_len", "global_batch", "gpus", "gpu")
        return self.kind, json.dumps(self.model), *(self.facts.get(name) for name in same)


def words(name: str, config: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    """The command line `llamapar NAME …` for a model's config.json and facts."""
    found = [name, "--model", json.dumps(config), "--json"]
    for option, value in facts.items():
        # A switch that is off by default has no word that turns it off.
        if value is not False or OPTIONS[option].default is None:
            found += OPTIONS[option].words(value)
    return found


def hugging_face(model: dict[str, Any]) -> dict[str, Any]:
    """A config.json."""
    return {
        "model_type": "llama",
        "hidden_size": model["dim"],
        "num_hidden_layers": model["n_layers"],
        "num_attention_heads": model["n_heads"],
        "num_key_value_heads": model["n_kv_heads"],
        "intermediate_size": model["ffn_dim"],
        "vocab_size": model["vocab_size"],
        "tie_word_embeddings": model["tied"],
        "max_position_embeddings": model["max_seq_len"],
    }


def printed(line: Sequence[str]) -> dict[str, Any]:
    """What a command line answers, as JSON. Runs in this process."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        command(line)
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


# -- scoring ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Answered:
    """The expected figure and the ends of its interval, and what was measured."""

    expected: float
    low: float
    high: float
    measured: float

    @property
    def error(self) -> float:
        """Expected over measured, less one."""
        return self.expected / self.measured - 1

    @property
    def held(self) -> bool:
        """Whether the interval holds what was measured."""
        return self.low <= self.measured <= self.high


@dataclass(frozen=True, kw_only=True)
class Scored(Answered):
    """A row beside its answer."""

    told: Told


def percentile(values: Iterable[float], share: float) -> float:
    """The value below which a share of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


APART = 1.1
"""Two rows of the same job whose measured figures differ by more than this have an order."""


def pairs(rows: Sequence[Scored]) -> list[bool]:
    """Of rows of the same job with an order: whether the expected figures have it too."""
    jobs: dict[tuple[object, ...], list[Scored]] = {}
    for row in rows:
        jobs.setdefault(row.told.job, []).append(row)
    found = []
    for same in jobs.values():
        for one, other in itertools.combinations(sorted(same, key=lambda row: row.measured), 2):
            if other.measured > APART * one.measured:
                found.append(other.expected > one.expected)
    return found


SCORES = ("rows", "n", "median error", "90th percentile", "in the interval", "high / low")


def scores(title: str, rows: Sequence[Answered]) -> tuple[str, ...]:
    """A line of the table that SCORES heads."""
    errors = [abs(row.error) for row in rows]
    return (
        title,
        str(len(rows)),
        f"{statistics.median(errors):.1%}",
        f"{percentile(errors, 0.9):.1%}",
        f"{statistics.mean(row.held for row in rows):.0%}",
        f"{statistics.median(row.high / row.low for row in rows):.2f}",
    )


HEAD = (*SCORES, "pairs in order")


def line(title: str, rows: Sequence[Scored]) -> tuple[str, ...]:
    """A line of the table that HEAD heads."""
    order = pairs(rows)
    return *scores(title, rows), f"{statistics.mean(order):.0%} of {len(order)}" if order else "none"


# -- time ------------------------------------------------------------------------------------------

MEGATRON = {"framework": "megatron-lm"}
"""Kernels of Transformer Engine; recomputation of attention alone where a source says selective."""

DGXC = MEGATRON | {"gpu": "h100-80gb", "recompute": "none", "cp_method": "ring"}
FMS = {"framework": "fms-fsdp", "flash": "fa2", "zero": 3}
FMS_A100 = FMS | {"gpu": '{"base":"a100-80gb","net_rate":6.25e9}'}
FMS_H100 = FMS | {"gpu": '{"base":"h100-80gb","net_rate":12.5e9}'}
"""A node's 400 and 800 Gb/s, by eight GPUs, in bytes."""

TITAN = {"framework": "torchtitan", "gpu": "h100-96gb", "flash": "fa2", "zero": 3, "seq_len": 8192}
TITAN |= {"cp_method": "ring"}

SOURCES: dict[str, dict[str, Any]] = {
    # arXiv:2407.21783 section 3.3 and ISCA 2025: no recomputation at 8K, one layer a virtual stage, ZeRO 1;
    # FlashAttention-2 is what its section 7.2 measures against, and version 3 came when the model was trained
    "meta-llama3": {
        "framework": "llama3-trainer",
        "gpu": "h100-80gb",
        "flash": "fa2",
        "recompute": "none",
        "virtual_stages": 8,
        "micro_batch": 1,
        "zero": 1,
    },
    # benchmarks/llama3_h100_202412_torchtitan.md: 500 W; SDPA's flash attention is FlashAttention-2;
    # sequences of 8,192 by its train_configs; two virtual stages where interleaved (the default)
    "torchtitan-202412": TITAN,
    "torchtitan-arxivv2": TITAN,
    # docs/performance.md of 2024: eager, 4,096 tokens by the MFU that it prints
    "torchtitan-2024-a100": {
        "framework": "torchtitan",
        "gpu": "a100-80gb",
        "zero": 3,
        "seq_len": 4096,
        "kernels": "eager",
        "cp": 1,
        "precision": "bfloat16",
    },
    # train_configs/llama3_8b.toml: 8,192 tokens, selective recomputation; SDPA's FlashAttention-2
    "torchtitan-h200": {"framework": "torchtitan", "gpu": "h200-141gb", "flash": "fa2", "zero": 3},
    "nemo": DGXC | {"micro_batch": 1},
    "mbridge": DGXC,
    # embedding and loss are counted as layers (ASYM_PP_EMBED, ASYM_PP_LOSS)
    "mlperf": DGXC | {"layer_split": "balanced ends", "overlap_tp": True},
    # its README and yaml files; with 8 virtual stages embedding and loss count as layers: (126 + 2) / 64
    "dgxc": DGXC,
    "dgxc-24.11-70b": DGXC | {"overlap_tp": True},
    "dgxc-24.11-405b": DGXC | {"overlap_tp": True},
    "dgxc-25.04-70b": DGXC | {"overlap_tp": True},
    "dgxc-25.04-405b": DGXC | {"overlap_tp": True, "layer_split": "balanced ends"},
    "dgxc-25.05": DGXC | {"overlap_tp": True, "layer_split": "balanced ends", "gpu": "gb200-nvl72"},
    # README.md: SDPA's FlashAttention-2; HSDP within a node for 7B
    "fms-eager-a100": FMS_A100 | {"kernels": "eager"},
    "fms-eager-h100": FMS_H100 | {"kernels": "eager"},
    "fms-compiled-a100": FMS_A100,
    "fms-compiled-h100": FMS_H100,
    "fms-eager-a100-7b": FMS_A100 | {"kernels": "eager", "dp_replicate": 16},
    "fms-eager-h100-7b": FMS_H100 | {"kernels": "eager", "dp_replicate": 12},
    "fms-compiled-a100-7b": FMS_A100 | {"dp_replicate": 16},
    "fms-compiled-h100-7b": FMS_H100 | {"dp_replicate": 12},
    # before flash attention; Korthikanti's selective recomputation is of attention, SC21's full
    # and before Megatron-LM could overlap TP
    "sc21": MEGATRON | {"gpu": "a100-80gb", "flash": "unfused", "zero": 0, "sequence_parallel": False},
    "sc21-t2-zero3": {
        "framework": "megatron-deepspeed@2021-04-09",
        "gpu": "a100-80gb",
        "flash": "unfused",
        "zero": 3,
    },
    "korth22": MEGATRON | {"gpu": "a100-80gb", "flash": "unfused", "zero": 0, "overlap_tp": False},
}
"""Beginning of a row's name → what its source says of all such rows."""

UNTOLD = {
    "meta-llama3-405b-t4-3": "whether it counts half of attention's square (10.9 s) or all of it (15.3 s)"
}
"""Row → what it does not say, and its step depends on."""

GROUPS = {
    "meta-llama3": "Meta: Table 4 of the Llama 3 paper, rows 1 and 2",
    "mlperf": "NVIDIA for MLPerf",
    "dgxc": "NVIDIA's DGX Cloud recipes",
    "torchtitan": "torchtitan",
    "nemo": "NVIDIA NeMo",
    "mbridge": "NVIDIA Megatron-Bridge",
    "fms": "fms-fsdp",
    "korth22": "Megatron-LM, Korthikanti et al., 2022",
    "sc21-t1": "Megatron-LM, SC21, table 1",
    "sc21-t2": "ZeRO 3 beside TP and PP, SC21, table 2",
}
"""Beginning of a published row's name → whose it is."""

KINDS = (
    *("dgxc-24.11", "dgxc-25.04", "dgxc-25.05", "torchtitan-202412", "torchtitan-arxivv2"),
    *("torchtitan-2024-a100", "torchtitan-h200", *GROUPS),
)
"""Beginnings of published rows' names; two rows of the same job share the longest: they are one source's."""

SAYS = {"tp": "tp", "cp": "cp", "pp": "pp", "dp": "dp", "virtual_stages": "vp", "seq_len": "seq_len"}
SAYS |= {"micro_batch": "micro_batch", "global_batch": "global_batch_seqs", "gpus": "gpus"}
"""Option → a published row's own word for it."""


def key_of(table: Iterable[str], name: str) -> str:
    """The key that is the longest beginning of a name."""
    return max((key for key in table if name.startswith(key)), key=len)


def dims_of(row: dict[str, Any]) -> dict[str, Any]:
    """A row's model as fields of a ModelConfig."""
    d = row["dims"]
    gpt = d.get("mlp") not in (None, "swiglu")
    return {
        "name": row["model"],
        "dim": d["hidden"],
        "n_layers": d["layers"],
        "n_heads": d["heads"],
        "n_kv_heads": d["kv_heads"],
        "ffn_dim": round(d["ffn"] * 2 / 3) if gpt else d["ffn"],
        "vocab_size": d["vocab"],
        "tied": bool(d.get("tied_embeddings")),
        "max_seq_len": row.get("seq_len") or 8192,
    }


def facts_of(row: dict[str, Any]) -> dict[str, Any]:
    """What a published row says, and its source of all such rows."""
    name, found = row["id"], dict(SOURCES[key_of(SOURCES, row["id"])])
    found |= {option: row[key] for option, key in SAYS.items() if row.get(key) is not None}
    if not known(found.get("framework")):
        found.pop("framework", None)
    notes = f"{row.get('precision', '')} {row.get('notes', '')}".lower()
    if name.startswith("meta") and row["global_batch_seqs"] < 2 * row["dp"] * row["pp"]:
        found |= {"schedule": "gpipe", "zero": 2}  # all forwards first, ISCA 2025 section 3.1.3
    found.setdefault("precision", "float8" if "fp8" in notes or "float8" in notes else "bfloat16")
    for word in ("full", "selective"):
        if row.get("recompute", "").startswith(word):
            found["recompute"] = word
    if name.startswith("torchtitan"):
        titan(row, found)
    if name.startswith(("sc21-t1", "korth")) and found.get("recompute") == "selective":
        found["sequence_parallel"] = True
    return found


def known(trainer: str | None) -> bool:
    """Whether the command knows a trainer."""
    try:
        return trainer is not None and bool(framework(trainer))
    except LlamaparError:
        return False


def titan(row: dict[str, Any], found: dict[str, Any]) -> None:
    """torchtitan's rows: compiled but for the plain one, float8 gathers, AsyncTP where they say so."""
    notes = row["notes"]
    found.setdefault("recompute", "selective")
    # a batch is cut into as many micro-batches as there are PP ranks, where nothing else is said
    # (torchtitan/parallelisms/pipelining_utils.py at 9dec370, the commit of these runs)
    found["micro_batch"] = found["global_batch"] // found["dp"] // found.get("pp", 1)
    if "+compile" not in notes and "a100" not in row["id"] and found["precision"] == "bfloat16":
        found["kernels"] = "eager"
    found["float8_all_gather"] = found["precision"] == "float8"
    found["overlap_tp"] = "asynctp" in f"{notes} {row['id']}".lower() or notes.startswith("3D")
    if found.get("pp", 1) > 1:
        found["zero"] = 1  # FSDP keeps parameters gathered between micro-batches
        interleaved = "interleaved" in row.get("schedule", "").lower()
        found["virtual_stages"] = 2 if interleaved else 1
        found["layer_split"] = "balanced ends"


def measured_of(row: dict[str, Any], found: dict[str, Any]) -> tuple[str, float]:
    """What a published row measured, by its name in the command's answer."""
    if row.get("step_time_s"):
        return "step_seconds", float(row["step_time_s"])
    if row.get("tokens_per_s_per_gpu"):
        return "tokens_per_second_per_gpu", row["tokens_per_s_per_gpu"]
    if not row["id"].startswith("sc21"):
        return "tflops_per_gpu", row["tflops_per_gpu"]
    # printed of the hardware, with recomputation
    d, s = row["dims"], found["seq_len"]
    h, layers, vocab = d["hidden"], d["layers"], d["vocab"]
    flops = 96 * found["global_batch"] * s * layers * h * h * (1 + s / 6 / h + vocab / 16 / layers / h)
    return "step_seconds", flops / (row["tflops_per_gpu"] * 1e12) / row["gpus"]


def rows_of(file: str) -> list[Any]:
    """The rows of a fixture."""
    found: list[Any] = json.loads((ORACLES / file).read_text())["rows"]
    return found


def halves(rows: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Rows of which no half was drawn: every second one is "seen" by the intervals."""
    return zip(itertools.cycle(("seen", "unseen")), rows)


def published() -> Iterator[Told]:
    """Of the steps that their makers published."""
    rows = [(row["half"], row) for row in (*rows_of("steps_published.json"), *rows_of("steps_zero3.json"))]
    for half, row in (*rows, *halves(rows_of("steps_fresh.json"))):
        missing = [k for k in ("dims", "tp", "pp", "dp", "global_batch_seqs") if row.get(k) is None]
        missing += [UNTOLD[row["id"]]] if row["id"] in UNTOLD else []
        if missing or "lora" in row["id"]:
            why = f"not told: {', '.join(missing) or 'LoRA'}"
            yield Told(row["id"], "", "", half, {}, {}, why=why)
            continue
        found = facts_of(row)
        group, kind = GROUPS[key_of(GROUPS, row["id"])], key_of(KINDS, row["id"])
        yield Told(row["id"], group, kind, half, dims_of(row), found, *measured_of(row, found))


def foundry() -> Iterator[Told]:
    """llm-foundry's MPT models on H100: eager, ZeRO 3, FlashAttention-2."""
    dims = json.loads((ORACLES / "steps_foundry.json").read_text())["dims"]
    for half, row in halves(rows_of("steps_foundry.json")):
        model, seq_len, gpus, batch, accumulated, full, precision, rate = row
        dim, layers, heads = dims[model]
        d = {"hidden": dim, "layers": layers, "heads": heads, "kv_heads": heads, "ffn": 4 * dim}
        d |= {"vocab": 50368, "tied_embeddings": True, "mlp": "gelu"}
        facts = {"gpus": gpus, "dp": gpus, "zero": 3, "seq_len": seq_len, "micro_batch": batch}
        facts |= {"global_batch": batch * accumulated * gpus, "recompute": "full" if full else "none"}
        facts |= {"precision": precision, "kernels": "eager", "flash": "fa2"}
        name = f"foundry-{model}-{seq_len}-gpus{gpus}-mbs{batch}-{precision}"
        told = dims_of({"model": f"mpt-{model}", "dims": d, "seq_len": seq_len})
        yield Told(
            name, "llm-foundry", name.split("-")[0], half, told, facts, "tokens_per_second_per_gpu", rate
        )


NANOTRON: dict[str, Any] = {"framework": "nanotron", "gpu": "h100-80gb", "kernels": "eager", "flash": "fa2"}
NANOTRON |= {"recompute": "none", "seq_len": 4096, "global_batch": 256}
"""nanotron without torch.compile, FlashAttention-2, no recomputation."""


def ultrascale() -> Iterator[Told]:
    """The Ultra-Scale Playbook's runs of nanotron."""
    dims = json.loads((ORACLES / "steps_ultrascale.json").read_text())["dims"]
    for model, batch, dp, pp, tp, zero, rate, half in rows_of("steps_ultrascale.json"):
        own = dims[model]
        told = dims_of({"model": model, "dims": own | {"tied_embeddings": own["tied"]}, "seq_len": 4096})
        group = "nanotron, one stage, TP to 8, to 256 GPUs"
        if tp > 8 or tp * pp * dp > 256:
            group = "nanotron, on more"
        elif pp > 1:
            group = "nanotron in a pipeline"
        facts: dict[str, Any] = NANOTRON | {"tp": tp, "pp": pp, "dp": dp, "gpus": tp * pp * dp}
        facts |= {"zero": zero, "micro_batch": batch}
        name = f"ultrascale-{model}-tp{tp}-pp{pp}-dp{dp}-mbs{batch}-zero{zero}"
        yield Told(name, group, "ultrascale", half, told, facts, "tokens_per_second_per_gpu", rate)


DGX = {
    "DGX-H100": "h100-80gb",
    "DGX-B200": "b200-180gb",
    "DGX-GB200": "gb200-nvl72",
    "DGX-GB300": "gb300-nvl72",
}
PRECISIONS = {"FP8": "float8", "FP8-CS": "float8", "FP8-MX": "mxfp8", "MXFP8": "mxfp8", "NVFP4": "nvfp4"}
"""NVIDIA's word → ours."""


def nvidia() -> Iterator[Told]:
    """NVIDIA's tables of 2026. Its recipes count embedding and head as layers."""
    file = json.loads((ORACLES / "steps_nvidia.json").read_text())
    for values in file["rows"]:
        row = dict(zip(file["columns"], values, strict=True))
        ways = row["tp"] * row["pp"] * row["cp"]
        model = PRESETS[row["model"]]
        facts: dict[str, Any] = MEGATRON | {"gpu": DGX[row["system"]], "recompute": "none"}
        facts |= {
            name: row[name] for name in ("tp", "pp", "cp", "gpus", "global_batch", "micro_batch", "seq_len")
        }
        facts |= {"dp": row["gpus"] // ways, "zero": 3 if row["fsdp"] else 1}
        facts["precision"] = PRECISIONS.get(row["precision"])
        if row["pp"] > 1:
            facts |= {"virtual_stages": row["vp"] or 1, "layer_split": "balanced ends"}
        dims = {name: getattr(model, name) for name in NAMES}
        half = "seen" if model.name == "llama3.1-405b" else "unseen"
        name = "-".join(str(row[key]) for key in ("release", "model", "system", "precision", "gpus", "pp"))
        why = "" if facts["precision"] else f"no rate is known for {row['precision']}"
        rate = row["tokens_per_s_gpu"]
        yield Told(
            f"nvidia-{name}",
            "NVIDIA, 2026",
            "nvidia",
            half,
            dims,
            facts,
            "tokens_per_second_per_gpu",
            rate,
            why,
        )


NAMES = ("name", "dim", "n_layers", "n_heads", "n_kv_heads", "ffn_dim", "vocab_size", "tied", "max_seq_len")
"""The fields of a row's model."""

TIME: dict[str, Callable[[], Iterator[Told]]] = {
    "published": published,
    "foundry": foundry,
    "ultrascale": ultrascale,
    "nvidia": nvidia,
}
"""The files of measured steps."""


def timed(told: Told) -> Scored | str:
    """The step that `llamapar cost` prints beside the measured one; or why there is none."""
    if told.why:
        return told.why
    answer = printed(words("cost", hugging_face(told.model), told.facts))
    if "error" in answer:
        return str(answer["error"]["message"])
    expected = answer["step_seconds"]
    measured = told.value if told.key == "step_seconds" else expected * answer[told.key] / told.value
    low, high = answer["interval"]
    return Scored(told=told, expected=expected, low=low, high=high, measured=measured)


def time_rows() -> tuple[list[Scored], dict[str, str]]:
    """Every measured step that can be asked for, and the others with the reason."""
    found, refused = list[Scored](), dict[str, str]()
    for rows in TIME.values():
        for told in rows():
            one = timed(told)
            if isinstance(one, str):
                refused[told.name] = one
            else:
                found.append(one)
    return found, refused


STRANGE = ("nanotron in a pipeline", "nanotron, on more")
"""Groups whose runs nobody explains; the answer says so, and its interval is as wide as they are apart."""


def tables() -> dict[str, list[str]]:
    """That of docs/accuracy.md."""
    rows, _ = time_rows()
    fair = [row for row in rows if row.told.group not in STRANGE]
    lines = [
        line("all but the two groups of nanotron below", fair),
        line("those of them to which nothing was fitted", [r for r in fair if r.told.half == "unseen"]),
    ]
    for group in STRANGE:
        lines.append(line(group, [row for row in rows if row.told.group == group]))
    return {"time": _page.table(HEAD, lines)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", action="store_true", help="every row, worst first")
    parser.add_argument("--only", default="", metavar="PREFIX", help="rows whose names begin so")
    parser.add_argument("--page", action="store_true", help="write docs/accuracy.md")
    args = parser.parse_args()
    if args.page:
        _page.write(tables())
        return
    rows, refused = time_rows()
    rows = [row for row in rows if row.told.name.startswith(args.only)]
    for row in sorted(rows, key=lambda row: -abs(row.error)) if args.rows else ():
        interval = f"{row.low:9.3f} to {row.high:9.3f}"
        print(f"{row.error:+7.1%} {row.expected:9.3f} ({interval}) for {row.measured:9.3f}  {row.told.name}")
    for name, why in refused.items():
        if name.startswith(args.only):
            print(f"not scored: {name}: {why}")
    print(*HEAD, sep=" | ")
    for group in dict.fromkeys(row.told.group for row in rows):
        print(*line(group, [row for row in rows if row.told.group == group]), sep=" | ")


if __name__ == "__main__":
    main()
