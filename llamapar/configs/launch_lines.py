"""Launch lines: the commands of a script as words, with its variables put in. Nothing is run.

Read are NAME=value above a line or in front of it, `$NAME`, `${NAME:-default}`, arrays, files that the script
sources, and lines that a backslash continues. What a condition, a loop, a function or another program decides
keeps its "$", and no reader takes a word with "$" for a value.
"""

from __future__ import annotations

import io
import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from string import Template

from .meter import Meter, numbered_matches

_WORD, _READERS = 20, 10
"""Steps of making a word, and times that readers look at each."""

UNRESOLVED = "$…"
"""Stands for what a program prints."""


@dataclass(frozen=True)
class Word:
    """One argument of a command or a directive, with its line."""

    text: str
    line: int

    @property
    def known(self) -> bool:
        return "$" not in self.text


@dataclass(frozen=True)
class ShellCommand:
    """A command that the script would start: its words, and the variables set in front of it."""

    words: tuple[Word, ...]
    environment: dict[str, Word] = field(default_factory=dict)


@dataclass(frozen=True)
class Script:
    """The content of a script. variables: the words of each at the end; directives: of #SBATCH and others."""

    commands: tuple[ShellCommand, ...]
    variables: dict[str, tuple[Word, ...]]
    directives: tuple[Word, ...]

    @property
    def started(self) -> list[tuple[Word, ...]]:
        """The words of each command, but for what it only prints."""
        return [command.words for command in self.commands if command.words[0].text != "echo"]

    @property
    def lines(self) -> tuple[tuple[Word, ...], ...]:
        """The words of each command and each variable."""
        return (*(command.words for command in self.commands), *self.variables.values())


_DIRECTIVE = re.compile(r"^#(?:SBATCH|PBS|\$|BSUB)\s+(.*)$", re.M)


def directives_of(text: str) -> tuple[Word, ...]:
    """The words of #SBATCH lines, and of the like of other schedulers; nothing else of the script is read."""
    return tuple(
        Word(word, line)
        for line, match in numbered_matches(_DIRECTIVE, text)
        for word in match.group(1).partition(" #")[0].split()
    )


# -- from characters to words ----------------------------------------------------------------------

_WITHIN = "\v"
"""Stands for the end of a line that does not end its command; a blank, and counted as a line."""

_HEREDOC = re.compile(r"(?<!<)<<-?[ \t]*['\"\\]?([A-Za-z_]\w*)")

_PIECES = re.compile(
    r"""
    '[^']*+' | "(?:\\.|[^"\\])*+"                                   # quoted
    | (?<!\S)(?P<comment>\#[^\n]*+)
    | (?P<joined>\\\n) | \\.
    """,
    re.VERBOSE | re.DOTALL,
)

_OUTPUT = re.compile(r"`[^`\n]*+`|\$\((?:[^()]|\((?:[^()]|\([^()]*+\))*+\))*+\)")
"""What a program prints, and sums, with at most two parentheses in each other."""

_SUM = re.compile(r"\(\(([^()\n]*+)\)\)")
"""A sum as a command, which sets variables as `let` does."""

_OPERATORS = ";&|()<>\n"


def _prepared(text: str) -> str:
    """The text without heredocs, comments and what programs print; a newline ends a command."""
    rows = list[str]()
    end = ""
    for row in text.replace("\r\n", "\n").split("\n"):
        if end:
            rows.append("")
            if row.strip() == end:
                end = ""
            continue
        rows.append(row)
        if heredoc := _HEREDOC.search(row):
            end = heredoc[1]

    def piece(match: re.Match[str]) -> str:
        found = match.group()
        if match["comment"]:
            return ""
        if match["joined"]:
            return f" {_WITHIN}"
        return found.replace("\\\n", f" {_WITHIN}").replace("\n", _WITHIN)

    unprinted = _OUTPUT.sub(lambda output: UNRESOLVED + _WITHIN * output[0].count("\n"), "\n".join(rows))
    return _PIECES.sub(piece, _SUM.sub(r" let \1 ", unprinted))


def _tokens(text: str) -> Iterator[tuple[Word, bool]]:
    """The words and operators of a prepared text, each with whether it is an operator."""
    source = io.StringIO(text)
    lexer = shlex.shlex(source, posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace = f" \t{_WITHIN}"
    lexer.commenters = ""
    lexer.whitespace_split = True
    line = 1
    seen = 0
    try:
        for token in lexer:
            # The lexer has read one character behind a word, and an operator's characters too.
            at = source.tell() - 1
            line += text.count("\n", seen, at) + text.count(_WITHIN, seen, at)
            seen = max(at, seen)
            is_operator = token != "" and not token.strip(_OPERATORS)
            yield Word(token, line - token.count(_WITHIN)), is_operator
    except ValueError:  # A quote without its end: what follows cannot be read.
        yield Word(f"{UNRESOLVED}arguments", line), False
    yield Word("\n", line), True


def _split(word: Word) -> Iterator[Word]:
    """The words of a variable's text, with their lines."""
    line = word.line
    for part in re.split(rf"([ \t\n{_WITHIN}]+)", word.text):
        if part.strip():
            yield Word(part, line)
        line += part.count(_WITHIN)


# -- from words to commands ------------------------------------------------------------------------


class _Expansion(Template):
    """`$NAME`, `${NAME}`, `${NAME[@]}` and `${NAME:-default}`."""

    flags = re.ASCII
    idpattern = r"[A-Za-z_]\w*"
    braceidpattern = r"[A-Za-z_]\w*(?:\[[@*]\]|:?[-=][^{}$]*)?"


_ASSIGNED = re.compile(r"([A-Za-z_]\w*)\+?=")
_WHOLE = re.compile(r"\$\{?([A-Za-z_]\w*)(\[[@*]\])?\}?")
_OPENS = ("if", "for", "while", "until", "case", "select", "{")
_CLOSES = ("fi", "done", "esac", "}")
_BEFORE = ("then", "do", "else", "!", "time", "exec", "eval", "export", "local", "declare", "readonly")
"""Words that a command or an assignment stands behind."""
_SETS = ("for", "read", "unset", "let", "select", "mapfile", "readarray")
"""Words that set the variables named behind them."""
_ACTIVATES = re.compile(r"activate|conda|bashrc|profile|set_?env|setvars|/etc/|venv", re.I)
"""In the paths of sourced files that set up programs, and hold no settings of a run."""


def _perhaps(name: str, words: Sequence[Word]) -> Iterator[Word]:
    """Words that only some runs have, as flags without a value that is known; without flags only a "$"."""
    flags = [word for word in words if word.text.startswith("-")]
    for flag in flags:
        yield Word(flag.text.partition("=")[0], flag.line)
        yield Word("$", flag.line)
    # What stands behind a flag is its value; another word that is not known may hold flags of its own.
    pairs = itertools.pairwise([Word("", 0), *words])
    if (words and not flags) or any(not w.known and not b.text.startswith("-") for b, w in pairs):
        yield Word(f"${name}", words[0].line)


class _Lines(dict[str, str]):
    """The variables of a script while it is read, by the names that an expansion asks for.

    beside: other files of the job by name, which the script may source.
    """

    def __init__(self, environment: Mapping[str, str], beside: Mapping[str, str], meter: Meter) -> None:
        super().__init__()
        self.words: dict[str, tuple[Word, ...]] = {name: (Word(t, 0),) for name, t in environment.items()}
        self.commands = list[ShellCommand]()
        self.beside = dict(beside)
        self.meter = meter
        self.depth = 0
        self.sourced = False  # whether a file that is not at hand may have set variables

    def __missing__(self, key: str) -> str:
        name, *default = re.split(r"\[[@*]\]|:?[-=]", key, maxsplit=1)
        words = self.words.get(name)
        if words is not None:
            text = " ".join(word.text for word in words)
        elif default and not key.endswith("]") and not self.sourced:
            text = default[0]
            if "=" in key:
                self.words[name] = (Word(text, 0),)
        else:
            raise KeyError(key)
        self.meter.spend(len(text))
        return text

    def text(self, raw: str) -> str:
        """A raw word with its variables put in. A script that is read has no arguments of its own."""
        self.meter.spend(len(raw) + 1)
        return _Expansion(re.sub(r"\$\{?[@*]\}?", "", raw)).safe_substitute(self)

    def expanded(self, raw: Word) -> list[Word]:
        """The words that a raw word becomes; a command line in quotes is split, too."""
        whole = _WHOLE.fullmatch(raw.text)
        words = None
        if whole:
            words = self.words.get(whole[1])
        if words is not None:
            self.meter.spend(sum(len(word.text) + _WORD for word in words))
            return [part for word in words for part in _split(word)]
        word = Word(self.text(raw.text), raw.line)
        splits = word.text != raw.text or re.search(r"(?:^|\s)--?\w", word.text)
        if splits:
            return [*_split(word)]
        return [word]

    def assign(self, raw: Word, values: list[Word] | None = None, certain: bool = True) -> None:
        """NAME=value, NAME+=value, or with `values` an array. certain: whether it surely happens."""
        name, _, rest = raw.text.partition("=")
        adds = name.endswith("+")
        name = name.rstrip("+")
        before = self.words.get(name, ())
        itself = re.compile(rf"\$\{{?{name}(?:\[[@*]\])?\}}?(?!\w)")
        parts = [Word(rest, raw.line)] if values is None else values
        grown = any(itself.fullmatch(part) for word in parts for part in word.text.split())
        if adds and (values is not None or rest[:1].isspace()):
            grown = True
        elif adds:  # What is joined without a blank is one word.
            parts = [Word("".join(word.text for word in before) + rest, raw.line)]
        if grown:
            parts = [Word(itself.sub("", part.text), part.line) for part in parts]
        new = [word for part in parts for word in self.expanded(part)]
        self.meter.spend(len(before) + len(new))
        if certain and not self.depth:
            self.words[name] = (*before, *new) if grown else tuple(new)
        elif grown:
            self.words[name] = (*before, *_perhaps(name, new))
        elif [word.text for word in before] != [word.text for word in new]:
            self.words[name] = tuple(_perhaps(name, [*before, *new]))

    def statement(self, words: list[Word], certain: bool) -> None:
        """Take up one statement. certain: whether it is not behind `||` or a test."""
        while words and words[0].text in _BEFORE:
            words = words[1:]
        head = ""
        if words:
            head = words[0].text
        if head in _OPENS:
            self.depth += 1
        if head in _CLOSES:
            self.depth = max(0, self.depth - 1)
        if head in _SETS:
            for word in words[1 : 2 if head in _OPENS else None]:
                if match := re.match(r"[A-Za-z_]\w*", word.text):
                    self.words[match.group()] = (Word(f"${match.group()}", word.line),)
        if head in ("source", ".") and len(words) > 1:
            self.source(self.text(words[1].text))
        if head in (*_OPENS, *_CLOSES):
            words = words[1:]
        first = next((n for n, word in enumerate(words) if not _ASSIGNED.match(word.text)), len(words))
        if first == len(words):
            for word in words:
                self.assign(word, certain=certain)
            return
        environment = {
            word.text.partition("=")[0]: Word(self.text(word.text.partition("=")[2]), word.line)
            for word in words[:first]
        }
        expanded = tuple(word for raw in words[first:] for word in self.expanded(raw))
        if expanded:
            self.commands.append(ShellCommand(expanded, environment))

    def source(self, path: str) -> None:
        """Read another file in this shell; one that is not at hand may set every variable that is unset."""
        # Each file is read once, so that two that run each other come to an end.
        text = self.beside.pop(path.rpartition("/")[2], None)
        if text is not None:
            self.read(text)
        elif not _ACTIVATES.search(path):
            self.sourced = True

    def read(self, text: str) -> None:
        """Take up every statement of a script."""
        prepared = _prepared(text)
        self.meter.spend(len(prepared))
        words = list[Word]()
        certain = True
        array: Word | None = None
        items = list[Word]()
        for word, is_operator in _tokens(prepared):
            if not is_operator:
                (words if array is None else items).append(word)
            elif array is not None:
                if ")" in word.text:
                    self.assign(array, items, certain)
                    array = None
                    items = []
            elif word.text.rstrip("\n") == "(" and words and re.fullmatch(r"\w+\+?=", words[-1].text):
                array = words.pop()
            elif word.text in ("<", ">", ">>", ">&", "&>", "<<<"):
                words.append(Word("", word.line))  # parts the flags from what a redirection names
            else:
                tests = bool(words) and words[0].text in ("[", "[[", "test")
                self.statement(words, certain)
                words = []
                certain = not ("||" in word.text or ("&&" in word.text and tests))


def read_lines(
    text: str,
    environment: Mapping[str, str],
    beside: Mapping[str, str],
    meter: Meter,
) -> Script:
    """The commands and variables of a script. environment: the variables that it finds."""
    lines = _Lines(environment, beside, meter)
    lines.read(text)
    script = Script(tuple(lines.commands), lines.words, directives_of(text))
    lines.meter.spend(_READERS * sum(len(word.text) + 1 for words in script.lines for word in words))
    return script
