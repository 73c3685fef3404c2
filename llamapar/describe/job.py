"""What a person wants to run: a model, a layout, and the facts around them.

A Job is a frozen value, and most facts may be unknown (None). Whether the job can work is for `lp.check` to
say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from llamapar.errors import Choice, Fields, LayoutError, flag, one_of, shown, whole
from llamapar.records.tables import share

from .configfile import Values
from .cp_methods import WHOLE_HEADS, CpMethod, method_named
from .hardware import Gpu, hardware
from .layout import Layout, LayoutLike
from .models import ModelConfig, ModelLike
from .models import model as find_model
from .options import FACTS, LAYOUT, OPTIONS
from .splits import NO_PADDING, Padding, kv_copies

_COUNTS = {name: OPTIONS[name].most for name in FACTS if OPTIONS[name].is_count}
_CHOICES = {"layer_split", "precision", "grad_dtype", "recompute", "schedule"}

FLOAT8_UNIT = 16
"""What must divide the sizes of a float8 matmul: `torch._scaled_mm` refuses others."""


@dataclass(frozen=True)
class Job(Fields, word="job field"):
    """A model under a layout, with all other known facts; None means unknown.

    gpus: available GPUs. gpus_per_node: GPUs that share NVLink.
    seq_len: tokens of a sequence. batch_tokens: tokens of a global batch.
    batch_per_dp: sequences per DP group and step. micro_batch: sequences of a micro-batch.
    global_batch: sequences of a step, over all DP groups.
    micro_batches: micro-batches per step and DP group; derived from the batch sizes if they determine it.
    kv_replication: hold a KV head on several TP ranks when tp > n_kv_heads.
    padding: vocabulary padding; None means the chosen framework's own, or none.
    quant_group: weights that share a quantisation scale along the input dim.
    layer_split: a name of `splits.LAYER_SPLITS`; None means the chosen framework's own.
    gpu: the job must fit its memory; `of` takes it as `hardware` does.
    precision: of the layers' matmuls, one of `hardware.PRECISIONS`.
    grad_dtype, saves, recompute, schedule, nc: as in `memory`.
    cp_method: how CP ranks share attention, as in `run`; None means the chosen framework's own.
    """

    model: ModelConfig
    layout: Layout
    gpus: int | None = None
    gpus_per_node: int = 8
    seq_len: int | None = None
    batch_tokens: int | None = None
    batch_per_dp: int | None = None
    micro_batch: int | None = None
    global_batch: int | None = None
    micro_batches: int | None = None
    kv_replication: bool = False
    padding: Padding | None = None
    quant_group: int | None = None
    layer_split: str | None = None
    gpu: Gpu | None = None
    precision: str = "bfloat16"
    grad_dtype: str | None = None
    saves: tuple[str, ...] = ()
    recompute: str | None = None
    schedule: str = "1f1b"
    nc: int | None = None
    cp_method: str | None = None

    @classmethod
    def of(cls, model: ModelLike, layout: LayoutLike | None = None, **known: object) -> Job:
        """A checked Job from a person's input. LayoutError or ModelError names the invalid field.

        known: fields of Job, and fields of Layout, which replace those of `layout`.
        """
        layout = Layout.of(layout, **{name: known.pop(name) for name in LAYOUT if name in known})
        # Counts may come as numpy integers; `whole` makes them Python's own, or refuses.
        for name, value in known.items():
            one_of("argument", name, _FACTS)
            if name in _COUNTS and value is not None:
                known[name] = whole(name, value, 1, _COUNTS[name])
        # None means "the default" here: unlike other facts, a node always has some number of GPUs.
        if known.get("gpus_per_node", 8) is None:
            del known["gpus_per_node"]
        flag("kv_replication", known.get("kv_replication", False))
        padding = known.get("padding")
        if padding is not None and not isinstance(padding, Padding):
            raise LayoutError(
                f"padding={shown(padding)}: a Padding is needed",
                "",
                ["Padding(128, per_tp=True)", "a framework's name through lp.check"],
                "padding",
            )
        if known.get("gpu") is not None:
            known["gpu"] = hardware(known["gpu"])  # type: ignore[arg-type]
        if known.get("cp_method") not in WHOLE_HEADS:
            known["cp_method"] = method_named(known["cp_method"])
        # None is a choice only where it is the default; schedule=None would be refused.
        for name in _CHOICES & known.keys():
            if known[name] is not None or OPTIONS[name].default is not None:
                one_of(name, known[name], OPTIONS[name].choices)
        if known.get("nc") is not None and known.get("schedule") != "flexible":
            raise only_flexible(known["nc"], f"schedule={known.get('schedule', OPTIONS['schedule'].default)}")
        return cls(find_model(model), layout, **Values(known))

    def replace(self, **changes: object) -> Job:
        """A copy with some fields changed. The values are not checked again; `of` checks them."""
        return replace(self, **Values(changes))

    # -- numbers that rules and messages speak of ----------------------------------------------

    @property
    def sequences(self) -> int | None:
        """Sequences of a step, from whichever facts determine it; None if none does."""
        dp = self.layout.dp
        tokens = self.batch_tokens
        seq = self.seq_len
        # The most direct fact first. If several are given and differ, a rule says so; here one of them
        # has to count.
        if self.global_batch or self.batch_per_dp:
            return self.global_batch or (self.batch_per_dp or 0) * dp
        if self.micro_batches and self.micro_batch:
            return self.micro_batches * self.micro_batch * dp
        if tokens and seq and tokens % seq == 0:
            return tokens // seq
        return None

    @property
    def micro_batch_size(self) -> int:
        """Sequences of a micro-batch: given, or those of a step over its micro_batches; else 1."""
        if self.micro_batch or not (self.micro_batches and self.sequences):
            return self.micro_batch or 1
        # Where this is not whole, LP405 refuses.
        return max(1, self.sequences // self.micro_batches // self.layout.dp)

    @property
    def float8_sizes(self) -> dict[str, int]:
        """Sizes of a rank's float8 matmuls that are no multiple of FLOAT8_UNIT, by name."""
        m = self.model
        tp = self.layout.tp
        names = ("q_dim", "kv_dim") if m.experts else ("q_dim", "kv_dim", "ffn_dim")
        of_rank = {"dim": m.dim, **{n: -(-getattr(m, n) // tp) for n in names}}
        wide = {name: size for name, size in of_rank.items() if size % FLOAT8_UNIT}
        if self.precision == "float8":
            return wide
        return {}

    def leaves_node(self, axis: str) -> bool:
        """Whether some group of the axis spans several nodes. Nodes hold consecutive ranks."""
        lay = self.layout
        node = self.gpus_per_node
        # A group fits when whole groups fill a node. Fewer ranks than a node has GPUs never leave it.
        return lay.size(axis) > 1 and lay.world > node and node % (lay.stride(axis) * lay.size(axis)) != 0

    @property
    def n_micro_batches(self) -> int | None:
        """Micro-batches per step and DP group, given or derived; None if unknown."""
        if self.micro_batches is not None:
            return self.micro_batches
        if self.micro_batch is None:
            return None
        if self.batch_per_dp is not None and self.batch_per_dp % self.micro_batch == 0:
            return self.batch_per_dp // self.micro_batch
        step = self.micro_batch * self.layout.dp
        if self.global_batch is not None and self.global_batch % step == 0:
            return self.global_batch // step
        return None

    @property
    def kv_replicas(self) -> int:
        """How many TP ranks would hold the same KV head (`splits.kv_copies`)."""
        return kv_copies(self.model.n_kv_heads, self.layout.tp)

    def untradable(self, kv_replication: bool) -> str:
        """Why CP ranks cannot trade heads, in one line (`CpMethod.refusal`); empty if they do not or can."""
        found = CpMethod.of(self.cp_method or "all_gather", self.layout.cp)
        return found.refusal(self.model, self.layout.tp, kv_replication)

    @property
    def node_span(self) -> int:
        """How many consecutive ranks a TP group spans, from its first rank to its last."""
        return (self.layout.tp - 1) * self.layout.stride("tp") + 1

    @property
    def token_unit(self) -> int:
        """What must divide the tokens of a sequence under TP with sequence parallelism and head-tail CP."""
        lay = self.layout
        # Head-tail makes two chunks for each CP rank; without CP the sequence is one chunk.
        if lay.cp > 1:
            return lay.sp_ways * 2 * lay.cp
        return lay.sp_ways

    @lru_cache(maxsize=256)  # noqa: B019  a Job is a small value, and 256 of them are few
    def numbers(self, padding: Padding | None = None) -> dict[str, object]:
        """Every number that message templates use, by name."""
        m = self.model
        lay = self.layout
        own = vars(m) | vars(lay) | vars(self)
        named = {"model": m.name, "unjudged": m.unjudged}
        return own | named | self._of_layout() | self._of_shards(padding)

    def _of_layout(self) -> dict[str, object]:
        """The numbers of ranks, GPUs, stages and layers, and of tokens, sequences and micro-batches."""
        lay = self.layout
        layers = self.model.n_layers
        seq = self.seq_len or self.model.max_seq_len
        batch = self.micro_batch_size
        there = f"there are {self.gpus} GPUs"
        if self.gpus == 1:
            there = "there is 1 GPU"
        return {
            "dp_shard": lay.dp_shard,
            "stages": lay.stages,
            "world": lay.world,
            "model_ranks": lay.model_ranks,
            "model_ranks_there": min(lay.tp, self.gpus or lay.tp) * lay.cp * lay.pp,
            "model_ranks_filled": (self.gpus or 0) // lay.model_ranks * lay.model_ranks,
            "there_are_gpus": there,
            "idle": abs((self.gpus or lay.world) - lay.world),
            "node_span": self.node_span,
            "layers_each": layers // lay.stages,
            "layers_kept": layers // lay.pp // lay.virtual_stages * lay.stages,
            "layers_per_rank": _decimal(layers / lay.pp),
            "effective_layers": layers + 2,
            "effective_per_rank": (layers + 2) // lay.pp,
            "rounds": max(1, (self.n_micro_batches or 1) // lay.pp),
            "cp2": 2 * lay.cp,
            "seq_len": seq,
            "seq_local": seq // lay.cp,
            "seq_chunk": _decimal(seq / (2 * lay.cp)),
            "seq_sp": _decimal(seq / lay.cp / lay.tp),
            "batch": batch,
            "micro_batches": self.n_micro_batches,
            "micro_batches_left": (self.n_micro_batches or 0) % lay.pp,
            "batch_unit": lay.dp * batch,
            "unit_tokens": lay.dp * batch * seq,
            "token_unit": self.token_unit,
            "tokens_got": (self.batch_per_dp or 0) * lay.dp * seq,
            "tokens_per_micro_batch": batch * seq,
            "tokens_local": batch * (seq // lay.cp),
            "sequences": self.sequences,
            "sequences_cut": (self.micro_batches or 0) * batch * lay.dp,
            "sequences_got": (self.batch_per_dp or 0) * lay.dp,
            "global_tokens": (self.global_batch or 0) * seq,
        }

    def _of_shards(self, padding: Padding | None) -> dict[str, object]:
        """The numbers of heads, columns and vocabulary rows."""
        m = self.model
        lay = self.layout
        padding = self.padding or padding or NO_PADDING
        padded = padding.padded(m.vocab_size, lay.tp)
        vocab_local = -(-padded // lay.tp)
        seq = self.seq_len or m.max_seq_len
        batch = self.micro_batch_size
        tokens = batch * (seq // lay.cp)
        # Rounded up: rank 0's share, as torch.chunk gives it.
        q_local = -(-m.q_dim // lay.tp)
        kv_local = -(-m.kv_dim // lay.tp)
        ffn_local = -(-m.ffn_dim // lay.tp)
        pads_where = "shards are uneven, the last ones shorter"
        how_padded = "none of them padding"
        if padded > m.vocab_size:
            pads_where = "pad rows sit at the end, on the last ranks"
            how_padded = f"{padded - m.vocab_size} of them padding up to a {padding}"
        traded = ""
        if self.cp_method not in WHOLE_HEADS:
            traded = self.untradable(False)
        return {
            "q_dim": m.q_dim,
            "kv_dim": m.kv_dim,
            "qkv_dim": m.q_dim + 2 * m.kv_dim,
            "q_local": q_local,
            "kv_local": kv_local,
            "q_numel": tokens * q_local,
            "kv_numel": tokens * kv_local,
            "q_seen": batch * seq * q_local,
            "kv_seen": batch * seq * kv_local,
            "kv_floor": m.n_kv_heads // lay.tp,
            "replicas": self.kv_replicas,
            "heads_traded": traded,
            "kv_traded": "; here KV heads are copied first" if self.kv_replication else "",
            "q_heads_each": m.n_heads // lay.tp,
            "kv_heads_each": max(1, m.n_kv_heads // lay.tp),
            "heads_share": share(m.n_heads, lay.tp, "query head"),
            "kv_share": share(m.n_kv_heads, lay.tp, "KV head"),
            "ffn_local": ffn_local,
            "ffn_wide": ffn_local * lay.tp,
            "ffn_each": f"{m.ffn_dim / lay.tp:.2f}",
            "ffn_exact": _decimal(m.ffn_dim / lay.tp),
            "float8_sizes": ", ".join(f"{name} {size}" for name, size in self.float8_sizes.items()),
            "vocab_padded": padded,
            "vocab_local": vocab_local,
            "vocab_short": padded % vocab_local,
            "vocab_each": f"{m.vocab_size / lay.tp:.10g}",
            "pad_rows": padded - m.vocab_size,
            "pads_where": pads_where,
            "padding": str(padding),
            "padded": how_padded,
        }


def only_flexible(nc: object, schedule: str) -> LayoutError:
    """The error for nc with a schedule that does not use it."""
    why = "nc is of the flexible schedule; the others choose their rounds themselves"
    flexible = Choice((("schedule", "flexible"),), bare=True)
    return LayoutError(f"nc={shown(nc)} with {schedule}", why, [flexible], "nc")


_FACTS = [name for name in Job.__dataclass_fields__ if name not in ("model", "layout")]


def _decimal(value: float) -> str:
    """A short decimal that keeps every digit of the whole part."""
    if value < 1e5:
        return f"{value:g}"
    return f"{value:.10g}"
