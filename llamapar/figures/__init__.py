"""Records as pictures: `view(record)` returns a View, a plotly figure and the same as text."""

from .views import View, view

__all__ = ["View", "view"]
