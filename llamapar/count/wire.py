"""The communication volume of a program: what a rank sends, by closed formulas.

Nothing runs, so true sizes cost as little as small ones. Tests compare the formulas with traces of runs.

Sources: the ways into and out of tensor parallelism are f and g of Megatron-LM (arXiv:1909.08053, section 3),
under sequence parallelism their two halves (arXiv:2205.05198, section 4.2.2); the loss over vocabulary rows
is Megatron-LM's too. Context parallelism all-gathers K and V (The Llama 3 Herd of Models, arXiv:2407.21783,
section 3.3.2) or passes them around a ring (arXiv:2310.01889).

A payload is that of `CollectiveEvent`: the output of an all-gather, else the input. What a rank sends of it
is said by `records.trace.sent_bytes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

from llamapar.describe.arguments import checked_options
from llamapar.describe.cp_methods import CpMethod
from llamapar.describe.dtypes import BYTES
from llamapar.describe.families import FAMILIES
from llamapar.describe.keywords import TrafficKeywords
from llamapar.describe.layout import AXES, SHARDING, Layout, LayoutLike
from llamapar.describe.models import ModelConfig, ModelLike
from llamapar.describe.models import model as find_model
from llamapar.describe.options import OPTIONS, Values
from llamapar.describe.placement import BESIDE
from llamapar.describe.splits import Padding
from llamapar.errors import Choice, LayoutError, flag, one_of, whole
from llamapar.frameworks import padding_rule
from llamapar.frameworks.trainer import USUAL
from llamapar.place.cut import Cut
from llamapar.place.pipeline import Schedule
from llamapar.place.schedule import of_layout
from llamapar.place.stage_map import Stage
from llamapar.records.tables import Record
from llamapar.records.trace import PHASES, Sends, sent_bytes

from .payloads import TENSOR_PARALLEL, of_cp, of_parameters, of_stages
from .sharing import ONCE, ParameterTraffic, Row, seen_in

_ATTENTION = (
    *("column input", "wq", "wk", "wv", "tokens to heads", "K and V", "heads to tokens", "wo", "row output"),
)
TRADES = ("tokens to heads", "heads to tokens")
"""The parts in which CP ranks trade tokens for heads, and back."""

_MLP = ("column input", "w1", "w3", "w2", "row output")

WHOLE = ("llama", "step")
"""Programs of the whole model, which run in the stages of a pipeline; the others are parts of one."""

PARTS = {
    "attention": _ATTENTION,
    "embedding": ("tok_embeddings", "row output"),
    "loss": ("column input", "output", "loss"),
    "mlp": _MLP,
    "block": ("norm", *_ATTENTION, "norm", *_MLP),
    **dict.fromkeys(WHOLE, ("tok_embeddings", "row output", "norm", "column input", "output", "loss")),
    "mlp_unfused": ("column input", *_MLP),
}
"""Program → its parts: parameters by `model.Parameter.key`, and parts that communicate.

Programs of the whole model also have blocks, between the first two parts and the others.
"""


def block_parts(model: ModelConfig) -> tuple[str, ...]:
    """The parts of a block, in the order of the forward, with the norms of the model's family."""
    first, after, second, last = (
        ("norm",) * (name in FAMILIES[model.family].names)
        for name in ("attention_norm", "attention_post_norm", "ffn_norm", "ffn_post_norm")
    )
    return (*first, *_ATTENTION, *after, *second, *_MLP, *last)


_AXES = (*AXES, SHARDING)


@dataclass(frozen=True)
class Collectives:
    """`count` collectives of `payload` bytes each among `ranks` ranks, caused by `part` of the program."""

    part: str
    phase: str
    axis: str
    kind: str
    count: int
    payload: int
    ranks: int

    @property
    def sent(self) -> int:
        """Bytes that a rank sends in all of them."""
        return self.count * sent_bytes(self.kind, self.payload, self.ranks)


@dataclass(frozen=True, repr=False)
class Traffic(Record, Sends):
    """What a rank sends, term by term; it has the same `bytes` and `by_axis` as a `Trace`."""

    title: str
    terms: tuple[Collectives, ...]

    @property
    def events(self) -> tuple[Collectives, ...]:
        """The terms."""
        return self.terms

    @property
    def by_phase(self) -> dict[tuple[str, str], int]:
        """(phase, axis) → bytes, for each pair with traffic."""
        pairs = dict.fromkeys((t.phase, t.axis) for t in self.terms)
        return {(phase, axis): self.bytes(axis, phase) for phase, axis in pairs}

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        head = ["phase", "axis", "of", "collective", "times", "payload", "sent"]
        rows: list[list[object]] = [
            [t.phase, t.axis, t.part, t.kind, f"{t.count:,}", f"{t.payload:,}", f"{t.sent:,}"]
            for t in self.terms
        ]
        return self.title, head, rows, self.axes_in_words


@dataclass(frozen=True)
class Sending:
    """What each part of a program sends on a rank: part → its rows.

    table: the pipeline's schedule; None if the whole model is one stage. reductions: as in ParameterTraffic.
    """

    program: str
    rank: int
    cut: Cut
    table: Schedule | None
    rows: Mapping[str, Sequence[Row]]
    reductions: int


def sending(
    program: str,
    model: ModelLike,
    layout: LayoutLike,
    seq_len: int,
    global_batch: int | None = None,
    dtype: str = "float32",
    kv_replication: bool = False,
    padding: str | Padding | None = None,
    cp_method: str = "all_gather",
    schedule: str | Schedule = "1f1b",
    micro_batches: int | None = None,
    nc: int | None = None,
    reshard_after_forward: bool = True,
    rank: int = 0,
) -> Sending:
    """What the parts of a program send. Arguments and errors: as in `traffic`."""
    m = find_model(model)
    lay = Layout.of(layout)
    rule = padding_rule(padding)
    one_of("program", program, PARTS)
    table = None
    trains = program == "step"
    if trains or micro_batches is not None:
        if program not in WHOLE:
            why = "micro_batches are of the whole model's pipeline"
            raise LayoutError(f"{program} has no stages", why, [Choice.of(program="llama")], "program")
        table, lay = of_layout(schedule, lay, micro_batches, nc, global_batch)
    latent = m.experts is not None and m.experts.latent
    if program in WHOLE or "w1" in PARTS[program] or ("wq" in PARTS[program] and latent):
        m.require_judged(f"traffic of {program}", Choice.of(program="embedding" if latent else "attention"))
    if lay.tp > 1 and m.norms_width:
        raise LayoutError(
            f"tp={lay.tp}: what it sends is not known for {m.family}, whose norms span the width of Q and K",
            "vLLM gathers Q and K, OLMo-core trades heads for tokens, transformers gathers V as well",
            [Choice.of(tp=1)],
            "tp",
        )
    cut = Cut(m, lay, padding=rule, kv_replication=flag("kv_replication", kv_replication))
    method = CpMethod.of(cp_method, lay.cp)
    if program in WHOLE or "K and V" in PARTS[program]:
        cut.heads.require(method)
    item = BYTES[OPTIONS["dtype"].chosen(dtype)]
    wide = max(item, 4)  # the loss, gradients on their way around a ring, and sums of a training step's
    summed = item
    if trains:
        summed = wide
    # The default batch is the smallest: one sequence for each dp way and micro-batch.
    shares = lay.dp * (table.micro_batches if table is not None else 1)
    # Sequences of one micro-batch, and tokens of a CP rank, which SP must be able to cut over tp.
    sequences = _share("global_batch", shares if global_batch is None else global_batch, shares)
    tokens = sequences * _share("seq_len", seq_len, lay.cp * lay.sp_ways) * lay.sp_ways
    again = flag("reshard_after_forward", reshard_after_forward)
    reductions = 1
    if not (table is None or USUAL.reduces_once(lay.pp)):
        reductions = table.micro_batches
    sent = ParameterTraffic(cut, lay.coord_of(rank), item, summed, again, reductions)
    residual = tokens * m.dim * item
    rows: dict[str, Sequence[Row]] = {
        **{
            part: [(phase, "tp", kind, 1, residual, lay.tp) for phase, kind in collectives]
            for part, collectives in TENSOR_PARALLEL[lay.sp].items()
        },
        # `tokens` numbers each time, one for every token of the rank, not one for every row of the
        # vocabulary: the maximum, the sum of exponentials, and the target's logit.
        "loss": [
            ("forward", "tp", "all_reduce", 3, tokens * wide, lay.tp),
            ("forward", "cp", "all_reduce", 1, sequences * wide, lay.cp),
        ],
        **of_cp(cut, method, tokens, item, wide),
        **of_parameters(sent, late=table is not None),
        **of_stages(cut, residual // lay.sp_ways, summed, wide),
    }
    return Sending(program, rank, cut, table, rows, reductions)


@checked_options
def traffic(
    program: str,
    model: ModelLike,
    layout: LayoutLike | None = None,
    **options: Unpack[TrafficKeywords],
) -> Traffic:
    """What a rank sends in a forward and backward of `program`, one of PARTS. Arguments: as in `run`.

    global_batch: sequences over all dp ways; by default one for each dp way and micro-batch (`lp.run` has
    two). If shards are even, every rank of a stage sends as much. micro_batches: makes "llama" the pipeline
    of `schedule`, of which `rank` has its own stages; without it, the rank has all stages one after another,
    and pp sends nothing. "step" is always a pipeline, followed by the gradient norm and the update, with
    gradients in float32 at least. Under ZeRO 2 and 3 gradients are reduced once in a pipeline, and with pp=1
    after every micro-batch.

    Raises LayoutError for bad input, and if heads, batch or seq_len do not divide.
    """
    lay = Layout.of(layout)
    rank = options["rank"]
    sent = sending(program, model, lay, **Values(options))
    m = sent.cut.model
    lay = sent.cut.layout
    table = sent.table
    rows = sent.rows
    # Without a table there is one micro-batch, and every phase runs once.
    works = [_Work(_parts(program, sent.cut), {"forward": 1, "backward": 1, "gradients": 1, ONCE: 1})]
    if table is not None:
        works = _works(sent.cut, table, lay.coord_of(rank).pp, program == "step")
    found = Counter[tuple[str, str, str, str, int, int]]()
    for work in works:
        for part, times in work.parts.items():
            for phase, axis, kind, count, payload, ranks in rows[part]:
                if lay.size(axis) > 1:
                    found[part, seen_in(phase), axis, kind, payload, ranks] += (
                        times * work.passes.get(phase, 0) * count
                    )
    terms = [
        Collectives(part, phase, axis, kind, count, payload, ranks)
        for (part, phase, axis, kind, payload, ranks), count in found.items()
        if count
    ]
    terms.sort(key=lambda t: (PHASES.index(t.phase), _AXES.index(t.axis)))
    of = "what a rank sends"
    if table is not None:
        of = f"what rank {rank} sends by {table.title}"
    return Traffic(f"{program}, {m.name}, {lay}: {of}", tuple(terms))


@dataclass(frozen=True)
class _Work:
    """Parts of a program on a rank, and how often they run in each phase."""

    parts: Counter[str]
    passes: Mapping[str, int]


def _parts(program: str, cut: Cut, stage: Stage | None = None) -> Counter[str]:
    """The parts of a program, or of one stage of the whole model."""
    m = cut.model
    parts = Counter(block_parts(m) if program == "block" else PARTS[program])
    if program in WHOLE:
        # Embedding, blocks, head: a tuple times False is empty, which drops an end that the stage does
        # not hold.
        first = PARTS[program][:2]
        last = PARTS[program][2:]
        stage = stage or Stage(0, 0, range(m.n_layers), embedding=True, head=True)
        parts = Counter(first * stage.embedding + block_parts(m) * len(stage.layers) + last * stage.head)
        same = m.tied and stage.head and stage.embedding
        parts["output"] = int(stage.head and not same)
        parts["the same as head"] = int(same)
    keys = {p.key for p in m.replace(n_layers=1).parameters()}
    for weight, others in BESIDE.items():
        parts.update({key: parts[weight] for key in others if key in keys})
    return parts


def _works(cut: Cut, table: Schedule, pp_rank: int, trains: bool) -> list[_Work]:
    """What a PP rank does in a pipeline: each stage's passes, its sends to other ranks, and its gradients.

    Input gradients (I) and weight gradients (W) each pass through everything that communicates, except the
    stage with the embedding, because tokens have no gradient. trains: the update follows.
    """
    found = list[_Work]()
    parameters = Counter[str]()
    for stage in cut.stages_of(table, pp_rank):
        kinds = Counter(kind for kind, number, _ in table.ranks[pp_rank] if number == stage.stage)
        # Each half of a split backward runs the stage's graph again, collectives included.
        halves = kinds["W"] + kinds["I"] * (not stage.embedding)
        passes = {"forward": kinds["F"], "backward": kinds["B"] + halves, "gradients": 0, ONCE: 1}
        parts = _parts("llama", cut, stage)
        found.append(_Work(parts, passes))
        # Gradients are reduced once a step for all stages of the rank together, so they are no part of
        # the passes.
        parameters += parts
        # Stages that are neighbours on one rank, as at the turn of a V, pass tensors without sending.
        for phase, other in (("forward", stage.stage + 1), ("backward", stage.stage - 1)):
            if 0 <= other < table.stages and table.rank_of(other) != pp_rank:
                found.append(
                    _Work(Counter(["stage"]), dict.fromkeys(PHASES, 0) | {phase: table.micro_batches})
                )
    ends = {table.rank_of(0), table.rank_of(table.stages - 1)}
    if cut.model.tied and pp_rank in ends:
        # Embedding and tied head on one rank are one tensor, which must not be reduced twice.
        if len(ends) == 1:
            parameters["output"] = 0  # the same tensor
        else:
            found.append(_Work(Counter(["the other end"]), dict.fromkeys(PHASES, 1)))
    if trains:
        parameters["sum of squares"] = 1
    found.append(_Work(parameters, {"gradients": 1, "update": int(trains)}))
    return found


def _share(name: str, n: int, ranks: int) -> int:
    """n / ranks; else a LayoutError with the nearest values that divide."""
    if whole(name, n) % ranks:
        near = [f"{name}={k * ranks}" for k in (n // ranks, n // ranks + 1) if k]
        raise LayoutError(
            f"{ranks} ranks do not divide {name}={n}", "every rank has an equal share", near, name
        )
    return n // ranks
