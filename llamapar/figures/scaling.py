"""Scaling: tokens per second and GPU over the number of GPUs, relative to the smallest number."""

from __future__ import annotations

from llamapar.timing.scaling import Scaling

from . import draw, style
from .chart import Chart
from .plan import layout_label
from .style import Spec


def picture(record: Scaling) -> tuple[Spec, str]:
    """A point for each number of GPUs, and a dotted line for no loss."""
    counts = [gpus for gpus, _ in record.found]
    layouts = [one for _, one in record.found]
    rates = [round(one.cost.tokens_per_second_per_gpu, 1) for one in layouts]
    told = [
        f"{gpus:,} GPUs: {rate:,.0f} tokens/s each, {share:.1%} of the fewest's, {layout_label(one)}"
        for gpus, rate, share, one in zip(counts, rates, record.efficiency, layouts, strict=True)
    ]
    line: Spec = {"color": style.LINE, "width": 1.5, "dash": "dot"}
    own: Spec = {"color": style.COLOURS["dp"], "width": 2}
    lost = (
        f"of {counts[-1]:,} GPUs each keeps {record.efficiency[-1]:.1%}"
        if counts
        else "no layout passes and fits"
    )
    return Chart(
        kind="scaling",
        title=record.title,
        note=lost,
        data=[
            draw.scatter(
                "lines",
                counts,
                rates[:1] * len(rates),
                line=line,
                hoverinfo="skip",
                **draw.legend("nothing lost"),
            ),
            draw.scatter(
                "lines+markers",
                counts,
                rates,
                line=own,
                marker={"size": 9},
                hovertext=told,
                **draw.legend("the fastest layout"),
            ),
        ],
        layout={
            "widest": "0,000",
            "legend_rows": 1,
            "xaxis": draw.axis("GPUs", type="log", **draw.ticks(counts)),
            "yaxis": draw.axis("tokens/s of a GPU", nticks=6, rangemode="tozero"),
        },
        remarks=told,
    ).drawn()
