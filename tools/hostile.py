"""Throw hostile inputs at the `llamapar` command for a while, each from a seed that makes it again.

    python tools/hostile.py --minutes 60 --seed 1

Headers, pickles, archives, configs and logs are damaged at random; commands are killed, interrupted, and run
into folders where something was planted. Each must end within a minute with status 0, 1, 2 or what ended it,
print no traceback and little else, leave no process, and leave every file alone that was there before. What
does not is told with its seed, and the status is 1 then; `--only SEED` does one again.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

PROJECT = Path(__file__).resolve().parent.parent
SECONDS = 60.0  # within which a command has to end
MOST = 2**20  # bytes that it may print
MODEL: dict[str, float] = {"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2}
MODEL |= {"vocab_size": 96, "multiple_of": 32, "norm_eps": 1e-5, "rope_theta": 10000.0}

MAKE = """
import json, sys
from pathlib import Path
import torch
import llamapar as lp
from llamapar import checkpoint
from llamapar.describe.modelfile import config_json
from safetensors.torch import save_file
room = Path(sys.argv[1])
model = lp.ModelConfig.from_meta(json.loads(sys.argv[2]))
(room / "hf").mkdir()
save_file({p.hf_name: torch.randn(p.shape) for p in model.parameters()}, room / "hf" / "model.safetensors")
(room / "hf" / "config.json").write_text(json.dumps(config_json(model)))
checkpoint.shard(room / "hf", room / "meta", tp=2, format="meta")
checkpoint.shard(room / "hf", room / "cut", tp=2, pp=2)
"""

Case = Callable[[random.Random, Path, Path], list[str]]
"""(random, folder of the case, folder of good checkpoints) → the words of a command."""


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Bytes flipped, cut, repeated or put in, near the start more often than elsewhere."""
    found = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(max(1, min(len(found), rng.choice([16, 300, 5000, len(found) or 1]))))
        what = rng.randrange(5)
        if what == 0 and found:
            found[at % len(found)] = rng.randrange(256)
        elif what == 1:
            del found[at:]
        elif what == 2:
            found[at:at] = rng.randbytes(rng.randint(1, 64))
        elif what == 3:
            found[at:at] = found[at : at + 200] * rng.randint(1, 50)
        else:
            number = rng.choice([0, 1, 2**31, 2**63, 2**64 - 1, len(found)])
            found[at : at + 8] = struct.pack("<Q", number)
    return bytes(found)


def looking(rng: random.Random, folder: Path) -> list[str]:
    return ["checkpoint", rng.choice(["inspect", "inspect", "verify"]), str(folder)]


def damage(rng: random.Random, room: Path, good: Path) -> list[str]:
    """A checkpoint of which a file or two are damaged, looked into or made into another one."""
    old = shutil.copytree(good / rng.choice(["hf", "meta", "cut"]), room / "old")
    for file in rng.sample(sorted(old.iterdir()), rng.randint(1, 2)):
        file.write_bytes(damaged(file.read_bytes(), rng))
    making = ["checkpoint", rng.choice(["gather", "reshard"]), str(old), str(room / "new")]
    return rng.choice([looking(rng, old), making])


def header(rng: random.Random, room: Path, good: Path) -> list[str]:
    """A safetensors header of odd names, shapes and places."""
    names = ["model.norm.weight", "x" * rng.choice([1, 10**3, 10**6]), "module." * 10**4, "a\nb\x1b[2J", ""]
    sizes = [0, 1, 64, 2**31, 2**63, -1, 1.5, "8", None, [1]]
    entries: dict[str, object] = {
        rng.choice(names) + str(i) * rng.randint(0, 1): {
            "dtype": rng.choice(["F32", "BF16", "F8_E4M3", "?", 7]),
            "shape": [rng.choice(sizes) for _ in range(rng.randint(0, 12))],
            "data_offsets": [rng.choice(sizes), rng.choice(sizes)],
        }
        for i in range(rng.choice([1, 5, 300]))
    }
    if rng.random() < 0.3:
        empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
        entries = {f"model.layers.{i}.x.weight": empty for i in range(rng.choice([100, 20_000]))}
    text = json.dumps(entries).encode()
    old = room / "old"
    old.mkdir()
    (old / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    if rng.random() < 0.5:
        shutil.copy(good / "hf" / "config.json", old)
    return [*looking(rng, old), *rng.choice([[], ["--model", "llama3.2-1b"]])]


def pickled(rng: random.Random, room: Path, good: Path) -> list[str]:
    """A pickle of random opcodes in the place of .metadata."""
    codes = b"N]}(t0)" + b"\x85\x86\x87\x88\x89\x94" + bytes(rng.randrange(256) for _ in range(4))
    body = bytes(rng.choices(codes, k=rng.choice([10, 1000, 10**6])))
    old = room / "old"
    old.mkdir()
    (old / ".metadata").write_bytes(b"\x80\x02" + body + rng.choice([b".", b""]))
    return looking(rng, old)


def config(rng: random.Random, room: Path, good: Path) -> list[str]:
    """A config file with odd values, or damaged."""
    whole = json.loads((good / "hf" / "config.json").read_text())
    odd = [0, -1, 2**80, 1e400, "8", None, [], {}, True, "x" * 10**5]
    for name in rng.sample(sorted(whole), 3):
        whole[name] = rng.choice(odd)
    text = json.dumps(whole).encode()
    file = room / "config.json"
    file.write_bytes(rng.choice([text, damaged(text, rng), b"[" * 10**5]))
    tp = str(rng.choice([1, 3, 8, 0, 10**9]))
    return rng.choice([["model", str(file)], ["check", "--model", str(file), "--tp", tp]])


def log(rng: random.Random, room: Path, good: Path) -> list[str]:
    """A log that is damaged, endless in one line, or no text."""
    text = (PROJECT / "tests" / "oracles" / "error-cases.jsonl").read_bytes()
    at = rng.randrange(len(text))
    piece = text[at : at + rng.choice([200, 5000, 10**5])]
    file = room / "train.log"
    file.write_bytes(rng.choice([damaged(piece, rng), rng.randbytes(10**5), b"[" * 10**6, piece * 20]))
    return ["explain", "--file", rng.choice([str(file), str(file), "/dev/zero", str(room)])]


def planted(rng: random.Random, room: Path, good: Path) -> list[str]:
    """Links where the new checkpoint would be made, and targets where none can be."""
    beside, kept = room / "new.0.partial", room / "kept"
    kept.mkdir()
    (kept / "precious").write_text("mine")
    what = rng.randrange(4)
    if what == 0:
        beside.symlink_to(kept)
    elif what == 1:
        (beside / "new").mkdir(parents=True)
        for name in ("model.safetensors", "config.json", "llamapar.json"):
            (beside / "new" / name).symlink_to(kept / "precious")
    elif what == 2:
        (room / "new").symlink_to(kept)
    target = room / rng.choice(["new", "new", "kept", "kept/precious/new", f"{'x' * 300}"])
    return ["checkpoint", "gather", str(good / rng.choice(["meta", "cut"])), str(target)]


def run(rng: random.Random, room: Path, good: Path) -> list[str]:
    """A run on real ranks that is soon killed or interrupted."""
    program = rng.choice(["attention", "mlp", "block", "nonsense"])
    return ["run", program, "--model", "tiny", "--engine", "processes", "--device", "cpu", "--tp", "2"]


CASES: tuple[Case, ...] = (damage, damage, header, header, pickled, config, log, planted, run)


def sums(folder: Path) -> dict[str, str]:
    """Every file and link below a folder → the sum of its bytes, or where it leads."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path)] = os.readlink(path)
        elif path.is_file():
            found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def tried(seed: int, good: Path) -> tuple[str, str]:
    """(what was done, what was wrong with it or "") for one seed."""
    rng = random.Random(seed)
    case = rng.choice(CASES)
    with tempfile.TemporaryDirectory(prefix="hostile-") as name:
        room = Path(name)
        words = case(rng, room, good)
        before = sums(room) | sums(good)
        stop = rng.choice([None, None, signal.SIGINT, signal.SIGKILL]) if case in (run, damage) else None
        after = rng.uniform(0.2, 8.0) if stop else SECONDS
        with (room / "out").open("wb") as out, (room / "err").open("wb") as err:
            command = subprocess.Popen(
                [sys.executable, "-m", "llamapar", *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=PROJECT,
                start_new_session=True,
                env=os.environ | {"LLAMAPAR_HOSTILE": str(seed)},
            )
            wrong = ended(command, stop, after)
        told = (room / "out").read_bytes() + (room / "err").read_bytes()
        now = sums(room) | sums(good)
        if changed := [path for path in before if now.get(path) != before[path] and not _may(path)]:
            wrong = wrong or f"changed {changed}"
        if b"Traceback (most recent" in told and stop is None and case is not log:
            wrong = wrong or f"a traceback: {told[-500:]!r}"
        if len(told) > MOST:
            wrong = wrong or f"{len(told):,} bytes were printed"
        if left := orphans(seed):
            wrong = wrong or f"left over: {left}"
    return f"{case.__name__}: {' '.join(words)[:100]}", wrong


def _may(path: str) -> bool:
    """Whether a file is one that a command may write: the unfinished checkpoint's own."""
    return re.search(r"/new\.[^/]+\.partial/", path) is not None and not Path(path).is_symlink()


def ended(command: subprocess.Popen[bytes], stop: signal.Signals | None, after: float) -> str:
    """What was wrong with how it ended, or ""."""
    try:
        status = command.wait(after)
    except subprocess.TimeoutExpired:
        if stop is None:
            command.kill()
            command.wait()
            return f"no end within {SECONDS:g} s"
        command.send_signal(stop)
        try:
            status = command.wait(SECONDS)
        except subprocess.TimeoutExpired:
            command.kill()
            command.wait()
            return f"no end after {stop.name}"
    allowed = {0, 1, 2} | ({130, -stop} if stop else set())
    return "" if status in allowed else f"status {status}"


def orphans(seed: int, within: float = 10.0) -> list[str]:
    """Processes that the command of this seed started and that still run after some seconds."""
    end, left = time.monotonic() + within, ["?"]
    while left and time.monotonic() < end:
        left = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get("LLAMAPAR_HOSTILE") == str(seed):
                    left.append(f"{process.pid} {process.name()}")
        time.sleep(0.1 if left else 0)
    return left


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("--minutes", type=float, default=60.0)
    words.add_argument("--seed", type=int, default=1, help="the first one; each try takes the next")
    words.add_argument("--only", type=int, help="one seed alone")
    given = words.parse_args()
    seed, end = given.seed, time.monotonic() + 60 * given.minutes
    tries, faults = 0, 0
    with tempfile.TemporaryDirectory(prefix="hostile-good-") as name:
        good = Path(name)
        subprocess.run(
            [sys.executable, "-c", MAKE, name, json.dumps(MODEL)], check=True, cwd=PROJECT, timeout=600
        )
        if given.only is not None:
            seed, end = given.only, 0.0
        while tries == 0 or time.monotonic() < end:
            what, wrong = tried(seed, good)
            tries += 1
            if wrong:
                faults += 1
                print(f"seed {seed}: {what}: {wrong}", flush=True)
            seed += 1
    print(f"{tries} tries, seeds {seed - tries} to {seed - 1}: {faults} went wrong")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
