"""The rows of the table of rules that bytes decide on, and no condition on integers."""

from __future__ import annotations

from .repairs import NOTE, WARNING
from .rule import Rule


def _by_bytes(*_: object) -> bool:
    """Never by itself: `memory_rule.finding_of` says when."""
    return False


MEMORY: tuple[Rule, ...] = (
    Rule(
        "LP511",
        "memory of a rank",
        _by_bytes,
        "stage {stage} needs {needs}, and {there}",
        "{terms} GiB; {counted}",
        of_facts=True,
    ),
    Rule(
        "LP512",
        "memory that is undecided",
        _by_bytes,
        "stage {stage} needs {needs}, and {there}: undecided",
        "{decides}; {terms} GiB; {counted}",
        severity=lambda j: WARNING,
        of_facts=True,
    ),
    Rule(
        "LP513",
        "activations not counted",
        _by_bytes,
        "activations are not counted: stage {stage} needs {needs}, and {there}",
        "they grow with the tokens of a sequence: say seq_len",
        severity=lambda j: NOTE,
        of_facts=True,
    ),
)
"""The rules that `memory_rule` judges, by the bytes of a rank. Their order is that of their codes."""
