"""Whole repositories of trainers, judged file by file as `llamapar check DIR` does: what is taken wrongly?

    .venv/bin/python benchmarks/repositories.py --clones FOLDER    # judges anew, and writes the fixture
    .venv/bin/python benchmarks/repositories.py                    # the table of the fixture
    .venv/bin/python benchmarks/repositories.py --page             # writes docs/measured/repositories.md

FOLDER holds a clone of each repository as OWNER/NAME, of which the newest commit is read. The fixture,
tests/oracles/repositories.json, keeps the commit, and for every file of settings its path, the hash of its
blob and the verdict; no text of a repository is kept. A file is foreign if it is taken for the settings of a
trainer that is neither the repository's own nor one that its files are known to start (`STARTS`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import _page
from llamapar.configs.folder import VERDICTS, judge_folder

FIXTURE = Path(__file__).resolve().parent.parent / "tests" / "oracles" / "repositories.json"

LAUNCHERS = frozenset({"Accelerate", "DeepSpeed", "Hugging Face Trainer"})
"""Formats that other trainers' launches are made of, and that they ship beside their own."""

STARTS: dict[str, frozenset[str]] = {
    "pytorch/torchtitan": frozenset({"torchtitan", "torchtitan's registry"}),
    "NVIDIA/Megatron-LM": frozenset({"Megatron-LM"}),
    "NVIDIA-NeMo/Megatron-Bridge": frozenset({"Megatron-Bridge", "Megatron-Bridge's launcher"}),
    "NVIDIA/NeMo": frozenset(
        {"NeMo", "Megatron-LM"}
    ),  # tests/collections/llm/bitexact starts pretrain_gpt.py
    "NVIDIA-NeMo/Automodel": frozenset({"NeMo Automodel"}),
    "NVIDIA-NeMo/RL": frozenset({"NeMo-RL"}),
    "huggingface/nanotron": frozenset({"nanotron"}),
    "huggingface/picotron": frozenset({"picotron"}),
    "axolotl-ai-cloud/axolotl": frozenset({"Axolotl", *LAUNCHERS}),
    "hiyouga/LLaMA-Factory": frozenset({"LLaMA-Factory", *LAUNCHERS}),
    "volcengine/verl": frozenset({"verl", "vLLM"}),
    "OpenRLHF/OpenRLHF": frozenset({"OpenRLHF", "vLLM"}),
    "modelscope/ms-swift": frozenset({"ms-swift", "vLLM", *LAUNCHERS}),
    "pytorch/torchtune": frozenset({"torchtune"}),
    "Lightning-AI/litgpt": frozenset({"LitGPT"}),
    "AI-Hypercomputer/maxtext": frozenset({"MaxText", "vLLM"}),  # tests/inference/benchmark_vllm.sh
}
"""Repository → trainers whose settings it holds."""


def checked_out(clone: Path, folder: Path) -> dict[str, str]:
    """Write the newest commit's files into a folder; path → hash. Blobs that a clone lacks are left out."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", clone, *words], capture_output=True, text=True, check=True).stdout

    hashes = dict[str, str]()
    with subprocess.Popen(
        ["git", "-C", clone, "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as batch:
        assert batch.stdin is not None
        assert batch.stdout is not None
        for line in git("ls-tree", "-r", "HEAD").splitlines():
            meta, _, path = line.partition("\t")
            mode, kind, sha = meta.split()
            if kind != "blob" or mode == "120000" or path.startswith('"'):
                continue
            batch.stdin.write(f"{sha}\n".encode())
            batch.stdin.flush()
            head = batch.stdout.readline().split()
            if len(head) < 3:
                continue
            data = batch.stdout.read(int(head[2]) + 1)[:-1]
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
            hashes[path] = sha
        batch.stdin.close()
    return hashes


def judged(clones: Path) -> Iterator[dict[str, Any]]:
    """Each repository's verdicts."""
    for name in STARTS:
        commit = ["git", "-C", str(clones / name), "rev-parse", "HEAD"]
        with tempfile.TemporaryDirectory() as place:
            hashes = checked_out(clones / name, Path(place))
            found = judge_folder(place)
            rows = []
            for row in found.files:
                path, colon, _ = row.file.partition(".py:")
                sha = hashes[f"{path}.py" if colon else row.file][:12]
                rows.append([row.file, sha, row.trainer, row.verdict, row.what])
            head = subprocess.run(commit, capture_output=True, text=True, check=True).stdout.strip()
            print(name, found.counts, found.others, flush=True)
            yield {"repository": name, "commit": head, "others": found.others, "files": rows}


def is_foreign(repository: str, trainer: str) -> bool:
    """Whether a file of a repository is taken for the settings of a trainer that is not its own."""
    return trainer not in ("", *STARTS[repository])


def held() -> list[dict[str, Any]]:
    """The fixture's repositories."""
    found: list[dict[str, Any]] = json.loads(FIXTURE.read_text(encoding="utf-8"))["repositories"]
    return found


def tables() -> dict[str, list[str]]:
    """Those of docs/measured/repositories.md."""
    repositories = held()
    rows = []
    everything = {"repository": "all", "commit": "", "others": sum(r["others"] for r in repositories)}
    for one in [everything, *repositories]:
        name = one["repository"]
        own = [r for r in repositories if name in (r["repository"], "all")]
        files = [(r["repository"], *file) for r in own for file in r["files"]]
        counts = Counter(file[4] for file in files)
        foreign = sum(is_foreign(repository, trainer) for repository, _, _, trainer, *_ in files)
        title = f"[{name}](https://github.com/{name}/tree/{one['commit']})" if one["commit"] else name
        rows.append((title, len(files), foreign, *(counts[v] for v in VERDICTS), one["others"]))
    head = ("repository", "sets of settings", "taken for another trainer's", *VERDICTS, "no settings")
    made = {"summary": _page.table(head, rows)}
    broken = [
        (r["repository"], f"`{file}`", what)
        for r in repositories
        for file, _, _, verdict, what in r["files"]
        if verdict == "error"
    ]
    made["broken"] = _page.table(("repository", "file", "what the command says"), broken)
    read = [
        (r["repository"], f"`{file}`", verdict, textwrap.shorten(what, 80, placeholder=" …"))
        for r in repositories
        for file, _, _, verdict, what in r["files"]
        if verdict in ("ok", "in part", "not covered")
    ]
    order = {verdict: place for place, verdict in enumerate(VERDICTS)}
    read.sort(key=lambda row: (row[0], order[row[2]], row[1]))
    made["all"] = _page.table(("repository", "file", "verdict", "why"), read)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--clones", type=Path)
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    if given.clones:
        found = [*judged(given.clones)]
        text = json.dumps({"repositories": found}, indent=0, ensure_ascii=False)
        FIXTURE.write_text(f"{text}\n", encoding="utf-8")
    if given.page:
        _page.write("repositories", tables())
    else:
        print("\n".join(tables()["summary"]))


if __name__ == "__main__":
    main()
