"""Text into typed pieces: numbers, shapes, products, concepts. Nothing is ever evaluated.

Every pattern is linear: no quantifier inside a quantifier over the same characters, every repeat of
digits bounded, and the text cut to `LIMIT` characters before any pattern sees it.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

LIMIT = 6000
"""Characters of one message that are read."""

Shape = tuple[int, ...]

_ANSI = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]|\x1b[@-_]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_SPACES = re.compile(r"[ \t\r\xa0]+")


def plain(text: str) -> str:
    """`text` without colours and control characters, wide characters folded, blanks run together."""
    text = _CONTROL.sub(" ", _ANSI.sub("", text[:LIMIT]))
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)[:LIMIT]
    return _SPACES.sub(" ", text).strip()


# -- concepts --------------------------------------------------------------------------------------

_AXIS = r"[_ -]?(?:model[_ -]?)?para(?:llel(?:i[sz]\w{1,5})?)?"
_OF = r"(?:[_ -]?(?:world[_ -]?)?(?:size|degree|ranks?|nodes|shards))?"

_CONCEPTS: tuple[tuple[str, str], ...] = (
    # a longer wording stands before the shorter one that it contains
    ("checkpoint", r"checkpoint\w{0,6}|ckpt|state_dict|safetensors|consolidated\.\d\d|mp_rank_\d\d"),
    ("lora", r"lora\w{0,20}|adapter"),
    (
        "kv",
        r"(?:kv|key[_ /]?value)[_ -]?heads?\w{0,6}|k/?v heads?|num_query_groups|query groups?|"
        r"kv_?dim|n_?kv_?heads?|n_?head_kv|multi_query_group\w{0,6}|kv[_ -]?groups?",
    ),
    (
        "head_dim",
        r"head[_ ]?dim\w{0,6}|head[_ ]?size|size[_ ]per[_ ](?:attention[_ ])?head|"
        r"hidden_size_per_attention_head|per[_-]head",
    ),
    (
        "heads",
        r"attention[_ ]heads?|n(?:um)?_?(?:attention_|attn_|q_|query_)?heads?|"
        r"(?:query |q )?heads?\b|n_?head\b",
    ),
    ("expert", r"experts?|\bmoe\b"),
    (
        "quant",
        r"group[_ ]?size|quanti[sz]\w{0,10}|min_thread_\w|thread_[mnk]|prob_[mnk]|"
        r"tile[_ ]?(?:size|[mnk])|block[_ ]?size|blocksize|gptq|\bawq\b|marlin|q_?groups?|"
        r"pack(?:ed)?[_ ]?factor|block_[nk]\b|weight_block_size|scale_\w{0,8}",
    ),
    (
        "microbatch",
        r"micro[_ -]?batch\w{0,5}(?:[_ ]size)?|mini[_ -]?batch\w{0,5}|num_micro\w{0,12}|"
        r"gradient[_ ]accumulation\w{0,12}|\bmbs\b",
    ),
    (
        "batch",
        r"(?:global[_ -]?|train[_ -]?|total[_ -]?|eval[_ -]?)?batch[_ -]?(?:size)?\b|\bgbs\b|"
        r"batch_size\w{0,10}",
    ),
    (
        "world",
        r"world[_ -]?size\w{0,4}|number of (?:gpus|processes|devices|ranks|workers)|nproc\w{0,12}|"
        r"n(?:um)?_?(?:gpus|devices|processes|ranks|workers)|total[_ ](?:gpus|ranks|devices)|"
        r"available (?:gpus|devices)|mpi_?(?:world_?)?size|\bprocesses\b|\bgpus\b|n_?devices",
    ),
    ("ep", r"expert" + _AXIS + _OF + r"|\bep(?:[_ -]?(?:size|degree|world_size))?\b"),
    (
        "pp",
        r"pipe(?:line)?" + _AXIS + _OF + r"|\bpp(?:[_ -]?(?:size|degree|rank))?\b|pipeline|"
        r"(?:virtual |pipeline )?stages?|\bvp(?:p|_size)?\b|virtual_pipeline\w{0,30}|num_stages",
    ),
    (
        "cp",
        r"context" + _AXIS + _OF + r"|\bcp(?:[_ -]?(?:size|degree))?\b|sequence[_ -]?parallel\w{0,12}|"
        r"\bsp(?:[_ -]?(?:size|degree))?\b|ulysses\w{0,20}|ring[_ -]?(?:attn|attention)\w{0,10}|zigzag",
    ),
    (
        "dp",
        r"data" + _AXIS + _OF + r"|\bf?s?dp(?:[_ -]?(?:size|degree|world size|shard))?\b|zero[_ -]?[123]|"
        r"dp_(?:replicate|shard)",
    ),
    (
        "tp",
        r"tensor" + _AXIS + _OF + r"|\btp(?:[_ -]?(?:size|degree|rank|world size))?\b|"
        r"model[_ -]?parallel\w{0,8}(?:[_ -]size)?|\bmp(?:[_ -]?(?:size|degree))?\b|num[_-]?shards?|"
        r"\bn_?nodes\b|\bn_?slices\b|\bshards?\b|tp_world\w{0,5}|total_model_size",
    ),
    (
        "layers",
        r"(?:num(?:ber)?[_ ](?:of[_ ])?|n_)?(?:hidden[_ ]|transformer[_ ]|middle[_ ])?layers?\b|"
        r"(?:transformer|decoder) blocks?\b",
    ),
    (
        "position",
        r"position\w{0,20}|rotary\w{0,20}|\brope\w{0,10}|freqs_cis|cos_cached|alibi|\bwpe\b|"
        r"max_position\w{0,12}",
    ),
    (
        "fused",
        r"qkv\w{0,10}|query_key_value|c_attn|\bwqkv\b|gate_up_proj|fused_\w{1,20}|w13_weight|"
        r"dense_h_to_4h|swiglu|key_value\b",
    ),
    (
        "vocab",
        r"vocab\w{0,20}|embed_tokens|embed(?:ding)?s?\b|lm_head|\bwte\b|"
        r"word_embeddings?|token_emb\w{0,8}|tokenizer",
    ),
    (
        "ffn",
        r"intermediate[_ ]?\w{0,5}|ffn\w{0,12}|\bmlp\b|feed[_ ]?forward\w{0,8}|hidden_dim|"
        r"(?:gate|up|down)_proj|ff_dim|inter_size",
    ),
    (
        "hidden",
        r"hidden[_ ]?(?:size|dim(?:ension)?)s?|d_model|n_embd|embed_dim|in_features|out_features|"
        r"(?:input|output)_(?:size|dim)\w{0,15}|hidden\b",
    ),
    (
        "seq",
        r"seq(?:uence)?[_ -]?len(?:gth)?s?|sequences?\b|\bseq\b|\btokens?\b|max_model_len|"
        r"context[_ ]len(?:gth)?|seqlen\w{0,4}|input_ids|input embeds",
    ),
    ("dimension", r"dim(?:ension)?s?\b|\bsize\b|\bd\b|\bn\b|width|columns|rows"),
)
_CONCEPT = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _CONCEPTS))


@dataclass(frozen=True)
class Term:
    """A concept in the text, and the number that stands with it."""

    concept: str
    start: int
    end: int
    number: int | None = None


# -- numbers and shapes ----------------------------------------------------------------------------

_INT = r"-?\d{1,32}"
_SHAPE = re.compile(
    rf"[\[(] ?{_INT}(?:(?:, ?{_INT}){{1,9}},?|,) ?[\])]|\[ ?{_INT} ?\]|"
    r"(?:(?<=expected )|(?<=got )|(?<=shape ))\d{1,12}(?:, \d{1,12}){1,5}|"
    r"\b(?!0x)\d{1,12}x\d{1,12}(?:x\d{1,12}){0,3}\b"
)
_DIGITS = re.compile(_INT)
_NUMBER = re.compile(r"(?<![\w.])\d{1,3}(?:,\d{3}){1,9}(?![\d,])|(?<![\w.])-?\d{1,32}(?![\d\w]|\.\d)")
_PRODUCT = re.compile(r"\b\d{1,20}(?:(?: ?[·*×] ?| x )\d{1,20}){1,7}")
_BESIDE = re.compile(r"['\"`)]{0,2} ?(?:=|:|\(|of|is|was|-|_)?=? ?\(?['\"]?(\d{1,20})(?![\d.]*\w|-\d\d-)")


_PATH = re.compile(r"[a-z_]\w{0,40}(?:\.\w{1,40}){2,12}")
"""A tensor's name such as model.layers.0.self_attn.k_proj.weight."""

_ONE, _BARE = re.compile(r"(?:rank|stage|layer|head|block|shard|node)$"), re.compile(r" ?\d")
"""The number right beside such a word is which one it is: "rank 3", "stage 2", "layer 5"."""

_FACTS = {"heads": "n_heads", "kv": "n_kv_heads", "layers": "n_layers"}


@dataclass(frozen=True)
class Reading:
    """A text and the pieces found in it, each made when asked for.

    code: lines of source that the traceback shows over the message, outermost first.
    """

    text: str
    code: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str, code: tuple[str, ...] = ()) -> Reading:
        return cls(plain(text), code)

    @cached_property
    def low(self) -> str:
        return self.text.lower()

    @cached_property
    def shapes(self) -> list[tuple[Shape, int]]:
        """Shapes of one dim or more, with where they start."""
        found = []
        for match in _SHAPE.finditer(self.text):
            dims = tuple(int(n) for n in _DIGITS.findall(match.group().replace("x", " ")))
            found.append((dims, match.start()))
        return found

    @cached_property
    def numbers(self) -> list[tuple[int, int]]:
        """Numbers of the text with where they start, those of shapes included."""
        return [(int(m.group().replace(",", "")), m.start()) for m in _NUMBER.finditer(self.text)]

    @cached_property
    def values(self) -> list[int]:
        return [n for n, _ in self.numbers]

    @cached_property
    def products(self) -> list[tuple[Shape, int]]:
        """Written products such as 8·16·16·4, as factors and value."""
        rows = [tuple(int(n) for n in _DIGITS.findall(m.group())) for m in _PRODUCT.finditer(self.text)]
        return [(row, math.prod(row)) for row in rows]

    @cached_property
    def terms(self) -> list[Term]:
        """Concepts in their order, those in a tensor's dotted name left out."""
        found = []
        named = [match.span() for match in _PATH.finditer(self.low)]
        for match in _CONCEPT.finditer(self.low):
            if any(start <= match.start() < end for start, end in named):
                continue
            beside = _BESIDE.match(self.low, match.end())
            number = int(beside.group(1)) if beside else None
            if match.lastgroup == "dimension" and (number or 0) < 10:
                number = None  # "dimension 0" is an index
            found.append(Term(str(match.lastgroup), match.start(), match.end(), number))
        return found

    @cached_property
    def concepts(self) -> frozenset[str]:
        return frozenset(t.concept for t in self.terms)

    def within(self, start: int, end: int) -> list[Term]:
        return [t for t in self.terms if start <= t.start < end]

    def facts(self) -> Iterator[tuple[str, int]]:
        """Degrees that the text states: ("tp", 8)."""
        for term in self.terms:
            fact = _FACTS.get(term.concept, term.concept)
            if _ONE.search(self.low[term.start : term.end]) and _BARE.match(self.low, term.end):
                continue
            if (fact in _FACTS.values() or fact in ("tp", "pp", "cp", "dp", "ep", "world")) and term.number:
                yield fact, term.number
