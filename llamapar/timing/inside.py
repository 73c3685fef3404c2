"""One layer, step by step, on the ranks of a TP × CP group: what each holds, sends and waits for.

The order is that of the program `block`, which the steps quote. Bytes come from `count.wire` and shapes from
`place.Cut`. Seconds are the terms of `timing.layer`, divided so that the steps of a pass add up to it. A test
compares steps, shapes and bytes with the program's own trace and tape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.resources import files
from typing import Unpack

from llamapar.count.flops import layer_numel
from llamapar.count.wire import PARTS, TRADES, Traffic
from llamapar.count.wire import Collectives as Sent
from llamapar.describe.arguments import checked_options
from llamapar.describe.cp_methods import CpMethod, method_named
from llamapar.describe.hardware import hardware
from llamapar.describe.keywords import InsideKeywords
from llamapar.describe.layout import Layout, LayoutLike
from llamapar.describe.models import ModelConfig, ModelLike
from llamapar.describe.models import model as find_model
from llamapar.errors import ModelError, whole
from llamapar.place.cut import Cut
from llamapar.records.tables import Record, human

from .layer import Conditions, Pass, block_traffic, layer

FORWARD = "forward"
BACKWARD = "backward"
BEFORE = {FORWARD: "the layer before", BACKWARD: "the layer after"}


@dataclass(frozen=True)
class ProgramRow:
    """A row of the program: what it makes, in which file, by which line.

    sends: the part of `count.wire` that communicates there; "" if each rank computes alone. by: the weights,
    or inputs of `timing.layer`'s formulas, that its arithmetic uses.
    """

    name: str
    shape: str
    file: str
    line: str
    sends: str = ""
    by: tuple[str, ...] = ()


_OUT = "return row_output("
_IN = "x = column_input("
ROWS = (
    ProgramRow("norm", "residual", "llama", 'rms_norm(x, layer["attention_norm"]', by=("dim",)),
    ProgramRow("x", "tokens", "attention", _IN, "column input"),
    ProgramRow("q, k, v", "keys", "attention", "q = split_heads(", by=("wq", "wk", "wv", "q", "k")),
    ProgramRow("q, k, v", "traded", "attention", "q, k, v = (tokens_to_heads(", "tokens to heads"),
    ProgramRow("k, v", "all keys", "attention", "k, v = whole_sequence(", "K and V"),
    ProgramRow("attention", "q", "attention", "return kernels.attend(", by=("attention",)),
    ProgramRow("heads", "q", "attention", "return heads_to_tokens(", "heads to tokens"),
    ProgramRow("wo", "summand", "attention", _OUT, by=("wo",)),
    ProgramRow("sum", "residual", "attention", _OUT, "row output"),
    ProgramRow("norm", "residual", "llama", 'rms_norm(x, layer["ffn_norm"]', by=("dim",)),
    ProgramRow("x", "tokens", "mlp", _IN, "column input"),
    ProgramRow("w1, w3", "hidden", "mlp", "hidden = F.silu(", by=("w1", "w3", "ffn")),
    ProgramRow("w2", "summand", "mlp", _OUT, by=("w2",)),
    ProgramRow("sum", "residual", "mlp", _OUT, "row output"),
)
"""What a rank does in the forward of a layer, in order; the backward is the same in reverse."""

RING = {
    "k, v": ProgramRow("k, v", "traded", "attention", "heads = kernels.ring_attend(", "K and V"),
    "attention": ProgramRow(
        "attention", "traded q", "attention", "heads = kernels.ring_attend(", by=("attention",)
    ),
}
"""The rows that differ unless every rank gets all keys: keys pass around a ring, of one group in Ulysses."""


@lru_cache
def program_line(file: str, line: str) -> tuple[str, str]:
    """Place and text of a line of a program; empty texts if the programs are not installed."""
    path = files("llamapar") / "programs" / f"{file}.py"
    if not path.is_file():
        return "", ""
    # Searched by its text and not kept as a number, so that an edit of the program moves the number
    # along.
    for number, text in enumerate(path.read_text().splitlines(), 1):
        if line in text:
            return f"programs/{file}.py:{number}", text.partition("  # ")[0].strip()
    raise LookupError(f"no line of {path} has {line!r}")


@dataclass(frozen=True)
class LayerStep:
    """One step of a pass. sent: its collectives; () if each rank computes alone. seconds: modelled.

    shapes: TP rank → name of a tensor → its shape there when the step is done.
    """

    phase: str
    row: ProgramRow
    sent: tuple[Sent, ...]
    seconds: float
    shapes: Mapping[int, Mapping[str, tuple[int, ...]]] = field(repr=False)
    waits: str = ""

    @property
    def axis(self) -> str:
        """The axis of the step's collective, or ""."""
        if self.sent:
            return self.sent[0].axis
        return ""

    @property
    def kind(self) -> str:
        """The collective's name as people write it, or ""."""
        kind = ""
        if self.sent:
            kind = self.sent[0].kind
        if kind == "send":
            return "ring"
        return kind.replace("_", "-")

    @property
    def bytes(self) -> int:
        """Bytes that a rank sends in this step, as `traffic` counts them."""
        return sum(term.sent for term in self.sent)

    @property
    def name(self) -> str:
        """The step in a few words."""
        made = self.row.name
        if self.phase != FORWARD:
            made = f"∂ {self.row.name}"
        if self.sent:
            return f"{self.kind} {made}"
        return made

    @property
    def times(self) -> str:
        """Collectives and what a rank sends in each, "2 × 33.6 MB"."""
        return " + ".join(f"{term.count} × {human(term.sent // term.count)}" for term in self.sent)

    @property
    def code(self) -> tuple[str, str]:
        """Place and text of the program's line; in the backward, of the line that it belongs to."""
        return program_line(self.row.file, self.row.line)

    def holds(self, tp: int) -> str:
        """What a TP rank holds after the step: "q 1 × 8,192 × 16 × 128"."""
        sign = "∂"
        if self.phase == FORWARD:
            sign = ""
        shapes = self.shapes[tp].items()
        return ", ".join(f"{sign}{name} {' × '.join(f'{n:,}' for n in shape)}" for name, shape in shapes)


@dataclass(frozen=True, repr=False)
class LayerSteps(Record):
    """A layer's forward and backward on one TP × CP group of ranks, in order.

    rank: one of the group. cursor: the selected step, from 1; 0 for none. gpu: the GPU that the seconds are
    for.
    """

    model: ModelConfig
    layout: Layout
    seq_len: int
    micro_batch: int
    rank: int
    gpu: str
    steps: tuple[LayerStep, ...]
    cursor: int = 0

    @checked_options
    def at(self, step: int) -> LayerSteps:
        """The same steps with a cursor. Raises LayoutError for a step that does not exist."""
        return replace(self, cursor=whole("step", step, 0, len(self.steps)))

    @property
    def phase(self) -> str:
        """The pass with the cursor."""
        if self.cursor:
            return self.steps[self.cursor - 1].phase
        return FORWARD

    def of(self, phase: str) -> list[tuple[int, LayerStep]]:
        """The steps of a pass with their numbers."""
        return [(n, step) for n, step in enumerate(self.steps, 1) if step.phase == phase]

    def seconds(self, phase: str) -> float:
        """Seconds of a pass on a rank, as `cost` counts it without recomputation."""
        return sum(step.seconds for _, step in self.of(phase))

    @property
    def title(self) -> str:
        """Model, pass and degrees, as a heading."""
        sp = ", no sequence parallelism"
        if self.layout.sp or self.layout.tp == 1:
            sp = ""
        return (
            f"Inside a layer of {self.model.name}, {self.phase}: tp={self.layout.tp} cp={self.layout.cp}{sp}"
        )

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        head = ["step", "what", "axis", "sent", "about", f"rank {self.rank} then holds", "line"]
        tp = self.layout.coord_of(self.rank).tp
        rows: list[list[object]] = []
        for n, step in self.of(self.phase):
            mark = ""
            if n == self.cursor:
                mark = " ←"
            sent = ""
            if step.sent:
                sent = f"{step.bytes:,}"
            about = f"{step.seconds * 1e3:.3g} ms"
            rows.append([f"{n}{mark}", step.name, step.axis, sent, about, step.holds(tp), step.code[0]])
        foot = f"{self.seconds(self.phase) * 1e3:.3g} ms in all on {self.gpu}, modelled"
        if self.cursor:
            foot += f"; step {self.cursor} waits for {self.steps[self.cursor - 1].waits}"
        return self.title, head, rows, foot


@checked_options
def inside(
    model: ModelLike,
    layout: LayoutLike | None = None,
    **options: Unpack[InsideKeywords],
) -> LayerSteps:
    """One layer and one micro-batch, step by step, on the TP × CP group of `rank`.

    What a rank sends is that of `traffic("block", …)` in bfloat16. Seconds are the terms of `cost` without
    recomputation. Raises LayoutError for bad input, and if heads or seq_len do not divide.
    """
    method = method_named(options["cp_method"])
    return inside_of(
        find_model(model),
        Layout.of(layout),
        options["seq_len"],
        options["micro_batch"],
        Conditions(hardware(options["gpu"]), recompute="none", cp_method=method),
        options["kv_replication"],
        options["rank"],
    )


def inside_of(
    model: ModelConfig,
    layout: Layout,
    seq_len: int,
    micro_batch: int,
    how: Conditions,
    kv_replication: bool,
    rank: int,
) -> LayerSteps:
    """The same under given conditions, with recompute set to "none"."""
    whole("rank", rank, 0, layout.world - 1)
    if model.lacks:
        raise ModelError(f"lp.inside is of Llama's layer: {model.family} has {model.lacks}", field="model")
    cut = Cut(model, layout, kv_replication=kv_replication)
    method = CpMethod.of(how.cp_method, layout.cp)
    cut.heads.require(method)
    sent = block_traffic(model, layout, seq_len, micro_batch, how.cp_method)
    shapes = {tp: _shapes(cut, seq_len, micro_batch, tp, method) for tp in range(layout.tp)}
    timed = layer(replace(how, recompute="none"), model, layout, seq_len, micro_batch)
    rows = [row for row in ROWS if method.heads > 1 or row.sends not in TRADES]
    if not method.gathers:
        rows = [RING.get(row.name, row) for row in rows]
    # Seconds need all steps: a term of the pass is shared among those that are alike.
    steps = [*_pass(FORWARD, rows, sent, shapes), *_pass(BACKWARD, rows[::-1], sent, shapes)]
    numel = layer_numel(model)
    steps = [replace(step, seconds=_seconds(step, steps, timed, numel)) for step in steps]
    return LayerSteps(model, layout, seq_len, micro_batch, rank, how.gpu.name, tuple(steps))


def _shapes(
    cut: Cut, seq_len: int, batch: int, tp: int, method: CpMethod
) -> dict[str, dict[str, tuple[int, ...]]]:
    """What a row makes → tensor → its shape on a TP rank."""
    m = cut.model
    lay = cut.layout
    seq = seq_len // lay.cp
    # Only the residual stream is cut by SP; inside attention and MLP every rank has all tokens of its CP
    # rank.
    mine = seq // lay.sp_ways
    heads, kv = (len(cut.along(dim, tp)) for dim in ("n_heads", "n_kv_heads"))

    def keys(tokens: int, kv: int) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(("k", "v"), (batch, tokens, kv, m.head_dim))

    q = {"q": (batch, seq, heads, m.head_dim)}
    among = method.heads
    copied = kv * method.copies(kv)
    traded = {"q": (batch, seq * among, heads // among, m.head_dim)}
    return {
        "residual": {"x": (batch, mine, m.dim)},
        "tokens": {"x": (batch, seq, m.dim)},
        "keys": q | keys(seq, kv),
        "all keys": q | keys(seq_len, kv),
        "traded": traded | keys(seq * among, copied // among),
        "q": {"heads": q["q"]},
        "traded q": {"heads": traded["q"]},
        "summand": {"summand": (batch, seq, m.dim)},
        "hidden": {"hidden": (batch, seq, len(cut.along("ffn_dim", tp)))},
    }


_Shapes = Mapping[int, Mapping[str, Mapping[str, tuple[int, ...]]]]


def _pass(phase: str, rows: Sequence[ProgramRow], sent: Traffic, shapes: _Shapes) -> list[LayerStep]:
    """The steps of a pass; communicating parts that send nothing in it are left out."""
    often = Counter(PARTS["block"])
    found = list[LayerStep]()
    made = [row.shape for row in rows]
    if phase == BACKWARD:
        made = [*made[1:], "residual"]  # the gradient of what the row took
    for row, shape in zip(rows, made, strict=True):
        terms = tuple(
            # `traffic` adds up equal parts of the block: two column inputs, two row outputs. A step is
            # one of them.
            replace(term, count=term.count // often[row.sends])
            for term in sent.terms
            if (term.part, term.phase) == (row.sends, phase)
        )
        if row.sends and not terms:
            continue
        # A step waits for what is made before it, and for what it gets from other ranks.
        waits = found[-1].name if found else BEFORE[phase]
        if terms and terms[0].kind == "send":
            waits += f", and in each round the {terms[0].axis.upper()} neighbour's keys and values"
        elif terms:
            waits += f" on every rank of its {terms[0].axis.upper()} group"
        held = {tp: each[shape] for tp, each in shapes.items()}
        found.append(LayerStep(phase, row, terms, 0.0, held, waits))
    return found


_INPUTS = ("dim", "q", "k", "ffn", "weights")
"""Inputs in which the formulas of `layer` are linear, so that steps can share a term."""


def _seconds(step: LayerStep, steps: Sequence[LayerStep], timed: Pass, numel: Mapping[str, int]) -> float:
    """A step's share of the seconds of its pass."""
    terms = timed.backward
    if step.phase == FORWARD:
        terms = timed.forward
    if step.sent:  # the collectives of an axis in a pass share its seconds by their bytes
        together = sum(other.bytes for other in steps if (other.axis, other.phase) == (step.axis, step.phase))
        return terms[f"exposed {step.axis.upper()}"].value * step.bytes / together
    by = step.row.by
    every = terms["GEMMs"].inputs
    if by == ("attention",):
        return terms["attention"].value
    norms = sum(row.by == by for row in ROWS)  # of two, each has half
    # The formulas with only this row's inputs: they are linear, so the shares add up to the whole terms.
    own = {name: every[name] / norms if name in by else 0.0 for name in _INPUTS}
    own["weights"] = float(sum(numel[key] for key in by if key in numel))
    both = (terms["GEMMs"], terms["elementwise"])
    return sum(replace(term, inputs={**term.inputs, **own}).value for term in both)
