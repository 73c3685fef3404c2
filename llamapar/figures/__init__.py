"""Records as pictures: `view(record)` returns a View, a plotly figure and the same as text."""

from .views import NO_FIGURE, View, view

__all__ = ["NO_FIGURE", "View", "view"]
