"""What the course asks: `predict` before a result is seen, `check` for an exercise, `progress` for both.

`check(name, answer)` says not answered yet, wrong with a reason, or right. Each target is computed by the
library, so an exercise cannot drift from what the notebooks show.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import llamapar as lp
from llamapar.count.schedule import in_flight
from llamapar.count.sizes import Sizes
from llamapar.describe.counts import number
from llamapar.errors import one_of, shown
from llamapar.records.tables import Table
from llamapar.rules.machines import counted
from progress import keep, progress

__all__ = ["TARGETS", "Prediction", "check", "predict", "progress", "published_steps"]

_STEPS = Path(__file__).with_name("published_steps.json")
"""Published runs as `lp.cost` is asked for them, written by benchmarks/cost_accuracy.py --course."""

_PAPER = lp.Layout(tp=8, cp=16, pp=16, dp=8)

TARGETS: dict[str, Callable[[], Any]] = {
    # 00_start_here
    "DP of the short row": lambda: 8192 // lp.Layout(tp=8, pp=16).world,
    "half the GPUs": lambda: {"dp": _PAPER.dp // 2, "batch_per_dp": 16 * 2**20 // 131072 // (_PAPER.dp // 2)},
    # 01_four_axes
    "coord of 5003": lambda: tuple(_PAPER.coord_of(5003)),
    "DP neighbour of 57": lambda: {
        name: lp.ranks(_PAPER.replace(order=lp.FRAMEWORKS[name].order), 57).peers["dp"][1]
        for name in ("picotron", "megatron-lm")
    },
    # 02_attention_heads
    "ranks with KV head 5": lambda: lp.heads("llama3.1-405b", {"tp": 32}, kv_replication=True).shared()[5],
    # 03_vocab_embedding
    "pad rows by rank": lambda: {
        share.rank: share.pads
        for share in lp.vocab("llama3.1-70b", {"tp": 64}, padding="megatron-lm").ranks
        if share.pads
    },
    # 04_context_parallel
    "last over first": lambda: round(_pairs_in_order(7) / _pairs_in_order(0), 1),
    # 05_data_parallel
    "slices of a norm": lambda: [
        len(lp.zero("llama3-8b", lp.Layout(dp=3, zero=3), parameter="norm").rows("parameters", place))
        for place in range(3)
    ],
    "ranks that share": lambda: lp.zero("llama3-8b", lp.Layout(tp=8, cp=4, pp=2, dp=8, dp_replicate=2)).ways,
    # 06_pipeline
    "chunks of a schedule of your own": lambda: lp.schedule("1f1b", pp=2, micro_batches=3).in_flight,
    # 07_memory
    "own bytes under ZeRO 3": lambda: lp.memory(
        "llama3.1-70b", lp.Layout(dp=64, zero=3), seq_len=8192
    ).worst.bytes("parameters", "gradients", "optimizer states"),
    "in flight on stage 5": lambda: in_flight("1f1b", 5, pp=8, virtual_stages=1, micro_batches=64)[0],
    "bytes of logits": lambda: (
        4 * Sizes(lp.model("llama3.1-8b"), lp.Layout(tp=8), seq_len=8192).activations["logits"]
    ),
    # 08_whole_step
    "norm of two ranks": lambda: _norm_of_two_ranks((9, 2), (14, 2)),
    "numbers for the norm": lambda: _sent_for_the_norm(lp.Layout(tp=2, cp=2, pp=4, dp=2)),
    # 09_time_and_plan
    "seconds of one layer": lambda: round(1e3 * lp.cost("llama3-8b", {}, seq_len=8192).layer.seconds[0], 1),
    "bubble of 64 micro-batches": lambda: round(100 * 15 / 8 / 64, 1),
    # 10_checkpoints
    "TP of 8064 rows": lambda: next(
        tp
        for tp in range(2, 65)
        if lp.vocab("llama3.1-70b", {"tp": tp}, padding="colossalai").padded == 8064 * tp
    ),
    "row 3 of a head": lambda: lp.model("llama3-8b").head_dim // 2 + 3 // 2,
    # 11_shape_clinic
    "TP of the saved head": lambda: next(
        tp for tp in range(1, 65) if len(lp.vocab("qwen2.5-7b", {"tp": tp}).rank(0).rows) == 19008
    ),
    "columns of a rank": lambda: {
        "columns": len(lp.heads("llama3-8b", {"tp": 32}).rank(0).kv_rows),
        "tp": 32,
    },
    # 12_my_run_broke
    "copies that the GPUs leave": lambda: 512 // lp.Layout(tp=8, pp=4).world,
    "smallest global batch": lambda: 4 * lp.Layout(dp=16).world,
    # 13_on_gpus
    "GPU 5 of the third machine": lambda: tuple(lp.Layout(tp=8, cp=2, dp=2).coord_of(2 * 8 + 5)),
    "torchrun for the paper": lambda: {"nnodes": _PAPER.world // 8, "nproc_per_node": 8},
    # a1_loading_405b
    "first vocabulary that wraps": lambda: next(
        n for n in range(1, 2**20) if counted(n * 65536, "uint32") == 0
    ),
    "70B on 16 GB machines": lambda: lp.loading("llama3.1-70b", memory_gib=16).smallest_nodes,
    "what uint32 holds of the file": lambda: counted(lp.loading("llama3.1-405b-mp16").file_bytes, "uint32"),
}
"""What the right answer to each exercise is."""


def _pairs_in_order(rank: int) -> int:
    """Causal pairs of a CP rank that holds the next eighth of 4,096 tokens."""
    return lp.sequence({"cp": 8}, 4096, chunking="contiguous").rank(rank).pairs


def _norm_of_two_ranks(*squares: tuple[float, float]) -> float:
    """The norm from each TP rank's squares of matrices and of norms."""
    from llamapar.execution.execute import prepare
    from llamapar.spmd.update import counted

    setting = prepare("step", "tiny", lp.Layout(tp=len(squares)))[0].setting
    shares = [counted(setting, name, 0) for name in ("output.weight", "norm.weight")]
    return sum(share * own for rank in squares for share, own in zip(shares, rank, strict=True)) ** 0.5


def _sent_for_the_norm(layout: lp.Layout) -> int:
    """Messages of rank 0 to other PP ranks, a number each."""
    from llamapar.execution.execute import prepare
    from llamapar.execution.messages import squares_to

    return len(squares_to(prepare("step", "tiny", layout)[0].setting, 0))


def published_steps() -> lp.Calibration:
    """Published runs beside what `lp.cost` says, each named by its row; the benchmark's own rows."""

    def predicted(row: dict[str, Any]) -> lp.Cost:
        return lp.cost(lp.ModelConfig(**row["model"]), lp.Layout(**row["layout"]), **row["settings"])

    rows = json.loads(_STEPS.read_text(encoding="utf-8"))
    return lp.calibrate([(predicted(row), row["measured"]) for row in rows])


def check(name: str, answer: Any) -> None:
    """Print "not answered yet" (None), "wrong: …" with the first difference, or "right".

    Raises lp.LlamaparError for an exercise that is not there.
    """
    target = TARGETS[one_of("exercise", name, TARGETS, lp.LlamaparError)]()
    if answer is None:
        print("not answered yet")
        return
    difference = _difference(answer, target)
    keep("exercises", name, right=not difference)
    print(f"wrong: {difference}" if difference else "right")


_ASK = "Put your guess in place of None and run the cell, or unfold the answer."


_JUDGED = (bool, int, float, str, list, tuple, range, Mapping)
"""What a truth can be for a guess to be held against it."""


@dataclass(frozen=True)
class Prediction:
    """A question, the reader's guess (None before there is one), and the truth.

    shows: the truth as a record or a picture, where it is more than a value.
    """

    question: str
    guess: object
    truth: object
    shows: object = None

    @property
    def right(self) -> bool | None:
        """Whether the guess is the truth, a fraction to within a twentieth; None where nothing can judge."""
        guess, truth = self.guess, self.truth
        if not isinstance(truth, _JUDGED):
            return None
        if isinstance(guess, str) and isinstance(truth, str):
            return guess.strip().casefold() == truth.strip().casefold()
        if isinstance(guess, str):
            guess = _read(guess)
        if isinstance(truth, float) and isinstance(guess, (int, float)) and not isinstance(guess, bool):
            return abs(guess - truth) <= abs(truth) / 20
        return not _difference(guess, truth)

    @property
    def record(self) -> object:
        """What is shown of the truth besides a value; None for nothing."""
        return self.shows if isinstance(self.truth, _JUDGED) else self.truth

    @property
    def picture(self) -> dict[str, Any] | None:
        """The plotly figure of the truth: {"data": [...], "layout": {...}}."""
        spec: dict[str, Any] | None = getattr(self.record, "spec", None)
        return spec

    def verdict(self, first: str) -> Table:
        """The guess beside the truth. first: the guess that stands in the progress file."""
        words = {True: "that is it", False: "not quite", None: "compare for yourself"}[self.right]
        guess = _words(self.guess)
        again = "" if first == guess else f" (your first guess was {first})"
        truth = _words(self.truth) if isinstance(self.truth, _JUDGED) else "below"
        return Table(f"{self.question} – {words}{again}", ["you said", "it is"], [[guess, truth]])

    def _repr_mimebundle_(self, **_: object) -> tuple[dict[str, str], dict[str, object]]:
        """The truth, folded. Its figure goes into the output's metadata: the tool that stores it draws it."""
        text, html = [self.question], [f"<summary><b>{escape(self.question)}</b> {_ASK}</summary>"]
        metadata: dict[str, object] = {}
        if isinstance(self.truth, _JUDGED):
            text.append(_words(self.truth))
            html.append(f"<p><b>{escape(text[-1])}</b></p>")
        if self.picture:
            drawn_from = hashlib.sha256(json.dumps(self.picture, sort_keys=True).encode()).hexdigest()
            html.append(f"<!--picture {drawn_from[:16]}-->")
            metadata = {"llamapar": {"picture": self.picture}}
        if self.record is not None:
            text.append(str(self.record))
            as_html = getattr(self.record, "_repr_html_", None)
            in_words = as_html() if as_html else f"<pre>{escape(text[-1])}</pre>"
            again = f"<details><summary>The same in words</summary>{in_words}</details>"
            html.append(again if self.picture else in_words)
        data = {"text/plain": "\n".join(text), "text/html": f"<details>{''.join(html)}</details>"}
        return data, metadata


def predict(question: str, guess: object, truth: object, shows: object = None) -> None:
    """Before there is a guess, folds the truth away; then keeps the guess and shows it beside the truth.

    guess: None, or what the reader put there: a value, or words, which are read and never evaluated.
    shows: a record or picture that says more than the truth alone.
    """
    from IPython.display import display

    prediction = Prediction(question, guess, truth, shows)
    if guess is None:
        display(prediction)
        return
    entry = keep("predictions", question, prediction.right, _words(guess))
    display(prediction.verdict(str(entry["guess"])))
    if isinstance(prediction.record, str):
        print(prediction.record)  # line by line; display would quote it
    elif prediction.record is not None:
        display(prediction.record)


def _words(value: object) -> str:
    """A value as a reader would say it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return value[:300] if isinstance(value, str) else shown(value, 300)


def _read(text: str) -> object:
    """The number, yes or no that a text says; else the text."""
    if text.strip().casefold() in ("yes", "no"):
        return text.strip().casefold() == "yes"
    try:
        return number("guess", text).value
    except lp.LayoutError:
        return text


def _difference(answer: Any, target: Any) -> str:
    """The first place where an answer leaves the target, in words; empty where it does not."""
    if isinstance(target, Mapping):
        if not isinstance(answer, Mapping):
            return f"a dict is expected, got {shown(answer)}"
        for key, value in target.items():
            if key not in answer:
                return f"{key} is missing"
            if inner := _difference(answer[key], value):
                return f"{key}: {inner}"
        extra = [key for key in answer if key not in target]
        return f"{shown(extra[0])} does not belong" if extra else ""
    if isinstance(target, (list, tuple)):
        if isinstance(answer, str) or not isinstance(answer, (Sequence, range)):
            return f"a list of {len(target)} is expected, got {shown(answer)}"
        if len(answer) != len(target):
            return f"{len(answer)} entries, expected {len(target)}"
        for i, (got, expected) in enumerate(zip(answer, target, strict=True)):
            if inner := _difference(got, expected):
                return f"entry {i}: {inner}"
        return ""
    if isinstance(answer, bool) != isinstance(target, bool) or answer != target:
        return f"got {shown(answer)}, which is not it"
    return ""
