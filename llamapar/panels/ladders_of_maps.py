"""Live pictures of placement: heads, vocabulary, sequence, stages, ranks, and one rank's part of all."""

from __future__ import annotations

from operator import attrgetter

from llamapar.describe.layout import AXES, PAPER_ORDER
from llamapar.describe.options import Values
from llamapar.figures import block, head_map, sequence_map, stage_map, vocab_map
from llamapar.figures.rank_grid import NUMBERED, cell
from llamapar.figures.wording import sentence
from llamapar.place import (
    RankGrid,
    StageMap,
    VocabMap,
    heads,
    ranks,
    sequence,
    stages,
    vocab,
)
from llamapar.records.tables import plural, span

from .holding import rank_within
from .ladders import Subject, degrees, of_model

_REASON = attrgetter("reason")


# -- vocabulary ------------------------------------------------------------------------------------


def _vocab_gives(record: VocabMap) -> str:
    pads = f", {plural(record.pad_rows, 'pad')}" if record.pad_rows else ""
    return plural(len(record.rank(0).rows), "row") + pads


# -- stages ----------------------------------------------------------------------------------------


def _stages_gives(record: StageMap) -> str:
    if not record.counts:
        return "no split"
    fewest = min(record.counts)
    most = max(record.counts)
    return f"{fewest}–{most} layers" if fewest < most else plural(most, "layer")


# -- ranks -----------------------------------------------------------------------------------------


def _ranks_says(record: RankGrid) -> str:
    place = ", ".join(f"{axis} {n}" for axis, n in record.coord._asdict().items())
    said = f"Rank {record.rank} of {record.layout.world:,} is {place}."
    groups = [  # "its TP group is ranks 0–7", "its DP group is 16 ranks, 8 apart"
        f"its {axis.upper()} group is ranks {span(group)}"
        if group.step == 1
        else f"its {axis.upper()} group is {len(group)} ranks, {group.step} apart"
        for axis, group in record.peers.items()
        if len(group) > 1
    ]
    cells = f" {sentence(cell(record))}" if record.layout.world > NUMBERED else ""
    return f"{said} {sentence('; '.join(groups)) if groups else 'It has no peers.'}{cells}"


def _within(values: Values) -> Values:
    """With the chosen rank within a smaller layout; an invalid layout is refused later."""
    return {**values, "rank": rank_within(values["rank"], values)}


MAPS = {
    "heads": Subject(
        heads,
        {"model": "llama3-8b", "tp": 1, "kv_replication": False, "interleave": True},
        {"tp": of_model("n_heads")},
        head_map.gives,
        head_map.heads_in_words,
        _REASON,
    ),
    "vocab": Subject(
        vocab,
        {"model": "llama3-8b", "tp": 1, "padding": None},
        {"tp": degrees(128)},
        _vocab_gives,
        vocab_map.vocab_in_words,
        _REASON,
    ),
    "sequence": Subject(
        sequence,
        {"cp": 1, "seq_len": 8192, "chunking": "head-tail"},
        {"cp": degrees(64)},
        lambda record: plural(record.rank(0).tokens, "token"),
        sequence_map.tokens_in_words,
        _REASON,
    ),
    "stages": Subject(
        stages,
        {"model": "llama3-8b", "pp": 1, "virtual_stages": 1, "layer_split": "balanced ends"},
        {"pp": of_model("n_layers", 64), "virtual_stages": degrees(8)},
        _stages_gives,
        stage_map.layers_in_words,
        _REASON,
    ),
    "ranks": Subject(
        ranks,
        {**dict.fromkeys(AXES, 1), "order": PAPER_ORDER, "rank": 0},
        {"tp": degrees(64), "cp": degrees(64), "pp": degrees(64), "dp": degrees(1024)},
        lambda record: plural(record.layout.world, "rank"),
        _ranks_says,
        within=_within,
    ),
    "block": Subject(
        ranks,
        {"model": "llama3-8b", **dict.fromkeys(AXES, 1), "rank": 0, "seq_len": 8192, "global_batch": None},
        {
            "tp": of_model("n_heads", 64),
            "cp": degrees(64),
            "pp": of_model("n_layers", 64),
            "dp": degrees(128),
        },
        {axis: attrgetter(f"share.{axis}.text") for axis in AXES},
        block.share_in_words,
        attrgetter("share.reason"),
        _within,
    ),
}
"""Name → its live picture; "block" is that of `ranks` with a model."""
