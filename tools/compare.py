"""How fast this checkout is beside another one of the project, in interleaved runs.

    .venv/bin/python tools/compare.py ../before [--rounds 9] [--only check,explain]

Both are measured by the public names alone, each time in a fresh process of that checkout's own `.venv`
(this one's where it has none), the two taking turns, so that the machine's noise meets both alike. Printed
are the medians and their ratio; the least of the times stands beside them, for a noisy machine moves medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent

CLOCK = """
import sys, time, statistics
sys.path.insert(0, {root!r})
def median(call, times=1, batches=9):
    call()
    found = []
    for _ in range(batches):
        begun = time.perf_counter()
        for _ in range(times):
            call()
        found.append((time.perf_counter() - begun) / times)
    return statistics.median(found)
"""

SHAPE = "dict(dim=256, n_layers=2, n_heads=8, n_kv_heads=8, ffn_dim=512, vocab_size=1024)"

MEASURED = {
    "import llamapar": "begun = time.perf_counter(); import llamapar; print(time.perf_counter() - begun)",
    "check, 405B on 16,384 ranks": """
import llamapar as lp
layout = lp.Layout(tp=8, cp=16, pp=16, dp=8)
print(median(lambda: lp.check("llama3.1-405b", layout, gpus=16384, seq_len=131072), 50))""",
    "check with fixes": """
import llamapar as lp
layout = lp.Layout(tp=16, cp=16, pp=16, dp=4)
print(median(lambda: str(lp.check("llama3.1-405b", layout, gpus=16384, seq_len=131072)), 3))""",
    "first picture, in the kernel": """
begun = time.perf_counter()
import llamapar as lp
lp.explorer("llama3.1-405b").snapshot()
print(time.perf_counter() - begun)""",
    "slider move, in the kernel": """
import llamapar as lp
panel = lp.explorer("llama3.1-405b", tab="heads")
def moves():
    for tp in (16, 8):
        panel.set(tp=tp)
print(median(moves, 5) / 2)""",
    "explain, a text": """
import json, llamapar as lp
texts = [json.loads(line) for line in open({cases!r})]
texts = [str(case.get("error") or case.get("text") or case.get("message")) for case in texts]
def every():
    for text in texts:
        lp.explain(text)
print(median(every, 1, 5) / len(texts))""",
    "8 ranks ready, with their first run": """
import llamapar as lp
if __name__ == "__main__":
    model = lp.ModelConfig(**{shape})
    begun = time.perf_counter()
    lp.run("mlp", model, lp.Layout(tp=8), seq_len=64, engine="processes", device="cpu")
    print(time.perf_counter() - begun)""",
    "warm run, 8 ranks": """
import llamapar as lp
if __name__ == "__main__":
    model = lp.ModelConfig(**{shape})
    run = lambda: lp.run("attention", model, lp.Layout(tp=8), seq_len=64, engine="processes", device="cpu")
    print(median(run))""",
    "warm run, one process": """
import llamapar as lp
model = lp.ModelConfig(**{shape})
run = lambda: lp.run("attention", model, lp.Layout(tp=4, cp=2), seq_len=64, engine="local", device="cpu")
print(median(run, 1, 5))""",
    "reshard, 250 MB": """
import llamapar as lp, tempfile, pathlib, shutil
source = pathlib.Path({checkpoint!r})
found = []
for turn in range(3):
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        target = pathlib.Path(folder) / "target"
        lp.checkpoint.reshard(source, target, tp=4, padding="megatron", format="meta")
        found.append(time.perf_counter() - begun)
print(min(found))""",
}
"""What is measured → a script that prints seconds."""


def checkpoint(folder: Path) -> Path:
    """A whole checkpoint of 250 MB, written by safetensors' own library."""
    import torch
    from safetensors.torch import save_file

    sys.path[:0] = [str(HERE), str(HERE / "tests")]
    from llamapar import checkpoint as checkpoints
    from llamapar import model

    sizes = dict(dim=1024, n_heads=16, n_kv_heads=8, ffn_dim=4096, n_layers=6, vocab_size=16000)
    made = model("llama3.1-8b").replace(**sizes)
    tensors = {p.hf_name: torch.randn(p.shape).to(torch.bfloat16) for p in made.parameters()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(checkpoints.config_json(made)))
    return folder


def seconds(root: Path, script: str) -> float:
    """What `script` prints, run by `root`'s interpreter and library."""
    python = root / ".venv/bin/python"
    interpreter = python if python.exists() else Path(sys.executable)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "measure.py"
        file.write_text(CLOCK.format(root=str(root)) + script)
        done = subprocess.run([interpreter, file], capture_output=True, text=True, cwd=folder)
    if done.returncode:
        raise SystemExit(f"{root}: {done.stderr[-2000:]}")
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, help="a checkout of the project as it was")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="parts of the names to measure, with commas")
    given = parser.parse_args()
    roots = {"other": given.other.resolve(), "this": HERE}
    chosen = [part for part in given.only.split(",") if part]
    with tempfile.TemporaryDirectory() as folder:
        facts = {
            "cases": str(HERE / "tests/oracles/error-cases.jsonl"),
            "shape": SHAPE,
            "checkpoint": str(checkpoint(Path(folder))),
        }
        print(f"{'':38}{'other':>12}{'this':>12}{'ratio':>8}{'least':>24}")
        for name, script in MEASURED.items():
            if chosen and not any(part in name for part in chosen):
                continue
            for fact, value in facts.items():
                script = script.replace("{" + fact + "!r}", repr(value)).replace("{" + fact + "}", value)
            times: dict[str, list[float]] = {which: [] for which in roots}
            for turn in range(given.rounds):
                for which in sorted(roots, reverse=bool(turn % 2)):
                    times[which].append(seconds(roots[which], script))
            before, now = (statistics.median(times[which]) * 1e3 for which in ("other", "this"))
            least = " / ".join(f"{min(times[which]) * 1e3:.3g}" for which in ("other", "this"))
            print(f"{name:38}{before:9.3g} ms{now:9.3g} ms{now / before:8.2f}{least:>21} ms", flush=True)


if __name__ == "__main__":
    main()
