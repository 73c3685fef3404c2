"""Hypotheses from the subject of a text whose numbers do not explain it: hangs, adapters, ties, order, …

The causes are the rows of topics.toml; errors that no cut causes are the rows of elsewhere.toml. `limits` has
the causes that words name and numbers support.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from llamapar.describe.layout import Layout
from llamapar.errors import is_slip
from llamapar.frameworks import FRAMEWORKS

from .hypothesis import LIKELY, POSSIBLE, WEAK, Hypothesis, Level, found
from .known import Known
from .observations import AXES
from .reading import Reading
from .vocabulary import CATEGORIES, NOT_SHARDING, SHARDING
from .words import either, pattern, table

BARE = 4
"""Words of a message that says next to nothing, for which the failing line speaks. Else no line of code,
which runs under any layout, proves that an error is another's."""


@dataclass(frozen=True)
class Topic:
    """A row of topics.toml; the file explains its fields."""

    category: str
    cause: str
    words: tuple[re.Pattern[str], ...]
    unless: re.Pattern[str] | None
    level: Level
    alone: Level
    blame: bool | None
    sure: bool
    needs: str

    def matches(self, text: str, around: str) -> bool:
        """Whether the text is about this topic. around: the text with the failing line of code."""
        spoken = all(words.search(text) for words in self.words)
        return spoken and not (self.unless and self.unless.search(around))


_BLAME = {SHARDING: True, NOT_SHARDING: False}


@cache
def _topics(file: str) -> tuple[Topic, ...]:
    return tuple(
        Topic(
            row["category"],
            row["cause"],
            tuple(map(either, row["words"])),
            either(row["unless"]) if "unless" in row else None,
            Level[row.get("level", "possible").upper()],
            Level[row.get("alone", row.get("level", "possible")).upper()],
            _BLAME.get(row.get("blame", "")),
            row.get("sure", False),
            row.get("needs", ""),
        )
        for row in table(file)["topic"]
    )


def elsewhere(found: Iterable[Hypothesis], r: Reading, known: Known) -> Iterator[Hypothesis]:
    """Causes without a cut, if no hypothesis blames a cut or is likely."""
    if not any(h.level is LIKELY or (h.parallel and h.level > WEAK) for h in found):
        yield from topics(r, known, "elsewhere.toml")


def of_other_layer(found: list[Hypothesis], r: Reading, known: Known) -> list[Hypothesis]:
    """`found` without the cuts of a Llama's sizes, if the text names a layer outside Llama's architecture.

    Experts are such a layer unless an axis of Llama's is spoken of too, or known to be in use.
    """
    spoken = any(axis in r.concepts or (known.get(axis) or 1) > 1 for axis in AXES)
    experts = "experts (EP)" if {"ep", "expert"} & r.concepts and not spoken else ""
    layer = r.other_layer or experts
    if not layer:
        return found
    bare = (None, "global_dim_not_localized")
    # Such a cut is one of a Llama's sizes where its category has axes, or is of an adapter, or any other.
    of_llama = [
        name for name, category in CATEGORIES.items() if category.axes or name in ("lora_tp", "other")
    ]
    kept = [h for h in found if h.subtype not in bare or h.category not in of_llama]
    cause = f"the text names {layer}, whose cuts are not read here"
    return [*kept, Hypothesis("other", cause, WEAK, parallel=None)]


_CUTS = frozenset((*Layout.__dataclass_fields__, "padding"))

_TELLING = 10
"""Letters of a setting from which one slip tells what was meant: tp_size and dp_size are two settings."""

_REFUSED = re.compile(r"(?:unexpected keyword argument '?|unrecognized arguments: --)([\w-]{5,80})")


def misspelt(r: Reading, known: Known) -> Iterator[Hypothesis]:
    """A rejected keyword that is, or almost is, a setting for how a framework cuts."""
    refused, meant = next(iter(_REFUSED.findall(r.text)), "").replace("-", "_"), dict[str, list[str]]()
    for framework in [known.framework] if known.framework else FRAMEWORKS.values():
        names = {name for _, own in framework.keywords for field, name in own.items() if field in _CUTS}
        for keyword in names:
            if len(keyword) >= _TELLING and (refused == keyword or is_slip(refused, keyword)):
                meant.setdefault(keyword, []).append(framework.title)
    for keyword, titles in meant.items():
        if refused == keyword:
            cause = f"{refused} is a setting of {', '.join(titles)}, and what is called here takes none such"
            yield found("other: not_there", LIKELY, cause, parallel=False)
        else:
            cause = f"{refused} is no setting: did you mean {keyword}, of {', '.join(titles)}?"
            yield found("other: misspelt_setting", LIKELY, cause)


_RULE, _RAISED = pattern("rule"), re.compile(r"(?:^|\n)[\w.]{0,80}(?:error|exception)\b")


def stated_subject(others: Iterable[Hypothesis], r: Reading) -> Iterator[Hypothesis]:
    """The subject of a message that states a rule about ranks, meshes or stages, if no other reader knows
    it.
    """
    if (_RULE.search(r.low) or _RAISED.search(r.low)) and not any(
        h.level > WEAK or h.equations for h in others
    ):
        row = next((row for row in _topics("statements.toml") if row.matches(r.low, r.low)), None)
        row = row or next((row for row in _topics("places.toml") if row.matches(r.raised_in, "")), None)
        if row is not None:
            yield found(row.category, POSSIBLE, row.cause)


def topics(r: Reading, known: Known, file: str = "topics.toml") -> Iterator[Hypothesis]:
    """Causes that the words name, from the rows of a file."""
    if file == "topics.toml":
        yield from misspelt(r, known)
    beside = r.parallel
    cut = known.get("zero") == 3 or any((known.get(axis) or 1) > 1 for axis in ("tp", "cp", "pp"))
    sharded = beside or cut
    around = f"{r.low}\n{r.line}"
    bare = file == "topics.toml" or len(r.low.split()) < BARE
    for topic in _topics(file):
        if topic.matches(around if bare else r.low, around):
            level = topic.level if sharded else topic.alone
            proven = sharded if topic.blame else not (sharded or r.concepts & {*AXES, "world"})
            sure = topic.sure and not (topic.blame is False and beside and cut)
            blame = topic.blame if sure or proven else None
            yield found(topic.category, level, topic.cause, parallel=blame, needs=topic.needs)
