"""Settings files with what they say, and how a reading of them is scored; tests and a benchmark share it.

run_configs.jsonl: 64 public files and launch scripts, each with its repository, path, commit and licence,
which the readers were written with; run_configs_gathered.jsonl: 100 more, labelled by reading before any
was tried; run_configs_unseen.jsonl, run_configs_unseen_again.jsonl and run_configs_unseen_scripts.jsonl: 46,
59 and 9 more, whose labels were committed before any was tried, in two halves by the hash of the text. Their
texts are not carried here: `unseen` reads them from clones; `corrected` says which labels were found wrong
after the first score. A field that is not in `expect` is not judged; one in `unknown` has to stay open;
`doubtful` rows are counted apart.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from llamapar.configs.files import Files
from llamapar.configs.reader import settings_of
from llamapar.errors import LlamaparError
from llamapar.frameworks.settings import Settings

ORACLES = Path(__file__).parent / "oracles"
_ENDINGS = {"toml": ".toml", "yaml": ".yaml", "json": ".json", "python": ".py", "cli": ".sh"}
_SECTIONS = ("model", "layout", "job")


@cache
def cases(name: str = "run_configs.jsonl") -> dict[str, dict[str, Any]]:
    """The rows of a set by their ids."""
    rows = [json.loads(line) for line in (ORACLES / name).read_text(encoding="utf-8").splitlines()]
    return {row["id"]: row for row in rows}


def unseen(name: str, clones: Path) -> dict[str, dict[str, Any]]:
    """The rows of an unseen set with their texts. clones: a folder with a clone of each OWNER/NAME.

    A row's `also` names other rows, or files of its own.
    """
    rows = cases(name)
    texts = {name: _text(row["source"], clones) for name, row in rows.items()}
    filled = dict[str, dict[str, Any]]()
    for name, row in rows.items():
        first, last = row.get("lines", (1, None))
        text = "".join(texts[name].splitlines(keepends=True)[first - 1 : last])
        beside = [rows[other] if isinstance(other, str) else other for other in row["also"]]
        also = [{"source": part["source"], "text": _text(part["source"], clones)} for part in beside]
        filled[name] = {**row, "text": text, "also": also}
    return filled


def _text(source: Mapping[str, str], clones: Path) -> str:
    place = f"{source['commit']}:{source['path']}"
    git = ["git", "-C", str(clones / source["repo"]), "show", place]
    found = subprocess.run(git, capture_output=True, check=True).stdout
    if hashlib.sha256(found).hexdigest() != source["sha256"]:
        raise ValueError(f"{source['repo']} {place} is not the text that was labelled")
    return found.decode()


def files_of(row: Mapping[str, Any]) -> Files:
    """The texts of a row under the names of their files, whose ending the format gives."""
    texts = dict[str, str]()
    for part in [row, *(row.get("also") or ())]:
        name = str(part["source"].get("path") or "text").rpartition("/")[2]
        if part is row:
            ending = _ENDINGS[row["format"].rpartition("-")[2]]
            name = name if name.endswith((ending, ".yml", ".md")) else name.partition(".")[0] + ending
        texts[name if name not in texts else f"also-{name}"] = part["text"]
    return Files(texts)


def read(row: Mapping[str, Any]) -> Settings:
    """The settings of a row, with the facts that a person would have to give."""
    given = {name: value for name, value in row["given"].items() if name == "gpus"}
    return settings_of(files_of(row), given)


def same(expected: object, found: object) -> bool:
    """Whether a value is the expected one, numbers as numbers, words whatever their case."""
    try:
        return float(str(expected)) == float(str(found))
    except ValueError:
        return str(expected).lower() == str(found).lower()


@dataclass
class Score:
    """How a reading stands against what is expected. sure: wrong fields that are said without a doubt."""

    right: int = 0
    open: list[str] = field(default_factory=list)
    sure: list[str] = field(default_factory=list)
    doubted: list[str] = field(default_factory=list)
    kept: int = 0
    filled: list[str] = field(default_factory=list)
    refused: str = ""

    @property
    def fields(self) -> int:
        return self.right + len(self.open) + len(self.sure) + len(self.doubted)

    def add(self, other: Score) -> None:
        for name in ("right", "open", "sure", "doubted", "kept", "filled"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def _expected(row: Mapping[str, Any]) -> Iterator[tuple[str, str, object]]:
    for section in _SECTIONS:
        for name, value in row["expect"][section].items():
            yield section, name, value


def score(row: Mapping[str, Any]) -> Score:
    """A row's score, field by field."""
    result = Score()
    try:
        found = read(row).as_dict()
    except LlamaparError as problem:
        result.refused = problem.what
        result.open = [f"{row['id']} {name}" for _, name, _ in _expected(row)]
        result.kept = len(row["expect"]["unknown"])
        return result
    told = {c["field"] for c in found["contradictions"]}
    for section, name, value in _expected(row):
        got = found[section].get(name)
        words = f"{row['id']} {name}: {got} instead of {value}"
        if same(value, got):
            result.right += 1
        elif got is None:
            result.open.append(words)
        elif name in told or name in found["unknown"]:
            result.doubted.append(words)
        else:
            result.sure.append(words)
    for name in row["expect"]["unknown"]:
        fields = ("dim",) if name in ("model", "dims") else (name,)
        values = [found[s].get(f) for s in _SECTIONS for f in fields]
        if any(value is not None for value in values):
            result.filled.append(f"{row['id']} {name}")
        else:
            result.kept += 1
    return result
