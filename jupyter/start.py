"""Open JupyterLab with the project's own settings; the user's are neither read nor changed.

    python jupyter/start.py [--state DIR] [--root DIR] [--ip ADDRESS] [NOTEBOOK] [options of jupyter lab]
    python jupyter/start.py [--state DIR] [--ip ADDRESS] --alone NOTEBOOK [options of voila]

`jupyter/labconfig` holds the settings that come with the project (no news pop-up, no update
check), and `saving.py` decides what a saved notebook holds. What JupyterLab writes while it runs
(layout, chosen theme, history, connection files) goes to the state folder, `.jupyter/` unless told,
which git ignores. The server listens on loopback only, unless told otherwise, and asks for its token.
The process becomes JupyterLab itself, so whoever started it can end it. With --alone it becomes Voilà,
which runs a notebook when its page opens and shows only what it displays.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent


def environment(state: Path) -> dict[str, str]:
    """The variables under which JupyterLab and its kernels know only this project's settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JUPYTER", "IPYTHON"))}
    bin_folder = str(Path(sys.executable).parent)  # not resolved: the environment's, not its base's
    return kept | {
        "JUPYTER_CONFIG_PATH": str(PROJECT / "jupyter"),
        "JUPYTER_CONFIG_DIR": str(state / "config"),
        "JUPYTER_DATA_DIR": str(state / "data"),
        "JUPYTER_RUNTIME_DIR": str(state / "runtime"),
        "JUPYTER_PREFER_ENV_PATH": "1",
        "JUPYTERLAB_SETTINGS_DIR": str(state / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(state / "workspaces"),
        "IPYTHONDIR": str(state / "ipython"),
        # `!llamapar …` in a cell and the terminals of JupyterLab find this environment's programs.
        "PATH": os.pathsep.join([bin_folder, os.environ.get("PATH", os.defpath)]),
        "VIRTUAL_ENV": sys.prefix,
    }


def command(root: Path, ip: str, notebook: str | None, options: list[str]) -> list[str]:
    """The JupyterLab command line; `notebook` is a path below `root`."""
    page = "/lab" if notebook is None else f"/lab/tree/{notebook}"
    words = [sys.executable, "-m", "jupyterlab", f"--ServerApp.ip={ip}"]
    words += [f"--ServerApp.root_dir={root}", f"--LabApp.default_url={page}", "--LabApp.custom_css=True"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        words.append("--allow-root")  # containers: JupyterLab otherwise refuses to start as root
    return words + options


def alone(ip: str, notebook: str, options: list[str]) -> list[str]:
    """The command line of Voilà, whose kernels answer to widgets but run no other code."""
    words = [sys.executable, "-m", "voila", notebook, f"--Voila.ip={ip}", "--token"]
    return words + options


def dress(state: Path) -> None:
    """Put the project's style sheet where JupyterLab looks for one."""
    folder = state / "config" / "custom"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(PROJECT / "jupyter" / "custom.css", folder / "custom.css")


def main() -> None:
    """Parse the command line and become JupyterLab."""
    parser = argparse.ArgumentParser(description="Open JupyterLab with the project's own settings.")
    parser.add_argument("--state", type=Path, default=PROJECT / ".jupyter", help="written to")
    parser.add_argument("--root", type=Path, default=PROJECT, help="the folder that is served")
    parser.add_argument("--ip", default="127.0.0.1", help="listened on; a container's is 0.0.0.0")
    parser.add_argument("notebook", nargs="?", help="the notebook to open, a path below the root")
    parser.add_argument("--alone", action="store_true", help="only what the notebook displays, by Voilà")
    known, options = parser.parse_known_args()
    root = known.root.resolve()
    if known.alone and known.notebook is None:
        parser.error("--alone needs a notebook")
    if known.notebook is not None and not (root / known.notebook).is_file():
        parser.error(f"there is no notebook {known.notebook} in {root}")
    state = known.state.resolve()
    if known.alone:
        words = alone(known.ip, str(root / known.notebook), options)
    else:
        words = command(root, known.ip, known.notebook, options)
        dress(state)
    os.execve(words[0], words, environment(state))


if __name__ == "__main__":
    main()
