"""The server that `start.py` starts: how it opens and saves notebooks; see `saving.py`."""

import runpy
from pathlib import Path

saving = runpy.run_path(str(Path(__file__).with_name("saving.py")), run_name="saving")
c = get_config()  # noqa: F821
c.ServerApp.contents_manager_class = saving["Notebooks"]
