"""What `lp.watch`'s panel watches, as a frozen value: program, model, layout, case and edited source.

A state runs its program once and keeps the tape; the page gets it as a film, whole, so that stepping and
playing ask nobody. What is edited runs again in this process, in a namespace of its own.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar

from llamapar.describe.layout import Layout
from llamapar.describe.models import ModelConfig
from llamapar.describe.models import model as find_model
from llamapar.describe.options import Values
from llamapar.errors import LlamaparError, flag, one_of, whole
from llamapar.figures.block import OF_TP, of_each_rank
from llamapar.records.tables import Plain, plural
from llamapar.records.trace import Tape

from .controls import Control, choice, control
from .film import film, view_of
from .page import nth
from .piece_words import rows_and_columns
from .runs import card
from .traits import as_traits

if TYPE_CHECKING:  # torch is there when something is watched, and not before
    from llamapar.execution.body import Task
    from llamapar.programs import Program
    from llamapar.programs.cases import Case

Made = TypeVar("Made")

WATCHED = ("attention", "mlp", "block", "embedding", "loss", "llama", "step", "meta_attention")
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

LAYOUT = ("tp", "cp", "pp", "dp", "sequence_parallel", "zero", "dp_replicate")
OPTIONS: Values = {"kv_replication": False, "cp_method": "all_gather", "chunking": "head-tail"}
OPTIONS |= {"micro_batches": None, "documents": None, "global_batch": None}
_RUN_WITH = ("program", "model", "data", *LAYOUT, *OPTIONS)
_FIRST: Values = {"model": None, "data": "teaching", "case": "", "phase": "forward", "source": "", "step": 0}


def _steps(name: str, titles: Plain) -> Control:
    """Values side by side, of which one is chosen."""
    return {"name": name, "label": "", "kind": "steps", "help": "", "options": list(titles.items())}


@dataclass(frozen=True)
class WatchState:
    """What is watched: a program, a model, the fields of a layout, and the case that it opens with.

    values: "source" is the text as edited, "" for the one that the program, or its case, begins with. clean:
    the values without a case, to go back to. tapes, films: by what was run; states of one panel share them.
    problem: why the source is no program, and then `before` is the state whose film stays.
    """

    programs: dict[str, Program]
    values: Values
    clean: Values
    tapes: dict[str, Tape] = field(default_factory=dict, compare=False, repr=False)
    films: dict[str, Plain] = field(default_factory=dict, compare=False, repr=False)
    problem: LlamaparError | None = None
    before: WatchState | None = None
    has_makers: ClassVar[bool] = True  # whether `lights` can say which numbers made a number

    @classmethod
    def blank(cls) -> Self:
        """With nothing chosen yet."""
        return cls({name: known_programs()[name] for name in WATCHED}, usual(), usual())

    @property
    def program(self) -> Program:
        return self.programs[str(self.values["program"])]

    @property
    def layout(self) -> Layout:
        return Layout(**{name: self.values[name] for name in LAYOUT})

    @property
    def case(self) -> Case | None:
        from llamapar.programs.cases import CASES

        return CASES.get(str(self.values["case"]))

    @cached_property
    def own(self) -> str:
        """The text that one begins with: the program's own, or a puzzle's."""
        from llamapar.execution.following import source_of
        from llamapar.execution.watching import followed

        text = self.case.text if self.case else ""
        return text or source_of(followed(self.program)).rstrip("\n")

    def task(self, fault: str, text: str) -> Task:
        """Raises LlamaparError for a layout, or a text, that cannot be run."""
        from llamapar.execution.watching import watch_task

        how: Plain = {"data": self.values["data"], "fault": fault or None, "source": text}
        options = {name: self.values[name] for name in OPTIONS if self.values[name] is not None}
        return watch_task(self.program, self.values["model"], self.layout, **how, options=options)

    def key(self, fault: str, source: str) -> str:
        """Everything that a run depends on, as text."""
        right = None if (fault, source) == self.right else self.right
        return repr([fault, source, right, *(self.values[name] for name in _RUN_WITH)])

    def run(self, fault: str, source: str) -> Tape:
        """The tape of the program as it is broken or edited. Raises LlamaparError."""
        key = self.key(fault, source)
        if key not in self.tapes:
            beside = None if (fault, source) == self.right else self.run(*self.right)
            _keep(self.tapes, key, _run_within(self.task(fault, source), beside, self.puzzle))
        return self.tapes[key]

    def shoot(self, fault: str, source: str) -> Plain:
        """The same as a film."""
        key = self.key(fault, source)
        if key not in self.films:
            cut = self.task(*self.right).setting
            if cut.schedule is None:  # a program that has no stages is one layer
                cut = replace(cut, model=cut.model.replace(n_layers=1))
            shown = film(self.run(fault, source))
            dims = {dim for tensor in shown["tensors"] for dim in tensor["dims"]}
            of_tp = next((dim for dim in OF_TP if f"{dim}/tp" in dims), "n_heads")
            _keep(self.films, key, shown | {"blocks": of_each_rank(cut, cut.global_batch, of_tp)})
        return self.films[key]

    @property
    def puzzle(self) -> bool:
        return self.case is not None and bool(self.case.answer)

    @property
    def right(self) -> tuple[str, str]:
        """The fault and the text of the correct program; for a puzzle, with its answer."""
        return (self.case.fault, self.case.solved) if self.case and self.puzzle else ("", "")

    @property
    def shown(self) -> WatchState:
        """The state whose film is shown."""
        return self if self.before is None else self.before

    @property
    def broken(self) -> tuple[str, str]:
        """The fault and the text that made the film."""
        case = self.shown.case
        text = str(self.shown.values["source"])
        return (case.fault, text or case.text) if case else ("", text)

    @property
    def tape(self) -> Tape:
        return self.shown.run(*self.broken)

    value = tape

    @property
    def film(self) -> Plain:
        return self.shown.shoot(*self.broken)

    @property
    def synced(self) -> Values:
        """The traits: what is watched, and the step that stands, by its number in the film."""
        return as_traits({**self.values, "source": self.values["source"] or self.own})

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
        words = [repr(name) if self.program in known_programs().values() else name]
        model = self.values["model"]
        if model is not None:
            words.append(f"{'lp.' * isinstance(model, ModelConfig)}{model!r}")
        unsaid = usual()
        shown = [each for each in (*LAYOUT, *OPTIONS, "data", "case") if self.values[each] != unsaid[each]]
        words += [f"{each}={self.values[each]!r}" for each in shown if each in LAYOUT] or ["tp=1"]
        words += [f"{each}={self.values[each]!r}" for each in shown if each not in LAYOUT]
        return f"lp.watch({', '.join(words)})"

    def change(self, changes: Values) -> Self:
        """With some values changed. Raises LlamaparError for what cannot be run; of a source it is kept."""
        for name in changes:
            one_of("argument", name, self.values)
        values = {**self.values, **changes}
        one_of("program", values["program"], self.programs)
        moved = values["program"] != self.values["program"]
        if moved:  # a case is of its program
            values["case"] = changes.get("case", "")
        if moved or values["case"] != self.values["case"]:
            values = self._opened(values, changes)
        _check(values)
        made = replace(self, values=values, problem=None, before=None)
        if made.values["source"].rstrip() == made.own:
            made = replace(made, values={**made.values, "source": ""})
        if not made.values["case"]:
            made = replace(made, clean=made.values)
        made.shoot(*made.right)  # what cannot be run as it should be is refused here
        try:
            steps = made.film["steps"]
        except LlamaparError as problem:
            if not made.values["source"]:
                raise
            return replace(made, problem=problem, before=self.shown)
        before: Plain = next(iter(self.film["steps"][self.values["step"] :]), {})  # of another program: none
        return replace(made, values={**made.values, **view_of(steps, before, changes, made.values["phase"])})

    def _opened(self, values: Values, changes: Values) -> Values:
        """The values with which a case, or a program, begins: of a case the layout, options and model in
        which it shows. Without a case what stood before it is back.
        """
        from llamapar.execution.run_pairs import MOST_RANKS
        from llamapar.programs.cases import BREAK, CASES

        back = ("program", "model", *LAYOUT, *OPTIONS)
        values = {**values, "source": "", **{name: self.clean[name] for name in back if name not in changes}}
        if values["case"]:
            case = CASES[one_of("case", values["case"], CASES)]
            unsaid = usual()
            needs = {name: value for name, value in case.needs.items() if name in OPTIONS}
            if case.group == BREAK:  # on the ranks that are there, where they are enough
                larger = {n: v for n, v in case.layout.items() if isinstance(v, bool) or values[n] < v}
                values |= larger | needs
                if Layout(**{name: values[name] for name in LAYOUT}).world > MOST_RANKS:
                    values |= {name: unsaid[name] for name in DEGREES_SHOWN if name not in case.layout}
            else:
                values |= {name: unsaid[name] for name in (*LAYOUT, *OPTIONS)} | case.layout | needs
                values |= {"program": case.program, "model": None}
            values["model"] = case.model or values["model"]
        if self.programs[str(values["program"])].stage is None:  # is part of a stage
            values |= {"pp": 1, "micro_batches": None}
        return values

    @property
    def schema(self) -> list[Control]:
        """The controls, with the cases: of faults those of this program."""
        from llamapar.programs.cases import BREAK, CASES

        own = self.program.name
        offered = {n: c for n, c in CASES.items() if c.group != BREAK or c.program == own}
        cases = [("", "nothing", ""), *((name, case.title, case.group) for name, case in offered.items())]
        degrees = [
            control(name, kind="steps", options=[(n, str(n)) for n in shown])
            for name, shown in DEGREES_SHOWN.items()
            if name != "pp" or self.program.stage is not None
        ]
        return [
            {**choice("program", {name: name for name in self.programs}), "label": ""},
            *degrees,
            control("sequence_parallel"),
            control("case", kind="choice", options=cases),
            *(_steps(name, titles) for name, titles in TITLES.items()),
        ]

    def traits(self, seq: int) -> Values:
        """The controls, the film, and the payload with number `seq`."""
        text = self.values["source"]
        values = {**self.values, "source": text or self.own, "sequence_parallel": self.layout.sp}
        del values["model"]
        line = self.problem and re.match(r"line (\d+) ", self.problem.what)
        problem = (told := card(self.problem)) and {**told, "line": int(line[1]) if line else 0}
        payload = {"seq": seq, "values": values, "edited": bool(text), "problem": problem}
        words = {"code": self.code, "status": self.status, "says": self.says, "verdict": self.verdict}
        made = payload | words | {"makers": self.has_makers}
        return {"schema": self.schema, "film": self.film, "payload": made}

    @property
    def says(self) -> str:
        """The description of the case; "" without one."""
        from llamapar.programs import FAULTS

        if self.case is None:
            return ""
        if self.puzzle or not self.case.fault or any(step["fault"] for step in self.film["steps"]):
            return self.case.says
        return f"This fault changes nothing here: it shows with {FAULTS[self.case.fault].where}."

    @property
    def verdict(self) -> Plain | None:
        """Of a puzzle: whether it is solved, and in words; else the first line that differs."""
        from llamapar.execution.steps import ends_alike

        if not self.puzzle or self.problem is not None:
            return None
        ranks = plural(self.tape.world, "rank")
        if ends_alike(self.tape, self.run(*self.right)):
            return {"right": True, "text": f"right: all {ranks} hold what one process computes"}
        steps = self.film["steps"]
        wrong = next((step for step in steps if step["fault"] == "begins" and not step["depth"]), None)
        if wrong is None:
            return {"right": False, "text": "not yet: the ranks end with other numbers than one process"}
        read = next((step for step in steps if set(step["made"]) & set(wrong["reads"])), wrong)
        line = wrong["line"] or read["line"]  # a gradient's is the line whose backward made it
        why = wrong["why"] or " and ".join(dict.fromkeys(wrong["error"].values()))
        return {
            "right": False,
            "line": line,
            "text": f"not yet: line {line} differs first: {why}".replace("`", ""),
        }

    @property
    def summary(self) -> str:
        """The lines, with what each does in words."""
        lines = [self.code, self.status, *([self.verdict["text"]] if self.verdict else [])]
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
        if rank not in step.values:
            raise LlamaparError(f"rank={rank} has no {step.name!r} here", "", field="rank")
        own = step.values[rank]
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
    """Cache a value, and drop the oldest."""
    found[key] = made
    for oldest in list(found)[:-MOST_TAPES]:
        del found[oldest]


def _run_within(task: Task, right: Tape | None, exact: bool) -> Tape:
    """The tape of a task, within SECONDS."""
    from llamapar.execution.watching import watched

    end = time.monotonic() + SECONDS

    def tick() -> None:
        if time.monotonic() > end:
            raise LlamaparError(f"stopped after {SECONDS:g} s", "a loop goes on for long", field="source")

    return watched(task, right, tick, exact)


def known_programs() -> dict[str, Program]:
    from llamapar.programs import PROGRAMS

    return PROGRAMS


def usual() -> Values:
    """What is not given."""
    return {name: getattr(Layout(), name) for name in LAYOUT} | OPTIONS | _FIRST


def _check(values: Values) -> None:
    if values["model"] is not None:
        find_model(values["model"])
    for name in DEGREES_SHOWN:
        whole(name, values[name])
    for name, titles in TITLES.items():
        one_of(name, values[name], titles)
    if values["sequence_parallel"] is not None:
        flag("sequence_parallel", values["sequence_parallel"])
    if not isinstance(values["source"], str):
        raise LlamaparError("source is not a text", field="source")
