"""The table of public models, models.csv: presets, names that `lp.model` reads, and names that explain knows.

Dimensions come from the config.json that each model was published with (Hugging Face, 2025); Llama's come
from llama-models, sku_list.py @8c88b8c0. Columns: kind is the model_type if all parameters are counted, else
"mixture" or "other": then only the dimensions are known here. others: further names of models with the same
dimensions, for explain. An empty cell means ModelConfig's default.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .configfile import Values
from .families import FAMILIES
from .rope import RopeScaling


@dataclass(frozen=True)
class CatalogRow:
    """A row of the table. fields: of its ModelConfig. counted: whether its parameters can be counted too."""

    name: str
    others: tuple[str, ...]
    kind: str
    preset: bool
    fields: Values
    counted: bool

    @classmethod
    def of(cls, cells: dict[str, str]) -> CatalogRow:
        """A CatalogRow from the cells of a row, by column name."""
        # What is left after this and after "tied" are columns with the names of ModelConfig's fields.
        name, others, kind, preset, factor = (cells.pop(key) for key in _NOT_FIELDS)
        fields: Values = {"name": name, "tied": cells.pop("tied") == "yes"}
        reals = ("rope_theta", "norm_eps")
        fields |= {key: (float if key in reals else int)(cell) for key, cell in cells.items() if cell}
        if factor:
            fields["rope_scaling"] = RopeScaling(factor=float(factor))
        if family := FAMILIES.get(kind):
            fields = {"family": kind, **family.fields} | fields
        return cls(name, tuple(others.split()), kind, preset == "yes", fields, family is not None)


_NOT_FIELDS = ("name", "others", "kind", "preset", "rope_factor")


@cache
def entries() -> tuple[CatalogRow, ...]:
    """The rows of models.csv, in order."""
    head, *rows = Path(__file__).with_name("models.csv").read_text(encoding="utf-8").splitlines()
    return tuple(CatalogRow.of(dict(zip(head.split(","), row.split(","), strict=True))) for row in rows)
