"""What one collective costs a rank: bytes round a ring, their time, and both over the number of ranks.

`lp.course.collective("all-reduce", ranks=8)` is the record, and `.live()` the picture with knobs. The bytes
are the factors between algorithm and bus bandwidth of NVIDIA/nccl-tests (doc/PERFORMANCE.md); rates and
latency are those of `lp.cost`. Trees, which NCCL takes for small messages over many ranks, are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from llamapar.describe.arguments import checked_options
from llamapar.describe.hardware import DEFAULT_GPU, hardware
from llamapar.errors import one_of, whole
from llamapar.figures import draw
from llamapar.figures.chart import Chart
from llamapar.figures.style import Spec
from llamapar.records.tables import Record, human
from llamapar.records.trace import sent_bytes
from llamapar.timing.rings import HOP, NET_HOP, START, Ring

KINDS = {
    "all-reduce": "#5D5FB8",
    "all-gather": "#44AA99",
    "reduce-scatter": "#DDAA33",
    "all-to-all": "#CC6677",
    "send": "#888888",
}
"""Kind → its colour."""

DASHES = {"reduce-scatter": "24px,24px", "all-to-all": "8px,16px"}

RANKS = (2, 4, 8, 16, 32, 64, 128)
SIZES = (1, 4, 16, 64, 256)
"""What the knobs offer: ranks, and MiB of the tensor."""


@dataclass(frozen=True, repr=False)
class CollectiveCost(Record):
    """One collective of `ranks` ranks over a tensor of `mib` MiB.

    The tensor is what a rank puts in, or for an all-gather what it gets.
    """

    kind: str
    ranks: int
    mib: int
    gpu: str

    @property
    def formula(self) -> str:
        """What one rank sends, with n for the ranks and S for the tensor's bytes."""
        if self.kind == "send":
            return "S"
        if self.kind == "all-reduce":
            return "2 · (n − 1)/n · S"
        return "(n − 1)/n · S"

    @property
    def sent_bytes(self) -> int:
        """What one rank sends."""
        return sent_bytes(self.kind.replace("-", "_"), self.mib * 2**20, self.ranks)

    @property
    def seconds(self) -> float:
        """Expected, as `lp.cost` counts it, with the ranks beside one another on their machines."""
        gpu = hardware(self.gpu)
        ring = self._ring
        alone = Ring(self.ranks, 1)  # over the network, where a send has one NIC
        hop = NET_HOP
        if ring.inside == ring.size:
            alone = ring
            hop = HOP
        rates = {"all-to-all": ring.trade_rate(gpu), "send": alone.rate(gpu)}
        latency = ring.latency
        if self.kind in rates:
            latency = START + hop
        return self.sent_bytes / rates.get(self.kind, ring.rate(gpu)) + latency

    @property
    def _ring(self) -> Ring:
        return Ring.of(hardware(self.gpu), self.ranks, 1)

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        row = [self.kind, self.ranks, self.formula, human(self.sent_bytes), f"{1e3 * self.seconds:.3g} ms"]
        head = ["collective", "ranks", "a rank sends", "bytes", "takes"]
        return f"{self.mib} MiB on {self.gpu}", head, [row], ""

    def picture(self) -> tuple[Spec, str]:
        """Bytes that one rank sends over the number of ranks, of every kind; this one is marked."""
        places = list(range(len(RANKS)))
        top = 2.15 * self.mib
        data = []
        for kind, colour in KINDS.items():
            heights = [replace(self, kind=kind, ranks=n).sent_bytes / 2**20 for n in RANKS]
            # Three kinds send as much: their lines lie on one another, each with gaps of its own.
            look = {"color": colour, "width": 2, "dash": DASHES.get(kind, "solid")}
            if kind == self.kind:
                look["width"] = 4
            data.append(draw.scatter("lines", places, heights, line=look, **draw.legend(kind)))
        if self.ranks in RANKS:
            at = [RANKS.index(self.ranks)], [self.sent_bytes / 2**20]
            mark = {"size": 12, "color": KINDS[self.kind]}
            data.append(draw.scatter("markers", *at, marker=mark, hovertext=[self.sentence]))
        return Chart(
            kind="collective",
            title=f"{self.kind} of {self.mib} MiB over {self.ranks} ranks",
            note=f"a rank sends {self.formula}",
            data=data,
            layout={
                "height": 340,
                "widest": f"{top:.0f}",
                "legend_rows": 1,
                "xaxis": draw.axis("ranks", [-0.3, len(RANKS) - 0.7], **draw.ticks(places, RANKS)),
                "yaxis": draw.axis("MiB that one rank sends", [0, top]),
            },
            head=self.sentence,
        ).drawn()

    @property
    def sentence(self) -> str:
        """The equation with its numbers, and the time."""
        terms = self.formula.replace("n − 1", f"{self.ranks} − 1").replace("/n", f"/{self.ranks}")
        equation = terms.replace("S", f"{self.mib} MiB")
        if terms != "S":
            equation += f" = {self.sent_bytes / 2**20:.4g} MiB"
        where = "inside one machine" if self._ring.inside == self.ranks else "over the network"
        return f"A rank sends {equation}, {where}, in about {1e3 * self.seconds:.3g} ms on {self.gpu}."


@checked_options
def collective(
    kind: str = "all-reduce", ranks: int = 8, mib: int = 64, gpu: str = DEFAULT_GPU
) -> CollectiveCost:
    """One collective: its kind, its ranks, its tensor in MiB. Raises LlamaparError for another kind."""
    return CollectiveCost(
        one_of("kind", kind, KINDS),
        whole("ranks", ranks, 2, 2**14),
        whole("mib", mib, 1, 2**20),
        hardware(gpu).name,
    )
