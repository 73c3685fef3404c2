"""The setting of a run: how everything is cut, and the piece of each tensor on each rank.

A program names the tensors that it needs as its arguments. This module looks up their global shapes, fills
them with seeded random numbers, and takes each rank's piece by the cut. It sends nothing.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from llamapar.describe.cp_methods import CpMethod
from llamapar.describe.layout import Layout
from llamapar.describe.placement import ACTIVATIONS, PARAMETERS, Partial, Replicate, Shard
from llamapar.errors import LlamaparError
from llamapar.frameworks.trainer import USUAL
from llamapar.place.cut import Cut
from llamapar.place.pipeline import Schedule
from llamapar.place.stage_map import Stage

from .compat import Coord
from .training import Training

DTYPES = {"float64": 1e-12, "float32": 2e-5, "bfloat16": 5e-2}
"""dtype → the largest max|Δ| / max|reference| that counts as equal to the unsharded model."""

ALIASES = {"x": "residual", "targets": "tokens", "attention_norm": "norm", "ffn_norm": "norm"}
"""Argument names of programs → their rows in the placement table."""

NEAR_ZERO = 1e-3
"""Factor of some tokens of x: their mean square, 1e-6, is below the 1e-5 that Llama's norms add to it."""

TIED = "tok_embeddings.weight"
"""What the first stage and the last share in a tied model."""


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The dtype for sums: torch.promote_types of the dtype and float32, without an operation."""
    if dtype == torch.float64:
        return torch.float64
    return torch.float32


@dataclass(frozen=True, kw_only=True)
class Setting(Cut):
    """The context of a program besides its tensors: the cut, and the options of the step.

    global_batch: sequences over all dp ways. cp_method: as in `cp_methods`. documents: lengths of the
    documents of each sequence; a token attends only to its own. pads_in_softmax: pad rows count in the loss,
    as in Megatron-LM. schedule: of the pipeline, if its stages are run; without one, layout.pp is 1.
    reshard_after_forward: the backward of ZeRO 3 gathers parameters again instead of keeping them.
    training: the update after the backward; None for a run without one.
    """

    seq_len: int
    global_batch: int = 1
    dtype: str = "float32"
    seed: int = 0
    cp_method: str = "all_gather"
    documents: tuple[int, ...] | None = None
    pads_in_softmax: bool = False
    schedule: Schedule | None = None
    reshard_after_forward: bool = True
    training: Training | None = None

    @property
    def sp(self) -> bool:
        """Whether sequence parallelism cuts the residual stream over tp."""
        return self.layout.sp

    @property
    def trading(self) -> CpMethod:
        """How CP ranks share attention."""
        return CpMethod.of(self.cp_method, self.layout.cp)

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    @property
    def sum_dtype(self) -> torch.dtype:
        """dtype for sums of gradients: at least float32 in training, else the parameters' dtype."""
        wide = at_least_float32(self.torch_dtype)
        if self.training is not None:
            return wide
        return self.torch_dtype

    # -- a pipeline ----------------------------------------------------------------------------

    @property
    def micro_batches(self) -> int:
        """Number of micro-batches of a dp way."""
        if self.schedule is not None:
            return self.schedule.micro_batches
        return 1

    @property
    def micro_batch(self) -> int:
        """Number of sequences in a micro-batch."""
        return self.global_batch // self.layout.dp // self.micro_batches

    @property
    def reduces_each(self) -> bool:
        """Whether gradients become shards after every micro-batch, instead of after the last one."""
        return self.shards.cuts("gradients") and not USUAL.reduces_once(self.layout.pp)

    @property
    def of_one_stage(self) -> Layout:
        """The layout of the ranks that share a stage."""
        return self.layout.replace(pp=1, virtual_stages=1)

    def stages_on(self, pp_rank: int) -> list[Stage]:
        """The stages of a PP rank, in the order of the model. Raises LayoutError if the layer split
        refuses.
        """
        assert self.schedule is not None
        return self.stages_of(self.schedule, pp_rank)

    def parameters_on(self, stage: Stage) -> list[str]:
        """Full names of the parameters of a stage; the head of a tied model includes the embedding."""
        own = [p.name for p in self.model.parameters() if self.stage(p) == stage.stage]
        tied = self.model.tied and stage.head and not stage.embedding
        if tied:
            return [*own, TIED]
        return own

    def holds(self, name: str, pp_rank: int) -> bool:
        """Whether a PP rank has a parameter, given by its full name, or an output; outputs are on the head's
        rank.
        """
        if self.schedule is None:
            return True
        homes = self._homes.get(name)
        if homes is not None:
            return pp_rank in homes
        return any(stage.head for stage in self.stages_on(pp_rank))

    @cached_property
    def _homes(self) -> dict[str, set[int]]:
        """Full name of a parameter → the PP ranks that have it. Every rank needs this for each parameter."""
        found: dict[str, set[int]] = {}
        for pp_rank in range(self.layout.pp):
            for stage in self.stages_on(pp_rank):
                for name in self.parameters_on(stage):
                    found.setdefault(name, set()).add(pp_rank)
        return found

    # -- global tensors ------------------------------------------------------------------------

    def sizes(self) -> dict[str, int]:
        """Names of the dims of activations → sizes."""
        m = self.model
        # Logits and the loss run over the padded rows, so "vocab_size" is here the padded one.
        names = ("dim", "n_heads", "n_kv_heads", "head_dim", "ffn_dim")
        return {name: getattr(m, name) for name in names} | {
            "batch": self.global_batch,
            "seq": self.seq_len,
            "vocab_size": self.vocab.padded,
        }

    def shape(self, name: str) -> tuple[int, ...]:
        """Global shape of a program's argument. Raises LlamaparError for a name outside the placement
        table.
        """
        key = kind(name)
        if key == "positions":
            return (self.seq_len,)
        if key in ACTIVATIONS:
            sizes = self.sizes()
            return tuple(sizes[dim] for dim in ACTIVATIONS[key].dims)
        shapes = {p.key: p.shape for p in self.model.parameters()}
        # A tied model stores no output of its own: its head is the embedding.
        if key == "output" and self.model.tied:
            key = "tok_embeddings"
        if key not in shapes:
            raise LlamaparError(f"{self.model.name} has no {name}", "", sorted(shapes), "program")
        return shapes[key]

    def weights(self) -> dict[str, tuple[int, ...]]:
        """Name → shape of every parameter of the whole model, by Meta's names."""
        return {p.name: p.shape for p in self.model.parameters()}

    def layer(self) -> dict[str, tuple[int, ...]]:
        """The same of one layer, by short names: "wq", "attention_norm"."""
        return {short(p.name): p.shape for p in self.model.parameters() if p.name.startswith("layers.0.")}

    def make(self, name: str, shape: tuple[int, ...], device: str = "cpu") -> Tensor:
        """The global tensor: equal numbers for equal name, shape, seed and vocabulary shards.

        Some numbers are chosen, so that a slip at a boundary shows: each sequence has tokens on the first and
        the last row of every rank's shard, and some tokens of x are near zero, where a norm's eps counts.
        """
        # A cotangent is no argument of a program, so no row of the placement table stands for it.
        key = name
        if name != "cotangent":
            key = kind(name)
        if key == "positions":
            return torch.arange(self.seq_len, device=device)
        if key == "tokens":
            if device == "meta":
                return torch.empty(shape, dtype=torch.int64, device=device)
            return self._with_edge_rows(name, shape)
        if device == "meta":
            return torch.empty(shape, dtype=self.torch_dtype, device=device)
        # Drawn in float64 whatever the dtype, so that runs in two dtypes start from the same numbers,
        # rounded.
        made = torch.randn(shape, generator=self._generator(name), dtype=torch.float64)
        # Norm weights lie near 1, as trained ones do, but differ from one another, so that a permuted one
        # shows. Other weights are scaled by the number of their inputs, which keeps outputs of unit size.
        if key == "norm":
            made = 1 + made / 8
        elif key in PARAMETERS:
            made = made / math.sqrt(shape[-1])
        elif key == "residual":
            made[:, 5::16] *= NEAR_ZERO
        return made.to(self.torch_dtype)

    def _with_edge_rows(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Random tokens [batch, seq], of which some are the edges of vocabulary shards, at random places."""
        tokens = torch.randint(self.model.vocab_size, shape, generator=self._generator(name)).tolist()
        shards = [own.real for own in self.vocab.ranks if len(own.real)]
        edges = [row for own in shards for row in (own[0], own[-1])]
        draw = random.Random(f"{name} {self.seed}")
        for number, sequence in enumerate(tokens):
            places = draw.sample(range(len(sequence)), min(len(edges), len(sequence)))
            # Where a sequence is too short for all edges, the next one goes on with the others.
            for n, place in enumerate(places, start=number * len(places)):
                sequence[place] = edges[n % len(edges)]
        return torch.tensor(tokens)

    def _generator(self, name: str) -> torch.Generator:
        # crc32 and not hash(): Python salts the hash of a text anew in every process, and all ranks must
        # draw alike.
        return torch.Generator().manual_seed(zlib.crc32(name.encode()) + self.seed)

    # -- a rank's piece ------------------------------------------------------------------------

    def part(self, name: str, whole: Tensor, coord: Coord) -> Tensor:
        """The piece of a global tensor that the rank at `coord` holds. Pad rows are zeros."""
        key = kind(name)
        if key == "positions":
            return self.own_positions(whole, coord)
        if key in ACTIVATIONS:
            return self._activation(key, whole, coord)
        placement = self.placement(key)
        rows = self.rows(key, coord["tp"])
        if isinstance(placement, Shard) and rows is not None:
            return _take(whole, placement.dim, [rows])
        return whole.clone()

    def own_positions(self, whole: Tensor, coord: Coord) -> Tensor:
        """The positions of a CP rank's tokens."""
        return _take(whole, 0, self.sequence.rank(coord["cp"]).chunks)

    def shard(self, part: Tensor, coord: Coord) -> Tensor:
        """The rank's shard, under ZeRO, of its piece of a parameter."""
        return _take(part, 0, [self.shards.rows(part.shape[0], coord)])

    def held(self, name: str, whole: Tensor, coord: Coord, what: str) -> Tensor:
        """The part of a global tensor that a rank stores. what: "parameters" or "optimizer state"."""
        part = self.part(name, whole, coord)
        if self.shards.cuts(what):
            return self.shard(part, coord)
        return part

    def gradient(self, name: str, part: Tensor, coord: Coord) -> Tensor:
        """The part of a gradient that the rank at `coord` stores after the sums over ranks."""
        shared = self.shards.cuts("gradients") and kind(name) in PARAMETERS
        if shared:
            return self.shard(part, coord)
        return part

    def _activation(self, key: str, whole: Tensor, coord: Coord) -> Tensor:
        row = ACTIVATIONS[key]
        # dp comes first, then cp, then tp: sequence parallelism cuts those tokens that a CP rank already
        # holds.
        part = _take(whole, 0, [self.sequences(self.global_batch, coord["dp"])])
        if "seq" in row.dims:
            part = _take(part, row.dims.index("seq"), self.sequence.rank(coord["cp"]).chunks)
        tp = row.tp
        if self.sp:
            tp = row.tp_sp
        if isinstance(tp, Shard) and tp.unit == "token":
            part = _take(part, tp.dim, [self.tokens(part.shape[tp.dim], coord["tp"])])
        elif isinstance(tp, Shard):
            part = _take(part, tp.dim, [self.along(row.dims[tp.dim], coord["tp"])])
        elif isinstance(tp, Partial):
            raise LlamaparError(f"{key} is a partial sum: it has no piece of its own", field="program")
        return part


def short(name: str) -> str:
    """A parameter's name in programs: "layers.0.attention.wq.bias" is "bq"."""
    owner, _, what = name.rpartition(".")
    last = (owner if what in ("weight", "bias") else name).rpartition(".")[2]
    if what == "bias":
        return f"b{last[1:]}"
    return last


def kind(name: str) -> str:
    """The row of the placement table for an argument or a parameter's full name."""
    last = short(name)
    key = ALIASES.get(last, last)
    if key != "positions" and key not in ACTIVATIONS and key not in PARAMETERS:
        raise LlamaparError(
            f"argument {name!r} is not known",
            "a program's arguments are mesh, setting and names of tensors",
            [*PARAMETERS, *ACTIVATIONS, *ALIASES, "positions", "weights"],
            "program",
        )
    return key


def _take(t: Tensor, dim: int, ranges: Iterable[range]) -> Tensor:
    """The rows of the ranges along `dim`, joined; rows past the end are zeros. Always a new tensor."""
    pieces = []
    for rows in ranges:
        # Pad rows stand past the end of the tensor, so a rank may hold some real rows, or none.
        real = range(min(rows.start, t.shape[dim]), min(rows.stop, t.shape[dim]))
        pieces.append(t.narrow(dim, real.start, len(real)))
        if len(real) < len(rows):
            shape = [*t.shape[:dim], len(rows) - len(real), *t.shape[dim + 1 :]]
            pieces.append(t.new_zeros(shape))
    return torch.cat(pieces, dim)


def is_replicated(name: str) -> bool:
    """Whether TP replicates a parameter."""
    return isinstance(PARAMETERS[kind(name)], Replicate)
