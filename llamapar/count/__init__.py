"""Bytes by formulas: memory of a rank, traffic of a rank, and who holds which shard.

Memory is a list of named terms, each with formula, inputs and source; it is counted exactly, or by a
published rule.
"""

from .account import ACCOUNTINGS, memory
from .reconciliation import Reconciliation, reconcile
from .terms import Breakdown, Memory, Term

__all__ = ["ACCOUNTINGS", "Breakdown", "Memory", "Reconciliation", "Term", "memory", "reconcile"]
