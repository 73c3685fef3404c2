"""`llamapar checkpoint`: what lies in a checkpoint, and from one sharding to another."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from llamapar import interrupts
from llamapar.errors import LlamaparError

from . import words
from .words import Answer, Command, Group, given

_CUTS = ("tp", "pp", "padding", "layer_split")
_MAKING = ("format", "n_kv_heads")
_SOURCE = ("source", "a folder or file: safetensors, consolidated.NN.pth, or torch.distributed.checkpoint")
_TARGET = ("target", "the new folder; it must not be there yet")


def _look(args: argparse.Namespace) -> Answer:
    """`inspect` and `verify`: status 0 where all is in order, 1 where a fault was found."""
    checkpoint, action = _library(), _action(args)
    bar = {"progress": sys.stderr.isatty()} if action == "verify" else {}
    found = getattr(checkpoint, action)(_source(args), **_options(args), **bar)
    return 0 if found.ok else 1, json.dumps(found.as_dict()) if args.json else words.as_text(found)


def _make(args: argparse.Namespace) -> Answer:
    """`shard`, `gather` and `reshard`: a new checkpoint."""
    action, source = _action(args), _source(args)
    if args.target is None:
        choose = [f"{args.prog} {source} NEW-FOLDER"]
        raise LlamaparError(
            f"{action} needs the folder to be made", "it must not be there yet", choose, "target"
        )
    checkpoint, options = _library(), _options(args)
    try:
        with interrupts.raised():
            make = getattr(checkpoint, action)
            made = make(source, args.target, progress=sys.stderr.isatty(), **options)
    except KeyboardInterrupt:
        waits = f"what is finished waits in {args.target.rstrip('/')}.partial"
        words.write(sys.stderr, f"\nllamapar: interrupted; {waits}, and the same command goes on with it")
        raise
    files = {file.name: file.stat().st_size for file in made.files}
    sharding = str(checkpoint.understood(made).sharding)
    if args.json:
        told = {"path": str(made.path), "sharding": sharding, "bytes": made.nbytes, "files": files}
        return 0, json.dumps(told)
    counted = f"{made.nbytes:,} bytes in {len(files)} file{'s' * (len(files) > 1)}"
    return 0, words.as_text(f"{made.path}: {sharding}, {counted}")


def _action(args: argparse.Namespace) -> str:
    return str(args.prog.rpartition(" ")[2])


def _source(args: argparse.Namespace) -> str:
    if args.source is None:
        raise LlamaparError("a checkpoint is needed", "", [f"{args.prog} FOLDER"], "source")
    return str(args.source)


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """The options that were given, of those that the action has."""
    names = [name for name in (*_CUTS, *_MAKING, "against") if name in args]
    options = given(args, *names)
    options |= {"model": words.model(args)} if args.model else {}
    return options | ({"kv_replication": True} if getattr(args, "kv_replication", False) else {})


def _library() -> Any:
    """The library's part; LlamaparError where it cannot be had."""
    try:
        from llamapar import checkpoint
    except ModuleNotFoundError as problem:
        what = f"{problem.name} is not installed, and reading checkpoints needs it"
        raise LlamaparError(what, "", ["pip install 'llamapar[run]'"]) from None
    return checkpoint


_HELPS = {
    "format": "of the new checkpoint: hf (default; safetensors) or meta (consolidated.NN.pth)",
    "model": "where no config.json or params.json lies beside the files",
    "tp": "tensor-parallel ranks of the new checkpoint (default 1)",
    "pp": "pipeline stages of the new checkpoint (default 1)",
    "kv_replication": "store a KV head on several ranks when tp > n_kv_heads",
}


def _looking(what: str, example: str, *options: str, surplus: str = "") -> Command:
    exits = "0 in order, 1 a fault was found"
    return Command(_look, what, ("model", *options), example, exits, (_SOURCE,), surplus, _HELPS)


def _making(what: str, example: str, *options: str) -> Command:
    options = ("model", *options)
    return Command(_make, what, options, example, "0 it is there", (_SOURCE, _TARGET), helps=_HELPS)


_EXAMPLE = "llamapar checkpoint inspect Llama-3.1-70B/original"

CHECKPOINT = Group(
    "look into a checkpoint, cut it, gather it, reshard it, or read every byte of it again",
    {
        "inspect": _looking("what lies in it, by its headers alone", _EXAMPLE),
        "shard": _making(
            "cut it for tp x pp ranks",
            "llamapar checkpoint shard Llama-3.1-70B new-folder --tp 8 --pp 2",
            *(*_CUTS, *_MAKING, "kv_replication"),
        ),
        "gather": _making(
            "the whole model out of its shards", "llamapar checkpoint gather old-folder new-folder", *_MAKING
        ),
        "reshard": _making(
            "from one sharding to another",
            "llamapar checkpoint reshard Llama-3.1-70B new-folder --tp 4 --padding 64*tp --format meta",
            *(*_CUTS, *_MAKING, "kv_replication"),
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
