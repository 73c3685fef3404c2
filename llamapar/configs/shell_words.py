"""Split a shell script into words and operators, and evaluate its arithmetic."""

from __future__ import annotations

import ast
import itertools
import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass

from .meter import numbered_matches

_OPERATOR = re.compile(r"&&|\|\||;;|[;|&\n()]|[0-9]*(?:<<<|<<-?|>>|>&|<&|&>|[<>])")
_SAYS_NOTHING = re.compile(r"(?<=[^\\]\n)\s+|[^\S\n]+|#[^\n]*|\\\n")
"""Empty lines after the end of a line, blanks, a comment, the end of a line that is continued."""

SUM = re.compile(r"\(\([^()]*(?:\([^()]*\)[^()]*)*\)\)")
"""A sum as a command, or the three of a loop: `((n += 1))`, `for ((i = 0; i < 8; i++))`."""

ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?=)")


ENDS = {"then", "do", "else", "{", "!", "time", "export", "local", "declare", "readonly", "eval", "exec"}
"""Words that a command stands behind."""

ACTIVATES = re.compile(r"activate|conda|bashrc|profile|set_?env|setvars|/etc/|venv", re.I)
"""In the paths of sourced files that set up programs, and hold no settings of a run."""

HOLE = "\N{OBJECT REPLACEMENT CHARACTER}"
"""Stands where only a run of the script could tell, in front of the variable's name."""

OUTPUT = HOLE + "(…)"
"""Stands for what a command prints."""

_BLANKS, _ROW = re.compile(r"[ \t]*"), re.compile(r"^.*$", re.M)
_DIRECTIVE = re.compile(r"^#(?:SBATCH|PBS|\$|BSUB)\s+(.*)$", re.M)


@dataclass(frozen=True)
class Word:
    """One argument of a command or a directive, with its line."""

    text: str
    line: int

    @property
    def known(self) -> bool:
        return HOLE not in self.text


class Token(str):
    """A raw word or an operator, with its line."""

    line: int
    is_operator: bool

    def __new__(cls, text: str, line: int, is_operator: bool = False) -> Token:
        made = super().__new__(cls, text)
        made.line, made.is_operator = line, is_operator
        return made


_NESTING = {
    "(": re.compile(r"\\.|'[^']*(?:'|\Z)|[()]", re.DOTALL),
    "{": re.compile(r"\\.|'[^']*(?:'|\Z)|[{}]", re.DOTALL),
}
"""Opening bracket → what counts on the way to the one that closes it, and what is quoted."""


def closing_of(text: str, at: int, opening: str) -> int:
    """Position of the bracket that closes the one open before `at`, outside quotes; else the end."""
    depth = 1
    for match in _NESTING[opening].finditer(text, at):
        depth += (match.group() == opening) - (match.group() in ")}")
        if not depth:
            return match.start()
    return len(text)


def word_end(text: str, at: int) -> int:
    """Where the word that begins at `at` ends."""
    quoted = False
    while at < len(text):
        letter = text[at]
        if letter == "\\":
            at += 1
        elif letter == "`" or (letter == "'" and not quoted):
            end = text.find(letter, at + 1)
            at = len(text) if end < 0 else end
        elif letter == '"':
            quoted = not quoted
        elif text.startswith(("$(", "${"), at):
            at = closing_of(text, at + 2, text[at + 1])
        elif not quoted and (letter.isspace() or letter in ";|&()<>"):
            return at
        at += 1
    return len(text)


def shell_tokens(text: str) -> Iterator[Token]:
    """Words, operators and arrays, without comments and the bodies of heredocs."""
    at, line, waiting = 0, 1, list[str]()
    while at < len(text):
        if nothing := _SAYS_NOTHING.match(text, at):
            line += text.count("\n", at, nothing.end())
            at = nothing.end()
        elif text[at] == "\n":
            yield Token("\n", line, True)
            at, line = at + 1, line + 1
            for name in waiting:
                rows = _ROW.finditer(text, at)
                closes = next((r for r in rows if r.group().lstrip("\t").rstrip(" \t") == name), None)
                # A heredoc without its end runs to the end of the script, as in a shell.
                past = closes.end() if closes else len(text)
                line += text.count("\n", at, past)
                at = past
            waiting = []
        elif text.startswith("((", at) and (sums := SUM.match(text, at)):
            yield Token(sums.group(), line)
            line += text.count("\n", at, sums.end())
            at = sums.end()
        elif match := _OPERATOR.match(text, at):
            at = match.end()
            if match.group().lstrip("0123456789") in ("<<", "<<-"):
                at = word_end(text, begins := _BLANKS.match(text, at).end())  # type: ignore[union-attr]
                waiting.append(text[begins:at].strip("'\"\\"))
            else:
                yield Token(match.group(), line, True)
        else:
            end = word_end(text, at)
            if text[end : end + 1] == "(" and ASSIGNED.fullmatch(text, at, end):
                end = closing_of(text, end + 1, "(") + 1
            yield Token(text[at:end], line)
            line += text.count("\n", at, end)
            at = max(end, at + 1)


# -- expansion -------------------------------------------------------------------------------------

_SUMS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


def arithmetic(text: str) -> int | None:
    """The value of a shell's integer arithmetic; None for anything else."""

    def value(node: ast.AST) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in _SUMS:
            return _SUMS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        raise ValueError

    try:
        found = value(ast.parse(text.strip(), mode="eval").body) if len(text) < 500 else None
    except (ValueError, SyntaxError, ZeroDivisionError, RecursionError, MemoryError):
        return None
    return found if found is None or abs(found) < 10**18 else None


def condition(words: list[str]) -> bool | None:
    """The result of the words between `[` and `]`; None if only a run can decide."""
    if nots := next((n for n, word in enumerate(words) if word != "!"), 0):
        found = condition(words[nots:])
        return found if found is None else found ^ (nots % 2 == 1)
    if any(HOLE in word for word in words):
        return None
    if len(words) == 2 and words[0] in ("-z", "-n"):
        return (words[1] == "") == (words[0] == "-z")
    if len(words) != 3:
        return None
    left, sign, right = words
    if sign in ("=", "==", "!="):
        return None if "*" in right else (left == right) != (sign == "!=")
    if sign not in _COMPARISONS or not (_NUMBER.fullmatch(left) and _NUMBER.fullmatch(right)):
        return None
    return bool(_COMPARISONS[sign](int(left), int(right)))


_COMPARISONS = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}
_NUMBER = re.compile(r"-?[0-9]{1,18}")


_UNSET = re.compile(r'"?\$\{?([A-Za-z_]\w*)\}?"?')
_GIVEN = re.compile(
    r"(?:SLURM|PBS|SGE|LSB|OMPI|PMI|CUDA|ROCR|HIP|NCCL|KUBERNETES|MASTER|CONDA)_\w+"
    r"|WORLD_SIZE|(?:LOCAL_|NODE_)?RANK|NNODES|NHOSTS|NODES|HOME|USER|HOSTNAME|VIRTUAL_ENV|PATH"
)
"""Variables that a batch system, a launcher or a login sets before the script starts."""


def optional_name(word: str) -> str:
    """The variable that a word is, "" for other words and for what is set before the script starts."""
    match = _UNSET.fullmatch(word)
    return match[1] if match and not _GIVEN.fullmatch(match[1]) else ""


def statements_in(text: str) -> list[list[Token]]:
    """The statements of a script: simple commands and reserved words, in their order."""
    found, made = list[Token](), list[list[Token]]()
    before = ""
    for token in (*shell_tokens(text.replace("\r\n", "\n")), Token("\n", 0, True)):
        joins = token in ("&&", "||") and found and found[0] not in ("[", "[[", "if", "elif")
        if token.is_operator and (joins or token in (";", "\n", "&", "|", ";;", ")", "(")):
            if found:
                made.append(found)
            found = []
            if token == ";;" or (token == ")" and before != "("):  # `()` names a function
                made.append([token])
        else:
            found.append(token)
        before = token if token.is_operator else ""
    return made


def loop_end(statements: list[list[Token]], at: int) -> int:
    """Position of the `done` of the loop at `at`; else the end."""
    depth = 0
    for n in range(at, len(statements)):
        heads = [str(t) for t in statements[n] if not t.is_operator]
        depth += (heads[:1] in (["while"], ["for"])) - (heads[:1] == ["done"])
        if not depth:
            return n
    return len(statements)


def branch_end(statements: list[list[Token]], at: int, ends: frozenset[str]) -> int:
    """Position of the next statement that begins with a word of `ends`, outside inner ifs."""
    depth = 0
    for n in range(at, len(statements)):
        heads = [str(t) for t in statements[n]]
        if not depth and heads[0] in ends:
            return n
        opens = "if" in (heads[0], *(h for a, h in itertools.pairwise(heads) if a in ENDS))
        depth += opens - (heads[0] == "fi")
    return len(statements)


def case_end(statements: list[list[Token]], at: int, whole: bool) -> int:
    """Position of the end of `case … esac`, or of one arm: which one is taken, a run would tell."""
    end, many = "esac" if whole else ";;", len(statements)
    return next((n for n in range(at, many) if statements[n][0] == end), many)


def directives_of(text: str) -> tuple[Word, ...]:
    """The words of #SBATCH lines, and of the like of other schedulers; nothing else of the script is read."""
    return tuple(
        Word(word, line)
        for line, match in numbered_matches(_DIRECTIVE, text)
        for word in match.group(1).partition(" #")[0].split()
    )
