"""What lies in a checkpoint, by its headers alone, and what is odd about it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from llamapar.describe.arguments import named
from llamapar.describe.models import PRESETS, ModelLike
from llamapar.describe.placement import PARAMETERS, Shard
from llamapar.describe.splits import NO_PADDING
from llamapar.diagnosis import explain
from llamapar.errors import CheckpointError
from llamapar.frameworks import FRAMEWORKS
from llamapar.records.tables import Plain, Record, cut, span

from .sharding import Sharding, plain
from .source import Checkpoint, Mismatch, Placement, opened, understood

MAX_TP = 128
"""Shards that a tensor is looked at as one of."""

_PADDINGS = list(dict.fromkeys([NO_PADDING, *(f.padding for f in FRAMEWORKS.values())]))
_LAYER = re.compile(r"(?:^|\.)layers\.(\d{1,9})\.")


@dataclass(frozen=True, repr=False)
class Inspection(Record):
    """A checkpoint's headers: formats, shards, tensors, and findings in words.

    placement: how the model lies in it; None where no model is known that it could be.
    """

    _left = True

    checkpoint: Checkpoint
    placement: Placement | None
    findings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether every tensor of the model is there in its right shape."""
        return self.placement is not None and not self.placement.mismatches

    def as_dict(self) -> Plain:
        """Plain values for JSON, every tensor included."""
        made, placement = self.checkpoint, self.placement
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
        made, names = self.checkpoint, [self.checkpoint.format]
        if self.placement:
            sharding = self.placement.sharding
            named = [sharding.model.name] if sharding.model.name != made.path.name else []
            names += [*named, str(sharding)]
        else:
            names.append("no model known")
        count = sum(len(shard) for shard in made.shards.values())
        title = f"{made.path.name}: {', '.join(names)}; {count:,} tensors, {made.nbytes:,} bytes"
        listed = _alike(made)
        rows = [listed[i] for i in cut(len(listed))]
        return title, ["tensor", "shards", "shape", "dtype", "bytes"], rows, "\n".join(self.findings)


@named()
def inspect(path: str | Path, *, model: ModelLike | None = None) -> Inspection:
    """What lies in the checkpoint at `path`; headers are read, no tensor.

    Without a config beside the files and without `model`, the presets are tried. Raises CheckpointError for
    what is no checkpoint or contradicts itself.
    """
    made = opened(path, model)
    notes = list(made.notes)
    if made.model is not None:
        found = understood(made)
        return Inspection(made, found, (*notes, *_told(found)))
    guess = _guess(made)
    if guess is None:
        return Inspection(
            made, None, (*notes, "no config beside it, and no preset that it fits: name the model")
        )
    notes.append(f"no config beside it; its shapes are those of {guess.sharding.model.name}")
    return Inspection(guess.checkpoint, guess, (*notes, *_told(guess)))


def _guess(made: Checkpoint) -> Placement | None:
    """The checkpoint as the first preset of which every shape fits."""
    widths = {stored.shape for stored in made.tensors if len(stored.shape) == 1}
    layers = {int(layer[1]) for stored in made.tensors if (layer := _LAYER.search(stored.name))}
    for preset in PRESETS.values():
        if (preset.dim,) not in widths or preset.n_layers != len(layers):
            continue
        found = understood(replace(made, model=preset))
        if not found.mismatches:
            return found
    return None


def _alike(made: Checkpoint) -> list[list[object]]:
    """Rows of the table: tensors of one kind, shape and dtype together."""
    groups: dict[tuple[str, tuple[int, ...], str], tuple[set[int], int, int]] = {}
    for shard in made.shards.values():
        for stored in shard.values():
            layer = _LAYER.search(stored.name)
            kind = _LAYER.sub(lambda m: m[0].replace(m[1], "*"), stored.name)
            layers, count, size = groups.get((kind, stored.shape, stored.dtype), (set(), 0, 0))
            if layer:
                layers.add(int(layer[1]))
            groups[kind, stored.shape, stored.dtype] = layers, count + 1, size + stored.nbytes
    return [
        [kind.replace("*", _spans(layers)) if layers else kind, count, list(shape), dtype, f"{size:,}"]
        for (kind, shape, dtype), (layers, count, size) in groups.items()
    ]


def _spans(numbers: Iterable[int]) -> str:
    """0, 1, 2, 5 as "0–2, 5"."""
    runs: list[range] = []
    for n in sorted(numbers):
        start = runs.pop().start if runs and runs[-1].stop == n else n
        runs.append(range(start, n + 1))
    return ", ".join(span(run) for run in runs[:6]) + (", …" if len(runs) > 6 else "")


# -- findings ----------------------------------------------------------------------------------------


def _told(found: Placement) -> Iterator[str]:
    sharding, model = found.sharding, found.sharding.model
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
    yield from _layers(found)
    groups: dict[tuple[object, ...], list[Mismatch]] = {}
    for odd in found.mismatches:
        if (odd.got and odd.want) or not _LAYER.search(odd.name):
            groups.setdefault((_LAYER.sub(".", odd.name), odd.got, odd.want), []).append(odd)
    for odd, *alike in groups.values():
        yield f"{odd}{f' (and {len(alike)} alike)' if alike else ''}{reason(odd, sharding)}"


def _layers(found: Placement) -> Iterator[str]:
    """Layers that are missing, in part or whole, that stand twice, or that the config does not count."""
    model = found.sharding.model
    groups: dict[str, dict[int, int]] = {"missing": {}, "beyond": {}, "twice": {}}
    for odd in found.mismatches:
        layer = _LAYER.search(odd.name)
        if not layer or (odd.got is not None and odd.want is not None):
            continue
        n = int(layer[1])
        kind = "beyond" if n >= model.n_layers else "twice"
        if odd.got is None:
            kind = "missing"
        groups[kind][n] = groups[kind].get(n, 0) + 1
    texts = {
        "missing": "layer{s} {0}: tensors are missing ({1} in all; the config counts {2} layers)",
        "beyond": "layer{s} {0} beyond the config's n_layers={2} ({1} tensors)",
        "twice": "layer{s} {0}: tensors of another name, or that stand twice ({1} in all)",
    }
    for kind, layers in groups.items():
        if layers:
            s = "s" * (len(layers) > 1)
            yield texts[kind].format(_spans(layers), sum(layers.values()), model.n_layers, s=s)


def reason(odd: Mismatch, sharding: Sharding) -> str:
    """What the wrong shape looks like: a shard, a wrong join, another model's."""
    if odd.got is None or odd.want is None:
        return ""
    if len(odd.got) == 2 and odd.got == odd.want[::-1]:
        return ": the tensor is transposed"
    stage = sharding.tensors[odd.shard[0]]
    parameter = stage.get(plain(odd.name, stage) or "")
    if detail := (parameter and _part(odd.got, odd.want, parameter.key)) or _wrong_join(odd.got, odd.want):
        return f": {detail}"
    best = explain({odd.name: odd.got}, model=sharding.model).best
    if best is None:
        return ": a size of another model, or of another config"
    return f": {'; '.join([best.cause, *best.equations])}"


def _part(got: tuple[int, ...], want: tuple[int, ...], key: str) -> str:
    """A shard in the place of the whole, or pad rows that were left in."""
    placed = PARAMETERS[key]
    if not isinstance(placed, Shard) or len(got) != len(want):
        return ""
    dim, of_vocabulary = placed.dim, placed.unit == "vocabulary row"
    n, whole = got[dim], want[dim]
    if not n or got[:dim] + got[dim + 1 :] != want[:dim] + want[dim + 1 :]:
        return ""
    what = {"tok_embeddings": "embedding", "output": "head"}.get(key, "tensor")
    for tp, padding in product(range(1, MAX_TP + 1), _PADDINGS if of_vocabulary else _PADDINGS[:1]):
        padded = padding.padded(whole, tp)
        factors = [padding.multiple, *([tp] if padding.per_tp else []), padded // padding.unit(tp)]
        made = f"a vocabulary padded to {padded} = {'·'.join(map(str, factors))}"
        if n == padded > whole:
            return f"{made}, of which the last {n - whole} rows stand for no token"
        if tp > 1 and n * tp == padded:
            made = f"{whole} {('rows', 'columns')[dim]}" if padded == whole else made
            return f"it is one of {tp} shards of {made}, not the whole {what}"
    return ""


def _wrong_join(got: tuple[int, ...], want: tuple[int, ...]) -> str:
    """Shards joined along the wrong dim: [rows/k, columns·k]; of a padded vocabulary too."""
    if len(got) != 2 or len(want) != 2 or not got[0] or not want[1]:
        return ""
    k, rest = divmod(got[1], want[1])
    if rest == 0 and k > 1 and got[0] * k in {p.padded(want[0], k) for p in _PADDINGS}:
        return f"{k} shards of {got[0]} rows were joined along dim 1; along dim 0 they are {got[0] * k} rows"
    k, rest = divmod(got[0], want[0])
    if rest == 0 and k > 1 and got[1] * k == want[1]:
        return (
            f"{k} shards of {got[1]} columns were joined along dim 0; along dim 1 they are {want[1]} columns"
        )
    return ""


__all__ = ["CheckpointError", "Inspection", "inspect"]
