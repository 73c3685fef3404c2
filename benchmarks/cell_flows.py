"""Notebook flows that end in a failing cell, and what `%debug_shapes` says of them.

Each flow of `cell_flows.toml` runs in a real IPython shell, one cell after another, and then
`%debug_shapes`. An answer is right if its first edit is a true one, or if it offers none where none is
right and says what is wrong. It is wrong if it claims another edit as proved, or blames or clears sharding
against the truth. Another edit that is not called proved leaves the flow undecided; "none" is an answer
without an edit. Seconds are those of `%debug_shapes`, of which the first also imports.

    python benchmarks/cell_flows.py --only whole --show   # some flows, with the answers
    python benchmarks/cell_flows.py --measure             # all of them: writes cell_flows.json
    python benchmarks/cell_flows.py --page                # writes docs/accuracy.md

`unseen_flows.toml` (`--file benchmarks/unseen_flows.toml`) was written before its author had read the code
that answers, and was measured once.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch.distributed

import _page

FLOWS = Path(__file__).with_suffix(".toml")
UNSEEN = FLOWS.with_name("unseen_flows.toml")
KINDS = ("right", "undecided", "none", "wrong")
Flow = dict[str, Any]


def answer(flow: Flow) -> tuple[dict[str, Any], float]:
    """What `%debug_shapes` displays after a flow's cells, as JSON, and the seconds it took."""
    folder = tempfile.mkdtemp()
    os.environ.setdefault("IPYTHONDIR", folder)
    os.chdir(folder)  # a flow writes the file that it imports
    sys.path.insert(0, folder)
    from IPython.core.interactiveshell import InteractiveShell

    from llamapar import jupyter

    if torch.distributed.is_initialized():  # an earlier flow's
        torch.distributed.destroy_process_group()
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    found: list[Any] = []
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        shell.run_cell("%load_ext llamapar", store_history=True)
        for cell in flow["cells"]:
            shell.run_cell(cell, store_history=True)
        begun = time.perf_counter()
        with patch.object(jupyter.LlamaparMagics, "_show", lambda _, said, *more: found.append(said)):
            shell.run_cell("%debug_shapes", store_history=True)
        seconds = time.perf_counter() - begun
    return (found[0].as_dict() if found else {}), seconds


def score(flow: Flow, said: dict[str, Any]) -> str:
    """One of `KINDS`."""
    if not said:
        return "none"
    added = " ".join(line for line in said["edit"] if line.startswith("+ ")).replace("'", '"')
    whole = " ".join([said["what"], *said["proof"], *said["else"]])
    true = bool(flow["edit"]) == bool(added)
    for edit in flow["edit"]:
        true = true and any(text in added for text in edit.split(" || "))
    against = said["verdict"] == ("not_sharding" if flow["sharding"] else "sharding")
    proved = any(line.startswith("proved") for line in said["proof"])
    if against or (proved and not true):
        return "wrong"
    if said["what"].startswith("Undecided") or (added and not true):
        return "undecided"
    return "right" if true and flow.get("says", "") in whole else "none"


def flows(path: Path = FLOWS) -> list[Flow]:
    """The flows of a file that fail in a plain cell."""
    rows = tomllib.loads(path.read_text("utf-8"))["flow"]
    return [flow for flow in rows if "door" not in flow]


def tables() -> dict[str, list[str]]:
    """The table of docs/accuracy.md, of the outcomes as they were measured."""
    rows = []
    for label, file in (("known", FLOWS), ("first sight", UNSEEN)):
        outcomes = json.loads(file.with_suffix(".json").read_text("utf-8"))
        kinds, times = [kind for kind, _ in outcomes.values()], [seconds for _, seconds in outcomes.values()]
        counts = [kinds.count(kind) for kind in KINDS]
        median, longest = statistics.median(times), max(times[1:])
        rows.append([label, len(outcomes), *counts, f"{median:.1f}", f"{longest:.1f}"])
    programs = json.loads(FLOWS.with_name("live_facts.json").read_text("utf-8"))["edits"]
    kinds = list(programs.values())
    rows.append(["programs above", len(kinds), *(kinds.count(kind) for kind in KINDS), "", ""])
    head = ("measured", "flows", *KINDS, "median s", "longest")
    return {"cell_flows": _page.table(head, rows)}


def main() -> None:
    """As the options ask."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    asked.add_argument("--file", type=Path, default=FLOWS)
    asked.add_argument("--only", default="", help="of flows whose name begins so")
    asked.add_argument("--show", action="store_true")
    asked.add_argument("--measure", action="store_true")
    asked.add_argument("--page", action="store_true", help="write docs/accuracy.md")
    given = asked.parse_args()
    given.file = given.file.resolve()
    if given.page:
        _page.write(tables())
        return
    outcomes: dict[str, tuple[str, float]] = {}
    for flow in flows(given.file):
        if not flow["name"].startswith(given.only):
            continue
        said, seconds = answer(flow)
        outcomes[flow["name"]] = score(flow, said), round(seconds, 2)
        print(
            f"{outcomes[flow['name']][0]:10}{seconds:6.2f} s  {flow['name']}: {said.get('what', 'no answer')}"
        )
        if given.show and said:
            print(
                *(f"            {line}" for part in ("edit", "proof", "else") for line in said[part]),
                sep="\n",
            )
    if given.measure:
        given.file.with_suffix(".json").write_text(json.dumps(outcomes, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
