"""Panels: thin shells over record → View."""

from .box_panel import Asked, Board, Box, Verdict
from .clinic_panel import Clinic, clinic
from .explorer_panel import Explorer, explorer
from .live_panel import Live, live
from .watch_panel import Watch, watch

__all__ = [
    "Asked",
    "Board",
    "Box",
    "Clinic",
    "Explorer",
    "Live",
    "Verdict",
    "Watch",
    "clinic",
    "explorer",
    "live",
    "watch",
]
