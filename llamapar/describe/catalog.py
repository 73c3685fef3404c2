"""The table of public models, models.csv: presets, what `lp.model` reads by name, and what explain knows.

Dimensions are those of the config.json that each was published with (Hugging Face, 2025; Llama's from
llama-models, sku_list.py @8c88b8c0). kind: the model_type of a model that is counted whole; "mixture" or
"other" for one of which the dimensions alone are known. others: further names of models with these
dimensions, which explain reads. An empty cell is ModelConfig's default.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .configfile import Values
from .families import FAMILIES
from .rope import RopeScaling

_FILE = Path(__file__).with_name("models.csv")


@dataclass(frozen=True)
class Entry:
    """A row of the table. fields: those of its ModelConfig, name included."""

    name: str
    others: tuple[str, ...]
    kind: str
    preset: bool
    fields: Values

    @property
    def counted(self) -> bool:
        """Whether its parameters are known exactly, not its dimensions alone."""
        return self.kind in FAMILIES


@cache
def entries() -> tuple[Entry, ...]:
    """The rows of models.csv, in its order."""
    head, *rows = _FILE.read_text(encoding="utf-8").splitlines()
    return tuple(_entry(dict(zip(head.split(","), row.split(","), strict=True))) for row in rows)


def _entry(cells: dict[str, str]) -> Entry:
    name, others, kind, preset = (cells.pop(key) for key in ("name", "others", "kind", "preset"))
    tied, factor = cells.pop("tied") == "yes", cells.pop("rope_factor")
    fields: Values = {"name": name, "tied": tied}
    for key, cell in cells.items():
        if cell:
            fields[key] = float(cell) if key in ("rope_theta", "norm_eps") else int(cell)
    if factor:
        fields["rope_scaling"] = RopeScaling(factor=float(factor))
    if kind in FAMILIES:
        fields |= {"qkv_bias": FAMILIES[kind].qkv_bias, "qk_norm": FAMILIES[kind].qk_norm}
    return Entry(name, tuple(others.split()), kind, preset == "yes", fields)
