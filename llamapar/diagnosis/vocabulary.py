"""The words of a diagnosis: categories and subtypes, their rules of `check`, and the facts they need."""

from __future__ import annotations

from dataclasses import dataclass

from .words import table

SHARDING = "sharding"
NOT_SHARDING = "not_sharding"
UNKNOWN = "unknown"
VERDICTS = (SHARDING, NOT_SHARDING, UNKNOWN)


@dataclass(frozen=True)
class Category:
    """A kind of cause: a row of categories.toml.

    what: the cause in words. rules: codes of `rules.RULES` that say the same of a layout; the first category
    that has a rule is its main one. axes: of which one must be larger than 1 for it to be a matter of
    sharding; none where it is not about an axis. needs: facts that would prove it. remedy: a way out in
    words, where no layout can be computed.
    """

    what: str
    rules: tuple[str, ...] = ()
    axes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    remedy: str = ""


def _category(what: str, remedy: str = "", **lists: list[str]) -> Category:
    return Category(what, remedy=remedy, **{name: tuple(values) for name, values in lists.items()})


_TABLE = table("categories.toml")

CATEGORIES: dict[str, Category] = {name: _category(**row) for name, row in _TABLE["categories"].items()}
"""Categories of shared use, the vocabulary of tests/oracles/error-cases.jsonl."""

SUBTYPES: dict[str, str] = _TABLE["subtypes"]
"""Subtypes and the category that each refines."""

CODES: dict[str, str] = {code: name for name, c in reversed(CATEGORIES.items()) for code in c.rules}
"""Rule code → its main category (the first one listed that names it)."""

BY_CONCEPT = {
    "kv": "kv_heads_lt_tp",
    "heads": "heads_not_divisible",
    "vocab": "vocab_not_divisible",
    "layers": "layers_not_divisible_pp",
    "pp": "layers_not_divisible_pp",
    "microbatch": "microbatch_divisibility",
    "batch": "microbatch_divisibility",
    "dp": "microbatch_divisibility",
    "seq": "seq_not_divisible",
    "cp": "seq_not_divisible",
    "world": "world_size_product",
    "tp": "world_size_product",
    "ffn": "hidden_or_ffn_not_divisible",
    "expert": "other: experts_not_divisible_ep",
    "position": "position/rope",
}
"""What is divided → the category."""

AXES_AND_WORLD = ("tp", "pp", "cp", "dp", "ep", "world")
"""What is divided that is no size."""
