"""Gather and reshard of a checkpoint beside `cp` of the same bytes on the same disk.

    .venv/bin/python benchmarks/checkpoint.py [--small] [--runs 5] [--cold] [--folder DIR]

A model of Llama 3.2 1B's shapes with random bfloat16 values (2.47 GB; --small: an eighth) is cut for 8
ranks, then copied, gathered to one Hugging Face checkpoint and resharded to 4 ranks of Meta's format, in
turns. Every run ends with fsync of all that it wrote; ours reads each tensor back and computes crc32 sums
besides. Each is a fresh process; its imports are not counted. Sources are in the page cache, or dropped from
it before each run with --cold. Memory is above that of the imported library. All folders are removed at the
end; 8 GB of disk are needed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

import llamapar as lp
from llamapar import checkpoint
from llamapar.checkpoint import pth, safetensors
from llamapar.describe.modelfile import config_json
from peak import Peak

JOBS: dict[str, dict[str, Any]] = {
    "gather": {"format": "hf"},
    "reshard": {"tp": 4, "padding": "megatron", "format": "meta"},
}


def make(folder: Path, small: bool) -> int:
    """A whole checkpoint of random values; its bytes."""
    model = lp.model("llama3.2-1b")
    model = model.replace(n_layers=2, vocab_size=16032) if small else model
    folder.mkdir()
    shapes = {p.hf_name: ("BF16", p.shape) for p in model.parameters()}
    file = folder / "model.safetensors"
    safetensors.lay_out_safetensors(file, shapes)
    values = np.random.default_rng(0)
    with file.open("r+b") as out:
        out.seek(min(stored.boxes[0].offset for stored in safetensors.read_safetensors(file).values()))
        left = 2 * model.n_params
        while left:
            left -= out.write(values.bytes(min(left, 2**25)))
    (folder / "config.json").write_text(json.dumps(config_json(model)))
    return 2 * model.n_params


def synced(folder: Path) -> None:
    for path in [*folder.iterdir(), folder]:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def copied(source: Path, target: Path) -> dict[str, float]:
    begun = time.perf_counter()
    subprocess.run(["cp", "-r", str(source), str(target)], check=True)
    synced(target)
    return {"seconds": time.perf_counter() - begun}


def ours(job: str, source: Path, target: Path) -> dict[str, float]:
    """The job in a process of its own."""
    command = [sys.executable, __file__, "--job", job, str(source), str(target)]
    told: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return told


def run_job(job: str, source: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory() as room:  # torch imports more at its first file
        pth.lay_out_pth(Path(room) / "warm.pth", {"a": ("F32", (1,))})
    with Peak() as peak:
        begun = time.perf_counter()
        checkpoint.reshard(source, target, **JOBS[job])
        seconds = time.perf_counter() - begun
    print(json.dumps({"seconds": seconds, "anonymous": peak.anonymous, "resident": peak.resident}))


def forget(folder: Path) -> None:
    """Drop the folder's pages from the cache."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--job", nargs=3, metavar=("JOB", "SOURCE", "TARGET"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        run_job(args.job[0], Path(args.job[1]), Path(args.job[2]))
        return
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="llamapar-bench-") as room:
        whole, cut, new = (Path(room) / name for name in ("whole", "cut", "new"))
        size = make(whole, args.small)
        checkpoint.shard(whole, cut, tp=8, padding="64*tp")
        shutil.rmtree(whole)
        calls: dict[str, Callable[[], dict[str, float]]] = {"cp": lambda: copied(cut, new)}
        calls |= {job: lambda j=job: ours(j, cut, new) for job in JOBS}  # type: ignore[misc]
        told: dict[str, list[dict[str, float]]] = {name: [] for name in calls}
        print(f"{size / 1e9:.2f} GB, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
        for _ in range(args.runs):
            for name, call in calls.items():
                if args.cold:
                    forget(cut)
                os.sync()
                told[name].append(call())
                shutil.rmtree(new)
    seconds = {name: statistics.median(run["seconds"] for run in runs) for name, runs in told.items()}
    print(f"{'':8}{'median':>9}{'least':>9}{'GB/s':>7}{'ratio to cp':>13}{'anonymous':>12}{'resident':>11}")
    for name, runs in told.items():
        least = min(run["seconds"] for run in runs)
        line = f"{name:8}{seconds[name]:8.2f}s{least:8.2f}s{size / 1e9 / seconds[name]:7.2f}"
        if name != "cp":
            ratio = seconds["cp"] / seconds[name]
            most = {key: max(run[key] for run in runs) / 1e6 for key in ("anonymous", "resident")}
            line += f"{ratio:13.2f}{most['anonymous']:9.0f} MB{most['resident']:8.0f} MB"
        print(line)
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
