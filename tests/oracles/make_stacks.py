"""stacks.jsonl.gz: stacks and flight records of hangs that were raised on purpose, on real ranks over gloo.

    python tests/oracles/make_stacks.py [--py-spy PATH] [NAME …]

Each case runs make_hanging.py with one fault, so the culprit is known from the fault. Every rank writes its
stacks by `faulthandler.dump_traceback_later` and its flight record; `py-spy dump` is run on every rank from
outside. A case keeps them by rank, with the versions. `ranks` are those at fault: none where both stages do
the same.
"""

import argparse
import base64
import gzip
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

HERE = Path(__file__).parent
FILE = HERE / "stacks.jsonl.gz"
CASES = {
    "skips": 2,
    "stages receive": -1,
    "data": 3,
    "order": 1,
    "saves": 0,
    "size": 1,
    "raises": 2,
    "sends": 1,
    "order of groups": 3,
    "stops": 2,
    "leaves": 1,
    "evaluates": 0,
    "asks": 0,
    "lock": 3,
    "objects": 2,
    "stages send": -1,
}
"""Fault → the rank that has it; -1: both stages differ from each other, and nobody is to blame."""


PLACES = (sys.prefix, sys.base_prefix, str(HERE))
"""Folders of the machine that made the fixture, which have no place in it."""


def unplaced(data: bytes) -> bytes:
    """The same bytes with other folders of the same length, so that a pickle stays one."""
    for place in sorted(PLACES, key=len, reverse=True):
        data = data.replace(place.encode(), ("/home/user/" + "x" * len(place)).encode()[: len(place)])
    return data


def raised(fault: str, culprit: int, spy: str) -> dict[str, dict[str, str]]:
    folder = tempfile.mkdtemp(prefix="stacks-")
    more = {"TORCH_FR_BUFFER_SIZE": "64", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    errors = [Path(folder, f"stderr_{rank}").open("w") for rank in range(4)]  # noqa: SIM115
    ranks = [
        subprocess.Popen(
            [sys.executable, str(HERE / "make_hanging.py"), str(rank), "4", folder, fault, str(culprit)],
            env=os.environ | more,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors[rank],
        )
        for rank in range(4)
    ]
    end = time.monotonic() + 60
    while time.monotonic() < end and len([*Path(folder).glob("record_rank_*")]) < sum(
        rank.poll() is None for rank in ranks
    ):
        time.sleep(0.5)
    time.sleep(1)
    found: dict[str, dict[str, str]] = {"faulthandler": {}, "py-spy": {}, "records": {}, "stderr": {}}
    for rank, process in enumerate(ranks):
        if process.poll() is None and spy:
            told = subprocess.run([spy, "dump", "--pid", str(process.pid)], capture_output=True, text=True)
            found["py-spy"][str(rank)] = unplaced(told.stdout.encode()).decode()
        process.kill()
        stack, record = Path(f"{folder}/stack_rank_{rank}.txt"), Path(f"{folder}/record_rank_{rank}")
        if stack.exists() and stack.read_text():
            found["faulthandler"][str(rank)] = unplaced(stack.read_bytes()).decode()
        if record.exists():
            found["records"][str(rank)] = base64.b64encode(unplaced(record.read_bytes())).decode()
        found["stderr"][str(rank)] = unplaced(Path(f"{folder}/stderr_{rank}").read_bytes()).decode()[-600:]
    for process, file in zip(ranks, errors, strict=True):
        process.wait()
        file.close()
    shutil.rmtree(folder)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--py-spy", default=shutil.which("py-spy") or "", dest="spy")
    args = parser.parse_args()
    kept = {}
    if args.names and FILE.exists():
        kept = {row["name"]: row for row in map(json.loads, gzip.decompress(FILE.read_bytes()).splitlines())}
    version = ""
    if args.spy:
        version = subprocess.run([args.spy, "--version"], capture_output=True, text=True).stdout.strip()
    versions = {"python": platform.python_version(), "torch": torch.__version__, "py-spy": version}
    for name in args.names or CASES:
        found = raised(name, CASES[name], args.spy)
        ranks = [CASES[name]] if CASES[name] >= 0 else []
        kept[name] = {"name": name, "ranks": ranks, "versions": versions, **found}
        print(name, {kind: len(texts) for kind, texts in found.items()}, flush=True)
        rows = [json.dumps(kept[one]) for one in CASES if one in kept]
        FILE.write_bytes(gzip.compress("\n".join(rows).encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
