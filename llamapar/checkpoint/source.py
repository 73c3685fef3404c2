"""Opening a checkpoint: its format, its shards, and how the model lies in them.

Only headers are read. What a folder says about itself (manifest, config) is accepted only if the shapes of
its tensors agree. For a folder that says nothing, the shardings that frameworks make are tried in turn.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from llamapar.describe.layout import Layout
from llamapar.describe.models import ModelConfig, ModelLike
from llamapar.describe.models import model as find_model
from llamapar.describe.pickles import uncollected
from llamapar.describe.splits import NO_PADDING
from llamapar.errors import CheckpointError, Choice, shown
from llamapar.frameworks import FRAMEWORKS
from llamapar.records.tables import Plain, plural

from . import pth, safetensors
from .sharding import COMPUTED, HEAD, Sharding, unwrapped
from .stored import Stored, json_object

MANIFEST = "llamapar.json"
MAX_MANIFEST = 2**28

MAX_NAME = 1000
"""Characters of the longest name of a tensor; those of real models have about a hundred."""

PADDINGS = list(dict.fromkeys([NO_PADDING, *(f.padding for f in FRAMEWORKS.values())]))
"""What frameworks do with a vocabulary, the plainest first."""

_CONSOLIDATED = re.compile(r"consolidated\.(\d+)\.(pth|pt)")

_SUFFIXES = (".safetensors", *pth.SUFFIXES)

Shards = Mapping[tuple[int, int], Mapping[str, Stored]]
"""(stage, tp rank) → tensors by their stored names."""


@dataclass(frozen=True, repr=False)
class Checkpoint:
    """A checkpoint as its headers describe it.

    format: "safetensors", "meta" (consolidated.NN.pth) or "torch" (other .pth, .pt and .bin files).
    model: the given one, or from a config beside the files; None without either. notes: what was left out.
    manifest: the folder's own list, if it has one. sharding: how the model lies, according to that list.
    """

    path: Path
    format: str
    shards: Shards
    model: ModelConfig | None = None
    notes: tuple[str, ...] = ()
    manifest: Plain | None = None
    sharding: Sharding | None = None

    def __repr__(self) -> str:
        count = sum(1 for _ in self.tensors)
        files = len(self.files)
        what = f"{self.format}, {plural(files, 'file')}"
        return f"{self.path}: {what}, {count:,} tensors, {self.nbytes:,} bytes"

    @property
    def tensors(self) -> Iterator[Stored]:
        return (stored for shard in self.shards.values() for stored in shard.values())

    @property
    def files(self) -> list[Path]:
        return sorted({stored.path for stored in self.tensors})

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors; a tensor with two names counts once."""
        return sum({stored.place: stored.nbytes for stored in self.tensors}.values())


@uncollected()
def opened(path: str | Path, model: ModelLike | None = None) -> Checkpoint:
    """The checkpoint at `path`: a file, a folder or an index. Raises CheckpointError if it is none.

    model: a preset's name, a ModelConfig, a config.json or its dict; it overrides the folder's own.
    """
    place = Path(path)
    # Before the files: a slip in the name should not have to wait for thousands of headers.
    config = None
    if model is not None:
        config = find_model(model)
    try:
        checkpoint = _folder(place) if place.is_dir() else _file(place)
        for stored in checkpoint.tensors:
            if len(stored.name) > MAX_NAME or not stored.name.isprintable():
                why = f"names of tensors have at most {MAX_NAME:,} characters"
                raise CheckpointError(f"{place}: the name {shown(stored.name)} is no plain text", why)
        beside = place
        if not place.is_dir():
            beside = place.parent
        if config is None and checkpoint.model is None:
            described = any((beside / name).is_file() for name in ("config.json", "params.json"))
            config = None
            if described:
                config = find_model(beside)
            shard = checkpoint.shards[0, 0]
            ends = [shard[n].place for n in ("tok_embeddings.weight", "output.weight") if n in shard]
            if config and len(ends) == 2 and ends[0] == ends[1]:  # params.json has no such field.
                config = config.replace(tied=True)
        if config:
            config.require_judged("the checkpoint")
            names = [p.hf_name for p in config.replace(n_layers=1).parameters()]
            if len({*names}) < len(names):
                what = f"{place}: {config.family} has several projections in one tensor"
                raise CheckpointError(what, "what is cut here are projections with a tensor of their own")
        return replace(checkpoint, model=config or checkpoint.model)
    except OSError as problem:
        raise CheckpointError(f"{problem.filename or place}: {problem.strerror}") from None


def tensors_of(path: Path) -> dict[str, Stored]:
    """The tensors of one file, whose format follows from the suffix; reads only headers."""
    if path.suffix in pth.SUFFIXES:
        return pth.read_pth(path)
    return safetensors.read_safetensors(path)


def _file(path: Path) -> Checkpoint:
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file or folder", field="path")
    if path.name.endswith(".index.json"):
        return Checkpoint(path, "safetensors", {(0, 0): safetensors.read_index(path)})
    if path.suffix in _SUFFIXES:
        kind = "safetensors"
        if path.suffix in pth.SUFFIXES:
            kind = "torch"
        return Checkpoint(path, kind, {(0, 0): tensors_of(path)})
    why = "known are .safetensors, .index.json, .pth, .pt and .bin, and folders of them"
    raise CheckpointError(f"{path.name} is no checkpoint", why, field="path")


def _folder(path: Path) -> Checkpoint:
    if (path / MANIFEST).is_file():
        return _own(path)
    return _foreign(path)


def _foreign(path: Path) -> Checkpoint:
    """A folder without a manifest of ours."""
    # From the most telling sign to the least: torch's metadata, an index, Meta's names, and last any files
    # at all.
    if (path / ".metadata").is_file():
        what = f"{path} is a folder of torch.distributed.checkpoint, which is not read"
        why = "torch makes one file of it, but runs what the folder's pickle says: convert only your own"
        convert = f"python -m torch.distributed.checkpoint.format_utils dcp_to_torch {path} model.pt"
        raise CheckpointError(what, why, [convert], "path")
    if (path / safetensors.INDEX).is_file():
        return replace(_file(path / safetensors.INDEX), path=path)
    shards = {int(m[1]): file for file in path.iterdir() if (m := _CONSOLIDATED.fullmatch(file.name))}
    if shards:
        # Counted along the files that are there: a number in a name may be as large as it likes.
        missing = next((n for n in range(len(shards)) if n not in shards), None)
        if missing is not None:
            there = f"{len(shards)} shards are there, the last is {max(shards):02d}"
            what = f"consolidated.{missing:02d}.pth is missing: {there}"
            raise CheckpointError(what, f"all of them are looked for in {path}")
        return Checkpoint(path, "meta", {(0, n): pth.read_pth(shards[n]) for n in sorted(shards)})
    files = [file for file in path.iterdir() if file.suffix in _SUFFIXES and file.is_file()]
    if files:
        # By numbers and not by text, so that rank 10 comes after rank 9.
        by_number = sorted(files, key=lambda f: ([int(n) for n in re.findall(r"\d{1,9}", f.name)], f.name))
        return _several(path, by_number)
    wanted = f"{MANIFEST}, {safetensors.INDEX}, consolidated.00.pth, .safetensors and .pth files"
    raise CheckpointError(f"{path} holds no checkpoint", f"looked for: {wanted}", field="path")


def _several(path: Path, files: list[Path]) -> Checkpoint:
    """Files without an index: the parts of one checkpoint, or the shards of TP ranks."""
    by_file = [tensors_of(file) for file in files]
    kind = "safetensors"
    if files[0].suffix in pth.SUFFIXES:
        kind = "torch"
    together = {name: stored for tensors in by_file for name, stored in tensors.items()}
    # No name stands twice, so the files are parts of one whole.
    if len(together) == sum(map(len, by_file)):
        return Checkpoint(path, kind, {(0, 0): together})
    if any(tensors.keys() != together.keys() for tensors in by_file):
        what = f"{len(files)} files of {path} hold some tensors twice, and not all the same ones"
        why = "parts of a checkpoint hold each tensor once; shards of TP ranks all hold the same names"
        raise CheckpointError(what, why, [str(files[0])], "path")
    shards = {(0, rank): tensors for rank, tensors in enumerate(by_file)}
    note = f"taken as TP shards 0 to {len(files) - 1}, by their numbers"
    notes = (f"{len(files)} files hold the same names: {note}",)
    return Checkpoint(path, kind, shards, notes=notes)


def _own(path: Path) -> Checkpoint:
    """A folder that `atomic_write` made. Its manifest must agree with its files."""
    manifest = json_object(path / MANIFEST, MAX_MANIFEST)
    if manifest.get("crc32") != crc_of(manifest):
        raise CheckpointError(f"{MANIFEST} is not as it was written", "its own crc32 does not agree")
    sharding = Sharding.from_dict(manifest.get("sharding", {}), MANIFEST)
    listed = manifest.get("files")
    if not isinstance(listed, dict) or sharding.tp * sharding.pp > len(listed):
        raise CheckpointError(f"{MANIFEST} lists no files for {sharding}")
    for name in listed:
        safetensors.file_inside(path, name, MANIFEST)
    if sharding.naming == "hf" and sharding.tp * sharding.pp > 1:
        named = {at: safetensors.file_inside(path, sharding.file_name(at), MANIFEST) for at in sharding}
        shards: Shards = {at: safetensors.read_safetensors(file) for at, file in named.items()}
    else:
        shards = _foreign(path).shards
    kind = "safetensors"
    if sharding.naming == "meta":
        kind = "meta"
    return Checkpoint(path, kind, shards, sharding.model, manifest=manifest, sharding=sharding)


def checksums(files: Iterable[Path]) -> dict[str, int]:
    """Name → crc32 of each file."""
    found: dict[str, int] = {}
    for path in files:
        found[path.name] = 0
        with path.open("rb", buffering=0) as file:
            while block := file.read(2**20):
                found[path.name] = zlib.crc32(block, found[path.name])
    return found


def changed_files(checkpoint: Checkpoint) -> list[str]:
    """A sentence for each file whose bytes do not have the manifest's checksum. Reads every byte."""
    listed = {}
    if checkpoint.manifest:
        listed = checkpoint.manifest["files"]
    found = checksums(checkpoint.path / name for name in listed)
    return [
        f"{name} is not as it was written, {MANIFEST} says" for name in listed if found[name] != listed[name]
    ]


# -- how the model lies in it ------------------------------------------------------------------------


@dataclass(frozen=True)
class Mismatch:
    """A tensor that differs from the sharding. got, want: shapes; None if the tensor is missing there.

    key: the parameter's row in the placement table; empty if the tensor belongs to no parameter.
    """

    name: str
    got: tuple[int, ...] | None
    want: tuple[int, ...] | None
    file: str
    key: str = ""

    @property
    def reshaped(self) -> bool:
        """Whether the tensor is present with another shape."""
        return self.got is not None and self.want is not None

    def __str__(self) -> str:
        where = ""
        if self.file:
            where = f" in {self.file}"
        if self.got is None:
            return f"{self.name} is missing{where}, {list(self.want or ())} is needed"
        if self.want is None:
            return f"{self.name} {list(self.got)}{where} is no tensor of this model"
        return f"{self.name} is {list(self.got)}{where}, {list(self.want)} is needed"


@dataclass(frozen=True)
class Placement:
    """A checkpoint under a sharding: the parameter of each stored tensor, and the mismatches.

    by_parameter: Meta's name of a parameter → [(tp rank, stored)].
    """

    checkpoint: Checkpoint
    sharding: Sharding
    by_parameter: Mapping[str, list[tuple[int, Stored]]]
    mismatches: tuple[Mismatch, ...]


def compare_with_sharding(checkpoint: Checkpoint, sharding: Sharding) -> Placement:
    """Compare every stored tensor with the sharding."""
    by_parameter: dict[str, list[tuple[int, Stored]]] = {p.name: [] for p in sharding.model.parameters()}
    mismatches: list[Mismatch] = []
    tied_head = None
    if sharding.model.tied:
        tied_head = HEAD[sharding.naming]
    for stage, rank in sharding:
        shard = checkpoint.shards.get((stage, rank), {})
        wanted = dict(sharding.tensors[stage])
        if tied_head and tied_head in shard:  # Older files store this tensor although nothing needs it.
            wanted.setdefault(tied_head, next(sharding.model.parameters()))
        for name, stored in shard.items():
            short = unwrapped(name, wanted)
            if short is not None:
                parameter = wanted.pop(short)
                shape = sharding.local_shape(parameter, rank)
                if stored.shape != shape:
                    mismatches.append(Mismatch(name, stored.shape, shape, stored.file, parameter.key))
                by_parameter[parameter.name].append((rank, stored))
            elif not name.endswith(COMPUTED):
                mismatches.append(Mismatch(name, stored.shape, None, stored.file))
        file = next((stored.file for stored in shard.values()), "")
        for name, parameter in wanted.items():
            if name != tied_head:
                shape = sharding.local_shape(parameter, rank)
                mismatches.append(Mismatch(name, None, shape, file, parameter.key))
    return Placement(checkpoint, sharding, by_parameter, tuple(mismatches))


@uncollected()
def understood(checkpoint: Checkpoint) -> Placement:
    """The checkpoint under the sharding that fits it, else under the nearest one with its mismatches.

    Raises CheckpointError if no model is known.
    """
    if checkpoint.model is None:
        why = "names and cuts follow from the model's dimensions"
        choose = [Choice.of(model="llama3.1-8b"), "a config.json or params.json in the folder"]
        raise CheckpointError(f"no config beside {checkpoint.path}", why, choose, "model")
    if checkpoint.sharding is not None:
        return compare_with_sharding(checkpoint, replace(checkpoint.sharding, model=checkpoint.model))
    candidates = list(_candidates(checkpoint, checkpoint.model))
    # The names that no model has are left out: they would be looked at under each candidate.
    known = candidates[0].tensors[0]  # Every candidate has the same names.
    shards = {
        at: {name: stored for name, stored in shard.items() if unwrapped(name, known) is not None}
        for at, shard in checkpoint.shards.items()
    }
    part = replace(checkpoint, shards=shards)

    def wrong(sharding: Sharding) -> int:
        return len(compare_with_sharding(part, sharding).mismatches)

    fits = next((sharding for sharding in candidates if not wrong(sharding)), None)
    return compare_with_sharding(checkpoint, fits or min(candidates, key=wrong))


def _candidates(checkpoint: Checkpoint, model: ModelConfig) -> Iterator[Sharding]:
    """The shardings that frameworks make of the model for this number of shards, the simplest first."""
    tp = len(checkpoint.shards)
    names = {name for shard in checkpoint.shards.values() for name in shard}
    # Meta's names have "attention." in 4 of a layer's 9 tensors, and Hugging Face's, with "self_attn.",
    # in none.
    meta = sum("attention." in n or "tok_embeddings" in n for n in names)
    naming = "hf"
    if meta > len(names) // 4:
        naming = "meta"
    by_columns = (False, True) if naming == "meta" and tp > 1 else (False,)
    copied = (False, True) if tp > model.n_kv_heads and tp % model.n_kv_heads == 0 else (False,)
    for columns, copies, padding in product(by_columns, copied, PADDINGS):
        cut = Sharding(model, Layout(tp=tp), padding=padding, kv_replication=copies, naming=naming)
        yield replace(cut, embedding_columns=columns)


def crc_of(manifest: Plain) -> int:
    """The crc32 of a manifest's contents, which the manifest holds beside them."""
    return zlib.crc32(json.dumps({k: v for k, v in manifest.items() if k != "crc32"}).encode())


def as_json(value: object) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()
