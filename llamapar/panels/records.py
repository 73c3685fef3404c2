"""The record that each of the Explorer's tabs draws; Memory has more to say, Run has none before a run."""

from __future__ import annotations

from collections.abc import Callable

from llamapar.describe.options import Values
from llamapar.describe.splits import NO_PADDING, Padding
from llamapar.place import heads, ranks, sequence, stages, vocab
from llamapar.records.tables import Record
from llamapar.rules.report import Report


def padding(report: Report) -> Padding:
    return report.job.padding or (report.judge.padding if report.judge else NO_PADDING)


def layer_split(report: Report) -> str:
    own = report.judge.layer_split if report.judge else None
    return report.job.layer_split or own or "balanced ends"


RECORDS: dict[str, Callable[[Report, Values], Record]] = {
    "heads": lambda r, v: heads(r.job.model, r.job.layout, kv_replication=r.job.kv_replication),
    "vocab": lambda r, v: vocab(r.job.model, r.job.layout, padding=padding(r)),
    "sequence": lambda r, v: sequence(
        r.job.layout, r.job.seq_len or r.job.model.max_seq_len, chunking=v["chunking"]
    ),
    "stages": lambda r, v: stages(r.job.model, r.job.layout, layer_split=layer_split(r)),
    "ranks": lambda r, v: ranks(r.job.layout, v["rank"]),
}
"""By the tab's name, of a report and the values of the controls."""
