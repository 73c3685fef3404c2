"""Seconds of one layer and one micro-batch on a rank, as formulas of the model, the layout and the GPU.

Each shown formula is the one that is evaluated. Matmuls take 2 FLOPs a parameter and token, and twice that in
the backward (arXiv:2104.04473 appendix). Fused attention computes scores again in its backward, which then
takes 2.5 times the forward (arXiv:2307.08691 section 4). Everything else moves its tensors through memory.
What tensor and context parallelism send comes from `count.wire`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache

from llamapar.count.flops import AGAIN, layer_numel
from llamapar.count.terms import Term
from llamapar.count.wire import TRADES, Traffic, traffic
from llamapar.describe.cp_methods import CpMethod, method_named
from llamapar.describe.hardware import DEFAULT_GPU, HARDWARE, Gpu
from llamapar.describe.job import Job
from llamapar.describe.layout import Layout
from llamapar.describe.models import ModelConfig
from llamapar.describe.options import OPTIONS, Values
from llamapar.frameworks import Framework, habits_of, recompute_of
from llamapar.frameworks.trainer import Habits

from .profiles import PROFILES
from .rings import HOP, NET_HOP, RING_SOURCE, START, Ring

MATMULS = ("wq", "wk", "wv", "wo", "w1", "w2", "w3")


@dataclass(frozen=True)
class Conditions:
    """How a job runs on its GPUs.

    precision: of the layers' matmuls. kernels: "fused", as by torch.compile and
    Transformer Engine, or "eager". flash: a kernel of FLASH, or "fa3". recompute: as in `memory`.
    overlap_tp: TP's collectives run beside matmuls. imbalance: attention work of the busiest rank over an
    even share of whole causal sequences. low_gather: ZeRO 3 gathers weights in float8. cast: bytes moved to
    cast a number to 8 bits, DYNAMIC or DELAYED. judge: the trainer, or None if unknown. profile: a name of
    PROFILES.
    """

    gpu: Gpu
    precision: str = "bfloat16"
    kernels: str = "fused"
    flash: str = "fa3"
    recompute: str = "selective"
    overlap_tp: bool = False
    cp_method: str = "all_gather"
    imbalance: float = 1.0
    low_gather: bool = False
    cast: int = 5
    judge: Framework | None = None
    profile: str = "none"

    def __post_init__(self) -> None:
        self.gpu.require_rates(self.precision)

    @classmethod
    def of(
        cls,
        judge: Framework | None,
        gpu: Gpu,
        recompute: str | None = None,
        *,
        profile: str | None = None,
        cp_method: str | None = None,
        overlap_tp: bool | None = None,
        kernels: str | None = None,
        **others: object,
    ) -> Conditions:
        """The usual conditions on a GPU, with what the framework does by habit.

        profile, cp_method, overlap_tp, kernels: None means the framework's own, if it has one. others: fields
        that no framework decides. Raises LayoutError for an unknown one.
        """
        name = ""
        if judge:
            name = judge.name
        habits = habits_of(judge)
        own = OPTIONS["profile"].chosen(profile or (name if name in PROFILES else "none"))
        return cls(
            gpu,
            kernels=kernels or PROFILES[own].kernels or habits.kernels,
            recompute=recompute_of(judge, recompute),
            overlap_tp=habits.overlaps_tp if overlap_tp is None else overlap_tp,
            cp_method=method_named(cp_method or habits.cp_method),
            cast=DELAYED if name in DELAYS else DYNAMIC,
            judge=judge,
            profile=own,
            **Values(others),
        )

    @classmethod
    def of_job(cls, job: Job, judge: Framework | None) -> Conditions:
        """The usual conditions of a job; without a GPU of its own, on the default one."""
        return cls.of(judge, job.gpu or HARDWARE[DEFAULT_GPU], job.recompute, cp_method=job.cp_method)

    @property
    def habits(self) -> Habits:
        """The trainer's."""
        return habits_of(self.judge)

    @property
    def matmul_rate(self) -> float:
        """FLOP/s of the layers' matmuls."""
        return self.gpu.sustains(self.precision)

    @property
    def flash_shares(self) -> tuple[float, float]:
        """The shares of the peak that attention reaches, forward and backward."""
        if self.flash in FLASH:
            forward, backward = FLASH[self.flash]
            # FLASH's shares fall in proportion to the power (assumed); a GPU's own fall as its bfloat16
            # matmuls do.
            return forward * self.gpu.throttle, backward * self.gpu.throttle
        return self.gpu.attention * self.gpu.capped, self.gpu.attention_backward * self.gpu.capped


CONDITIONS = ("profile", "cp_method", "overlap_tp", "kernels", "precision", "flash")
"""Options of `cost` and of `plan` that Conditions have as they are given."""

STREAM = 0.9
"""The share of the memory's rate that kernels reach (assumed)."""

FLASH = {"fa2": (0.37, 0.31), "unfused": (0.0, 0.0)}
"""Kernel → its shares of an H100's peak, where they differ from the GPU's own, forward and backward.

FlashAttention-2 reaches 370 and some 310 TFLOP/s (arXiv:2407.08608 figures 5 and 6). Less power lowers them
in proportion (assumed).
"""

EXPOSED = 0.5
"""The share of TP's time that remains when it is overlapped.

Measured on 70B, TP 8, bfloat16 on H100 of 500 W: 597 to 652 tokens/s a GPU (torchtitan,
benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md) saves 2.3 of the 5.0 seconds of a step that its
collectives take by the formula below.
"""

MOVED = {
    # norms twice read and written, residual twice read twice and written, RoPE on q and k, SwiGLU
    "fused": ("2 * (2 * (2 + 3) * dim + 2 * (q + k) + 3 * ffn) * tokens / tp", 2.0),
    # the norm in float32, seven passes; RoPE in complex float32; SiLU and product apart
    "eager": ("(2 * (32 + 6) * dim + 20 * (q + k) + 10 * ffn) * tokens / tp", 2.0),
}
"""Kernels → bytes that all but matmuls move in a forward, and the backward's bytes over the forward's."""

CASTS = "cast * (2 * dim + q + ffn) * tokens / tp"
"""Bytes moved to cast a layer's inputs to float8."""

DYNAMIC, DELAYED = 5, 3
"""Bytes per number of a cast to float8.

DYNAMIC: read for its scale, read again and written (torchao). DELAYED: with the scale of earlier steps
(Transformer Engine's delayed scaling).
"""

DELAYS = ("megatron-lm",)
"""Frameworks that take float8 scales from earlier steps: Transformer Engine's default recipe."""

SUMS = "10 * weights / tp"
"""Bytes moved to add a micro-batch's gradients in 16 bits to their sums, which are read and written in 32."""

MERGES = "merges * 6 * tokens * q / tp", "merges * 6 * tokens * (q + 2 * k) / tp"
"""Bytes moved to add up what a ring's steps make: in a forward the output, in a backward the gradients.

Each further step reads its own numbers, and reads and writes the sums, in 16 bits (NVIDIA/TransformerEngine
@d0067d0da6cb, context_parallel.py `flash_attn_fwd_out_correction`).
"""

SOFTMAX = "20 * heads * seq * seq * batch / tp / cp"
"""Bytes of unfused attention: scores written, scaled, masked, softmax and dropout, each in 16 bits."""


@dataclass(frozen=True)
class Pass:
    """Terms of one layer and one micro-batch, by name, in the order in which they are shown.

    The backward includes what it recomputes.
    """

    forward: dict[str, Term] = field(default_factory=dict)
    backward: dict[str, Term] = field(default_factory=dict)

    @property
    def seconds(self) -> tuple[float, float]:
        """Seconds of the forward and of the backward."""
        return _total(self.forward), _total(self.backward)


@lru_cache(maxsize=4096)
def layer(how: Conditions, model: ModelConfig, layout: Layout, seq_len: int, batch: int) -> Pass:
    """The terms of one layer and a micro-batch of `batch` sequences. LayoutError if shards do not divide."""
    gpu, tp, cp = how.gpu, layout.tp, layout.cp
    numel = layer_numel(model)
    only_attention = how.recompute == "selective" and how.habits.selective == "attention"
    again = AGAIN[how.recompute]
    if only_attention:
        again = frozenset({"attention"})
    repeats = bool(again) and again != {"attention"}  # norms and SwiGLU are computed again with matmuls
    inputs: dict[str, float] = {
        "tokens": batch * seq_len / cp,
        "batch": batch,
        "seq": seq_len,
        "tp": tp,
        "cp": cp,
        "dim": model.dim,
        "q": model.q_dim,
        "k": model.kv_dim,
        "ffn": model.ffn_dim,
        "heads": model.n_heads,
        "weights": sum(numel[key] for key in MATMULS),
        "again": sum(numel[key] for key in MATMULS if key in again),
        "rate": how.matmul_rate,
        "memory": gpu.hbm_rate * STREAM,
        "imbalance": how.imbalance,
        "attention_again": float("attention" in again),
        "moved_again": float(repeats),
        "merges": CpMethod.of(how.cp_method, cp).ring - 1.0,
    }
    # In the order in which they are shown; "as fitted" comes last, because it is a share of the others.
    found = Pass()
    source = f"2 FLOPs a parameter and token; {gpu.source}"
    found.forward["GEMMs"] = Term("GEMMs", "2 * tokens * weights / tp / rate", inputs, source)
    twice = "2 * tokens * (2 * weights + again) / tp / rate"
    found.backward["GEMMs"] = Term("GEMMs", twice, inputs, source)
    _attention(found, inputs, how)
    _moved(found, inputs, how)
    _sent(found, inputs, how, model, layout)
    _as_fitted(found, how, 3.0 if how.recompute == "full" else 2.0)
    return found


def _total(terms: dict[str, Term]) -> float:
    return sum(term.value for term in terms.values())


def _as_fitted(found: Pass, how: Conditions, launched: float) -> None:
    """Adds a profile's term. launched: operations of a backward over those of a forward."""
    fitted = PROFILES[how.profile]
    if how.profile == "none":
        return
    for terms, over in ((found.forward, 1.0), (found.backward, launched)):
        named = {
            "busy": _total(terms),
            "slower": fitted.slower,
            "host": fitted.host * over,
        }
        # Either the GPU is slower than the formulas, or it waits for the host to launch: the worse of both.
        formula = "max((slower - 1) * busy, host - busy)"
        terms["as fitted"] = Term("as fitted", formula, named, "fitted to published runs: timing.profiles")


def _attention(found: Pass, inputs: dict[str, float], how: Conditions) -> None:
    source = f"causal, half of the square; {how.gpu.source}"
    forward, backward = (share * how.gpu.bfloat16 for share in how.flash_shares)
    # Two matmuls, QK and PV, of 2 FLOPs each, over half of the square: 2 in all for each pair of tokens.
    work = "2 * batch * seq * seq * q / tp / cp * imbalance"
    if how.flash == "unfused":
        named = inputs | {"attention_rate": how.gpu.bfloat16 * how.gpu.gemm}
        # masked scores are computed, and softmax goes through memory; its backward moves as much again
        once = f"2 * {work} / attention_rate + {SOFTMAX} / memory"
        twice = f"(2 + attention_again) * ({once})"
    else:
        named = inputs | {"attention_rate": forward, "backward_rate": backward}
        once = f"{work} / attention_rate"
        twice = f"{work} * (2.5 / backward_rate + attention_again / attention_rate)"
    found.forward["attention"] = Term("attention", once, named, source)
    found.backward["attention"] = Term("attention", twice, named, source)


def _moved(found: Pass, inputs: dict[str, float], how: Conditions) -> None:
    moved, more = MOVED[how.kernels]
    named = inputs | {"more": more, "cast": float(how.cast)}
    once = f"({moved}) / memory"
    twice = f"((more + moved_again) * {moved} + {SUMS}) / memory"
    if how.precision != "bfloat16":  # gradients of outputs are cast too, and inputs once more for weights
        once = f"{once} + {CASTS} / memory"
        twice = f"{twice} + (2 + moved_again) * {CASTS} / memory"
    if inputs["merges"]:
        once = f"{once} + {MERGES[0]} / memory"
        twice = f"{twice} + {MERGES[1]} / memory"
    source = "bytes through memory, each tensor read and written once a kernel"
    found.forward["elementwise"] = Term("elementwise", once, named, source)
    found.backward["elementwise"] = Term("elementwise", twice, named, source)


def _sent(found: Pass, inputs: dict[str, float], how: Conditions, model: ModelConfig, layout: Layout) -> None:
    """Adds the collectives of tp and cp, exposed unless they run beside matmuls or, in a ring, attention."""
    if layout.tp == layout.cp == 1:
        return
    sent = _sent_by_axis(model, _of_block(layout), int(inputs["seq"]), how.cp_method)
    method, stride = CpMethod.of(how.cp_method, layout.cp), layout.stride("cp")
    trade = Ring.of(how.gpu, method.heads, stride)
    rings = {
        "tp": Ring.of(how.gpu, layout.tp, layout.stride("tp")),
        "cp": Ring.of(how.gpu, layout.cp // method.heads, stride * method.heads),
    }
    for axis, ring in rings.items():
        if layout.size(axis) == 1:
            continue
        totals = dict(sent[axis])
        # Full recomputation runs the forward again in the backward, its collectives included. Selective
        # keeps the results of collectives.
        if how.recompute == "full":
            totals["backward"] = totals["backward"] + totals["forward"]
        # A ring sends the next keys while attention works on the present ones; only what takes longer is
        # exposed. Nothing hides an all-to-all: attention needs the heads, and wo the tokens.
        hidden = axis == "cp" and method.ring > 1
        for phase, terms in (("forward", found.forward), ("backward", found.backward)):
            named = {
                **totals[phase],
                **{size: inputs["batch"] * totals[phase][size] for size in ("sent", "traded")},
                "link": ring.rate(how.gpu),
                "latency": ring.latency,
                "exposed": EXPOSED if axis == "tp" and how.overlap_tp and layout.sp else 1.0,
                "beside": terms["attention"].value if hidden else 0.0,
                "trade_link": trade.trade_rate(how.gpu),
                "trade_latency": START + (HOP if trade.inside == trade.size else NET_HOP),
            }
            formulas = {
                "count": "exposed * sent / link + count * latency",
                "trades": "traded / trade_link + trades * trade_latency",
            }
            if hidden:
                formulas["count"] = f"max(0, {formulas['count']} - beside)"
            formula = " + ".join(text for sends, text in formulas.items() if totals[phase][sends])
            name = f"exposed {axis.upper()}"
            terms[name] = Term(name, formula or "0", named, RING_SOURCE)


def _of_block(layout: Layout) -> Layout:
    """What matters of a layout for a block, so that layouts share an entry of a cache."""
    return layout.replace(pp=1, dp=1, dp_replicate=1, virtual_stages=1, zero=0)


@lru_cache(maxsize=1024)
def _sent_by_axis(
    model: ModelConfig, layout: Layout, seq_len: int, cp_method: str
) -> dict[str, dict[str, Counter[str]]]:
    """Axis → phase → what tp and cp send of one sequence in one block, by the names in the formulas."""
    found = {axis: {phase: Counter[str]() for phase in ("forward", "backward")} for axis in ("tp", "cp")}
    for term in block_traffic(model, layout, seq_len, 1, cp_method).terms:
        if term.phase in found[term.axis]:
            size, count = ("traded", "trades") if term.part in TRADES else ("sent", "count")
            found[term.axis][term.phase] += Counter({size: term.sent, count: term.count})
    return found


def block_traffic(model: ModelConfig, layout: Layout, seq_len: int, batch: int, cp_method: str) -> Traffic:
    """What tp and cp send for a micro-batch in one block. All of a model's blocks send the same."""
    return traffic(
        "block",
        model.replace(n_layers=1),
        _of_block(layout),
        seq_len=seq_len,
        global_batch=batch,
        dtype="bfloat16",
        cp_method=cp_method,
        kv_replication=True,
    )
