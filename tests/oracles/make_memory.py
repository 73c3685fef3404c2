"""peaks_*.json and published_memory.json: measured peaks and published sizes, copied with their sources.

    python tests/oracles/make_memory.py --published PATH --ultrascale PATH

The two files are collections of published numbers, read by hand or from figures' data; each row names where.
Kept are rows with a peak of memory and with dims that fit (Ultra-Scale Playbook), and tables of sizes.
"""

import argparse
import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
COMMAND = "python tests/oracles/make_memory.py --published PATH --ultrascale PATH"
KEPT = ("id", "model", "dims", "gpus", "tp", "cp", "pp", "vp", "dp", "sharding", "seq_len", "micro_batch")
KEPT += ("global_batch_seqs", "precision", "recompute", "schedule", "peak_mem", "peak_mem_unit", "source")
PRESETS = {"8B": "llama3.1-8b", "70B": "llama3.1-70b", "405B": "llama3.1-405b", "405B kv8": "llama3.1-405b"}
PRESETS |= {"405B kv16": "llama3.1-405b-mp16", "1B": "llama3.2-1b", "3B": "llama3.2-3b"}
PRESETS |= {"Llama2-7B": "llama2-7b", "Llama2-13B": "llama2-13b", "Llama2-70B": "llama2-70b"}
SHARDS = [  # (preset, format, name in the table)
    ("llama3-8b", "bf16", "Llama-3-8B"),
    ("llama3-70b", "bf16", "Llama-3-70B"),
    ("llama3.1-405b", "bf16", "Llama-3.1-405B mp8 (kv=8)"),
    ("llama3.1-405b-mp16", "bf16", "Llama-3.1-405B mp16 (kv=16)"),
    ("llama3.1-405b", "fp8", "Llama-3.1-405B fp8 mp8"),
]


def write(name: str, tables: dict[str, Any]) -> None:
    """One JSON file, a row a line."""
    parts = [f'"made_by": {json.dumps({"command": COMMAND})}']
    for key, value in tables.items():
        if isinstance(value, list):
            lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in value)
            parts.append(f'"{key}": [\n{lines}\n]')
        else:
            parts.append(f'"{key}": {json.dumps(value, separators=(",", ":"))}')
    (HERE / name).write_text("{" + ",\n".join(parts) + "}\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--published", type=Path, required=True)
    parser.add_argument("--ultrascale", type=Path, required=True)
    args = parser.parse_args()
    published, ultrascale = (json.loads(p.read_text()) for p in (args.published, args.ultrascale))

    names = ("source", "seq_len", "model_dims_inferred", "gpu_memory_note")
    row_names = ("model", "mbs", "grad_acc", "gbs_seqs", "dp", "pp", "tp", "zero", "gpu_mem_gb", "fits_dims")
    rows = [{k: r[k] for k in row_names} for r in ultrascale["rows"] if r["fits_dims"] is True]
    measured = [{k: r.get(k) for k in KEPT} for r in published["measured"] if r["peak_mem"]]
    write("peaks_ultrascale.json", {k: ultrascale[k] for k in names} | {"rows": rows})
    write("peaks_published.json", {"measured": measured})

    files = [
        {"model": PRESETS[k], "format": "q40", "bytes": n}
        for k, n in published["distributed_llama"]["computed_bytes"].items()
    ]
    sizes = {p["model"].split(",")[0]: p["hf_index_total_size"] for p in published["parameters"]}
    files += [
        {"model": preset, "format": "bf16", "bytes": sizes[name]}
        for preset, name in (
            ("llama3.1-8b", "Llama-3/3.1-8B"),
            ("llama3.1-70b", "Llama-3/3.1-70B"),
            ("llama3.1-405b", "Llama-3.1-405B"),
        )
    ]
    tables = {s["model"]: s for s in published["meta_checkpoint_shards"] if "model" in s}
    shards = [
        {
            "model": preset,
            "format": form,
            "mp": tables[name]["mp"],
            "tensor_bytes": tables[name].get("tensor_bytes_per_shard")
            or tables[name]["tensor_bytes_per_shard_computed"],
            "file_bytes": tables[name].get("file_bytes"),
            "source": tables[name].get("source", "llama-models sku_list.py; published file sizes"),
        }
        for preset, form, name in SHARDS
    ]
    cache = published["kv_cache"]["hf_blog_llama31_table_gb"] | {"405B kv8": [0.492, 7.69, 61.5]}
    cache["405B kv16"] = cache.pop("405B")  # the blog's row is the 16-KV-head model's
    caches = [
        {"model": PRESETS[name], "tokens": tokens, "gib": gib, "source": "Hugging Face blog llama31"}
        for name, row in cache.items()
        for tokens, gib in zip((1024, 16000, 128000), row, strict=True)
    ]
    closed = published["analytic_reference"]["values"]
    write(
        "published_memory.json",
        {"files": files, "meta_shards": shards, "kv_cache": caches, "ultrascale_closed_forms": closed},
    )


if __name__ == "__main__":
    main()
