"""`llamapar checkpoint`: inspect and verify a checkpoint, or write it in another sharding."""

from __future__ import annotations

import sys

from llamapar import interrupts
from llamapar.records.tables import plural

from .commands import Command, CommandAnswer, CommandGroup, Given, answer_of, returned, with_torch
from .output import as_text, write_line

_LIBRARY = ("checkpoint", "reading checkpoints")
_SOURCE = ("source", "a folder or file: safetensors, or consolidated.NN.pth")
_TARGET = ("target", "the new folder; it must not be there yet")


def _look(given: Given) -> CommandAnswer:
    """`inspect` and `verify`: exit status 0 if the checkpoint is sound, 1 if a fault was found."""
    checkpoint = with_torch(*_LIBRARY)
    action = given.command.rpartition(" ")[2]
    bar = {}
    if action == "verify":
        bar = {"progress": sys.stderr.isatty()}
    return answer_of(given, returned(given, getattr(checkpoint, action), **bar))


def _make(given: Given) -> CommandAnswer:
    """`shard`, `gather` and `reshard`: write a new checkpoint."""
    given.require()
    action = given.command.rpartition(" ")[2]
    choose = [f"{given.command} {given['source']} NEW-FOLDER"]
    target = given.needed(
        "target", f"{action} needs the folder to be made", "it must not be there yet", choose
    )
    checkpoint = with_torch(*_LIBRARY)
    bar = None
    if sys.stderr.isatty():
        bar = checkpoint.ProgressLine()

    def progress(done: int, total: int) -> None:
        if not done:
            write_line(sys.stderr, f"llamapar: writing {target}; if it is interrupted, it starts over")
        elif bar is not None:
            bar(done, total)

    try:
        with interrupts.raised():
            made = returned(given, getattr(checkpoint, action), progress=progress)
    except KeyboardInterrupt:
        write_line(sys.stderr, "\nllamapar: interrupted; nothing is kept")
        raise
    files = {file.name: file.stat().st_size for file in made.files}
    sharding = str(checkpoint.understood(made).sharding)
    counted = f"{made.nbytes:,} bytes in {plural(len(files), 'file')}"
    data = {"path": str(made.path), "sharding": sharding, "bytes": made.nbytes, "files": files}
    return CommandAnswer(True, lambda: as_text(f"{made.path}: {sharding}, {counted}"), lambda: data)


_HELPS = {
    "format": "format of the new checkpoint: hf (default; safetensors) or meta (consolidated.NN.pth)",
    "model": "model, if no config.json or params.json is beside the files",
    "tp": "tensor-parallel ranks of the new checkpoint",
    "pp": "pipeline stages of the new checkpoint",
    "kv_replication": "store a KV head on several ranks when tp > n_kv_heads",
}


def _looking(action: str, what: str, example: str) -> Command:
    return Command(
        what,
        action,
        f"llamapar checkpoint {action} {example}",
        exits="0 no fault, 1 a fault was found",
        positional=(_SOURCE,),
        helps=_HELPS,
        needs={"source": ("a checkpoint is needed", "", (f"llamapar checkpoint {action} FOLDER",))},
        ok="ok",
        answer=_look,
    )


def _making(action: str, what: str, example: str) -> Command:
    looking = _looking(action, what, example)
    return looking._replace(exits="0 written", positional=(_SOURCE, _TARGET), ok="", answer=_make)


COMMAND = CommandGroup(
    "inspect, shard, gather, reshard or verify a checkpoint",
    {
        "inspect": _looking("inspect", "list its tensors, from the headers alone", "Llama-3.1-70B/original"),
        "shard": _making("shard", "shard it for tp x pp ranks", "Llama-3.1-70B new-folder --tp 8 --pp 2"),
        "gather": _making("gather", "join its shards into the whole model", "old-folder new-folder"),
        "reshard": _making(
            "reshard",
            "from one sharding to another",
            "Llama-3.1-70B new-folder --tp 4 --padding 64*tp --format meta",
        ),
        "verify": _looking("verify", "read every byte again", "new-folder --against Llama-3.1-70B")._replace(
            surplus="--against {word}"
        ),
    },
    "llamapar checkpoint inspect Llama-3.1-70B/original",
    word="action",
)
