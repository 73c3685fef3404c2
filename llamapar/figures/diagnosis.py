"""The picture of a diagnosis: what its numbers cut, and where the cut goes wrong.

If model and layout are known well enough, it is the map of heads, vocabulary, sequence or stages, or the
memory of a rank that ran out of it. Otherwise it shows the cut that does not divide. Two numbers
that should agree have no picture, nor has a failing expression: the equation and the operands say them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from llamapar.count import memory
from llamapar.describe.models import ModelConfig
from llamapar.describe.splits import NO_PADDING, Padding
from llamapar.diagnosis import Diagnosis, Explanation
from llamapar.errors import LayoutError, LlamaparError
from llamapar.place import heads, ranks, sequence, stages, vocab
from llamapar.place.rank_grid import in_short
from llamapar.records.equations import Padded, Quotient
from llamapar.records.tables import plural

from . import draw, style
from . import head_map as heads_picture
from . import memory as memory_picture
from . import sequence_map as sequence_picture
from . import stage_map as stages_picture
from . import vocab_map as vocab_picture
from .chart import Chart
from .draw import Bar, Rows
from .rank_grid import failing
from .style import Spec

Drawn = tuple[Spec, str]

_OOM = "memory_oom_layout"
_MEMORY_TAKES = "a rank's memory in training is drawn from its model, tp, cp, pp, dp and seq_len"
_UNITS = {
    "kv_heads_lt_tp": ("KV head", "tp"),
    "heads_not_divisible": ("query head", "tp"),
    "hidden_or_ffn_not_divisible": ("column", "tp"),
    "vocab_not_divisible": ("vocabulary row", "tp"),
    "vocab_padding": ("vocabulary row", "tp"),
    "embed_checkpoint_shape": ("vocabulary row", "tp"),
    "layers_not_divisible_pp": ("layer", "pp"),
    "microbatch_divisibility": ("sequence", "dp"),
    "seq_not_divisible": ("token", "cp"),
    "fsdp_uneven": ("row", "dp"),
    "fused_qkv_layout": ("head", "tp"),
}
"""What a category counts, and the axis that cuts it."""

_NO_CUT = ("world_size_product", "quant_group_vs_tp")
"""Categories whose quotients are no shares of ranks."""


def picture(explained: Explanation) -> Drawn:
    """The picture of the likeliest diagnosis. Raises LayoutError if it has no cut to draw."""
    best = explained.best
    if best is None:
        raise LayoutError("there is nothing to draw", explained.reason, field="record")
    try:
        drawn = next(_maps(explained, best), None)
    except LlamaparError:  # numbers that make no model or layout may still be cut
        drawn = None
    drawn = drawn or next(_shares(best), None)
    if drawn is None:
        what = _MEMORY_TAKES if best.category == _OOM else "this cause has no cut to draw"
        raise LayoutError(what, best.cause, field="record")
    return drawn


def failing_ranks(explained: Explanation, heard: Sequence[int]) -> Drawn:
    """The ranks with the error on the rank grid; heard: all ranks that the log has lines of.

    Raises LayoutError, with the ranks, unless the layout is known and has them all.
    """
    known, layout = explained.known, explained.known.whole_layout()
    if layout is None or max(heard) >= layout.world:
        what = f"ranks with the error: {in_short(explained.ranks)}; fill in tp, cp, pp and dp to place them"
        raise LayoutError(what, "", field="record")
    assumed = known.layout is None and not (known.framework and known.framework.order)
    return failing(ranks(layout), explained.ranks, heard, assumed)


# -- maps of what is known -------------------------------------------------------------------------


def _maps(explained: Explanation, best: Diagnosis) -> Iterator[Drawn]:
    known, category = explained.known, best.category
    judge, padding = known.framework, _padding(best)

    def fact(name: str) -> int:
        return best.facts.get(name) or known.get(name) or 0

    tp, pp, cp = fact("tp"), fact("pp"), fact("cp")
    dims = {name: fact(name) for name in ("n_heads", "n_kv_heads", "head_dim", "vocab_size", "n_layers")}
    if category in ("kv_heads_lt_tp", "heads_not_divisible") and tp > 1 and all(list(dims.values())[:3]):
        drawn = heads(_model(known.model, dims), {"tp": tp})
        if not drawn.ok:
            yield heads_picture.picture(drawn)
    rows = _UNITS.get(category, ("",))[0] == "vocabulary row" or "vocab_size" in best.facts
    if rows and tp > 1 and dims["vocab_size"]:
        if padding == NO_PADDING and judge:
            padding = judge.padding
        if category != "vocab_padding" or padding != NO_PADDING:
            yield vocab_picture.picture(vocab(_model(known.model, dims), {"tp": tp}, padding=padding))
    if category == "seq_not_divisible" and cp > 1 and fact("seq_len"):
        yield sequence_picture.picture(sequence({"cp": cp}, fact("seq_len")))
    layers = dims["n_layers"]
    if category == "layers_not_divisible_pp" and pp > 1 and layers:
        if (
            judge
            and judge.layer_split
            and not any(isinstance(e, Quotient) and e.floor for e in best.arithmetic)
        ):
            made = stages(_model(known.model, dims), {"pp": pp}, layer_split=judge.layer_split)
            if made.ok:
                yield stages_picture.picture(made)
        if layers % pp:
            yield _cut(best, layers, pp)
    # A server's memory is not that of a training step, which is what is counted.
    if category == _OOM and known.model and (judge is None or judge.trains):
        counted = known.also({"micro_batch": 1})
        layout, seq_len = known.whole_layout(), fact("seq_len")
        if layout and seq_len:
            batch = counted.numbers["micro_batch"]
            account = memory(known.model, layout, seq_len=seq_len, micro_batch=batch, framework=judge)
            yield memory_picture.picture(account)


def _model(given: ModelConfig | None, dims: dict[str, int]) -> ModelConfig:
    """The model with the diagnosis's dims; dims that its map does not read are invented."""
    dims = {name: n for name, n in dims.items() if n}
    if given:
        changed = {name: n for name, n in dims.items() if getattr(given, name) != n}
        return given.replace(**changed) if changed else given
    made: Spec = {"n_layers": 1, "n_heads": 1, "n_kv_heads": 1, "head_dim": 2, "vocab_size": 1, **dims}
    return ModelConfig(name="this model", dim=made["n_heads"] * made["head_dim"], ffn_dim=1, **made)


def _padding(best: Diagnosis) -> Padding:
    """The padding in a diagnosis: "16064·8 = 128512 = 128256 + 256 pad rows"."""
    for rows in best.arithmetic:
        if isinstance(rows, Padded):
            usual = (Padding(n, per_tp) for n in (64, 128, 32, 256, 1) for per_tp in (False, True))
            exact = (p for p in usual if p.padded(rows.rows, rows.tp) == rows.padded)
            return next(exact, Padding(rows.padded))
    return NO_PADDING


# -- bars ------------------------------------------------------------------------------------------


def _shares(best: Diagnosis) -> Iterator[Drawn]:
    """The cut that does not divide: of the model's own units if they are known, else of a quotient."""
    unit, axis = _UNITS.get(best.category, ("unit", "tp"))
    counted = best.facts.get({"KV head": "n_kv_heads", "query head": "n_heads"}.get(unit, ""))
    ways = best.facts.get(axis, 0)
    if counted and ways and counted % ways:
        yield _cut(best, counted, ways)
    if best.category in _NO_CUT or best.parallel is False or best.subtype == "global_dim_not_localized":
        return
    for e in best.arithmetic:
        if isinstance(e, Quotient) and e.n % e.k:
            yield _cut(best, e.n, e.k)


def _cut(best: Diagnosis, n: int, k: int) -> Drawn:
    """n units cut over k ranks, where k does not divide n: a shard ends inside a unit."""
    unit, axis = _UNITS.get(best.category, ("unit", "tp"))
    units, rank = f"{unit}s", f"{axis.upper()} rank"
    rows = Rows(k)

    def ends(r: int) -> tuple[Fraction, Fraction]:
        return Fraction(n * r, k), Fraction(n * (r + 1), k)

    def words(r: int) -> str:
        return f"{units} {' to '.join(map(_position, ends(r)))}"

    whole, torn = list[Bar](), list[Bar]()
    for r in rows.drawn:
        start, stop = ends(r)
        share = whole if start.denominator == stop.denominator == 1 else torn
        where = draw.number(float(start)), draw.number(float(stop))
        share.append(Bar(rows.place(r), *where, f"rank {r} · {words(r)} of {n:,}"))
    colour = style.COLOURS[axis]
    looks = (
        (whole, {"color": colour}, f"whole {units}"),
        (torn, {"color": colour, "pattern": style.CUT_PATTERN}, f"a share that ends inside a {unit}"),
    )
    title, note = f"{plural(n, unit)} over {axis}={k}", f"{n}/{k} = {_position(Fraction(n, k))} on a rank"
    few = {"tick0": 0, "dtick": draw.step(n, 16)} if n <= 64 else {}
    return Chart(
        kind="diagnosis",
        title=title,
        note=note,
        data=draw.looks(looks, k),
        layout={
            "widest": str(k - 1),
            "warn": best.parallel is not False,
            "xaxis": draw.positions(units, [0, n], nticks=8, **few),
            "yaxis": draw.downward(rows.axis(rank)),
        },
        head=f"{title}: {note}",
        rows=rows,
        line=lambda r: f"rank {r}: {words(r)}",
    ).drawn()


def _position(x: Fraction) -> str:
    """A position: exact, or with four decimals."""
    return f"{x.numerator:,}" if x.denominator == 1 else f"{float(x):,.4f}".rstrip("0")
