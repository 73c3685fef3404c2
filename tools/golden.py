"""Author's tool: what every door answers to some 400 questions, written down, and compared after a change.

    PYTHONPATH=tests .venv/bin/python tools/golden.py write build/golden.jsonl.gz
    PYTHONPATH=tests .venv/bin/python tools/golden.py compare build/golden.jsonl.gz [--words]

Write it before a change that is to alter nothing, compare after it. The questions are the command's, each as
text and as JSON, the states of every panel, and the summary of every record that has a picture. Each answer
stands under its question, so a difference names the door that it was seen through.

A move of code leaves every answer byte-equal. A change of words leaves every number and code equal: with
--words the sentences are taken out first, and what remains of an answer is its numbers, its codes (LP104)
and its exit status, in order. Only public names and the command are used, so that rooms may move.
Left out: what a GPU or a browser answers, and how long anything took.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import itertools
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import llamapar as lp
from llamapar.cli.main import main as command

PROJECT = Path(__file__).resolve().parent.parent
ORACLES = PROJECT / "tests" / "oracles"

MODELS = ("llama3-8b", "llama3.1-405b", "llama3-70b", "llama3.2-3b")
LAYOUTS = (
    "",
    "--tp 8",
    "--tp 16",
    "--tp 3",
    "--tp 8 --pp 16 --dp 2 --gpus 256",
    "--tp 8 --cp 16 --pp 16 --dp 8 --gpus 16384 --seq-len 131072 --batch-per-dp 1",
    "--tp 16 --cp 16 --pp 16 --dp 4 --gpus 16384 --seq-len 131072",
    "--tp 8 --dp 16 --zero 3 --dp-replicate 2 --seq-len 8192 --gpu h100-80gb --recompute none",
    "--pp 4 --virtual-stages 2 --schedule interleaved-1f1b --global-batch 64 --micro-batch 1 --seq-len 8192",
    "--tp 4 --cp 3 --seq-len 8191 --padding 64*tp",
)
WRONG = (
    "",
    "chek",
    "check --tp",
    "check --tp 0 --model llama3-8b",
    "check --tp eight --model llama3-8b",
    "check --model llama3-9b",
    "check --model llama3-8b --gpu h101",
    "check --model llama3-8b --framework megatron",
    "check --model nowhere/config.json",
    "check --config nowhere.toml",
    "check --settings torchtitan",
    "check --model llama3-8b --order tp-tp-pp-dp",
    "check --model llama3-8b --tp 1e30",
    "check --job mistral",
    "ranks --tp 2 --rank 7",
    "ranks --tp 2 --order no",
    "memory --model llama3-8b --zero 4",
    "memory --model llama3-8b --schedule nothing",
    "cost --model llama3-8b --precision int3",
    "plan --model llama3-8b",
    "plan --model llama3-8b --gpus 0 --seq-len 8192 --global-batch 8",
    "loading --model llama3-8b --format q5",
    "schedule zbv --pp 4 --micro-batches 2",
    "schedule 1f2b --pp 4",
    "run nothing --model llama3-8b",
    "run mlp --model llama3-8b --shrink --dtype int8",
    "run mlp --model llama3-8b --tp 3 --shrink",
    "explain",
    "explain --file nowhere.log",
    "checkpoint inspect nowhere",
    "checkpoint cut nowhere",
)
RUNS = (
    *(f"{program} --tp 2" for program in ("attention", "embedding", "loss", "mlp", "block", "llama", "step")),
    "attention --tp 2 --cp 2",
    "attention --tp 2 --cp 2 --fault contiguous_positions",
    "mlp --tp 2 --fault drop_all_reduce",
    "llama --pp 2 --dp 2 --micro-batches 2",
    "step --dp 2 --zero 3 --steps 2",
    "embedding --tp 4 --tape",
    "block --tp 2 --trace",
    "llama --tp 8 --cp 2 --pp 4 --dp 4 --engine dry --rank 17",
)
SCHEDULES = (
    *(f"{name} --pp 4 --micro-batches 8" for name in ("gpipe", "1f1b", "zbv", "dualpipev")),
    "interleaved-1f1b --pp 4 --virtual-stages 2 --micro-batches 8",
    "looped-bfs --pp 4 --virtual-stages 2 --micro-batches 8",
    "interleaved-zero-bubble --pp 4 --virtual-stages 2 --micro-batches 8",
    "flexible --pp 4 --micro-batches 12 --nc 6",
)
PLANS = (
    "--model llama3.1-70b --gpus 64 --seq-len 8192 --global-batch 512",
    "--model llama3.1-70b --gpus 64 --seq-len 8192 --global-batch 512 --framework torchtitan",
    "--model llama3-8b --gpus 16 --seq-len 8192 --global-batch 64 --gpu a100-80gb --schedule zbv --top 4",
    "--model llama3.1-405b --gpus 8 --seq-len 8192 --global-batch 64",
    "--model llama3-8b --gpus 8 --seq-len 8192 --global-batch 64 --export python",
)

EXPLORED: tuple[dict[str, Any], ...] = (
    {},
    {"model": "llama3-8b", "tp": 4},
    {"model": "llama3.1-405b", "tp": 16},
    {"model": "llama3-70b", "tp": 8, "dp": 8, "gpu": "h100-80gb", "framework": "torchtitan"},
    {"model": "llama3.2-3b", "tp": 5, "cp": 2},
    {"job": "paper-131k-tokens"},
)
"""What the Explorer is opened with; each is shown in every tab that it has."""

LIVE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("heads", {"model": "llama3.1-405b", "tp": 16}),
    ("vocab", {"model": "llama3-8b", "tp": 12, "padding": "megatron-lm"}),
    ("sequence", {"cp": 3, "seq_len": 8191, "chunking": "contiguous"}),
    ("stages", {"model": "llama3.1-405b", "pp": 16, "virtual_stages": 2}),
    ("ranks", {"tp": 2, "cp": 3, "order": "cp-tp-pp-dp"}),
    ("block", {"model": "llama3.1-405b", "tp": 8, "cp": 16, "pp": 16, "dp": 8, "rank": 4711}),
    ("schedule", {"name": "flexible", "pp": 4, "micro_batches": 12, "nc": 6}),
    ("memory", {"model": "llama3-8b", "tp": 2, "cp": 2, "zero": 3, "dp": 4, "framework": "torchtitan"}),
    ("zero", {"model": "llama3-8b", "zero": 3, "dp": 6, "cp": 2}),
    ("cost", {"model": "llama3.1-405b", "tp": 8, "pp": 16, "dp": 128, "recompute": "none"}),
    ("traffic", {"model": "llama3-8b", "tp": 8, "cp": 2, "dp": 4}),
    ("inside", {"model": "llama3.1-405b", "tp": 8, "cp": 2, "cp_method": "ring"}),
)
CLINIC: tuple[tuple[str, dict[str, Any]], ...] = (
    ("n_kv_heads (8) must be divisible by tp (16)", {"model": "llama3-70b"}),
    ("shape '[1, 8192, -1, 128]' is invalid for input of size 524288", {"model": "llama3-8b", "tp": 16}),
    ("CUDA error: an illegal memory access", {}),
)

SECONDS = re.compile(r"; Ctrl-C ends it.*|\b\d+(\.\d+)? m?s\b")
"""What a run says of its time."""

SEARCHED = re.compile(r'"seconds": [\d.e-]+|^\d+\.\d s(?=$|;)', re.MULTILINE)
"""What a search says of its time."""

REMAINS = re.compile(r"LP\d+|(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
"""What is left of an answer when its words are taken out."""


def rows(name: str) -> list[dict[str, Any]]:
    """The lines of a fixture of tests/oracles."""
    data = (ORACLES / name).read_bytes()
    text = gzip.decompress(data) if name.endswith(".gz") else data
    return [json.loads(line) for line in text.splitlines()]


def plain(value: object) -> Any:
    """A value as JSON, object by object; what JSON has no form for, in its own words."""
    return json.loads(json.dumps(value, default=str, sort_keys=True))


def answered(words: list[str], timed: re.Pattern[str] | None = None) -> dict[str, Any]:
    """Exit status and both streams of the command. timed: what says how long it took, which is struck out."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = command(words)
    if timed:  # and how far it was, in between
        return {"status": status, "streams": [timed.sub("…", out.getvalue()), ""]}
    return {"status": status, "streams": [out.getvalue(), err.getvalue()]}


# -- the questions ---------------------------------------------------------------------------------


def settings_files() -> Iterator[tuple[str, list[str], dict[str, Any]]]:
    """Real settings files, written out: (id, their names, the row)."""
    for row in rows("run_configs.jsonl"):
        folder = Path(row["id"])
        folder.mkdir()
        ending = {"toml": ".toml", "yaml": ".yaml", "json": ".json", "python": ".py", "cli": ".sh"}
        names = []
        for number, part in enumerate([row, *(row.get("also") or ())]):
            name = str(part["source"].get("path") or "text").rpartition("/")[2]
            if not number:
                name = name.partition(".")[0] + ending[row["format"].rpartition("-")[2]]
            path = folder / (f"{number}-{name}" if number else name)
            path.write_text(part["text"], encoding="utf-8")
            names.append(str(path))
        yield row["id"], names, row


def command_lines() -> Iterator[list[str]]:
    """Every question that the command is asked, without --json."""
    for model in sorted(lp.PRESETS):
        yield ["model", model]
    yield ["model", "llama3-8b", "--inventory"]
    for model, layout in itertools.product(MODELS, LAYOUTS):
        yield ["check", "--model", model, *layout.split()]
    for framework, layout in itertools.product(sorted(lp.FRAMEWORKS), LAYOUTS[2:5]):
        yield ["check", "--model", "llama3-70b", *layout.split(), "--framework", framework]
    for job in sorted(lp.JOBS):
        yield ["check", "--job", job]
        yield ["memory", "--job", job]
        yield ["cost", "--job", job]
    for rank in (0, 1, 4711, 16383):
        for order in ("tp-cp-pp-dp", "megatron-lm"):
            yield ["ranks", "--rank", str(rank), "--order", order, *LAYOUTS[5].split()[:8]]
    for model, layout in itertools.product(MODELS[:3], LAYOUTS):
        yield ["memory", "--model", model, *layout.split()]
    for model in sorted(lp.PRESETS):
        yield ["loading", "--model", model, "--nodes", "4"]
    yield from (["schedule", *line.split()] for line in SCHEDULES)
    yield from (line.split() for line in WRONG)
    for name in ("", "model", "check", "ranks", "run", "memory", "cost", "plan", "loading", "schedule"):
        yield [*name.split(), "--help"]
    for name, files, row in settings_files():
        flags = [
            word for file in files for word in ("--launch" if file.endswith(".sh") else "--config", file)
        ]
        gpus = ["--gpus", str(row["given"]["gpus"])] if "gpus" in row["given"] else []
        yield ["check", *flags, *gpus]
        if name.startswith(("tt", "mega")):
            yield ["check", *flags, *gpus, "--settings"]
    for message in dict.fromkeys(row["message"] for row in rows("error-cases.jsonl")):
        yield ["explain", message]
    for row in [*rows("raised.jsonl")[::8], *rows("raised_eighth.jsonl")[::4]]:
        yield ["explain", row.get("text") or row["message"], "--model", "llama3-8b", "--tp", "16"]
    for row in rows("flights.jsonl.gz")[::12]:
        if row["form"] == "json":
            folder = Path("flights", row["name"])
            folder.mkdir(parents=True)
            for rank, text in row["dumps"].items():
                (folder / f"rank_{rank}").write_text(text)
            yield ["explain", str(folder)]
            degrees = [word for axis, n in row["degrees"].items() for word in (f"--{axis}", str(n))]
            yield ["explain", str(folder), *degrees]


def plan_lines() -> Iterator[list[str]]:
    """Searches for layouts."""
    yield from (["plan", *line.split()] for line in PLANS)


def run_lines() -> Iterator[list[str]]:
    """Runs on the ranks of a small model."""
    for line in RUNS:
        yield ["run", *line.split(), "--model", "llama3-8b", "--shrink"]


def panels() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Panels in the states that they are opened in, as what their page is sent."""
    for opened in EXPLORED:
        for tab in [name for _, tabs in lp.explorer().doors for name, _ in tabs]:
            if tab not in ("run", "plan"):  # these wait for a button
                yield f"explorer {opened} {tab}", partial(sent, partial(lp.explorer, **opened, tab=tab))
    for what, arguments in LIVE:
        yield f"live {what} {arguments}", partial(sent, partial(lp.live, what, **arguments))
    for text, facts in CLINIC:
        yield f"clinic {text}", partial(sent, partial(lp.clinic, text, **facts))


def sent(opened: Callable[[], Any]) -> dict[str, Any]:
    """The traits of a panel that its page shows, without scripts and style sheets."""
    state = opened().get_state()
    return {name: value for name, value in state.items() if not name.startswith("_")}


def records() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every record that has a picture: its text and the picture's summary."""
    for what, arguments in LIVE:
        if what != "block":
            yield f"view {what} {arguments}", partial(pictured, partial(lp.live, what, **arguments))
    more = {
        "report": lambda: lp.check("llama3.1-405b", tp=16, pp=16, dp=2, gpus=512, seq_len=8192),
        "plan": lambda: lp.plan("llama3-8b", gpus=16, seq_len=8192, global_batch=64),
        "explanation": lambda: lp.explain(CLINIC[1][0], model="llama3-8b", tp=16),
        "ffn": lambda: lp.ffn("llama3-8b", lp.Layout(tp=4)),
        "tape": lambda: lp.tape("attention", "llama3-8b", lp.Layout(tp=4), seq_len=64),
    }
    yield from ((f"view {name}", partial(viewed, make)) for name, make in more.items())


def pictured(opened: Callable[[], Any]) -> str:
    """The still picture of a live one, as text."""
    return str(opened().snapshot())


def viewed(make: Callable[[], Any]) -> list[str]:
    """A record as text, and the summary of its picture, or why it has none."""
    record = make()
    try:
        picture = lp.view(record).summary
    except lp.LlamaparError as problem:
        picture = str(problem)
    return [SEARCHED.sub("…", str(record)), SEARCHED.sub("…", picture)]


def answers() -> Iterator[tuple[str, Any]]:
    """(question, answer) of every door, in a folder of its own that files are written to."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for lines, timed in ((command_lines(), None), (plan_lines(), SEARCHED), (run_lines(), SECONDS)):
            for words, form in itertools.product(lines, ([], ["--json"])):
                if "--help" not in words or not form:
                    yield " ".join([*words, *form]), answered([*words, *form], timed)
        for question, ask in (*panels(), *records()):
            yield question, ask()


# -- writing and comparing -------------------------------------------------------------------------


def remains(answer: object) -> list[str]:
    """The numbers and codes of an answer, in order."""
    return REMAINS.findall(json.dumps(answer, ensure_ascii=False, sort_keys=True))


def compare(kept: dict[str, Any], words: bool) -> int:
    """Print each question that is answered otherwise than before; how many there are."""
    seen, differing = 0, []
    for question, answer in answers():
        seen += 1
        before = kept.pop(question, None)
        same = remains(before) == remains(answer) if words else before == plain(answer)
        if not same:
            differing.append(question)
            print(f"== {question[:160]}")
            old, new = (json.dumps(each, ensure_ascii=False, sort_keys=True) for each in (before, answer))
            at = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0)
            print(f"  - {old[max(0, at - 80) : at + 160]}\n  + {new[max(0, at - 80) : at + 160]}")
    for question in kept:
        print(f"== not asked any more: {question[:160]}")
    print(f"{seen} answers, {len(differing)} differ, {len(kept)} are gone")
    return len(differing) + len(kept)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("action", choices=("write", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--words", action="store_true", help="compare numbers and codes alone")
    given = parser.parse_args()
    os.environ["COLUMNS"] = "100"
    if given.action == "compare":
        with gzip.open(given.file, "rt", encoding="utf-8") as lines:
            return int(compare(dict(json.loads(line) for line in lines), given.words) > 0)
    given.file.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(given.file, "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps(plain(pair), ensure_ascii=False) + "\n" for pair in answers())
    print(f"written: {given.file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
