"""The slips that a run would have noticed, and those that it would not have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .tables import AsDict, Record, plural


@dataclass(frozen=True, repr=False)
class Mutants(AsDict, Record):
    """Faults that a run would have noticed, and those that it would not have.

    noticed: fault → what differs first, or what a rank raises. unseen: fault → why nothing differs. untried:
    faults that there was no time for.
    """

    json_names = ("noticed", "unseen", "untried")

    noticed: Mapping[str, str]
    unseen: Mapping[str, str]
    untried: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """One line: how many were noticed, and the names of the others."""
        tried = len(self.noticed) + len(self.unseen)
        text = f"{len(self.noticed)} of {plural(tried, 'slip')} would have been noticed"
        if self.unseen:
            text += f", and not {', '.join(self.unseen)}"
        if self.untried:
            text += f"; no time for {len(self.untried)} more"
        return text

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        rows: list[list[object]] = [[name, "PASSES UNSEEN", why] for name, why in self.unseen.items()]
        rows += [[name, "noticed", what] for name, what in self.noticed.items()]
        rows += [[name, "not tried", ""] for name in self.untried]
        return self.summary, ["slip", "is", "by what, or why not"], rows, ""
