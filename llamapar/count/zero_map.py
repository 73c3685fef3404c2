"""`zero`: who holds which parameters, gradients and optimizer states, and what travels when."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple, Unpack

from llamapar.describe.arguments import checked_options
from llamapar.describe.dtypes import BYTES
from llamapar.describe.keywords import ZeroKeywords
from llamapar.describe.layout import Coord, Layout, LayoutLike
from llamapar.describe.models import ModelLike, Parameter
from llamapar.describe.models import model as find_model
from llamapar.describe.options import OPTIONS
from llamapar.describe.splits import Split
from llamapar.errors import one_of, whole
from llamapar.frameworks import padding_rule
from llamapar.place.cut import Cut
from llamapar.place.shards import SHARED_FROM
from llamapar.records.tables import Plain, Record, plural, span
from llamapar.records.tables import cut as shown
from llamapar.records.trace import PHASES, sent_bytes

from .sharing import ParameterTraffic, seen_in

_split = lru_cache(maxsize=256)(Split)
"""Cached because checking a split takes time, and a picture asks for the same few hundreds of times."""


class ZeroCollectives(NamedTuple):
    """`times` collectives of one kind in a step, in which a rank sends `bytes`. when: a phase."""

    when: str
    axis: str
    kind: str
    times: int
    bytes: int


@dataclass(frozen=True, repr=False)
class ZeroMap(Record):
    """The ranks that share one copy of a stage's parameters, and what each of them holds.

    rank: one of them. parameter: the one whose rows are listed and drawn. dtype: of parameters. Gradients and
    the two moments of Adam are in float32 at least; master weights are left out, `memory` counts them. Bytes
    are of all parameters of the rank's stage.
    """

    cut: Cut
    rank: int
    parameter: Parameter
    dtype: str
    reshard_after_forward: bool

    @property
    def layout(self) -> Layout:
        return self.cut.layout

    @property
    def coord(self) -> Coord:
        return self.layout.coord_of(self.rank)

    @property
    def ways(self) -> int:
        """How many ranks share the copy; their places are numbered from 0."""
        return self.cut.shards.ranks

    def rank_at(self, place: int) -> int:
        """The global rank in a place."""
        return self.cut.shards.rank_at(place, self.rank)

    @cached_property
    def parameters(self) -> list[Parameter]:
        """The parameters of the rank's stages; a tied head has a copy of the embedding."""
        layout = self.layout
        model = self.cut.model
        own = self.coord.pp
        held = [p for p in model.parameters() if self.cut.stage(p) % layout.pp == own]
        tied = model.tied and layout.pp > 1 and own == (layout.stages - 1) % layout.pp
        return held + [p for p in model.parameters() if tied and p.key == "tok_embeddings"]

    @cached_property
    def _sizes(self) -> Counter[int]:
        """Number of rows of a piece → numbers of all rows in pieces of that size, over `parameters`."""
        sizes = Counter[int]()
        own = self.coord.tp
        for p in self.parameters:
            count, *columns = self.cut.local_shape(p, own)
            sizes[count] += math.prod(columns)
        return sizes

    @cached_property
    def count(self) -> int:
        """Rows of `parameter` that the group shares."""
        return self.cut.local_shape(self.parameter, self.coord.tp)[0]

    def rows(self, what: str, place: int) -> range:
        """The rows of `parameter`, its gradient or its state that the rank at a place of the group holds."""
        return self._rows(what, self.count, place)

    def _rows(self, what: str, count: int, place: int) -> range:
        if self.cut.shards.cuts(what):
            return _split(count, self.ways)[place]
        return range(count)

    def held(self, what: str, place: int) -> int:
        """Bytes of `what` that the rank at a place of the group holds throughout the step.

        what: a key of SHARED_FROM.
        """
        item = BYTES[self.dtype]
        each = {"parameters": item, "gradients": max(item, 4), "optimizer state": 2 * max(item, 4)}[what]
        numbers = sum(len(self._rows(what, count, place)) * wide for count, wide in self._sizes.items())
        return numbers * each

    @cached_property
    def moves(self) -> tuple[ZeroCollectives, ...]:
        """What a step of one micro-batch sends between ranks that hold or share copies, in order.

        Gradients are summed in float32 at least. Under ZeRO 1 and 2 the updated parameters are gathered after
        the optimizer's step; under ZeRO 3 they are gathered when they are used.
        """
        item = BYTES[self.dtype]
        traffic = ParameterTraffic(self.cut, self.coord, item, max(item, 4), self.reshard_after_forward)
        found = Counter[tuple[str, str, str]]()
        times = Counter[tuple[str, str, str]]()
        for p in self.parameters:
            for phase, axis, kind, count, payload, ranks in traffic.rows(p, late=False):
                if axis != "tp" and self.layout.size(axis) > 1:
                    key = (seen_in(phase), axis, kind)
                    times[key] += count
                    found[key] += count * sent_bytes(kind, payload, ranks)
        moves = [ZeroCollectives(*key, times[key], size) for key, size in found.items()]
        return tuple(sorted(moves, key=lambda move: (PHASES.index(move.when), move.kind)))

    @property
    def title(self) -> str:
        layout = self.layout
        copies = ""
        if layout.dp_replicate > 1:
            copies = f", {layout.dp_replicate} copies"
        return (
            f"{self.cut.model.name}, {layout}, ZeRO {layout.zero}: {plural(self.ways, 'rank')} share{copies}"
        )

    def as_dict(self) -> Plain:
        """{"ranks", "held": {what: [bytes by place]}, "moves": [...]}."""
        places = range(self.ways)
        return {
            "zero": self.layout.zero,
            "ranks": [self.rank_at(place) for place in places],
            "held": {what: [self.held(what, place) for place in places] for what in SHARED_FROM},
            "moves": [move._asdict() for move in self.moves],
        }

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        head = ["rank", *(f"{self.parameter.key}: {what}" for what in SHARED_FROM)]
        head += [f"{what}, bytes" for what in SHARED_FROM]
        rows: list[list[object]] = []
        for place in shown(self.ways):
            each = [span(self.rows(what, place)) for what in SHARED_FROM]
            rows.append(
                [self.rank_at(place), *each, *(f"{self.held(what, place):,}" for what in SHARED_FROM)]
            )
        told = [f"{m.when}: {m.times} {m.kind} over {m.axis}, {m.bytes:,} B" for m in self.moves]
        return self.title, head, rows, "\n".join(told) or "nothing travels"


@checked_options
def zero(
    model: ModelLike,
    layout: LayoutLike | None = None,
    **options: Unpack[ZeroKeywords],
) -> ZeroMap:
    """What each rank that shares a copy of the parameters holds under the layout's ZeRO stage, and sends.

    rank: one of the sharing ranks; it selects the stage and the TP rank. parameter: a row of the placement
    table; the stage's first such parameter is listed and drawn. Other arguments: as in `run`. Raises
    LayoutError for bad input, and for a stage without such a parameter.
    """
    found = find_model(model)
    found.require_judged("what ZeRO shares")
    lay = Layout.of(layout)
    rank = whole("rank", options["rank"], 0, lay.world - 1)
    padding = padding_rule(options["padding"])
    cut = Cut(found, lay, padding=padding, kv_replication=options["kv_replication"])
    any_one = next(found.parameters())
    dtype = OPTIONS["dtype"].chosen(options["dtype"])
    made = ZeroMap(cut, rank, any_one, dtype, options["reshard_after_forward"])
    by_key = {p.key: p for p in reversed(made.parameters)}
    found_there = replace(made, parameter=by_key[one_of("parameter", options["parameter"], by_key)])
    vars(found_there)["parameters"] = made.parameters  # of hundreds of layers, listed once
    return found_there
