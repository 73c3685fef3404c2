"""The clinic: paste an error, read its meaning, press a fix.

It also takes an exception, of which it shows the live facts, and while it is empty it offers examples. Beside
the text stand the known facts about model and layout: stated by the text, implied by its numbers, or
typed by the reader, who wins. `Visit` holds all of it without a widget. A text is data, is never evaluated,
and stays whatever goes wrong.
"""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Unpack, cast

import traitlets

from llamapar.describe.arguments import named_options
from llamapar.describe.keywords import ClinicKeywords
from llamapar.describe.models import PRESETS, ModelConfig
from llamapar.describe.models import model as find_model
from llamapar.describe.option_rows import OTHER_DEFAULTS
from llamapar.describe.options import OPTIONS, Values
from llamapar.describe.typed_numbers import parse_number
from llamapar.diagnosis import UNKNOWN, Explanation, explain
from llamapar.diagnosis.known import ARGUMENTS, model_named
from llamapar.errors import LayoutError, LlamaparError, ModelError, one_of, shown, whole
from llamapar.figures import NO_FIGURE, View, view
from llamapar.figures.diagnosis import failing_ranks
from llamapar.frameworks import FRAMEWORKS
from llamapar.frameworks import framework as find_framework
from llamapar.frameworks.settings import Settings
from llamapar.rules.fix import Fix

from .bringing import named_in
from .controls import CLINIC, DIMS, names_of
from .explorer_panel import Explorer
from .page import Page, for_browser, nth, source, style
from .runs import card, figure_of

LIMIT = 60_000
"""Most characters of a text that the box shows; any are read."""

FIELDS = tuple(name for name in names_of(CLINIC) if name != "config")
OTHER_DEFAULTS["clinic"] = dict.fromkeys(FIELDS)
TYPED = "yours"
STATED = "in the text"
IMPLIED = "implied"
MODEL = "the model's"
BROUGHT, LIVE = "your files", "in the frame"
"""Where a field's value is from."""

_TABS = {"layers": "stages", "seq": "sequence", "world": "ranks", "vocab": "vocab", "embed": "vocab"}
"""The beginning of a category → the Explorer's tab that shows it; the others are about heads."""

_SHOWN = ("where", "proof", "else", "next", "sure")
"""Parts that the page shows as they are."""

NOTHING = Explanation(UNKNOWN, "nothing pasted yet", ())

EXAMPLES = json.loads(source("examples.json"))
"""Real messages for an empty clinic: title, source as a link, and the fields that a press fills in.

The facts beside each text are those of its source.
"""

_RANK = re.compile(r"^\[rank(\d{1,7})\]:", re.MULTILINE)
"""torch's own prefix of a line of a rank."""


@dataclass(frozen=True)
class Visit:
    """A text and the fields that the reader typed; own: the reader's own model.

    error: the exception of which the text is the traceback; it keeps the tensors of its frames alive.
    """

    text: str = ""
    error: BaseException | None = None
    typed: Values = field(default_factory=dict)
    own: ModelConfig | None = None
    settings: Settings | None = None

    def change(self, changes: Values) -> Visit:
        """With changed text or fields; None or "" clears a field. Raises LlamaparError for what is no value.

        "settings" are a run's own files, whose facts give way to typed fields.
        """
        if "settings" in changes:
            return replace(self, settings=cast("Settings", changes["settings"]))
        typed = dict(self.typed)
        own = self.own
        text = changes.get("text", self.text)
        error = self.error if "text" not in changes else None
        if isinstance(text, BaseException):
            error = text
            text = "".join(traceback.format_exception(text, limit=-12))
        if not isinstance(text, str):
            raise LayoutError(f"text={shown(text)}: a text is needed", "", ["lp.explain"], "text")
        for name, value in changes.items():
            if one_of("field", name, ("text", *FIELDS)) == "text":
                continue
            typed.pop(name, None)
            if name == "model":
                own = None if value is None or isinstance(value, str) else find_model(value)
            if value not in (None, "") and not (name == "model" and own):
                typed[name] = _checked(name, value)
        text = text.encode("utf-8", "replace").decode()
        return replace(self, text=text, error=error, typed=typed, own=own)

    @cached_property
    def brought(self) -> Values:
        """Fields whose values come from the files."""
        if self.settings is None:
            return {}
        known: Values = {}
        read = self.settings.known() | {"framework": self.settings.framework or None}
        for name, value in read.items():
            if name in FIELDS and value is not None:
                with suppress(LlamaparError):  # what the files say of themselves tells of it
                    known[name] = _checked(name, value)
        return known

    @cached_property
    def _read_model(self) -> ModelConfig | None:
        """The model in the files, if they describe it completely."""
        if self.settings:
            with suppress(LlamaparError):
                return self.settings.model_config()
        return None

    @cached_property
    def stated(self) -> dict[str, str]:
        """Model and framework, if the text names exactly one."""
        return named_in(self.text)

    @cached_property
    def _known(self) -> Values:
        """Arguments for `explain`."""
        model = self.own or (None if "model" in self.typed else self._read_model)
        return {**self.stated, **self.brought, **self.typed} | ({"model": model} if model else {})

    @cached_property
    def _explained(self) -> tuple[Explanation, LlamaparError | None]:
        try:
            if not self.text.strip():
                return NOTHING, None
            return explain(self.error or self.text, **self._known), None
        except LlamaparError as refused:
            return Explanation(UNKNOWN, refused.what, ()), refused
        except Exception as fault:  # An error of our own must not lose the reader's text.
            what = f"the text could not be explained: {type(fault).__name__}: {fault}"
            return Explanation(UNKNOWN, what, ()), LlamaparError(what)

    @property
    def explanation(self) -> Explanation:
        """The explanation of the text."""
        return self._explained[0]

    @property
    def problem(self) -> LlamaparError | None:
        """The problem with the text and the fields together."""
        return self._explained[1]

    @cached_property
    def fields(self) -> dict[str, tuple[object, str]]:
        """Each known field as (value, its source)."""
        known = self.explanation.known
        best = self.explanation.best
        read = self._read_model
        named = known.model if "model" in self.typed else None
        layers: tuple[tuple[Mapping[str, object], str], ...] = (
            (getattr(best, "facts", {}), IMPLIED),
            (_sizes(known.model, *DIMS), MODEL),
            (known.numbers, LIVE if self.error else STATED),
            (_sizes(known.model, "name") if self.error else {}, LIVE),
            (self.stated, STATED),
            (self.brought | _sizes(read, "name"), BROUGHT),
            (self.typed | _sizes(self.own or named, "name"), TYPED),
        )
        rows = {ARGUMENTS.get(n, n): (value, origin) for row, origin in layers for n, value in row.items()}
        return {name: rows[name] for name in FIELDS if name in rows}

    @property
    def synced(self) -> Values:
        """The traits: the text as the box shows it, and the fields with what is known of each."""
        known = {name: value for name, (value, _) in self.fields.items()}
        return {"text": _cut(self.text)} | dict.fromkeys(FIELDS) | {"framework": ""} | known

    @property
    def value(self) -> Explanation | None:
        """The explanation; None without a text."""
        if self.explanation is NOTHING:
            return None
        return self.explanation

    @cached_property
    def drawn(self) -> tuple[View | None, LlamaparError | None]:
        """The picture, or the reason why there is none."""
        try:
            return view(self.explanation), None
        except LlamaparError as none:
            return None, none
        except Exception as fault:  # of ours, too
            return None, LlamaparError(f"the picture failed: {type(fault).__name__}: {fault}")

    @property
    def ranks(self) -> str:
        """For a log of several ranks, those with the error, and what they share."""
        heard = {*self.explanation.ranks, *map(int, _RANK.findall(self.text))}
        if len(heard) < 2 or not self.explanation.ranks:
            return ""
        return failing_ranks(self.explanation, heard)

    @property
    def status(self) -> str:
        """One line: the verdict."""
        if self.value is None:
            return NOTHING.reason
        return self.value.summary

    def __str__(self) -> str:
        known = ", ".join(
            f"{name}={for_browser(value)} ({origin})" for name, (value, origin) in self.fields.items()
        )
        said = [self.problem, self.value or self.status, *self.drawn]
        if known:
            said.insert(0, f"known: {known}")
        return "\n".join([str(each) for each in [*said, self.ranks] if each])

    def traits(self, seq: int) -> Values:
        """Everything for the page, as plain values. seq numbers it; buttons refer to this number."""
        drawn, none = self.drawn
        values = {name: value for name, value in self.synced.items() if name != "text"}
        payload = {
            "seq": seq,
            "values": values,
            "origins": {name: origin for name, (_, origin) in self.fields.items()},
            "status": self.status,
            "verdict": self.explanation.verdict,
            "problem": card(self.problem, FIELDS),
            "parts": None,
            **figure_of(drawn),
            "reason": "",
            "examples": EXAMPLES,
            "ranks": self.ranks,
        }
        if none:
            payload["reason"] = none.what
        if self.value:
            payload |= {"parts": _parts(self.value), "examples": []}
        return {"payload": payload}


class Clinic(Page[Visit]):
    """The clinic panel. `set` fills text and fields from code; `snapshot` is a static View of what it shows.

    explorer: the Explorer that a fix opened; None before.
    """

    _esm = source("page.js", "map.js", "drop.js", "clinic.js")
    _css = style("clinic.css")
    schema = traitlets.List(CLINIC).tag(sync=True)
    limit = traitlets.Int(LIMIT).tag(sync=True)
    opened = traitlets.Unicode().tag(sync=True)
    explorer: Explorer | None = None
    given_by = "an explanation is of the text and the fields: set those"

    @named_options("clinic")
    def __init__(self, *, text: str | BaseException = "", **values: Unpack[ClinicKeywords]) -> None:
        super().__init__(Visit().change({"text": text, **values}))

    @named_options("clinic")
    def set(  # type: ignore[override]
        self, *, text: str | BaseException | None = None, **values: Unpack[ClinicKeywords]
    ) -> None:
        """Fill in text, model, framework, tp, cp, pp, dp, gpus, seq_len and the other fields; None clears
        one.

        text: a text, or an exception, which is kept with its frames until another text comes.
        Raises LayoutError for an unknown field.
        """
        if text is not None:
            values["text"] = text  # type: ignore[typeddict-unknown-key]
        self.move(Values(values))

    @property
    def explanation(self) -> Explanation:
        """The result of `lp.explain` for the text and the fields."""
        return self._state.explanation

    def open_fix(self, fix: int = 0) -> Explorer:
        """Press a fix's button: opens an Explorer on the repaired layout, the same one each time."""
        category, offered = _mended(self.explanation)
        judge = self.explanation.known.framework
        why = "" if offered else "a layout is mended where model and degrees are known"
        job = nth("fix", fix, offered, why).job
        tab = next((t for start, t in _TABS.items() if category.startswith(start)), "heads")
        opened = {"value": job, "framework": getattr(judge, "name", ""), "tab": tab}
        return self._open(lambda explorer: explorer.move(opened))

    def open_files(self) -> Explorer:
        """An Explorer on the job in the files. Raises LlamaparError without files."""
        if (settings := self._state.settings) is None:
            raise LlamaparError("no files were read", "", ["drop settings into the box"], "config")
        return self._open(lambda explorer: explorer.bring(settings))

    def _open(self, fill: Callable[[Explorer], None]) -> Explorer:
        self.explorer = self.explorer or Explorer()
        fill(self.explorer)
        self.opened = self.explorer.model_id
        self.send({"kind": "opened"})
        return self.explorer

    def snapshot(self) -> View:
        """The panel as it is now: its picture, and the fields, diagnoses and the picture's summary as
        text.
        """
        return View(figure_of(self._state.drawn[0])["figure"] or NO_FIGURE, str(self._state))

    def _press(self, kind: str, content: Values, current: bool) -> None:
        if kind == "fix" and current:
            self.open_fix(int(content["fix"]))
        elif kind == "open":
            self.open_files()


@named_options("clinic")
def clinic(text: str | BaseException = "", **values: Unpack[ClinicKeywords]) -> Clinic:
    """A Clinic with text and fields filled in: model, framework, tp and the others of `Clinic.set`.

    text: a text, or an exception, of which the live facts are shown; a cell's last one is `sys.last_value`.
    """
    return Clinic(text=text, **values)


def _checked(name: str, value: object) -> object:
    """The value of a field, a number as a number. Raises LlamaparError for what is none."""
    if name == "framework":
        find_framework(str(value))
    elif name == "model":
        if not (isinstance(value, str) and model_named(value)):
            one_of("model", value, PRESETS, ModelError)
    else:
        if isinstance(value, str):
            value = parse_number(name, value).value
        value = whole(name, value, 1, OPTIONS[name].most)
    return value


def _sizes(model: ModelConfig | None, *names: str) -> Values:
    """Sizes of a model by field, or its name; {} without a model."""
    return {"model" if name == "name" else name: getattr(model, name) for name in names if model}


def _cut(text: str) -> str:
    """The part of a text that the page shows; of a long text, a third from its head and two thirds from its
    tail.
    """
    if len(text) <= LIMIT:
        return text
    left_out = f"\n… {len(text) - LIMIT:,} characters are read and not shown …\n"
    return text[: LIMIT // 3 - 99] + left_out + text[LIMIT // 3 - LIMIT :]


def _mended(explained: Explanation) -> tuple[str, list[Fix]]:
    """The category of the likeliest cause, and the layouts that mend it."""
    if explained.best is None:
        return "", []
    return explained.best.category, [fix for fix in explained.best.fixes if isinstance(fix, Fix)]


def _field_of(need: str) -> str | None:
    """The field in which the reader can give a missing fact; None if there is none."""
    field = ARGUMENTS.get(need, need)
    if field in FIELDS:
        return field
    return None


def _parts(explained: Explanation) -> Values:
    """The parts of an explanation, with buttons for fixes, boxes for facts that are missing, and links."""
    plain = explained.as_dict()
    category, fixes = _mended(explained)
    says = [[FRAMEWORKS[one.framework].title, one.message, one.source.links] for one in explained.speakers]
    return {name: plain[name] for name in _SHOWN} | {
        "operands": [list(row) for row in explained.parts["operands"]],
        "category": category,
        "edit": [line for line in plain["edit"] if line not in map(str, fixes)],
        "fixes": [[fix.text, fix.effect.text] for fix in fixes],
        # Each with the field in which the reader can give it, where there is one.
        "asks": [[need, _field_of(need)] for need in explained.needs],
        "says": says,
        "source": list(explained.source),
    }
