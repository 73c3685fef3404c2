"""`llamapar explain`: from a text, a log file, or another program's output on a pipe, to the cause.

A log is read in pieces and is never whole in memory. Input from a pipe is passed on at once, byte by byte, so
a job under `| llamapar explain -` looks the same as without it; the explanation follows at its end.
"""

from __future__ import annotations

import codecs
import difflib
import io
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import IO, cast

from llamapar import interrupts
from llamapar.describe.configfile import exists, is_json
from llamapar.describe.layout import AXES, AXIS_TITLES
from llamapar.describe.models import ModelConfig
from llamapar.describe.models import model as find_model
from llamapar.describe.options import OPTIONS, Values
from llamapar.diagnosis import UNKNOWN, Explanation, explain
from llamapar.diagnosis.known import model_named
from llamapar.errors import LlamaparError, ModelError, encoding, shown, whole
from llamapar.late import late

from .commands import Command, CommandAnswer, Given
from .output import as_text, mute, write_line

_PIECE = 2**16
_LONGEST = 2**20
"""Characters after which a line without an end is taken as one."""


def _answer(given: Given) -> CommandAnswer:
    """Status 0 for an explanation, of sharding or not; 1 if the cause cannot be decided."""
    text = given["text"]
    file = given["file"]
    dumps = None
    head = ""
    asked = [name for name in ("text", "file") if given[name] is not None]
    if len(asked) != 1:
        what = "a text is needed"
        if asked:
            what = f"a {' and a '.join(asked)} were given; one is explained"
        choose = ["llamapar explain 'TEXT'", "--file FILE", "- for a pipe", "a folder of flight records"]
        raise LlamaparError(what, "", choose, "text")
    if text not in (None, "-") and os.path.exists(text):  # A file name is not a text to explain.
        file = None
        if os.path.isfile(text):
            file = text
        dumps = None
        if os.path.isdir(text):
            dumps = Path(text)
        what = "no regular file: taken as the text itself"
        if file:
            what = "a file: it is read, as by --file"
        if dumps:
            what = "a folder: its flight records are read"
        write_line(sys.stderr, f"llamapar: {shown(text, 200)} is {what}")
    known = _known(given)
    if dumps is not None:
        found = explain(dumps, **known)
    elif file is not None:
        found = _of_file(file, known)
    elif text == "-":
        pieces = _echoed(_piped(), sys.stderr if given["json"] else sys.stdout)
        first = next(pieces, b"")
        found = explain(decoded_lines(chain([first], pieces)), **known)
        head = ""
        if first:
            head = "\n"
    else:
        found = explain(text.encode("utf-8", "surrogateescape"), **known)
    told = found.verdict != UNKNOWN or (dumps is not None and found.best is not None)
    return CommandAnswer(told, lambda: f"{head}{as_text(str(found))}", found.as_dict)


# -- what is known besides -----------------------------------------------------------------------


def _known(given: Given) -> Values:
    """The arguments of `explain` besides the text; an option wins over what files say."""
    known: Values = {}
    if given.files:
        settings = late("read_settings")(*given.files, overrides=given["overrides"])
        known["context"] = settings.known()
        if settings.judge is not None:
            known["framework"] = settings.judge
    known |= {
        name: whole(name, value, 1, OPTIONS[name].most)
        for name, value in given.of(*given.about.options).items()
        if OPTIONS[name].is_count
    }
    if given["model"] is not None:
        known["model"] = _model(given["model"])
    return known | given.of("framework")


def _model(text: str) -> ModelConfig | str:
    """A model, or a name in free words, which `explain` may still recognise; stderr then says so."""
    try:
        return find_model(text)
    except ModelError as problem:
        if is_json(text) or text.endswith(".json") or exists(text) or model_named(text) is None:
            raise
        near = ""
        if problem.choose:
            near = f"; presets like it are {', '.join(problem.choose[:3])}"
        write_line(sys.stderr, f"llamapar: {problem.what}: read as a public model's name{near}")
        return text


# -- texts of any size ---------------------------------------------------------------------------


def decoded_lines(pieces: Iterable[bytes]) -> Iterator[str]:
    """Bytes as lines of text: bad bytes are replaced, and a progress bar's returns end lines."""
    pieces = iter(pieces)
    head = b""
    rest = ""
    while len(head) < 2 and (piece := next(pieces, b"")):
        head += piece
    text = codecs.getincrementaldecoder(encoding(head))("replace")
    decoder = io.IncrementalNewlineDecoder(text, translate=True)
    for piece in chain([head], pieces, [b""]):
        *ended, rest = (rest + decoder.decode(piece, final=not piece)).split("\n")
        for line in ended:
            yield f"{line}\n"
        if len(rest) > _LONGEST:
            yield f"{rest}\n"
            rest = ""
    if rest:
        yield rest


def _of_file(name: str, known: Values) -> Explanation:
    try:
        with open(name, "rb") as file:
            return explain(decoded_lines(iter(lambda: file.read(_PIECE), b"")), **known)
    except OSError as problem:
        raise LlamaparError(f"{shown(name, 200)}: {problem.strerror}", "", _near(name), "file") from None


def _near(name: str) -> list[str]:
    """Files beside a missing one with similar names."""
    path = Path(name)
    beside = list[str]()
    with suppress(OSError, ValueError):
        beside = [other.name for other in path.parent.iterdir() if other.is_file()]
    near = difflib.get_close_matches(name.rpartition("/")[2][:100], beside[:1000], n=3)
    return [f"--file {path.parent / other}" for other in near] or ["llamapar explain --help"]


def _piped() -> Iterator[bytes]:
    """The input on stdin, as soon as it arrives.

    Ctrl-C also reaches the program before the pipe, so the first one keeps reading that program's last words;
    the second one stops.
    """
    if sys.stdin is None:
        raise LlamaparError("there is nothing to read: stdin is closed", "", ["--file FILE"], "text")
    buffer = getattr(sys.stdin, "buffer", None) or io.BytesIO(sys.stdin.read().encode("utf-8", "replace"))
    patient = not sys.stdin.isatty()
    while True:
        try:
            with interrupts.raised():
                piece = buffer.read1(_PIECE)
        except KeyboardInterrupt:
            if not patient:
                raise
            patient = False
            continue
        except OSError as problem:
            raise LlamaparError(f"stdin: {problem.strerror}", "", ["--file FILE"], "text") from None
        if not piece:
            return
        yield piece


def _echoed(pieces: Iterable[bytes], stream: IO[str] | None) -> Iterator[bytes]:
    """The pieces, each passed on as it arrives. A failed output stream is ignored, so that the job
    continues.
    """
    for piece in pieces:
        if stream is not None:
            try:
                if binary := cast("IO[bytes] | None", getattr(stream, "buffer", None)):
                    binary.write(piece)
                else:
                    stream.write(piece.decode("utf-8", "replace"))
                stream.flush()
            except OSError:
                mute(stream)
                stream = None
        yield piece


COMMAND = Command(
    "the cause of an error message, a traceback, a log or a wrong shape",
    "explain",
    "llamapar explain 'embed_tokens.weight is [16064, 8192]' --tp 8\n"
    "  llamapar explain --file train.log --model llama3-70b --tp 16\n"
    "  llamapar explain --file train.log --config train.toml --launch run.slurm\n"
    "  llamapar explain dumps/ --model llama3-8b --tp 8 --dp 4\n"
    "  torchrun --nproc-per-node 8 train.py 2>&1 | llamapar explain -",
    positional=(
        (
            "text",
            "the text in quotes, a folder of flight records, or - for what another program says on a pipe",
        ),
    ),
    exits="0 explained, 1 not known",
    answer=_answer,
    surplus="the whole text in quotes",
    helps={
        "model": f"{OPTIONS['model'].help}, or a public model's name",
        **{axis: f"{AXIS_TITLES[axis]} ranks, if known" for axis in AXES},
        "virtual_stages": "pipeline stages per rank, if known",
        "framework": "framework that wrote the text: any that `llamapar check` knows",
    },
)
