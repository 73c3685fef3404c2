"""Panels: thin shells over record → View."""

from .clinic_panel import Clinic, clinic
from .explorer_panel import Explorer, explorer
from .live_panel import Live, live

__all__ = ["Clinic", "Explorer", "Live", "clinic", "explorer", "live"]
