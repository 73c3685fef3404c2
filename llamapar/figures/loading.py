"""A model loaded on machines: the memory of each, and the file position as counters store it."""

from __future__ import annotations

from collections.abc import Iterator

from llamapar.nodes.loading import Loading, wrapped_count
from llamapar.records.tables import plural

from . import draw, style
from .chart import Chart
from .draw import Rows
from .style import Spec

GIB = 2**30

HOLDS = {"weights": "#5D5FB8", "KV cache": "#88CCEE"}
COUNTED = {"uint32": ("#CC6677", "solid"), "int32": ("#AA4499", "dot")}
"""32-bit counter → colour and dash of its line; the true number is grey."""

DRAWN = 32
"""Most nodes drawn: past it the first ones and the last."""

WRAPS, MOST = 3, 200
"""The counters are drawn until uint32 has wrapped so often, or so many tensors are read."""


def picture(record: Loading) -> tuple[Spec, str]:
    """Left, a bar for each node against its memory; right, bytes read: true, and as counters store them."""
    memory = record.memory_gib
    most = max(memory, record.nodes[0].total_bytes / GIB)
    rows = Rows(record.n_nodes, DRAWN)
    nodes = [record.nodes[i] for i in rows.drawn]
    wide = min(0.82, 0.3 + 0.1 * len(rows.drawn))
    data = list[Spec]()
    for name, colour in HOLDS.items():
        sizes = [n.weight_bytes if name == "weights" else n.kv_cache_bytes for n in nodes]
        heights = [draw.number(size / GIB) for size in sizes]
        hover = [f"node {n.node}, {n.role} · {name} {s:,} B" for n, s in zip(nodes, sizes, strict=True)]
        more = {"hovertext": hover, **draw.legend(name)}
        data.append(draw.columns(rows.places, heights, wide, {"color": colour}, **more))
    wrapped = []
    for count in record.overflows[:2]:
        holds = ", ".join(f"{name} holds {wrapped_count(count.value, name):,}" for name in count.wraps)
        wrapped.append(f"{count.tensor}: {count.what} = {count.value:,}; {holds}")
    size = record.file_bytes
    end = f"at the end of the file uint32 holds {wrapped_count(size, 'uint32'):,}, {size >> 32} wraps on"
    axis = rows.axis("node (0 is the root)")
    return Chart(
        kind="loading",
        title=f"{style.name_of(record.model)} in {record.format} on {plural(record.n_nodes, 'machine')}",
        note=record.verdict,
        data=[*data, *_counters(record)],
        layout={
            "widest": f"{most:,.0f}",
            "warn": not record.fits,
            "barmode": "stack",
            "legend": {"traceorder": "normal"},
            "xaxis": {**axis, "domain": [0, 0.36], "showgrid": False},
            "yaxis": draw.axis("GiB of a node", [0, draw.number(most * 1.13)], nticks=7),
            "xaxis2": draw.axis("tensors read", domain=[0.5, 1], anchor="y2", nticks=6),
            "yaxis2": draw.axis("GiB, from the start of the file", anchor="x2", nticks=7),
            "shapes": [draw.rule("y", memory, "x domain", color=style.WARN)],
            "annotations": [draw.limit(f"{memory:g} GiB", 1, memory, xref="x domain")],
        },
        head=str(record),
        remarks=[*wrapped, end],
    ).drawn()


def _counters(record: Loading) -> Iterator[Spec]:
    """Bytes read after each tensor until uint32 has wrapped a few times: true, and as a counter stores it."""
    every = [count for count in record.counts() if count.what == "total"]
    totals = [count for count in every if count.value < WRAPS * 2**32][:MOST]
    for name, (colour, dash) in {"true": (style.LINE, "solid"), **COUNTED}.items():
        values = [c.value if name == "true" else wrapped_count(c.value, name) for c in totals]
        yield {
            "type": "scatter",
            "mode": "lines",
            "x0": 1,
            "dx": 1,
            "y": [round(value / GIB, 3) for value in values],
            "hoverinfo": "all",
            "hovertemplate": f"%{{x}} tensors read · {name} %{{y:,.3f}} GiB<extra></extra>",
            "line": {"color": colour, "width": 2, "dash": dash, "shape": "hv"},
            **draw.legend("bytes read" if name == "true" else f"in {name}"),
            "xaxis": "x2",
            "yaxis": "y2",
        }
