"""The clinic: paste an error, or drop the flight records of a hang, read its meaning, press a fix.

Beside the text stand the known facts about model and layout: stated by the text, implied by its numbers, or
typed by the reader, who wins. `Visit` holds all of it without a widget. A text is data, is never evaluated,
and stays whatever goes wrong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Unpack

import traitlets

from llamapar.describe.arguments import checked_options
from llamapar.describe.keywords import ClinicFields, ClinicKeywords
from llamapar.describe.layout import AXES
from llamapar.describe.models import PRESETS, ModelConfig, public_models
from llamapar.describe.models import model as find_model
from llamapar.describe.options import OPTIONS, OTHER_DEFAULTS, Values
from llamapar.describe.typed_numbers import parse_number
from llamapar.describe.typed_numbers import typed as read_typed
from llamapar.diagnosis import UNKNOWN, Diagnosis, Explanation, explain
from llamapar.diagnosis.explanation import Dumps
from llamapar.diagnosis.known import ARGUMENTS, model_named
from llamapar.errors import LayoutError, LlamaparError, ModelError, one_of, shown, whole
from llamapar.figures import View, view
from llamapar.frameworks import FRAMEWORKS
from llamapar.frameworks import framework as find_framework
from llamapar.frameworks.settings import Settings
from llamapar.late import late
from llamapar.rules.fix_search import Fix

from .bringing import flight_records
from .controls import CLINIC, DIMS, MORE
from .explorer_panel import Explorer
from .page import Page, for_browser, nth, source
from .runs import card

LIMIT = 60_000
"""Most characters of a text that the box shows; any are read."""

_SEARCHED = 200_000
"""Characters of either end of a text that are searched for names."""

FIELDS = ("model", "framework", *AXES, "gpus", "seq_len", *DIMS, *MORE)
_COUNTS = frozenset(FIELDS) - {"model", "framework"}
OTHER_DEFAULTS["clinic"] = {"text": "", **dict.fromkeys(FIELDS)}
TYPED, STATED, IMPLIED, MODEL = "yours", "in the text", "implied", "the model's"
BROUGHT = "your files"
"""Where a field's value is from."""

_TABS = {"layers": "stages", "seq": "sequence", "world": "ranks", "vocab": "vocab", "embed": "vocab"}
"""The beginning of a category → the Explorer's tab that shows it; the others are about heads."""

_PACKAGES = {"llama_models": "llama-models", "megatron": "megatron-lm", "dllama": "distributed-llama"} | {
    name: name for name in ("torchtitan", "colossalai", "picotron", "nanotron", "vllm")
}
"""A package, as paths of a traceback name it → the framework."""


NOTHING = Explanation(UNKNOWN, "nothing pasted yet", ())


@cache
def _names() -> re.Pattern[str]:
    """Public models under the names that logs use: "Llama-3.1-8B", "llama3 8B"."""
    families = "|".join(sorted({re.split(r"[^a-z]", name)[0] for name in public_models()}))
    return re.compile(rf"\b(?:{families})[\w.-]{{0,24}} ?\d{{1,3}}(?:\.\d)?b\b", re.IGNORECASE)


@dataclass(frozen=True)
class Visit:
    """A text, or flight records, and the fields that the reader typed; own: the reader's own model."""

    text: str = ""
    flight: Dumps | None = None
    typed: Values = field(default_factory=dict)
    own: ModelConfig | None = None
    settings: Settings | None = None

    def change(self, changes: Values) -> Visit:
        """With changed text or fields; None or "" clears a field. Raises LlamaparError."""
        typed, own, text = dict(self.typed), self.own, changes.get("text", self.text)
        if not isinstance(text, str):
            raise LayoutError(f"text={shown(text)}: a text is needed", "", ["lp.explain"], "text")
        for name, value in changes.items():
            if one_of("field", name, ("text", *FIELDS)) == "text":
                continue
            typed.pop(name, None)
            if name == "model":
                own = None if value is None or isinstance(value, str) else find_model(value)
            if value not in (None, "") and not (name == "model" and own):
                typed[name] = read_typed(name, value) if name in _COUNTS else value
        flight = None if changes.get("text") else self.flight
        text = text.encode("utf-8", "replace").decode()
        return replace(self, text=text, flight=flight, typed=typed, own=own)

    def fly(self, flight: Dumps) -> Visit:
        """With flight records instead of a text."""
        return replace(self, text="", flight=flight)

    def load(self, model: ModelConfig) -> Visit:
        """With the reader's own model."""
        return self.change({"model": model})

    def bring(self, settings: Settings) -> Visit:
        """With the facts in a run's own files; typed fields win over them."""
        return replace(self, settings=settings)

    @cached_property
    def brought(self) -> Values:
        """Fields whose values come from the files."""
        if self.settings is None:
            return {}
        known: Values = {name: n for name, n in self.settings.known().items() if name in FIELDS}
        if self.settings.framework:
            known["framework"] = self.settings.framework
        return known

    @cached_property
    def _read_model(self) -> ModelConfig | None:
        """The model in the files, if they describe it completely."""
        try:
            return self.settings.model_config() if self.settings else None
        except LlamaparError:
            return None

    @cached_property
    def stated(self) -> dict[str, str]:
        """Model and framework, if the text names exactly one."""
        text = f"{self.text[:_SEARCHED]}\n{self.text[_SEARCHED:][-_SEARCHED:]}"
        models = {model.name for m in _names().finditer(text) if (model := model_named(m.group()))}
        frameworks = {name for package, name in _PACKAGES.items() if re.search(rf"\b{package}[/.]", text)}
        found = {"model": models, "framework": frameworks}
        return {name: min(one) for name, one in found.items() if len(one) == 1}

    @cached_property
    def _known(self) -> tuple[Values, LlamaparError | None]:
        """Arguments for `explain`, and the first invalid field, which is left out."""
        known, off = Values(), None
        for name, value in {**self.stated, **self.brought, **self.typed}.items():
            try:
                if name == "framework":
                    find_framework(value)
                elif name != "model":
                    count = parse_number(name, value).value if isinstance(value, str) else value
                    whole(name, count, 1, OPTIONS[name].most)
                elif not (isinstance(value, str) and model_named(value)):
                    one_of("model", value, PRESETS, ModelError)
                known[name] = value
            except LlamaparError as problem:
                off = off or problem
        model = self.own or (None if "model" in self.typed else self._read_model)
        return known | ({"model": model} if model else {}), off

    @cached_property
    def _explained(self) -> tuple[Explanation, LlamaparError | None]:
        try:
            if self.flight is not None:
                return explain(flight=self.flight, **self._known[0]), None
            return explain(self.text, **self._known[0]) if self.text.strip() else NOTHING, None
        except LlamaparError as refused:
            return Explanation(UNKNOWN, refused.what, ()), refused
        except Exception as fault:  # An error of our own must not lose the reader's text.
            what = f"the text could not be explained: {type(fault).__name__}: {fault}"
            return Explanation(UNKNOWN, what, ()), LlamaparError(what)

    @property
    def explanation(self) -> Explanation:
        """The explanation of the text or the records."""
        return self._explained[0]

    @property
    def problem(self) -> LlamaparError | None:
        """The problem with a field (the other fields still count), or with the text."""
        return self._explained[1] or self._known[1]

    @cached_property
    def fields(self) -> dict[str, tuple[object, str]]:
        """Each known field as (value, its source)."""
        known, best = self.explanation.known, self.explanation.best
        facts = best.facts if best else {}
        rows: dict[str, tuple[object, str]] = {n: (v, IMPLIED) for n, v in facts.items()}
        if known.model:
            rows |= {name: (getattr(known.model, name), MODEL) for name in DIMS}
        rows |= {name: (n, STATED) for name, n in known.numbers.items()}
        rows |= {name: (value, STATED) for name, value in self.stated.items()}
        rows |= {name: (value, BROUGHT) for name, value in self.brought.items()}
        if self._read_model:
            rows["model"] = (self._read_model.name, BROUGHT)
        rows |= {name: (value, TYPED) for name, value in self.typed.items()}
        if self.own:
            rows["model"] = (self.own.name, TYPED)
        elif known.model and "model" in self.typed and "model" in self._known[0]:
            rows["model"] = (known.model.name, TYPED)
        rows = {ARGUMENTS.get(fact, fact): row for fact, row in rows.items()}
        return {name: rows[name] for name in FIELDS if name in rows}

    @cached_property
    def picture(self) -> View | LlamaparError:
        """The picture, or the reason why there is none."""
        try:
            return view(self.explanation)
        except LlamaparError as none:
            return none
        except Exception as fault:  # of ours, too
            return LlamaparError(f"the picture failed: {type(fault).__name__}: {fault}")

    @property
    def _figure(self) -> Values | None:
        """The picture as the page draws it; for flight records, with the stacks of their calls."""
        if not isinstance(self.picture, View):
            return None
        standing = self.explanation.flight
        return self.picture.spec if standing is None else late("hang_picture")(standing, with_stacks=True)[0]

    @property
    def status(self) -> str:
        """One line: the verdict."""
        return NOTHING.reason if self.explanation is NOTHING else self.explanation.summary

    def __str__(self) -> str:
        known = ", ".join(
            f"{name}={for_browser(value)} ({origin})" for name, (value, origin) in self.fields.items()
        )
        drawn = self.picture.summary if isinstance(self.picture, View) else self.picture
        text = self.status if self.explanation is NOTHING else str(self.explanation)
        parts = (f"known: {known}" * bool(known), str(self.problem or ""), text, str(drawn))
        return "\n".join(filter(None, parts))

    def traits(self, seq: int) -> Values:
        """Everything for the page, as plain values. seq numbers it; buttons refer to this number."""
        explained, drawn, problem = self.explanation, self.picture, self.problem
        values = dict.fromkeys(FIELDS) | {"framework": ""}
        payload = {
            "seq": seq,
            "values": values | {name: value for name, (value, _) in self.fields.items()},
            "origins": {name: origin for name, (_, origin) in self.fields.items()},
            "status": self.status.removesuffix(f": {explained.best.cause}" if explained.best else ""),
            "verdict": explained.verdict,
            "line": explained.line[:300],
            "problem": card(problem, FIELDS) if problem else None,
            "diagnoses": [_diagnosis(one) for one in explained.diagnoses],
            "figure": self._figure,
            "summary": drawn.summary if isinstance(drawn, View) else "",
            "reason": "" if isinstance(drawn, View) else drawn.what,
        }
        return {"text": _cut(self.text), "payload": payload}


class Clinic(Page[Visit]):
    """The clinic panel. `set` fills text and fields from code; `snapshot` is a static View of what it shows.

    explorer: the Explorer that a fix opened; None before.
    """

    _esm = source("page.js", "drop.js", "clinic.js")
    _css = source("page.css", "clinic.css")
    schema = traitlets.List(CLINIC).tag(sync=True)
    limit = traitlets.Int(LIMIT).tag(sync=True)
    text = traitlets.Unicode().tag(sync=True)
    opened = traitlets.Unicode().tag(sync=True)
    layout = None
    """No box of ipywidgets' own: it would be one more model, with a random id."""
    explorer: Explorer | None = None

    @checked_options
    def __init__(self, **values: Unpack[ClinicKeywords]) -> None:
        super().__init__(_changed(Visit(), Values(values)))

    @checked_options
    def set(self, **values: Unpack[ClinicKeywords]) -> None:
        """Fill in text, model, framework, tp, cp, pp, dp, world, seq_len and the other fields; None clears
        one.

        flight: instead of a text, a folder of torch's flight records, or some files. Raises LayoutError for
        an unknown field.
        """
        self._show(lambda visit: _changed(visit, Values(values)))

    @property
    def explanation(self) -> Explanation:
        """The result of `lp.explain` for the text and the fields."""
        return self._state.explanation

    def open_fix(self, fix: int = 0, diagnosis: int = 0) -> Explorer:
        """Press a fix's button: opens an Explorer on the repaired layout, the same one each time."""
        found, judge = self.explanation.diagnoses, self.explanation.known.framework
        chosen = nth("diagnosis", diagnosis, found)
        offered = [one for one in chosen.fixes if isinstance(one, Fix)]
        why = "" if offered else "a layout is mended where model and degrees are known"
        mended = nth("fix", fix, offered, why)
        tab = next((t for start, t in _TABS.items() if chosen.category.startswith(start)), "heads")
        self.explorer = self.explorer or Explorer()
        self.explorer.take(mended.job, judge.name if judge else "", tab)
        return self._open()

    def open_files(self) -> Explorer:
        """An Explorer on the job in the files. Raises LlamaparError without files."""
        if self._state.settings is None:
            raise LlamaparError("no files were read", "", ["drop settings into the box"], "config")
        self.explorer = self.explorer or Explorer()
        self.explorer.bring(self._state.settings)
        return self._open()

    def _open(self) -> Explorer:
        assert self.explorer is not None
        self.opened = self.explorer.model_id
        self.send({"kind": "opened"})
        return self.explorer

    def snapshot(self) -> View:
        """The panel as it is now: its picture, and the fields, diagnoses and the picture's summary as
        text.
        """
        drawn = self._state.picture
        return View(drawn.spec if isinstance(drawn, View) else {"data": [], "layout": {}}, str(self._state))

    def _press(self, kind: str, content: Values, current: bool) -> None:
        if kind == "fix" and current:
            self.open_fix(int(content["fix"]), int(content["diagnosis"]))
        elif kind == "flight":
            folder = flight_records(content)
            self._show(lambda visit: visit.fly(folder))
        elif kind == "open":
            self.open_files()


@checked_options
def clinic(text: str = "", **values: Unpack[ClinicFields]) -> Clinic:
    """A Clinic with text and fields filled in: model, framework, tp and the others of `Clinic.set`."""
    return Clinic(text=text, **values)


def _changed(visit: Visit, values: Values) -> Visit:
    """With the values given from code; flight records are named by their folder."""
    fields = {name: value for name, value in values.items() if name != "flight"}
    visit = visit.change(fields)
    return visit if values.get("flight") is None else visit.fly(late("read_dumps")(values["flight"]))


def _cut(text: str) -> str:
    """The part of a text that the page shows; of a long text, a third from its head and two thirds from its
    tail.
    """
    if len(text) <= LIMIT:
        return text
    left_out = f"\n… {len(text) - LIMIT:,} characters are read and not shown …\n"
    return text[: LIMIT // 3 - 99] + left_out + text[LIMIT // 3 - LIMIT :]


def _diagnosis(one: Diagnosis) -> dict[str, object]:
    return one.as_dict() | {
        "title": one.title,
        "sure": str(one.level),
        # Each with the field in which the reader can give it, where there is one.
        "asks": [[n, ARGUMENTS.get(n, n) if ARGUMENTS.get(n, n) in FIELDS else None] for n in one.needs],
        "fixes": [[fix.text, fix.effect.text] for fix in one.fixes if isinstance(fix, Fix)],
        "words": [fix for fix in one.fixes if isinstance(fix, str)],
        "says": [[FRAMEWORKS[s.framework].title, s.message, s.source.links] for s in one.frameworks],
    }
