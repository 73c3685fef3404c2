"""What the panels need of ipywidgets, in a Python that has none."""


class ValueWidget:
    """A widget with a value."""
