"""Attempts to repair a failure, by experiment in the place where it failed.

The order of trials: a control run that must fail as the cell did; edits of the failing statement that
divide or cut, each proved before the next one is tried; slips; the failing pass of a loop alone; then
headers, callers and earlier assignments. An edit is the answer if a proof selects it, or its meaning. Two
that nothing separates are both shown. Left out: an edit of two statements that no failure leads to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch

from llamapar.records.frames import Held

from .candidates import CUTS, SLIP
from .child import on_fakes, run_apart, without_numbers
from .degrees import RATIO, Degree, group_size
from .editing import Edits, spans_of, total_cost
from .failure import Facts
from .program import Program
from .proof import (
    BIASED,
    DIFFERS,
    FURTHER,
    MOST_RANKS,
    OPEN,
    PLAIN,
    PROVED,
    RUNS,
    Compared,
    Outcome,
    ProofRuns,
    compare_ranks,
)
from .trial import Trial, retry, run_again

_MOST_PROOFS = 6
_EACH = 2.0
"""Seconds for one trial."""

_AFTER_REJECTION = 12
"""Edits further away that are tried, at most, where a cut of the failing line gave other numbers."""

MEANINGFUL = 4.0
"""Cost up to which an edit is worth showing before others further away are tried."""

_AFTER = {PROVED: 0.0, BIASED: 1.0, RUNS: 2.0, FURTHER: 3.0, DIFFERS: 4.0}


@dataclass
class Repair:
    """A set of edits, its state, and why. stop: the effect outside at which its trial was ended."""

    edits: Edits
    state: str
    why: str = ""
    stop: str = ""

    @property
    def is_slip(self) -> bool:
        return self.edits[0].kind == SLIP

    @property
    def cost(self) -> float:
        """That of its least meaningful edit, and a little for each one more."""
        return max(edit.cost for edit in self.edits) + (len(self.edits) - 1) / 2

    @property
    def meant(self) -> bool:
        """Whether the names say that each edit is right."""
        return all(edit.meant for edit in self.edits)


class Attempts:
    """The trials of one failure. one_process: "" if one process runs, what it says if it fails as well; None
    if that is not known. shapes_only: why no number is read; "" where trials have numbers.
    """

    def __init__(self, program: Program, error: BaseException, seconds: float) -> None:
        self.program = program
        self.error = error
        self.shapes_only = without_numbers()
        if self.shapes_only:
            on_fakes(partial(torch.empty, 1))  # Children inherit what this imports.
        self.begun = time.monotonic()
        self.seconds = seconds
        self.tried = 0
        self.answers: list[Repair] = []
        self.one_process: str | None = None
        program.find_functions()
        _ = program.assigned  # Children inherit what is worked out here.
        self.compared_with: dict[object, Outcome | str] = {}
        self.proofs = 0
        self.control: Facts | str = self._control() or "it ends without an answer, or takes too long"

    def _control(self) -> Facts | str | None:
        """The facts of a run without an edit, or what else happens; None if it takes too long."""
        program = self.program
        return self._apart(partial(run_again, program, program.start(self.error)))

    def _retry(self, edits: Edits, level: int) -> Trial | None:
        """A run with edits; None if it takes too long."""
        return self._apart(partial(retry, self.program, self.facts, edits, level))

    @property
    def facts(self) -> Facts:
        """What the control run saw where it failed."""
        assert isinstance(self.control, Facts)
        return self.control

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.seconds - (time.monotonic() - self.begun)

    def _apart(self, work: Callable[[], Held]) -> Held:
        if self.shapes_only:
            work = partial(on_fakes, work)
        return run_apart(work, min(_EACH, max(0.1, self.left)))

    @property
    def same(self) -> bool:
        """Whether the control run failed as the cell did."""
        if isinstance(self.control, str):
            return False
        chain = [self.error, self.error.__cause__, self.error.__context__]
        if self.shapes_only:
            # Of fake tensors some operations say in other words what does not fit.
            return self.facts.kind in [type(each).__name__ for each in chain]
        return self.facts.message[:80] in " ".join(map(str, chain))

    def run(self) -> None:
        """Try the edits."""
        here = sorted(self.facts.here, key=total_cost)
        self._follow([edits for edits in here if edits[0].kind in CUTS])
        if not self._is_done():
            self._follow([edits for edits in here if edits[0].kind not in CUTS])
            # A slip shows whether one process fails as well, which is no proof of the slip.
            slip = next((answer for answer in self.answers if answer.is_slip), None)
            if slip is not None and self.one_process is None and self.left > 0:
                self._prove(slip)
        ran = any(answer.state in (PROVED, BIASED, RUNS) and not answer.is_slip for answer in self.answers)
        if self.facts.loop and not ran:
            only = self.facts.loop
            single = [edits[0] for edits in here if len(edits) == 1]
            self._follow([(replace(edit, only=only, cost=edit.cost + 1),) for edit in single])
        if not self._is_done():
            rejected = any(answer.state == DIFFERS for answer in self.answers)
            most = len(self.facts.elsewhere)
            if rejected:
                most = _AFTER_REJECTION
            self._follow([(edit,) for edit in self.facts.elsewhere[:most]])
        self.answers.sort(key=self._order)

    def _follow(self, sets: Iterable[Edits], level: int = 1) -> None:
        """Try sets of edits, and what they lead to; end with the first that is proved and means something."""
        for edits in sets:
            if self.left <= 0 or self._is_done():
                return
            self.tried += 1
            trial = self._retry(edits, level)
            if trial is None:
                continue
            if trial.runs:
                answer = Repair(edits, RUNS, stop=trial.stop)
                self.answers.append(answer)
                if edits[0].kind in CUTS and not trial.stop:
                    self._prove(answer)
            elif trial.further:
                count = len(self.answers)
                apart = [more for more in trial.more if not {*spans_of(edits)} & {*spans_of(more)}]
                self._follow([(*edits, *more) for more in apart[:3]], level + 1)
                if len(self.answers) == count:
                    self.answers.append(Repair(edits, FURTHER, trial.message))

    def _prove(self, answer: Repair) -> None:
        """Compare an answer with one process, at the degree of the code and at a second one."""
        degrees = (edit.degree for edit in answer.edits if edit.degree)
        degree = next(degrees, None) or next(iter(self.facts.degrees), None)
        if degree is None or self.proofs >= _MOST_PROOFS or self.shapes_only:
            return
        self.proofs += 1
        n = degree.n
        if n > MOST_RANKS:
            n = 4
        verdict = self._compare(answer.edits, degree, n)
        if verdict.state == PROVED and degree.axis != RATIO:
            # One local KV head hides which head it is, so a second degree must agree.
            second = 4
            if n > 2:
                second = 2
            other = self._compare(answer.edits, degree, second)
            if other.state == DIFFERS:
                verdict = Compared(DIFFERS, f"with {degree.text} = {second}, {other.why}")
        if verdict.state in (PLAIN, OPEN):
            answer.why = verdict.why
        if verdict.state == PLAIN:
            self.one_process = verdict.why
        elif verdict.state != OPEN:
            self.one_process = ""
            if not answer.is_slip:
                answer.state = verdict.state
                answer.why = verdict.why

    def _compare(self, edits: Edits, degree: Degree, n: int) -> Compared:
        """One process beside n ranks with the edits."""
        comparison = ProofRuns.of(self.program, degree, edits)
        if comparison is None:
            return Compared(OPEN, "no name of a degree to set to 1")
        # Edits under another axis hold in one process of this axis, too.
        rest = tuple(edit for edit in edits if edit.degree and edit.degree.axis != degree.axis)
        # An edit of just this expression stands later, so it takes the place of the watch.
        rest = (*self.facts.watch, *rest)
        edits = (*self.facts.watch, *edits)
        key = (rest, degree.axis, tuple(comparison.again))
        if key not in self.compared_with:
            self.compared_with[key] = next(self._outcomes(comparison, rest, 1, None))
        one = self.compared_with[key]
        if isinstance(one, str):
            kind, _, _message = one.partition(": ")
            same = kind == self.facts.kind
            return Compared(PLAIN if same else OPEN, f"one process fails as well: {one}")
        tape, whole = one
        ranks: list[list[torch.Tensor]] = []
        for rank, answer in enumerate(self._outcomes(comparison, edits, n, tape)):
            if isinstance(answer, str):
                return Compared(RUNS, f"rank {rank}: {answer}")
            drawn, made = answer
            if len(drawn) != len(tape):
                return Compared(RUNS, "a rank draws other random numbers than one process")
            ranks.append(made)
        verdict = compare_ranks(whole, ranks, n)
        # A sampler deals a batch in turn, a cell may go over its ranks, and a fake group adds up nothing.
        dealt = comparison.has_loop or degree.axis == "dp" or group_size() > 1
        if verdict.state == DIFFERS and dealt:
            return Compared(RUNS, "other numbers than one process, which may be dealt or added up otherwise")
        return verdict

    def _outcomes(
        self, comparison: ProofRuns, edits: Edits, n: int, tape: list[torch.Tensor] | None
    ) -> Iterator[Outcome | str]:
        """What each of n ranks makes with the edits."""
        for rank in range(n):
            work = partial(comparison.run, edits, n, rank, tape)
            yield self._apart(work) or "it ends without an answer, or takes too long"

    def _is_done(self) -> bool:
        """Whether an answer is good enough to try nothing that is further away."""
        meaningful = [answer for answer in self.answers if answer.cost < MEANINGFUL]
        if any(answer.state in (PROVED, BIASED) for answer in meaningful):
            return True
        no_cut = bool(self.one_process) or not self.facts.near
        # Nothing can be proved without a degree to change, so all slips are looked at first.
        slips = any(answer.state == RUNS and answer.is_slip for answer in meaningful)
        return slips and no_cut and len(self.answers) > 8

    def _order(self, answer: Repair) -> float:
        odd = 0.0
        if (self.one_process == "" and answer.is_slip) or (self.one_process and not answer.is_slip):
            odd = 3.0
        elif any(edit.degree and edit.degree.axis == RATIO for edit in answer.edits):
            odd = 2.0
        return answer.cost + _AFTER[answer.state] + odd
