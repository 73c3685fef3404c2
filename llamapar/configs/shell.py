"""A shell script read, never run: which commands it would start, with what words.

Variables, defaults, arithmetic, arrays, continuations, heredocs and tests whose outcome is known are
followed. What only a run can tell (a command's output, a variable that the environment gives) stays in the
words as a hole, which no reader takes for a value.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from .shell_words import (
    ASSIGNED,
    HOLE,
    OUTPUT,
    SUM,
    Token,
    Word,
    arithmetic,
    closing_of,
    directives_of,
    optional_name,
    shell_tokens,
    statements_of,
)

MOST_WORDS, MOST_LENGTH = 50_000, 200_000
"""Words of a script and letters of a variable at most: a doubling variable ends there."""

_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_DECLARES = {"export", "local", "declare", "readonly"}
_ENDS = {"then", "do", "else", "{", "!", "time", "export", "local", "declare", "readonly", "eval", "exec"}


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
    documents: tuple[str, ...]


class _Reading:
    """A script while it is read: the current variables, and the commands found so far."""

    def __init__(self, arguments: Sequence[str], environment: dict[str, str]):
        self.variables: dict[str, tuple[Word, ...]] = {
            name: (Word(text, 0),) for name, text in environment.items()
        }
        self.arguments = list(arguments)
        self.commands = list[ShellCommand]()
        self.documents = list[str]()
        self.words = 0

    # words

    def text(self, raw: str, line: int) -> str:
        """A raw word with all expansions, as one string."""
        return " ".join(word.text for word in self._expanded(raw, line, split=False))

    def _expanded(self, raw: str, line: int, split: bool = True) -> list[Word]:
        """The words that a raw word becomes."""
        made, at, quoted, started = [""], 0, False, False  # started: there is a word, be it empty
        while at < len(raw) and sum(map(len, made)) < MOST_LENGTH:
            letter = raw[at]
            if letter == "\\":
                made[-1] += "" if raw[at + 1 : at + 2] == "\n" else raw[at + 1 : at + 2]
                at += 2
            elif letter == "'" and not quoted:
                end = raw.find("'", at + 1)
                end = len(raw) if end < 0 else end
                made[-1] += raw[at + 1 : end]
                at, started = end + 1, True
            elif letter == '"':
                quoted, started = not quoted, True
                at += 1
            elif letter in "$`":
                parts, at = self._put_in(raw, at, line)
                if quoted or not split:
                    made[-1] += " ".join(parts)
                else:
                    pieces = " ".join(parts).split()
                    if pieces:
                        made[-1] += pieces[0]
                        made += pieces[1:]
            else:
                made[-1] += letter
                at += 1
        self.words += len(made)
        return [Word(text, line) for text in made if text or started or not split]

    def _put_in(self, raw: str, at: int, line: int) -> tuple[list[str], int]:
        """The expansion of the $ or ` at `at`, and its end."""
        if raw[at] == "`":
            end = raw.find("`", at + 1)
            return [OUTPUT], (len(raw) if end < 0 else end + 1)
        if raw.startswith("$((", at):
            end = raw.find("))", at)
            if end < 0:
                return [HOLE], len(raw)
            end = closing_of(raw, at + 2, "(", ")") + 1
            return [self._sum(raw[at + 3 : end - 2], line)], end
        if raw.startswith("$(", at):
            return [OUTPUT], closing_of(raw, at + 2, "(", ")") + 1
        if raw.startswith("${", at):
            end = closing_of(raw, at + 2, "{", "}")
            return self._braced(raw[at + 2 : end], line), end + 1
        if match := _NAME.match(raw, at + 1):
            parts = self._value(match.group())
            return (parts if match.group() in "@*" else parts[:1]), match.end()
        return ["$"], at + 1

    def _sum(self, inner: str, line: int) -> str:
        inner = self.text(inner, line)
        # Inside $((…)) a bare name is a variable, and an unset one is 0.
        named = re.sub(r"[A-Za-z_]\w*", lambda m: " ".join(self._value(m.group())) or "0", inner)
        found = arithmetic(named)
        return HOLE if found is None else str(found)

    def _value(self, name: str) -> list[str]:
        """The words of a variable; a hole if nothing in the script sets it."""
        if name.isdigit() and int(name) and int(name) <= len(self.arguments):
            return [self.arguments[int(name) - 1]]
        if name in "@*":
            return list(self.arguments)
        if name == "#":
            return [str(len(self.arguments))]
        if name in self.variables:
            return [word.text for word in self.variables[name]]
        return [HOLE + name]

    def _braced(self, inner: str, line: int) -> list[str]:
        match = re.match(r"([A-Za-z_]\w*|[0-9]+|[@*#])(\[[@*]\])?", inner)
        if match is None:
            return [HOLE]
        name, rest = match.group(1), inner[match.end() :]
        parts = self._value(name)
        if match.group(2) is None and len(parts) > 1 and not name.isdigit() and name not in "@*":
            parts = parts[:1]  # an array without [@] is its first element
        if not rest:
            return parts
        # ${X:-8}: nothing in the script sets X, so its default is what the author meant to happen.
        unset = parts in ([HOLE + name], [""])
        if rest.startswith((":-", "-", ":=", "=")):
            if not unset:
                return parts
            text = self.text(rest.lstrip(":")[1:], line)
            if rest.lstrip(":")[0] == "=":
                self.variables[name] = (Word(text, line),)
            return [text]
        if rest.startswith((":+", "+")):
            return [""] if unset else [self.text(rest.lstrip(":")[1:], line)]
        return [HOLE + name]

    # statements

    def assign(self, raw: str, line: int) -> bool:
        """Execute an assignment; False if the raw word is none."""
        match = ASSIGNED.match(raw)
        if match is None:
            return False
        name, adds, rest = match.group(1), match.group(2) == "+=", raw[match.end() :]
        if rest.startswith("("):
            inner = rest[1:-1] if rest.endswith(")") else rest[1:]
            found = list[Word]()
            for token in shell_tokens(inner):
                if not token.is_operator:
                    found += self._expanded(token, line + token.line - 1)
            new = tuple(found)
        else:
            new = (Word(self.text(rest, line), line),)
            if adds and name in self.variables:
                old = " ".join(word.text for word in self.variables.pop(name))
                new, adds = (Word(old + new[0].text, line),), False
        before = self.variables.get(name, ()) if adds else ()
        if len(before) + len(new) < MOST_WORDS:
            self.variables[name] = (*before, *new)
        return True

    def run(self, tokens: list[Token]) -> None:
        """Read one simple command."""
        environment = dict[str, Word]()
        words = list[Word]()
        skip = False
        for token in tokens:
            if skip:
                skip = False
            elif token.is_operator:
                if token.startswith("<<"):
                    self.documents.append(self.text(token[2:].replace('"', '\\"'), token.line))
                skip = token[-1] in "<>"
            elif not words and ASSIGNED.match(token):
                # `A=8 command`: the assignment holds for this command alone, so the variables are put
                # back if a command follows.
                held = dict(self.variables)
                self.assign(token, token.line)
                name = token.partition("=")[0].rstrip("+")
                environment[name] = Word(self.text(f"${{{name}[*]}}", token.line), token.line)
                if any(not t.is_operator and not ASSIGNED.match(t) for t in tokens):
                    self.variables = held
            elif self.words < MOST_WORDS:
                words += self._expanded(token, token.line)
        if words:
            self.commands.append(ShellCommand(tuple(words), environment))

    def test(self, tokens: Sequence[Token]) -> bool | None:
        """The result of `[ … ]`; None if only a run can decide."""
        words = list[str]()
        for token in tokens:
            # In `[ -z "$X" ]` a variable that nothing sets counts as empty, or the usual way to give a
            # default would be undecided.
            text = " ".join(w.text for w in self._expanded(token, token.line, split=False))
            words.append("" if words[-1:] in (["-z"], ["-n"]) and self._left_unset(token) else text)
        inner = [word for word in words if word not in ("[", "]", "[[", "]]", "test")]
        for joint, found in (("||", any), ("&&", all)):
            if joint in inner:
                cut = [i for i, word in enumerate(inner) if word == joint]
                sides = [
                    self._compare(inner[a:b])
                    for a, b in zip([0, *[i + 1 for i in cut]], [*cut, len(inner)], strict=True)
                ]
                if (joint == "||" and True in sides) or (joint == "&&" and False in sides):
                    return joint == "||"
                return None if None in sides else found(side is True for side in sides)
        return self._compare(inner)

    def _left_unset(self, token: Token) -> bool:
        """Whether nothing sets the variable that is asked for: its default counts then, as in ${X:-8}."""
        name = optional_name(token)
        if not name or name in self.variables:
            return False
        return not any(command.words[0].text in ("source", ".") for command in self.commands)

    def _compare(self, words: list[str]) -> bool | None:
        if words[:1] == ["!"]:
            found = self._compare(words[1:])
            return None if found is None else not found
        if any(HOLE in word for word in words):
            return None
        if len(words) == 2 and words[0] in ("-z", "-n"):
            return (words[1] == "") == (words[0] == "-z")
        if len(words) != 3:
            return None
        left, sign, right = words
        if sign in ("=", "==", "!="):
            return None if "*" in right else (left == right) != (sign == "!=")
        compare = {
            "-eq": operator.eq,
            "-ne": operator.ne,
            "-gt": operator.gt,
            "-ge": operator.ge,
            "-lt": operator.lt,
            "-le": operator.le,
        }.get(sign)
        if compare is None or not (left.lstrip("-").isdigit() and right.lstrip("-").isdigit()):
            return None
        return bool(compare(int(left), int(right)))


# -- blocks ----------------------------------------------------------------------------------------


def _follow(reading: _Reading, statements: list[list[Token]], at: int, ends: frozenset[str]) -> int:
    """Read statements from `at` until one that begins with a word of `ends`, and return its position."""
    while at < len(statements) and reading.words < MOST_WORDS:
        statement = statements[at]
        head = str(statement[0])
        if head in ends:
            return at
        if head == "if":
            at = _branch(reading, statements, at)
            continue
        if head == "case" or (
            len(statements) > at + 1 and statements[at + 1][0] == ")" and len(statement) == 1
        ):
            at = _past_case(statements, at, whole=head == "case")
            continue
        if head == "for" and len(statement) > 2 and statement[2] == "in":
            words = [w for t in statement[3:] for w in reading._expanded(t, t.line)]
            text = words[0].text if len(words) == 1 else f"{HOLE}{statement[1]}"
            reading.variables[str(statement[1])] = (Word(text, statement[0].line),)
        elif SUM.fullmatch(statement[-1]) and head in ("for", statement[-1]):
            for name in re.findall(r"\b([A-Za-z_]\w*)[ \t]*(?:\+\+|--|[-+*/]?=(?!=))", statement[-1]):
                reading.variables[name] = (Word(HOLE + name, statement[0].line),)
        elif head == "while":
            if reading.test(statement[1:]) is False:
                at = _matching(statements, at, "while", "done")
        else:
            while statement and str(statement[0]) in _ENDS:
                declares = str(statement[0]) in _DECLARES
                statement = statement[1:]
                while declares and statement and statement[0].startswith("-"):
                    statement = statement[1:]
            simple = all(not t.is_operator and ASSIGNED.match(t) for t in statement)
            if statement and simple:
                for token in statement:
                    reading.assign(token, token.line)
            elif statement and str(statement[0]) not in ("done", "fi", "esac", "}", ")", ";;"):
                reading.run(statement)
        at += 1
    return at


def _matching(statements: list[list[Token]], at: int, opening: str, closing: str) -> int:
    depth = 0
    for n in range(at, len(statements)):
        heads = [str(t) for t in statements[n] if not t.is_operator]
        depth += heads[:1] in ([opening], ["for"] if opening == "while" else [opening])
        depth -= heads[:1] == [closing]
        if not depth:
            return n
    return len(statements)


def _branch(reading: _Reading, statements: list[list[Token]], at: int) -> int:
    """An `if`: the branch whose test is known to hold; where that is not known, what all agree on."""
    outcomes = list[dict[str, tuple[Word, ...]]]()
    before, settled = dict(reading.variables), False
    ends = frozenset(("elif", "else", "fi"))
    while at < len(statements):
        head, rest = str(statements[at][0]), statements[at][1:]
        if head == "fi":
            at += 1
            break
        # Branches whose test is known to fail are passed over; after one that certainly holds so are the
        # others.
        held = head == "else" or reading.test([t for t in rest if t != "then"])
        if settled or held is False:
            at = _skip(statements, at + 1, ends)
        else:
            reading.variables = dict(before)
            at += 1
            if head == "else" and rest:
                statements[at - 1] = rest
                at -= 1
            at = _follow(reading, statements, at, ends)
            outcomes.append(reading.variables)
            settled = held is True
    if not settled:
        # Nothing certain: perhaps no branch is taken, so what was before is a possible outcome too.
        outcomes.append(before)
    if not outcomes:
        return at
    names = dict.fromkeys(name for outcome in outcomes for name in outcome)
    reading.variables = {name: _agreed([o.get(name, ()) for o in outcomes]) for name in names}
    return at


def _agreed(values: list[tuple[Word, ...]]) -> tuple[Word, ...]:
    """The words of a variable after all branches; where they differ, a hole ends it."""
    first, *others = values
    same = 0
    # The common beginning is certain whatever branch is taken; a list of flags often differs in its last
    # words only.
    while same < len(first) and all(same < len(o) and o[same].text == first[same].text for o in others):
        same += 1
    alike = all(len(o) == len(first) for o in others) and same == len(first)
    return first if alike else (*first[:same], Word(HOLE, 0))


def _skip(statements: list[list[Token]], at: int, ends: frozenset[str]) -> int:
    depth = 0
    while at < len(statements):
        heads = [str(t) for t in statements[at]]
        if not depth and heads[0] in ends:
            return at
        depth += "if" in (heads[0], *(h for a, h in itertools.pairwise(heads) if a in _ENDS))
        depth -= heads[0] == "fi"
        at += 1
    return at


def _past_case(statements: list[list[Token]], at: int, whole: bool) -> int:
    """Past `case … esac`, or past one arm that stands alone: which one is taken, a run would tell."""
    end = "esac" if whole else ";;"
    while at < len(statements) and str(statements[at][0]) != end:
        at += 1
    return at + 1


def read_shell(text: str, arguments: Sequence[str] = (), environment: dict[str, str] | None = None) -> Script:
    """The content of a script. arguments: its own arguments; environment: the variables it finds."""
    reading = _Reading(arguments, environment or {})
    tokens = shell_tokens(text.replace("\r\n", "\n"))
    _follow(reading, list(statements_of(list(tokens))), 0, frozenset())
    return Script(tuple(reading.commands), reading.variables, directives_of(text), tuple(reading.documents))
