"""What `lp.watch` shows: a program in a layout, what it is broken or edited with, and what came of that.

A state runs its program once and keeps the tape; the page gets it as a film, whole, so that stepping and
playing ask nobody. What is edited runs again in this process, in a namespace of its own.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self, TypeVar

from llamapar.describe.arguments import DEGREES
from llamapar.describe.layout import Layout, LayoutLike
from llamapar.describe.models import ModelConfig, ModelLike
from llamapar.describe.options import Values
from llamapar.errors import LlamaparError, flag, one_of, whole
from llamapar.figures.tape import rows_and_columns
from llamapar.frameworks.settings import Settings
from llamapar.records.tables import Plain, plural
from llamapar.records.trace import Tape

from .controls import Control, choice, control
from .film import film
from .page import nth
from .runs import card

if TYPE_CHECKING:  # torch is there when something is watched, and not before
    from llamapar.execution.body import Task
    from llamapar.programs import Program, ProgramLike

WATCHED = ("attention", "mlp", "block", "embedding", "loss", "llama", "step")
"""Programs that the panel offers."""

DEGREES_SHOWN = {"tp": (1, 2, 4, 8), "cp": (1, 2, 4), "pp": (1, 2, 4), "dp": (1, 2)}
TITLES = {
    "phase": {"forward": "forward", "backward": "backward"},
    "data": {"teaching": "teaching data", "random": "random"},
}
"""Values that stand side by side, by control, and their titles."""

SECONDS = 30.0
"""That a program may take, so that a loop without an end is broken off."""

MOST_TAPES = 8
"""That are kept of layouts and programs that were shown before."""

Made = TypeVar("Made")

_LAYOUT = ("tp", "cp", "pp", "dp", "sequence_parallel", "zero", "dp_replicate")
OPTIONS: Values = {"kv_replication": False, "cp_method": "all_gather", "chunking": "head-tail"}
OPTIONS |= {"micro_batches": None}
_FIRST: Values = {"data": "teaching", "fault": "", "phase": "forward", "source": ""}
_RUN_WITH = ("program", "data", *_LAYOUT, *OPTIONS)


def _steps(name: str, titles: Plain) -> Control:
    """Values side by side, of which one is chosen."""
    return {"name": name, "label": "", "kind": "steps", "help": "", "options": list(titles.items())}


@dataclass(frozen=True)
class WatchState:
    """What is watched: a program, the fields of a layout, and what it is broken with.

    values: "source" is the text as edited, "" for the program's own. clean: the values without a fault, to go
    back to. tapes, films: by what was run; states of one panel share them. problem: why the source
    is no program, and then `before` is the state whose film stays.
    """

    programs: dict[str, Program]
    model: ModelLike | None
    values: Values
    clean: Values
    tapes: dict[str, Tape] = field(default_factory=dict, compare=False, repr=False)
    films: dict[str, Plain] = field(default_factory=dict, compare=False, repr=False)
    problem: LlamaparError | None = None
    before: WatchState | None = None

    @property
    def program(self) -> Program:
        return self.programs[str(self.values["program"])]

    @property
    def layout(self) -> Layout:
        return Layout(**{name: self.values[name] for name in _LAYOUT})

    @cached_property
    def own(self) -> str:
        """The text of the program itself."""
        from llamapar.execution.following import source_of
        from llamapar.execution.watching import followed

        return source_of(followed(self.program)).rstrip("\n")

    def task(self, fault: str, text: str) -> Task:
        """Raises LlamaparError for a layout, or a text, that cannot be run."""
        from llamapar.execution.watching import watch_task

        how: Plain = {"data": self.values["data"], "fault": fault or None, "source": text}
        options = {name: self.values[name] for name in OPTIONS if self.values[name] is not None}
        return watch_task(self.program, self.model, self.layout, **how, options=options)

    def key(self, fault: str, source: str) -> str:
        """All that a run depends on, in words."""
        return repr([fault, source, *(self.values[name] for name in _RUN_WITH)])

    def run(self, fault: str, source: str) -> Tape:
        """The tape of the program as it is broken or edited. Raises LlamaparError."""
        key = self.key(fault, source)
        if key not in self.tapes:
            right = self.run("", "") if fault or source else None
            _keep(self.tapes, key, _run_within(self.task(fault, source), right))
        return self.tapes[key]

    def shoot(self, fault: str, source: str) -> Plain:
        """The same as a film."""
        key = self.key(fault, source)
        if key not in self.films:
            _keep(self.films, key, film(self.run(fault, source)))
        return self.films[key]

    @property
    def shown(self) -> WatchState:
        """The state whose film stands there."""
        return self if self.before is None else self.before

    @property
    def broken(self) -> tuple[str, str]:
        """The fault and the edited text with which the film was made."""
        values = self.shown.values
        return str(values["fault"]), str(values["source"])

    @property
    def tape(self) -> Tape:
        return self.shown.run(*self.broken)

    @property
    def film(self) -> Plain:
        return self.shown.shoot(*self.broken)

    @property
    def status(self) -> str:
        own = [step["phase"] for step in self.film["steps"] if not step["depth"]]
        forward = own.count("forward")
        degrees = " ".join(f"{n}={self.values[n]}" for n in DEGREES_SHOWN if self.values[n] != 1)
        steps = f"{plural(forward, 'step')} forward, {len(own) - forward} backward"
        return f"{self.program.name}, {degrees or 'not cut'}: {steps}, {plural(self.film['world'], 'rank')}"

    @property
    def code(self) -> str:
        """The call that shows this. An edited source is not in it."""
        name = self.program.name
        words = [repr(name) if self.program in _known().values() else name]
        if self.model is not None:
            words.append(f"{'lp.' * isinstance(self.model, ModelConfig)}{self.model!r}")
        usual = _usual()
        shown = [each for each in (*_LAYOUT, *OPTIONS, "data", "fault") if self.values[each] != usual[each]]
        words += [f"{each}={self.values[each]!r}" for each in shown if each in _LAYOUT] or ["tp=1"]
        words += [f"{each}={self.values[each]!r}" for each in shown if each not in _LAYOUT]
        return f"lp.watch({', '.join(words)})"

    def change(self, changes: Values) -> Self:
        """With some values changed. Raises LlamaparError for what cannot be run; of a source it is kept."""
        for name in changes:
            one_of("argument", name, self.values)
        values = {**self.values, **changes}
        one_of("program", values["program"], self.programs)
        if values["program"] != self.values["program"]:
            values |= {"fault": changes.get("fault", "")}
            if self.programs[str(values["program"])].stage is None:  # is part of a stage
                values |= {"pp": 1, "micro_batches": None}
        made = replace(self, values=values, problem=None, before=None)
        if values["fault"] != self.values["fault"] or values["program"] != self.values["program"]:
            made = made._broken(str(values["fault"]), changes)
        _check(made.values)
        if made.values["source"].rstrip() == made.own:
            made = replace(made, values={**made.values, "source": ""})
        if not made.values["fault"]:
            made = replace(made, clean=made.values)
        made.shoot("", "")  # what cannot be run as it should be is refused here
        try:
            steps = made.film["steps"]
        except LlamaparError as problem:
            if not made.values["source"]:
                raise
            return replace(made, problem=problem, before=self.shown)
        begins = [step["phase"] for step in steps if step["fault"] == "begins"]
        if begins and changes.keys() & {"fault", "source"}:
            phase = "forward" if begins[0] == "forward" else "backward"
            made = replace(made, values={**made.values, "phase": phase})
        return made

    def _broken(self, fault: str, changes: Values) -> Self:
        """With a fault, and the layout and options in which it shows where these are too small for it.

        Without one, or with another, what stood before a fault is back.
        """
        from llamapar.execution.watching import MOST_RANKS
        from llamapar.programs import FAULTS

        before = {name: self.clean[name] for name in (*_LAYOUT, *OPTIONS) if name not in changes}
        values = {**self.values, "source": "", **before}
        if not fault:
            return replace(self, values=values)
        one_of("fault", fault, FAULTS)
        needs = FAULTS[fault].layout
        usual = _usual()
        larger = {
            name: value for name, value in needs.items() if isinstance(value, bool) or values[name] < value
        }
        values |= larger | {name: value for name, value in FAULTS[fault].needs.items() if name in OPTIONS}
        if Layout(**{name: values[name] for name in _LAYOUT}).world > MOST_RANKS:
            values |= {name: usual[name] for name in DEGREES_SHOWN if name not in needs}
        return replace(self, values=values)

    def load(self, model: ModelConfig) -> Self:
        """With another model, whose KV heads are kept."""
        return replace(self, model=model, tapes={}, films={}, problem=None, before=None).change({})

    def bring(self, settings: Settings) -> Self:
        """With the model of a run's own settings."""
        return self.load(settings.model_config())

    @property
    def schema(self) -> list[Control]:
        """The controls, with the faults of this program."""
        from llamapar.programs import FAULTS

        own = [name for name, fault in FAULTS.items() if fault.program == self.program.name]
        faults = {"": "nothing", **{name: name.replace("_", " ") for name in own}}
        degrees = [
            control(name, kind="steps", options=[(n, str(n)) for n in shown])
            for name, shown in DEGREES_SHOWN.items()
            if name != "pp" or self.program.stage is not None
        ]
        return [
            {**choice("program", {name: name for name in self.programs}), "label": ""},
            *degrees,
            control("sequence_parallel"),
            choice("fault", faults) | {"label": "break it"},
            *(_steps(name, titles) for name, titles in TITLES.items()),
        ]

    def traits(self, seq: int) -> Values:
        """The controls, the film, and the payload with number `seq`."""
        from llamapar.programs import FAULTS

        fault, text = str(self.values["fault"]), self.values["source"]
        says = f"What still looks fine with this fault: {FAULTS[fault].looks_fine}." if fault else ""
        if fault and not any(step["fault"] for step in self.film["steps"]):
            says = f"This fault changes nothing here: it shows with {FAULTS[fault].where}."
        values = {**self.values, "source": text or self.own, "sequence_parallel": self.layout.sp}
        problem: Plain | None = None
        if self.problem is not None:
            line = re.match(r"line (\d+) ", self.problem.what)
            problem = {**card(self.problem), "line": int(line[1]) if line else 0}
        payload = {"seq": seq, "values": values, "edited": bool(text), "problem": problem}
        return {
            "schema": self.schema,
            "film": self.film,
            "payload": payload | {"code": self.code, "status": self.status, "says": says},
        }

    @property
    def summary(self) -> str:
        """The lines with what each does, in words."""
        lines = [self.code, self.status]
        for step in self.film["steps"]:
            if not step["depth"]:
                place = f"line {step['line']}" if step["line"] else step["phase"]
                lines.append(f"{place}: {step['code']}\n    {step['caption'].replace('`', '')}")
        return "\n".join(lines)

    def lights(self, tensor: int, rank: int, row: int, column: int) -> tuple[float, list[Plain]]:
        """A number, and the cells of the tensors that its line read that made it."""
        from llamapar.execution.watching import lights

        steps = [n for n, step in enumerate(self.tape.steps) if step.values]
        number = nth("tensor", tensor, steps)
        step = self.tape.steps[number]
        own = step.values[nth("rank", rank, sorted(step.values))]
        rows, columns = rows_and_columns(own.shape)
        nth("row", row, range(rows))
        at = row * columns + nth("column", column, range(columns))
        value = float(own.reshape(-1)[at])
        made = step.phase == "forward" and step.code != "argument"
        found = lights(self.shown.task(*self.broken), number, rank, at) if made else {}
        cells = [
            {"tensor": steps.index(n), "rank": there, "cells": [list(divmod(i, width)) for i in indexes]}
            for n, by_rank in found.items()
            for there, indexes in by_rank.items()
            if (width := rows_and_columns(self.tape.steps[n].values[there].shape)[1])
        ]
        return value, cells


def _keep(found: dict[str, Made], key: str, made: Made) -> None:
    """Keep what was made, and forget the oldest."""
    found[key] = made
    for oldest in list(found)[:-MOST_TAPES]:
        del found[oldest]


def _run_within(task: Task, right: Tape | None) -> Tape:
    """The tape of a task, within SECONDS."""
    from llamapar.execution.watching import watched

    end = time.monotonic() + SECONDS

    def tick() -> None:
        if time.monotonic() > end:
            raise LlamaparError(f"stopped after {SECONDS:g} s", "a loop goes on for long", field="source")

    return watched(task, right, tick)


def _known() -> dict[str, Program]:
    from llamapar.programs import PROGRAMS

    return PROGRAMS


def _usual() -> Values:
    """What is not said."""
    return {name: getattr(Layout(), name) for name in _LAYOUT} | OPTIONS | _FIRST


def _check(values: Values) -> None:
    for name in DEGREES_SHOWN:
        whole(name, values[name])
    for name, titles in TITLES.items():
        one_of(name, values[name], titles)
    if values["sequence_parallel"] is not None:
        flag("sequence_parallel", values["sequence_parallel"])
    if not isinstance(values["source"], str):
        raise LlamaparError("source is not a text", field="source")


def begun(
    program: ProgramLike, model: ModelLike | None, layout: LayoutLike | None, **options: object
) -> WatchState:
    """What `watch` begins with, before anything has run and without the fault. Arguments as there."""
    from llamapar.programs import program as find_program

    chosen = find_program(program)
    degrees = {name: value for name, value in options.items() if name in DEGREE_NAMES}
    laid = Layout.of(layout, **(degrees if layout is not None or degrees else _OPENS))
    values = _usual() | {name: getattr(laid, name) for name in _LAYOUT}
    known = {name: _known()[name] for name in WATCHED}
    programs = known if chosen in known.values() else {chosen.name: chosen, **known}
    values |= {name: options[name] for name in (*OPTIONS, "data") if name in options}
    values |= {"program": chosen.name}
    return WatchState(programs, model, values, values)


_OPENS = {"tp": 2, "cp": 2}
"""Where nothing is said of a layout."""

DEGREE_NAMES = {parameter.name for parameter in DEGREES}
