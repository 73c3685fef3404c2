"""Layers per pipeline stage as a picture: a bar per stage in the shade of its PP rank."""

from __future__ import annotations

from html import escape

from llamapar.place.stage_map import Stage, StageMap

from . import style
from .style import Spec, plural

LABELLED = 32
"""Most stages whose number of layers is written on the bar."""


def picture(record: StageMap) -> tuple[Spec, str]:
    """Stages left to right in pipeline order; the reason instead where the split refuses."""
    if not record.counts:
        return _refused(record), _summary(record)
    n = len(record.counts)
    drawn = [record.stages[s] for s in style.shown(n)]
    top = max(record.counts)
    layout = style.layout(
        "stages",
        _title(record),
        _note(record),
        widest=str(top),
        xaxis=_stage_axis(record),
        yaxis={"title": {"text": "layers"}, "range": [0, top * 1.12], "dtick": style.step(top, 8)},
    )
    return {"data": [_bars(record, drawn)], "layout": layout}, _summary(record)


def _stage_axis(record: StageMap) -> Spec:
    """Stages left to right; the embedding and the head are written under theirs."""
    n = len(record.counts)
    if n <= style.SHOWN:
        every = record.pp if record.virtual_stages > 1 else 1
        every *= style.step(-(-n // every), 16)
        ticks = [s for s in range(0, n - 1, every) if n - 1 - s >= every / 2]
    else:
        every = style.SHOWN // 8
        ticks = list(range(0, style.SHOWN - every // 2, every))
    ticks.append(n - 1)
    ends = {s: f"{s}{_also(record.stages[s], '<br>+ ', ' + ')}" for s in ticks}
    return {
        "title": {"text": _stage_title(record)},
        "range": [-0.5, style.row_of(n - 1, n) + 0.5],
        "tickmode": "array",
        "tickvals": [style.row_of(s, n) for s in ticks],
        "ticktext": [ends[s] for s in ticks],
        "showgrid": False,
    }


def _bars(record: StageMap, drawn: list[Stage]) -> Spec:
    n = len(record.counts)
    trace: Spec = {
        "type": "bar",
        "x": [style.row_of(stage.stage, n) for stage in drawn],
        "y": [len(stage.layers) for stage in drawn],
        "width": style.bar_width(n),
        "hovertext": [_line(stage, " · ") for stage in drawn],
        "marker": {"color": [style.ramp("pp", stage.rank, record.pp) for stage in drawn]},
    }
    if n <= LABELLED:
        trace |= {"text": [str(count) for count in trace["y"]], "textposition": "outside"}
    return trace


def _also(stage: Stage, before: str, between: str) -> str:
    """The ends that a stage holds besides its layers."""
    ends = [word for word, on in (("embedding", stage.embedding), ("head", stage.head)) if on]
    return before + between.join(ends) if ends else ""


def _line(stage: Stage, colon: str) -> str:
    where = f"stage {stage.stage} on PP rank {stage.rank}"
    return f"{where}{colon}{style.units('layer', stage.layers)}{_also(stage, ' and the ', ' and the ')}"


def _refused(record: StageMap) -> Spec:
    """No bars: the reason in the middle."""
    layout = style.layout(
        "stages",
        _title(record),
        xaxis={"visible": False, "range": [0, 1]},
        yaxis={"visible": False, "range": [0, 1]},
        annotations=[
            {
                "text": f"no such split<br>{escape(record.reason, quote=False)}",
                "x": 0.5,
                "y": 0.5,
                "showarrow": False,
                "font": {"size": 14, "color": style.WARN},
            }
        ],
    )
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
    """ "7, 14 × 8, 7", cut where it is long."""
    runs = [f"{n} × {count}" if n > 1 else str(count) for n, count in record.runs]
    return ", ".join(runs if len(runs) <= 9 else [*runs[:8], "…", runs[-1]])


def _note(record: StageMap) -> str:
    left_out = style.not_shown(len(record.counts), word="stage")
    return left_out or f"{plural(record.model.n_layers, 'layer')} as {_runs(record)}"


def _summary(record: StageMap) -> str:
    title = f"{style.name_of(record.model)}: {plural(record.model.n_layers, 'layer')} over {_ways(record)}"
    if not record.counts:
        return f"{title}, {record.layer_split}: no such split\n{record.reason}"
    lines = [f"{title}, {record.layer_split}: {_runs(record)}"]
    n = len(record.counts)
    for s in style.listed(n, 7):
        if s is None:
            lines.append("  …")
            continue
        lines.append("  " + _line(record.stages[s], ": "))
    if style.not_shown(n):
        lines.append(style.not_shown(n, word="stage"))
    return "\n".join(lines)
