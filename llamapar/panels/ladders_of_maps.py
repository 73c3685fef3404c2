"""Live pictures of placement: heads, vocabulary, sequence, stages, ranks, and one rank's part of all."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter

from llamapar.describe.layout import AXES, PAPER_ORDER, Layout
from llamapar.describe.options import Values
from llamapar.errors import LlamaparError
from llamapar.figures.rank_grid import NUMBERED, cell
from llamapar.place import (
    HeadMap,
    RankGrid,
    SequenceMap,
    StageMap,
    VocabMap,
    heads,
    ranks,
    sequence,
    stages,
    vocab,
)
from llamapar.records.tables import plural, span, units

from .ladders import Subject, degrees, listed, number_in_words, of_model, sentence, share

_REASON = attrgetter("reason")


# -- heads -----------------------------------------------------------------------------------------


def _heads_gives(record: HeadMap) -> str:
    if record.model.n_heads % record.tp:
        return _part_of_heads([rank.q_rows for rank in record.ranks], "wq", record, "query head")
    if record.replicas > 1:
        return f"a copy, 1 of {record.replicas}"
    return _part_of_heads([rank.kv_rows for rank in record.ranks], "wk", record, "KV head")


def _part_of_heads(rows: Sequence[range], weight: str, record: HeadMap, word: str) -> str:
    """A rank's part: "2 KV heads", "1/2 KV head", or "169 to 171 rows of wk (128 a head)" if parts differ."""
    width = record.model.head_dim
    least, most = min(map(len, rows)), max(map(len, rows))
    if least == most:
        return share(most, width, word)
    return f"{least:,} to {most:,} rows of {weight} ({width} a head)"


def _heads_says(record: HeadMap) -> str:
    m, tp = record.model, record.tp
    if m.n_heads % tp:
        return (
            f"TP {tp} does not divide the {m.n_heads} query heads: a rank would hold {_heads_gives(record)}."
        )
    queries = number_in_words(m.n_heads // tp, "query head")
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
        torn = len(record.cut_kv_heads)
        which = "each" if torn == m.n_kv_heads else f"{torn}"
        return (
            f"TP {tp} cuts through {which} of the {m.n_kv_heads} KV heads. A rank has {queries} and "
            f"{_heads_gives(record)}."
        )
    if tp == 1:
        return f"One rank holds all {m.n_heads} query heads and all {m.n_kv_heads} KV heads."
    return (
        f"Each of the {tp} ranks holds {queries} and the {number_in_words(m.n_kv_heads // tp, 'KV head')} "
        "that they read: attention needs no other rank."
    )


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


def _sequence_says(record: SequenceMap) -> str:
    if record.reason:
        return sentence(record.reason)
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
        return sentence(record.reason)
    runs = ", ".join(f"{n} × {count}" if n > 1 else str(count) for n, count in record.runs)
    return f"{record.model.n_layers} layers over {plural(len(record.counts), 'stage')}: {runs}."


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
    """Keep the chosen rank within a smaller layout; an invalid layout is refused later."""
    with suppress(LlamaparError):
        world = Layout(**{axis: values[axis] for axis in AXES}).world
        if isinstance(values["rank"], int) and values["rank"] >= world:
            return {**values, "rank": values["rank"] % world}
    return values


# -- block -----------------------------------------------------------------------------------------


def _block_says(record: RankGrid) -> str:
    assert record.share
    does = listed([part.text for part in record.share.parts.values()])
    return f"Rank {record.rank:,} of {record.layout.world:,} works on {does}."


MAPS = {
    "heads": Subject(
        heads,
        {"model": "llama3-8b", "tp": 1, "kv_replication": False, "interleave": True},
        {"tp": of_model("n_heads")},
        _heads_gives,
        _heads_says,
        _REASON,
    ),
    "vocab": Subject(
        vocab,
        {"model": "llama3-8b", "tp": 1, "padding": None},
        {"tp": degrees(128)},
        _vocab_gives,
        _vocab_says,
        _REASON,
    ),
    "sequence": Subject(
        sequence,
        {"cp": 1, "seq_len": 8192, "chunking": "head-tail"},
        {"cp": degrees(64)},
        lambda record: plural(record.rank(0).tokens, "token"),
        _sequence_says,
        _REASON,
    ),
    "stages": Subject(
        stages,
        {"model": "llama3-8b", "pp": 1, "virtual_stages": 1, "layer_split": "balanced ends"},
        {"pp": of_model("n_layers", 64), "virtual_stages": degrees(8)},
        _stages_gives,
        _stages_says,
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
        _block_says,
        attrgetter("share.reason"),
        _within,
    ),
}
"""Name → its live picture; "block" is that of `ranks` with a model."""
