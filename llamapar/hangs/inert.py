"""Bytes of a dump as plain values: JSON, or a pickle that is never executed.

Pickles go to `describe.pickles`, which looks nothing up, and turns pairs into lists: nested ones as a key
could take for ever to hash.
"""

from __future__ import annotations

import json
import pickle

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
    form = "pickle"
    if start == b"{":
        form = "JSON"
    if start not in (b"{", pickle.PROTO):
        raise refused(where, "neither JSON nor a pickle")
    try:
        if form == "JSON":
            value = json.loads(data)
        else:
            value = pickles.load_pickle(data, (), where, tuples=False)
    except CheckpointError as problem:
        if "cut off" in problem.what or "damaged" in problem.what:
            raise CutOff(f"its {form} is cut off or damaged") from None
        raise refused(where, problem.what.removeprefix(f"{where}: ").partition(", which no")[0]) from None
    except RecursionError:
        raise refused(where, f"its {form} is nested too deeply") from None
    except (LookupError, ValueError) as problem:
        # Python limits the digits of an int and says so in a ValueError of its own.
        if "integer string conversion" in str(problem):
            raise refused(where, "its JSON holds a number of thousands of digits") from None
        raise CutOff(f"its {form} is cut off or damaged") from None
    if not isinstance(value, dict):
        raise refused(where, f"it is {type(value).__name__}, not a mapping")
    return value


def refused(where: str, what: str) -> LlamaparError:
    return LlamaparError(f"{where}: {what}", "no flight record of torch's looks like that", (), "text")
