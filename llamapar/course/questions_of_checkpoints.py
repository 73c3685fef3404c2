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

    model = lp.model("tiny")
    random = torch.Generator().manual_seed(0)
    weights = {p.hf_name: torch.randn(p.shape, generator=random).bfloat16() for p in model.parameters()}
    with TemporaryDirectory() as name:
        _save(Path(name, "trained"), model, weights)
        yield Path(name), weights


def _tensors() -> Item:
    return Item(
        "How many tensors are in it?",
        len(list(lp.model("tiny").parameters())),
        unit="tensors",
        hints=(
            "Count a layer: the matrices of attention, those of the MLP, the norms.",
            "9 in each of 4 layers, 2 of them norms, and 3 outside.",
        ),
        slips=(
            (36, "The embedding, the last norm and the head lie outside the layers."),
            (31, "Each layer also has two norms."),
        ),
        why="4 · 9 + 3: embedding, last norm and head.",
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
            "39 tensors, less those of one layer.",
        ),
        slips=(
            (0, "torch.load reads what is there; it knows no config."),
            (39, "What is not in the file cannot be read."),
        ),
        why="It reads whatever is there, and says nothing.",
    )


@cache
def _same_rows() -> Item:
    import torch

    with _trained() as (room, weights):
        lp.checkpoint.gather(room / "trained", room / "meta", format="meta")
        meta = torch.load(room / "meta" / "consolidated.00.pth", weights_only=True)
    wq = meta["layers.0.attention.wq.weight"]
    q_proj = weights["model.layers.0.self_attn.q_proj.weight"]
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
    with _trained() as (room, _):
        many = len(lp.checkpoint.shard(room / "trained", room / "cut", tp=2, pp=3).files)
    return Item(
        "TP 2 and PP 3: how many files?",
        many,
        unit="files",
        hints=(
            "Each rank saves its own part.",
            "Each of 3 stages has 2 TP ranks.",
        ),
        slips=(
            (5, "Every stage has both TP ranks: multiply."),
            (3, "Each stage has two TP ranks, and each of them saves a file."),
        ),
        why="One for each TP rank of each stage.",
        shows=lp.view(lp.stages("tiny", {"pp": 3})),
    )


@cache
def _unpadded_first() -> Item:
    program = lp.programs.saving.unpad_then_gather
    taped = lp.tape(program, lp.model("llama3.1-70b"), {"tp": 8}, padding="colossalai")
    return Item(
        "Un-pad first, then gather: how many of the 128,256 rows are written?",
        taped.steps[-1].local[0][0],
        unit="rows",
        hints=(
            "What does the slice cut off a rank's rows, and what is its result no longer marked as?",
            "Nothing is gathered, so it is a rank's own share of 128,512 rows.",
        ),
        slips=(
            (128_256, "So it should be. But after the slice nothing says that a tensor is a shard."),
            (128_512, "The dead rows are cut off, and gathering does not happen at all."),
            (16_032, "A rank's share is of the 128,512 padded rows."),
        ),
        why="128,512 / 8: a shard, saved as the whole.",
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
        "A lone file of 70B holds 8,064 rows of the embedding, padded as ColossalAI pads: from which TP?",
        tp,
        hints=(
            "ColossalAI pads the rows to a multiple of 64 · TP.",
            "128,256 / 8,064 is a little less than it.",
        ),
        slips=((8, "At TP 8 a rank has 16,064."),),
        why="8,064 · 16 is 129,024, a multiple of 64 · 16.",
    )


def _row() -> Item:
    pairs = lp.model("llama3-8b").head_dim // 2
    return Item(
        "Llama 3 8B, head_dim 128: row 3 of Meta's first query head is which row of q_proj?",
        pairs + 3 // 2,
        hints=(
            "Meta lays the two rows of a pair side by side: rows 2 and 3 are pair 1.",
            "Hugging Face puts the 64 first rows of all pairs before all second ones.",
        ),
        slips=(
            (3, "The rows stand in another order there."),
            (1, "That is the first row of the pair; row 3 is its second."),
            (67, "Those after the first half are counted by pair."),
        ),
        why="The second row of pair 1, after 64 first ones.",
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
