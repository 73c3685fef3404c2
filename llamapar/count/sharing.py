"""What a parameter sends among ranks that hold copies of it or share one: its gradient, and itself."""

from __future__ import annotations

import math
from dataclasses import dataclass

from llamapar.describe.layout import Coord
from llamapar.describe.models import Parameter
from llamapar.describe.placement import HEAD_NORMS, Replicate
from llamapar.place.cut import Cut

ONCE = "once"
"""Used as a phase: once in a step, however many micro-batches pass."""


def seen_in(phase: str) -> str:
    """The phase in which a trace sees a collective: one that runs once a step in the forward."""
    if phase == ONCE:
        return "forward"
    return phase


Row = tuple[str, str, str, int, int, int]
"""(phase, axis, kind, count, payload of each, ranks of the group)."""


@dataclass(frozen=True)
class ParameterTraffic:
    """What the parameters of the rank at `coord` send: gradients, and under ZeRO 1 to 3 the parameters too.

    item, gradient_item: bytes of a number of a parameter, and of its gradient. reductions: how often in a
    step whole gradients become shards; see `Habits.reduces_once`.
    """

    cut: Cut
    coord: Coord
    item: int
    gradient_item: int
    reshard: bool
    reductions: int = 1

    def rows(self, p: Parameter, late: bool, head: bool = False) -> list[Row]:
        """The collectives of one parameter in a step.

        late: gradients are reduced after the last micro-batch. head: an embedding that also makes logits.

        The backward of an embedding and of a bias does not read them, so they are not gathered for it. Under
        ZeRO 1 and 2 a rank updates its shard, and the weights are gathered afterwards.
        """
        layout = self.cut.layout
        shards = self.cut.shards
        key = p.key
        # A parameter that is whole on every TP rank gets partial gradients only under SP, where each saw
        # other tokens; a cut one only if its piece is held in copies.
        over_tp = layout.sp
        if not isinstance(self.cut.placement(key), Replicate):
            over_tp = self.cut.copies(key) > 1
        over_tp = over_tp or key in HEAD_NORMS  # each rank's heads pass them
        among = {"tp": self.cut.copies(key), "cp": layout.cp, "dp": layout.dp}
        count, *columns = self.cut.local_shape(p)
        numbers = math.prod(columns)  # of a row
        weight = shards.padded(count) * numbers * self.item
        gather = shards.axis, "all_gather", 1, weight, shards.ranks
        whole = shards.cuts("parameters")
        found: list[Row] = []
        if shards.cuts("optimizer state") and not whole and shards.ranks > 1:
            # Under ZeRO 1 and 2 each rank updates its shard and all get the others' afterwards.
            found.append(("update", *gather))
        row = numbers * self.gradient_item
        if not shards.cuts("gradients"):
            axes = ("tp", "cp", "dp") if over_tp else ("cp", "dp")
            return found + [("gradients", axis, "all_reduce", 1, count * row, among[axis]) for axis in axes]
        if shards.ranks > 1:
            # Keys of biases begin with "b".
            read = head or (key != "tok_embeddings" and p.key[0] != "b")
            if whole:
                found.append(("forward" if self.reshard else ONCE, *gather))
            if whole and self.reshard and read:
                found.append(("backward", *gather))
            # ZeRO 3 reduces a gradient where the backward makes it; the others after the passes.
            phase = "gradients"
            if whole and not late:
                phase = "backward"
            times = 1
            if phase == "gradients":
                times = self.reductions
            gradient = shards.padded(count) * row
            found.append((phase, shards.axis, "reduce_scatter", times, gradient, shards.ranks))
        # After the reduce-scatter only the rank's rows are left to send.
        own = len(shards.rows(count, self.coord._asdict())) * row
        if over_tp:
            found.append(("gradients", "tp", "all_reduce", 1, own, among["tp"]))
        if layout.dp_replicate > 1:
            found.append(("gradients", "dp", "all_reduce", 1, own, layout.dp_replicate))
        return found
