"""A run that hangs: whom it waits for, said in the axes of its layout. The guide is docs/explain.md."""

OFFERS = {"explain_dumps": "answer", "explain_log": "answer"}
"""What the doors get from this room → its module."""
