"""Layers of each pipeline stage: one bar for each stage, in its rank's shade if a rank has several."""

from __future__ import annotations

from llamapar.place.stage_map import Stage, StageMap
from llamapar.records.tables import plural, units

from . import draw, style
from .chart import Chart
from .draw import Rows
from .style import Spec

LABELLED = 32
"""Most stages whose number of layers is written on the bar."""


def picture(record: StageMap) -> tuple[Spec, str]:
    """Stages from left to right in pipeline order; if the split refuses, its reason."""
    name = style.name_of(record.model)
    virtual = f" × {record.virtual_stages} virtual" if record.virtual_stages > 1 else ""
    ways = f"pp={record.pp}{virtual}, {record.layer_split}"
    title = f"{name}: layers over {ways}"
    layers = plural(record.model.n_layers, "layer")
    if not record.counts:
        unseen, font = {"visible": False, "range": [0, 1]}, {"size": 14, "color": style.WARN}
        reason = draw.label(f"no such split\n{record.reason}", 0.5, 0.5, font=font)
        return Chart(
            kind="stages",
            title=title,
            data=[],
            layout={"xaxis": unseen, "yaxis": dict(unseen), "annotations": [reason]},
            head=f"{name}: {layers} over {ways}: no such split",
            remarks=record.reason,
        ).drawn()
    rows, top = Rows(len(record.counts), word="stage"), max(record.counts)
    each = [f"{n} × {count}" if n > 1 else str(count) for n, count in record.runs]
    runs = ", ".join(each if len(each) <= 9 else [*each[:8], "…", each[-1]])
    return Chart(
        kind="stages",
        title=title,
        note=rows.left_out or f"{layers} as {runs}",
        data=[_bars(record, rows)],
        layout={
            "widest": str(top),
            "xaxis": _stage_axis(record, rows),
            "yaxis": draw.axis("layers", [0, top * 1.12], dtick=draw.step(top, 8)),
        },
        head=f"{name}: {layers} over {ways}: {runs}",
        rows=rows,
        line=lambda s: _line(record.stages[s], ": "),
    ).drawn()


def _stage_axis(record: StageMap, rows: Rows) -> Spec:
    """Stages from left to right; the embedding and the head are named under theirs."""
    n, last = rows.n, rows.n - 1
    if n <= rows.most:
        every = record.pp if record.virtual_stages > 1 else 1
        every *= draw.step(-(-n // every), 16)
        # The last stage always has its tick, so one that would stand too close to it is left out.
        drawn = [s for s in range(0, last, every) if last - s >= every / 2]
    else:
        every = rows.most // 8
        drawn = list(range(0, rows.most - every // 2, every))
    drawn.append(last)
    names = [f"{s}{_also(record.stages[s], '<br>+ ', ' + ')}" for s in drawn]
    ticks = draw.ticks([rows.place(s) for s in drawn], names)
    title = "pipeline stage (= PP rank)"
    if record.virtual_stages > 1:
        title = f"pipeline stage (stage s on PP rank s mod {record.pp}; a shade is a PP rank)"
    return draw.axis(title, [-0.5, rows.place(last) + 0.5], showgrid=False, **ticks)


def _bars(record: StageMap, rows: Rows) -> Spec:
    drawn = [record.stages[s] for s in rows.drawn]
    colour: str | list[str] = style.COLOURS["pp"]
    if record.virtual_stages > 1:  # a shade is a PP rank, and a rank has stages here and there
        colour = [style.alternate("pp", stage.rank, record.pp) for stage in drawn]
    layers = [len(stage.layers) for stage in drawn]
    hover = [_line(stage, " · ") for stage in drawn]
    trace = draw.columns(rows.places, layers, draw.bar_width(rows.n), {"color": colour}, hovertext=hover)
    if rows.n <= LABELLED:
        trace |= {"text": [str(count) for count in trace["y"]], "textposition": "outside"}
    return trace


def _also(stage: Stage, before: str, between: str) -> str:
    """The embedding and the head, if a stage holds them besides its layers."""
    ends = [word for word, on in (("embedding", stage.embedding), ("head", stage.head)) if on]
    return before + between.join(ends) if ends else ""


def _line(stage: Stage, colon: str) -> str:
    where = f"stage {stage.stage} on PP rank {stage.rank}"
    return f"{where}{colon}{units('layer', stage.layers)}{_also(stage, ' and the ', ' and the ')}"
