"""`read_settings`: a run's own files as model, layout and job, each fact with its source."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from llamapar.describe.arguments import checked_options
from llamapar.describe.models import ModelConfig
from llamapar.describe.models import model as find_model
from llamapar.errors import LlamaparError, encoding, one_of, printable, shown, whole
from llamapar.frameworks.settings import DIMS, JOB, JOB_FACTS, LAYOUT, MODEL, Contradiction, Settings

from .arithmetic import settle
from .documents import MOST_BYTES
from .draft import Draft, Origin, section_of
from .files import Files
from .flags import Flags
from .formats import ROWS, bears
from .mapped import READERS
from .unread import question, question_unresolved

MOST_FILES = 20


@checked_options
def read_settings(
    *files: str | Path,
    text: str = "",
    overrides: Iterable[str] = (),
    known: Mapping[str, object] | None = None,
) -> Settings:
    """Read model, layout and job from files of settings and launch scripts; nothing in them is run.

    files: TOML, YAML, JSON or launch scripts of one job, read together. text: the same, pasted.
    overrides: words in the form of the framework's command, which win. known: further facts that you know, as
    {"gpus": 64, "model": "llama3.1-70b"}.

    Raises LlamaparError for a file that cannot be read or is invalid, with the line, and if no format is
    recognised.
    """
    texts = dict[str, str]()
    for file in files:
        name = Path(file).name
        held = text_of(file)
        # Two files of one name from different folders are both kept.
        texts[name if name not in texts else f"{name} ({len(texts)})"] = held
    text = text.removeprefix("\ufeff")  # a byte order mark
    if text.strip():
        texts[_name_of(text)] = text
    if not texts:
        raise LlamaparError("no file and no text of settings", "", ["a path", "pasted text"], "config")
    made = Files(texts, overrides=tuple(map(str, overrides)))
    return settings_of(made, known or {})


def text_of(file: str | Path) -> str:
    """The text of a file. Raises LlamaparError for one that cannot be read, is no text, or is too long."""
    path = Path(file)
    try:
        if not path.is_file():
            what = f"{shown(str(file), 200)} is {'a folder' if path.is_dir() else 'no file'}"
            raise LlamaparError(what, "", ["each file of one job by its name"], "config")
        with path.open("rb") as opened:
            data = opened.read(MOST_BYTES + 1)
    except OSError as problem:
        what = f"{shown(str(file), 200)}: {os.strerror(problem.errno or 0)}"
        raise LlamaparError(what, field="config") from None
    if len(data) > MOST_BYTES:
        what = f"{path.name} has more than {MOST_BYTES:,} bytes"
        raise LlamaparError(what, "no settings are so long", field="config")
    held = data.decode(encoding(data), "replace")
    if "\0" in held:
        raise LlamaparError(f"{path.name} is no text", field="config")
    return held


def _name_of(text: str) -> str:
    """A name for pasted text, whose ending says how to read it.

    Blanks are those of one line: over empty lines `^\\s*` takes time that grows with their square.
    """
    # Without comments, which may look like anything. The most telling form is asked for first.
    body = re.sub(r"^[ \t]*#.*$", "", text, flags=re.M)
    if body.lstrip().startswith("{") and '"' in body[:200]:
        return "text.json" if not re.search(r"^[ \t]*#|,\s*}", text, re.M) else "text.yaml"
    header, key = r"^[ \t]*\[[\w.\"]+\][ \t\r]*$", r"^[ \t]*[\w.]+[ \t]*="  # not \s, which takes lines too
    if re.search(header, body, re.M) and re.search(key, body, re.M):
        return "text.toml"
    if re.search(r"(?:^|\s)--?[a-zA-Z][\w-]+|^#!|^\w+=", body, re.M) and not re.search(
        r"^\w[\w-]*:\s", body, re.M
    ):
        return "text.sh"
    if re.search(r"^[ \t]*[\w-]+:(?:\s|$)", body, re.M):
        return "text.yaml"
    return "text.sh"


def settings_of_texts(files: object) -> Settings:
    """The settings in files as a page sends them: [name, text] each, or one text without a name."""
    sent = files if isinstance(files, (list, tuple)) else []
    pairs = [pair for pair in sent if isinstance(pair, (list, tuple)) and len(pair) == 2]
    texts: dict[str, str] = {}
    for pair in pairs:
        name, text = (str(part) for part in pair)
        if len(text) > MOST_BYTES:
            raise LlamaparError(f"{shown(name)} has more than {MOST_BYTES:,} characters", field="config")
        texts[name if name not in texts else f"{name} ({len(texts)})"] = text
    if [*texts] == [""]:
        return read_settings(text=texts[""])
    if not texts:
        raise LlamaparError("no file and no text of settings", field="config")
    return settings_of(Files(texts), {})


def settings_of(files: Files, known: Mapping[str, object]) -> Settings:
    """The settings in files that have been loaded.

    Refuses, by the files' names, what no reader is made for: deep nesting, and numbers of any size.
    """
    try:
        return _settings_of(files, known)
    except LlamaparError:
        raise
    except (RecursionError, MemoryError, ArithmeticError, ValueError) as problem:
        why = "nested too deeply"
        if not isinstance(problem, RecursionError):
            why = str(problem)[:100]
        raise LlamaparError(f"{', '.join(files.texts)} cannot be read", why, field="config") from None


def _settings_of(files: Files, known: Mapping[str, object]) -> Settings:
    if len(files.texts) > MOST_FILES:
        raise LlamaparError(f"{len(files.texts)} files", f"one job has at most {MOST_FILES}", field="config")
    # The rows' order is that in which they are tried: a special format stands before the general one that
    # its files also fit.
    row = next((row for row in ROWS if any(bears(files, mark) for mark in row["recognised"])), None)
    if row is None:
        names = ", ".join(printable(name) for name in files.texts)
        raise LlamaparError(
            f"{names}: settings of no known format",
            f"read here: {', '.join(row['title'] for row in ROWS if row.get('reader') != 'nobody')}",
            field="config",
        )
    draft = Draft(row["title"])
    for name, document in files.documents.items():
        for first, last in document.repeated:
            why = f"the key stands twice in {name}, lines {first.line} and {last.line}; the last counts"
            draft.contradictions.append(Contradiction(first.path, (first.value, last.value), why))
    READERS[row.get("reader", "row")](row, files, draft)
    # After the reader, because only then is it known what was looked for, and before `settle`, which
    # derives from what is left.
    unread = [*files.unread(draft)]
    question(draft, unread)
    unresolved = list[str]()
    for flags in files.used:
        if isinstance(flags, Flags) and flags.unresolved is not None:
            question_unresolved(draft, flags.unresolved, flags.name)
            unresolved.append(flags.unresolved.text)
    _take_known(draft, known)
    settle(draft)
    sections = {name: section_of(name) for name in draft.facts}
    model, layout, job = (
        {name: fact.value for name, fact in draft.facts.items() if sections[name] == section}
        for section in (MODEL, LAYOUT, JOB)
    )
    return Settings(
        row["title"],
        row.get("framework"),
        model,
        layout,
        job,
        {f"{sections[name]}.{name}": str(fact.origin) for name, fact in draft.facts.items()},
        dict(draft.unknown),
        tuple(draft.not_covered),
        tuple(draft.ignored),
        tuple(draft.notes),
        tuple(draft.contradictions),
        draft.covered,
        tuple(dict.fromkeys([*(entry.path for _, entry in unread), *unresolved])),
        before=draft.before,
    )


def _take_known(draft: Draft, known: Mapping[str, object]) -> None:
    """Combine the facts from the person with those from the files."""
    for name, value in known.items():
        if value is None:
            continue
        if name == "model":
            # A model that the person names fills what the files leave open; contradictions are reported.
            config = value if isinstance(value, ModelConfig) else find_model(str(value))
            for dim in (*DIMS, "head_dim", "max_seq_len", "rope_theta", "tied"):
                _take_dim(draft, dim, config)
            for open_fact in ("model", "dims"):
                draft.unknown.pop(open_fact, None)
            continue
        one_of("known", name, ("model", *JOB_FACTS, *DIMS))
        number = whole(name, value)
        old = draft.facts.get(name)
        # A default, which has no line, is simply replaced by what the person knows.
        if old is not None and old.value != number and old.origin.line:
            why = f"{old.origin} against what you say"
            draft.contradictions.append(Contradiction(name, (old.value, number), why))
        draft.put(name, number, Origin("you", 0, name))


def _take_dim(draft: Draft, name: str, config: ModelConfig) -> None:
    old = draft.facts.get(name)
    new = getattr(config, name)
    if old is None:
        draft.put(name, new, Origin("you", 0, f"model={config.name}"))
    elif name in DIMS and old.value != new:
        why = f"{old.origin} against {config.name}"
        draft.contradictions.append(Contradiction(name, (old.value, new), why))
