"""A model over machines as a picture: what each holds, and the place in the file as counters keep it."""

from __future__ import annotations

from llamapar.rules.machines import Count, Loading, held

from . import style
from .style import Spec

GIB = 2**30

HOLDS = {"weights": "#5D5FB8", "KV cache": "#88CCEE"}
COUNTED = {"uint32": ("#CC6677", "solid"), "int32": ("#AA4499", "dot")}
"""32-bit counter → colour and dash of its line; the true number is grey."""

WRAPS, MOST = 3, 200
"""The counters are drawn until uint32 has wrapped so often, or so many tensors are read."""


def picture(record: Loading) -> tuple[Spec, str]:
    """Left, a bar per node against its memory; right, bytes read, true and as counters hold them."""
    nodes = [record.nodes[i] for i in style.shown(record.n_nodes, 32)]
    rows = [style.row_of(i, record.n_nodes, 32) for i in style.shown(record.n_nodes, 32)]
    data = []
    for name, colour in HOLDS.items():
        sizes = [n.weight_bytes if name == "weights" else n.kv_cache_bytes for n in nodes]
        data.append(
            {
                "type": "bar",
                "x": rows,
                "y": [style.number(size / GIB) for size in sizes],
                "width": min(0.82, 0.3 + 0.1 * len(rows)),
                "hovertext": [
                    f"node {n.node}, {n.role} · {name} {s:,} B" for n, s in zip(nodes, sizes, strict=True)
                ],
                "marker": {"color": colour},
                "name": name,
                "showlegend": True,
            }
        )
    totals = _totals(record)
    for name, (colour, dash) in {"true": (style.LINE, "solid"), **COUNTED}.items():
        kept = [c.value if name == "true" else held(c.value, name) for c in totals]
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x0": 1,
                "dx": 1,
                "y": [round(value / GIB, 3) for value in kept],
                "hoverinfo": "all",
                "hovertemplate": f"%{{x}} tensors read · {name} %{{y:,.3f}} GiB<extra></extra>",
                "line": {"color": colour, "width": 2, "dash": dash, "shape": "hv"},
                "name": "bytes read" if name == "true" else f"in {name}",
                "showlegend": True,
                "xaxis": "x2",
                "yaxis": "y2",
            }
        )
    most = max(record.memory_gib, record.nodes[0].total_bytes / GIB)
    line = {
        "type": "line",
        "xref": "x domain",
        "x0": 0,
        "x1": 1,
        "y0": record.memory_gib,
        "y1": record.memory_gib,
    }
    verdict = record.verdict
    layout = style.layout(
        "loading",
        f"{style.name_of(record.model)} in {record.format} on {style.plural(record.n_nodes, 'machine')}",
        verdict,
        widest=f"{most:,.0f}",
        warn=not record.fits,
        barmode="stack",
        legend={"traceorder": "normal"},
        xaxis={
            **style.rank_axis(record.n_nodes, "node (0 is the root)", 32),
            "domain": [0, 0.36],
            "showgrid": False,
        },
        yaxis={"title": {"text": "GiB of a node"}, "range": [0, style.number(most * 1.13)], "nticks": 7},
        xaxis2={
            "title": {"text": "tensors read"},
            "domain": [0.5, 1],
            "anchor": "y2",
            "nticks": 6,
        },
        yaxis2={"title": {"text": "GiB, from the start of the file"}, "anchor": "x2", "nticks": 7},
        shapes=[{**line, "line": {"color": style.WARN, "width": 2, "dash": "dash"}}],
        annotations=[
            {
                "text": f"{record.memory_gib:g} GiB",
                "xref": "x domain",
                "x": 1,
                "y": record.memory_gib,
                "xanchor": "right",
                "yanchor": "bottom",
                "showarrow": False,
                "font": {"size": 11, "color": style.WARN},
            }
        ],
    )
    return {"data": data, "layout": layout}, _summary(record)


def _totals(record: Loading) -> list[Count]:
    """The running totals from the start of the file until uint32 has wrapped a few times."""
    every = [count for count in record.counts() if count.what == "total"]
    few = [count for count in every if count.value < WRAPS * 2**32]
    return few[:MOST]


def _summary(record: Loading) -> str:
    lines = [str(record)]
    for count in record.overflows[:2]:
        told = ", ".join(f"{name} holds {held(count.value, name):,}" for name in count.wraps)
        lines.append(f"{count.tensor}: {count.what} = {count.value:,}; {told}")
    wraps = record.file_bytes >> 32
    lines.append(
        f"at the end of the file uint32 holds {held(record.file_bytes, 'uint32'):,}, {wraps} wraps on"
    )
    return "\n".join(lines)
