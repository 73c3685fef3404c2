"""peaks_gathered.json: measured peaks from public repositories, each with its file and commit.

    python oracles/make_gathered.py --clones FOLDER

FOLDER holds clones named "owner+name" of the repositories in SOURCES. `seq_len` of a fine-tuning run is its
tokens over its samples a second; what a script sets for all of its runs is said beside each reader.
"""

import argparse
import csv
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fixture import FIXTURES

FMS = ("foundation-model-stack/fms-acceleration", "876e2ed6fc4e966785e3f4315f5ee3cdf8e3d097")
PRIME = ("PrimeIntellect-ai/prime-rl", "559b44772e471d1538537b8805cc77f3824a5e64")
TITAN = ("pytorch/torchtitan", "b5bcd76c66d0acb1a08b176d9639425bc55e0b2a")
SOURCES = (FMS, PRIME, TITAN)

_LLAMA = {"hidden": 4096, "layers": 32, "heads": 32, "kv_heads": 8, "ffn": 14336}
DIMS = {
    "meta-llama/Meta-Llama-3-8B": _LLAMA | {"vocab": 128256},
    "mistralai/Mistral-7B-v0.1": _LLAMA | {"vocab": 32000},
    "ibm/PowerLM-3b": {"hidden": 2304, "layers": 40, "heads": 36, "kv_heads": 36, "ffn": 9216, "vocab": 49152}
    | {"tied": True},
    "Qwen/Qwen3-0.6B": {"hidden": 1024, "layers": 28, "heads": 16, "kv_heads": 8, "head_dim": 128}
    | {"ffn": 3072, "vocab": 151936, "tied": True, "qk_norm": True},
    "Qwen/Qwen3-4B-Instruct-2507": {"hidden": 2560, "layers": 36, "heads": 32, "kv_heads": 8}
    | {"head_dim": 128, "ffn": 9728, "vocab": 151936, "tied": True, "qk_norm": True},
}
SEEN = {("liger", 2, 4, "foak-fast-kernels-liger", "meta-llama/Meta-Llama-3-8B")} | {
    ("liger", gpus, batch, kernels, "mistralai/Mistral-7B-v0.1")
    for gpus, batch, kernels in (
        (4, 16, "foak-fast-kernels"),
        (4, 16, "foak-fast-kernels-liger"),
        (1, 8, "foak-fast-kernels"),
        (1, 16, "foak-fast-kernels-liger"),
    )
}
"""Rows that peaks_measured.json has already (with Mistral on two GPUs, two sequences each, in bfloat16)."""


def git(clones: Path, source: tuple[str, str], *words: str) -> str:
    """What git says of a source."""
    folder = clones / source[0].replace("/", "+")
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def text(clones: Path, source: tuple[str, str], path: str) -> str:
    """A file at its source's commit."""
    return git(clones, source, "show", f"{source[1]}:{path}")


def row(
    name: str, model: str, gpus: int, peak: float, source: tuple[str, str], path: str, **said: Any
) -> dict[str, Any]:
    """A row of a run over DP alone; peak in GiB."""
    found = {"id": name, "model": model, "dims": DIMS.get(model, _LLAMA | {"vocab": 128256}), "gpus": gpus}
    found |= {"tp": 1, "cp": 1, "pp": 1, "dp": gpus} | said | {"peak_mem": peak, "peak_mem_unit": "GiB"}
    return found | {"source": {"repo": source[0], "path": path, "commit": source[1]}}


def fine_tuned(clones: Path) -> Iterator[dict[str, Any]]:
    """Full fine-tuning by Hugging Face's Trainer: FSDP where there are several GPUs (accelerate.yaml)."""
    for name in ("a100_80gb", "a100_80gb_granite", "a100_80gb_liger"):
        path = f"scripts/benchmarks/refs/{name}.csv"
        for n, run in enumerate(csv.DictReader(text(clones, FMS, path).splitlines())):
            model, peak = run["model_name_or_path"], run["mem_peak_torch_mem_alloc_in_bytes"]
            if run["peft_method"] or not peak or model not in DIMS:
                continue
            gpus, batch = int(run["num_gpus"]), int(run["per_device_train_batch_size"])
            kernels = run["framework_config"]
            if (name.rpartition("_")[2], gpus, batch, kernels, model) in SEEN:
                continue
            if (gpus, batch, kernels, name) == (2, 2, "none", "a100_80gb"):
                continue
            rate = float(run["train_tokens_per_second"]) / float(run["train_samples_per_second"])
            said = {"zero": 3 if gpus > 1 else 0, "seq_len": round(rate * gpus / 64) * 64}
            said |= {"micro_batch": batch, "global_batch_seqs": batch * gpus, "recompute": "full"}
            # FSDP upcasts what it shards under mixed precision
            said |= {"master_weights": gpus > 1 and run["bf16"] == "True"}
            losses = {"foak-fast-kernels": "in_place", "foak-fast-kernels-liger": "chunked"}
            said |= {"loss": losses.get(kernels), "trainer": "HF Trainer", "counter": "allocated"}
            label = f"{name} line {n + 2}: {model.partition('/')[2]} {gpus} GPUs mb {batch} {kernels}"
            gib = float(peak) / 2**30
            yield row(label, model, gpus, gib, FMS, path, **said, hardware="A100 80GB")


def prime(clones: Path) -> Iterator[dict[str, Any]]:
    """prime-rl's SFT baselines of dense models: compiled, two micro-batches of one sequence."""
    for path in git(clones, PRIME, "ls-tree", "--name-only", PRIME[1], "benchmarks/baselines/").splitlines():
        if "-sft-full-" not in path:
            continue
        found = json.loads(text(clones, PRIME, path))
        run, peak = found["config"], found["metrics"]["peak_memory"]["gib"]
        seen = (run["model_name"], run["seq_len"]) == ("Qwen/Qwen3-0.6B", 8192)
        seen = (seen and "H100" in run["device_name"]) or run["seq_len"] == 65536
        if run["model_name"] not in DIMS or not peak or seen:
            continue
        gpus = run["num_gpus"]
        said = {"zero": 3, "seq_len": run["seq_len"], "micro_batch": 1}
        said |= {"global_batch_seqs": run["micro_batches"] * gpus, "recompute": "full", "compile": True}
        said |= {"trainer": "prime-rl SFT trainer", "counter": "reserved", "hardware": run["device_name"]}
        yield row(path.rpartition("/")[2], run["model_name"], gpus, peak, PRIME, path, **said)


def titan(clones: Path) -> Iterator[dict[str, Any]]:
    """torchtitan on H200s: compiled, float8 all-gather; sequence and recomputation of llama3_8b.toml."""
    path = "benchmarks/llama3-8b_h200_202506_trainy-whitefiber.md"
    for nodes, gib in re.findall(r"\| (\d+) \| \d+ \| ([0-9.]+) \|", text(clones, TITAN, path)):
        gpus = 8 * int(nodes)
        said = {"zero": 3, "seq_len": 8192, "micro_batch": 2, "global_batch_seqs": 2 * gpus}
        said |= {"recompute": "selective", "compile": True, "float8": "tensorwise, float8 all-gather"}
        said |= {"trainer": "torchtitan", "counter": "reserved", "hardware": "H200 141GB"}
        yield row(f"torchtitan H200 {gpus} GPUs", "Llama 3.1 8B", gpus, float(gib), TITAN, path, **said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clones", type=Path, required=True)
    clones = parser.parse_args().clones
    rows = [*fine_tuned(clones), *prime(clones), *titan(clones)]
    rows = [{k: v for k, v in row.items() if v is not None} for row in rows]
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    made = json.dumps({"command": "python oracles/make_gathered.py --clones FOLDER"})
    (FIXTURES / "peaks_gathered.json").write_text(f'{{"made_by": {made},\n"rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
