"""What readers find, each fact with its source, and the arithmetic between the facts.

A degree of data parallelism is derived and never believed from a name; numbers that contradict are all
kept. What is not said is unknown, with what would say it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from llamapar.describe.layout import Layout
from llamapar.describe.modelnames import preset_name
from llamapar.describe.models import PRESETS, ModelConfig, public_models

from .documents import OVERRIDE, Entry, Scalar

MODEL, LAYOUT, JOB = "model", "layout", "job"

DIMS = ("dim", "n_layers", "n_heads", "n_kv_heads", "ffn_dim", "vocab_size")
"""What makes a model, besides a head's width."""

_MODEL = frozenset((*ModelConfig.__dataclass_fields__, "preset", "hf"))
_LAYOUT = frozenset((*Layout.__dataclass_fields__, "dp_shard", "other_axes"))


STAGES = ("0", "1", "2", "3")
"""Stages of ZeRO as files write them."""


def section_of(name: str) -> str:
    """Where a field belongs: the model, the layout, or, for any other, the job."""
    if name in _MODEL:
        return MODEL
    return LAYOUT if name in _LAYOUT else JOB


@dataclass(frozen=True)
class Origin:
    """Where a fact was read: a file and its line, or how it came about."""

    file: str
    line: int = 0
    said: str = ""

    def __str__(self) -> str:
        if self.line == OVERRIDE:
            return f"your command {self.said}"
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place} {self.said}".strip()


@dataclass(frozen=True)
class Fact:
    value: object
    origin: Origin


@dataclass(frozen=True)
class Contradiction:
    """Numbers for one field that cannot all be true. values: each with where it stands."""

    field: str
    values: tuple[object, ...]
    why: str

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {"field": self.field, "values": list(self.values), "why": self.why}

    def __str__(self) -> str:
        return f"{self.field}: {' or '.join(map(str, self.values))}: {self.why}"


def count(value: object) -> int | None:
    """A whole number of at least one, as files write it: 8, "8", 1_000, 8.0; None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, float):
        return int(value) if value.is_integer() and 1 <= value < 2**53 else None
    if isinstance(value, str):
        text = value.strip().replace("_", "")
        value = int(text) if re.fullmatch(r"[0-9]{1,15}", text) else 0
    return value if isinstance(value, int) and value >= 1 else None


def number(value: object) -> float | None:
    """A positive number; None for anything else."""
    try:
        found = float(str(value).replace("_", ""))
    except ValueError:
        return None
    return found if 0 < found < math.inf else None


def truth(value: object) -> bool | None:
    """A switch as files write it; None for anything else."""
    if isinstance(value, bool):
        return value
    return {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False}.get(
        str(value).lower()
    )


@dataclass
class Draft:
    """The facts as far as they are read."""

    framework: str
    facts: dict[str, Fact] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    not_covered: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    contradictions: list[Contradiction] = field(default_factory=list)
    covered: bool = True
    training: bool = True
    fills: str = ""
    """The degree that takes what is left of the GPUs: "dp" or "dp_shard"; "" where all are said."""

    # -- facts

    def put(self, name: str, value: object, origin: Origin) -> None:
        """A fact; a later one replaces it, as a command line does."""
        self.facts[name] = Fact(value, origin)
        self.unknown.pop(name, None)

    def get(self, name: str) -> object:
        fact = self.facts.get(name)
        return fact.value if fact else None

    def number(self, name: str) -> int | None:
        """A whole number that is known."""
        value = self.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def missing(self, name: str, why: str) -> None:
        """A field that stays open, whatever was read of it."""
        self.facts.pop(name, None)
        self.unknown[name] = why

    def derive(self, name: str, value: object, how: str) -> None:
        self.put(name, value, Origin("derived", 0, how))

    def refuse(self, what: str, origin: Origin | None = None) -> None:
        """Something that changes the model or the run and is not counted here."""
        text = f"{what} ({origin})" if origin else what
        if text not in self.not_covered:
            self.not_covered.append(text)

    # -- reading tables of names

    def take(
        self,
        name: str,
        entry: Entry | None,
        file: str,
        default: object = None,
        by: str = "",
    ) -> object:
        """A count from an entry, or the framework's default.

        Where the entry holds none (text that only a run fills in, a number below one) the field is unknown.
        """
        if entry is None or entry.value is None:
            if default is not None:
                self.put(name, default, Origin(by or self.framework, 0, "default"))
            return default
        value = count(entry.value)
        if value is None:
            self.missing(name, f"{entry.path} is {entry.value!r} ({file}:{entry.line})")
            return None
        self.put(name, value, Origin(file, entry.line, entry.path))
        return value

    def take_model(self, name: str, file: str, entry: Entry | None, said: str = "") -> bool:
        """The dims of a public model by the name that it is published under; whether it is known."""
        text = str(entry.value) if entry else name
        origin = Origin(file, entry.line if entry else 0, said or (entry.path if entry else "name"))
        config = public(text)
        if config is None:
            self.put("hf" if "/" in text else "name", text, origin)
            return False
        key = "preset" if config.name in PRESETS else "name"
        self.put(key, config.name, origin)
        self.dims(config, Origin(file, origin.line, f"the published config of {config.name}"))
        return True

    def dims(self, config: ModelConfig, origin: Origin) -> None:
        """Every dimension of a model that is known by name."""
        for name in (*DIMS, "head_dim", "max_seq_len", "rope_theta", "tied"):
            self.put(name, getattr(config, name), origin)


@dataclass(frozen=True)
class Source:
    """A file of settings, or a command's arguments, on its way into a draft.

    get: the entry under the first of some names. by: whose defaults count where nothing is said.
    """

    name: str
    get: Callable[..., Entry | None]
    draft: Draft
    by: str = ""

    def origin(self, entry: Entry | None, said: str = "") -> Origin:
        """Where an entry stands; without one, whose default it is."""
        if entry is None:
            return Origin(self.by or self.draft.framework, 0, said or "default")
        return Origin(self.name, entry.line, said or entry.path)

    def count(self, *keys: str) -> int | None:
        """A whole number of at least one; None where it is not said."""
        entry = self.get(*keys)
        return count(entry.value) if entry else None

    def says(self, key: str) -> bool | None:
        """A switch; None where it is not said."""
        entry = self.get(key)
        return truth(entry.value) if entry else None

    def on(self, *keys: str) -> bool:
        """Whether the switch of an argument is there, and not set to false."""
        entry = self.get(*keys)
        return entry is not None and str(entry.value).lower() not in ("false", "0", "none", "no")

    def text(self, key: str) -> str:
        """A value as text in lower case; "" where it is not said."""
        entry = self.get(key)
        return "" if entry is None or entry.value is None else scalar(entry.value)

    def take(self, field: str, *keys: str, default: object = None) -> object:
        """A count as a fact, or the default; see `Draft.take`."""
        return self.draft.take(field, self.get(*keys), self.name, default, self.by)

    def put(self, field: str, value: object, key: str) -> None:
        """A fact that follows from a key, or from its default."""
        self.draft.put(field, value, self.origin(self.get(key)))

    def switch(self, field: str, key: str, on: object = True, off: object = False) -> None:
        """A fact that a switch says, where the switch is there; None says nothing."""
        held = self.says(key)
        if held is not None and (said := on if held else off) is not None:
            self.put(field, said, key)

    def padding(self, key: str, unit: int) -> None:
        """The vocabulary's padding, to a multiple of so many rows on each TP rank."""
        self.put("padding", f"{self.count(key) or unit}*tp", key)

    def refuse(self, what: str, key: str) -> None:
        """Something under a key that is not counted here."""
        self.draft.refuse(what, self.origin(self.get(key)))


def public(text: str) -> ModelConfig | None:
    """The public model under a name or a path's last part; None where the table has none."""
    last = text.strip().rstrip("/").rpartition("/")[2]
    for name in (preset_name(text), preset_name(last), last.lower()):
        if name in PRESETS and name != "tiny":
            return PRESETS[name]
    return public_models().get(last.lower())


# -- arithmetic ------------------------------------------------------------------------------------


def settle(draft: Draft) -> None:
    """Derives what the facts say together, and keeps each contradiction."""
    _settle_ranks(draft)
    if draft.training:
        _settle_batch(draft)
    _settle_switches(draft)
    _say_unknown(draft)


def _settle_ranks(draft: Draft) -> None:
    degrees = {axis: draft.number(axis) for axis in ("tp", "cp", "pp")}
    gpus, dp = draft.number("gpus"), draft.number("dp")
    replicate = draft.number("dp_replicate")
    if None in degrees.values():
        for name in ("dp", "dp_shard"):
            draft.facts.pop(name, None)
        open_degrees = ", ".join(axis for axis, n in degrees.items() if n is None)
        draft.unknown.setdefault("dp", f"gpus and {open_degrees} would say it")
        return
    ways = math.prod(n for n in degrees.values() if n)
    words = "·".join(str(n) for n in degrees.values())
    shard = draft.number("dp_shard")
    if dp is None and shard is not None and not draft.fills:
        dp = shard * (replicate or 1)
        draft.derive("dp", dp, f"{replicate or 1} replicas · {shard} shards")
    if gpus is not None and dp is not None and not draft.fills:
        if ways * dp != gpus:
            why = f"tp·cp·pp·dp = {words}·{dp} = {ways * dp}"
            draft.contradictions.append(Contradiction("gpus", (gpus, ways * dp), why))
    elif gpus is not None:
        if gpus % ways:
            why = f"tp·cp·pp = {words} = {ways} does not divide {gpus} GPUs"
            draft.contradictions.append(Contradiction("gpus", (gpus, ways), why))
            draft.missing("dp", why)
            dp = None
        else:
            dp = gpus // ways
            draft.derive("dp", dp, f"{gpus} GPUs / (tp·cp·pp = {words})")
    elif dp is not None and not draft.fills:
        draft.derive("gpus", ways * dp, f"tp·cp·pp·dp = {words}·{dp}")
    else:
        draft.missing("dp", f"GPUs / (tp·cp·pp = {words})")
        draft.unknown.setdefault("gpus", "no launch says how many")
        dp = None
    if replicate is None:
        replicate = 1
        draft.derive("dp_replicate", 1, "no replicas said")
    if dp is None:
        if draft.fills:
            draft.facts.pop("dp_shard", None)
    elif dp % replicate:
        why = f"{replicate} replicas do not divide dp = {dp}"
        draft.contradictions.append(Contradiction("dp_replicate", (replicate, dp), why))
    elif shard is not None and not draft.fills and shard * replicate != dp:
        why = f"{replicate} replicas · {shard} shards = {shard * replicate}, dp = {dp}"
        draft.contradictions.append(Contradiction("dp", (shard * replicate, dp), why))
    elif shard is None or draft.fills:
        draft.derive("dp_shard", dp // replicate, f"dp = {dp} / {replicate} replicas")


def _settle_batch(draft: Draft) -> None:
    """global_batch = micro_batch · micro_batches · dp, any one from the others."""
    dp, each = draft.number("dp"), draft.number("micro_batch")
    many, whole = draft.number("micro_batches"), draft.number("global_batch")
    if many is None and each is not None and draft.number("batch_per_dp") is not None:
        many, left = divmod(draft.number("batch_per_dp") or 0, each)
        if left == 0:
            draft.derive("micro_batches", many, "batch_per_dp / micro_batch")
    if dp is None or each is None:
        if whole is None:
            draft.unknown.setdefault("global_batch", "micro_batch · micro_batches · dp")
        return
    if whole is None and many is not None:
        draft.derive("global_batch", each * many * dp, f"{each}·{many}·{dp}")
    elif whole is not None and many is None:
        if whole % (each * dp):
            why = f"no multiple of micro_batch · dp = {each}·{dp} = {each * dp}"
            draft.contradictions.append(Contradiction("global_batch", (whole, each * dp), why))
            draft.unknown.setdefault("micro_batches", why)
        else:
            draft.derive("micro_batches", whole // (each * dp), f"{whole} / ({each}·{dp})")
    elif whole is not None and many is not None and whole != each * many * dp:
        why = f"micro_batch · micro_batches · dp = {each}·{many}·{dp} = {each * many * dp}"
        draft.contradictions.append(Contradiction("global_batch", (whole, each * many * dp), why))


def _settle_switches(draft: Draft) -> None:
    """Sequence parallelism has no effect without TP."""
    asked = draft.facts.get("sequence_parallel")
    if draft.number("tp") == 1:
        if asked and asked.value and asked.origin.line:
            draft.ignored.append(f"sequence parallelism ({asked.origin}): tp=1")
        draft.derive("sequence_parallel", False, "tp = 1")
    unsaid = "virtual_stages" not in draft.facts and "virtual_stages" not in draft.unknown
    if unsaid and draft.number("pp") is not None:
        draft.derive("virtual_stages", 1, "none said")


def _say_unknown(draft: Draft) -> None:
    """Names every field that a run needs and nobody says."""
    if not draft.covered:
        return
    if not any(name in draft.facts for name in (*DIMS, "preset")):
        draft.unknown.setdefault("model", "nothing here says its dimensions")
    else:
        for name in DIMS:
            if name not in draft.facts:
                draft.unknown.setdefault(name, "not in these files")
    wanted = ["seq_len"]
    if draft.training:
        wanted += ["micro_batch", "global_batch"]
    for name in wanted:
        if name not in draft.facts:
            draft.unknown.setdefault(name, "not in these files")
    if "gpus" in draft.facts and "gpus_per_node" not in draft.facts:
        draft.unknown.setdefault("gpus_per_node", "no launch says how many GPUs a node has")


# -- names that lie --------------------------------------------------------------------------------

_IN_NAMES = re.compile(
    r"(?<![a-z0-9])(?:(?P<axis>tp|cp|pp|dp)[-_=]?(?P<degree>[0-9]{1,4})"
    r"|(?P<nodes>[0-9]{1,5})[-_]?(?:nodes?)|(?P<gpus>[0-9]{1,6})[-_]?(?:gpus?))(?![a-z0-9])"
)


def question_name(draft: Draft, name: str) -> None:
    """Numbers in a file's name that the file itself contradicts."""
    gpus, each = draft.number("gpus"), draft.number("gpus_per_node")
    for match in _IN_NAMES.finditer(name.lower()):
        if match["axis"]:
            field_name, said, found = match["axis"], int(match["degree"]), draft.number(match["axis"])
        elif match["gpus"]:
            field_name, said, found = "gpus", int(match["gpus"]), gpus
        else:
            field_name, said = "gpus", int(match["nodes"]) * (each or 0)
            found = gpus if each else None
        if found is not None and found != said:
            why = f"the file's name says {match.group()}, its settings {found}"
            draft.contradictions.append(Contradiction(field_name, (said, found), why))


def scalar(value: Scalar) -> str:
    """A value as text, lower case."""
    return str(value).strip().lower()
