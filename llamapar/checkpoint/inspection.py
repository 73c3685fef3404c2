"""What a checkpoint contains, from its headers alone, and findings about what is unusual in it.

Each stored tensor is compared with the model's placement. No tensor data is read: `verify` does that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Unpack

from llamapar.describe.arguments import checked_options
from llamapar.describe.keywords import InspectKeywords
from llamapar.describe.models import PRESETS
from llamapar.describe.pickles import uncollected
from llamapar.describe.placement import PARAMETERS, Shard
from llamapar.diagnosis import explain
from llamapar.errors import CheckpointError
from llamapar.place.sequence_map import in_runs
from llamapar.records.tables import Plain, Record, cut, noun, span

from .sharding import Sharding
from .source import PADDINGS, Checkpoint, Mismatch, Placement, opened, understood
from .stored import Stored

MAX_KINDS = 100
"""Kinds of wrong tensors that findings tell of one by one."""

MAX_TP = 128
"""Shards that a tensor is looked at as one of."""

_LAYER = re.compile(r"(?:^|\.)layers\.(\d{1,9})\.")


@dataclass(frozen=True, repr=False)
class Inspection(Record):
    """The headers of a checkpoint: format, shards, tensors, and findings in words.

    placement: how the model lies in the files; None if no known model fits them.
    """

    _left = True

    checkpoint: Checkpoint
    placement: Placement | None
    findings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether every tensor of the model is present with the right shape."""
        return self.placement is not None and not self.placement.mismatches

    def as_dict(self) -> Plain:
        """Plain values for JSON, with every tensor."""
        made = self.checkpoint
        placement = self.placement
        tensors = [
            {
                "name": stored.name,
                "shape": list(stored.shape),
                "dtype": stored.dtype,
                "bytes": stored.nbytes,
                "file": stored.file or None,
                "stage": at[0],
                "tp_rank": at[1],
            }
            for at, shard in made.shards.items()
            for stored in shard.values()
        ]
        return {
            "path": str(made.path),
            "ok": self.ok,
            "format": made.format,
            "bytes": made.nbytes,
            "files": [file.name for file in made.files],
            "model": placement.sharding.model.name if placement else None,
            "sharding": str(placement.sharding) if placement else None,
            "findings": list(self.findings),
            "tensors": tensors,
        }

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        made = self.checkpoint
        names = ["no model known"]
        if self.placement:
            sharding = self.placement.sharding
            names = []
            if sharding.model.name != made.path.name:
                names = [sharding.model.name]
            names.append(str(sharding))
        rows = _alike(made)
        count = len(list(made.tensors))
        what = ", ".join([made.format, *names])
        title = f"{made.path.name}: {what}; {count:,} tensors, {made.nbytes:,} bytes"
        rows = [rows[i] for i in cut(len(rows))]
        return title, ["tensor", "shards", "shape", "dtype", "bytes"], rows, "\n".join(self.findings)


@checked_options
@uncollected()
def inspect(path: str | Path, **options: Unpack[InspectKeywords]) -> Inspection:
    """Describe the checkpoint at `path` from its headers; no tensor data is read.

    Without a config beside the files and without `model`, each preset is tried. Raises CheckpointError if
    `path` is no checkpoint or contradicts itself.
    """
    checkpoint = opened(path, options["model"])
    placement = understood(checkpoint) if checkpoint.model else _guess(checkpoint)
    if placement is None:
        unknown = "no config beside it, and no preset that it fits: name the model"
        return Inspection(checkpoint, None, (*checkpoint.notes, unknown))
    guessed = f"no config beside it; its shapes are those of {placement.sharding.model.name}"
    notes = checkpoint.notes if checkpoint.model else (*checkpoint.notes, guessed)
    return Inspection(placement.checkpoint, placement, (*notes, *_findings(placement)))


def _guess(checkpoint: Checkpoint) -> Placement | None:
    """The checkpoint with the first preset that fits every shape."""
    shapes = {stored.shape for stored in checkpoint.tensors}
    n_layers = len(_layers_of(checkpoint.tensors))
    for preset in PRESETS.values():
        # A norm has shape [dim], whatever the sharding, so this rules most presets out without placing
        # their tensors.
        if (preset.dim,) in shapes and preset.n_layers == n_layers:
            found = understood(replace(checkpoint, model=preset))
            if not found.mismatches:
                return found
    return None


def _layer(name: str) -> int | None:
    """The layer number in a tensor's name."""
    found = _LAYER.search(name)
    if found:
        return int(found[1])
    return None


def _layers_of(tensors: Iterable[Stored]) -> set[int]:
    return {layer for stored in tensors if (layer := _layer(stored.name)) is not None}


def _alike(checkpoint: Checkpoint) -> list[list[object]]:
    """Rows of the table: one row for the tensors of one kind, shape and dtype."""
    groups: dict[tuple[str, tuple[int, ...], str], list[Stored]] = {}
    for stored in checkpoint.tensors:
        kind = _LAYER.sub(lambda m: m[0].replace(m[1], "*"), stored.name)
        groups.setdefault((kind, stored.shape, stored.dtype), []).append(stored)
    rows: list[list[object]] = []
    for (kind, shape, dtype), alike in groups.items():
        layers = _layers_of(alike)
        name = kind
        if layers:
            name = kind.replace("*", _spans(layers))
        rows.append([name, len(alike), list(shape), dtype, f"{sum(s.nbytes for s in alike):,}"])
    return rows


def _spans(numbers: Iterable[int]) -> str:
    """0, 1, 2, 5 as "0–2, 5"."""
    runs = in_runs(range(n, n + 1) for n in sorted(numbers))
    shown = [span(run) for run in runs[:6]]
    if len(runs) > 6:
        shown.append("…")
    return ", ".join(shown)


# -- findings ----------------------------------------------------------------------------------------


def _findings(found: Placement) -> Iterator[str]:
    sharding = found.sharding
    model = found.sharding.model
    copies = sharding.heads.replicas
    if copies > 1:
        yield (
            f"KV heads are replicated: {sharding.tp} ranks store {model.n_kv_heads} heads, "
            f"each {copies} times ({sharding.tp} = {copies}·{model.n_kv_heads})"
        )
    if model == PRESETS["llama3.1-405b-mp16"].replace(name=model.name):
        yield "the 16 KV heads are Llama 3.1 405B's 8, each stored twice: n_kv_heads=8 takes one of each pair"
    pads = sharding.vocab.pad_rows
    if pads and not found.mismatches:
        yield f"the vocabulary is padded to {sharding.vocab.padded} rows: {pads} of them stand for no token"
    by_layer = list[tuple[int, Mismatch]]()
    groups = dict[tuple[object, ...], list[Mismatch]]()
    for odd in found.mismatches:
        layer = _layer(odd.name)
        # A wrong shape is told by its kind, once for all layers; missing and surplus layers by their
        # numbers.
        if layer is None or odd.reshaped:
            groups.setdefault((_LAYER.sub(".", odd.name), odd.got, odd.want), []).append(odd)
        else:
            by_layer.append((layer, odd))
    yield from _layers(by_layer, model.n_layers)
    for odd, *alike in list(groups.values())[:MAX_KINDS]:
        more = ""
        if alike:
            more = f" (and {len(alike)} alike)"
        yield f"{odd}{more}{reason(odd, sharding)}"
    if len(groups) > MAX_KINDS:
        yield f"{len(groups) - MAX_KINDS:,} more kinds of tensors do not agree with the model"


def _layers(mismatches: Iterable[tuple[int, Mismatch]], n_layers: int) -> Iterator[str]:
    """Layers that are incomplete or missing, stored twice, or beyond the config's number of layers."""
    missing = list[int]()
    beyond = list[int]()
    twice = list[int]()
    for layer, odd in mismatches:
        if odd.got is None:
            missing.append(layer)
        else:
            (beyond if layer >= n_layers else twice).append(layer)
    for layers, text in (
        (missing, ": tensors are missing ({} in all; the config counts {} layers)"),
        (beyond, " beyond the config's n_layers={1} ({0} tensors)"),
        (twice, ": tensors of another name, or that stand twice ({} in all)"),
    ):
        if layers:
            which = set(layers)
            yield f"{noun(len(which), 'layer')} {_spans(which)}{text.format(len(layers), n_layers)}"


def reason(odd: Mismatch, sharding: Sharding) -> str:
    """The likely cause of a wrong shape: a shard, a wrong join, or another model."""
    if odd.got is None or odd.want is None:
        return ""
    if len(odd.got) == 2 and odd.got == odd.want[::-1]:
        return ": the tensor is transposed"
    if detail := _part(odd.got, odd.want, odd.key) or _wrong_join(odd.got, odd.want):
        return f": {detail}"
    best = explain({odd.name: odd.got}, model=sharding.model).best
    if best is None:
        return ": a size of another model, or of another config"
    return f": {'; '.join([best.cause, *best.equations])}"


def _part(got: tuple[int, ...], want: tuple[int, ...], key: str) -> str:
    """Says whether the tensor is a shard in place of the whole, or still contains pad rows."""
    placed = PARAMETERS[key]
    if not isinstance(placed, Shard) or len(got) != len(want):
        return ""
    dim = placed.dim
    of_vocabulary = placed.unit == "vocabulary row"
    n = got[dim]
    whole = want[dim]
    if not n or got[:dim] + got[dim + 1 :] != want[:dim] + want[dim + 1 :]:
        return ""
    what = {"tok_embeddings": "embedding", "output": "head"}.get(key, "tensor")
    # Smallest TP and plainest padding first: the first that fits is the likeliest.
    for tp, padding in product(range(1, MAX_TP + 1), PADDINGS if of_vocabulary else PADDINGS[:1]):
        padded = padding.padded(whole, tp)
        factors = [padding.multiple, *([tp] if padding.per_tp else []), padded // padding.unit(tp)]
        made = f"a vocabulary padded to {padded} = {'·'.join(map(str, factors))}"
        if n == padded > whole:
            return f"{made}, of which the last {n - whole} rows stand for no token"
        if tp > 1 and n * tp == padded:
            if padded == whole:
                made = f"{whole} {('rows', 'columns')[dim]}"
            return f"it is one of {tp} shards of {made}, not the whole {what}"
    return ""


def _wrong_join(got: tuple[int, ...], want: tuple[int, ...]) -> str:
    """Says whether shards were joined along the wrong dim: [rows/k, columns·k], with a padded vocabulary or
    without.
    """
    if len(got) != 2 or len(want) != 2 or not all(want):
        return ""
    for dim, right, unit in ((1, 0, "rows"), (0, 1, "columns")):
        k, rest = divmod(got[dim], want[dim])
        wholes = {padding.padded(want[0], k) for padding in PADDINGS} if k and not right else {want[right]}
        if rest == 0 and k > 1 and got[right] * k in wholes:
            wrong = f"{k} shards of {got[right]} {unit} were joined along dim {dim}"
            return f"{wrong}; along dim {right} they are {got[right] * k} {unit}"
    return ""


__all__ = ["CheckpointError", "Inspection", "inspect"]
