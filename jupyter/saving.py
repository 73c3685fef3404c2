"""What a notebook's file holds after it was saved: what was said again stands as it was stored.

JupyterLab saves what it has on the page: a panel as the id of a live object, which means nothing once
its kernel has ended; figures as this browser drew them; the kernel's version; tracebacks with the paths
of this machine. So opening or running a notebook would change its file though nobody changed the notebook,
and would lose the pictures that GitHub shows. `jupyter_server_config.py` puts two things between the
page and the file:

- `before_saving`, a pre_save_hook: a cell whose source is as stored and whose outputs say the same again
  keeps its stored outputs, pictures included. A panel of llamapar is saved as what stands beside it (its
  figure and text), never as the widget. Other widgets, and everything that is new, are saved as they are.
- `Notebooks`, a contents manager: a notebook for this environment's kernel is opened with the description
  of the language that the kernel is about to give, so that its start changes nothing on the page.

Contents are parsed JSON here, in the form of nbformat 4.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager

Json = dict[str, Any]

TO_DRAW = re.compile(r"<!--picture (\w+)-->")
DRAWN = re.compile(r'<img data-drawn-from="(\w+)"[^>]*base64,(?P<png>[^">]*)">')
"""In the HTML of an answer behind a guess: where its picture belongs, and the picture stored there."""

PLOTLY, SVG = "application/vnd.plotly.v1+json", "image/svg+xml"
STILL = re.compile(r'^<img [^>]* src="data:image/svg\+xml,([^"]*)">$')
"""The HTML of a map: an image, for JupyterLab strips SVG from a notebook that it does not trust."""

WIDGET = "application/vnd.jupyter.widget-view+json"
WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
PANEL = "llamapar"  # in the metadata of an output that is a panel
KEPT_TAG = "nbval-ignore-output"  # of a cell whose output depends on the machine
AFTER_GUESS = "after-guess"  # of a cell whose output would spoil a question, and is hidden in the file
HIDDEN = ("collapsed", "jupyter")  # how JupyterLab says so
KERNEL = ("python3", "python")  # this environment's own, and its language


def as_text(value: Any) -> Any:
    """A text that is stored as a list of lines, as one."""
    lines = isinstance(value, list) and all(isinstance(line, str) for line in value)
    return "".join(value) if lines else value


def merged(outputs: list[Any]) -> list[Any]:
    """Outputs with printed text that follows on printed text of the same stream joined to it."""
    joined: list[Any] = []
    for output in outputs:
        before = joined[-1] if joined else {}
        if output["output_type"] == "stream" and output.get("name") == before.get("name"):
            joined[-1] = type(output)(before | {"text": as_text(before["text"]) + as_text(output["text"])})
        else:
            joined.append(output)
    return joined


def last_line(error: Json) -> str:
    """An error without the frames that led to it, which differ between machines."""
    return f"{error['ename']}: {error['evalue']}"


def is_panel(output: Json) -> bool:
    return PANEL in output.get("metadata", {}) and WIDGET in output.get("data", {})


def folded_picture(output: Json) -> Json | None:
    """The figure of an answer behind a guess, which a kernel hands out beside the folded answer."""
    named = output.get("metadata", {}).get(PANEL)
    return named.get("picture") if isinstance(named, dict) else None


def is_box(output: Json) -> bool:
    """Whether an output is an answer box, of which its question and folded answer are stored."""
    return isinstance(output.get("metadata", {}).get(PANEL), dict)


def as_saved(output: Json) -> Json:
    """An output without what only means something while its kernel lives."""
    return without_widget(output) if is_panel(output) or is_box(output) else output


def without_widget(output: Json) -> Json:
    """A panel or a box as it is saved: what stands beside its widget."""
    data = {kind: value for kind, value in output["data"].items() if kind != WIDGET}
    metadata = {name: value for name, value in output["metadata"].items() if name != PANEL}
    return output | {"data": data, "metadata": metadata}


def says_the_same(new: Json, stored: Json) -> bool:
    """Whether an output is one that was stored, but for what is made anew each time.

    Where a figure or a drawing is compared its PNG is not: JupyterLab draws its own. A panel's text says all
    that is on its page, so a stored picture of it stands for its figure too.
    """
    kind = new["output_type"]
    if kind != stored["output_type"]:
        return False
    if kind == "stream":
        return new["name"] == stored["name"] and as_text(new["text"]) == as_text(stored["text"])
    if kind == "error":
        line = last_line(new)
        return line == last_line(stored) and stored["traceback"] in ([line], new["traceback"])
    left_out = {"image/png"} if new["data"].keys() & {PLOTLY, SVG} or still_in(new["data"]) else set()
    if is_panel(new) and "image/png" in stored["data"]:
        left_out |= {PLOTLY, "image/png"}
    new = as_saved(new)
    said, told = (
        {kind: undrawn(value) for kind, value in output["data"].items() if kind not in left_out}
        for output in (new, stored)
    )
    return said == told and new["metadata"] == stored["metadata"]


def still_in(data: Json) -> str:
    """The SVG of a map in an output's data; empty where there is none."""
    found = STILL.match(as_text(data.get("text/html", "")))
    return unquote(found.group(1)) if found else ""


def undrawn(value: Any) -> Any:
    """A value of an output as text, with the name of what to draw in place of a stored picture."""
    text = as_text(value)
    return DRAWN.sub(r"<!--picture \1-->", text) if isinstance(text, str) else text


def stands(new: Json, stored: Json) -> bool:
    """Whether a cell that was run ended as it did when it was stored."""
    outputs, old = merged(new["outputs"]), merged(stored["outputs"])
    return (
        (new["execution_count"] is None) == (stored["execution_count"] is None)
        and len(outputs) == len(old)
        and all(map(says_the_same, outputs, old))
    )


def saved_cell(new: Json, stored: list[Json]) -> Json:
    """A code cell as it is saved; `stored` are its earlier forms with the same source."""
    for old in stored:
        same = stands(new, old)
        kept = KEPT_TAG in new["metadata"].get("tags", []) and not any(map(is_panel, new["outputs"]))
        if same or (kept and None not in (new["execution_count"], old["execution_count"])):
            metadata = dict(new["metadata"])
            if "execution" not in old["metadata"]:
                metadata.pop("execution", None)  # when it ran
            if AFTER_GUESS in old["metadata"].get(
                "tags", []
            ):  # running a cell shows what was hidden in the file
                metadata |= {name: old["metadata"][name] for name in HIDDEN if name in old["metadata"]}
            if not same:
                metadata.pop("trusted", None)  # what is put back did not come from running the cell
            result = {name: old[name] for name in ("outputs", "execution_count")}
            return new | result | {"metadata": metadata}
    return new | {"outputs": list(map(as_saved, new["outputs"]))}


def saved_metadata(new: Json, stored: Json) -> Json:
    """The notebook's metadata: kernel and language as stored while they are the same, no panel's state."""
    metadata = dict(new)
    for entry in ("kernelspec", "language_info"):
        if name_of(stored, entry) and name_of(stored, entry) == name_of(new, entry):
            metadata[entry] = stored[entry]
    if WIDGET_STATE in new.get("widgets", {}):
        states = new["widgets"][WIDGET_STATE]["state"]
        others = {key: value for key, value in states.items() if not _is_panel_state(value)}
        metadata["widgets"] = new["widgets"] | {
            WIDGET_STATE: new["widgets"][WIDGET_STATE] | {"state": others}
        }
        if not others:
            del metadata["widgets"]
    return metadata


def name_of(metadata: Json, entry: str) -> Any:
    """The name in a notebook's kernelspec or language_info; None where there is none."""
    described = metadata.get(entry)
    return described.get("name") if isinstance(described, dict) else None


def _is_panel_state(model: Json) -> bool:
    return str(model.get("state", {}).get("_anywidget_id", "")).startswith("llamapar.")


def saved(new: Json, stored: Json, unfinished: dict[str, Json]) -> Json:
    """A notebook's content as it is saved over `stored`.

    unfinished: stored cells, by id, that a save found waiting to run or cleared; it is brought up to date,
    so that a save in the middle of a run does not lose what its end will say again.
    """
    known = {cell["id"]: cell for cell in stored["cells"] if cell["cell_type"] == "code" and "id" in cell}
    cells = []
    for cell in new["cells"]:
        if cell["cell_type"] == "code":
            on_disk, name = known.get(cell.get("id")), cell.get("id")
            earlier = [old for old in (on_disk, unfinished.get(name)) if old]
            same_source = [old for old in earlier if as_text(old["source"]) == as_text(cell["source"])]
            if cell["execution_count"] is None and on_disk and on_disk["execution_count"] is not None:
                unfinished[name] = on_disk
            cell = saved_cell(cell, same_source)
        cells.append(cell)
    return new | {"cells": cells, "metadata": saved_metadata(new["metadata"], stored["metadata"])}


_unfinished: dict[str, dict[str, Json]] = {}
"""By file: see `saved`."""


def before_saving(*, model: Json, path: str, contents_manager: Any, **_: Any) -> None:
    """The server's pre_save_hook. What it raises is logged, and the notebook saved as it came."""
    if model.get("type") != "notebook" or model["content"]["nbformat"] != 4:
        return
    file = contents_manager._get_os_path(path)
    model["content"] = saved(model["content"], stored_in(Path(file)), _unfinished.setdefault(file, {}))


def stored_in(file: Path) -> Json:
    """The notebook in a file; one without cells where there is none, or none of this format."""
    nothing: Json = {"cells": [], "metadata": {}}
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return nothing
    whole = isinstance(stored, dict) and stored.get("nbformat") == 4 and nothing.keys() <= stored.keys()
    return stored if whole else nothing


def language() -> Json:
    """What this environment's kernel says of its language when it starts."""
    major = sys.version_info.major
    return {
        "codemirror_mode": {"name": "ipython", "version": major},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": f"ipython{major}",
        "version": sys.version.split()[0],
    }


class Notebooks(AsyncLargeFileManager):
    """The server's own manager of files, with both; a hook that the user's settings name runs besides."""

    def __init__(self, **traits: Any) -> None:
        super().__init__(**traits)
        self.register_pre_save_hook(before_saving)

    async def get(self, *args: Any, **kwargs: Any) -> Json:
        model: Json = await super().get(*args, **kwargs)
        if model["type"] == "notebook" and model["content"]:
            metadata = model["content"]["metadata"]
            if (name_of(metadata, "kernelspec"), name_of(metadata, "language_info")) == KERNEL:
                metadata["language_info"] = language()
        return model
