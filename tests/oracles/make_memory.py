"""peaks_*.json and published_memory.json: measured peaks and published sizes, copied with their sources.

    python tests/oracles/make_memory.py --published PATH --ultrascale PATH --measured PATH

The files are collections of published numbers, read by hand or from figures' data; each row names where.
Kept are all rows with a peak of memory, and tables of sizes. `half` of a measured row is by the hash of its
configuration: the account was made with "first" in sight, "second" was scored afterwards.
"""

import argparse
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from fixture import write_tables

COMMAND = "python tests/oracles/make_memory.py --published PATH --ultrascale PATH --measured PATH"
KEPT = ("id", "model", "dims", "gpus", "tp", "cp", "pp", "vp", "dp", "sharding", "seq_len", "micro_batch")
KEPT += ("global_batch_seqs", "precision", "recompute", "schedule", "peak_mem", "peak_mem_unit", "source")
DIMS = ("hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "vocab", "tied", "qk_norm", "mlp")
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


def measured_row(row: dict[str, Any]) -> dict[str, Any]:
    """A measured row in the words of the others, and what it says of its trainer, counter and loss."""
    dims, counter = row["model"], row["memory_counter"]
    zero = row["zero"]
    told = row["recompute"] or " ".join(w for w in row["unknown"] if w.startswith("recompute ("))
    open_counter = "vs reserved" in counter or "or reserved" in counter
    named = [word for word in ("reserved", "device", "allocat", "whole number", "active") if word in counter]
    named = [] if open_counter else named
    kinds = {"allocat": "allocated", "whole number": "device", "active": "allocated"}
    digest = hashlib.sha256(row["config_key"].encode()).hexdigest()
    notes = f"{row.get('notes')} {counter} {row['recompute']}"
    virtual = re.search(r"vpp (\d+)", notes)
    graph = re.search("graph_trainer|whole-graph", notes)
    visible = re.search(r"([0-9.]+)(?:-[0-9.]+)? GiB visible", row["gpu_type"])
    kept = (
        "id",
        "gpus",
        "tp",
        "cp",
        "pp",
        "seq_len",
        "micro_batch",
        "compile",
        "source",
        "doubtful",
        "unknown",
    )
    chunked = "chunked" in str(row.get("loss")) or "liger" in row["id"]
    fused = (
        "in_place" if "foak" in row["id"] else None
    )  # fms-acceleration's fast_loss, on HF's float32 logits
    loss = "chunked" if chunked else fused
    made = {name: row[name] for name in kept} | {
        "model": dims["name"],
        "dims": {name: dims.get(name) for name in DIMS if dims.get(name) is not None},
        "vp": row.get("vpp") or (int(virtual[1]) if virtual else None),
        "dp": (row["dp_replicate"] or 1) * (row["dp_shard"] or 1),
        "dp_replicate": row["dp_replicate"] or 1,
        "zero": zero if isinstance(zero, int) else 3 if "FSDP" in str(zero) else 0,
        "global_batch_seqs": row["global_batch"],
        "recompute": told or None,
        "precision": "fp32" if row["dtype"] == "fp32" else "autocast" if "AMP" in str(row["dtype"]) else None,
        "master_weights": "pure bf16" not in str(row["dtype"]),
        "float8": row["float8"] or None,
        "loss": loss,
        "trainer": f"{row['framework']}{' (whole-graph)' if graph else ''}",
        "counter": kinds.get(named[0], named[0]) if named else None,
        "counted": counter,
        "hardware": row["gpu_type"],
        "gpu_gib": float(visible[1]) if visible else None,
        "peak_mem": row["memory_gib"],
        "peak_mem_unit": "GiB",
        "half": "second" if int(digest, 16) % 2 else "first",
    }
    return {name: value for name, value in made.items() if value is not None}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--published", type=Path, required=True)
    parser.add_argument("--ultrascale", type=Path, required=True)
    parser.add_argument("--measured", type=Path, required=True)
    args = parser.parse_args()
    published, ultrascale = (json.loads(p.read_text()) for p in (args.published, args.ultrascale))

    names = ("source", "seq_len", "model_dims_inferred", "gpu_memory_note")
    row_names = ("model", "mbs", "grad_acc", "gbs_seqs", "dp", "pp", "tp", "zero", "gpu_mem_gb", "fits_dims")
    dims = ultrascale["model_dims_inferred"]
    dims["70B GQA"] = dims["80B"] | {"kv_heads": 8}  # what the rows whose dims do not fit imply: its caveats
    rows = [{k: r[k] for k in row_names} for r in ultrascale["rows"]]
    rows = [r | {"model": "70B GQA"} if r["fits_dims"] is False else r for r in rows]
    measured = [{k: r.get(k) for k in KEPT} for r in published["measured"] if r["peak_mem"]]
    write_tables("peaks_ultrascale.json", COMMAND, {k: ultrascale[k] for k in names} | {"rows": rows})
    write_tables("peaks_published.json", COMMAND, {"measured": measured})
    lines = args.measured.read_text().splitlines()
    write_tables("peaks_measured.json", COMMAND, {"rows": [measured_row(json.loads(line)) for line in lines]})

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
    write_tables(
        "published_memory.json",
        COMMAND,
        {"files": files, "meta_shards": shards, "kv_cache": caches, "ultrascale_closed_forms": closed},
    )


if __name__ == "__main__":
    main()
