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


@dataclass(frozen=True)
class Entry:
    """A row of the table. fields: those of its ModelConfig. counted: whether its parameters are known too."""

    name: str
    others: tuple[str, ...]
    kind: str
    preset: bool
    fields: Values
    counted: bool

    @classmethod
    def of(cls, cells: dict[str, str]) -> Entry:
        """From the cells of a row by the names of their columns."""
        name, others, kind, preset, factor = (cells.pop(key) for key in _NOT_FIELDS)
        fields: Values = {"name": name, "tied": cells.pop("tied") == "yes"}
        for key, cell in cells.items():
            if cell:
                fields[key] = float(cell) if key in ("rope_theta", "norm_eps") else int(cell)
        if factor:
            fields["rope_scaling"] = RopeScaling(factor=float(factor))
        if family := FAMILIES.get(kind):
            fields |= {"qkv_bias": family.qkv_bias, "qk_norm": family.qk_norm}
        return cls(name, tuple(others.split()), kind, preset == "yes", fields, family is not None)


_NOT_FIELDS = ("name", "others", "kind", "preset", "rope_factor")


@cache
def entries() -> tuple[Entry, ...]:
    """The rows of models.csv, in its order."""
    head, *rows = Path(__file__).with_name("models.csv").read_text(encoding="utf-8").splitlines()
    return tuple(Entry.of(dict(zip(head.split(","), row.split(","), strict=True))) for row in rows)
