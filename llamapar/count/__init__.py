"""Memory per rank: named terms with formula, inputs and source, exact or by a published rule."""

from .account import ACCOUNTINGS, memory
from .reconciliation import Reconciliation, reconcile
from .terms import Breakdown, Memory, Term

__all__ = ["ACCOUNTINGS", "Breakdown", "Memory", "Reconciliation", "Term", "memory", "reconcile"]
