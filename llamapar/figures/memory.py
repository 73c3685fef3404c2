"""Memory as pictures: stacked bars per stage against the HBM, and steps from our total to every tool's.

The parts' colours are Paul Tol's muted scheme (colour-blind-safe): the axes keep theirs to themselves.
"""

from __future__ import annotations

from llamapar.count.reconciliation import FINE, GROUPS, Reconciliation, Tool
from llamapar.count.terms import GIB, Breakdown, Memory

from . import style
from .style import Bar, Spec

PARTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "parameters": ("#5D5FB8", ("parameters", "gathered parameters")),
    "gradients": ("#88CCEE", ("gradients", "gradient buckets", "gradients in flight")),
    "optimizer": ("#44AA99", ("master weights", "optimizer states", "weights and optimizer")),
    "activations": ("#DDCC77", ("activations", "embedding")),
    "logits and loss": ("#CC6677", ("logits and loss",)),
    "workspace": ("#AA4499", ("backward workspace", "pipeline buffers")),
    "assumed": (style.PAD, ("allocator (assumed)", "CUDA context (assumed)")),
}
"""Part of a bar → its colour, and the terms that belong to it; an assumption is drawn as pads are."""

STEPS = {
    "states": "#44AA99",
    "activations": "#DDCC77",
    "buffers and assumed": "#AA4499",
    "not told apart": style.PAD,
}
"""Step of a waterfall → its colour; what a tool does not tell apart is crossed out."""

LABELLED = 16
"""Most stages whose total is written under the bar."""

DRAWN = 64
"""Most stages drawn: past it the first ones and the last."""

_BEYOND = 1.5
"""A total past so many times ours leaves the picture of a reconciliation, with an arrow."""


def _gib(n: int) -> str:
    return f"{n / GIB:,.2f} GiB"


# -- stages against the HBM ------------------------------------------------------------------------


def picture(record: Memory) -> tuple[Spec, str]:
    """A stacked bar per stage, the HBM as a line; the note names the worst stage."""
    n = len(record.stages)
    drawn = [record.stages[s] for s in style.shown(n, DRAWN)]
    rows = [style.row_of(s, n, DRAWN) for s in style.shown(n, DRAWN)]
    axis = {**style.rank_axis(n, "pipeline stage (= PP rank)", DRAWN), "showgrid": False}
    if n <= LABELLED:
        axis["tickvals"] = rows
        digits = 1 if record.worst.total_bytes < 100 * GIB else 0
        axis["ticktext"] = [f"{s.stage}<br>{s.total_bytes / GIB:.{digits}f}" for s in drawn]
        axis["title"] = {"text": "pipeline stage (= PP rank), and GiB in all"}
    hbm, top = record.hbm_bytes / GIB, record.worst.total_bytes / GIB
    data = [trace for part in PARTS if (trace := _part(part, drawn, rows, n))]
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": hbm, "y1": hbm}
    name = {
        "text": f"{record.gpu}: {hbm:.2f} GiB",
        "x": style.row_of(n - 1, n, DRAWN) + 0.5,
        "y": hbm,
        "xanchor": "right",
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"size": 11, "color": style.WARN},
    }
    layout = style.layout(
        "memory",
        f"{style.name_of(record.model)}, {record.layout}: memory of a rank by stage",
        record.verdict,
        widest=f"{max(hbm, top):,.0f}",
        warn=not record.fits,
        legend_rows=3,
        barmode="stack",
        legend={"traceorder": "normal"},
        xaxis=axis,
        yaxis={"title": {"text": "GiB"}, "range": [0, style.number(max(hbm, top) * 1.13)], "nticks": 7},
        shapes=[{**line, "line": {"color": style.WARN, "width": 2, "dash": "dash"}}],
        annotations=[name] if hbm > 0.9 * top else [],  # among the bars it could not be read
    )
    return {"data": data, "layout": layout}, _summary(record)


def _part(part: str, stages: list[Breakdown], rows: list[int], n: int) -> Spec:
    """One trace: this part of every drawn stage; {} where no stage has any of it."""
    colour, names = PARTS[part]
    sizes = [stage.bytes(*names) for stage in stages]
    if not any(sizes):
        return {}
    marker: Spec = {"color": colour}
    if part == "assumed":
        marker["pattern"] = style.PAD_PATTERN
    hover: Spec = {"hovertext": [_hover(stage, part, names) for stage in stages]}
    if n > DRAWN // 2:  # too many for the terms of each
        hover = {"hoverinfo": "all", "hovertemplate": f"%{{x}} · {part} %{{y:.2f}} GiB<extra></extra>"}
    return {
        "type": "bar",
        "x": rows,
        "y": [round(size / GIB, 4) for size in sizes],
        "width": min(style.bar_width(n), 0.2 + 0.1 * n),
        **hover,
        "marker": marker,
        "name": part,
        "showlegend": True,
    }


def _hover(stage: Breakdown, part: str, names: tuple[str, ...]) -> str:
    held = [t for t in stage.terms if t.name in names or t.name.partition(":")[0] in names]
    lines = [f"{t.name} {_gib(t.bytes)}" for t in held] if len(held) > 1 else []
    return "<br>".join([f"stage {stage.stage} · {part} {_gib(stage.bytes(*names))}", *lines])


def _summary(record: Memory) -> str:
    lines = [record.title]
    n = len(record.stages)
    for s in style.listed(n, 7):
        if s is None:
            lines.append("  …")
            continue
        stage = record.stages[s]
        parts = {part: stage.bytes(*names) / GIB for part, (_, names) in PARTS.items()}
        told = ", ".join(f"{part} {size:.2f}" for part, size in parts.items() if size)
        lines.append(f"  stage {s}: {_gib(stage.total_bytes)}: {told}")
    left_out = style.not_shown(n, DRAWN, "stage")
    return "\n".join([*lines, record.verdict, *([left_out] if left_out else [])])


# -- every tool beside ours ------------------------------------------------------------------------


def waterfall(record: Reconciliation) -> tuple[Spec, str]:
    """A row per tool, in it a lane per step from our total, the dashed line, to the tool's, the mark."""
    ours, n = record.ours.total_bytes, len(record.tools)
    near = [tool.total_bytes for tool in record.tools if tool.total_bytes < _BEYOND * ours]
    room = max(_BEYOND * ours, *near)
    bars: dict[str, list[tuple[Bar, float]]] = {name: [] for name in STEPS}
    for row, tool in enumerate(record.tools):
        at, steps = ours, _lanes(tool)
        for lane, (what, size) in enumerate(steps.items()):
            start, stop = (min(end, room) / GIB for end in sorted((at, at + size)))
            wide = 0.8 / len(steps)
            hover = f"{tool.name} · {what} {size / GIB:+,.2f} GiB"
            bars[what].append((Bar(row - 0.4 + (lane + 0.5) * wide, start, stop, hover), wide))
            at += size
    data = []
    for what, made in bars.items():
        if made:
            marker: Spec = {"color": STEPS[what]}
            if what == "not told apart":
                marker["pattern"] = style.CUT_PATTERN
            trace = style.bars([bar for bar, _ in made], n, marker, name=what, showlegend=True)
            data.append(trace | {"width": [wide for _, wide in made]})
    marks = [(row, tool) for row, tool in enumerate(record.tools) if tool.total_bytes <= room]
    data.append(
        {
            "type": "scatter",
            "mode": "markers",
            "x": [style.number(tool.total_bytes / GIB) for _, tool in marks],
            "y": [row for row, _ in marks],
            "marker": {"symbol": "line-ns", "size": 20, "line": {"width": 3, "color": style.WARN}},
            "hovertext": [f"{tool.name}: {_gib(tool.total_bytes)}" for _, tool in marks],
            "name": "the tool's total",
            "showlegend": True,
        }
    )
    labels = [
        f"{tool.name}  <b>{tool.total_bytes / GIB:,.1f}{' →' if tool.total_bytes > room else ''}</b>"
        for tool in record.tools
    ]
    line = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": ours / GIB, "x1": ours / GIB}
    layout = style.layout(
        "waterfall",
        "What each tool says of a GPU's memory, from our total to its own",
        record.title.partition(":")[0],
        widest="x" * 26,
        xaxis={"title": {"text": "GiB"}, "range": [0, style.number(room * 1.02 / GIB)]},
        yaxis={
            "title": {"text": "tool, and its GiB"},
            "range": [n - 0.5, -0.5],
            "tickmode": "array",
            "tickvals": list(range(n)),
            "ticktext": labels,
            "showgrid": False,
        },
        shapes=[{**line, "line": {"color": style.LINE, "width": 2, "dash": "dash"}}],
        annotations=[
            {
                "text": f"ours: {_gib(ours)}",
                "x": ours / GIB,
                "yref": "paper",
                "y": 1,
                "yanchor": "bottom",
                "showarrow": False,
                "font": {"size": 11},
            }
        ],
    )
    return {"data": data, "layout": layout}, str(record)


def _lanes(tool: Tool) -> dict[str, int]:
    """The tool's steps under the names of STEPS; those too small to see are left out."""
    found: dict[str, int] = {}
    for what, size in tool.steps:
        parts = set(what.split(", "))
        name = "buffers and assumed" if parts <= {"buffers", "assumed", "rounding"} else "not told apart"
        name = "states" if what in FINE and what not in GROUPS else what if what in STEPS else name
        found[name] = found.get(name, 0) + size
    return {what: size for what, size in found.items() if abs(size) >= GIB / 200}
