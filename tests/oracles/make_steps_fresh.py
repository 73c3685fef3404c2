"""steps_fresh.json: steps that others measured, written down before any was predicted.

    python tests/oracles/make_steps_fresh.py

Every dense Llama of three sources that none of the other fixtures has. Of columns that differ in DP alone,
the first and the last. Rows have the fields of steps_published.json. What no table says is told in `source`
and `notes`: where it was read, or that it is taken so. Left out: a 13B of fms-fsdp, of which a part of the
blocks is recomputed, and nobody says which.
"""

from __future__ import annotations

from typing import Any

from fixture import write_tables

COMMAND = "python tests/oracles/make_steps_fresh.py"
DIMS = {
    "8b": ("Llama 3.1 8B", 4096, 32, 32, 8, 14336, 128256),
    "70b": ("Llama 3.1 70B", 8192, 80, 64, 8, 28672, 128256),
    "405b": ("Llama 3.1 405B", 16384, 126, 128, 8, 53248, 128256),
    "llama2-7b": ("Llama 2 7B", 4096, 32, 32, 32, 11008, 32000),
    "llama2-34b": ("Llama 2 34B", 8192, 48, 64, 8, 22016, 32000),
    "llama2-70b": ("Llama 2 70B", 8192, 80, 64, 8, 28672, 32000),
}
DGXC = "NVIDIA/dgxc-benchmarking {} @{}; no recomputation, TP of 70B and 405B overlapped: *.yaml @35a9aecc"
OLD, NEW, GB = "35a9aecc8d5b", "741c886025a7", "68eaf7e117bf"


def row(name: str, model: str, source: str, layers: int | None = None, **said: Any) -> dict[str, Any]:
    """A row of steps_published.json."""
    title, dim, own, heads, kv_heads, ffn, vocab = DIMS[model]
    dims = {"hidden": dim, "layers": layers or own, "heads": heads, "kv_heads": kv_heads, "ffn": ffn}
    dims |= {"vocab": vocab, "tied_embeddings": False, "mlp": "swiglu"}
    return {"id": name, "model": title, "dims": dims, "source": source, **said}


def nemo(version: str, model: str, precision: str, *columns: tuple[float, ...]) -> list[dict[str, Any]]:
    """Columns of a table: GPUs, layers, TP, CP, PP, VP, sequences of a step, seconds."""
    commit, path = {
        "24.11": (OLD, f"llama3.1/README_{model}.md"),
        "25.04": (NEW, "llama3.1/README.md"),
        "25.05": (GB, "llama3.1/README.md"),
    }[version]
    found = []
    for gpus, layers, tp, cp, pp, vp, batch, seconds in columns:
        name = f"dgxc-{version}-{model}-{precision}-{layers}l-{gpus}"
        ways = {"tp": tp, "cp": cp, "pp": pp, "dp": int(gpus) // int(tp * cp * pp), "vp": vp}
        said = {"gpus": gpus, **ways, "seq_len": 8192, "global_batch_seqs": batch, "micro_batch": 1}
        source = DGXC.format(path, commit)
        found.append(row(name, model, source, int(layers), precision=precision, step_time_s=seconds, **said))
    return found


def fms(commit: str, compiled: bool, model: str, full: bool, a100: int, h100: int) -> list[dict[str, Any]]:
    """A line of a table: tokens a second of an A100 among 128, and of an H100 among 96."""
    source = f"foundation-model-stack/fms-fsdp README.md @{commit}"
    kind = "compiled" if compiled else "eager"
    notes = "400 and 800 Gb/s taken as a node's, for no GPU had 800; 4,096 tokens: config/training.py. "
    notes += "Recomputation of all blocks where hardware FLOPs are 4/3 of the model's, as for 34B and 70B"
    found = []
    for gpu, gpus, rate in (("a100", 128, a100), ("h100", 96, h100)):
        said = {"gpus": gpus, "tp": 1, "pp": 1, "dp": gpus, "seq_len": 4096, "global_batch_seqs": 2 * gpus}
        said |= {"micro_batch": 2, "precision": "bf16", "recompute": "full" if full else "none"}
        said |= {"tokens_per_s_per_gpu": rate, "notes": notes}
        found.append(row(f"fms-{kind}-{gpu}-{model.removeprefix('llama2-')}", model, source, **said))
    return found


def trainy(gpus: int, rate: int) -> dict[str, Any]:
    """torchtitan on H200: llama3_8b.toml, which recomputes selectively."""
    source = "pytorch/torchtitan benchmarks/llama3-8b_h200_202506_trainy-whitefiber.md @1af29373"
    said = {
        "gpus": gpus,
        "tp": 1,
        "cp": 1,
        "pp": 1,
        "dp": gpus,
        "seq_len": 8192,
        "global_batch_seqs": 2 * gpus,
    }
    said |= {"precision": "float8", "notes": "FSDP+compile+Float8", "tokens_per_s_per_gpu": rate}
    return row(f"torchtitan-h200-202506-{gpus}", "8b", source, **said)


def main() -> None:
    small, seventy, eight = (1, 2, 1, 1), (4, 2, 4, 5), (4, 1, 8, 5)
    huge, larger = (8, 2, 9, 7), (8, 2, 8, 8)
    rows = [
        *nemo("24.11", "8b", "bf16", (8, 32, *small, 128, 12.91), (128, 32, *small, 2048, 13.10)),
        *nemo("24.11", "8b", "fp8", (8, 32, *small, 128, 9.67), (128, 32, *small, 2048, 9.82)),
        *nemo("24.11", "70b", "bf16", (64, 80, *seventy, 128, 14.72), (2048, 80, *seventy, 4096, 14.98)),
        *nemo("24.11", "70b", "fp8", (64, 80, *seventy, 128, 11.01), (2048, 80, *seventy, 4096, 11.39)),
    ]
    for precision, times in (
        ("bf16", (8.85, 8.75, 16.93, 17.20, 17.62)),
        ("fp8", (5.80, 5.71, 11.00, 11.24, 12.35)),
    ):
        rows += nemo(
            "24.11",
            "405b",
            precision,
            (32, 7, 8, 2, 1, 1, 126, times[0]),
            (96, 21, 8, 2, 3, 7, 126, times[1]),
            (192, 42, 8, 2, 3, 7, 252, times[2]),
            (576, 126, *huge, 252, times[3]),
            (2304, 126, *huge, 1008, times[4]),
        )
    rows += [
        *nemo("25.04", "8b", "bf16", (8, 32, *small, 128, 12.27), (128, 32, *small, 2048, 12.33)),
        *nemo("25.04", "8b", "fp8", (8, 32, *small, 128, 9.33), (128, 32, *small, 2048, 9.54)),
        *nemo("25.04", "70b", "bf16", (64, 80, *seventy, 128, 14.66), (2048, 80, *seventy, 4096, 14.66)),
        *nemo("25.04", "70b", "fp8", (64, 80, *eight, 128, 9.86), (2048, 80, *eight, 4096, 10.15)),
    ]
    for precision, times in (
        ("bf16", (5.4, 10.1, 19.62, 19.78, 19.87)),
        ("fp8", (3.53, 6.32, 12.18, 12.37, 12.56)),
    ):
        rows += nemo(
            "25.04",
            "405b",
            precision,
            (32, 8, 8, 2, 1, 1, 64, times[0]),
            (64, 30, 8, 2, 4, 8, 64, times[1]),
            (128, 62, 8, 2, 4, 8, 128, times[2]),
            (512, 126, *larger, 256, times[3]),
            (2048, 126, *larger, 1024, times[4]),
        )
    wide = (4, 2, 8, 8)
    rows += nemo("25.05", "405b", "bf16", (128, 126, *wide, 64, 9.347), (512, 126, *wide, 256, 9.508))
    rows += nemo("25.05", "405b", "fp8", (128, 126, *wide, 64, 6.131), (512, 126, *wide, 256, 6.244))
    for commit, compiled, lines in (
        ("4ffb9bdf", False, (("7b", False, 3700, 7500), ("34b", True, 700, 1550), ("70b", True, 370, 800))),
        ("ed74fd5d", True, (("7b", False, 4550, 9600), ("34b", True, 820, 1830), ("70b", True, 410, 890))),
    ):
        for model, full, a100, h100 in lines:
            rows += fms(commit, compiled, f"llama2-{model}", full, a100, h100)
    rows += [trainy(32, 10938), trainy(64, 10753)]
    write_tables("steps_fresh.json", COMMAND, {"rows": rows})


if __name__ == "__main__":
    main()
