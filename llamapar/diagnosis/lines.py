"""The root cause among the lines of a log: streamed, in bounded memory, from many ranks at once.

Large blocks of text are searched for a few short anchors with plain `str.find`; only lines with an anchor are
parsed, each wording once. Causes rank before their consequences: a rank that died of an assertion comes
before the peers whose connections that death reset.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from .reading import LIMIT, plain_text
from .words import pattern

_BLOCK = 1 << 20
_CLOSE = 20_000
"""Lines that are looked at closely in one log."""

_KEPT = 64
"""Distinct candidates that are kept."""

_AROUND = 1500
"""Characters before and after a candidate that are kept with it."""

_PER_BLOCK = 150
"""Lines of one block that one anchor may mark: a word that is on every line marks nothing."""

EXACT_ANCHORS = (
    "divi", "invalid for", "ut of memory", "multiple of", "must match", "size of tensor", "multiplied",
    "not equal", "ismatch", "missingBytes", "MP=", "compatible with", "evenly", "by zero",
)  # fmt: skip
ANCHORS = (
    *EXACT_ANCHORS, "rror", "ssert", "xception", "RROR", "heck failed", "imeout", "must be", "annot ", "atal",
)  # fmt: skip

_PREFIX = pattern("line_prefix")
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_][\w.]{0,80})?(?:Error|Exception|Failure|Exit|Interrupt|Warning)\b(?::|$)"
)
_CONSEQUENCE = pattern("consequence")
_EXACT = pattern("exact_cause")
_WATCHDOG = re.compile(r"[Ww]atchdog|[Tt]imed? ?out|collective operation timeout")
_QUOTED = re.compile(r"^(?:-{1,6}> ?\d{1,6} |❱ {0,4}\d{1,6} │ ?|│ ?❱ {0,4}\d{1,6} │ ?)")
"""How IPython and rich mark the failing line."""

_NO_DIGITS = str.maketrans("", "", "0123456789")
_FRAME = re.compile(r'^File "|^Traceback|^    at |^\^+$|^During handling|^The above exception')


_PLACE = re.compile(r'File "([^"]{1,300})", line \d{1,7}(?:, in (\w{1,60}))?')
"""A frame's file and function."""

_LIBRARY = pattern("path_of_a_library")
"""The path of a library's file, whose names say less."""

_TORCH = re.compile(r'File "(?:[^"]{0,200}/)?torch/')
"""A frame of torch itself, whose line says less of a tensor than the line that called it."""


def sourced(line: str, file: str, function: str) -> str:
    """A line of source with the names of its file and function, which hint at its subject.

    Names from a library or a notebook's cell are left out, because they hint at nothing.
    """
    if _LIBRARY.match(file) or not function.isidentifier():
        return line
    return f"{line}  # {file.rpartition('/')[2].removesuffix('.py')} {function}"


@dataclass
class CandidateLine:
    """A line that may be the cause, with the text around its first appearance."""

    line: str
    score: float
    order: int
    before: str
    after: str
    ranks: set[int] = field(default_factory=set)

    def alike(self, other: CandidateLine) -> bool:
        """Whether another rank alone reports the same with other sizes."""
        words, others = (it.line.translate(_NO_DIGITS) for it in (self, other))
        return words == others and bool(other.ranks - self.ranks)

    def _own(self, rows: list[str]) -> list[str]:
        """The words of those rows that no other rank has."""
        said = map(strip, rows)
        return [text for text, rank in said if rank is None or not self.ranks or rank in self.ranks]

    @property
    def code(self) -> tuple[str, ...]:
        """The lines of source that the traceback shows above it; the failing line is last."""
        rows = self._own(self.before.splitlines()[-16:])
        quoted = [_QUOTED.sub("", row) for row in rows if _QUOTED.match(row)]
        shown = [
            pair for pair in pairwise(rows) if pair[0].startswith('File "') and not _FRAME.match(pair[1])
        ]
        by_torch_first = sorted(shown, key=lambda pair: not _TORCH.match(pair[0]))
        places = [(_PLACE.match(frame), row) for frame, row in by_torch_first]
        below = [sourced(row, place[1], place[2] or "") if place else row for place, row in places]
        return tuple(quoted or below)[-4:]

    @property
    def raised_in(self) -> str:
        """The file that raised it: the file of the last frame above."""
        rows = self._own(self.before.splitlines()[-16:])
        return next((place[1] for place in map(_PLACE.match, reversed(rows)) if place), "")

    @property
    def message(self) -> str:
        """The line, the source line above a bare assert, and the lines that continue it."""
        words = [self.line]
        above = [s for s in self._own(self.before.splitlines()[-6:]) if s]
        if len(self.line) < 40 and above:
            code = next((s for s in reversed(above) if not _FRAME.match(s) and set(s) - set("^~ ")), "")
            words.insert(0, code)
        for row in self.after.splitlines()[:12]:
            text = next(iter(self._own([row])), "")
            alike = text.translate(_NO_DIGITS) == self.line.translate(_NO_DIGITS)
            if alike or _EXCEPTION.match(text) or _FRAME.match(text):
                break
            if text and (row[:1] in " \t" or _EXACT.search(text[:400])):
                words.append(text)
            elif text:  # a blank line ends nothing: JAX's messages have paragraphs
                break
        return "\n".join(words)[:LIMIT]


def strip(line: str) -> tuple[str, int | None]:
    """`line` without colours, timestamps and rank prefixes, and the rank that these named."""
    text = plain_text(line[:LIMIT])
    rank = None
    for _ in range(6):
        match = _PREFIX.match(text)
        if match is None or not match.end():
            break
        if match.group("rank"):
            rank = int(match.group("rank"))
        text = text[match.end() :].lstrip()
    return text, rank


def is_watchdog(line: str) -> bool:
    """Whether a line only reports that a rank waited in vain; the cause is then in other ranks' lines."""
    return bool(_WATCHDOG.search(line[:400]))


def score(text: str) -> float:
    """How much a line looks like a cause: 0 for not at all, up to 10."""
    if not text or _FRAME.match(text):
        return 0.0
    exact = bool(_EXACT.search(text[:2000]))
    worth = EXACT * exact + 1.5 * any(c.isdigit() for c in text[:400])
    if _EXCEPTION.match(text[:200]):
        worth += 3.0
    elif "ssert" in text or "heck failed" in text:
        worth += 2.0
    # A watchdog's message is exact and has numbers, but it never names the cause, so it gets a low fixed
    # score.
    if is_watchdog(text):
        worth = 2.0
    if _CONSEQUENCE.search(text[:400]):
        worth = min(worth, 3.0) * 0.3
    return worth


EXACT = 5.0
"""Score, at least, of a line that names a rule, which makes it an error by itself."""


def line_blocks(lines: Iterable[str]) -> Iterator[str]:
    """Lines joined into blocks of about a megabyte; a longer line goes on as a line of its own."""
    block: list[str] = []
    size = 0
    for piece in (line[at : at + _BLOCK] for line in lines for at in range(0, len(line), _BLOCK)):
        block.append(piece.removesuffix("\n") + "\n")
        size += len(piece)
        if size >= _BLOCK:
            yield "".join(block)
            block = []
            size = 0
    if block:
        yield "".join(block)


_SURE = 8.0
"""Score of a line that is an exception with numbers: its ranks are gathered to the end of the log."""


def causes(parts: Iterable[str]) -> list[CandidateLine]:
    """The candidates of a log, likeliest first; among equals, in order of appearance."""
    kept: dict[str, CandidateLine] = {}
    seen: set[str] = set()
    sure: dict[str, CandidateLine] = {}
    close = 0
    tail = ""
    for block in parts:
        for start, end in _marked(block, ANCHORS if close < _CLOSE else EXACT_ANCHORS):
            line = block[start : min(end, start + LIMIT)]
            # Lines that differ only in their digits count as one wording, so that thousands of ranks cost one
            # parse.
            sign = line[-200:].translate(_NO_DIGITS)
            if close >= 2 * _CLOSE or (sign in seen and close > _CLOSE // 4):
                # Enough lines were parsed, or this wording is known: add no candidate, but record the rank.
                if sign in sure and len(sure[sign].ranks) < 4096:
                    sure[sign].ranks |= {rank for rank in strip(line)[1:] if rank is not None}
                continue
            close += 1
            seen.add(sign)
            text, rank = strip(line)
            worth = score(text)
            if worth <= 0:
                continue
            found = kept.get(text[:300])
            if found is None:
                if not _has_room(kept, worth):
                    continue
                # The lines before an anchor can lie in the previous block, whose end is kept for this.
                before = (tail if start < _AROUND else "") + block[max(0, start - _AROUND) : start]
                found = kept[text[:300]] = CandidateLine(
                    text, worth, close, before[-_AROUND:], block[end : end + _AROUND].lstrip("\n")
                )
            if worth >= _SURE:
                sure[sign] = found
            if rank is not None and len(found.ranks) < 4096:
                found.ranks.add(rank)
        tail = block[-_AROUND:]
    return sorted(kept.values(), key=lambda c: (-c.score, c.order))


def _has_room(kept: dict[str, CandidateLine], worth: float) -> bool:
    """Whether a candidate of this score can be kept; of a full list the last of the least leaves for it."""
    if len(kept) >= _KEPT:
        least = min(kept, key=lambda k: (kept[k].score, -kept[k].order))
        if kept[least].score >= worth:
            return False
        del kept[least]
    return True


def _marked(block: str, anchors: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    """Start and end of every line that holds an anchor, in order, each once."""
    marks: dict[int, int] = {}
    for anchor in anchors:
        at = block.find(anchor)
        for _ in range(_PER_BLOCK):
            if at < 0:
                break
            end = block.find("\n", at)
            if end < 0:
                end = len(block)
            # Over-long lines are cut 1,000 characters before the anchor.
            start = max(block.rfind("\n", 0, at) + 1, at - 1000)
            marks[start] = end
            at = block.find(anchor, end)
    yield from sorted(marks.items())
