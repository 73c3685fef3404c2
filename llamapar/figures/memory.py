"""Memory as a picture: stacked bars for each stage against the HBM.

The parts use Paul Tol's muted colours (colour-blind-safe); the axes' colours are not used here.
"""

from __future__ import annotations

from llamapar.count.terms import FITS, GIB, TOO_MUCH, UNDECIDED, Breakdown, Memory

from . import draw, style
from .chart import Chart
from .draw import Rows
from .style import Spec

PARTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "parameters": ("#5D5FB8", ("parameters", "gathered parameters")),
    "gradients": (
        "#88CCEE",
        (
            *("gradients", "unreduced gradients", "gradient buckets", "gradients in flight"),
            "reduction buckets",
        ),
    ),
    "optimizer": (
        "#44AA99",
        (
            "master weights",
            "optimizer states",
            "optimizer's copy",
            "gradients of the step",
            "weights and optimizer",
        ),
    ),
    "activations": ("#DDCC77", ("activations", "embedding")),
    "logits and loss": ("#CC6677", ("logits and loss",)),
    "workspace": ("#AA4499", ("backward workspace", "pipeline buffers")),
    "assumed": (style.PAD, ("allocator (assumed)", "CUDA context (assumed)")),
}
"""Part of a bar → its colour, and the terms that belong to it; an assumption is drawn as pads are."""

ENDS = {FITS: "fits", TOO_MUCH: "does not fit", UNDECIDED: "may not fit"}
"""Outcome → what a sentence says of the job."""

LABELLED = 16
"""Most stages whose total is written under the bar."""

DRAWN = 64
"""Most stages drawn: past it the first ones and the last."""


def _gib(n: int) -> str:
    return f"{n / GIB:,.2f} GiB"


# -- stages against the HBM ------------------------------------------------------------------------


def picture(record: Memory) -> tuple[Spec, str]:
    """A stacked bar for each stage with its upper bound, the HBM as a line; the note names the worst
    stage.
    """
    rows = Rows(len(record.stages), DRAWN, "stage")
    drawn = [record.stages[s] for s in rows.drawn]
    axis = {**rows.axis("pipeline stage (= PP rank)"), "showgrid": False}
    if rows.n <= LABELLED:
        digits = 1 if record.worst.total_bytes < 100 * GIB else 0
        axis |= draw.ticks(rows.places, [f"{s.stage}<br>{s.total_bytes / GIB:.{digits}f}" for s in drawn])
        axis["title"] = {"text": "pipeline stage (= PP rank), and GiB in all"}
    hbm, top, highest = (n / GIB for n in (record.hbm_bytes, record.worst.total_bytes, record.high_bytes))
    data = [trace for part in PARTS if (trace := _part(part, drawn, rows))]
    if highest > top:  # a mark above every stage: the high end, in the proportion of the worst one
        totals = [round(s.total_bytes * record.high_bytes / record.expected_bytes) for s in drawn]
        said = zip(rows.drawn, totals, strict=True)
        data.append(
            draw.scatter(
                "markers",
                rows.places,
                [draw.number(total / GIB) for total in totals],
                marker={"symbol": "line-ew", "size": 16, "line": {"width": 3, "color": style.LINE}},
                hovertext=[f"stage {s}: nine of ten runs stay below {_gib(n)}" for s, n in said],
                **draw.legend("high end"),
            )
        )
    name = draw.limit(f"{record.gpu.name}: {hbm:.2f} GiB", rows.places[-1] + 0.5, hbm)

    def line(s: int) -> str:
        stage = record.stages[s]
        sizes = {part: stage.bytes(*names) / GIB for part, (_, names) in PARTS.items()}
        each = ", ".join(f"{part} {size:.2f}" for part, size in sizes.items() if size)
        return f"stage {stage.stage}: {_gib(stage.total_bytes)}: {each}"

    without = ", but its experts" if record.not_counted else ""
    return Chart(
        kind="memory",
        title=f"{style.name_of(record.model)}, {record.layout}: memory of a rank by stage{without}",
        note=needs_in_words(record),
        data=data,
        layout={
            "widest": f"{max(hbm, highest):,.0f}",
            "warn": not record.fits,
            "legend_rows": 3,
            "barmode": "stack",
            "legend": {"traceorder": "normal"},
            "xaxis": axis,
            "yaxis": draw.axis("GiB", [0, draw.number(max(hbm, highest) * 1.13)], nticks=7),
            "shapes": [draw.rule("y", hbm, color=style.WARN)],
            "annotations": [name] if hbm > 0.9 * top else [],  # among the bars it could not be read
        },
        head=record.title,
        rows=rows,
        line=line,
        remarks=record.verdict,
    ).drawn()


def needs_in_words(record: Memory) -> str:
    """What the worst stage needs of its GPU, in sentences; the text says what a run shows."""
    if record.not_counted:
        return record.verdict
    most = "at most " if record.saves else ""
    told = f"Stage {record.worst.stage} needs {most}{record.expected_bytes / GIB:.1f} GiB, and {record.gpu} "
    told += f"has {record.hbm_bytes / GIB:.1f} GiB: it {ENDS[record.outcome]}."
    if record.published:
        return told
    needs = record.figure()
    return f"{told} Eight of ten runs need {needs.low / GIB:.1f} to {needs.high / GIB:.1f} GiB."


def _part(part: str, stages: list[Breakdown], rows: Rows) -> Spec:
    """One trace: this part in every drawn stage; {} if no stage has it."""
    colour, names = PARTS[part]
    sizes = [stage.bytes(*names) for stage in stages]
    if not any(sizes):
        return {}
    marker: Spec = {"color": colour}
    if part == "assumed":
        marker["pattern"] = style.PAD_PATTERN
    hover: Spec = {"hovertext": [_hover(stage, part, names) for stage in stages]}
    if rows.n > DRAWN // 2:  # too many for the terms of each
        hover = {"hoverinfo": "all", "hovertemplate": f"%{{x}} · {part} %{{y:.2f}} GiB<extra></extra>"}
    heights = [round(size / GIB, 4) for size in sizes]
    wide = min(draw.bar_width(rows.n), 0.2 + 0.1 * rows.n)
    return draw.columns(rows.places, heights, wide, marker, **hover, **draw.legend(part))


def _hover(stage: Breakdown, part: str, names: tuple[str, ...]) -> str:
    terms = [t for t in stage.terms if t.name in names or t.name.partition(":")[0] in names]
    lines = [f"{t.name} {_gib(t.bytes)}" for t in terms] if len(terms) > 1 else []
    return "<br>".join([f"stage {stage.stage} · {part} {_gib(stage.bytes(*names))}", *lines])
