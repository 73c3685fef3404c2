"""Panels: thin shells over record → View."""

from .clinic import Clinic, clinic
from .explorer import Explorer, explorer

__all__ = ["Clinic", "Explorer", "clinic", "explorer"]
