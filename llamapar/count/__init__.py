"""Bytes by formulas: memory of a rank, traffic of a rank, and who holds which shard.

Memory is a list of named terms, each with formula, inputs and source; every tensor is counted.
"""

from .account import memory
from .reconciliation import Reconciliation, reconcile
from .terms import Breakdown, Memory, Term

__all__ = ["Breakdown", "Memory", "Reconciliation", "Term", "memory", "reconcile"]
