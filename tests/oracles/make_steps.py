"""steps_published.json and steps_ultrascale.json: measured step times, copied with their sources.

    python tests/oracles/make_steps.py --published PATH --ultrascale PATH

The files are collections of published numbers, read by hand or from figures' data; each row names where.
Kept are all rows with a throughput or a time. `half` of a row is by the hash of its id: terms were made with
"seen" in sight, "unseen" was scored once, afterwards.
"""

import argparse
import hashlib
import json
from pathlib import Path

from fixture import write_tables

COMMAND = "python tests/oracles/make_steps.py --published PATH --ultrascale PATH"
LEFT_OUT = ("dp_derived", "peak_mem", "peak_mem_unit", "hfu_pct", "source_kind")
TIMES = ("tokens_per_s_per_gpu", "tflops_per_gpu", "step_time_s")
ULTRASCALE = ("model", "mbs", "dp", "pp", "tp", "zero", "tok_s_gpu")


def half(name: str) -> str:
    """Which half of the rows an id falls into."""
    return "unseen" if hashlib.sha256(name.encode()).digest()[0] % 2 else "seen"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--published", type=Path, required=True)
    parser.add_argument("--ultrascale", type=Path, required=True)
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


if __name__ == "__main__":
    main()
