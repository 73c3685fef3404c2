"""A run's own settings, read: files and launch scripts as model, layout and job, each fact with its source.

`documents`, `shell` and `python_source` turn texts into entries with lines, a module a framework turns
entries into facts (`draft`), and `reading` is the door.
"""
