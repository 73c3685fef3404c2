"""The rows of `trainers.toml` as frameworks: what a trainer can do, and what it does unasked.

Every field is one of `base.Framework` or of `trainer.Habits`, where it is explained. A row holds the usual
value; a run's own settings may say otherwise. `like` takes what a row leaves out from another row.
[NAME.sources] says where each field can be read: "path", "path @commit" or "owner/name: path @commit";
without a commit it is the row's own. [[NAME.until]] says what held before a change, the newest first.
How each trainer judges a layout stands in the modules beside this one.
"""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

from llamapar.describe.configfile import Values
from llamapar.describe.job import Job
from llamapar.describe.layout import AXES
from llamapar.describe.splits import Padding

from .base import NA, UNKNOWN, Evidence, Framework, evidence
from .citation import Change, source_from
from .trainer import Habits

_NOT_TAKEN = {"title", "repo", "commit", "aliases", "until"}
"""Fields that `like` does not take from another row."""

_HABITS = Habits.__dataclass_fields__.keys() - {"sources"}


def _read() -> dict[str, Values]:
    table: dict[str, Values] = tomllib.loads(
        Path(__file__).with_name("trainers.toml").read_text(encoding="utf-8")
    )
    for name, row in table.items():
        like = table.get(row.pop("like", ""), {})
        # A source leaves out the repository and the commit of its own row, so it is resolved there.
        where = row["repo"], row["commit"]
        if "padding" in row:
            row["padding"] = Padding(**row["padding"])
        own = {what: source_from(text, *where) for what, text in row.get("sources", {}).items()}
        taken = {field: value for field, value in like.items() if field not in _NOT_TAKEN}
        table[name] = taken | row | {"sources": taken.get("sources", {}) | own}
    return table


ROWS = _read()
"""Trainer → its fields."""


def _features(found: Framework) -> dict[str, tuple[Evidence, ...]]:
    """Evidence on what a trainer does not have, and on axes of which nobody has read how it cuts by them."""
    cases = evidence(
        LP501=Evidence(
            UNKNOWN,
            path="README.md",
            note=f"read was how it cuts by {', '.join(found.axes)}",
            when=lambda job: any(job.layout.size(axis) > 1 for axis in AXES if axis not in found.axes),
        )
    )
    where = found.sources.get("zero") or found.sources.get("interleaves")
    if where is None:
        return cases

    def lacks(job: Job) -> bool:
        # ZeRO 1 is our default and not always a wish, so a trainer without it runs what it has.
        lay = job.layout
        lacks_stage = lay.zero > 1 and lay.zero not in found.zero
        return lacks_stage or (lay.virtual_stages > 1 and not found.interleaves)

    one = "; a pipeline rank has one stage"
    if found.interleaves:
        one = ""
    note = f"of ZeRO it has {', '.join(map(str, found.zero))}{one}"
    return cases | evidence(LP503=Evidence(NA, "", where.path, note, lacks, where.repo, where.at))


def trainer(name: str, **rules: object) -> Framework:
    """The framework of a row. rules: its fields that are code: evidence, keywords, the job that it runs."""
    fields: Values = {field: tuple(v) if isinstance(v, list) else v for field, v in ROWS[name].items()}
    sources = fields["sources"]
    fields["until"] = [(Change(old["day"], old["change"]), old["habits"]) for old in fields.pop("until", ())]
    fields["habits"] = Habits(
        **{field: fields.pop(field) for field in _HABITS & fields.keys()}, sources=sources
    )
    found = Framework(name, **Values(fields | rules), paper="cases" not in rules)
    return replace(found, cases=_features(found) | found.cases)
