"""steps_published.json, steps_ultrascale.json, steps_foundry.json: measured steps, copied with their sources.

    python tests/oracles/make_steps.py --published PATH --ultrascale PATH --foundry PATH

The files are collections of published numbers, read by hand or from figures' data; each row names where.
Kept are all rows with a throughput or a time. `half` of a row is by the hash of its id: terms were made with
"seen" in sight, "unseen" was scored once, afterwards. --foundry is a clone of mosaicml/llm-foundry, whose
rows on H100 were predicted when every term and constant stood.
"""

import argparse
import hashlib
import json
import subprocess
from pathlib import Path

from fixture import write_tables

COMMAND = "python tests/oracles/make_steps.py --published PATH --ultrascale PATH --foundry PATH"
LEFT_OUT = ("dp_derived", "peak_mem", "peak_mem_unit", "hfu_pct", "source_kind")
TIMES = ("tokens_per_s_per_gpu", "tflops_per_gpu", "step_time_s")
FOUNDRY = ("8c8dd48f72168c5d51e2f7b151595892a8fba43d", "scripts/train/benchmarking/README.md")
MPT = {  # scripts/train/yamls/pretrain of the same commit: d_model, n_layers, n_heads
    "760m": (1536, 24, 12),
    "1b": (2048, 24, 16),
    "3b": (2560, 32, 20),
    "7b": (4096, 32, 32),
    "13b": (5120, 40, 40),
    "30b": (7168, 48, 56),
    "70b": (8192, 80, 64),
}
ULTRASCALE = ("model", "mbs", "dp", "pp", "tp", "zero", "tok_s_gpu")


def half(name: str) -> str:
    """Which half of the rows an id falls into."""
    return "unseen" if hashlib.sha256(name.encode()).digest()[0] % 2 else "seen"


def foundry(path: Path) -> list[list[object]]:
    """Rows on H100 of 80 GB, one of the models of MPT."""
    text = subprocess.run(
        ["git", "-C", str(path), "show", ":".join(FOUNDRY)], check=True, capture_output=True, text=True
    ).stdout
    rows: list[list[object]] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 20 and cells[0] in MPT and cells[3] == "h100_80gb":
            numbers = [int(cells[place]) for place in (1, 2, 7, 8)]
            precision = "float8" if "fp8" in cells[14] else "bfloat16"
            rows.append([cells[0], *numbers, cells[17] == "True", precision, int(cells[12])])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--published", type=Path, required=True)
    parser.add_argument("--ultrascale", type=Path, required=True)
    parser.add_argument("--foundry", type=Path, required=True)
    args = parser.parse_args()
    published, ultrascale = (json.loads(p.read_text()) for p in (args.published, args.ultrascale))
    rows = [
        {k: v for k, v in row.items() if v is not None and k not in LEFT_OUT} | {"half": half(row["id"])}
        for row in published["measured"]
        if any(row[name] is not None for name in TIMES)
    ]
    write_tables("steps_published.json", COMMAND, {"rows": rows})
    names = ("source", "hardware", "seq_len", "gbs", "mfu_convention")
    head = {name: ultrascale[name] for name in names} | {"dims": ultrascale["model_dims_inferred"]}
    points = []
    for row in ultrascale["rows"]:
        if row["fits_dims"] is not False:
            point = [row[name] for name in ULTRASCALE]
            points.append([*point, half("/".join(map(str, point[:-1])))])
    write_tables("steps_ultrascale.json", COMMAND, head | {"columns": [*ULTRASCALE, "half"], "rows": points})
    columns = ["model", "seq_len", "gpus", "micro_batch", "accumulated", "full_recomputation", "precision"]
    source = f"mosaicml/llm-foundry, {FOUNDRY[1]} at {FOUNDRY[0]}"
    found = {"source": source, "dims": MPT, "columns": [*columns, "tokens_per_s_per_gpu"]}
    write_tables("steps_foundry.json", COMMAND, found | {"rows": foundry(args.foundry)})


if __name__ == "__main__":
    main()
