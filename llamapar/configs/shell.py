"""A shell script read, never run: which commands it would start, with what words.

Variables, defaults, arithmetic, arrays, continuations, heredocs and tests whose outcome is known are
followed. What only a run can tell (a command's output, a variable that the environment gives) stays in the
words as a hole, which no reader takes for a value.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .meter import Meter
from .shell_words import (
    ACTIVATES,
    ASSIGNED,
    ENDS,
    HOLE,
    OUTPUT,
    SUM,
    Token,
    Word,
    arithmetic,
    branch_end,
    case_end,
    closing_of,
    condition,
    directives_of,
    loop_end,
    optional_name,
    shell_tokens,
    statements_in,
)

_PLAIN = re.compile(r".[^\\'\"$`]*", re.DOTALL)
_READERS, _COMPARED = 20, 10
"""Times that the readers of formats look at each word of a script, and steps of comparing two words."""

_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_DECLARES = {"export", "local", "declare", "readonly"}


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
    def lines(self) -> tuple[tuple[Word, ...], ...]:
        """The words of each command and each variable."""
        return (*(command.words for command in self.commands), *self.variables.values())


class _Reading:
    """A script while it is read: the current variables, and the commands found so far.

    changed: the variables that the current branch of an `if` has set → their words before it. beside: other
    files of the job by name, which the script may run in its own shell.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: dict[str, str],
        meter: Meter,
        beside: Mapping[str, str],
    ):
        self.variables: dict[str, tuple[Word, ...] | None] = {
            name: (Word(text, 0),) for name, text in environment.items()
        }
        self.changed = dict[str, tuple[Word, ...] | None]()
        all_of = {key: [*arguments] for key in "@*"} | {"#": [str(len(arguments))]}
        self.arguments = all_of | {str(n): [word] for n, word in enumerate(arguments, 1)}
        self.commands = list[ShellCommand]()
        self.sources = False  # whether a command before has run a file that is not at hand
        self.beside = dict(beside)
        self.meter = meter

    # variables

    def put(self, name: str, words: tuple[Word, ...] | None) -> None:
        """Set a variable, or unset it with None."""
        self.changed.setdefault(name, self.variables.get(name))
        self.variables[name] = words

    def take_back(self) -> dict[str, tuple[Word, ...] | None]:
        """What a branch has made of the variables that it changed, which become again what they were."""
        made = {name: self.variables[name] for name in self.changed}
        self.variables |= self.changed
        self.changed = {}
        return made

    # words

    def text(self, raw: str, line: int) -> str:
        """A raw word with all expansions, as one string."""
        return " ".join(word.text for word in self._expanded(raw, line, split=False))

    def _expanded(self, raw: str, line: int, split: bool = True) -> list[Word]:
        """The words that a raw word becomes."""
        self.meter.spend(len(raw) + 1)
        words, parts = list[str](), list[str]()  # complete ones, and the pieces of the next one
        at, quoted, started = 0, False, False  # started: there is a word, be it empty
        while at < len(raw):
            letter = raw[at]
            if letter == "\\":
                parts.append(raw[at + 1 : at + 2].strip("\n"))
                at += 2
            elif letter == "'" and not quoted:
                end = raw.find("'", at + 1)
                end = len(raw) if end < 0 else end
                parts.append(raw[at + 1 : end])
                at, started = end + 1, True
            elif letter == '"':
                quoted, started = not quoted, True
                at += 1
            elif letter in "$`":
                found, at = self._put_in(raw, at, line)
                text = " ".join(found)
                first, *others = [text] if quoted or not split else text.split() or [""]
                parts.append(first)
                for other in others:
                    words.append("".join(parts))
                    parts = [other]
            else:
                plain = _PLAIN.match(raw, at)
                assert plain is not None
                parts.append(plain.group())
                at = plain.end()
        words.append("".join(parts))
        return [Word(text, line) for text in words if text or started or not split]

    def _put_in(self, raw: str, at: int, line: int) -> tuple[list[str], int]:
        """The expansion of the $ or ` at `at`, and its end."""
        if raw[at] == "`":
            end = raw.find("`", at + 1)
            return [OUTPUT], (len(raw) if end < 0 else end + 1)
        if raw.startswith("$((", at):
            end = raw.find("))", at)
            if end < 0:
                return [HOLE], len(raw)
            end = closing_of(raw, at + 2, "(") + 1
            return [self._sum(raw[at + 3 : end - 2], line)], end
        if raw.startswith("$(", at):
            return [OUTPUT], closing_of(raw, at + 2, "(") + 1
        if raw.startswith("${", at):
            end = closing_of(raw, at + 2, "{")
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
        words = self.variables.get(name)
        found = [HOLE + name] if words is None else [word.text for word in words]
        found = self.arguments.get(name, found)
        self.meter.spend(len(found) + sum(map(len, found)))
        return found

    def _braced(self, inner: str, line: int) -> list[str]:
        match = re.match(r"([A-Za-z_]\w*|[0-9]+|[@*#])(\[[@*]\])?", inner)
        if match is None:
            return [HOLE]
        name, rest = match.group(1), inner[match.end() :]
        parts = self._value(name)
        if match.group(2) is None and len(parts) > 1 and name not in "@*":
            parts = parts[:1]  # an array without [@] is its first element
        if not rest:
            return parts
        # ${X:-8}: nothing in the script sets X, so its default is what the author meant to happen.
        unset = parts in ([HOLE + name], [""])
        if unset and self.sources and parts != [""]:
            return parts
        if rest.startswith((":-", "-", ":=", "=")):
            if not unset:
                return parts
            text = self.text(rest.lstrip(":")[1:], line)
            if rest.lstrip(":")[0] == "=":
                self.put(name, (Word(text, line),))
            return [text]
        if rest.startswith((":+", "+")):
            return [""] if unset else [self.text(rest.lstrip(":")[1:], line)]
        return [HOLE + name]

    # statements

    def assign(self, raw: str, line: int) -> None:
        """Execute an assignment, as ASSIGNED finds it."""
        name, _, rest = raw.partition("=")
        name, adds = name.rstrip("+"), name.endswith("+")
        if rest.startswith("("):
            inner = rest[1:-1] if rest.endswith(")") else rest[1:]
            tokens = (token for token in shell_tokens(inner) if not token.is_operator)
            new = tuple(word for t in tokens for word in self._expanded(t, line + t.line - 1))
        else:
            new = (Word(self.text(rest, line), line),)
            if adds and self.variables.get(name) is not None:
                new, adds = (Word(" ".join(self._value(name)) + new[0].text, line),), False
                self.put(name, None)
                del self.variables[name]  # What is added to comes last.
        before = self.variables.get(name) or () if adds else ()
        self.meter.spend(len(before))
        self.put(name, (*before, *new))

    def run(self, tokens: list[Token]) -> None:
        """Read one simple command."""
        environment = dict[str, Word]()
        words = list[Word]()
        skip = False
        starts = any(not t.is_operator and not ASSIGNED.match(t) for t in tokens)
        for token in tokens:
            if skip:
                skip = False
            elif token.is_operator:
                skip = token[-1] in "<>"
            elif not words and ASSIGNED.match(token):
                # `A=8 command`: the assignment holds for this command alone, so the variables are put
                # back if a command follows.
                name = token.partition("=")[0].rstrip("+")
                before = self.variables.get(name)
                self.assign(token, token.line)
                environment[name] = Word(self.text(f"${{{name}[*]}}", token.line), token.line)
                if starts:
                    self.put(name, before)
            else:
                words += self._expanded(token, token.line)
        if words:
            self.commands.append(ShellCommand(tuple(words), environment))
            if words[0].text in ("source", ".") and len(words) > 1:
                self._source(words[1].text)

    def _source(self, path: str) -> None:
        """Run another file in this shell; one that is not at hand may set every variable that is unset."""
        # Each file is read once, so that two that run each other come to an end.
        text = self.beside.pop(path.rpartition("/")[2], None)
        if text is not None:
            _follow(self, statements_in(text), 0, frozenset())
        elif not ACTIVATES.search(path):
            self.sources = True

    def test(self, tokens: Sequence[Token]) -> bool | None:
        """The result of `[ … ]`; None if only a run can decide."""
        words = list[str]()
        for token in tokens:
            # In `[ -z "$X" ]` a variable that nothing sets counts as empty, or the usual way to give a
            # default would be undecided.
            text, name = self.text(token, token.line), optional_name(token)
            unset = name and self.variables.get(name) is None and not self.sources
            words.append("" if words[-1:] in (["-z"], ["-n"]) and unset else text)
        inner = [word for word in words if word not in ("[", "]", "[[", "]]", "test")]
        for joint, decides in (("||", True), ("&&", False)):
            if joint in inner:
                cuts = [-1, *(i for i, word in enumerate(inner) if word == joint), len(inner)]
                sides = [condition(inner[a + 1 : b]) for a, b in itertools.pairwise(cuts)]
                if decides in sides:
                    return decides
                return None if None in sides else not decides
        return condition(inner)


# -- blocks ----------------------------------------------------------------------------------------


def _follow(reading: _Reading, statements: list[list[Token]], at: int, ends: frozenset[str]) -> int:
    """Read statements from `at` until one that begins with a word of `ends`, and return its position."""
    while at < len(statements):
        statement = statements[at]
        head = str(statement[0])
        if head in ends:
            return at
        arm = len(statements) > at + 1 and statements[at + 1][0] == ")" and len(statement) == 1
        if head == "if":
            at = _branch(reading, statements, at)
        elif head == "case" or arm:
            at = case_end(statements, at, whole=head == "case")
        elif head == "for" and len(statement) > 2 and statement[2] == "in":
            words = [w for t in statement[3:] for w in reading._expanded(t, t.line)]
            text = words[0].text if len(words) == 1 else f"{HOLE}{statement[1]}"
            reading.put(str(statement[1]), (Word(text, statement[0].line),))
        elif SUM.fullmatch(statement[-1]) and head in ("for", statement[-1]):
            for name in re.findall(r"\b([A-Za-z_]\w*)[ \t]*(?:\+\+|--|[-+*/]?=(?!=))", statement[-1]):
                reading.put(name, (Word(HOLE + name, statement[0].line),))
        elif head == "while":
            if reading.test(statement[1:]) is False:
                at = loop_end(statements, at)
        else:
            while statement and str(statement[0]) in ENDS:
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


def _branch(reading: _Reading, statements: list[list[Token]], at: int) -> int:
    """An `if`: the branch whose test is known to hold; where that is not known, what all agree on.

    Returns the position of its `fi`.
    """
    outcomes = list[dict[str, tuple[Word, ...] | None]]()
    outer, reading.changed, settled = reading.changed, {}, False
    ends = frozenset(("elif", "else", "fi"))
    while at < len(statements):
        head, rest = str(statements[at][0]), statements[at][1:]
        if head == "fi":
            break
        # Branches whose test is known to fail are passed over; after one that certainly holds so are the
        # others.
        held = head == "else" or reading.test([t for t in rest if t != "then"])
        if settled or held is False:
            at = branch_end(statements, at + 1, ends)
        else:
            at += 1
            if head == "else" and rest:
                statements[at - 1] = rest
                at -= 1
            at = _follow(reading, statements, at, ends)
            outcomes.append(reading.take_back())
            settled = held is True
    reading.changed = outer
    if not settled:
        # Nothing certain: perhaps no branch is taken, which changes nothing.
        outcomes.append({})
    made = dict[str, list[tuple[Word, ...] | None]]()
    for outcome in outcomes:
        for name, words in outcome.items():
            made.setdefault(name, []).append(words)
    for name, found in made.items():
        if len(found) < len(outcomes):
            # Some branches leave it as it was. The first outcome comes first, for its lines are shown.
            found.insert(0 if name not in outcomes[0] else len(found), reading.variables.get(name))
        known = [words or () for words in found]
        reading.meter.spend(_COMPARED * sum(map(len, known)))
        reading.put(name, None if found.count(None) == len(found) else _agreed(known))
    return at


def _agreed(values: list[tuple[Word, ...]]) -> tuple[Word, ...]:
    """The words of a variable after all branches; where they differ, a hole ends it."""
    # The common beginning is certain whatever branch is taken; a list of flags often differs in its last
    # words only.
    alike = itertools.takewhile(
        lambda words: len({word.text for word in words}) == 1, zip(*values, strict=False)
    )
    same = sum(1 for _ in alike)
    ended = all(len(words) == same for words in values)
    return values[0] if ended else (*values[0][:same], Word(HOLE, 0))


def read_shell(
    text: str,
    arguments: Sequence[str] = (),
    environment: dict[str, str] | None = None,
    meter: Meter | None = None,
    beside: Mapping[str, str] | None = None,
) -> Script:
    """The content of a script. arguments: its own arguments; environment: the variables it finds.

    beside: other files by name, which it may run in its own shell.
    """
    reading = _Reading(arguments, environment or {}, meter or Meter("the script", len(text)), beside or {})
    _follow(reading, statements_in(text), 0, frozenset())
    variables = {name: words for name, words in reading.variables.items() if words is not None}
    script = Script(tuple(reading.commands), variables, directives_of(text))
    reading.meter.spend(_READERS * sum(len(word.text) for words in script.lines for word in words))
    return script
