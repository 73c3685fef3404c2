"""The controls of the panels, made from the table of options: order, groups and labels."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import cast

import llamapar.timing.cost  # noqa: F401  its rooms offer the choices of their options as they are imported
from llamapar.describe.hardware import DEFAULT_GPU
from llamapar.describe.jobs import JOBS
from llamapar.describe.layout import AXES, ORDERS
from llamapar.describe.models import PRESETS
from llamapar.describe.options import OPTIONS, default, options_of
from llamapar.describe.splits import NO_PADDING
from llamapar.frameworks import FRAMEWORKS

DIMS = ("dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "ffn_dim", "vocab_size")
LAYOUT = (*AXES, "sequence_parallel", "virtual_stages", "zero", "dp_replicate", "order")
FACTS = (
    *("gpus", "gpus_per_node", "seq_len", "micro_batch", "micro_batches", "global_batch", "batch_per_dp"),
    *("batch_tokens", "kv_replication", "quant_group"),
)
STEP = ("gpu", "recompute", "schedule", "nc")
ENGINES = ("local", "processes", "dry")
"""The engines of the Run tab: a kernel is not started by torchrun."""

OWN = "own"
"""The choice "as the framework does it" of padding and layer split."""

CUSTOM = "custom"

FIRST_MODEL = "llama3.1-405b"
FIRST_JOB = "paper-131k-tokens"
_FIRST: dict[str, object] = {
    "preset": FIRST_MODEL,
    "tp": 8,
    "pp": 16,
    "dp": 128,
    "zero": 2,
    "sequence_parallel": True,
    "seq_len": 8192,
    "gpu": DEFAULT_GPU,
    "rank": 6043,
    "framework": "",
    "padding": OWN,
    "layer_split": OWN,
    "fault": "",
    "beside": "",
    "job": "",
    "tab": "heads",
}
"""The paper's layout at 8,192 tokens, and what is empty on a page. Its FSDP shares weights, optimizer states
and gradients, and does not reshard after the forward (arXiv:2407.21783 section 3.3.2), which is ZeRO 2. The
rank is one in the middle."""
DEFAULTS: dict[str, object] = {name: _FIRST.get(name, default(name)) for name in options_of("explorer")}
"""What the Explorer opens with: the table's defaults but for a first layout, and what is empty on a page."""

TIMES = {"time": "Step", "pipeline": "Pipeline", "layer": "In a layer", "plan": "Search"}
"""The pictures of the tab Time."""

MAIN_TABS = {
    "heads": "Heads",
    "vocab": "Vocabulary",
    "sequence": "Tokens",
    "stages": "Layers",
    "ranks": "Ranks",
    "memory": "Memory",
    "time": "Time",
    "run": "Run",
}
TABS = TIMES | MAIN_TABS
"""The pictures, by the value of the control `tab`."""

_TITLES = {
    "local": "local: one process",
    "processes": "processes: one per rank",
    "dry": "dry: one rank, true size",
    "all_gather": "all-gather (Llama 3)",
    "ulysses": "Ulysses (all-to-all)",
}
_KINDS: dict[type[object], str] = {int: "int", float: "int", bool: "bool", str: "choice"}

Control = dict[str, object]
Titles = Mapping[str, str] | Mapping[int, str] | Mapping[str | None, str]
Group = dict[str, object]


def control(name: str, **other: object) -> Control:
    """An option's control for the page; `other` adds to its properties or replaces them."""
    option = OPTIONS[name]
    made: Control = {"name": name, "label": option.label or name, "kind": _KINDS.get(option.kind, "text")}
    made["help"] = option.hint or option.unit
    if made["kind"] == "choice":
        made["options"] = [(choice, _TITLES.get(choice, choice)) for choice in option.choices]
    return made | other


def choice(name: str, titles: Titles) -> Control:
    """A choice among values with the panel's own titles."""
    return control(name, kind="choice", options=list(titles.items()))


def group(
    title: str, *controls: str | Control, opened: bool = True, row: bool = False, tab: str = ""
) -> Group:
    """Controls under a title. row: side by side, without a fold. tab: the only tab that shows them."""
    made = [control(each) if isinstance(each, str) else each for each in controls]
    return {"group": title, "controls": made, "open": opened, "row": row} | ({"tab": tab} if tab else {})


def controls_in(one: Group) -> list[Control]:
    return cast("list[Control]", one["controls"])


def names_of(groups: Iterable[Group]) -> tuple[str, ...]:
    """The names of all controls, in their order."""
    return tuple(str(each["name"]) for one in groups for each in controls_in(one))


def _paddings() -> dict[str, str]:
    padding = {name: f"{f.title}: {f.padding}" for name, f in FRAMEWORKS.items() if f.padding != NO_PADDING}
    return {OWN: "the framework's own", "none": "none", **padding}


def _orders() -> Titles:
    """Every rank order; those of frameworks come first, with the framework's name."""
    users: dict[str, list[str]] = {}
    for f in FRAMEWORKS.values():
        if f.order:
            users.setdefault(f.order, []).append(f.name)
    named = {order: f"{order} ({names[0]}{', …' * (len(names) > 1)})" for order, names in users.items()}
    return {**named, **{order: order for order in ORDERS if order not in named}}


def _unsaid(name: str) -> Control:
    return control(name, placeholder="not set")


_PRESETS: Control = {"name": "preset", "label": "model", "kind": "choice", "help": ""}
_PRESETS |= {"options": [*((name, name) for name in PRESETS), (CUSTOM, "no preset")]}
_PAPER = "the Llama 3 paper"
_SHORT_NAMES = {name: f.title if len(f.title) <= len(_PAPER) else name for name, f in FRAMEWORKS.items()}
_JUDGES: Titles = {"": _PAPER, **_SHORT_NAMES}
_SPLITS: Titles = {OWN: "the framework's own", **{s: s for s in OPTIONS["layer_split"].choices}}
_PUBLISHED: Titles = {"": "none", **{name: found.short for name, found in JOBS.items()}}
_ZERO = choice("zero", {n: str(n) for n in range(OPTIONS["zero"].most + 1)})
_NC = control("nc", placeholder="pp")
_MODES: dict[str | None, str] = {None: "the trainer's own"}
_MODES |= {mode: mode for mode in OPTIONS["recompute"].choices}
_AGAIN = choice("recompute", _MODES)
_HOW: list[str | Control] = [_AGAIN, "schedule", _NC]

_ELSEWHERE = ("tab",)
"""Options of the Explorer that its page sets without a control."""

_KNOBS = {"n_heads": "query heads", "n_kv_heads": "KV heads", "n_layers": "layers"}
_KNOBS |= {"dim": "dim", "vocab_size": "vocabulary"}
EXPLORER: list[Group] = [
    group("Cut", *(control(axis, kind="slider") for axis in AXES), row=True),
    group(
        "Model",
        _PRESETS,
        *(control(name, kind="slider", label=label) for name, label in _KNOBS.items()),
        row=True,
    ),
    group(
        "Job",
        control("gpus", label="GPUs", placeholder="all ranks"),
        control("gpu", label="×"),
        control("seq_len", label="tokens"),
        control("global_batch", label="×", placeholder="batch"),
        choice("framework", _JUDGES) | {"label": "trainer"},
        row=True,
    ),
    group("More of the model", choice("job", _PUBLISHED), "head_dim", "ffn_dim"),
    group(
        "Layout",
        control("gives", kind="choice", label="gives GPUs"),
        "sequence_parallel",
        "kv_replication",
        "virtual_stages",
        _ZERO,
        "dp_replicate",
        choice("order", _orders()),
        "gpus_per_node",
        choice("padding", _paddings()),
        choice("layer_split", _SPLITS),
        "chunking",
    ),
    group(
        "Step",
        *_HOW,
        *map(_unsaid, ("micro_batch", "micro_batches", "batch_per_dp", "batch_tokens", "quant_group")),
    ),
    group("Rank", "rank", row=True, tab="ranks"),
    group(
        "Pipeline",
        "schedule",
        control("micro_batches", placeholder="2·pp"),
        control("virtual_stages", label="virtual stages"),
        _NC,
        choice("beside", {"": "none", **{name: name for name in OPTIONS["schedule"].choices}}),
        control("time", placeholder="none"),
        row=True,
        tab="pipeline",
    ),
    group(
        "Sequence",
        "chunking",
        control("documents", options=[], placeholder="one"),
        "cp_method",
        control("step", kind="slider", label="ring step"),
        row=True,
        tab="sequence",
    ),
    group("In a layer", control("step", kind="slider"), "cp_method", "rank", row=True, tab="layer"),
    group("Memory", _AGAIN, "schedule", _ZERO, _unsaid("micro_batch"), row=True, tab="memory"),
    group(
        "Run",
        "program",
        choice("engine", {name: _TITLES[name] for name in ENGINES}),
        "rank",
        "dtype",
        "cp_method",
        choice("fault", {"": "nothing", **{name: name for name in OPTIONS["fault"].choices}}),
        row=True,
        tab="run",
    ),
]
"""The Explorer's controls, in the order in which they are shown; a group with a tab is shown in that one,
and repeats what it needs of the others."""

_WHOSE: Titles = {"": "any", **{name: f.title for name, f in FRAMEWORKS.items()}}

CLINIC: list[Group] = [
    group(
        "What is known",
        control("model", kind="text", options=list(PRESETS), help="a preset, or a public model's name"),
        choice("framework", _WHOSE) | {"help": "whose rules and words to prefer"},
        *(*AXES, control("gpus", help=""), "seq_len"),
    ),
    group("Dimensions", *DIMS, opened=False),
    group("Batch and quantisation", opened=False),
]
"""The fields beside the clinic's box, in their order."""


def _place(function: str, groups: list[Group], last: str) -> None:
    """Add a control to the group `last` for each option of a panel that has none yet."""
    placed = {*_ELSEWHERE, *names_of(groups)}
    found = next(one for one in groups if one["group"] == last)
    rest = [control(name) for name in options_of(function) if name not in placed]
    found["controls"] = [*controls_in(found), *rest]


_place("explorer", EXPLORER, "Step")
_place("clinic", CLINIC, "Batch and quantisation")

COUNTS = {name for name in DEFAULTS if OPTIONS[name].is_count and name != "zero"}
"""Controls in which people type numbers."""

_PADDED: dict[str | None, str] = {None: "none", **dict(list(_paddings().items())[2:])}
_DEGREES: Titles = {2**n: str(2**n) for n in range(11)}
_VIRTUAL: dict[int | None, str] = {None: "its own", **{n: str(n) for n in (1, 2, 4, 8)}}
_SHORT = {
    "zero": "ZeRO",
    "micro_batches": "micro-batches",
    "recompute": "recompute",
    "name": "schedule",
    "mib": "MiB",
    "virtual_stages": "virtual stages",
}

_LIVE: dict[str, Control] = {
    **{axis: choice(axis, _DEGREES) for axis in AXES},
    "model": _PRESETS | {"name": "model", "options": [(name, name) for name in PRESETS]},
    "kv_replication": control("kv_replication", label="copy KV heads"),
    "interleave": {"name": "interleave", "label": "copies side by side", "kind": "bool", "help": ""},
    "padding": control("padding", kind="choice", options=[*_PADDED.items()]),
    "layer_split": choice("layer_split", {split: split for split in OPTIONS["layer_split"].choices}),
    "virtual_stages": control(
        "virtual_stages", label="stages a rank", kind="choice", options=[*_VIRTUAL.items()]
    ),
    "order": choice("order", _orders()),
    "rank": control("rank", help="whose groups are told"),
    "seq_len": control("seq_len", label="tokens"),
    "micro_batch": control("micro_batch", label="micro-batch"),
    "nc": _NC,
    "framework": control("framework", kind="choice", options=[(None, "any"), *list(_JUDGES.items())[1:]]),
}


def knob_title(name: str) -> str:
    """The title of a live picture's knob."""
    # A lesson's own picture has knobs that are no options, such as the ranks of a collective.
    label = OPTIONS[name].label if name in OPTIONS else ""
    return _SHORT.get(name) or label or name


def rung_name(knob: str, value: object, titled: bool = False) -> str:
    """ "TP 8", "ZeRO 2", "selective": one value of a knob; a word is titled "recompute: selective"."""
    if not isinstance(value, str | None):
        return f"{knob_title(knob)} {value}"
    return f"{knob_title(knob)}: " * titled + (_TITLES.get(value, value) if value else _MODES[None])


def live_controls(values: Mapping[str, object], knobs: Collection[str]) -> list[Control]:
    """The controls beside a live picture's knobs, by the names of its values."""
    needs = {"interleave": values.get("kv_replication"), "nc": values.get("name") == "flexible"}
    beside = [name for name in values if name not in knobs and needs.get(name, True)]
    return [_LIVE.get(name) or control(name) for name in beside]
