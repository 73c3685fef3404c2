"""Code of one's own that fails on ranks, and what its result says of it.

Each flow of `rank_flows.toml`, and the two of `cell_flows.toml` that are no plain cell, runs in a real
IPython shell. An answer is right if its edit is the true one; it is wrong if it calls another edit proved.
Of a plan with one wrong style the true style must stand in the answer's first line. Seconds are those of the
answer.

    python benchmarks/rank_flows.py --only "%%ranks" --show   # some, with the answers
    python benchmarks/rank_flows.py --measure                 # all of them: writes rank_flows.json
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import tempfile
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)

import llamapar as lp
from llamapar.diagnosis import newest
from llamapar.execution.result import Result

FLOWS = Path(__file__).with_suffix(".toml")
OUTCOMES = Path(__file__).with_suffix(".json")
STYLES = {
    style.__name__: style
    for style in (ColwiseParallel, RowwiseParallel, SequenceParallel, PrepareModuleInput, Shard, Replicate)
}


class FeedForward(nn.Module):
    """The feed-forward of torchtitan's Llama 3."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(32, 48, bias=False), nn.Linear(32, 48, bias=False)
        self.w2 = nn.Linear(48, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """A feed-forward block whose residual stream is cut over the sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings, self.output = nn.Embedding(64, 32), nn.Linear(32, 64, bias=False)
        self.ffn_norm, self.feed_forward = nn.RMSNorm(32), FeedForward()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tok_embeddings(tokens)
        return self.output(x + self.feed_forward(self.ffn_norm(x)))


class Attention(nn.Module):
    """Attention and a feed-forward whose residual stream is whole."""

    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings, self.output = nn.Embedding(64, 32), nn.Linear(32, 64, bias=False)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(32, 32, bias=False) for _ in range(4))
        self.w1, self.w2 = nn.Linear(32, 80), nn.Linear(80, 32, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tok_embeddings(tokens)
        q, k, v = (w(x).unflatten(-1, (-1, 8)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(y.transpose(1, 2).flatten(2))
        return self.output(x + self.w2(self.w1(x).relu()))


CUT, WHOLE = Shard(1), Replicate()
PLANS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "block": (
        Block,
        {
            "tok_embeddings": RowwiseParallel(input_layouts=WHOLE, output_layouts=CUT),
            "ffn_norm": SequenceParallel(),
            "feed_forward": PrepareModuleInput(input_layouts=(CUT,), desired_input_layouts=(WHOLE,)),
            "feed_forward.w1": ColwiseParallel(),
            "feed_forward.w3": ColwiseParallel(),
            "feed_forward.w2": RowwiseParallel(output_layouts=CUT),
            "output": ColwiseParallel(input_layouts=CUT, output_layouts=WHOLE),
        },
    ),
    "attention": (
        Attention,
        {
            "tok_embeddings": RowwiseParallel(input_layouts=WHOLE),
            **{name: ColwiseParallel() for name in ("wq", "wk", "wv", "w1")},
            **{name: RowwiseParallel() for name in ("wo", "w2")},
            "output": ColwiseParallel(output_layouts=WHOLE),
        },
    ),
}


def of_flow(flow: dict[str, Any]) -> tuple[dict[str, Any], float]:
    """What the result of a flow's last cell says, as JSON, and the seconds it took."""
    os.environ.setdefault("IPYTHONDIR", tempfile.mkdtemp())
    from IPython.core.interactiveshell import InteractiveShell

    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    newest._newest.clear()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        shell.run_cell("%load_ext llamapar", store_history=True)
        for cell in flow["cells"]:
            shell.run_cell(cell.lstrip("\n"), store_history=True)
    return explained(newest.newest())


def of_plan(row: dict[str, Any]) -> tuple[dict[str, Any], float]:
    """The same of a plan with one wrong style."""
    make, right = PLANS[row["of"]]
    plan = dict(right)
    for name, style in row["changes"].items():
        plan.pop(name)
        if style:
            plan[name] = eval(style, dict(STYLES))
    return explained(lp.compare(make, plan, {"tp": 2}, dtype="float64", device="cpu"))


def explained(failure: Any) -> tuple[dict[str, Any], float]:
    """The explanation of a result as JSON, and the seconds until it is there."""
    # What the notebook showed is kept, so that a copy answers anew.
    failure = replace(failure) if isinstance(failure, Result) else failure
    begun = time.perf_counter()
    found = getattr(failure, "explanation", None)
    return (found.as_dict() if found is not None else {}), time.perf_counter() - begun


def score(row: dict[str, Any], said: dict[str, Any]) -> str:
    """ "right", "open" or "wrong"."""
    added = [line for line in said.get("edit", ()) if line.startswith("+ ")]
    if "right" in row:
        true = bool(added) and row["right"] in added[0]
    else:
        true = all(edit in " ".join(added) for edit in row["edit"])
    proved = any(line.startswith("proved") for line in said.get("proof", ()))
    return "right" if true else "wrong" if proved else "open"


def rows() -> list[tuple[str, dict[str, Any]]]:
    """("flow" or "plan", its row), all of them."""
    own = tomllib.loads(FLOWS.read_text("utf-8"))
    cells = tomllib.loads(FLOWS.with_name("cell_flows.toml").read_text("utf-8"))["flow"]
    flows = [*own["flow"], *(flow for flow in cells if "door" in flow)]
    return [*(("flow", flow) for flow in flows), *(("plan", plan) for plan in own["plan"])]


def main() -> None:
    """As the options ask."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    asked.add_argument("--only", default="", help="of those whose name begins so")
    asked.add_argument("--show", action="store_true")
    asked.add_argument("--measure", action="store_true")
    given = asked.parse_args()
    outcomes: dict[str, tuple[str, str, float]] = {}
    for kind, row in rows():
        if not row["name"].startswith(given.only):
            continue
        said, seconds = of_plan(row) if kind == "plan" else of_flow(row)
        outcomes[row["name"]] = kind, score(row, said), round(seconds, 2)
        what = said.get("what", "no answer")
        print(f"{outcomes[row['name']][1]:6}{seconds:6.2f} s  {row['name']}: {what}", flush=True)
        if given.show and said:
            lines = [line for part in ("where", "edit", "proof", "else") for line in said[part]]
            print(*(f"            {line}" for line in lines), sep="\n", flush=True)
    if given.measure:
        OUTCOMES.write_text(json.dumps(outcomes, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
