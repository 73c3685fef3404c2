"""How the ranks of a context-parallel group share the attention of one sequence, as one record.

all_gather: every rank gets the keys and values of all tokens (The Llama 3 Herd of Models, arXiv:2407.21783,
section 3.3.2). ring: keys and values pass from rank to rank (arXiv:2310.01889). ulysses: an all-to-all gives
each rank all tokens of some heads, and another one returns their outputs (DeepSpeed-Ulysses,
arXiv:2309.14509). "ulysses:4" trades among 4 neighbours, and passes keys around a ring of such groups
(arXiv:2405.07719, and Megatron-LM's a2a+p2p with the sizes 4 and cp/4).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from llamapar.errors import LayoutError

from .models import ModelConfig
from .options import OPTIONS

WHOLE_HEADS = (None, "all_gather", "ring")
"""Methods in which every rank attends with all of a TP rank's heads; None is a trainer's own."""

BOTH = "a2a+p2p"
"""Megatron-LM's name for ulysses:N; without N no framework runs it as it was meant."""

_SPELLED = {"allgather": "all_gather", "p2p": "ring", "a2a": "ulysses", BOTH: "ulysses"}
"""Megatron-LM's names of --cp-comm-type → ours."""

_NO_SIZES = (
    "a2a+p2p without its two sizes: Megatron-Bridge then switched context parallelism off, and each rank "
    "attended to its own tokens alone (NVIDIA-NeMo/Megatron-Bridge #2667)"
)


def method_named(said: object) -> str:
    """The method as the table of options spells it: "a2a" is "ulysses", "a2a+p2p:4" is "ulysses:4".

    "a2a+p2p" stays, so that `check` can say what is wrong with it. Raises LayoutError for an unknown method.
    """
    if not isinstance(said, str) or said == BOTH:
        if said == BOTH:
            return BOTH
        return OPTIONS["cp_method"].chosen(said)
    name, colon, size = said.partition(":")
    name = _SPELLED.get(name, name)
    if name == "ulysses" and size.isdecimal() and int(size):
        return f"{name}:{int(size)}"
    return OPTIONS["cp_method"].chosen(f"{name}{colon}{size}")


def of_comm_type(word: object, size: int | None) -> str | None:
    """Megatron-LM's cp_comm_type, with the first of its hierarchical sizes; None for what cannot run."""
    with suppress(LayoutError):
        return method_named(f"{word}:{size}" if word == BOTH and size else word)
    return None


@dataclass(frozen=True)
class CpMethod:
    """A method on a group of `cp` ranks: `heads` neighbours trade heads, and `ring` such groups pass keys on.

    gathers: all keys come at once, and then heads and ring are 1. problem: why it cannot run at all.
    """

    cp: int
    heads: int = 1
    ring: int = 1
    gathers: bool = False
    problem: str = ""

    @classmethod
    def of(cls, said: object, cp: int) -> CpMethod:
        """The method by a name of the option `cp_method`. Raises LayoutError for an unknown one."""
        name, _, size = method_named(said).partition(":")
        if name == "all_gather":
            return cls(cp, gathers=True)
        heads = 1
        if name == "ulysses":
            heads = min(int(size or cp), cp)
        return cls(cp, heads, cp // heads, problem=_NO_SIZES if name == BOTH and cp > 1 else "")

    def copies(self, n_kv_heads: int) -> int:
        """How often a TP rank's KV heads are copied, so that each of the trading ranks gets one."""
        return max(1, self.heads // n_kv_heads)

    def refusal(self, model: ModelConfig, tp: int, kv_replication: bool) -> str:
        """Why heads cannot be traded, in one line; empty if they can, or if tp already cuts through a head.

        Every rank needs as many query heads, and as many KV heads, which may be copied as under tp.
        """
        if self.problem or self.cp % self.heads:
            return self.problem or f"groups of {self.heads} ranks do not divide cp={self.cp}"
        q = model.n_heads // tp
        kv = max(1, model.n_kv_heads // tp)
        copied = kv_replication and self.heads % kv == 0
        if model.n_heads % tp or not (q % self.heads or (kv % self.heads and not copied)):
            return ""
        whose = f"heads per TP rank {model.n_heads}/{tp} = {q}, KV heads {model.n_kv_heads}/{tp} = {kv}"
        over = "ulysses"
        if self.heads == self.cp:
            over = "cp"
        return f"{whose}: these do not both divide over {over}={self.heads}"
