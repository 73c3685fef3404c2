"""The shape tape: a program run on the meta device for one rank after another, each assignment noted.

How a tensor is cut is found by running: once uncut (its global shape), once with each axis alone (the
dims that this axis cuts), once as laid out, on every rank. Nothing is allocated, so 405B runs at its
true size; what torch raises is torch's own error.
"""

from __future__ import annotations

import inspect
import linecache
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType, FrameType
from typing import Any

from torch import Tensor

from llamapar.describe.layout import Layout
from llamapar.diagnosis import Explanation, explain
from llamapar.programs import PROGRAMS, vocab
from llamapar.records.trace import Tape, TapeStep
from llamapar.spmd import compat

from .body import Task, called, cut_at, makers
from .engines import local

SHOWN_RANKS = 64
"""Most ranks on a tape; of more, those at the ends of each axis."""

Key = tuple[str, str, int]
"""(function:line, name, how many times it was made before)."""


@dataclass
class _Note:
    """What one rank's run left: key → shape, the line's text, and the error with where it was raised."""

    shapes: dict[Key, tuple[int, ...]] = field(default_factory=dict)
    code: dict[Key, str] = field(default_factory=dict)
    error: BaseException | None = None
    error_at: tuple[str, str] = ("", "")

    def after(self, key: Key) -> tuple[int, ...] | None:
        """The shape at `key`; where the line left the tensor as it was, the name's last before it."""
        if key in self.shapes:
            return self.shapes[key]
        function, _, line = key[0].partition(":")
        found = None
        for (where, name, _), shape in self.shapes.items():
            same, _, number = where.partition(":")
            if (same, name) == (function, key[1]) and int(number) < int(line):
                found = shape
        return found


def _traced(function: Callable[..., Any]) -> Callable[[CodeType, FrameType], bool]:
    """Which frames are the program: of ours the programs themselves, of a person's own all of its module."""
    ours = {p.function.__code__ for p in PROGRAMS.values()} | {vocab.cross_entropy.__code__}
    if function.__code__ in ours:
        return lambda code, frame: code in ours
    names = function.__globals__
    return lambda code, frame: code in ours or frame.f_globals is names


class _Tracer:
    """A trace function: after each line, the tensors that it gave a name to."""

    def __init__(self, function: Callable[..., Any], note: _Note) -> None:
        self.note, self.wanted = note, _traced(function)
        self.seen: dict[tuple[str, str], int] = {}

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event != "call" or not self.wanted(frame.f_code, frame):
            return None
        if frame.f_code.co_flags & inspect.CO_GENERATOR or frame.f_code.co_name.startswith("<"):
            return None
        known: dict[str, int] = {}
        self.now: tuple[str, str] = ("", "")
        last = [frame.f_lineno]

        def inside(frame: FrameType, event: str, arg: Any) -> Any:
            where, code = _line(frame, last[0])
            for name, value in list(frame.f_locals.items()):
                if isinstance(value, Tensor) and known.get(name) != id(value):
                    known[name] = id(value)
                    if frame.f_code.co_firstlineno != last[0]:
                        self._add(where, code, name, value)
            if event == "exception" and self.note.error is not arg[1]:
                self.note.error, self.note.error_at = arg[1], _line(frame, frame.f_lineno)
            if event == "return" and isinstance(arg, Tensor) and code.startswith("return"):
                self._add(*_line(frame, frame.f_lineno), "return", arg)
            last[0] = frame.f_lineno
            return inside

        for name, value in frame.f_locals.items():
            if isinstance(value, Tensor):
                known[name] = id(value)
                self._add(f"{frame.f_code.co_name}:0", "argument", name, value)
        return inside

    def _add(self, where: str, code: str, name: str, value: Tensor) -> None:
        count = self.seen.get((where, name), 0)
        self.seen[where, name] = count + 1
        self.note.shapes[where, name, count] = tuple(value.shape)
        self.note.code[where, name, count] = code


def _line(frame: FrameType, number: int) -> tuple[str, str]:
    code = frame.f_code
    text = linecache.getline(code.co_filename, number, frame.f_globals).strip()
    return f"{code.co_name}:{number - code.co_firstlineno}", text.partition("  #")[0].strip()


def _dry(task: Task, rank: int) -> _Note:
    """The program forward on the meta device as `rank`."""
    note = _Note()
    setting = task.setting
    with compat.fake_world(setting.layout.world, rank):
        mesh = compat.make_mesh(setting.layout, "cpu")
        cut = cut_at(setting, compat.coord_of(mesh, rank))
        own = {name: cut(name, make) for name, make in makers(task, "meta").items()}
        before = sys.gettrace()
        sys.settrace(_Tracer(task.program.function, note))
        try:
            called(task.program.function, (mesh, setting), own)
            note.error = None  # one that the program handled itself
        except Exception as error:
            note.error = error
        finally:
            sys.settrace(before)
    return note


def _alone(layout: Layout, axis: str) -> Layout:
    """The layout with one axis of more than one rank."""
    return Layout(**{axis: getattr(layout, axis)}, sequence_parallel=layout.sequence_parallel)


def explained(task: Task, what: BaseException | str) -> Explanation:
    """`lp.explain` of an error of the task, with all that the task says of model and layout."""
    setting = task.setting
    given: dict[str, Any] = {"seq_len": setting.seq_len, "global_batch": setting.global_batch}
    if setting.kv_replication:
        given["n_kv_heads"] = max(setting.model.n_kv_heads, setting.layout.tp)
    return explain(what, setting.model, setting.layout, **given)


def tape(task: Task, why: str = "") -> Tape:
    """What each rank holds after each assignment of the program, up to the line that raises.

    why: the reason put beside an error. Ends ranks that `lp.step_through` left open, as another local run
    does.
    Raises LlamaparError where the process has a process group of its own.
    """
    setting = task.setting
    layout = setting.layout

    def under(other: Layout) -> _Note:
        return _dry(replace(task, setting=replace(setting, layout=other)), 0)

    ranks = _ranks(layout)
    with local.one_run:
        local.end()
        uncut = under(Layout())
        alone = {a: under(_alone(layout, a)) for a in ("tp", "cp", "dp") if layout.size(a) > 1}
        notes = {r: _dry(task, r) for r in ranks}
    steps = []
    for key in dict.fromkeys(k for note in notes.values() for k in note.shapes):
        by_rank = {r: note.shapes[key] for r, note in notes.items() if key in note.shapes}
        whole = uncut.after(key)
        steps.append(TapeStep(key[0], _text(notes, key), key[1], whole, by_rank, _cuts(whole, key, alone)))
    failed: dict[tuple[str, str], dict[int, str]] = {}
    causes: dict[tuple[str, str], str] = {}
    for r, note in notes.items():
        if note.error is not None:
            failed.setdefault(note.error_at, {})[r] = f"{type(note.error).__name__}: {note.error}"
            if note.error_at not in causes:
                causes[note.error_at] = explained(task, note.error).short
    for (where, code), errors in failed.items():
        name = code.partition(" = ")[0] if " = " in code else ""
        key = (where, name, 0)
        whole = uncut.after(key)
        cut, cause = _cuts(whole, key, alone), causes[where, code]
        steps.append(TapeStep(where, code, name, whole, {}, cut, errors, why, cause))
    return Tape(task.program.name, str(layout), tuple(steps), len(ranks), layout.world)


def _text(notes: dict[int, _Note], key: Key) -> str:
    return next(note.code[key] for note in notes.values() if key in note.code)


def _cuts(whole: tuple[int, ...] | None, key: Key, alone: dict[str, _Note]) -> dict[int, tuple[str, ...]]:
    """dim → the axes that cut it when each acts alone."""
    found: dict[int, tuple[str, ...]] = {}
    for axis, note in alone.items():
        own = note.after(key)
        if whole is not None and own is not None and len(own) == len(whole):
            for dim, (n, whole_n) in enumerate(zip(own, whole, strict=True)):
                if n < whole_n:
                    found[dim] = (*found.get(dim, ()), axis)
    return found


def _ranks(layout: Layout) -> Sequence[int]:
    """All ranks, or of many those at the ends of each axis."""
    if layout.world <= SHOWN_RANKS:
        return range(layout.world)
    ends = [sorted({0, 1, n - 1}) if n > 1 else [0] for n in (layout.tp, layout.cp, layout.dp)]
    return sorted({layout.rank_of(tp=t, cp=c, dp=d) for t in ends[0] for c in ends[1] for d in ends[2]})
