"""recipes.json: published recipes of dense Llama-style models that ran, as values of the library's options.

    python tests/oracles/make_recipes.py

Each recipe ran: its maker published a step, a throughput or a peak for it, or trained a released model with
it. A part of them is in other fixtures already and is read from there; the others are written down here from
the tables that `source` names. A field that no source states is absent. One thing is stated for all recipes
of a source where its own code states it; `TOLD` says which, and where.

Left out: GPTs, whose MLP is no SwiGLU; mixtures of experts; fine-tuning with adapters; what the library
cannot express (four-bit and microscaling floats, activations moved to the CPU, recomputation of every second
layer); 405B with fewer layers; the GPU counts between the smallest and the largest of one recipe.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fixture import write_tables

HERE = Path(__file__).parent
COMMAND = "python tests/oracles/make_recipes.py"

BRIDGE = "NVIDIA-NeMo/Megatron-Bridge docs/performance-summary-archive.md @067f987d"
DGXC = "NVIDIA/dgxc-benchmarking llama3.1/README.md @841f5466"
SMOL = "huggingface/smollm text/pretraining/{} @a0417598"
PLAYBOOK = (
    "HF Ultra-Scale Playbook, benchmarks_interactive.html (vinjn/nanotron-ultrascale-playbook @924e4d0b)"
)
CISCO = "mlcommons/training_results_v5.1 Cisco/benchmarks/llama31_8b/implementations/nemo"
ASYNC = "pytorch/torchtitan benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md @b5bcd76c"

MEGATRON = {"trainer": "megatron-lm", "zero": 1}
"""NVIDIA's recipes shard the optimizer: use_distributed_optimizer in src/megatron/bridge/recipes/common.py:87
@067f987d, conf/megatron yaml files of NeMo, and config_common.sh of MLPerf."""

WHOLE = MEGATRON | {"recompute": "none", "gpu": "h100-80gb", "micro_batch": 1}

HALVES = {"grad_dtype": "bfloat16"}
"""Gradients are kept and reduced in sixteen bits: grad_sync_dtype in llama3.1/*.yaml @35a9aecc of
NVIDIA/dgxc-benchmarking; grad_reduce_in_fp32=False in its llama3.1/pretrain_llama31.py:131 @741c8860, in
src/megatron/bridge/perf_recipes/_common.py:73 @067f987d, and in pretrain.py of MLPerf's Llama recipes."""
ENDS = {"layer_split": "balanced ends"}
TITAN = {"trainer": "torchtitan@2024-12-26", "zero": 3}  # 9dec370, which the tables name
SPRING = {"trainer": "torchtitan@2024-04-16"}  # 31deea6b4, which has the table
JUNE = {"trainer": "torchtitan@2025-06-13"}  # 820504e and e7c0cae, which the tables name
FMS = {"trainer": "fms-fsdp", "zero": 3}

TOLD: dict[str, dict[str, Any]] = {
    # ISCA 2025: one layer a virtual stage; ZeRO 1 with 1F1B from 2 * pp micro-batches on (section 3.1.3).
    # Gradients are summed in float32 (section 3.3.2 of the paper). The fixture has the recomputation of 8,192
    # tokens alone, for the paper says it of no other length.
    "meta-llama3": {"trainer": "llama3-trainer", "gpu": "h100-80gb", "virtual_stages": 8, "micro_batch": 1}
    | {"grad_dtype": "float32"}
    | ENDS,
    "torchtitan-202412": TITAN | {"gpu": "h100-96gb"},
    # docs/performance.md says A100 of 80 GB; 4,096 tokens by the MFU that it prints
    "torchtitan-2024-a100": TITAN | SPRING | {"gpu": "a100-80gb", "seq_len": 4096, "cp": 1},
    # train_configs/llama3_8b.toml recomputes selectively; its command gathers float8
    "torchtitan-h200": TITAN
    | JUNE
    | {"gpu": "h200-141gb", "recompute": "selective", "float8_all_gather": True},
    "nemo-24.07": MEGATRON | {"gpu": "h100-80gb"},
    "nemo-longseq": MEGATRON | {"gpu": "h100-80gb"},
    # embedding and loss are counted as layers: ASYM_PP_EMBED, ASYM_PP_LOSS; ACT_CKPT_GRANULARITY is null
    "mlperf5.0": WHOLE | ENDS | HALVES | {"overlap_tp": True},
    # The yaml files @35a9aecc overlap TP, of 70B and 405B alone. In those of 405B since 25.04 stands
    # account_for_embedding_in_pipeline_split, and the same of the loss.
    "dgxc-24.11-8b": WHOLE | HALVES,
    "dgxc-25.04-8b": WHOLE | HALVES,
    "dgxc-24.11-70b": WHOLE | HALVES | {"overlap_tp": True},
    "dgxc-24.11-405b": WHOLE | HALVES | {"overlap_tp": True},
    "dgxc-25.04-70b": WHOLE | HALVES | {"overlap_tp": True},
    "dgxc-25.04-405b": WHOLE | HALVES | ENDS | {"overlap_tp": True},
    "dgxc-25.05": WHOLE | HALVES | ENDS | {"overlap_tp": True, "gpu": "gb200-nvl72"},
    # README.md: HSDP for 7B, a replica within a node
    "fms-eager-a100": FMS | {"gpu": "a100-80gb", "kernels": "eager"},
    "fms-compiled-a100": FMS | {"gpu": "a100-80gb"},
    "fms-eager-h100": FMS | {"gpu": "h100-80gb", "kernels": "eager"},
    "fms-compiled-h100": FMS | {"gpu": "h100-80gb"},
    "fms-eager-a100-7b": FMS | {"gpu": "a100-80gb", "kernels": "eager", "dp_replicate": 16},
    "fms-compiled-a100-7b": FMS | {"gpu": "a100-80gb", "dp_replicate": 16},
    "fms-eager-h100-7b": FMS | {"gpu": "h100-80gb", "kernels": "eager", "dp_replicate": 12},
    "fms-compiled-h100-7b": FMS | {"gpu": "h100-80gb", "dp_replicate": 12},
}
"""The beginning of a row's name in another fixture → what its source states of all these rows."""

OWN_GPUS = {"gb300-nvl72": {"name": "gb300-nvl72", "base": "b300-288gb", "domain": 72}}
"""GPUs that the library has no name for, as data; NVLink joins the 72 of a GB300 NVL72."""

NAMES = {"vp": "virtual_stages", "global_batch_seqs": "global_batch"}
SAME = ("gpus", "tp", "cp", "pp", "dp", "vp", "seq_len", "micro_batch", "global_batch_seqs")

PRESETS = {
    "Llama 3 8B": "llama3-8b",
    "Llama 3.1 8B": "llama3.1-8b",
    "Llama 3 70B": "llama3-70b",
    "Llama 3.1 70B": "llama3.1-70b",
    "Llama 3.1 405B": "llama3.1-405b",
    "Llama 2 7B": "llama2-7b",
    "Llama 2 13B": "llama2-13b",
    "Llama 2 70B": "llama2-70b",
}


def dims(name: str, d: dict[str, Any], seq_len: int) -> dict[str, Any]:
    """A model that is no preset, as fields of a ModelConfig."""
    said = {"dim": d["hidden"], "n_layers": d["layers"], "n_heads": d["heads"], "n_kv_heads": d["kv_heads"]}
    said |= {"ffn_dim": d["ffn"], "vocab_size": d["vocab"], "max_seq_len": seq_len}
    return {"name": name, **said, "tied": bool(d.get("tied", d.get("tied_embeddings")))}


def figures(row: dict[str, Any]) -> dict[str, Any]:
    """What a row of another fixture measured."""
    said = {"step_time_s": "step_seconds", "tokens_per_s_per_gpu": "tokens_per_s_per_gpu"}
    found = {name: row[key] for key, name in said.items() if row.get(key) is not None}
    if not found and row.get("tflops_per_gpu"):
        found["tflops_per_gpu"] = row["tflops_per_gpu"]
    return found


def known(row: dict[str, Any]) -> dict[str, Any] | None:
    """A row of steps_published.json or steps_fresh.json as a recipe; None where TOLD leaves it out."""
    prefix = max((key for key in TOLD if row["id"].startswith(key)), key=len, default=None)
    cut = "405b" in row["id"] and row["dims"] and row["dims"]["layers"] < 126
    if prefix is None or cut or row["id"].endswith("selective_layer"):
        return None
    found = {"name": row["id"], "model": PRESETS.get(row["model"]) or dims(row["model"], row["dims"], 4096)}
    found |= TOLD[prefix]
    found |= {NAMES.get(key, key): row[key] for key in SAME if row.get(key) is not None}
    words = f"{row.get('precision', '')} {row.get('notes', '')}".lower()
    found["precision"] = "float8" if "fp8" in words or "float8" in words else "bfloat16"
    recompute = row.get("recompute") or ""
    for word in ("full", "selective", "none"):
        found |= {"recompute": word} if recompute.startswith(word) else {}
    if prefix.startswith("meta"):
        early = row["global_batch_seqs"] >= 2 * row["pp"] * row["dp"]
        found |= {"zero": 1 if early else 2, "schedule": "interleaved-1f1b" if early else "looped-bfs"}
    if prefix.startswith("torchtitan"):
        # A local batch is cut into as many micro-batches as there are PP ranks
        # (torchtitan/parallelisms/pipelining_utils.py @9dec370, the commit of the runs with a pipeline);
        # an interleaved schedule has two stages a rank there.
        found["micro_batch"] = found["global_batch"] // found["dp"] // found["pp"]
        # With a pipeline FSDP does not reshard after forward (torchtitan/parallelisms/parallelize_llama.py).
        found["zero"] = 3 if found["pp"] == 1 else 2
        found |= {"overlap_tp": True} if "AsyncTP" in row["id"] + row["notes"] else {}
        found |= {"kernels": "eager"} if row["id"].endswith("-FSDP") else {}
        if "Interleaved" in row.get("schedule", ""):
            found |= {"schedule": "interleaved-1f1b", "virtual_stages": 2}
    # Whether the rate of the long row counts half of attention's square is not said.
    found["published"] = {} if row["id"] == "meta-llama3-405b-t4-3" else figures(row)
    return found | {"source": row["source"].split("; no recomputation")[0]}


def earlier() -> Iterator[dict[str, Any]]:
    """The recipes of the other fixtures, with the peaks that one of them has."""
    files = ("steps_published", "steps_fresh", "peaks_published")
    published, fresh, held = (json.loads((HERE / f"{name}.json").read_text()) for name in files)
    peaks = {row["id"]: row for row in held["measured"]}
    for row in [*published["rows"], *fresh["rows"]]:
        found = known(row)
        if found is None:
            continue
        peak = peaks.get(row["id"])
        if peak:  # torchtitan logs torch's max_memory_reserved
            found["published"] |= {"max_reserved_gib": peak["peak_mem"]}
        yield found


def ultrascale() -> Iterator[dict[str, Any]]:
    """The fastest layout of each model and number of nodes, with its memory."""
    steps = json.loads((HERE / "steps_ultrascale.json").read_text())
    held = json.loads((HERE / "peaks_ultrascale.json").read_text())
    names = ("model", "mbs", "dp", "pp", "tp", "zero")
    peaks = {tuple(row[name] for name in names): row["gpu_mem_gb"] for row in held["rows"]}
    best: dict[tuple[str, int], list[Any]] = {}
    for row in steps["rows"]:
        model, _, dp, pp, tp, _, rate, _ = row
        place = model, dp * pp * tp
        if place not in best or rate > best[place][6]:
            best[place] = row
    for (model, gpus), (_, batch, dp, pp, tp, zero, rate, _) in sorted(best.items()):
        found = {
            "name": f"ultrascale-{model}-{gpus}",
            "trainer": "nanotron",
            "gpu": "h100-80gb",
            "gpus": gpus,
        }
        found |= {"model": dims(f"ultrascale-{model}", steps["dims"][model], 4096)}
        found |= {"tp": tp, "cp": 1, "pp": pp, "dp": dp, "zero": zero, "micro_batch": batch}
        found |= {"seq_len": 4096, "global_batch": 256, "recompute": "none", "precision": "bfloat16"}
        peak = peaks.get((model, batch, dp, pp, tp, zero))
        # Whether its GB are of 10**9 bytes, allocated or reserved, the figure does not say.
        found["published"] = {"tokens_per_s_per_gpu": rate} | ({"peak_gb": peak} if peak else {})
        yield found | {"source": f"{PLAYBOOK}, the fastest of its GPU count"}


def nvidia(
    name: str, source: str, columns: tuple[int, ...], published: dict[str, float], gpu: str, **said: Any
) -> dict[str, Any]:
    """A row of NVIDIA's tables. columns: GPUs, sequences of a step, micro-batch, TP, PP, CP, VP."""
    gpus, batch, micro_batch, tp, pp, cp, vp = columns
    model = {"8b": "llama3-8b", "70b": "llama3-70b", "405b": "llama3.1-405b"}[name.split("-")[2]]
    found = {
        "name": name,
        "model": model,
        **MEGATRON,
        "gpu": OWN_GPUS.get(gpu, gpu),
        "gpus": gpus,
        "tp": tp,
        "cp": cp,
        "pp": pp,
    }
    found |= {"dp": gpus // (tp * cp * pp), "virtual_stages": vp, "seq_len": 8192, "precision": "float8"}
    found |= {"micro_batch": micro_batch, "global_batch": batch}
    # account_for_embedding_in_pipeline_split and the same of the loss, in its 405B recipes
    found |= ENDS if model == "llama3.1-405b" and pp > 1 else {}
    found |= HALVES | ({"overlap_tp": True} if tp > 1 else {})  # userbuffers in its perf_recipes
    return found | said | {"published": published, "source": source}


def bridge() -> Iterator[dict[str, Any]]:
    """Megatron-Bridge's tables of eight-bit floats: model, GPUs … VP, tokens a second of a GPU.

    The newest container that has a layout counts; a layout that changed stands once more.
    """
    tables: dict[str, tuple[tuple[str, tuple[int, ...], int], ...]] = {
        "26.06 h100-80gb": (("405b", (1024, 1536, 1, 8, 8, 2, 8), 326),),
        "26.06 gb200-nvl72": (("405b", (256, 1536, 1, 4, 16, 1, 4), 843),),
        "26.06 gb300-nvl72": (("405b", (256, 1536, 1, 4, 8, 1, 4), 1048),),
        "26.04.01 h100-80gb": (("70b", (64, 256, 1, 4, 8, 1, 5), 1664),),
        "26.02.01 gb300-nvl72": (("405b", (256, 1536, 1, 2, 8, 2, 4), 1024),),
        "25.11 gb300-nvl72": (("8b", (8, 128, 2, 1, 1, 1, 1), 37556),),
        "25.11 gb200-nvl72": (("8b", (8, 128, 2, 1, 1, 1, 1), 31508),),
        "25.11 b200-180gb": (
            ("8b", (8, 128, 2, 1, 1, 1, 1), 30624),
            ("405b", (128, 64, 1, 4, 8, 2, 8), 661),
        ),
        "25.11 h100-80gb": (
            ("8b", (8, 128, 1, 1, 1, 1, 1), 14451),
            ("70b", (64, 128, 1, 4, 8, 1, 5), 1602),
            ("405b", (1024, 512, 1, 8, 8, 2, 8), 292),
        ),
        "25.09 gb200-nvl72": (
            ("70b", (64, 128, 1, 2, 4, 1, 5), 3546),  # its 16 accumulations are of one sequence each
            ("405b", (128, 64, 1, 4, 8, 2, 8), 578),
        ),
    }
    for place, lines in tables.items():
        container, _, gpu = place.partition(" ")
        for model, columns, rate in lines:
            name = f"mbridge-{container}-{model}-{gpu.partition('-')[0]}"
            sharded = {"zero": 3} if name == "mbridge-25.11-8b-h100" else {}  # its column FSDP has 8
            source = f"{BRIDGE} [{container}]"
            yield nvidia(name, source, columns, {"tokens_per_s_per_gpu": rate}, gpu, **sharded)


def shipped() -> Iterator[dict[str, Any]]:
    """DGX Cloud's recipes in bfloat16, smallest and largest of each; it ships them without a figure."""
    for model, gpus, micro_batch, tp, pp, cp, vp, batch in (
        ("405b", 1024, 1, 8, 8, 2, 8, 1536),
        ("70b", 64, 1, 4, 4, 2, 5, 256),
        ("70b", 1024, 1, 4, 4, 2, 5, 4096),
        ("8b", 8, 1, 1, 1, 2, 1, 128),
        ("8b", 128, 1, 1, 1, 2, 1, 2048),
    ):
        columns = (gpus, batch, micro_batch, tp, pp, cp, vp)
        name = f"dgxc-26.05-{model}-bf16-{gpus}"
        yield nvidia(name, f"{DGXC} (H100, BF16)", columns, {}, "h100-80gb", precision="bfloat16")


def mlperf() -> Iterator[dict[str, Any]]:
    """MLPerf Training 5.1's Llama 3.1 8B on H100; its logs give the time to a loss, and no step."""
    path = f"{CISCO}/config_DGXH100_{{}}.sh"
    for gpus, tp, file in ((64, 1, "8x8x1xtp1pp1cp1"), (128, 2, "16x8x1xtp2pp1cp1")):
        found = nvidia(
            f"mlperf5.1-cisco-8b-{gpus}", path.format(file), (gpus, 64, 1, tp, 1, 1, 1), {}, "h100-80gb"
        )
        yield found | {"recompute": "none", "source": f"{found['source']} @4da2d1cd", "model": "llama3.1-8b"}


def titan() -> Iterator[dict[str, Any]]:
    """torchtitan's comparison of asynchronous TP in June 2025; the plain figure of each pair."""
    eight = {"model": "llama3.1-8b", "gpus": 64, "dp": 8, "micro_batch": 12, "recompute": "selective"}
    seventy = {"model": "llama3.1-70b", "gpus": 256, "dp": 32, "micro_batch": 16, "recompute": "full"}
    for name, said, precision, rate in (
        ("70b-bf16", seventy, "bfloat16", 597.3),
        ("70b-float8", seventy, "float8", 809.8),
        ("8b-bf16", eight, "bfloat16", 4378),
        ("8b-float8", eight, "float8", 5078.1),
    ):
        found = {
            "name": f"torchtitan-202506-{name}",
            **said,
            **TITAN,
            **JUNE,
            "gpu": "h100-96gb",
            "tp": 8,
            "cp": 1,
        }
        # The table has no sequence length; both train_configs of that commit set 8,192.
        found |= {"pp": 1, "seq_len": 8192, "precision": precision}
        found |= {"global_batch": said["micro_batch"] * said["dp"]}
        yield found | {"published": {"tokens_per_s_per_gpu": rate}, "source": ASYNC}


def smol() -> Iterator[dict[str, Any]]:
    """The configurations that trained SmolLM 1 to 3 on H100 with nanotron."""
    small = {
        "135M": (576, 30, 9, 3, 1536),
        "360M": (960, 32, 15, 5, 2560),
        "1.7B": (2048, 24, 32, 32, 8192),
    }
    runs: list[tuple[Any, ...]] = [
        ("smollm1-135M", "135M", "smollm1/config_smollm1_135M.yaml", 32, 8, 2),
        ("smollm1-360M", "360M", "smollm1/config_smollm1_360M.yaml", 32, 8, 2),
        ("smollm1-1.7B", "1.7B", "smollm1/config_smollm1_1B.yaml", 64, 4, 4),
        ("smollm2-135M", "135M", "smollm2/config_smollm2_135M.yaml", 64, 8, 1),
        ("smollm2-360M", "360M", "smollm2/config_smollm2_360M.yaml", 128, 6, 1),
        ("smollm2-1.7B", "1.7B", "smollm2/config_smollm2_1B.yaml", 256, 4, 1),
    ]
    own = {"trainer": "nanotron", "gpu": "h100-80gb", "cp": 1, "pp": 1, "zero": 0, "recompute": "none"}
    names = ("hidden", "layers", "heads", "kv_heads", "ffn")
    for name, size, path, dp, batch, accumulated in runs:
        model = dict(zip(names, small[size], strict=True)) | {"vocab": 49152, "tied": True}
        found = {"name": name, "model": dims(name, model, 2048), **own, "gpus": dp, "tp": 1, "dp": dp}
        found |= {"seq_len": 2048, "micro_batch": batch, "global_batch": batch * accumulated * dp}
        yield found | {"precision": "bfloat16", "published": {}, "source": SMOL.format(path)}
    model = dict(zip(names, (2048, 36, 16, 4, 11008), strict=True)) | {"vocab": 128256, "tied": True}
    found = {"name": "smollm3-3B", "model": dims("smollm3-3B", model, 4096), **own, "gpus": 384, "tp": 2}
    found |= {"dp": 192, "seq_len": 4096, "micro_batch": 3, "global_batch": 576, "precision": "bfloat16"}
    source = f"{SMOL.format('smollm3/stage1_8T.yaml')}; 14k tokens a second as quoted from its model card's "
    source += "figure by tzafon.ai/blog/breaking-40k-tokens"
    yield found | {"published": {"tokens_per_s_per_gpu": 14000}, "source": source}


def rows() -> list[dict[str, Any]]:
    """Every recipe."""
    return [*earlier(), *bridge(), *shipped(), *mlperf(), *titan(), *smol(), *ultrascale()]


def main() -> None:
    write_tables("recipes.json", COMMAND, {"rows": rows()})


if __name__ == "__main__":
    main()
