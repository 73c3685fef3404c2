"""Every file of settings in a folder, judged: `llamapar check DIR`, before a commit or over a repository.

Each file is judged alone, and each function of a Python file that makes a configuration, together with the
functions that it starts from where their modules are in the folder too. Nothing is run.
"""

from __future__ import annotations

import ast
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from llamapar.errors import LlamaparError, shown
from llamapar.frameworks.settings import DIMS, Settings
from llamapar.records.tables import AsDict, Record, plural
from llamapar.rules.report import check

from .files import Files
from .formats import MAKERS
from .incomplete import judge_incomplete
from .mapped import UnreadTrainerError
from .python_source import configurations, parsed
from .reader import MOST_FILES, UnknownFormatError, settings_of, text_of

OK, ERROR, IN_PART, NOT_COVERED, REFUSED = "ok", "error", "in part", "not covered", "refused"
VERDICTS = (ERROR, REFUSED, IN_PART, NOT_COVERED, OK)
"""In the order of the table."""

_ENDINGS = (".toml", ".yaml", ".yml", ".json", ".conf", ".sh", ".slurm", ".sbatch", ".py")
_SKIPPED = ("node_modules", "__pycache__", "site-packages")


@dataclass(frozen=True)
class JudgedFile(AsDict):
    """One file, or one function of it. trainer: whose settings it holds; what: why the verdict."""

    json_names = ("file", "trainer", "verdict", "what")

    file: str
    trainer: str
    verdict: str
    what: str


@dataclass(frozen=True, repr=False)
class FolderReport(AsDict, Record):
    """The settings in a folder. files: the worst first. others: how many hold no settings."""

    json_names = ("ok", "folder", "counts", "files", "others")
    _left = True

    folder: str
    files: tuple[JudgedFile, ...]
    others: int

    @property
    def ok(self) -> bool:
        """Whether no file has an error; what cannot be judged as a whole is none."""
        return all(file.verdict != ERROR for file in self.files)

    @property
    def counts(self) -> dict[str, int]:
        """Verdict → files."""
        found = Counter(file.verdict for file in self.files)
        return {verdict: found[verdict] for verdict in VERDICTS}

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        rows: list[list[object]] = [[one.file, one.trainer, one.verdict, one.what] for one in self.files]
        said = ", ".join(f"{many} {verdict}" for verdict, many in self.counts.items() if many)
        title = f"{self.folder}: {plural(len(self.files), 'set')} of settings{f': {said}' if said else ''}"
        foot = f"{plural(self.others, 'other file')} of these kinds: no settings" if self.others else ""
        return title, ["file", "settings of", "verdict", "what"], rows, foot


def judge_folder(folder: str | Path, *, gpus: int | None = None) -> FolderReport:
    """Judge every file of settings in a folder. gpus: how many each of them runs on, if it does not say it.

    Raises LlamaparError for what is no folder.
    """
    root = Path(folder)
    if not root.is_dir():
        raise LlamaparError(f"{shown(str(folder), 200)} is no folder", field="model")
    paths = [*_paths(root)]
    modules = {
        path.relative_to(root).with_suffix("").as_posix(): path for path in paths if path.suffix == ".py"
    }
    found, others = list[JudgedFile](), 0
    for path in paths:
        judged = [*_judged(root, path, modules, {} if gpus is None else {"gpus": gpus})]
        found += judged
        others += not judged
    found.sort(key=lambda row: (VERDICTS.index(row.verdict), row.file))
    return FolderReport(str(folder), tuple(found), others)


def _paths(root: Path) -> Iterator[Path]:
    """The files that may hold settings; links and hidden folders are not followed."""
    for place, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name[0] != "." and name not in _SKIPPED)
        if "pyvenv.cfg" in names:
            folders[:] = []
            continue
        for path in (Path(place) / name for name in sorted(names) if name.endswith(_ENDINGS)):
            if not path.is_symlink() and path.is_file():
                yield path


def _text(path: Path) -> str:
    """The text of a file; "" where it has none, or more than any settings have."""
    with suppress(LlamaparError):
        return text_of(path)
    return ""


def _judged(root: Path, path: Path, modules: dict[str, Path], known: dict[str, int]) -> Iterator[JudgedFile]:
    """The rows of one file; none where it holds no settings."""
    name, text = path.relative_to(root).as_posix(), _text(path)
    files = Files({path.name: text})
    if path.suffix != ".py":
        yield from _rows(name, files, known)
        return
    found = (function for maker in MAKERS for function in configurations(text, maker))
    made = [function for function in found if not function.startswith("_")]
    texts = files.texts | (_imported(path.relative_to(root), text, modules) if made else {})
    for function in made:
        yield from _rows(f"{name}:{function}", Files(texts, functions=(function,)), known)


def _imported(path: Path, text: str, modules: dict[str, Path]) -> dict[str, str]:
    """The modules of the folder with functions that a file calls, and that those call, by their paths."""
    found, waiting = dict[str, str](), [(path, text)]
    while waiting:
        place, source = waiting.pop(0)
        nodes = [*ast.walk(parsed(source))]
        called = {
            node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        for node in (node for node in nodes if isinstance(node, ast.ImportFrom)):
            if not called.intersection(name.name for name in node.names):
                continue
            for module in _modules_of(node, place, modules):
                if module not in found and len(found) < MOST_FILES - 1:
                    found[module] = _text(modules[module])
                    waiting.append((Path(module), found[module]))
    return {f"{module}.py": source for module, source in found.items()}


def _modules_of(node: ast.ImportFrom, place: Path, modules: dict[str, Path]) -> list[str]:
    """The modules of the folder that an import may mean."""
    tail = (node.module or "").replace(".", "/")
    if 0 < node.level <= len(place.parents):
        tail = (place.parents[node.level - 1] / tail).as_posix()
        return [tail] if tail in modules else []
    # An absolute import is found by its end, for nobody says in which folder the packages lie.
    return [module for module in modules if tail and f"/{module}".endswith(f"/{tail}")]


def _rows(name: str, files: Files, known: dict[str, int]) -> Iterator[JudgedFile]:
    try:
        settings = settings_of(files, known)
    except LlamaparError as problem:
        if isinstance(problem.__cause__, UnknownFormatError):
            return
        known_by_name = isinstance(problem.__cause__, UnreadTrainerError)
        yield JudgedFile(name, str(problem.__cause__) if known_by_name else "", REFUSED, problem.what)
        return
    yield JudgedFile(name, settings.format, *_verdict(settings))


def _verdict(settings: Settings) -> tuple[str, str]:
    """The verdict on settings, and why."""
    if not settings.covered:
        return NOT_COVERED, "; ".join(settings.not_covered)
    try:
        errors = check(settings).errors
        return (ERROR, f"{errors[0].code} {errors[0].message}") if errors else (OK, "")
    except LlamaparError as whole:
        try:
            part = judge_incomplete(settings)
        except LlamaparError:
            return REFUSED, whole.what
    certain = [f"{code} {message}" for code, severity, message, _ in part.findings if severity == "error"]
    if certain:
        return ERROR, certain[0]
    # Without any dimension it is the model that is missing; dp follows from the number of GPUs.
    names = [name for name in part.needs if name not in DIMS or not {*DIMS} <= {*part.needs}]
    names = [name for name in names if name != "dp" or "gpus" not in names]
    return IN_PART, f"needs {', '.join(['the model'] * ({*DIMS} <= {*part.needs}) + names)}"
