"""`%%ranks`: a notebook's cell on the ranks of the kept pool, as a result."""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Mapping

from llamapar.describe.layout import Layout
from llamapar.diagnosis import Explanation
from llamapar.records.trace import Trace, grouped, some

from .body import RankReport
from .capacity import choose_device
from .cell_lines import CellLines
from .cells import Cell, copied, read_names, run_cell
from .engines.pool import pool
from .engines.processes import PRELOAD
from .result import Result

_cells = itertools.count(1)


def cell_on_ranks(
    source: str, layout: Layout, notebook: Mapping[str, object], device: str, timeout: float
) -> Result:
    """Run a notebook's cell on the ranks of a layout. Who waits is printed after 5 s without progress.

    device: "auto", "cpu" or "cuda": where the ranks make their tensors, and where the notebook's arrive.

    Raises LlamaparError for a cell that is no Python; RankFailure if ranks die or wait for too long.
    """
    names, refused = copied(read_names(source), notebook)
    used, backend, _ = choose_device(device, "processes", layout.world)
    cell = Cell(source, f"<cell on ranks {next(_cells)}>", layout, names)
    # Python's cache of lines goes to the ranks, so that errors there quote them.
    linecache.cache[cell.file] = len(source), None, source.splitlines(keepends=True), cell.file
    ranks = pool(layout.world, device=used, backend=backend, preload=PRELOAD)
    answers = ranks.run(run_cell, cell, timeout=timeout, told=_waiting, keep=True)
    ran = CellLines(cell, tuple(answers), refused)
    reports = []
    for a in answers:
        events = [event for done in ran.reports[a.rank].done.values() for event in done.events]
        trace = Trace(a.rank, tuple(events))
        reports.append(RankReport(rank=a.rank, trace=trace, error=a.error, traceback=a.traceback, at=a.at))
    why = "a cell returns none", "result.out, the value of its last expression"
    return Result("cell", ran, "processes", used, tuple(reports), no_tensors=why, repair=_repaired)


def _repaired(result: Result, found: Explanation) -> Explanation:
    from .repairing import repaired_cell  # which a cell that runs never needs

    return repaired_cell(result, found)


def _waiting(states: Mapping[int, str]) -> None:
    print("no progress for 5 s:", *(f"{some(ranks)} {what}" for what, ranks in grouped(states)), sep="\n  ")
