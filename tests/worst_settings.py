"""Files of settings that grow to any size, each the worst case of a reader, and values that break parsers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

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


def _halves(size: int, first: str, second: str, start: str = "", middle: str = "", end: str = "") -> str:
    """One unit for half of the characters, then another one for the other half."""
    return _repeated(size // 2, first, start) + middle + _repeated(size // 2, second, end=end)


def _named(name: str, unit: str, start: str = "", end: str = "") -> Callable[[int], dict[str, str]]:
    return lambda size: {name: _repeated(size, unit, start, end)}


def _split(name: str, first: str, second: str, **rest: str) -> Callable[[int], dict[str, str]]:
    return lambda size: {name: _halves(size, first, second, **rest)}


def _nested(
    name: str, opening: str, closing: str, inside: str = "", start: str = ""
) -> Callable[[int], dict[str, str]]:
    def text(size: int) -> dict[str, str]:
        many = max(1, size // (len(opening) + len(closing)))
        return {name: start + opening * many + inside + closing * many}

    return text


_BOMB = "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True)
)

GROWING: dict[str, Callable[[int], dict[str, str]]] = {
    # shell
    "variables, then ifs": _split("a.sh", "A§=1\n", "if [ $x = 1 ]; then\nB=1\nfi\n", start=_RUN),
    "nested ifs": _nested("a.sh", "if [ $x = 1 ]; then\nA=1\n", "fi\n", start=_RUN),
    "ifs without an end": _named("a.sh", "if [ $x = 1 ]; then\n", _RUN),
    "directives": _named("a.sh", "#SBATCH --a§=1\n", "#!/bin/bash\n" + _RUN),
    "variables, then prefixes": _split("a.sh", "A§=1\n", "B=1 x\n", start=_RUN),
    "prefixes of a command": _named("a.sh", "A§=1 ", _RUN, _RUN),
    "a variable that is added to": _named("a.sh", "A+=x\n", _RUN),
    "a variable put in itself": _named("a.sh", 'A="$A x"\n', _RUN),
    "a variable that doubles": _named("a.sh", "A=$A$A\n", "A=xxxxxxxx\n", _RUN),
    "an array that is added to": _named("a.sh", "A+=(x)\n", _RUN),
    "an array put in words": _split("a.sh", "x ", 'y "${A[@]}"\n', start="A=(", middle=")\n", end=_RUN),
    "an array, its first word": _split("a.sh", "x ", "y $A\n", start="A=(", middle=")\n", end=_RUN),
    "a long variable put in commands": _split("a.sh", "x", "y $A\n", start="A=", middle="\n", end=_RUN),
    "a long word": _named("a.sh", "x", _RUN),
    "a long quoted word": _named("a.sh", "x\\y", f'{_RUN}A="', '"\n'),
    "a word of many": _named("a.sh", "$A", 'A="x y z"\n' + _RUN, "\n"),
    "values of a flag": _named("a.sh", " x§", _RUN.rstrip() + " --a"),
    "flags": _named("a.sh", " --a§ 1", _RUN.rstrip()),
    "commands with flags": _named("a.sh", _RUN),
    "commands that are cut off": _named("a.sh", "--num-layers § \\\n# x\n", _RUN.rstrip() + " \\\n# x\n"),
    "variables of flags": _named("a.sh", 'A§="--num-layers § --tensor-model-parallel-size 2"\n'),
    "defaults in defaults": _nested("a.sh", "${a:-", "}", "8", _RUN + "A="),
    "a long text in defaults": lambda size: {
        "a.sh": f"{_RUN}A={'${a:-' * 100}{_repeated(size, '[({x})]')}{'}' * 100}\n"
    },
    "sums in sums": _nested("a.sh", "$((", "))", "8", _RUN + "A="),
    "outputs without an end": _named("a.sh", "$(", _RUN),
    "quotes without an end": _named("a.sh", "a'b \"c `", _RUN),
    "braces without an end": _named("a.sh", "${a ", _RUN),
    "double parentheses": _named("a.sh", "((", _RUN),
    "a sum without an end": _named("a.sh", "() ", _RUN + "(("),
    "arrays in arrays": _named("a.sh", "A=(", _RUN),
    "heredocs": _named("a.sh", "cat <<A\nx\nA\n", _RUN),
    "heredocs in a line": _named("a.sh", "<<A§ ", _RUN + "cat ", "\nx\n"),
    "blanks": _named("a.sh", " \t", _RUN + "x", "y\n"),
    "continued lines": _named("a.sh", "\\\n", _RUN + "x ", "y\n"),
    "a line of #": _named("a.sh", "#", _RUN + "x "),
    "a word of #": _named("a.sh", "#", _RUN + "x"),
    "comments": _named("a.sh", "# 1 \n", _RUN),
    "digits": _named("a.sh", "1", _RUN + "x "),
    "calls of another script": lambda size: {
        "a.sh": _repeated(size // 2, "bash b.sh 1\n"),
        "b.sh": _repeated(size // 2, "A§=1\n", _RUN),
    },
    "loops": _named("a.sh", "for i in a b; do\nx $i\ndone\n", _RUN),
    "fences": _named("a.md", "```\nx\n```\n", "```\n" + _RUN + "```\n"),
    "words of hydra": _named("a.sh", " a§=1", "x max_target_length=8 "),
    "words with dots": _named("a.sh", " a.b.c.d=1", _RUN.rstrip()),
    # pasted
    "pasted newlines": _named("", "\n", "a"),
    "pasted #": _named("", "#", "a"),
    "pasted blanks": _named("", "\n \t", "a"),
    "pasted commas": _named("", ",\n ", '{"a": 1'),
    "pasted dashes": _named("", "-a", "a "),
    "pasted words": _named("", "a", "a: "),
    # TOML
    "a dotted key": _named("a.toml", ".a", _TITAN + "a", " = 1\n"),
    "a dotted table": _named("a.toml", ".a", _TITAN + "[a", "]\nx = 1\n"),
    "a quoted dotted key": _named("a.toml", ".'a b'", _TITAN + "a", " = 1\n"),
    "a dotted key inside": _named("a.toml", " . a", _TITAN + "x = {a", " = 1}\n"),
    "long dotted keys": _named("a.toml", "a.a.a.a.a.a.a.a§ = 1\n", _TITAN),
    "a long table": _split("a.toml", "a", "x§ = 1\n", start=_TITAN + "[", middle="]\n"),
    "keys": _named("a.toml", "x§ = 1\n", _TITAN),
    "lists of TOML": _nested("a.toml", "[", "]", "1", _TITAN + "x = "),
    "tables in tables": _nested("a.toml", "{x = ", "}", "1", _TITAN + "x = "),
    "tables of a list": _named("a.toml", "[[x]]\na = 1\n", _TITAN),
    "blanks of TOML": _named("a.toml", " ", _TITAN + "x", " = [\n1]\n"),
    "newlines of TOML": _named("a.toml", "\n", _TITAN),
    "a line of # in TOML": _named("a.toml", "#", _TITAN),
    "comments of TOML": _named("a.toml", "# 1 GPU\n", _TITAN),
    "numbers of a comment": _named("a.toml", "1 ", _TITAN + "# "),
    "blanks of a comment": _named("a.toml", " ", _TITAN + "# 1", "x\n"),
    "numbers and blanks of comments": _named("a.toml", "# 123456\n\n", _TITAN),
    "a text of TOML": _named("a.toml", "a.b\\n", _TITAN + 'x = "', '"\n'),
    "lines of a text of TOML": _named("a.toml", "a = 1\n", _TITAN + 'x = """', '"""\n'),
    "a number of TOML": _named("a.toml", "9", _TITAN + "x = "),
    "a hexadecimal of TOML": _named("a.toml", "f", _TITAN + "x = 0x"),
    # JSON
    "keys of JSON": _named("a.json", '"k§": 1, ', '{"zero_optimization": {"stage": 1}, ', '"x": 1}'),
    "repeated keys of JSON": _named("a.json", '"k": 1, ', '{"zero_optimization": {"stage": 1}, ', '"x": 1}'),
    "a long key of JSON": _split(
        "a.json",
        "a",
        '"k§": 1, ',
        start='{"zero_optimization": {"stage": 1}, "',
        middle='": {',
        end='"x": 1}}',
    ),
    "lists of JSON": _nested("a.json", "[", "]", "1"),
    "a text of JSON": _named("a.json", "\\n", '{"zero_optimization": {"stage": 1}, "x": "', '"}'),
    "a number of JSON": _named("a.json", "9", '{"zero_optimization": {"stage": ', "}}"),
    # YAML
    "repeated keys of YAML": _named("a.yaml", "a: 1\n", _AXOLOTL),
    "repeated tables of YAML": _named("a.yaml", "a: {x: 1}\na: 1\n", _AXOLOTL),
    "keys, then repeated tables": _split("a.yaml", "k§: 1\n", "a: {x: 1}\na: 1\n", start=_AXOLOTL),
    "keys of YAML": _named("a.yaml", "k§: 1\n", _AXOLOTL),
    "keys with dots": _split("a.yaml", ".", "  k§: 1\n", start=_AXOLOTL + "a", middle=":\n"),
    "a long key of YAML": _split("a.yaml", "a", "  k§: 1\n", start=_AXOLOTL + "? ", middle="\n:\n"),
    "a number of base 60": _named("a.yaml", ":1", _AXOLOTL + "a: 1"),
    "a fraction of base 60": _named("a.yaml", ":1", _AXOLOTL + "a: 1", ":1.5\n"),
    "numbers of base 60": _named("a.yaml", "k§: " + "1:" * 200 + "1\n", _AXOLOTL),
    "a number of YAML": _named("a.yaml", "9", _AXOLOTL + "a: "),
    "an octal of YAML": _named("a.yaml", "7", _AXOLOTL + "a: 0"),
    "lists of YAML": _nested("a.yaml", "[", "]", "1", _AXOLOTL + "x: "),
    "a list of YAML": _named("a.yaml", "1, ", _AXOLOTL + "x: [", "1]\n"),
    "lines of lists": _named("a.yaml", "- ", _AXOLOTL + "x:\n  ", "1\n"),
    "questions": _named("a.yaml", "? ", _AXOLOTL),
    "a long anchored text": _split(
        "a.yaml", "a", "*a,\n", start=_AXOLOTL + "a: &a !x ", middle="\nb: [\n", end="1]\n"
    ),
    "a key that is a bomb": lambda size: {
        "a.yaml": f"{_AXOLOTL}a: &a [{'x, ' * 9}]\n{_BOMB}? *j\n: 1\n{'#' * size}"
    },
    "blanks of YAML": _named("a.yaml", " ", _AXOLOTL + "a:", "1\n"),
    "newlines of YAML": _named("a.yaml", "\n", _AXOLOTL),
    "a line of # in YAML": _named("a.yaml", "#", _AXOLOTL),
    "a text of YAML": _named("a.yaml", "\\n ", _AXOLOTL + 'a: "', '"\n'),
    "lines of a text of YAML": _named("a.yaml", "  a: 1\n", _AXOLOTL + "a: |\n"),
    "references": _named(
        "a.yaml",
        "${a} ",
        "model:\n  tensor_model_parallel_size: 1\n  encoder_seq_length: 8\n  micro_batch_size: ",
    ),
    "a long name of a model": _named("a.yaml", "llama-", "base_model: ", "\nsequence_len: 8\n"),
    # Python, which is only looked through for names of recipes
    "functions": _named("a.py", "def f§(): return g()\n"),
    "calls of a plugin": _named("a.py", "HybridParallelPlugin(a§=1)\n", "HybridParallelPlugin(tp_size=1)\n"),
}
"""What is repeated → the files of about so many characters."""


def growing(names: Iterable[str] = GROWING) -> Iterable[tuple[str, Callable[[int], dict[str, str]]]]:
    return ((name, GROWING[name]) for name in names)


_DEEP = {"[": "]", "{x: ": "}", "- ": "", "? ": "", "(": ")", "f(": ")", "{1:": "}", '{"x":': "}", "not ": ""}
SPOILT = (
    *("\0", "\ud800", "\x1b", "\ufeff", "\t", "\r\n", "\r", "\x0c", "\u2028", "²", "٣", "\ufffc"),
    *(
        "9" * 5000,
        "9" * 400,
        "1" + ":1" * 300 + ".5",
        "0x" + "f" * 5000,
        "1e999",
        "-1",
        "--5",
        ".nan",
        ".inf",
        "NaN",
    ),
    *(
        "2024-01-01",
        "2024-99-99",
        "12:30:45",
        "!!timestamp x",
        "!!int x",
        "!!float",
        "!!bool x",
        "!!binary é",
    ),
    *(
        "!!set x",
        "!!map x",
        "!!null x",
        "!x y",
        "&a *a",
        "*b",
        "<<: *a",
        "? [a, b]\n: 1\n",
        "? {a: 1}\n: 2\n",
    ),
    *(
        "${a:-" * 250,
        "$((" * 250,
        "$(" * 300,
        "`" * 301,
        "!" * 10,
        "${99999999999999999999}",
        "${" + "9" * 5000 + "}",
    ),
    *(
        "if [ 1 = 1 ]; then\n" * 400,
        "$((1/0))",
        "$((1%0))",
        "A=()\n",
        '"${A[@]}"',
        "[ ² -eq 1 ]",
        "[ --5 -eq 5 ]",
    ),
    *(
        "+1" * 500,
        "-" * 5000,
        "." * 300,
        ".a" * 300,
        "'",
        '"',
        "'''",
        '"""',
        "\\",
        "#",
        "|",
        ">",
        "{",
        "}",
        "[",
        "]",
    ),
    *(
        "WORLD_SIZE=" + "9" * 5000,
        "=[]",
        "SEQUENCE_LENGTH_" + "9" * 5000 + "K",
    ),
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
