"""Step times as a picture: the terms one after another in a bar, one bar for each cost."""

from __future__ import annotations

from collections.abc import Sequence

from llamapar.records.tables import three_digits
from llamapar.timing.cost import Cost

from . import draw, style
from .chart import Chart
from .style import Spec

TERMS = {
    "GEMMs": "#5D5FB8",
    "attention": "#88CCEE",
    "elementwise": "#44AA99",
    "head and loss": "#CC6677",
    "exposed TP": style.COLOURS["tp"],
    "exposed CP": style.COLOURS["cp"],
    "as fitted": "#AA4499",
    "pipeline idle": style.PAD,
    "exposed P2P": style.COLOURS["pp"],
    "exposed DP": style.COLOURS["dp"],
    "slowed by DP": "#999933",
    "optimizer": "#DDCC77",
    "stragglers": style.LINE,
}
"""Term → its colour; what waits for an axis has the axis's."""

WRITTEN = 0.07
"""Share of the longest bar from which a term has its seconds written in it."""


def picture(record: Cost) -> tuple[Spec, str]:
    """One bar with its terms in seconds, and a line over the interval of a step."""
    return cost_bars([record], ["step"])


def cost_bars(records: Sequence[Cost], names: Sequence[str]) -> tuple[Spec, str]:
    """A bar for each of some costs, to be compared, and above each its interval."""
    first = records[0]
    places = list(range(len(records)))
    longest = max(record.step_seconds for record in records)
    data = list[Spec]()
    for name in (term for term in TERMS if any(term in record.seconds for record in records)):
        seconds = [record.seconds.get(name, 0.0) for record in records]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "y": places,
                "x": [draw.number(value) for value in seconds],
                "width": 0.5,
                # Two digits, and never 4.6e+02.
                "text": [f"{float(f'{n:.2g}'):g} s" if n > WRITTEN * longest else "" for n in seconds],
                **draw.INSIDE,
                "marker": {"color": TERMS[name]},
                "hovertext": [
                    f"{name} {value:.4g} s, {value / record.step_seconds:.1%} of the step"
                    for value, record in zip(seconds, records, strict=True)
                ],
                **draw.legend(name),
            }
        )
    ends = {"type": "data", "symmetric": False, "color": style.LINE, "thickness": 2, "width": 8}
    more = [draw.number(record.interval[1] - record.step_seconds) for record in records]
    less = [draw.number(record.step_seconds - record.interval[0]) for record in records]
    data.append(
        draw.scatter(
            "markers",
            [draw.number(record.step_seconds) for record in records],
            [place - 0.36 for place in places],
            marker={"size": 7, "color": style.LINE},
            error_x={**ends, "array": more, "arrayminus": less},
            hovertext=[record.spread.told(record.step_seconds) for record in records],
            **draw.legend("what it may be"),
        )
    )
    most = draw.number(max(record.interval[1] for record in records) * 1.04)
    return Chart(
        kind="cost",
        title=f"{style.name_of(first.model)}, {first.layout}: {three_digits(first.step_seconds)} s a step",
        note=first.verdict,
        data=data,
        layout={
            "widest": max(names, key=len),
            "legend_rows": 3,
            "barmode": "stack",
            "legend": {"traceorder": "normal", "entrywidth": 78},
            "xaxis": draw.axis("seconds of a step", [0, most], nticks=8),
            "yaxis": draw.named(names),
        },
        head=[str(record) for record in records],
    ).drawn()
