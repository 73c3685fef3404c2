"""The picture of a diagnosis: the map of heads, vocabulary, sequence or stages where its cut goes wrong.

It takes a model and a layout that are known well enough; of a rank that ran out of memory it is its memory.
Where only two numbers are known, the equation says them, and the operands of a failing expression are a
table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from llamapar.count import memory
from llamapar.describe.layout import AXES
from llamapar.describe.models import ModelConfig
from llamapar.describe.splits import NO_PADDING, Padding
from llamapar.diagnosis import Diagnosis, Explanation
from llamapar.errors import LayoutError, LlamaparError
from llamapar.place import heads, sequence, stages, vocab
from llamapar.place.rank_grid import in_short
from llamapar.records.equations import Padded, Quotient
from llamapar.records.tables import plural

from . import difference_map as difference_picture
from . import head_map as heads_picture
from . import memory as memory_picture
from . import sequence_map as sequence_picture
from . import stage_map as stages_picture
from . import vocab_map as vocab_picture
from .style import Spec
from .wording import listed

Drawn = tuple[Spec, str]

_OOM = "memory_oom_layout"
_HEADS = ("kv_heads_lt_tp", "heads_not_divisible")
_ROWS = ("vocab_not_divisible", "vocab_padding", "embed_checkpoint_shape")
"""Categories of vocabulary rows."""


def picture(explained: Explanation) -> Drawn:
    """The picture of the likeliest diagnosis. Raises LayoutError if it has no map."""
    if explained.map is not None:
        return difference_picture.picture(explained.map)
    best = explained.best
    if best is None:
        raise LayoutError("there is nothing to draw", explained.reason, field="record")
    try:
        drawn = next(_maps(explained, best), None)
    except LlamaparError:  # Numbers that make no model or layout have no map.
        drawn = None
    if drawn is None:
        what = "this cause has no map to draw"
        known = explained.known
        if best.category in _HEADS and known.model and known.get("tp"):  # else its heads would be drawn
            what = f"the numbers in the text are not those of {known.model.name}, so {what}"
        if best.category == _OOM:
            there = {"model": known.model, "tp, cp, pp or dp": known.job(), "seq_len": known.get("seq_len")}
            missing = [name for name, value in there.items() if value is None]
            if missing:
                what = f"fill in {listed(missing)} to draw the memory of a rank in training"
        raise LayoutError(what, best.cause, field="record")
    return drawn


def failing_ranks(explained: Explanation, heard: Collection[int]) -> str:
    """Which ranks report the error, and the index of each axis that all of them share, in a sentence.

    heard: all ranks that the log has lines of.
    """
    failed = explained.ranks
    known = explained.known
    layout = known.whole_layout()
    if layout is None or max(heard) >= layout.world:
        return f"Ranks {in_short(failed)} report the error; fill in tp, cp, pp and dp to see what they share."
    words = f"The error is on {plural(len(failed), 'rank')} of {layout.world:,}: {in_short(failed)}"
    shared = []
    for axis in AXES:
        indices = {getattr(layout.coord_of(rank), axis) for rank in failed}
        if len(indices) == 1 < min(len(failed), layout.size(axis)):
            shared.append(f"{axis} {min(indices)}")
    if shared:
        words += f", all at {', '.join(shared)}"
        if known.layout is None and not (known.framework and known.framework.order):
            words += f", if the order of ranks is {layout.order}"
    return f"{words}. The log has lines of {plural(len(heard), 'rank')}."


# -- maps of what is known -------------------------------------------------------------------------


def _maps(explained: Explanation, best: Diagnosis) -> Iterator[Drawn]:
    known = explained.known
    category = best.category
    judge = known.framework
    padding = _padding(best)

    def fact(name: str) -> int:
        return best.facts.get(name) or known.get(name) or 0

    tp = fact("tp")
    pp = fact("pp")
    cp = fact("cp")
    dims = {name: fact(name) for name in ("n_heads", "n_kv_heads", "head_dim", "vocab_size", "n_layers")}
    if category in _HEADS and tp > 1 and all(list(dims.values())[:3]):
        drawn = heads(_model(known.model, dims), {"tp": tp})
        if not drawn.ok:
            yield heads_picture.picture(drawn)
    if (category in _ROWS or "vocab_size" in best.facts) and tp > 1 and dims["vocab_size"]:
        if padding == NO_PADDING and judge:
            padding = judge.padding
        if category != "vocab_padding" or padding != NO_PADDING:
            yield vocab_picture.picture(vocab(_model(known.model, dims), {"tp": tp}, padding=padding))
    if category == "seq_not_divisible" and cp > 1 and fact("seq_len"):
        yield sequence_picture.picture(sequence({"cp": cp}, fact("seq_len")))
    if (
        category == "layers_not_divisible_pp"
        and pp > 1
        and dims["n_layers"]
        and judge
        and judge.layer_split
        and not any(isinstance(e, Quotient) and e.floor for e in best.arithmetic)
    ):
        made = stages(_model(known.model, dims), {"pp": pp}, layer_split=judge.layer_split)
        if made.ok:
            yield stages_picture.picture(made)
    # A server's memory is not that of a training step, which is what is counted.
    if category == _OOM and known.model and (judge is None or judge.trains):
        layout = known.whole_layout()
        seq_len = fact("seq_len")
        job = known.job()
        if job and seq_len:
            batch = known.also({"micro_batch": 1}).numbers["micro_batch"]
            account = memory(
                known.model, layout or job.layout, seq_len=seq_len, micro_batch=batch, framework=judge
            )
            spec, words = memory_picture.picture(account)
            if layout is None:
                assumed = "Degrees that nobody gave are drawn as 1."
                note = spec["layout"]["title"]["subtitle"]
                note["text"] = f"{assumed} {note['text']}"
                words = f"{words}\n{assumed}"
            yield spec, words


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
