"""`llamapar checkpoint`: inspect and verify a checkpoint, or write it in another sharding."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from llamapar import interrupts
from llamapar.describe.options import Values

from .commands import Command, CommandAnswer, CommandGroup, Given, answer, with_torch
from .output import as_text, write_line

_CUTS = ("tp", "pp", "padding", "layer_split", "kv_replication")
_MAKING = ("format", "n_kv_heads")
_SOURCE = ("source", "a folder or file: safetensors, consolidated.NN.pth, or torch.distributed.checkpoint")
_TARGET = ("target", "the new folder; it must not be there yet")


def _look(given: Given) -> CommandAnswer:
    """`inspect` and `verify`: exit status 0 if the checkpoint is sound, 1 if a fault was found."""
    checkpoint, action = _library(), _action(given)
    bar = {"progress": sys.stderr.isatty()} if action == "verify" else {}
    found = getattr(checkpoint, action)(_source(given), **_options(given), **bar)
    return answer(found, found.ok)


def _make(given: Given) -> CommandAnswer:
    """`shard`, `gather` and `reshard`: write a new checkpoint."""
    action, source = _action(given), _source(given)
    what, choose = f"{action} needs the folder to be made", [f"{given.command} {source} NEW-FOLDER"]
    target = given.needed("target", what, "it must not be there yet", choose)
    checkpoint, options = _library(), _options(given)
    try:
        with interrupts.raised():
            made = getattr(checkpoint, action)(source, target, progress=sys.stderr.isatty(), **options)
    except KeyboardInterrupt:
        waits = checkpoint.waiting(Path(target))
        write_line(sys.stderr, f"\nllamapar: interrupted; {waits or 'nothing is kept'}")
        raise
    files = {file.name: file.stat().st_size for file in made.files}
    sharding = str(checkpoint.understood(made).sharding)
    counted = f"{made.nbytes:,} bytes in {len(files)} file{'s' * (len(files) > 1)}"
    data = {"path": str(made.path), "sharding": sharding, "bytes": made.nbytes, "files": files}
    return CommandAnswer(True, lambda: as_text(f"{made.path}: {sharding}, {counted}"), lambda: data)


def _action(given: Given) -> str:
    return given.command.rpartition(" ")[2]


def _source(given: Given) -> str:
    return given.needed("source", "a checkpoint is needed", "", [f"{given.command} FOLDER"])


def _options(given: Given) -> Values:
    """The given options that the action accepts."""
    model = {"model": given.model} if given["model"] else {}
    return model | given.of(*_CUTS, *_MAKING, "against")


def _library() -> ModuleType:
    return with_torch("checkpoint", "reading checkpoints")


_HELPS = {
    "format": "format of the new checkpoint: hf (default; safetensors) or meta (consolidated.NN.pth)",
    "model": "model, if no config.json or params.json is beside the files",
    "tp": "tensor-parallel ranks of the new checkpoint",
    "pp": "pipeline stages of the new checkpoint",
    "kv_replication": "store a KV head on several ranks when tp > n_kv_heads",
}


def _looking(what: str, example: str, *options: str, surplus: str = "") -> Command:
    exits = "0 no fault, 1 a fault was found"
    options = ("model", *options)
    return Command(_look, what, "checkpoint", options, example, exits, (_SOURCE,), surplus, _HELPS)


def _making(what: str, example: str, *options: str) -> Command:
    words = (_SOURCE, _TARGET)
    options = ("model", *options)
    return Command(_make, what, "checkpoint", options, example, "0 written", words, helps=_HELPS)


_EXAMPLE = "llamapar checkpoint inspect Llama-3.1-70B/original"

COMMAND = CommandGroup(
    "inspect, shard, gather, reshard or verify a checkpoint",
    {
        "inspect": _looking("list its tensors, from the headers alone", _EXAMPLE),
        "shard": _making(
            "shard it for tp x pp ranks",
            "llamapar checkpoint shard Llama-3.1-70B new-folder --tp 8 --pp 2",
            *(*_CUTS, *_MAKING),
        ),
        "gather": _making(
            "join its shards into the whole model",
            "llamapar checkpoint gather old-folder new-folder",
            *_MAKING,
        ),
        "reshard": _making(
            "from one sharding to another",
            "llamapar checkpoint reshard Llama-3.1-70B new-folder --tp 4 --padding 64*tp --format meta",
            *(*_CUTS, *_MAKING),
        ),
        "verify": _looking(
            "read every byte again",
            "llamapar checkpoint verify new-folder --against Llama-3.1-70B",
            "against",
            surplus="--against {word}",
        ),
    },
    _EXAMPLE,
    word="action",
)
