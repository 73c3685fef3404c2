"""Text into typed pieces: numbers, shapes, products, concepts. Nothing is ever evaluated.

Every pattern is linear: no quantifier inside a quantifier over the same characters, every repeat of
digits bounded, and the text cut to `LIMIT` characters before any pattern sees it.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from .words import concepts, pattern

LIMIT = 6000
"""Characters of one message that are read."""

Shape = tuple[int, ...]

_ANSI = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]|\x1b[@-_]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_SPACES = re.compile(r"[ \t\r\xa0]+")


def plain_text(text: str) -> str:
    """`text` without colours and control characters, with wide characters folded and blanks merged."""
    text = _CONTROL.sub(" ", _ANSI.sub("", text[:LIMIT]))
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)[:LIMIT]
    text = text.replace("newaxis", "-1")  # numpy writes an open dim of a shape like this.
    return _SPACES.sub(" ", text).strip()


# -- concepts --------------------------------------------------------------------------------------

_CONCEPT = concepts()


@dataclass(frozen=True)
class Concept:
    """A concept in the text, with the number beside it."""

    concept: str
    start: int
    end: int
    number: int | None = None


# -- numbers and shapes ----------------------------------------------------------------------------

_INT = r"-?\d{1,32}"
_SHAPE = re.compile(
    rf"[\[(] ?{_INT}(?:(?:, ?{_INT}){{1,9}},?|,) ?[\])]|\[ ?{_INT} ?\]|"
    r"(?:(?<=expected )|(?<=got )|(?<=shape ))\d{1,12}(?:, \d{1,12}){1,5}|"
    r"(?<=slice shape: )\d{1,12}(?: \d{1,12}){1,5}|"
    r"\b(?!0x)\d{1,12}x\d{1,12}(?:x\d{1,12}){0,3}\b"
)
_DIGITS = re.compile(_INT)
_NUMBER = re.compile(r"(?<![\w.])\d{1,3}(?:,\d{3}){1,9}(?![\d,])|(?<![\w.])-?\d{1,32}(?![\d\w]|\.\d)")
PRODUCT = re.compile(r"\b\d{1,20}(?:(?: ?[·*×] ?| x )\d{1,20}){1,7}")
_BESIDE = re.compile(r"['\"`)]{0,2} ?(?:=|:|\(|of|is|was|-|_)?=? ?\(?['\"]?(\d{1,20})(?![\d.]*\w|-\d\d-)")


_PATH = re.compile(r"[a-z_]\w{0,40}(?:\.\w{1,40}){2,12}")
"""A tensor's name such as model.layers.0.self_attn.k_proj.weight."""

_ONE, _BARE = re.compile(r"(?:rank|stage|layer|head|block|shard|node)$"), re.compile(r" ?\d")
"""The number right beside such a word is which one it is: "rank 3", "stage 2", "layer 5"."""

_NEAR = 24
"""Characters before a number that tell its role."""

_WHICH = pattern("which_one")
"""What stands before a number that says which one, where or when, and counts nothing."""

_KEYS = pattern("no_shape_in_brackets")
"""What stands before one number in brackets that is no shape: dict_keys([0]), ranks [3], params[0]."""

_INTERVAL = re.compile(r"\b(?:interval|range(?: of)?|between|within|block:|thread:) $")
"""What stands before brackets that hold no shape: the ends of an interval, or which thread of a GPU."""

_MEASURE = pattern("amount")
"""What stands behind an amount of time or memory."""

_PARALLEL = pattern("of_ranks")

_LOADED = re.compile(r"copying|checkpoint|current model|param|load|set a tensor|saved")
_LOADS = re.compile(r"(?<!to_local\(\))\.copy_\(|load|get_slice|state_dict|narrow\(|checkpoint|merge")
"""What a text, and a line of source, say where a tensor comes from a file."""

_NAMED_LOAD = re.compile(r"  # .{0,60}(?:load(?!er\b)|resum|restor|convert|merge|ckpt|checkpoint|export)")
"""The name of a user's file or function that reads one."""

_NO_OPERAND = re.compile(r"\b\w{1,60}\(|  # .*|\[[^\]]{0,80}\](?= ?=[^=])")

_OTHER_LAYERS = {
    "multi-head latent attention (MLA)": pattern("latent_attention"),
    "a linear-attention layer": pattern("linear_attention"),
}

_GROUP_SIZE = ("group_size", "group size")
_LEAST_GROUP = 16
"""Columns of a quantisation group, at least: a smaller group is one of ranks."""

_GPUS = re.compile(r"\bon (\d{1,6}) (?:\w{1,12} )?gpus\b")
_FACTS = {"heads": "n_heads", "kv": "n_kv_heads", "layers": "n_layers"}


@dataclass(frozen=True)
class Reading:
    """A text and the pieces found in it; each piece is computed on first access.

    code: lines of source that the traceback shows above the message, outermost first. raised_in: the path of
    the file that raised it.
    """

    text: str
    code: tuple[str, ...] = ()
    raised_in: str = ""

    @classmethod
    def of(cls, text: str, code: tuple[str, ...] = (), raised_in: str = "") -> Reading:
        return cls(plain_text(text), code, raised_in)

    @cached_property
    def low(self) -> str:
        return self.text.lower()

    @cached_property
    def line(self) -> str:
        """The line of code that failed, in lower case."""
        return " ".join(self.code[-1:]).lower()

    @cached_property
    def whole(self) -> str:
        """The text and all lines of code over it, in lower case."""
        return "\n".join((self.low, *self.code)).lower()

    @cached_property
    def shapes(self) -> list[tuple[Shape, int]]:
        """Shapes of at least one dim, with their positions."""
        found = []
        for match in _SHAPE.finditer(self.text):
            dims = tuple(int(n) for n in _DIGITS.findall(match.group().replace("x", " ")))
            before = self.low[max(0, match.start() - _NEAR) : match.start()]
            prefix = self.text[match.end() : match.end() + 1] == ":"  # "[1]: …" is what rank 1 says
            key = prefix or _KEYS.search(before) if len(dims) == 1 else _INTERVAL.search(before)
            if not key:
                found.append((dims, match.start()))
        return found

    @cached_property
    def numbers(self) -> list[tuple[int, int]]:
        """Numbers that count something, with their positions, including those in shapes.

        Excluded are the 3 of "rank 3", line numbers, times, exit codes and amounts of memory.
        """
        return [
            (int(m.group().replace(",", "")), m.start())
            for m in _NUMBER.finditer(self.text)
            if not _WHICH.search(self.low[max(0, m.start() - _NEAR) : m.start()])
            and not _MEASURE.match(self.low, m.end())
        ]

    @cached_property
    def values(self) -> list[int]:
        return [n for n, _ in self.numbers]

    @cached_property
    def products(self) -> list[tuple[Shape, int]]:
        """Written products such as 8·16·16·4, as factors and value."""
        rows = [tuple(int(n) for n in _DIGITS.findall(m.group())) for m in PRODUCT.finditer(self.text)]
        return [(row, math.prod(row)) for row in rows]

    @cached_property
    def terms(self) -> list[Concept]:
        """Concepts in order of appearance, except those inside a tensor's dotted name."""
        found = []
        named = [match.span() for match in _PATH.finditer(self.low)]
        for match in _CONCEPT.finditer(self.low):
            if any(start <= match.start() < end for start, end in named):
                continue
            beside = _BESIDE.match(self.low, match.end())
            number = None
            if beside:
                number = int(beside.group(1))
            concept = str(match.lastgroup)
            if concept == "dimension" and (number or 0) < 10:
                number = None  # "dimension 0" is an index
            of_ranks = number is not None and (number < _LEAST_GROUP or "distributed/" in self.raised_in)
            if of_ranks and match.group() in _GROUP_SIZE:
                concept = "world"
            found.append(Concept(concept, match.start(), match.end(), number))
        return found

    @cached_property
    def concepts(self) -> frozenset[str]:
        return frozenset(t.concept for t in self.terms)

    @cached_property
    def evident(self) -> frozenset[str]:
        """The concepts of the text and of the failing line of code, which says what the tensor is."""
        return self.concepts | {str(match.lastgroup) for match in _CONCEPT.finditer(self.line)}

    @cached_property
    def operands(self) -> frozenset[str]:
        """`evident`, but with only the operands of the failing line: no names of functions or files, and no
        index of an assignment's target.
        """
        line = _NO_OPERAND.sub(" ", self.line)
        return self.concepts | {str(match.lastgroup) for match in _CONCEPT.finditer(line)}

    @cached_property
    def named(self) -> list[str]:
        """The concepts in the lines of source above the text, those of the failing line first."""
        lines = (line.lower() for line in reversed(self.code))
        found = (str(match.lastgroup) for line in lines for match in _CONCEPT.finditer(line))
        return list(dict.fromkeys(found))

    @cached_property
    def positions(self) -> bool:
        """Whether the text, or the source above it, mentions positions or their tables."""
        lines = " ".join(self.code).lower()
        return "position" in self.evident or any(m.lastgroup == "position" for m in _CONCEPT.finditer(lines))

    @cached_property
    def loading(self) -> bool:
        """Whether the text or the failing line reads a tensor from a file."""
        return bool(_LOADED.search(self.low) or _LOADS.search(self.line) or _NAMED_LOAD.search(self.line))

    @cached_property
    def parallel(self) -> bool:
        """Whether the text or the failing line of code mentions ranks."""
        return bool(_PARALLEL.search(self.low) or _PARALLEL.search(self.line))

    @cached_property
    def other_layer(self) -> str:
        """A layer outside Llama's architecture that the text or the failing line names; "" without one."""
        said = f"{self.low}\n{self.line.partition('  # ')[0]}"
        return next((name for name, words in _OTHER_LAYERS.items() if words.search(said)), "")

    @cached_property
    def counts_heads(self) -> bool:
        """Whether a name in the text, or in the source above it, is a number of heads."""
        return bool({"kv", "heads"} & {*self.concepts, *self.named} or "n_rep" in self.whole)

    def beside(self, concept: str) -> int | None:
        """The first number that stands beside a concept anywhere in the text."""
        return next((t.number for t in self.terms if t.concept == concept and t.number), None)

    def within(self, start: int, end: int) -> list[Concept]:
        return [t for t in self.terms if start <= t.start < end]

    def facts(self) -> Iterator[tuple[str, int]]:
        """Degrees and GPUs that the text states: ("tp", 8), ("world", 16)."""
        gpus = _GPUS.search(self.low)
        if gpus:
            yield "world", int(gpus[1])
        for term in self.terms:
            fact = _FACTS.get(term.concept, term.concept)
            if _ONE.search(self.low[term.start : term.end]) and _BARE.match(self.low, term.end):
                continue
            if (fact in _FACTS.values() or fact in ("tp", "pp", "cp", "dp", "ep", "world")) and term.number:
                yield fact, term.number
