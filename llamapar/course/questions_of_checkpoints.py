"""What the notebook on checkpoints asks: each question with its truth, hints and pictures.

Every truth is found by the library when the question is asked. Where it lies in files, a tiny model is
written to a temporary folder first, and the folder is gone again when the box opens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import llamapar as lp

from .boxes import Item

if TYPE_CHECKING:
    import torch

_ROWS = 128256
"""Of the vocabulary of Llama 3."""


def _save(folder: Path, model: lp.ModelConfig, tensors: Mapping[str, torch.Tensor]) -> None:
    """As the notebook's own function of this name."""
    import torch

    folder.mkdir()
    torch.save(dict(tensors), folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(lp.checkpoint.config_json(model)))


@contextmanager
def _trained() -> Iterator[tuple[Path, dict[str, torch.Tensor]]]:
    """A folder with the checkpoint `trained` of the tiny model, and its tensors."""
    import torch

    model, random = lp.model("tiny"), torch.Generator().manual_seed(0)
    weights = {p.hf_name: torch.randn(p.shape, generator=random).bfloat16() for p in model.parameters()}
    with TemporaryDirectory() as name:
        _save(Path(name, "trained"), model, weights)
        yield Path(name), weights


def _tensors() -> Item:
    model = lp.model("tiny")
    layer = [p for p in model.parameters() if ".layers.0." in p.hf_name]
    norms = sum("norm" in p.hf_name for p in layer)
    rest = len(list(model.parameters())) - model.n_layers * len(layer)
    return Item(
        "How many tensors are in it?",
        len(list(model.parameters())),
        unit="tensors",
        hints=(
            "Count a layer: the matrices of attention, those of the MLP, the norms.",
            f"{len(layer)} in each of {model.n_layers} layers, {norms} of them norms, and {rest} outside.",
        ),
        slips=(
            (
                model.n_layers * len(layer),
                "The embedding, the last norm and the head lie outside the layers.",
            ),
            (model.n_layers * (len(layer) - norms) + rest, "Each layer also has two norms."),
        ),
        why=f"{model.n_layers} · {len(layer)} + {rest}: embedding, last norm and head.",
    )


def _short() -> Item:
    names = [p.hf_name for p in lp.model("tiny").parameters()]
    left = [name for name in names if ".layers.2." not in name]
    return Item(
        "A layer is missing. How many tensors does torch.load read without complaint?",
        len(left),
        unit="tensors",
        hints=(
            "A file knows what is in it. Does it know what should be?",
            f"{len(names)} tensors, less those of one layer.",
        ),
        slips=(
            (0, "torch.load reads what is there; it knows no config."),
            (len(names), "What is not in the file cannot be read."),
        ),
        why="It reads whatever is there, and says nothing.",
    )


@cache
def _same_rows() -> Item:
    import torch

    with _trained() as (room, weights):
        lp.checkpoint.gather(room / "trained", room / "meta", format="meta")
        meta = torch.load(room / "meta" / "consolidated.00.pth", weights_only=True)
    wq, q_proj = meta["layers.0.attention.wq.weight"], weights["model.layers.0.self_attn.q_proj.weight"]
    same = {"the bytes": wq.equal(q_proj), "the rows": sorted(wq.tolist()) == sorted(q_proj.tolist())}
    return Item(
        "wq and q_proj have the same shape. What else is the same?",
        next((what for what, alike in same.items() if alike), "nothing"),
        choices=(
            ("the bytes", "every byte", "then renaming would do"),
            ("the rows", "the rows, in another order", "row by row the same numbers"),
            ("nothing", "nothing", "then no renaming and no reordering would do"),
        ),
        hints=(
            "Both are the same trained matrix. What could two codes still see differently in it?",
            "Rotary position encoding turns pairs of rows. Which two rows are a pair, in each code?",
        ),
        why="Meta's pairs stand side by side, Hugging Face's are half a head apart.",
    )


@cache
def _files() -> Item:
    tp, pp = 2, 3
    with _trained() as (room, _):
        many = len(lp.checkpoint.shard(room / "trained", room / "cut", tp=tp, pp=pp).files)
    return Item(
        "TP 2 and PP 3: how many files?",
        many,
        unit="files",
        hints=(
            "Each rank saves its own part.",
            f"Each of {pp} stages has {tp} TP ranks.",
        ),
        slips=(
            (tp + pp, "Every stage has both TP ranks: multiply."),
            (pp, "Each stage has two TP ranks, and each of them saves a file."),
        ),
        why="One for each TP rank of each stage.",
        shows=lp.view(lp.stages("tiny", {"pp": pp})),
    )


@cache
def _unpadded_first() -> Item:
    program, tp = lp.programs.saving.unpad_then_gather, 8
    taped = lp.tape(program, lp.model("llama3.1-70b"), {"tp": tp}, padding="colossalai")
    written = taped.steps[-1].local[0][0]
    padded = lp.vocab("llama3.1-70b", {"tp": tp}, padding="colossalai").padded
    return Item(
        f"Un-pad first, then gather: how many of the {_ROWS:,} rows are written?",
        written,
        unit="rows",
        hints=(
            "What does the slice cut off a rank's rows, and what is its result no longer marked as?",
            f"Nothing is gathered, so it is a rank's own share of {padded:,} rows.",
        ),
        slips=(
            (_ROWS, "So it should be. But after the slice nothing says that a tensor is a shard."),
            (padded, "The dead rows are cut off, and gathering does not happen at all."),
            (_ROWS // tp, f"A rank's share is of the {padded:,} padded rows."),
        ),
        why=f"{padded:,} / {tp}: a shard, saved as the whole.",
    )


@cache
def _tiled_headers() -> Item:
    model = lp.model("tiny")
    with _trained() as (room, weights):
        tiled = {name: w.repeat(2, 1) if len(w) == model.kv_dim else w for name, w in weights.items()}
        _save(room / "tiled", model.replace(n_kv_heads=16), tiled)
        passes = lp.checkpoint.inspect(room / "tiled").ok
    return Item(
        "Copies in the wrong order: do all headers pass?",
        passes,
        hints=(
            "What does a header say of a tensor?",
            "Names and shapes. Which of them does the order of heads change?",
        ),
        why="Sixteen heads in any order have the same shapes.",
    )


@cache
def _half() -> Item:
    def pull_the_plug(done: int, total: int) -> None:
        if 2 * done > total:
            raise KeyboardInterrupt

    with _trained() as (room, _):
        with suppress(KeyboardInterrupt):
            lp.checkpoint.reshard(room / "trained", room / "half", tp=4, progress=pull_the_plug)
        (left,) = {path.name for path in room.iterdir()} - {"trained"} or {"nothing"}
    return Item(
        "It stopped half-way: which folder is on disk?",
        left,
        choices=(
            ("half", "half", "with the files that are written so far"),
            ("half.partial", "half.partial", "which nobody takes for whole"),
            ("nothing", "none", "then the call starts over"),
        ),
        hints=(
            "What would somebody think who finds a folder with the name that was asked for?",
            "And what would half of a checkpoint be good for?",
        ),
        why="The temporary folder is removed. Only a whole one gets the name.",
    )


def _which_tp() -> Item:
    rows = 8064

    def padded(tp: int) -> int:
        return lp.vocab("llama3.1-70b", {"tp": tp}, padding="colossalai").padded

    tp = next(n for n in range(2, 65) if padded(n) == rows * n)
    return Item(
        f"A lone file of 70B holds {rows:,} rows of the embedding, padded as ColossalAI pads: from which TP?",
        tp,
        hints=(
            "ColossalAI pads the rows to a multiple of 64 · TP.",
            f"{_ROWS:,} / {rows:,} is a little less than it.",
        ),
        slips=((8, f"At TP 8 a rank has {padded(8) // 8:,}."),),
        why=f"{rows:,} · {tp} is {rows * tp:,}, a multiple of 64 · {tp}.",
    )


def _row() -> Item:
    width, row = lp.model("llama3-8b").head_dim, 3
    return Item(
        f"Llama 3 8B, head_dim {width}: row {row} of Meta's first query head is which row of q_proj?",
        width // 2 + row // 2,
        hints=(
            "Meta lays the two rows of a pair side by side: rows 2 and 3 are pair 1.",
            f"Hugging Face puts the {width // 2} first rows of all pairs before all second ones.",
        ),
        slips=(
            (row, "The rows stand in another order there."),
            (row // 2, "That is the first row of the pair; row 3 is its second."),
            (width // 2 + row, "Those after the first half are counted by pair."),
        ),
        why=f"The second row of pair {row // 2}, after {width // 2} first ones.",
    )


PREDICTIONS: dict[str, Callable[[], Item]] = {
    "How many tensors are in it?": _tensors,
    "A layer is missing. How many tensors does torch.load read without complaint?": _short,
    "wq and q_proj have the same shape. What else is the same?": _same_rows,
    "TP 2 and PP 3: how many files?": _files,
    "Un-pad first, then gather: how many of the 128,256 rows are written?": _unpadded_first,
    "Copies in the wrong order: do all headers pass?": _tiled_headers,
    "It stopped half-way: which folder is on disk?": _half,
}
"""By the question itself."""

EXERCISES: dict[str, Callable[[], Item]] = {"TP of 8064 rows": _which_tp, "row 3 of a head": _row}
"""By the name of the exercise."""
