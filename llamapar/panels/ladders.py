"""The ladder of a live picture: every value of a knob, with its result or the reason why it fails. Pure.

A ladder answers before anybody clicks. A rung is a call of a public function with its result, so the picture,
the line of code and the undo step are the same thing. `ladders_of_maps` and `ladders_of_jobs` define the
knobs of each picture and the words of its rungs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from llamapar.describe.arguments import call_of
from llamapar.describe.layout import divisors
from llamapar.describe.models import model as find_model
from llamapar.describe.options import Values
from llamapar.errors import LlamaparError
from llamapar.figures import NO_FIGURE, View, view
from llamapar.figures.wording import sentence
from llamapar.records.calls import Call
from llamapar.records.tables import Plain, Record

from .controls import rung_name
from .runs import figure_of

MOST_RUNGS = 12
"""Values on a ladder: more do not fit beside one another."""

KEPT = 256
"""Rungs that are kept with their pictures: steps to and fro, and ladders that share a rung, cost nothing."""

Steps = Sequence[object] | Callable[[Values], Sequence[object]]
"""The values on a knob's ladder, always the same or by the other arguments."""


@dataclass(frozen=True)
class Rung:
    """One value of the knob.

    gives: a rank's share, in a few words. problem: the reason why it fails; "" if it works. doubt: why it
    may fail; "" if that is settled. says: the sentence under the ladder. record: the result of the call;
    None if the function refuses.
    """

    name: str
    value: object
    gives: str
    problem: str
    doubt: str
    says: str
    call: Call
    record: Record | None

    @cached_property
    def view(self) -> View:
        """The picture; without a record only the words."""
        if self.record is None:
            return View(NO_FIGURE, self.says)
        return view(self.record)

    @cached_property
    def as_dict(self) -> Plain:
        """Plain values for the browser."""
        words = {name: getattr(self, name) for name in ("name", "value", "gives", "problem", "doubt", "says")}
        return words | {"code": str(self.call)} | figure_of(self.view)


@dataclass(frozen=True, eq=False)
class Subject:
    """A picture that can be live: a public function with its relevant knobs.

    opens: its arguments with their initial values; those that are no knob are controls beside the knobs.
    gives, says, problem, doubt: the words of a rung, made from the record; gives can differ between knobs.
    within: other values that a step of a knob changes. legend: what the marks of rungs mean, where a rung can
    be in doubt.
    """

    make: Callable[..., Record]
    opens: Values
    knobs: Mapping[str, Steps]
    gives: Callable[..., str] | Mapping[str, Callable[..., str]]
    says: Callable[..., str]
    problem: Callable[..., str] = lambda record: ""
    within: Callable[[Values], Values] = dict
    doubt: Callable[..., str] = lambda record: ""
    legend: str = ""

    def call(self, values: Values, knob: str) -> Call:
        """The call with the knob, and with every argument that differs from the function's default."""
        usual = inspect.signature(self.make).parameters
        always = (next(iter(self.knobs)), knob)
        said = {
            name: value
            for name, value in values.items()
            if name in always or not same_value(value, usual[name].default)
        }
        return call_of(self.make, said)

    def rung(self, values: Values, knob: str) -> Rung:
        """The rung for a value of the knob."""
        try:
            return self._kept(knob, **values)
        except TypeError:  # The value is not hashable, so it cannot be cached.
            return self._rung(values, knob)

    @lru_cache(maxsize=KEPT, typed=True)  # noqa: B019  subjects are as many as pictures, and stay
    def _kept(self, knob: str, **values: object) -> Rung:
        return self._rung(values, knob)

    def _rung(self, values: Values, knob: str) -> Rung:
        call = self.call(values, knob)
        value = values[knob]
        words = rung_name(knob, value), value
        try:
            record = self.make(**call.arguments)
        except LlamaparError as refused:
            why = ": ".join(filter(None, (refused.what, refused.why)))
            return Rung(*words, "refused", refused.what, "", sentence(why), call, None)
        gives = self.gives if callable(self.gives) else self.gives[knob]
        problem = self.problem(record)
        doubt = self.doubt(record)
        return Rung(*words, gives(record), problem, doubt, self.says(record), call, record)

    def ladder(self, values: Values, knob: str) -> tuple[Rung, ...]:
        """A rung for each step of the knob and for its current value.

        Raises LlamaparError if no rung gives a record, or if the function refuses a value between the steps.
        """
        now = values[knob]
        known = self.knobs[knob]
        steps = list(known(values) if callable(known) else known)
        between = not any(same_value(step, now) for step in steps)
        if between:
            steps.append(now)
            steps.sort(key=lambda step: step if isinstance(step, int) else 0)
        others = (self.within({**values, knob: step}) for step in steps)
        rungs = tuple(self.rung(values if same_value(other[knob], now) else other, knob) for other in others)
        if all(rung.record is None for rung in rungs) or (between and rung_at(rungs, now).record is None):
            self.make(**self.call(values, knob).arguments)  # which raises
        return rungs


def same_value(one: object, other: object) -> bool:
    """Whether two values are equal and have one type: True is not 1."""
    return type(one) is type(other) and one == other


def rung_at(rungs: Sequence[Rung], value: object) -> Rung:
    """The rung of a value."""
    return next(rung for rung in rungs if same_value(rung.value, value))


# -- steps -----------------------------------------------------------------------------------------


def degrees(most: int) -> list[int]:
    """Each power of two up to `most`, `most` itself, and its divisors if there is room for them."""
    steps = {2**k for k in range(most.bit_length())} | {most}
    every = steps.union(divisors(most))
    return sorted(every if len(every) <= MOST_RUNGS else steps)


def of_model(field: str, most: int = 2**20) -> Steps:
    """Degrees up to a dimension of the model."""
    return lambda values: degrees(min(most, getattr(find_model(values["model"]), field)))
