"""Panels: thin shells over record → View. Each has its own module, so that one opens without the others."""
