"""Flight records for tests: the genuine ones of tests/oracles, some in NCCL's form, and of many ranks."""

import base64
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llamapar.describe.layout import Layout

ORACLES = Path(__file__).parent / "oracles"


def hangs() -> list[dict[str, Any]]:
    """The cases of make_flights.py with what is known of each."""
    return _rows("flights.jsonl.gz")


def positions() -> list[dict[str, Any]]:
    """Those of make_positions.py, with the layer and the part before which a rank stopped."""
    return [row | {"form": "pickle"} for row in _rows("positions.jsonl.gz")]


def _rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress((ORACLES / name).read_bytes()).splitlines()]


def files(row: dict[str, Any]) -> list[tuple[str, bytes]]:
    as_bytes = base64.b64decode if row["form"] == "pickle" else str.encode
    return [(f"rank_{rank}", as_bytes(text)) for rank, text in row["dumps"].items()]


def entry(
    number: int, group: tuple[str, str], op: str, seq: int, size: list[int], **more: Any
) -> dict[str, Any]:
    """An entry with NCCL's fields (torch 2.13, FlightRecorder.hpp), done unless said."""
    return {
        "record_id": number,
        "pg_id": 1,
        "process_group": list(group),
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": f"nccl:{op}",
        "is_p2p": False,
        "timeout_ms": 600000,
        "input_sizes": [size],
        "output_sizes": [size],
        "input_dtypes": ["BFloat16"],
        "output_dtypes": ["BFloat16"],
        "state": "completed",
        "retired": True,
        "time_created_ns": 10**9 + 10**6 * number,
        **more,
    }


def dump(
    entries: list[dict[str, Any]], groups: dict[str, list[int]], version: str = "2.10"
) -> dict[str, Any]:
    config = {name: {"name": name, "desc": "", "ranks": str(ranks)} for name, ranks in groups.items()}
    return {"version": version, "pg_config": config, "pg_status": {}, "entries": entries}


OPEN = {"state": "started", "retired": False}


def multiplied(
    ranks: int, entries: int, culprit: int, fault: str = "late"
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Dumps of a step of tp 8 and dp, in NCCL's form: layers of all-gather and all-reduce over tp, then one
    all-reduce over dp. The culprit never comes to its last all-gather ("late"), or skips it ("skip")."""
    layout = Layout(tp=8, dp=ranks // 8)
    first = 1000  # calls that the ring buffer has lost
    tail = 2  # calls of the ranks that wait: none is after the hang
    for rank in range(ranks):
        tp, dp = layout.group("tp", rank), layout.group("dp", rank)
        groups = {f"tp{tp[0]}": list(tp), f"dp{dp[0]}": list(dp)}
        rows = []
        count = {"tp": first, "dp": first // 8}
        for i in range(entries):
            axis = "dp" if i % 9 == 8 else "tp"
            group = (f"{axis}{(tp if axis == 'tp' else dp)[0]}", f"mesh_{axis}")
            count[axis] += 1
            op = "all_reduce" if axis == "dp" or i % 2 else "all_gather"
            size = [1, 1024, 4096] if op == "all_gather" else [1, 8192, 4096 + i % 7]
            rows.append(entry(first + i, group, op, count[axis], size))
        last = max(i for i in range(entries - tail) if i % 9 == 4)
        if rank == culprit:
            rows = rows[:last] if fault == "late" else [*rows[:last], _again(rows[last + 1], count=-1) | OPEN]
        elif tp[0] == layout.group("tp", culprit)[0]:
            rows = rows[: last + 1]
            rows[-1] |= OPEN
        else:  # the others come as far as the all-reduce over dp
            end = next(i for i in range(last, entries + 9) if i % 9 == 8)
            rows = rows[: end + 1]
            if rank % 8 in [r % 8 for r in tp] and end < entries:
                rows[-1] |= OPEN
        yield rank, dump(rows, groups)


def _again(row: dict[str, Any], count: int) -> dict[str, Any]:
    return row | {"collective_seq_id": row["collective_seq_id"] + count}
