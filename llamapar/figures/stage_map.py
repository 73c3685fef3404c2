"""The map of stages: the layers above, and in each PP rank's column those of its stages."""

from __future__ import annotations

from llamapar.place.stage_map import Stage, StageMap
from llamapar.records.tables import plural, units

from . import draw, style
from .draw import Rows
from .scenes import Drawing, Scene, middle
from .wording import listed, sentence

WHOLE, LAYERS, ENDS, HEIGHT = (8, 36), (112, 172), (180, 200), 209
"""Where the lanes stand, in pixels from the top, and the whole."""

CARD, NUMBER = 82, 100
"""Where the ranks' columns begin, and their numbers stand."""

SINGLE = 256
"""Most layers that are drawn one by one; of more, one band for each stage."""

STAGES = 256
"""Most stages that are drawn."""


def picture(record: StageMap) -> tuple[Scene, str]:
    """The scene, and the same as text; if the split refuses, its reason alone."""
    pp = record.pp
    n = record.model.n_layers
    drawing = Drawing("stages", pp, HEIGHT)
    lanes: list[list[object]] = [
        [middle(WHOLE), "all layers", f"{n:,}"],
        [NUMBER, "PP rank", ""],
        [middle(LAYERS), "layers", ""],
        [middle(ENDS), "besides", ""],
    ]
    of_rank = {r: record.stages[r::pp] for r in drawing.drawn}
    most = max(sum(len(stage.layers) for stage in stages) for stages in of_rank.values()) or 1
    drawn = 0
    for i, (r, stages) in enumerate(of_rank.items()):
        inside = drawing.column(i, CARD, NUMBER)
        at = inside[0]
        look = f"pp{r % 2}"
        count = len(drawing.drawn)
        for stage in stages:
            drawn += 1
            layers = stage.layers
            if layers and drawn <= STAGES:
                part = layers.start / n, layers.stop / n
                drawing.box("whole", part, part, WHOLE, look)
                width = (inside[1] - inside[0]) * len(layers) / most
                drawing.link(part, part, WHOLE[1] + 3, (at, at + width), LAYERS[0] - 3)
                each = [range(layer, layer + 1) for layer in layers] if n <= SINGLE else [layers]
                for one in each:
                    x = at, at + width / len(each)
                    drawing.box("layers", (one.start / n, one.stop / n), x, LAYERS, look)
                    at = x[1]
                drawing.label((at - width, at), middle(LAYERS) + 4, f"{len(layers)}", "mark")
        ends = _also(stages)
        if ends:
            drawing.box("ends", (i / count, (i + 1) / count), inside, ENDS, "pad")
            drawing.label(inside, middle(ENDS) + 4, " + ".join(ends), "pad")
    legend = [["pp0", "layers of a stage"], ["pad", "the embedding, the head"]]
    if drawn > STAGES:
        legend.append(["rest", f"the first {STAGES} of {drawn:,} stages"])
    made = drawing.scene(
        layers_in_words(record), bool(record.reason), lanes, lambda r: _words(record, r), legend
    )
    return made, _summary(record)


def _also(stages: list[Stage]) -> list[str]:
    """The embedding and the head, if one of the stages holds them besides its layers."""
    return [end for end in ("embedding", "head") if any(getattr(stage, end) for stage in stages)]


# -- words -------------------------------------------------------------------------------------


def layers_in_words(record: StageMap) -> str:
    """How many layers each stage has, in a sentence."""
    if not record.counts:
        return sentence(record.reason)
    layers = plural(record.model.n_layers, "layer")
    if len(record.counts) == 1:
        return f"One stage holds all {layers}."
    stages = plural(len(record.counts), "stage")
    empty = record.counts.count(0)
    if empty:
        return f"{layers} over {stages} leave {plural(empty, 'stage')} without a layer."
    if record.is_even:
        return f"Each of the {stages} holds {plural(record.counts[0], 'layer')}."
    return f"The {stages} hold the {layers} in this order: {record.counts_in_words}."


def _words(record: StageMap, r: int) -> str:
    stages = [f"stage {stage.stage} has {_has(stage)}" for stage in record.stages[r :: record.pp]]
    return f"PP rank {r}: {', '.join(stages) or 'no stage'}"


def _line(stage: Stage) -> str:
    return f"stage {stage.stage} on PP rank {stage.rank}: {_has(stage)}"


def _has(stage: Stage) -> str:
    """The layers of a stage, and what it has besides."""
    held = [f"the {end}" for end in _also([stage])]
    if stage.layers or not held:
        held.insert(0, units("layer", stage.layers))
    return listed(held)


def _summary(record: StageMap) -> str:
    name = style.name_of(record.model)
    rows = Rows(len(record.counts), word="stage")
    virtual = f" × {record.virtual_stages} virtual" if record.virtual_stages > 1 else ""
    head = (
        f"{name}: {plural(record.model.n_layers, 'layer')} over pp={record.pp}{virtual}, {record.layer_split}"
    )
    if not record.counts:
        return draw.lines(f"{head}: no such split", record.reason)
    return draw.lines(
        f"{head}: {record.counts_in_words}", rows.listing(lambda s: _line(record.stages[s])), rows.left_out
    )
