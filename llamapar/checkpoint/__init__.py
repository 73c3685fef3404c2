"""Checkpoints: inspect, verify, gather and reshard them, without ever loading a whole model.

`inspect` reads only headers. `gather`, `shard` and `reshard` stream bytes from files into a new folder, which
appears complete or not at all. `verify` reads every byte of a checkpoint. All of them read Hugging Face
safetensors and Meta's consolidated.NN.pth, and write both. Nothing in a file is ever executed. Folders of
torch.distributed.checkpoint are left out: torch makes one file of them.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Unpack

from llamapar.describe.arguments import checked_options
from llamapar.describe.dtypes import STORED_BYTES
from llamapar.describe.keywords import GatherKeywords, ReshardKeywords, ShardKeywords
from llamapar.describe.layout import Layout
from llamapar.describe.modelfile import config_json, params_json
from llamapar.describe.models import ModelConfig
from llamapar.errors import CheckpointError, Choice, LayoutError, LlamaparError, one_of
from llamapar.frameworks import padding_rule
from llamapar.rules.report import Report, check

from . import safetensors
from .atomic_write import OutputFile, Values, write_checkpoint
from .inspection import Inspection, inspect, reason
from .progress_line import Progress, ProgressLine
from .sharding import Sharding
from .source import Checkpoint, Placement, as_json, changed_files, opened, understood
from .stored import json_object
from .training_state import whole_state
from .verification import Verification, verify
from .whole import dtype_of_shards, homes, kv_target, shards_of

FORMATS = {"hf": "Hugging Face safetensors", "meta": "Meta's consolidated.NN.pth"}
"""Formats that are written. A cut checkpoint in "hf" has one safetensors file for each (tp, pp) rank."""

MAX_FILE = 5 * 10**9
"""Bytes after which an uncut safetensors checkpoint goes on in a next file, as Hugging Face's do."""


@checked_options
def gather(
    source: str | Path,
    target: str | Path,
    *,
    progress: Progress | bool = False,
    **options: Unpack[GatherKeywords],
) -> Checkpoint:
    """Write the whole, unpadded model from any checkpoint to the new folder `target`.

    format: a name of FORMATS, which also decides the order of the Q and K rows. model: needed if no config
    lies beside the files. n_kv_heads: number of KV heads to store, where the source stores copies of fewer
    heads (the copies must be equal). progress: True for a bar on stderr, or a function of (bytes done, total
    bytes).

    Memory is needed for the largest tensor, not for the checkpoint. After an error or an interrupt nothing is
    left, and the same call starts over. Raises CheckpointError.
    """
    return reshard(source, target, progress=progress, **options)


@checked_options
def reshard(
    source: str | Path,
    target: str | Path,
    *,
    progress: Progress | bool = False,
    **options: Unpack[ReshardKeywords],
) -> Checkpoint:
    """Write a checkpoint in another sharding to the new folder `target`, without building the whole model.

    padding: of the vocabulary: a Padding, "64*tp", or the name of a framework, for its own padding.
    kv_replication: if tp > n_kv_heads, each KV head is stored by tp / n_kv_heads ranks. layer_split: how
    layers are split into stages, a name of `splits.LAYER_SPLITS`. The other arguments are as in `gather`.
    Raises LayoutError for a layout that `check` refuses.
    """
    naming = one_of("format", options["format"], FORMATS, CheckpointError)
    found = understood(opened(source, options["model"]))
    if found.mismatches:
        first = found.mismatches[0]
        more = len(found.mismatches) - 1
        what = (
            f"{found.checkpoint.path} does not agree with its config: {first}{reason(first, found.sharding)}"
        )
        why = ""
        if more:
            why = f"{more} more tensors do not agree"
        raise CheckpointError(
            what, why, ["the config of the model that was saved", "llamapar checkpoint inspect"]
        )
    wanted = Sharding(
        kv_target(found.sharding.model, options["n_kv_heads"]),
        Layout(tp=options["tp"], pp=options["pp"]),
        padding=padding_rule(options["padding"]),
        naming=naming,
        kv_replication=options["kv_replication"],
        layer_split=options["layer_split"],
    )
    _possible(wanted)
    if naming == "meta" and wanted.pp > 1:
        choose = [Choice.of(pp=1), Choice.of(format="hf")]
        raise CheckpointError(f"pp={wanted.pp}: Meta's format has no pipeline stages", "", choose, "pp")
    held = found.checkpoint.path
    inside = Path(os.path.realpath(target)).is_relative_to(os.path.realpath(held))
    if inside and held.is_dir() and not os.path.lexists(target):
        what = f"{target} lies inside the source {held}"
        beside_it = [f"a folder beside {held}"]
        raise CheckpointError(what, "the folder of a checkpoint is left as it is", beside_it, "target")
    files = list(_files(found, wanted))
    beside = _beside(wanted, found.checkpoint, files)
    values = _values(found, wanted)
    sources = found.checkpoint.files
    write_checkpoint(Path(target), files, values, beside, wanted.as_dict(), sources, progress)
    return opened(target)


@checked_options
def shard(
    source: str | Path,
    target: str | Path,
    *,
    progress: Progress | bool = False,
    **options: Unpack[ShardKeywords],
) -> Checkpoint:
    """Write a checkpoint cut for tp × pp ranks to the new folder `target`; options as in `reshard`."""
    return reshard(source, target, progress=progress, **options)


def _possible(wanted: Sharding) -> None:
    """Raise LayoutError, with degrees that work, for a cut that `check` refuses."""

    def report(
        tp: int = wanted.tp, pp: int = wanted.pp, kv_replication: bool = wanted.kv_replication
    ) -> Report:
        return check(
            wanted.model,
            Layout(tp=tp, pp=pp),
            padding=wanted.padding,
            layer_split=str(wanted.layer_split),
            kv_replication=kv_replication,
        )

    def ways_out() -> Iterator[Choice]:
        # The nearest first: copies keep the degrees as asked, then another TP, then another PP.
        if report(kv_replication=True).ok:
            yield Choice.of(kv_replication=True)
        yield from (Choice.of(tp=n) for n in _near(wanted.tp) if report(tp=n).ok)
        yield from (Choice.of(pp=n) for n in _near(wanted.pp) if report(pp=n).ok)

    if not (found := report()).ok:
        first = found.errors[0]
        raise LayoutError(f"{first.code} {first.message}", first.why, list(islice(ways_out(), 3)), "tp")


def _near(degree: int) -> list[int]:
    return sorted(range(1, degree + 64), key=lambda n: abs(n - degree))


def _values(found: Placement, wanted: Sharding) -> Values:
    """What is written, one parameter after the other, from files that are as they were written."""
    if changed := changed_files(found.checkpoint):
        raise CheckpointError(changed[0], "the file is damaged", ["another copy of it"])
    stored = homes(wanted)
    for parameter in found.sharding.model.parameters():
        yield from shards_of(found, wanted, parameter, stored)


def _files(found: Placement, wanted: Sharding) -> Iterator[OutputFile]:
    """The files to write, with the tensors in each."""
    dtypes = {p.name: dtype_of_shards(found, p) for p in found.sharding.model.parameters()}
    for at in wanted:
        parameters = wanted.tensors[at[0]].items()
        tensors = {name: (dtypes[p.name], wanted.local_shape(p, at[1])) for name, p in parameters}
        if wanted.naming == "hf" and wanted.tp * wanted.pp == 1:
            yield from _split(tensors)
            continue
        shared = {}
        if wanted.naming == "meta" and wanted.model.tied:
            # One storage under two names, as torch.save writes a tied model.
            tensors.pop("output.weight")
            shared = {"output.weight": "tok_embeddings.weight"}
        yield OutputFile(wanted.file_name(at), at, tensors, shared)


def _split(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> Iterator[OutputFile]:
    groups: list[dict[str, tuple[str, tuple[int, ...]]]] = [{}]
    total = 0
    for name, (dtype, shape) in tensors.items():
        nbytes = math.prod(shape) * STORED_BYTES[dtype]
        # A tensor is never cut between files, so one that is larger than MAX_FILE gets a file of its own.
        if total and total + nbytes > MAX_FILE:
            groups.append({})
            total = 0
        groups[-1][name] = dtype, shape
        total += nbytes
    for i, group in enumerate(groups, 1):
        name = "model.safetensors"
        if len(groups) > 1:
            name = f"model-{i:05d}-of-{len(groups):05d}.safetensors"
        yield OutputFile(name, (0, 0), group)


def _beside(wanted: Sharding, source: Checkpoint, files: list[OutputFile]) -> dict[str, bytes]:
    """The config and, for several uncut files, their index."""
    if wanted.naming == "meta":
        return {"params.json": as_json(params_json(wanted.model))}
    folder = source.path if source.path.is_dir() else source.path.parent
    config = config_json(wanted.model)
    if (folder / "config.json").is_file():  # Keep the entries of the source's config that are not dimensions.
        source_config = json_object(folder / "config.json") | {"num_key_value_heads": wanted.model.n_kv_heads}
        # The folder's config may describe another model, if the caller gave `model`.
        with contextlib.suppress(LlamaparError):
            if ModelConfig.from_hf(source_config, wanted.model.name) == wanted.model:
                config = source_config
    beside = {"config.json": as_json(config)}
    if wanted.tp * wanted.pp == 1 and len(files) > 1:
        listed = safetensors.index({f.name: f.tensors for f in files}, sum(f.nbytes for f in files))
        beside[safetensors.INDEX] = as_json(listed)
    return beside


__all__ = [
    "FORMATS",
    "Checkpoint",
    "CheckpointError",
    "Inspection",
    "ProgressLine",
    "Sharding",
    "Verification",
    "config_json",
    "gather",
    "inspect",
    "opened",
    "params_json",
    "reshard",
    "shard",
    "verify",
    "whole_state",
]
