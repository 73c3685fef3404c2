"""Bytes of a dump as plain values: JSON, or a pickle that is never executed.

torch's own pickles use only a few kinds of short opcodes, and texts. `_torchs` walks over them run by run;
pickles that pass are safe for Python's unpickler. Any other pickle goes to `describe.pickles`.
"""

from __future__ import annotations

import io
import json
import pickle
import re

from llamapar.describe import pickles
from llamapar.errors import CheckpointError, LlamaparError
from llamapar.records.tables import Plain


class CutOff(Exception):
    """A dump whose end, or whole content, is missing or damaged; the message says which."""


def plain_mapping(data: bytes, where: str) -> Plain:
    """The mapping in a dump. Raises CutOff, or LlamaparError for a file that is no flight record."""
    if not data.strip():
        raise CutOff("empty")
    start = data[:64].lstrip()[:1]
    form = "JSON" if start == b"{" else "pickle"
    if start not in (b"{", pickle.PROTO):
        raise refused(where, "neither JSON nor a pickle")
    try:
        if form == "JSON":
            value = json.loads(data)
        elif (trusted := _torchs(data)) is not None:
            value = _PlainUnpickler(io.BytesIO(trusted)).load()
        else:
            value = pickles.load_pickle(data, (), where, tuples=False)
    except CheckpointError as problem:
        if "cut off" in problem.what or "damaged" in problem.what:
            raise CutOff(f"its {form} is cut off or damaged") from None
        raise refused(where, problem.what.removeprefix(f"{where}: ").partition(", which no")[0]) from None
    except RecursionError:
        raise refused(where, f"its {form} is nested too deeply") from None
    except (pickle.UnpicklingError, EOFError, LookupError, TypeError, ValueError, AttributeError) as problem:
        # Python limits the digits of an int and says so in a ValueError of its own.
        if "integer string conversion" in str(problem):
            raise refused(where, "its JSON holds a number of thousands of digits") from None
        raise CutOff(f"its {form} is cut off or damaged") from None
    if not isinstance(value, dict):
        raise refused(where, f"it is {type(value).__name__}, not a mapping")
    return value


def refused(where: str, what: str) -> LlamaparError:
    return LlamaparError(f"{where}: {what}", "no flight record of torch's looks like that", (), "flight")


# -- pickles ---------------------------------------------------------------------------------------

_LONGS = b"|".join(rb"\x8a%c.{%d}" % (n, n) for n in range(1, 9))
_RUN = re.compile(
    rb"(?s:[N\x88\x89(\]}aesu]|[Khq].|M..|[Jj]....|r..[\0-\x3f]\0|G.{8}|"
    + _LONGS.replace(b"\n", rb"\n")
    + rb")*+"
)
"""Opcodes of torch's pickler that neither name anything nor tell their own length; numbers have at most 8
bytes, and the memo is numbered below 2**22, so that it stays small."""

_PAIR, _TEXT = pickle.TUPLE2[0], pickle.BINUNICODE[0]


class _PlainUnpickler(pickle.Unpickler):
    """Python's unpickler for pickles that passed `_torchs`; pairs become lists, which cannot be keys."""

    def persistent_load(self, pair: tuple[object, object]) -> list[object]:
        return list(pair)

    def find_class(self, module: str, name: str) -> object:
        # `_torchs` lets no opcode pass that would call this.
        raise pickle.UnpicklingError(f"{module}.{name}")


def _torchs(data: bytes) -> bytes | None:
    """A pickle with each pair turned into a list, if it contains only what torch's pickler writes for a dump.

    A tuple of tuples as a key could take for ever to hash, or overflow the stack.
    """
    if data[:2] != pickle.PROTO + b"\2":
        return None
    pieces, start, at, end = list[bytes](), 0, 2, len(data)
    while at < end:
        # One match takes a whole run of short opcodes: the speed of C for most of the file.
        at = _RUN.match(data, at).end()  # type: ignore[union-attr]
        code = data[at] if at < end else -1
        if code == _TEXT:
            # The opcode, four bytes of length, and the text itself, which is skipped unread.
            at += 5 + int.from_bytes(data[at + 1 : at + 5], "little")
        elif code == _PAIR:
            at += 1
            # BINPERSID calls persistent_load with the pair, which makes it a list; the file itself may
            # not contain it.
            pieces += data[start:at], pickle.BINPERSID
            start = at
        elif code == pickle.STOP[0]:
            return b"".join([*pieces, data[start:]])
        else:
            return None
    return None
