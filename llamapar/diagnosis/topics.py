"""Hypotheses from what a text is about, where its numbers do not say it: hangs, adapters, ties, order, …

A row of `TOPICS` is a category and the groups of words that must all appear. Causes that words name and
numbers support are in `limits`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .hypothesis import Hypothesis, found
from .known import Known
from .reading import Reading

PARALLEL = re.compile(r"parallel|shard|\btp\b|\bmp\b|ranks?\b|world|\bgpus?\b|nccl|dist|numel|collective")
_CP = r"context[_ -]parallel|\bcp\b|ring|ulysses|sequence[_ -]parallel|cp_size|zigzag"


@dataclass(frozen=True)
class Topic:
    """A cause that words name.

    words: patterns that must all be found; unless: one that must not. score: with and without a word of
    parallelism beside them. blame: the verdict where such a word, or a degree above 1, is there (or the
    topic is `sure` by itself); it is None otherwise.
    """

    category: str
    cause: str
    words: tuple[str, ...]
    score: tuple[float, float]
    needs: str = ""
    blame: bool | None = True
    sure: bool = False
    unless: str = "^$"

    def matches(self, low: str) -> bool:
        told = all(re.search(words, low, re.DOTALL) for words in self.words)
        return told and not re.search(self.unless, low)


TOPICS = (
    Topic(
        "rank_mapping_hang",
        "ranks wait for each other: one is missing, late, or in another collective",
        (
            r"watchdog|timed? ?out|\bhangs?\b|hanging|\bhung\b|\bstuck\b|deadlock|desync|waiting for|"
            r"never returns?|collectives? .{0,60}mismatch|mismatch.{0,40}coll|wrong (?:process )?group|"
            r"rank (?:order|mapping)",
        ),
        (0.8, 0.45),
        "stack of every rank, layout",
        unless=r"out ?of ?memory",
    ),
    Topic(
        "lora_tp",
        "the adapter and the base model are cut, padded or supported differently",
        (r"lora|\bpeft\b", r"size|shape|dim|must match|mismatch|parallel|shard|rank|pad|not support|tp\b"),
        (0.7, 0.55),
        "tp, rank of the adapter",
    ),
    Topic(
        "tied_embeddings",
        "the head and the embedding are one tensor, and the layout or the loader parts them",
        (
            r"\btied?\b|tying|tie_(?:word|weights|embed)|shared? (?:input |word )?embedd|"
            r"share[_ ]embed|untie|"
            r"shared tensors?|weights? sharing|shares? memory",
            r"embed|lm_head|head|pipeline|stage|weight",
        ),
        (0.78, 0.78),
        "tied, pp",
        sure=True,
    ),
    Topic(
        "tied_embeddings",
        "a stage lacks a layer that it asks for, such as the embedding that its head shares",
        (r"pp_?missing|missing_?layer",),
        (0.6, 0.6),
        "tied, pp",
        sure=True,
    ),
    Topic(
        "fused_qkv_layout",
        "parts of a fused weight are cut or read in the wrong order",
        (
            r"qkv|query_key_value|c_attn|gate_up|w_?pack|interleav|dense_h_to_4h",
            r"wrong|garbage|gibberish|incorrect|order|scrambl|mismatch|layout|split|permut|silently|corrupt",
        ),
        (0.6, 0.6),
        "n_heads, n_kv_heads, tp",
    ),
    Topic(
        "fused_qkv_layout: fused_swiglu_order",
        "gate and up halves of a fused weight are cut or read in the wrong order",
        (
            r"swiglu|gate.{0,40}\bup\b|\bup\b.{0,40}gate|chunk\(2|w1.{0,20}w3|\bglu\b",
            r"wrong|garbage|gibberish|incorrect|order|scrambl|interleav|split|permut|silently|"
            r"corrupt|concatenat",
        ),
        (0.62, 0.62),
        "tp",
    ),
    Topic(
        "other: cp_packing_silent",
        "packed sequences are cut across their boundaries by CP",
        (r"pack(?:ed|ing)|(?:multi|cross)-?doc|cu_seqlens|varlen|document|\bthd\b|sample.{0,30}concat", _CP),
        (0.66, 0.66),
        sure=True,
    ),
    Topic(
        "other: zero3_unmaterialised_param",
        "a ZeRO-3 placeholder is used where the gathered weight is needed",
        (
            r"zero[_ -]?(?:stage[_ -]?)?3|stage[_ -]?3|ds_tensor|ds_id|gatheredparameters|placeholder|"
            r"torch\.size\(\[0\]\)|must be 2-d",
        ),
        (0.72, 0.72),
        sure=True,
    ),
    Topic(
        "fsdp_uneven",
        "a dim that the ranks do not divide: shards are padded, short or empty",
        (
            r"fsdp|fully[_ ]shard|flat_?param|dtensor|shard\(\d\)|device_?mesh|distributed_tensor|from_local|"
            r"full_tensor|redistribute",
            r"uneven|padd?ed|padding|unequal|not evenly|rank ?\d|local (?:size|shape|shard|tensor)|"
            r"empty shards?",
        ),
        (0.66, 0.66),
        sure=True,
        unless="divi",
    ),
    Topic(
        "seq_not_divisible",
        "the tokens do not divide over the ranks",
        (
            r"unassigned|remainder|dropped|uneven|left over|last (?:rank|chunk)",
            r"sequence|\bseq|token|length|\bcp\b|context parallel",
        ),
        (0.6, 0.6),
        "seq_len, cp",
        sure=True,
    ),
    Topic(
        "fsdp_uneven",
        "an array's dim does not divide over the axis of the mesh that its sharding names",
        (r"named_?sharding|gspmd_?sharding|positional_?sharding", r"divi|partitioned \d{1,6} times"),
        (0.58, 0.58),
        "shape of the tensor, size of the mesh",
        sure=True,
    ),
    Topic(
        "seq_not_divisible",
        "a collective joins equal pieces, and the ranks' pieces differ: tokens or rows that do not divide",
        (r"world[_ ]size times|times (?:the )?world[_ ]?size", r"tensor|size"),
        (0.55, 0.55),
        "seq_len, cp, tp",
        sure=True,
    ),
    Topic(
        "embed_checkpoint_shape",
        "the loaded table has other rows than the vocabulary: a shard, a placeholder or another model's",
        (r"weight.{0,40}shape", r"==", r"vocab_size"),
        (0.6, 0.6),
        "vocab_size, shape of the weight",
        blame=None,
        sure=True,
    ),
    Topic(
        "microbatch_divisibility",
        "the batch does not divide into equal micro-batches",
        (r"micro[_ -]?batch", r"mismatch|uneven|different|\d,? \(?\d"),
        (0.7, 0.7),
        "global_batch",
        sure=True,
    ),
    Topic(
        "other: kernel_limit",
        "a kernel's own rule on the head size; no parallelism is needed for it",
        (
            r"(?:head|hidden)[_ ]?(?:size|dim)|size per head|per head",
            r"only support|not supported|unsupported|multiple of|supports head|at most|<= ?256|"
            r"must be one of",
        ),
        (0.74, 0.74),
        blame=False,
        sure=True,
    ),
    Topic(
        "other",
        "the framework refuses this combination of axes or options",
        (
            r"parallel",
            r"cannot (?:use|be used)|must be enabled|not (?:yet )?supported|greater than 1|requires|"
            r"zero stage|"
            r"should be enabled",
        ),
        (0.42, 0.42),
        "framework, layout",
        sure=True,
    ),
)


def topics(r: Reading, known: Known) -> Iterator[Hypothesis]:
    """Causes that words name."""
    beside = bool(PARALLEL.search(r.low))
    sharded = beside or any((known.get(axis) or 1) > 1 for axis in ("tp", "cp", "pp"))
    for topic in TOPICS:
        if topic.matches(r.low):
            blame = topic.blame if topic.sure or sharded else None
            yield found(
                topic.category, topic.score[not beside], topic.cause, parallel=blame, needs=topic.needs
            )
