"""The loss over several training steps: of a layout, and of one unsharded process beside it."""

from __future__ import annotations

from dataclasses import dataclass

from .tables import Record


@dataclass(frozen=True, repr=False)
class LossCurve(Record):
    """Loss and gradient norm of each training step: of the layout, and of one unsharded process."""

    title: str
    losses: tuple[float, ...]
    norms: tuple[float, ...]
    one_losses: tuple[float, ...]
    one_norms: tuple[float, ...]

    @property
    def distance(self) -> float:
        """The largest |Δloss| / |loss| of any step."""
        pairs = zip(self.losses, self.one_losses, strict=True)
        return max((abs(own - one) / abs(one) for own, one in pairs), default=0.0)

    @property
    def apart(self) -> str:
        """`distance` in words; what rounding alone makes in float64 differs from machine to machine."""
        if self.distance < 1e-12:
            return "less than 1e-12"
        return f"{self.distance:.0e}"

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        head = ["step", "loss", "one process", "norm of gradients", "one process"]
        columns = (self.losses, self.one_losses, self.norms, self.one_norms)
        rows: list[list[object]] = [
            [number, *(f"{value:.6f}" for value in values)]
            for number, values in enumerate(zip(*columns, strict=True), 1)
        ]
        return self.title, head, rows, f"greatest distance of the losses: {self.apart}"
