"""Predicted against measured step times, every row named, worst first.

    .venv/bin/python benchmarks/cost_accuracy.py [--half seen|unseen|both] [--terms] [--ultrascale] [--fit]
    .venv/bin/python benchmarks/cost_accuracy.py --course    # writes the rows that notebook 09 draws
    .venv/bin/python benchmarks/cost_accuracy.py --pairs     # how often the order of two is right
    .venv/bin/python benchmarks/cost_accuracy.py --page      # writes docs/measured/cost_accuracy.md

--foundry adds llm-foundry's rows, of which nothing was known when all terms and constants stood. --fresh
takes those of steps_fresh.json, written down before any was predicted, with what is told of them below.

Rows are those of tests/oracles/steps_published.json and steps_ultrascale.json; which half a row belongs to
was drawn before any was predicted. Nothing is chosen by the measured value: what a source's rows leave open
is told once in SETTINGS. Constants are `lp.cost`'s, none of which was fitted to these rows. A row that says
too little is named with its reason. A GPT's two matrices of 4·dim count as three of 8/3·dim: the same FLOPs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import _page
import llamapar as lp
from llamapar.timing.cost import cost_of
from llamapar.timing.profiles import PROFILES

ORACLES = Path(__file__).resolve().parent.parent / "tests" / "oracles"
COURSE = Path(__file__).resolve().parent.parent / "llamapar" / "course" / "published_steps.json"

MEGATRON = {"framework": "megatron"}
"""Kernels of Transformer Engine; recomputation of attention alone where a source says selective."""

DGXC = MEGATRON | {"gpu": "h100-80gb", "recompute": "none", "cp_method": "ring"}
FMS = {"flash": "fa2", "zero": 3}
IBM_A100 = {"gpu": {"base": "a100-80gb", "net_rate": 400e9 / 8 / 8}}
IBM_H100 = {"gpu": {"base": "h100-80gb", "net_rate": 800e9 / 8 / 8}}
"""A node's 400 and 800 Gb/s, by eight GPUs."""

SETTINGS: dict[str, dict[str, Any]] = {
    # arXiv:2407.21783 section 3.3 and ISCA 2025: no recomputation at 8K, one layer a virtual stage, ZeRO 1;
    # FlashAttention-2 is what its section 7.2 measures against, and version 3 came when the model was trained
    "meta-llama3": {
        "gpu": "h100-80gb",
        "flash": "fa2",
        "recompute": "none",
        "virtual_stages": 8,
        "micro_batch": 1,
        "zero": 1,
    },
    # benchmarks/llama3_h100_202412_torchtitan.md: 500 W; SDPA's flash attention is FlashAttention-2;
    # sequences of 8,192 by its train_configs; two virtual stages where interleaved (the default)
    "torchtitan-202412": {
        "gpu": "h100-96gb",
        "flash": "fa2",
        "zero": 3,
        "seq_len": 8192,
        "cp_method": "ring",
    },
    "torchtitan-arxivv2": {
        "gpu": "h100-96gb",
        "flash": "fa2",
        "zero": 3,
        "seq_len": 8192,
        "cp_method": "ring",
    },
    # docs/performance.md of 2024: eager, 4,096 tokens by the MFU that it prints
    "torchtitan-2024-a100": {
        "gpu": "a100-80gb",
        "zero": 3,
        "seq_len": 4096,
        "kernels": "eager",
        "cp": 1,
        "precision": "bfloat16",
    },
    "nemo": MEGATRON | {"gpu": "h100-80gb", "micro_batch": 1, "recompute": "none", "cp_method": "ring"},
    "mbridge": MEGATRON | {"gpu": "h100-80gb", "recompute": "none", "cp_method": "ring"},
    # embedding and loss are counted as layers (ASYM_PP_EMBED, ASYM_PP_LOSS)
    "mlperf": MEGATRON
    | {
        "layer_split": "balanced ends",
        "gpu": "h100-80gb",
        "recompute": "none",
        "overlap_tp": True,
        "cp_method": "ring",
    },
    # its README and yaml files; with 8 virtual stages embedding and loss count as layers: (126 + 2) / 64
    "dgxc": DGXC,
    "dgxc-24.11-70b": DGXC | {"overlap_tp": True},
    "dgxc-24.11-405b": DGXC | {"overlap_tp": True},
    "dgxc-25.04-70b": DGXC | {"overlap_tp": True},
    "dgxc-25.04-405b": DGXC | {"overlap_tp": True, "layer_split": "balanced ends"},
    "dgxc-25.05": DGXC | {"overlap_tp": True, "layer_split": "balanced ends", "gpu": "gb200-nvl72"},
    # README.md: SDPA's FlashAttention-2; HSDP within a node for 7B
    "fms-eager-a100": FMS | IBM_A100 | {"kernels": "eager"},
    "fms-eager-h100": FMS | IBM_H100 | {"kernels": "eager"},
    "fms-compiled-a100": FMS | IBM_A100,
    "fms-compiled-h100": FMS | IBM_H100,
    "fms-eager-a100-7b": FMS | IBM_A100 | {"kernels": "eager", "dp_replicate": 16},
    "fms-eager-h100-7b": FMS | IBM_H100 | {"kernels": "eager", "dp_replicate": 12},
    "fms-compiled-a100-7b": FMS | IBM_A100 | {"dp_replicate": 16},
    "fms-compiled-h100-7b": FMS | IBM_H100 | {"dp_replicate": 12},
    # train_configs/llama3_8b.toml: 8,192 tokens, selective recomputation; SDPA's FlashAttention-2
    "torchtitan-h200": {"gpu": "h200-141gb", "flash": "fa2", "zero": 3},
    # before flash attention; Korthikanti's selective recomputation is of attention, SC21's full
    "sc21": MEGATRON | {"gpu": "a100-80gb", "flash": "unfused", "zero": 0, "sequence_parallel": False},
    "korth22": MEGATRON | {"gpu": "a100-80gb", "flash": "unfused", "zero": 0},
}

UNTOLD = {
    "meta-llama3-405b-t4-3": "whether it counts half of attention's square (10.9 s) or all of it (15.3 s)"
}
"""Row → what it does not say, and its step depends on."""

ULTRASCALE: dict[str, Any] = {"gpu": "h100-80gb", "kernels": "eager", "flash": "fa2"}
ULTRASCALE |= {"recompute": "none", "seq_len": 4096}
"""nanotron without torch.compile, FlashAttention-2, no recomputation."""


@dataclass(frozen=True)
class Row:
    """A measured step beside the predicted one.

    why: it cannot be predicted. asked: what `lp.cost` is given.
    """

    name: str
    half: str
    measured: float
    cost: lp.Cost | None
    why: str = ""
    asked: dict[str, Any] = field(default_factory=dict)

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        assert self.cost is not None
        return self.cost.step_seconds / self.measured - 1


def dims_of(row: dict[str, Any]) -> dict[str, Any]:
    """A row's model as fields of a ModelConfig."""
    d = row["dims"]
    gpt = d.get("mlp") not in (None, "swiglu")
    ffn = d["ffn"] * 2 / 3 if gpt else d["ffn"]
    return {
        "name": row["model"],
        "dim": d["hidden"],
        "n_layers": d["layers"],
        "n_heads": d["heads"],
        "n_kv_heads": d["kv_heads"],
        "ffn_dim": round(ffn),
        "vocab_size": d["vocab"],
        "tied": bool(d.get("tied_embeddings")),
        "max_seq_len": row.get("seq_len") or 8192,
    }


def settings_of(row: dict[str, Any]) -> dict[str, Any]:
    """What the source's rows leave open, and what this row says."""
    prefix = max((key for key in SETTINGS if row["id"].startswith(key)), key=len)
    found = dict(SETTINGS[prefix])
    said = {"tp": "tp", "cp": "cp", "pp": "pp", "dp": "dp", "virtual_stages": "vp", "seq_len": "seq_len"}
    said |= {"micro_batch": "micro_batch", "global_batch": "global_batch_seqs"}
    found |= {name: row[key] for name, key in said.items() if row.get(key) is not None}
    words = f"{row.get('precision', '')} {row.get('notes', '')}".lower()
    if row["id"].startswith("meta") and row["global_batch_seqs"] < 2 * row["dp"] * row["pp"]:
        found |= {"schedule": "gpipe", "zero": 2}  # all forwards first, ISCA 2025 section 3.1.3
    found.setdefault("precision", "float8" if "fp8" in words or "float8" in words else "bfloat16")
    recompute = row.get("recompute", "")
    for word in ("full", "selective"):
        if recompute.startswith(word):
            found["recompute"] = word
    if row["id"].startswith("torchtitan"):
        titan(row, found)
    if row["id"].startswith(("sc21", "korth")) and found.get("recompute") == "selective":
        found["sequence_parallel"] = True
    return found


def titan(row: dict[str, Any], found: dict[str, Any]) -> None:
    """torchtitan's rows: compiled but for the plain one, float8 gathers, AsyncTP where they say so."""
    notes = row["notes"]
    found["framework"] = "torchtitan"
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


LAYOUT = ("tp", "cp", "pp", "dp", "dp_replicate", "virtual_stages", "zero", "sequence_parallel")


def measured_seconds(row: dict[str, Any], found: dict[str, Any], cost: lp.Cost) -> float:
    """Of a step: as it is printed, or from tokens/s, or from FLOP/s by the source's convention."""
    if row.get("step_time_s"):
        return float(row["step_time_s"])
    gpus = cost.layout.world
    if row.get("tokens_per_s_per_gpu"):
        return cost.tokens / row["tokens_per_s_per_gpu"] / gpus
    flops = cost.flops
    if row["id"].startswith("sc21"):  # printed of the hardware, with recomputation
        d, s = row["dims"], found["seq_len"]
        h, layers, vocab = d["hidden"], d["layers"], d["vocab"]
        flops = 96 * found["global_batch"] * s * layers * h * h * (1 + s / 6 / h + vocab / 16 / layers / h)
    return flops / (row["tflops_per_gpu"] * 1e12) / gpus


def published(half: str) -> Iterator[Row]:
    rows = json.loads((ORACLES / "steps_published.json").read_text())["rows"]
    yield from predicted(row for row in rows if half in (row["half"], "both"))


def fresh() -> Iterator[Row]:
    """Rows that were written down before any was predicted."""
    rows = json.loads((ORACLES / "steps_fresh.json").read_text())["rows"]
    yield from predicted(row | {"half": "first sight"} for row in rows)


def predicted(rows: Iterable[dict[str, Any]]) -> Iterator[Row]:
    for row in rows:
        missing = [k for k in ("dims", "tp", "pp", "dp", "global_batch_seqs") if row.get(k) is None]
        missing += [UNTOLD[row["id"]]] if row["id"] in UNTOLD else []
        if missing or "lora" in row["id"]:
            yield Row(row["id"], row["half"], 0.0, None, f"not told: {', '.join(missing) or 'LoRA'}")
            continue
        found = settings_of(row)
        layout = {name: found.pop(name) for name in LAYOUT if name in found}
        layout.setdefault("cp", 1)
        if row["id"].startswith("nemo-longseq"):
            found["flops"] = "causal"
        asked = {"model": dims_of(row), "layout": layout, "settings": found}
        try:
            cost = lp.cost(lp.ModelConfig(**asked["model"]), lp.Layout(**layout), **found)
        except lp.LlamaparError as problem:
            yield Row(row["id"], row["half"], 0.0, None, problem.what)
            continue
        yield Row(row["id"], row["half"], measured_seconds(row, found, cost), cost, asked=asked)


def course() -> list[dict[str, Any]]:
    """The rows that notebook 09 draws: what was asked, each model by its row's name, and seconds measured."""
    return [
        row.asked | {"model": row.asked["model"] | {"name": row.name}, "measured": row.measured}
        for row in published("both")
        if row.cost
    ]


def ultrascale(half: str) -> Iterator[Row]:
    """The rows that are a fair test: one stage, TP in a node, at most 256 GPUs."""
    data = json.loads((ORACLES / "steps_ultrascale.json").read_text())
    models = {
        name: lp.ModelConfig(**dims_of({"model": name, "dims": d | {"tied_embeddings": d["tied"]}}))
        for name, d in data["dims"].items()
        if not name.startswith("_") and isinstance(d, dict) and "hidden" in d
    }
    for model, batch, dp, pp, tp, zero, rate, own in data["rows"]:
        if half not in (own, "both") or pp > 1 or tp > 8 or dp * tp > 256:
            continue
        name = f"ultrascale-{model}-tp{tp}-dp{dp}-mbs{batch}-zero{zero}"
        cost = lp.cost(
            models[model],
            lp.Layout(tp=tp, dp=dp, zero=zero),
            micro_batch=batch,
            global_batch=256,
            framework="nanotron",
            **ULTRASCALE,
        )
        yield Row(name, own, cost.tokens / rate / cost.layout.world, cost)


FOUNDRY_SHORT = 4096
"""Tokens up to which llm-foundry's rows are a fair test: its attention is Triton's, not FlashAttention-2."""


def foundry() -> Iterator[Row]:
    """llm-foundry's MPT models on H100: eager, ZeRO 3."""
    data = json.loads((ORACLES / "steps_foundry.json").read_text())
    for model, seq_len, gpus, batch, accumulated, full, precision, rate in data["rows"]:
        dim, layers, heads = data["dims"][model]
        dims = {"hidden": dim, "layers": layers, "heads": heads, "kv_heads": heads, "ffn": 4 * dim}
        dims |= {"vocab": 50368, "tied_embeddings": True, "mlp": "gelu"}
        cost = lp.cost(
            lp.ModelConfig(**dims_of({"model": f"mpt-{model}", "dims": dims, "seq_len": seq_len})),
            lp.Layout(dp=gpus, zero=3),
            seq_len=seq_len,
            micro_batch=batch,
            global_batch=batch * accumulated * gpus,
            recompute="full" if full else "none",
            precision=precision,
            kernels="eager",
            flash="fa2",
        )
        name = f"foundry-{model}-{seq_len}-gpus{gpus}-mbs{batch}-{precision}"
        yield Row(name, "first sight", cost.tokens / rate / gpus, cost)


def fair(row: Row) -> bool:
    """Whether one of llm-foundry's is a fair test."""
    assert row.cost is not None
    return "bfloat16" in row.name and row.cost.layer.forward["attention"].inputs["seq"] <= FOUNDRY_SHORT


SLOWER = [step / 100 for step in range(80, 160)]
HOST = [step / 1e4 for step in range(40)]
FITTED = {"nanotron": HOST, "torchtitan": [0.0], "nemo": [0.0]}
"""Trainer → seconds of its host that are tried; 0 alone where nobody says that it is slow."""


def rows_of(trainer: str, half: str) -> list[Row]:
    """Those of a trainer that can be predicted."""
    found = ultrascale(half) if trainer == "nanotron" else published(half)
    return [row for row in found if row.cost and (trainer == "nanotron" or row.name.startswith(trainer))]


def refitted(rows: list[Row], slower: float, host: float) -> list[float]:
    """Their errors with two constants of a profile; a bubble grows as the layers do."""
    found = []
    for row in rows:
        assert row.cost is not None
        phases = row.cost.layer.seconds
        counts = next(term.inputs for term in row.cost.terms if term.name == "GEMMs")
        passes = counts["micro_batches"] * counts["layers"]
        launched = 3 if "recompute full" in row.cost.how else 2
        layers = max(slower * phases[0], host) + max(slower * phases[1], launched * host)
        bubble = row.cost.seconds.get("pipeline idle", 0.0)
        more = passes * (layers - sum(phases)) + bubble * (layers / sum(phases) - 1)
        found.append((row.cost.step_seconds + more) / row.measured - 1)
    return found


def fit(rows: list[Row], hosts: list[float]) -> tuple[float, float]:
    """The two constants of least mean error."""
    every = itertools.product(SLOWER, hosts)
    return min(every, key=lambda each: statistics.mean(map(abs, refitted(rows, *each))))


def shares(errors: list[float]) -> tuple[str, str, str]:
    """Median and 90th percentile of absolute errors, and the median of signed ones."""
    ordered = sorted(map(abs, errors))
    p90 = ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]
    return f"{statistics.median(ordered):.1%}", f"{p90:.1%}", f"{statistics.median(errors):+.1%}"


def spread(errors: list[float]) -> str:
    """The same in words."""
    median, p90, bias = shares(errors)
    return f"{len(errors)} rows: median {median}, p90 {p90}, bias {bias}"


SOURCES = {
    "meta-llama3": "Meta: Table 4 of the Llama 3 paper, rows 1 and 2",
    "mlperf": "NVIDIA for MLPerf",
    "torchtitan": "torchtitan",
    "nemo": "NVIDIA NeMo",
    "mbridge": "NVIDIA Megatron-Bridge",
    "korth22": "Megatron-LM, Korthikanti et al., 2022",
    "sc21": "Megatron-LM, SC21",
}
"""Beginning of a published row's name → whose it is."""

APART = (0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 10)
"""Predicted differences of two steps, as shares, between which pairs are counted."""


def pairs() -> Iterator[tuple[float, bool]]:
    """Pairs of layouts of one job: how far apart they are by prediction, and whether the order is right.

    A job is a model, a length, a batch, GPUs and a precision of one source. nanotron's are predicted with its
    profile. Pairs of equal degrees, micro-batch and recomputation are other settings, and left out.
    """
    groups: dict[object, list[tuple[object, float, float]]] = {}
    for row in (*published("both"), *fresh(), *ultrascale("both")):
        cost = row.cost
        if cost is None:
            continue
        how = cost.asked.how
        if row.name.startswith("ultrascale"):
            cost = cost_of(cost.asked.job, how.fitted("nanotron"), cost.asked.split)
        source, m = row.name.partition("-")[0], cost.model
        work = (source, m.dim, m.n_layers, cost.seq_len, cost.tokens, cost.layout.world, cost.gpu.name)
        made = (cost.layout, cost.asked.job.micro_batch, how.recompute)
        groups.setdefault((*work, how.precision), []).append((made, cost.step_seconds, row.measured))
    for members in groups.values():
        for (one, first, slow), (other, second, slower) in itertools.combinations(members, 2):
            if one != other:
                yield max(first, second) / min(first, second) - 1, (first - second) * (slow - slower) > 0


WORST = 10
"""Rows that the page names."""


def tables() -> dict[str, list[str]]:
    """Those of docs/measured/cost_accuracy.md."""
    rows = [row for row in published("both") if row.cost]
    later = [row for row in fresh() if row.cost]
    groups = {
        "all published steps": rows,
        "the half of them that was held back": [row for row in rows if row.half == "unseen"],
        "llm-foundry: bfloat16 on H100, up to 4,096 tokens": [row for row in foundry() if fair(row)],
        "predicted once, at first sight: NVIDIA's DGX Cloud recipes, fms-fsdp, torchtitan on H200": later,
    }
    for prefix, title in SOURCES.items():
        groups[title] = [row for row in rows if row.name.startswith(prefix)]
    every = [(title, len(own), *shares([row.error for row in own])) for title, own in groups.items()]
    worst = []
    for row in sorted([*rows, *later], key=lambda row: -abs(row.error))[:WORST]:
        assert row.cost is not None
        worst.append((row.name, f"{row.cost.step_seconds:.3f}", f"{row.measured:.3f}", f"{row.error:+.1%}"))
    fitted = []
    for trainer, made in PROFILES.items():
        own = rows_of(trainer, "unseen")
        both = [shares(refitted(own, *constants)) for constants in ((1.0, 0.0), (made.slower, made.host))]
        without, with_it = (f"{median} (p90 {p90})" for median, p90, _ in both)
        fitted.append(
            (f"`{trainer}`", f"× {made.slower}", f"{made.host * 1e3} ms", len(own), without, with_it)
        )
    head = (
        "trainer",
        "a layer takes",
        "the host needs, a layer's forward",
        "other rows",
        "without",
        "with it",
    )
    return {
        "steps": _page.table(("rows", "n", "median error", "90th percentile", "median, signed"), every),
        "worst": _page.table(("row", "predicted, s", "measured, s", "error"), worst),
        "profiles": _page.table(head, fitted),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--half", choices=("seen", "unseen", "both"), default="both")
    parser.add_argument("--terms", action="store_true", help="every row's terms, in shares of its step")
    parser.add_argument("--ultrascale", action="store_true", help="the Ultra-Scale Playbook's rows too")
    parser.add_argument("--foundry", action="store_true", help="llm-foundry's rows too")
    parser.add_argument("--fresh", action="store_true", help="the rows of steps_fresh.json instead")
    parser.add_argument("--fit", action="store_true", help="what a profile of each trainer would be")
    parser.add_argument("--course", action="store_true", help=f"write {COURSE.name} for notebook 09")
    parser.add_argument("--page", action="store_true", help="write docs/measured/cost_accuracy.md")
    parser.add_argument("--pairs", action="store_true", help="how often the order of two layouts is right")
    args = parser.parse_args()
    if args.pairs:
        every = list(pairs())
        for low, high in itertools.pairwise(APART):
            right = [ok for apart, ok in every if low <= apart < high]
            share = f"{statistics.mean(right):.0%} of {len(right)} pairs in the right order"
            print(f"{low:5.0%} to {high:5.0%} apart: {share}")
        return
    if args.page:
        _page.write(__file__, tables())
        return
    if args.course:
        rows_of_course = ",\n".join(json.dumps(row) for row in course())
        COURSE.write_text(f"[\n{rows_of_course}\n]\n", encoding="utf-8")
        return
    if args.fit:
        for trainer, hosts in FITTED.items():
            found = fit(rows_of(trainer, "seen"), hosts)
            print(f"{trainer}: slower {found[0]}, host {found[1]} s")
            for half in ("seen", "unseen"):
                own = rows_of(trainer, half)
                print(f"  {half}: {spread(refitted(own, 1.0, 0.0))} -> {spread(refitted(own, *found))}")
        return
    rows = [*published(args.half), *(ultrascale(args.half) if args.ultrascale else ())]
    rows += foundry() if args.foundry else ()
    rows = [*fresh()] if args.fresh else rows
    there = sorted((row for row in rows if row.cost), key=lambda row: -abs(row.error))
    for row in there:
        assert row.cost is not None
        seconds = f"{row.cost.step_seconds:9.3f} s for {row.measured:9.3f}"
        print(f"{row.error:+7.1%}  {seconds}  {row.half:6}  {row.name}")
        if args.terms:
            shares = (f"{k} {v / row.cost.step_seconds:.1%}" for k, v in row.cost.seconds.items())
            print(f"         {', '.join(shares)}")
    for row in rows:
        if row.cost is None:
            print(f"  not predicted  {row.half:6}  {row.name}: {row.why}")
    groups = {"all published": [r for r in there if not r.name.startswith(("ultrascale", "foundry"))]}
    groups["fair of llm-foundry"] = [r for r in there if r.name.startswith("foundry") and fair(r)]
    for prefix in [*SETTINGS, "ultrascale", "foundry"]:
        groups[prefix] = [r for r in there if r.name.startswith(prefix)]
    for name, members in groups.items():
        if members:
            print(f"{name}: {spread([row.error for row in members])}")


if __name__ == "__main__":
    main()
