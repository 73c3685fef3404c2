"""Loss curves: a layout's as a line, one process's as rings around its points."""

from __future__ import annotations

from llamapar.records.losses import LossCurve
from llamapar.records.tables import plural

from . import draw, style
from .chart import Chart
from .style import Spec


def picture(record: LossCurve) -> tuple[Spec, str]:
    """Loss over steps; where both are equal, each ring has its point in the centre."""
    steps = list(range(1, len(record.losses) + 1))
    own = [draw.number(loss) for loss in record.losses]
    one = [draw.number(loss) for loss in record.one_losses]
    line: Spec = {"color": style.COLOURS["dp"], "width": 2}
    ring: Spec = {"symbol": "circle-open", "size": 14, "color": style.COLOURS["tp"], "line": {"width": 2}}
    low = min(own + one)
    high = max(own + one)
    margin = 0.08 * (high - low or 1)
    ends = [draw.number(low - margin), draw.number(high + margin)]
    fallen = f"loss {record.losses[0]:.4f} → {record.losses[-1]:.4f} in {plural(len(steps), 'step')}"
    return Chart(
        kind="losses",
        title=record.title,
        note=f"greatest distance of a loss: {record.apart} of itself",
        data=[
            draw.scatter("lines+markers", steps, own, line=line, **draw.legend("the layout")),
            draw.scatter("markers", steps, one, marker=ring, **draw.legend("one process")),
        ],
        layout={
            "widest": "0.00",
            "xaxis": draw.axis("step", [0.5, len(steps) + 0.5], dtick=max(1, len(steps) // 10)),
            "yaxis": draw.axis("loss, nats a token", ends),
        },
        remarks=f"{fallen}; one process's differ by at most {record.apart} of themselves",
    ).drawn()
