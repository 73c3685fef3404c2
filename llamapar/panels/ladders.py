"""What `lp.live` can show: for each map its knob, the values on its ladder, and what each value gives. Pure.

A ladder answers before anybody clicks: every value of the knob stands there with what a rank gets by it,
or with the reason why it gets no whole share.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from llamapar.describe.models import ModelConfig
from llamapar.describe.models import model as find_model
from llamapar.describe.options import Values
from llamapar.errors import LayoutError, one_of
from llamapar.figures import View, view
from llamapar.place import HeadMap, SequenceMap, StageMap, VocabMap, heads, sequence, stages, vocab
from llamapar.records.tables import Plain, Record, plural, span, units

MOST_RUNGS = 12
"""Values on a ladder: more do not fit beside one another."""


class Map(Protocol):
    """A record of who holds what, which says why a share is not whole."""

    @property
    def reason(self) -> str: ...


@dataclass(frozen=True)
class Rung:
    """One value of the knob.

    gives: what a rank gets, in a few words. problem: why it is not a whole share; "" where it is one.
    says: the sentence under the ladder. code: the call that makes the record.
    """

    value: int
    gives: str
    problem: str
    says: str
    code: str
    view: View

    def as_dict(self) -> Plain:
        """Plain values for the browser."""
        own = {name: value for name, value in vars(self).items() if name != "view"}
        return own | {"figure": self.view.spec, "summary": self.view.summary}


@dataclass(frozen=True)
class Subject:
    """A map that can be shown live.

    make: its function, which takes a model first where `of_model`. knob: the degree on the ladder.
    most: the largest value that is worth a rung. controls: its other arguments, with their defaults.
    """

    make: Callable[..., Map]
    knob: str
    most: Callable[[Values], int]
    gives: Callable[..., str]
    says: Callable[..., str]
    controls: Values
    of_model: bool = True

    def call(self, values: Values) -> str:
        """The line of code that makes the same record."""
        usual = inspect.signature(self.make).parameters
        said = [name for name in self.controls if values[name] not in (usual[name].default, "none")]
        words = [f"{name}={values[name]!r}" for name in (self.knob, *said)]
        if self.of_model:
            model = values["model"]
            words.insert(0, f"{'lp.' * isinstance(model, ModelConfig)}{model!r}")
        return f"lp.{self.make.__name__}({', '.join(words)})"

    def record(self, values: Values) -> Map:
        """The record itself. Raises LlamaparError."""
        model = [values["model"]] if self.of_model else []
        return self.make(*model, **{name: values[name] for name in (self.knob, *self.controls)})

    def rung(self, values: Values) -> Rung:
        """What the knob's value gives. Raises LlamaparError."""
        record = self.record(values)
        value, made = values[self.knob], self.gives(record)
        return Rung(value, made, record.reason, self.says(record), self.call(values), view(record))

    def ladder(self, values: Values) -> tuple[Rung, ...]:
        """A rung for the value of `values`, each power of two up to the most, and the divisors of that.

        Divisors are left out where there is no room for them. Raises LlamaparError where the other
        controls allow no record.
        """
        most = max(1, self.most(values))
        steps = {2**k for k in range(most.bit_length())} | {most, values[self.knob]}
        divisors = [n for n in range(1, most + 1) if most % n == 0]
        if len(steps | set(divisors)) <= MOST_RUNGS:
            steps |= set(divisors)
        return tuple(self.rung({**values, self.knob: step}) for step in sorted(steps))


def _counted(n: int, word: str) -> str:
    """ "eight KV heads", "128 query heads": small numbers as words."""
    names = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    return f"{names[n]} {word}{'s' * (n != 1)}" if n < len(names) else plural(n, word)


def _share(whole: int, ways: int, word: str) -> str:
    """ "4 KV heads", "1/2 KV head", "2 2/3 KV heads" of a rank."""
    share = Fraction(whole, ways)
    full, rest = divmod(share.numerator, share.denominator)
    part = f"{rest}/{share.denominator}" if rest else ""
    said = " ".join(filter(None, (str(full) if full or not part else "", part)))
    return f"{said} {word}{'s' * (share > 1)}"


# -- heads -----------------------------------------------------------------------------------------


def _heads_gives(record: HeadMap) -> str:
    m, tp = record.model, record.tp
    if m.n_heads % tp:
        return _share(m.n_heads, tp, "query head")
    if record.replicas > 1:
        return f"a copy, 1 of {record.replicas}"
    return _share(m.n_kv_heads, tp, "KV head")


def _heads_says(record: HeadMap) -> str:
    m, tp = record.model, record.tp
    if m.n_heads % tp:
        return (
            f"TP {tp} does not divide the {m.n_heads} query heads: a rank would hold "
            f"{_share(m.n_heads, tp, 'query head')}."
        )
    queries = _counted(m.n_heads // tp, "query head")
    if wrong := len(record.wrong_ranks):
        return (
            f"The copies are tiled: {wrong} of {tp} ranks hold a KV head that their query heads do not read, "
            "and every shape is right."
        )
    if record.replicas > 1:
        return (
            f"Each KV head is stored on {record.replicas} ranks, beside the query heads that read it. The "
            f"gradient of a KV head is the sum over its {record.replicas} copies."
        )
    if m.n_kv_heads % tp:
        torn = sum(_torn(head, record) for head in range(m.n_kv_heads))
        which = "each" if torn == m.n_kv_heads else f"{torn}"
        return (
            f"TP {tp} cuts through {which} of the {m.n_kv_heads} KV heads. A rank has {queries} and "
            f"{_share(m.n_kv_heads, tp, 'KV head')}."
        )
    if tp == 1:
        return f"One rank holds all {m.n_heads} query heads and all {m.n_kv_heads} KV heads."
    return (
        f"Each of the {tp} ranks holds {queries} and the {_counted(m.n_kv_heads // tp, 'KV head')} that they "
        "read: attention needs no other rank."
    )


def _torn(head: int, record: HeadMap) -> bool:
    """Whether the rows of a KV head lie on more than one rank."""
    first = head * record.tp // record.model.n_kv_heads
    last = -(-(head + 1) * record.tp // record.model.n_kv_heads) - 1
    return last > first


# -- vocabulary ------------------------------------------------------------------------------------


def _vocab_gives(record: VocabMap) -> str:
    pads = f", {plural(record.pad_rows, 'pad')}" if record.pad_rows else ""
    return plural(len(record.rank(0).rows), "row") + pads


def _vocab_says(record: VocabMap) -> str:
    first, last = record.rank(0), record.rank(record.tp - 1)
    if not record.ok:
        return (
            f"{record.padded:,} rows do not divide by {record.tp}: rank 0 holds {len(first.rows):,} rows and "
            f"the last rank {len(last.rows):,}."
        )
    said = f"Each rank holds {len(first.rows):,} rows of the embedding"
    if record.tp > 1:
        said += f"; rank 1 holds {units('row', record.rank(1).rows)}"
    if record.pad_rows:
        return f"{said}. {plural(record.pad_rows, 'row')} at the end stand for no token."
    return f"{said}."


# -- sequence --------------------------------------------------------------------------------------


def _sequence_gives(record: SequenceMap) -> str:
    return plural(record.rank(0).tokens, "token")


def _sequence_says(record: SequenceMap) -> str:
    if record.reason:
        return f"{record.reason[0].upper()}{record.reason[1:]}."
    chunks = " and ".join(span(chunk) for chunk in record.rank(0).chunks)
    said = f"CP rank 0 holds tokens {chunks}. The busiest rank has {record.imbalance:.2f} times the mean work"
    return f"{said}: the others wait for it." if record.imbalance > 1.005 else f"{said}: nobody waits."


# -- stages ----------------------------------------------------------------------------------------


def _stages_gives(record: StageMap) -> str:
    if not record.counts:
        return "no split"
    fewest, most = min(record.counts), max(record.counts)
    return f"{fewest}–{most} layers" if fewest < most else plural(most, "layer")


def _stages_says(record: StageMap) -> str:
    if not record.counts:
        return f"{record.reason[0].upper()}{record.reason[1:]}."
    runs = ", ".join(f"{n} × {count}" if n > 1 else str(count) for n, count in record.runs)
    return f"{record.model.n_layers} layers over {plural(len(record.counts), 'stage')}: {runs}."


def _of_model(field: str) -> Callable[[Values], int]:
    def most(values: Values) -> int:
        found: ModelConfig = find_model(values["model"])
        return int(getattr(found, field))

    return most


SUBJECTS = {
    "heads": Subject(
        heads,
        "tp",
        _of_model("n_heads"),
        _heads_gives,
        _heads_says,
        {"kv_replication": False, "interleave": True},
    ),
    "vocab": Subject(vocab, "tp", lambda _: 128, _vocab_gives, _vocab_says, {"padding": "none"}),
    "sequence": Subject(
        sequence,
        "cp",
        lambda values: min(64, values["seq_len"] or 1),
        _sequence_gives,
        _sequence_says,
        {"seq_len": 8192, "chunking": "head-tail"},
        of_model=False,
    ),
    "stages": Subject(
        stages,
        "pp",
        lambda values: min(64, find_model(values["model"]).n_layers),
        _stages_gives,
        _stages_says,
        {"virtual_stages": 1, "layer_split": "balanced ends"},
    ),
}
"""Name → what can be shown live, by the name of its function."""


def subject(name: str) -> Subject:
    """Raises LayoutError, which names what there is."""
    return SUBJECTS[one_of("what", name, SUBJECTS)]


def subject_of(record: Record) -> str:
    """The name of the function that makes such a record. Raises LayoutError where it cannot be shown live."""
    kinds = {HeadMap: "heads", VocabMap: "vocab", SequenceMap: "sequence", StageMap: "stages"}
    if type(record) not in kinds:
        raise LayoutError(
            f"{type(record).__name__} cannot be shown live",
            f"live pictures are made of {', '.join(kind.__name__ for kind in kinds)}",
            ["lp.live('heads', model, tp=8)"],
            "what",
        )
    return kinds[type(record)]
