"""What one rank keeps in a dry run, operation by operation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llamapar.describe.layout import AXES, Coord, Layout
from llamapar.place.stage_map import Stage
from llamapar.records.curve import MemoryCurve
from llamapar.records.tables import Plain

from .body import Task


@dataclass(frozen=True, repr=False)
class RankMemory:
    """The place and the memory of the one rank that a dry run has.

    curve: its memory over its operations.
    """

    task: Task
    rank: int
    curve: MemoryCurve

    @property
    def layout(self) -> Layout:
        return self.task.layout

    @property
    def coord(self) -> Coord:
        """The coord of the rank: (tp, cp, pp, dp)."""
        return self.layout.coord_of(self.rank)

    @property
    def peers(self) -> dict[str, range]:
        """The rank's group on each axis, including the rank."""
        return {axis: self.layout.group(axis, self.rank) for axis in AXES}  # type: ignore[misc]

    @property
    def peak_bytes(self) -> int:
        """The largest number of bytes alive at once."""
        return self.curve.peak_bytes

    @property
    def stages(self) -> list[Stage]:
        """The stages that the rank runs; one stage with all layers without a pipeline."""
        setting = self.task.setting
        if setting.schedule is not None:
            return setting.stages_on(self.coord.pp)
        return [Stage(0, 0, range(setting.model.n_layers), embedding=True, head=True)]

    # -- showing ---------------------------------------------------------------------------------

    def as_dict(self) -> Plain:
        """Plain values for JSON."""
        setting = self.task.setting
        groups = {a: {"first": g[0], "step": g.step, "ranks": len(g)} for a, g in self.peers.items()}
        return {
            "rank": self.rank,
            "coord": self.coord._asdict(),
            "peers": groups,
            "stages": [
                {"stage": s.stage, "layers": len(s.layers), "embedding": s.embedding, "head": s.head}
                for s in self.stages
            ],
            "dtype": setting.dtype,
            "micro_batches": setting.micro_batches,
            "operations": [
                {"name": s.name, "before": s.before, "most": s.most, "after": s.after}
                for s in self.curve.spans
            ],
            "peak_bytes": self.peak_bytes,
            "peak_at": self.curve.peak,
            "peak": self.curve.alive,
        }

    def sentences(self) -> Iterator[str]:
        """Its place, its stages and its peak, a sentence each."""
        place = " ".join(f"{axis}={i}" for axis, i in self.coord._asdict().items())
        groups = ", ".join(f"{axis} {_listed(group)}" for axis, group in self.peers.items() if len(group) > 1)
        yield f"rank {self.rank} is {place}; its groups: {groups or 'itself'}"
        if self.task.setting.schedule is not None:
            yield f"{'; '.join(map(_stage, self.stages))}: {len(self.curve.spans)} operations"
        yield self.curve.sentence


def _stage(stage: Stage) -> str:
    ends = [name for name, there in (("embedding", stage.embedding), ("head", stage.head)) if there]
    return ", ".join([f"stage {stage.stage}: {len(stage.layers)} layers", *ends])


def _listed(group: range) -> str:
    """A group in words: "0, 1, … 7"."""
    if len(group) <= 4:
        return ", ".join(map(str, group))
    return f"{group[0]}, {group[1]}, … {group[-1]}"
