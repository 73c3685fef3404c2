"""A run's own settings: files and launch scripts as model, layout and job, each fact with its source.

`documents` and `launch_lines` turn texts into entries with lines. One module for each framework
turns entries into facts (`draft`). `reading` is the entry point.
"""

OFFERS = {
    "settings_of_texts": "reader",
}
"""What the doors get from this room → its module."""
