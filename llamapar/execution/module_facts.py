"""What is told of a module that a plan cut, besides how its tensors compare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from llamapar.records.tables import Plain, noun

from .differences import Difference
from .module_reading import Culprit


@dataclass(frozen=True)
class ModuleFacts:
    """A module: its ties, its buffers with their shapes, those that the forward changes, and what it draws.

    bytes_here: of the first rank's parameters; gradient_bytes: of their gradients. drew: submodules that draw
    random numbers, which make a comparison impossible. culprit: the first submodule that differs;
    difference: how it does. summands: how ranks hold gradients that are summands still.
    """

    tied: Mapping[str, str] = field(default_factory=dict)
    buffers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    drew: tuple[str, ...] = ()
    bytes_here: int = 0
    gradient_bytes: int = 0
    culprit: Culprit | None = None
    difference: Difference | None = None
    summands: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """Why it is not compared."""
        return f"not compared, for {', '.join(self.drew)} draws random numbers"

    def as_dict(self) -> Plain:
        """Plain values for JSON."""
        return {
            "bytes_here": self.bytes_here,
            "gradient_bytes": self.gradient_bytes,
            "tied": dict(self.tied),
            "buffers": {name: list(shape) for name, shape in self.buffers.items()},
            "changed_buffers": list(self.changed),
            "random": list(self.drew),
            "why": self.culprit.words if self.culprit is not None else "",
            "equal_up_to": self.culprit.equal_up_to if self.culprit is not None else "",
        }

    def sentences(self) -> Iterator[str]:
        """The first difference, and what a reader should know of the module."""
        if self.culprit is not None:
            backward = self.culprit.words.startswith("backward")
            what = "equal up to"
            if backward:
                what = "gradients equal back to"
            after = ""
            if self.culprit.equal_up_to:
                after = f"{what} {self.culprit.equal_up_to}; "
            yield f"{after}{self.culprit.name or 'the module itself'}: {self.culprit.words}"
        for words, n in Counter(self.summands).items():
            whose = "in the trainer, as its data parallelism does"
            if "tp" in words:
                whose = "before it is used"
            yield f"{n} {noun(n, 'gradient')}: each rank has {words}, {whose}"
        yield from (f"tied: {name} is {of}" for name, of in self.tied.items())
        buffers = [f"{name} {list(shape)}" for name, shape in self.buffers.items()]
        more = ""
        if len(buffers) > 3:
            more = f" and {len(buffers) - 3} more"
        if buffers:
            yield f"buffers, which have no gradient: {', '.join(buffers[:3])}{more}"
        if self.changed:
            yield f"the forward changes buffers: {', '.join(self.changed)}"
        if self.drew:
            yield "eval_mode=True calls module.eval() first, after which dropout draws nothing"
