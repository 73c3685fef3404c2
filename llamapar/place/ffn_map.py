"""Which columns of the SwiGLU hidden layer each TP rank holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

from llamapar.describe.arguments import checked_options
from llamapar.describe.keywords import Degrees
from llamapar.describe.layout import Layout, LayoutLike
from llamapar.describe.models import ModelConfig, ModelLike
from llamapar.describe.models import model as find_model
from llamapar.describe.splits import Split
from llamapar.records.tables import Judged, cut, span


@dataclass(frozen=True, repr=False)
class FfnMap(Judged):
    """FFN columns over TP, by torch's chunk rule: rows of w1 and w3, columns of w2."""

    model: ModelConfig
    tp: int

    @property
    def split(self) -> Split:
        return Split(self.model.ffn_dim, self.tp)

    @property
    def reason(self) -> str:
        """Why the shards are not equal, in one line; empty if they are."""
        if self.split.even:
            return ""
        return f"tp={self.tp} does not divide ffn_dim={self.model.ffn_dim}"

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        title = f"{self.model.name} FFN over tp={self.tp}: {self.model.ffn_dim} columns"
        rows: list[list[object]] = [[r, span(self.split[r]), f"{len(self.split[r]):,}"] for r in cut(self.tp)]
        return title, ["tp rank", "columns (w1 and w3 rows, w2 columns)", "count"], rows, self.reason


@checked_options
def ffn(model: ModelLike, layout: LayoutLike | None = None, **degrees: Unpack[Degrees]) -> FfnMap:
    """The FFN columns of each TP rank. Never refuses a layout: uneven shards are shown as torch cuts them."""
    found = find_model(model)
    found.require_judged("the FFN")
    return FfnMap(found, Layout.of(layout).tp)
