"""`llamapar checkpoint`: what lies in a checkpoint, and from one sharding to another."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from . import interrupts, words
from .errors import LlamaparError, one_of
from .words import Answer, Command, given

ACTIONS = {
    "inspect": "what lies in it, by its headers alone",
    "shard": "cut it for tp x pp ranks",
    "gather": "the whole model out of its shards",
    "reshard": "from one sharding to another",
    "verify": "read every byte again",
}
_CUTS = ("tp", "pp", "padding", "layer_split")
_MAKING = ("format", "n_kv_heads")
_OF = {
    "inspect": ("model",),
    "shard": ("model", *_CUTS, *_MAKING, "kv_replication"),
    "gather": ("model", *_MAKING),
    "reshard": ("model", *_CUTS, *_MAKING, "kv_replication"),
    "verify": ("model", "against"),
}
"""Options of each action."""


def _answer(args: argparse.Namespace) -> Answer:
    """Status 0 where all is in order, 1 where inspect or verify found a fault."""
    if args.action is None or args.source is None:
        choose = [f"llamapar checkpoint {name} FOLDER" for name in ("inspect", "verify")]
        raise LlamaparError("an action and a checkpoint are needed", _actions(), choose, "action")
    action = one_of("action", args.action, ACTIONS, LlamaparError)
    options = _options(args, action)
    checkpoint = _library()
    if action in ("inspect", "verify"):
        if args.target is not None:
            raise LlamaparError(f"{action} takes one checkpoint", "", [f"--against {args.target}"], "target")
        bar = {"progress": sys.stderr.isatty()} if action == "verify" else {}
        found = getattr(checkpoint, action)(args.source, **options, **bar)
        return 0 if found.ok else 1, json.dumps(found.as_dict()) if args.json else str(found)
    if args.target is None:
        choose = [f"llamapar checkpoint {action} {args.source} NEW-FOLDER"]
        raise LlamaparError(
            f"{action} needs the folder to be made", "it must not be there yet", choose, "target"
        )
    try:
        with interrupts.raised():
            make = getattr(checkpoint, action)
            made = make(args.source, args.target, progress=sys.stderr.isatty(), **options)
    except KeyboardInterrupt:
        waits = f"what is finished waits in {args.target.rstrip('/')}.partial"
        words.write(sys.stderr, f"\nllamapar: interrupted; {waits}, and the same command goes on with it")
        raise
    files = {file.name: file.stat().st_size for file in made.files}
    sharding = str(checkpoint.understood(made).sharding)
    if args.json:
        told = {"path": str(made.path), "sharding": sharding, "bytes": made.nbytes, "files": files}
        return 0, json.dumps(told)
    return 0, f"{made.path}: {sharding}, {made.nbytes:,} bytes in {len(files)} file{'s' * (len(files) > 1)}"


def _actions() -> str:
    return "; ".join(f"{name}: {what}" for name, what in ACTIONS.items())


def _options(args: argparse.Namespace, action: str) -> dict[str, Any]:
    """The options that were given; LlamaparError for one that this action has no use for."""
    mine = _OF[action]
    options = given(args, *(name for name in _ALL if name != "model"))
    options |= {"model": words.model(args)} if args.model else {}
    options |= {"kv_replication": True} if args.kv_replication else {}
    for name in options:
        if name not in mine:
            choose = [words.option(other) for other in mine]
            raise LlamaparError(f"{action} has no {words.option(name)}", "", choose, name)
    return options


_ALL = ("model", *_CUTS, *_MAKING, "against")


def _library() -> Any:
    """The library's part; LlamaparError where it cannot be had."""
    try:
        from . import checkpoint
    except ModuleNotFoundError as problem:
        what = f"{problem.name} is not installed, and reading checkpoints needs it"
        raise LlamaparError(what, "", ["pip install 'llamapar[run]'"]) from None
    return checkpoint


CHECKPOINT = Command(
    _answer,
    "look into a checkpoint, cut it, gather it, reshard it, or read every byte of it again",
    (*_ALL, "kv_replication"),
    "llamapar checkpoint inspect Llama-3.1-70B/original\n"
    "  llamapar checkpoint reshard Llama-3.1-70B new-folder --tp 4 --padding 64*tp --format meta\n"
    "  llamapar checkpoint verify new-folder --against Llama-3.1-70B",
    positional=(
        ("action", _actions()),
        ("source", "a folder or file: safetensors, consolidated.NN.pth, or torch.distributed.checkpoint"),
        ("target", "the new folder that shard, gather and reshard make"),
    ),
    exits="0 in order, 1 a fault was found",
    helps={
        "format": "of the new checkpoint: hf (default; safetensors) or meta (consolidated.NN.pth)",
        "model": "where no config.json or params.json lies beside the files",
        "tp": "tensor-parallel ranks of the new checkpoint (default 1)",
        "pp": "pipeline stages of the new checkpoint (default 1)",
        "kv_replication": "store a KV head on several ranks when tp > n_kv_heads",
    },
)
