"""How the command writes: answers wrapped to the terminal, failing streams, choices as flags."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Protocol

from llamapar.describe.options import OPTIONS
from llamapar.errors import Choice, LlamaparError, printable
from llamapar.records.tables import fold


class Foldable(Protocol):
    """A record whose text can be wrapped to `width` characters."""

    def text(self, width: int | None = None) -> str: ...


def as_text(record: Foldable | str) -> str:
    """A record, or a text about it, wrapped to COLUMNS or to the terminal's width; unwrapped without a
    terminal.
    """
    narrow = "COLUMNS" in os.environ or (sys.stdout is not None and sys.stdout.isatty())
    width = None
    if narrow:
        width = shutil.get_terminal_size().columns
    if isinstance(record, str):
        return fold(record, width)
    return record.text(width)


PATIENCE = 5.0
"""Seconds of silence before a command says on stderr what it does."""


@contextmanager
def patience(what: str) -> Iterator[None]:
    """While the block runs, write `what` to stderr after PATIENCE, then again at doubling intervals."""
    done, began = threading.Event(), time.monotonic()

    def speak() -> None:
        pause = PATIENCE
        while not done.wait(pause):
            write_line(sys.stderr, f"llamapar: {what}: {time.monotonic() - began:.0f} s")
            pause *= 2

    speaker = threading.Thread(target=speak, daemon=True)
    speaker.start()
    try:
        yield
    finally:
        done.set()
        speaker.join()


_PLAIN = str.maketrans({"·": "*", "→": "->", "–": "-", "…": "...", "×": "x"})
"""Signs of the texts for streams that cannot carry them."""


def write_line(stream: IO[str] | None, text: str) -> str:
    """Write `text` and a line end; returns the reason if that fails. A closed reader is no failure.

    Names from files can contain control characters, so those that a terminal would obey are escaped.
    """
    if stream is None or not text:
        return ""
    text = printable(text.rstrip("\n"))
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(_PLAIN).encode(encoding, "backslashreplace").decode(encoding)
    try:
        stream.write(f"{text}\n")
        stream.flush()
    except OSError as problem:
        mute(stream)
        if isinstance(problem, BrokenPipeError):
            return ""
        return f"cannot write: {problem.strerror}"
    return ""


def mute(stream: IO[str]) -> None:
    """Stop writing to a failed stream, because the interpreter would try again at exit, and complain."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def as_flags(choices: Iterable[object], offered: Collection[str] = OPTIONS) -> list[str]:
    """Choices as words of a command line: "--tp 8 --dp 2".

    offered: the options of the command; a choice of anything else, as of a model's dims, stays unchanged.
    """
    made = []
    for choice in choices:
        text = str(choice)
        if isinstance(choice, Choice) and not choice.bare and {*dict(choice.values)} <= {*offered}:
            words = [word for name, value in choice.values for word in OPTIONS[name].words(value)]
            text = " ".join([*words, choice.when]).rstrip()
        made.append(text)
    return made


def error_as_dict(error: LlamaparError, offered: Collection[str] = OPTIONS) -> dict[str, object]:
    """An error as plain values for JSON, its choices as flags."""
    return {
        "field": error.field,
        "message": error.what,
        "why": error.why,
        "choose": as_flags(error.choices, offered),
    }


def in_flags(error: LlamaparError, offered: Collection[str] = OPTIONS) -> LlamaparError:
    """The same error in the words of a command line."""
    return LlamaparError(error.what, error.why, as_flags(error.choices, offered), error.field)
