"""Loading a model over machines: bytes of the file and of every node, and which narrow counters overflow.

distributed-llama (b4rtaz/distributed-llama @8d624a7b1f, converter/writer.py, src/llm.cpp, nn/nn-core.cpp):
embedding and norms are in F32, matrices in F32 or in blocks of 32 weights: Q40 of 18 bytes, Q80 of 34. A tied
head is stored as well. Nodes are TP ranks. The embedding stays whole on the root, norms are on every node,
the KV cache is F32.

bf16 and fp16 are safetensors' and Meta's formats: two bytes a parameter, norms in every shard. fp8 is Meta's
405B: one byte for the FFN of all layers except the first and the last, two for the rest.

Sizes are Python integers. What a counter of 32 bits would have held is arithmetic modulo 2^32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate
from typing import Unpack

from llamapar.describe.arguments import checked_options
from llamapar.describe.keywords import LoadingKeywords
from llamapar.describe.layout import Layout, divisors
from llamapar.describe.models import ModelConfig, ModelLike, Parameter
from llamapar.describe.models import model as find_model
from llamapar.describe.options import offer
from llamapar.errors import Choice, LayoutError, one_of, real
from llamapar.place.cut import Cut
from llamapar.records.tables import AsDict, Plain, Record, cut
from llamapar.rules.report import check

BLOCKS = {"f32": (1, 4), "q80": (32, 34), "q40": (32, 18), "bf16": (1, 2), "fp16": (1, 2), "fp8": (1, 1)}
"""Format → (weights in a block, bytes of the block)."""

offer("format", BLOCKS)

FRAMEWORK = {"f32": "distributed-llama", "q40": "distributed-llama", "q80": "distributed-llama"}
FRAMEWORK |= {"bf16": "meta", "fp16": "meta", "fp8": "meta"}
"""Format → the framework that writes it, which also limits the number of nodes."""

COUNTERS = {"int32": (32, True), "uint32": (32, False), "int64": (64, True)}
"""Counter → (bits, signed)."""

_ORDER = ("wq", "wk", "wv", "wo", "w1", "w2", "w3", "q_norm", "k_norm", "norm", "bq", "bk", "bv", "bo")
"""The tensors of a layer, in the order of distributed-llama's file."""

_F32 = ("tok_embeddings", "norm", "q_norm", "k_norm")
"""Tensors that distributed-llama's file never quantises."""


def wrapped_count(value: int, counter: str) -> int:
    """What a counter ("int32", "uint32" or "int64") holds after counting to `value`."""
    bits, signed = COUNTERS[one_of("counter", counter, COUNTERS)]
    # Two's complement, computed instead of cast, so that any number of bits works.
    value %= 2**bits
    if signed and value >= 2 ** (bits - 1):
        return value - 2**bits
    return value


@dataclass(frozen=True)
class Count:
    """A number that a loader counts to: a product inside a tensor's size, or the file's total so far.

    what: "128256 × 16384 × 4", or "total". tensor: where it is counted. value: the true number.
    """

    tensor: str
    what: str
    value: int

    @property
    def wraps(self) -> list[str]:
        """The counters that cannot hold the value."""
        return [name for name in COUNTERS if wrapped_count(self.value, name) != self.value]

    def __str__(self) -> str:
        holds = ", ".join(f"{name} holds {wrapped_count(self.value, name):,}" for name in self.wraps)
        return f"{self.tensor}: {self.what} = {self.value:,}; {holds}"

    def as_dict(self) -> Plain:
        """Plain values for JSON: what each counter holds, and its error."""
        holds = {name: wrapped_count(self.value, name) for name in COUNTERS}
        off_by = {name: self.value - holds[name] for name in self.wraps}
        return {**asdict(self), **holds, "wraps": self.wraps, "off_by": off_by}


@dataclass(frozen=True)
class Node(AsDict):
    """What one machine holds, in bytes. role: "root" or "worker"."""

    json_names = ("node", "role", "weight_bytes", "kv_cache_bytes", "total_bytes")

    node: int
    role: str
    weight_bytes: int
    kv_cache_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.kv_cache_bytes


def kv_cache_bytes(model: ModelLike, seq_len: int, *, item: int = 2, batch: int = 1, tp: int = 1) -> int:
    """Bytes of K and V of every layer for `seq_len` tokens, on one of `tp` ranks: 2·L·s·b·kv_dim/tp·item."""
    m = find_model(model)
    return 2 * m.n_layers * seq_len * batch * -(-m.kv_dim // tp) * item


@dataclass(frozen=True, repr=False)
class Loading(AsDict, Record):
    """A model in a file format over `n_nodes` machines of `memory_gib`·2³⁰ bytes each."""

    json_names = ("file_bytes", "nodes", "fits", "smallest_nodes", "overflows")

    model: ModelConfig
    format: str
    n_nodes: int
    memory_gib: float
    seq_len: int

    @property
    def framework(self) -> str:
        return FRAMEWORK[self.format]

    @property
    def memory_bytes(self) -> int:
        return round(self.memory_gib * 2**30)

    # -- tensors -------------------------------------------------------------------------------

    @cached_property
    def tensors(self) -> tuple[Parameter, ...]:
        """Every tensor of the file, in its order."""
        found = list(self.model.parameters())
        if self.framework != "distributed-llama":
            return tuple(found)
        if self.model.tied:
            shape = (self.model.vocab_size, self.model.dim)
            found.append(Parameter("output.weight", "lm_head.weight", shape, "output"))

        def place(p: Parameter) -> tuple[int, int]:
            # The embedding stands before layer 0, and the last norm and the output after the last layer.
            ends = {"tok_embeddings": -1, "norm": self.model.n_layers, "output": self.model.n_layers + 1}
            if p.layer is not None:
                return (p.layer, _ORDER.index(p.key))
            return (ends[p.key], 0)

        return tuple(sorted(found, key=place))

    def block(self, p: Parameter) -> tuple[int, int]:
        """(weights in a block, bytes of a block) with which the file stores this tensor."""
        if self.framework == "distributed-llama":
            if p.key in _F32:
                return BLOCKS["f32"]
            return BLOCKS[self.format]
        # Meta left the first and the last layer in 16 bits when it quantised 405B.
        inner = p.layer is not None and 0 < p.layer < self.model.n_layers - 1
        if self.format == "fp8" and not (p.key in ("w1", "w2", "w3") and inner):
            return BLOCKS["bf16"]
        return BLOCKS[self.format]

    def bytes(self, p: Parameter, ranks: int = 1) -> int:
        """Bytes of a tensor, or of the first of its `ranks` shards."""
        weights, size = self.block(p)
        # The first rank's shard, which is the largest where shards differ.
        shape = Cut(self.model, Layout(tp=ranks)).local_shape(p)
        return -(-math.prod(shape) // weights) * size

    @cached_property
    def _kinds(self) -> list[tuple[Parameter, int]]:
        """One tensor of each kind, with the number of its kind."""
        alike: dict[object, list[Parameter]] = {}
        for p in self.tensors:
            # By block too: in fp8 the first and the last layer are stored wider than the others.
            alike.setdefault((p.key, self.block(p)), []).append(p)
        return [(found[0], len(found)) for found in alike.values()]

    @cached_property
    def file_bytes(self) -> int:
        """Bytes of all weights: a distributed-llama file's payload, safetensors' total_size."""
        return sum(self.bytes(p) * times for p, times in self._kinds)

    # -- nodes ---------------------------------------------------------------------------------

    def nodes_of(self, n: int) -> tuple[Node, ...]:
        """What each of `n` nodes holds; distributed-llama's root also holds the whole embedding."""
        root_only = self.framework == "distributed-llama"
        each = more = 0
        for p, times in self._kinds:
            if root_only and p.key == "tok_embeddings":
                # The root alone looks tokens up, so workers hold no row of the embedding.
                more = self.bytes(p)
            else:
                each += self.bytes(p, n) * times
        cache = kv_cache_bytes(self.model, self.seq_len, item=4 if root_only else 2, tp=n)
        root = Node(0, "root", each + more, cache)
        return (root, *(Node(i, "worker", each, cache) for i in range(1, n)))

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        return self.nodes_of(self.n_nodes)

    def limit(self, n: int) -> str:
        """Why the framework does not run on `n` nodes, in one line; empty if it does."""
        report = check(self.model, Layout(tp=n), framework=self.framework)
        if report.ok:
            return ""
        return report.errors[0].message

    def _fits_on(self, n: int) -> bool:
        """Whether the framework runs on `n` nodes, and the root, which holds most, has enough memory."""
        return self.nodes_of(n)[0].total_bytes <= self.memory_bytes and not self.limit(n)

    @cached_property
    def fits(self) -> bool:
        """Whether the model fits the given nodes."""
        return self._fits_on(self.n_nodes)

    @cached_property
    def smallest_nodes(self) -> int | None:
        """The fewest nodes of this memory that hold the model; None if no number does."""
        # Any other number of nodes cuts a head.
        return next(filter(self._fits_on, divisors(self.model.n_heads)), None)

    # -- counters ------------------------------------------------------------------------------

    def counts(self) -> Iterator[Count]:
        """Every product in a tensor's size and the running total after it, in the file's order."""
        totals = accumulate(self.bytes(p) for p in self.tensors)
        for p, total in zip(self.tensors, totals, strict=True):
            weights, size = self.block(p)
            text = " × ".join(str(n) for n in p.shape)
            if len(p.shape) > 1:
                yield Count(p.name, text, p.numel)
            blocks = text
            if weights > 1:
                blocks = f"{text} / {weights}"
            yield Count(p.name, f"{blocks} × {size}", self.bytes(p))
            yield Count(p.name, "total", total)

    @cached_property
    def overflows(self) -> tuple[Count, ...]:
        """The counts that overflow a counter; of the totals, only the first past 2³¹ and past 2³²."""
        found = []
        passed: set[int] = set()
        for count in self.counts():
            # A running total stays past a bound once it has passed it, and only the first such row is
            # news.
            new = {bits for bits in (31, 32) if count.value >> bits} - passed
            if count.what == "total":
                passed |= new
            if count.wraps and (new or count.what != "total"):
                found.append(count)
        return tuple(found)

    # -- forms ---------------------------------------------------------------------------------

    @property
    def verdict(self) -> str:
        """Whether it fits, in words, with the framework's refusal if there is one."""
        why = self.limit(self.n_nodes)
        fit = f"{'fits' if self.fits else 'does not fit'}; smallest number of nodes: {self.smallest_nodes}"
        if why:
            return f"{why}; {fit}"
        return fit

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        title = (
            f"{self.model.name} in {self.format} on {self.n_nodes} x {self.memory_gib:g} GiB "
            f"({self.framework}): {self.file_bytes:,} B of weights"
        )
        rows: list[list[object]] = []
        for i in cut(self.n_nodes):
            node = self.nodes[i]
            free = (self.memory_bytes - node.total_bytes) / 2**30
            sizes = [f"{n:,}" for n in (node.weight_bytes, node.kv_cache_bytes, node.total_bytes)]
            rows.append([node.node, node.role, *sizes, f"{free:.2f}"])
        head = ["node", "role", "weights B", "KV cache B", "total B", "free GiB"]
        return title, head, rows, self.verdict


@checked_options
def loading(model: ModelLike, **options: Unpack[LoadingKeywords]) -> Loading:
    """What loading `model` takes: bytes of the file and of each node, whether it fits, which counters wrap.

    format: "f32", "q40" or "q80" (distributed-llama), "bf16", "fp16" or "fp8" (Meta, safetensors).
    nodes: machines, which are TP ranks. memory_gib: of each machine, in 2³⁰ bytes. seq_len: tokens of the KV
    cache.
    Raises LayoutError for bad input, for a model with rows that blocks of 32 weights do not divide, and for
    another family than Llama's in a file of distributed-llama.
    """
    m = find_model(model)
    m.require_judged("the file")
    format = one_of("format", options["format"], BLOCKS)
    weights = BLOCKS[format][0]
    odd = next((p for p in m.parameters() if len(p.shape) > 1 and p.shape[-1] % weights), None)
    if odd is not None:
        raise LayoutError(
            f"{odd.name} has rows of {odd.shape[-1]} weights, and a {format} block holds {weights}",
            "a row is stored in whole blocks",
            [Choice.of(format="f32"), Choice.of(format="bf16")],
            "format",
        )
    if m.family != "llama" and FRAMEWORK[format] == "distributed-llama":
        raise LayoutError(
            f"format={format}: distributed-llama's file has no place for the norms of {m.family}",
            "",
            [Choice.of(format="bf16")],
            "format",
        )
    return Loading(
        m,
        format,
        options["nodes"],
        real("memory_gib", options["memory_gib"], 1 / 1024, 2**20),
        options["seq_len"],
    )
