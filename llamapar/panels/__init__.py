"""Panels: thin shells over record → View."""

from .clinic_panel import Clinic, clinic
from .explorer_panel import Explorer, explorer

__all__ = ["Clinic", "Explorer", "clinic", "explorer"]
