"""Files of settings that grow to any size, each the worst case of a reader, and values that break parsers."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

_RUN = "torchrun --nproc_per_node 8 x.py --tensor-model-parallel-size 2 --num-layers 8\n"
_TITAN = '[model]\nname = "llama3"\nflavor = "8B"\n'
_AXOLOTL = "base_model: m\nsequence_len: 64\nmicro_batch_size: 2\ntensor_parallel_size: 2\n"


def _repeated(size: int, unit: str, start: str = "", end: str = "") -> str:
    """A unit, in which § is its number, until `size` characters are full."""
    parts, length, number = [start], len(start) + len(end), 0
    while length < size:
        parts.append(unit.replace("§", str(number)))
        length += len(parts[-1])
        number += 1
    return "".join((*parts, end))


STARTS = {"{RUN}": _RUN, "{LINE}": _RUN.rstrip(), "{TITAN}": _TITAN, "{AXOLOTL}": _AXOLOTL}


def _filled(text: str) -> str:
    for name, start in STARTS.items():
        text = text.replace(name, start)
    return text


def _files(size: int, row: dict[str, str]) -> dict[str, str]:
    """The file of a row of growing_settings.toml, of about so many characters."""
    start, end = _filled(row.get("start", "")), _filled(row.get("end", ""))
    if "opening" in row:
        many = max(1, size // (len(row["opening"]) + len(row["closing"])))
        text = start + row["opening"] * many + row.get("inside", "") + row["closing"] * many
    elif "then" in row:
        middle = row.get("middle", "")
        text = _repeated(size // 2, row["unit"], start) + middle + _repeated(size // 2, row["then"], end=end)
    else:
        text = _repeated(size, row["unit"], start, end)
    return {row["file"]: text}


_BOMB = "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True)
)

_ROWS = tomllib.loads(Path(__file__).with_name("growing_settings.toml").read_text("utf-8"))
GROWING: dict[str, Callable[[int], dict[str, str]]] = {
    **{name: partial(_files, row=row) for name, row in _ROWS.items()},
    "a long text in defaults": lambda size: {
        "a.sh": f"{_RUN}A={'${a:-' * 100}{_repeated(size, '[({x})]')}{'}' * 100}\n"
    },
    "calls of another script": lambda size: {
        "a.sh": _repeated(size // 2, "bash b.sh 1\n"),
        "b.sh": _repeated(size // 2, "A§=1\n", _RUN),
    },
    "a key that is a bomb": lambda size: {
        "a.yaml": f"{_AXOLOTL}a: &a [{'x, ' * 9}]\n{_BOMB}? *j\n: 1\n{'#' * size}"
    },
}
"""What is repeated → the files of about so many characters."""


_DEEP = {"[": "]", "{x: ": "}", "- ": "", "? ": "", "(": ")", "f(": ")", "{1:": "}", '{"x":': "}", "not ": ""}
_WORDS = """
1e999 -1 --5 .nan .inf NaN 2024-01-01 2024-99-99 12:30:45 !!float *b ${99999999999999999999} $((1/0)) $((1%0))
"${A[@]}" ' " ''' \"\"\" \\ # | > { } [ ] =[] ²
"""
_PHRASES: tuple[str, ...] = (
    "!!timestamp x",
    "!!int x",
    "!!bool x",
    "!!binary é",
    "!!set x",
    "!!map x",
    "!!null x",
    "!x y",
)
_PHRASES += (
    "&a *a",
    "<<: *a",
    "? [a, b]\n: 1\n",
    "? {a: 1}\n: 2\n",
    "A=()\n",
    "[ ² -eq 1 ]",
    "[ --5 -eq 5 ]",
)
_LONG: tuple[str, ...] = (
    "9" * 5000,
    "9" * 400,
    "1" + ":1" * 300 + ".5",
    "0x" + "f" * 5000,
    "${a:-" * 250,
    "$((" * 250,
    "$(" * 300,
)
_LONG += ("`" * 301, "!" * 10, "${" + "9" * 5000 + "}", "if [ 1 = 1 ]; then\n" * 400, "+1" * 500, "-" * 5000)
_LONG += ("." * 300, ".a" * 300, "WORLD_SIZE=" + "9" * 5000, "SEQUENCE_LENGTH_" + "9" * 5000 + "K")
SPOILT = (
    *("\0", "\ud800", "\x1b", "\ufeff", "\t", "\r\n", "\r", "\x0c", "\u2028", "٣", "\ufffc"),
    *(*_WORDS.split(), *_PHRASES, *_LONG),
    *(opening * 400 + "1" + closing * 400 for opening, closing in _DEEP.items()),
)
"""What stands in no file that anybody means."""


def _strange() -> Iterable[tuple[str, dict[str, str]]]:
    starts = {
        "a.sh": _RUN,
        "a.toml": f"{_TITAN}x = ",
        "a.json": '{"zero_optimization": {"stage": ',
        "a.yaml": f"{_AXOLOTL}x: ",
    }
    for name, start in starts.items():
        for piece in SPOILT:
            shown = piece[:12].encode("ascii", "backslashreplace").decode()
            yield f"{name} {shown!r} {len(piece)}", {name: start + piece + "\n"}
    yield "an escape character in YAML", {"a.yaml": f"{_AXOLOTL}x: \x1b\n"}
    yield "a tag that the value breaks", {"a.yaml": f"{_AXOLOTL}x: !!timestamp x\n"}
    yield "a number of many digits in Python", {"a.py": f"import torchtitan\nx = {'9' * 5000}\n"}


STRANGE = dict(_strange())
"""What is strange → the files."""
