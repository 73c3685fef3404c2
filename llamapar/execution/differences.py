"""Numbers of a program that differ from one process's, explained: which tensors, where in them, and why.

The first kind of tensor that differs is explained, in the order of a step; what comes after it follows from
it. Everything is computed when the explanation is read, in float64: the ranks and the reference run again,
and after that the program line by line. What two seconds do not suffice for is left out.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from torch import Tensor

from llamapar.diagnosis import Explanation
from llamapar.diagnosis.hypothesis import LIKELY
from llamapar.diagnosis.vocabulary import NOT_SHARDING, SHARDING
from llamapar.errors import LlamaparError
from llamapar.place.cut import Cut
from llamapar.place.difference_map import DifferenceMap, drawn_on
from llamapar.records.tables import units
from llamapar.records.trace import TapeStep

from .body import RankReport, Task
from .ends import End, axes_in, end_tensors, pieces_of
from .engines import local
from .first_line import FirstLine, first_line, first_of_pipeline, in_place_of
from .module_reading import taken
from .patterns import (
    Pieces,
    Stretch,
    maximum_in_words,
    pattern_of,
    place_in_words,
    shuffled,
    stretches,
    sum_in_words,
    weights,
)
from .placing import rows_of
from .replies import Cancelled
from .rows import GRADIENT, LINE, LOSS, MEAN, OUTPUT, WEIGHT, Row
from .step_patterns import norm_pattern, update_pattern
from .unsharded import unsharded
from .what_ifs import factor_at_another_degree, sequences_summed, what_if

SECONDS = 2.0
"""Most time of its thread that an explanation takes; on an idle machine that is the time that passes."""

MOST_NAMES = 3
"""Names of tensors that a sentence lists."""


@dataclass
class Difference:
    """How numbers differ. tensors: those of one pattern, by name. place: where in them; pattern: what
    happened to the numbers. line: the first wrong one; wrong: what it made, with its own place and pattern;
    stage: whose ranks these are, where not the world's. map: the last of the places, drawn. Each is "" where
    it is not known.
    """

    tensors: str
    place: str = ""
    pattern: str = ""
    line: str = ""
    wrong: str = ""
    wrong_place: str = ""
    wrong_pattern: str = ""
    alone: bool = False
    stage: str = ""
    map: DifferenceMap | None = None
    ranks: tuple[int, ...] = ()
    operands: list[tuple[str, ...]] = field(default_factory=list)
    more: list[str] = field(default_factory=list)

    @property
    def explanation(self) -> Explanation:
        named = ", ".join(filter(None, [self.tensors, self.place]))
        what = f"{named}: {self.pattern or 'differs from one process'}"
        if self.wrong:
            how = "is wrong"
            if self.alone:
                how = "the reference does not compute"
            first = ", ".join(
                filter(None, [f"{self.wrong} is the first that {how}{self.stage}", self.wrong_place])
            )
            again = "" if self.wrong_pattern == self.pattern else self.wrong_pattern
            what += "; " + ": ".join(filter(None, [first, again]))
        more = list(self.more)
        if not (self.place or self.pattern or self.line):
            more.append("where in it, and why, is not known")
        return Explanation(
            NOT_SHARDING if self.alone else SHARDING,
            what,
            what=what[:1].upper() + what[1:],
            line=self.line,
            ranks=self.ranks,
            operands=tuple(self.operands),
            rivals=tuple(more),
            level=LIKELY,
            map=self.map,
        )


def first_kind(rows: Iterable[Row]) -> list[Row]:
    """The rows that differ and follow from no other ones. A norm follows from gradients."""
    off = [row for row in rows if not row.ok]
    order = (OUTPUT, GRADIENT, "norm", MEAN, WEIGHT, LOSS, LINE)
    kinds = [row.name if row.name == "norm" else row.kind for row in off]
    first = min(kinds, key=order.index, default="")
    return [row for row, of in zip(off, kinds, strict=True) if of == first]


def of_program(task: Task, reports: Sequence[RankReport], rows: Sequence[Row]) -> Difference:
    """How the rows of a program that differ do so."""
    end = time.thread_time() + SECONDS

    def tick() -> None:
        if time.thread_time() > end:
            raise Cancelled("the explanation took long")

    first = first_kind(rows)
    story = Difference(f"{first[0].kind} {few_names(first)}", ranks=first[0].ranks)
    others = {f"{row.kind}s" for row in rows if not row.ok and row.kind != first[0].kind}
    if others:
        story.more.append(f"{' and '.join(sorted(others))} differ as well: they are made from it")
    with suppress(Cancelled, LlamaparError), local.one_run:
        _look(story, task, reports, first, tick)
    return story


def _look(
    story: Difference,
    task: Task,
    reports: Sequence[RankReport],
    first: Sequence[Row],
    tick: Callable[[], None],
) -> None:
    """Fill the story, the cheapest first."""
    if task.setting.dtype != "float64":
        task = task.in_float64()
        reports = local.run(task, "cpu", tick)
    alone = unsharded(task, tick)
    names = factors(task)
    wanted = {(row.kind, row.name) for row in first}
    found = list[tuple[Pieces, str]]()
    for end in end_tensors(task, reports, alone):
        if (end.kind, end.name) not in wanted:
            continue
        tick()
        t = pieces_of(end, axes_in(task, end))
        pattern = ""
        if end.name == "norm":
            pattern = norm_pattern(task, end, reports)
        elif end.kind in (MEAN, WEIGHT):
            pattern = update_pattern(task, end, alone, reports)
        if t.ranks:
            found.append((t, pattern or pattern_of(t, task.layout, names)))
    tell(story, found, task.setting)
    line = None
    if first[0].kind in (OUTPUT, GRADIENT) and first[0].name != "norm":
        line = first_line(task, tick)
        if line is not None:
            _tell_line(story, line)
    _experiment(story, task, found, tick)
    if line is None:
        of_pipeline = first_of_pipeline(task, tick)
        if isinstance(of_pipeline, FirstLine):
            _tell_line(story, of_pipeline)
        elif of_pipeline:
            story.more.append(of_pipeline)


def _experiment(
    story: Difference, task: Task, found: Sequence[tuple[Pieces, str]], tick: Callable[[], None]
) -> None:
    """What only another run can tell, once everything else is told."""
    wrong = [t for t, pattern in found if pattern == story.pattern and not t.missing]
    if not wrong or wrong[0].name == "norm":
        return
    if wrong[0].kind in (OUTPUT, GRADIENT) and story.pattern:
        story.pattern = factor_at_another_degree(task, wrong[0], factors, tick) or story.pattern
    elif wrong[0].kind == OUTPUT:
        story.pattern = what_if(task, wrong, tick)
    elif wrong[0].kind == GRADIENT:
        summed = sequences_summed(task, wrong, tick)
        tell(story, [(t, summed.get(t.name, "")) for t in wrong], task.setting)


def factors(task: Task) -> dict[str, float]:
    """The numbers that a mistake may multiply with, by name."""
    setting = task.setting
    layout = setting.layout
    return {axis: layout.size(axis) for axis in layout.axes} | {
        "dp_replicate": layout.dp_replicate if layout.dp_replicate < layout.dp else 1,
        "ranks that share a shard": setting.shards.ranks if setting.shards.cuts("gradients") else 1,
        "micro-batches": setting.micro_batches,
        "sequences of a micro-batch": setting.micro_batch,
        "copies of a KV head": setting.heads.replicas,
        "sqrt(head_dim)": setting.model.head_dim**0.5,
        "sqrt(dp)": layout.dp**0.5,
    }


def tell(story: Difference, found: Sequence[tuple[Pieces, str]], cut: Cut) -> None:
    """Tell of the tensors with one pattern in one place, of those that say most. cut: who holds what."""
    groups = dict[tuple[str, str], list[Pieces]]()
    for t, pattern in found:
        # AdamW moves a weight whose gradient is rounding either way, so where weights differ says nothing.
        groups.setdefault((pattern, "" if t.kind == WEIGHT else place_in_words(t)), []).append(t)
    if groups:
        told = max(groups, key=lambda group: (bool(group[0]), bool(group[1]), len(groups[group])))
        tensors = groups[told]
        of = "gradient of" if tensors[0].kind == GRADIENT else tensors[0].kind
        story.tensors = f"{of} {few_names(tensors)}"
        story.pattern, story.place = told
        story.ranks = tensors[0].ranks
        if tensors[0].kind != WEIGHT:
            layers = [*_layers(tensors, [t for t, _ in found], cut.model.n_layers)]
            story.place = ", ".join(filter(None, [story.place, *(stretch.words for stretch in layers)]))
            draw(story, story.tensors, [*stretches(tensors[0]), *layers], cut)


def draw(story: Difference, name: str, where: Sequence[Stretch], cut: Cut) -> None:
    """Draw where a tensor differs, on the map of most ranks, if any map shows what the ranks hold."""
    drawn = [drawn_on(f"{name}, {s.words}", cut, s.unit, s.size, s.held, s.off) for s in where]
    maps = [one for one in drawn if one is not None]
    story.map = max(maps, key=lambda one: cut.layout.size(one.axis), default=story.map)


def _layers(tensors: Sequence[Pieces], found: Sequence[Pieces], n: int) -> Iterator[Stretch]:
    """The layers of tensors that differ, if no others do, and not all n."""
    layers = {_layer(t) for t in tensors}
    first = min(layers)
    run = range(first, max(layers) + 1)
    if first < 0 or layers != {*run} or len(run) == n or layers != {_layer(t) for t in found} - {-1}:
        return
    words = f"layers from {first} on" if 1 < len(run) == n - first else units("layer", run)
    off = {rank: {_layer(t) for t in tensors if rank in t.ranks} for own in tensors for rank in own.ranks}
    yield Stretch(words, "layer", n, {}, off)


def _layer(t: Pieces) -> int:
    """The layer of a parameter; -1 of what belongs to none."""
    found = re.search(r"\blayers\.(\d+)\.", t.name)
    if found:
        return int(found[1])
    return -1


def _tell_line(story: Difference, line: FirstLine) -> None:
    """Add the first wrong line, with where and why what it made is wrong."""
    task = line.task
    made = line.made
    story.line = f"{line.at.where.removesuffix(':0')}: {line.at.code}"
    story.alone = line.alone
    story.stage = line.stage
    story.wrong = made.name
    if made.name == "out" and made.code.startswith("return"):
        story.wrong = "what it returns"
    story.operands = [operand(step) for step in (*line.reads, made)]
    names = factors(task)
    if line.alone:
        story.more.append("one process alone makes the same mistake: no cut is to blame")
        alike = (pattern_of(pieces_of_step(line, whole), task.layout, names) for whole in line.like)
        story.wrong_pattern = next(filter(None, alike), "") or in_place_of(line)
    elif made.at:
        t = pieces_of_step(line)
        story.wrong_place = place_in_words(t)
        draw(story, story.wrong, [*stretches(t)], task.setting)
        alike = (shuffled(replace(t, whole=whole.reshape(t.whole.shape))) for whole in line.like)
        pattern = pattern_of(t, task.layout, names) or _sum_of_ranks(t, line.reads)
        story.wrong_pattern = pattern or next(filter(None, alike), "")


def pieces_of_step(line: FirstLine, like: Tensor | None = None) -> Pieces:
    """What a line made on the ranks beside one process's, or one process's beside another one."""
    made = line.made
    # Shapes alone may allow several cuts; that of a tensor that the line read, and is right, is likelier.
    alike = [
        r.at for r in line.reads if r.agrees and r.local == made.local and r.global_shape == made.global_shape
    ]
    at = [*alike, made.at][0]

    def take(t: Tensor, rank: int) -> Tensor:
        return taken(t, rows_of(at[rank])).nan_to_num(0)

    end = End(made.phase, made.name, made.whole, made.values, take)
    if like is not None:
        right = like.reshape(made.whole.shape)
        end = End(made.phase, made.name, right, {0: made.whole}, lambda t, rank: t)
    return pieces_of(end, axes_in(line.task, end))


def _sum_of_ranks(t: Pieces, reads: Sequence[TapeStep]) -> str:
    """What a line made, where it should be a sum of what the ranks have of a tensor that it read: another
    sum of them, or a maximum.
    """
    for read in reads:
        for rank, (own, right) in t.pairs.items():
            columns = [of_rank.double() for of_rank in read.values.values()]
            if columns[0].shape == t.whole.shape:
                columns = [taken(column, t.parts[rank]) for column in columns]
            should = weights(right, columns, t.limit)
            if should is None:
                continue
            got = weights(own, columns, t.limit)
            if got is None:
                words = maximum_in_words(own, columns, should, t.limit)
            else:
                words = "" if got == should else sum_in_words(got, "rank")
            if words:
                should_be = f"where {sum_in_words(should, 'rank')} should be"
                return f"on rank {rank} {words} of {read.name}, {should_be}"
    return ""


def operand(step: TapeStep) -> tuple[str, ...]:
    """The row of a tensor in the table of operands."""
    own = step.local[min(step.local)]
    held = ", ".join(f"{how.kind} over {axis}" for axis, how in step.places.items() if how.kind != "copy")
    return (
        step.name,
        str(list(own)),
        held if step.agrees or step.whole is None else "wrong",
        str(list(step.global_shape or ())),
    )


def few_names(tensors: Sequence[Row] | Sequence[Pieces]) -> str:
    """The names of tensors; those of several layers once, without the layers."""
    whole = [t.name for t in tensors]
    short = [name.removeprefix("layers.").lstrip("0123456789.") for name in whole]
    pairs = zip(whole, short, strict=True)
    names = [*dict.fromkeys(name if short.count(name) > 1 else full for full, name in pairs)]
    text = ", ".join(names[:MOST_NAMES])
    if len(names) > MOST_NAMES:
        text += f" and {len(names) - MOST_NAMES} more"
    return text
