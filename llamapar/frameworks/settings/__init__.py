"""A run's own settings, read: files and launch scripts as model, layout and job, each fact with its source.

`documents`, `shell` and `python_source` turn texts into entries with lines, a module a framework turns
entries into facts (`draft`), and `reading` is the door.
"""

from .arguments import takes_settings
from .draft import Contradiction
from .log import StartUp
from .reading import FORMATS, JOB_FACTS, Settings, read_settings

__all__ = ["FORMATS", "JOB_FACTS", "Contradiction", "Settings", "StartUp", "read_settings", "takes_settings"]
