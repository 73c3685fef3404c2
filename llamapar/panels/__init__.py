"""Panels: thin shells over record → View."""

from .explorer import Explorer, explorer

__all__ = ["Explorer", "explorer"]
