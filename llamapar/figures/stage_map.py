"""Layers of each pipeline stage: one bar for each stage, in its rank's shade if a rank has several."""

from __future__ import annotations

from html import escape

from llamapar.place.stage_map import Stage, StageMap
from llamapar.records.tables import plural, units

from . import draw, style
from .draw import Rows
from .style import Spec

LABELLED = 32
"""Most stages whose number of layers is written on the bar."""


def picture(record: StageMap) -> tuple[Spec, str]:
    """Stages from left to right in pipeline order; if the split refuses, its reason."""
    if not record.counts:
        return _refused(record), _summary(record)
    top = max(record.counts)
    layout = style.layout(
        "stages",
        _title(record),
        _rows(record).left_out or f"{plural(record.model.n_layers, 'layer')} as {_runs(record)}",
        widest=str(top),
        xaxis=_stage_axis(record),
        yaxis=draw.axis("layers", [0, top * 1.12], dtick=draw.step(top, 8)),
    )
    return {"data": [_bars(record)], "layout": layout}, _summary(record)


def _stage_axis(record: StageMap) -> Spec:
    """Stages from left to right; the embedding and the head are named under theirs."""
    rows = _rows(record)
    n, last = rows.n, rows.n - 1
    if n <= rows.most:
        every = record.pp if record.virtual_stages > 1 else 1
        every *= draw.step(-(-n // every), 16)
        drawn = [s for s in range(0, last, every) if last - s >= every / 2]
    else:
        every = rows.most // 8
        drawn = list(range(0, rows.most - every // 2, every))
    drawn.append(last)
    names = [f"{s}{_also(record.stages[s], '<br>+ ', ' + ')}" for s in drawn]
    ticks = draw.ticks([rows.place(s) for s in drawn], names)
    return draw.axis(_stage_title(record), [-0.5, rows.place(last) + 0.5], showgrid=False, **ticks)


def _rows(record: StageMap) -> Rows:
    return Rows(len(record.counts), word="stage")


def _bars(record: StageMap) -> Spec:
    rows = _rows(record)
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


def _refused(record: StageMap) -> Spec:
    """No bars, only the reason in the centre."""
    unseen, font = {"visible": False, "range": [0, 1]}, {"size": 14, "color": style.WARN}
    reason = draw.label(f"no such split<br>{escape(record.reason, quote=False)}", 0.5, 0.5, font=font)
    layout = style.layout("stages", _title(record), xaxis=unseen, yaxis=dict(unseen), annotations=[reason])
    return {"data": [], "layout": layout}


def _ways(record: StageMap) -> str:
    return f"pp={record.pp}" + (f" × {record.virtual_stages} virtual" if record.virtual_stages > 1 else "")


def _title(record: StageMap) -> str:
    return f"{style.name_of(record.model)}: layers over {_ways(record)}, {record.layer_split}"


def _stage_title(record: StageMap) -> str:
    if record.virtual_stages == 1:
        return "pipeline stage (= PP rank)"
    return f"pipeline stage (stage s on PP rank s mod {record.pp}; a shade is a PP rank)"


def _runs(record: StageMap) -> str:
    """ "7, 14 × 8, 7", shortened if it is long."""
    runs = [f"{n} × {count}" if n > 1 else str(count) for n, count in record.runs]
    return ", ".join(runs if len(runs) <= 9 else [*runs[:8], "…", runs[-1]])


def _summary(record: StageMap) -> str:
    title = f"{style.name_of(record.model)}: {plural(record.model.n_layers, 'layer')} over {_ways(record)}"
    if not record.counts:
        return f"{title}, {record.layer_split}: no such split\n{record.reason}"
    rows = _rows(record)
    listing = rows.listing(lambda s: _line(record.stages[s], ": "))
    return draw.lines(f"{title}, {record.layer_split}: {_runs(record)}", listing, rows.left_out)
