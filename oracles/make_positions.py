"""positions.jsonl.gz: flight records of ranks that stopped at a known place of a Llama step.

    python oracles/make_positions.py        # four minutes of two cores

Forwards and backwards of the project's "llama" on four real ranks over gloo. In the last of them one rank
stops before a collective that is drawn. What that belongs to is known from the code that calls it, not from
the order of collectives: functions note the layer and the part that they are in, and a backward has the note
of its forward. Other kinds than "as it is" are programs that must not be mistaken for it: the same with
activations recomputed, or with two evaluations after the training, or of a layer less than the model has.
"""

import base64
import contextlib
import gzip
import itertools
import json
import random
import tempfile
import threading
import time
from pathlib import Path

import llamapar as lp
from fixture import FIXTURES
from llamapar.programs import PROGRAMS

PATIENCE = 3.5  # seconds after which every rank dumps; a run takes a tenth on idle cores
FILE = FIXTURES / "positions.jsonl.gz"
PARTS = {
    "attention": "attention",
    "mlp": "MLP",
    "embedding": "the embedding",
    "cross_entropy": "the loss",
    "column_input": "the output layer",
}
"""Function that `llama` calls → what is said of it."""

CASES = [
    ("as it is", {"tp": 2, "dp": 2}),
    ("as it is", {"tp": 2, "dp": 2, "sequence_parallel": False}),
    ("as it is", {"tp": 4}),
    ("as it is", {"tp": 2, "cp": 2}),
    ("as it is", {"tp": 4, "sequence_parallel": False}),
    ("recomputes", {"tp": 2, "dp": 2}),
    ("recomputes", {"tp": 4, "sequence_parallel": False}),
    ("evaluates", {"tp": 2, "dp": 2}),
    ("evaluates", {"tp": 4, "sequence_parallel": False}),
    ("a layer less", {"tp": 2, "dp": 2}),
]


def stopping(kind: str, culprit: int, share: float, folder: str):
    """A program in whose last pass the culprit stops, after so great a share of its collectives."""

    def program(mesh, setting, tokens, positions, targets, weights):
        import torch
        import torch.distributed as dist
        from torch._C import _distributed_c10d as c10d
        from torch.utils.checkpoint import checkpoint

        from llamapar.programs import llama
        from llamapar.spmd import collectives

        rank, passes = dist.get_rank(), ["trains"] * 3
        if kind == "evaluates":
            passes = ["trains", "trains", "evaluates", "evaluates"]
        here = {"pass": 0, "layer": None, "part": "", "next": 0, "count": 0, "of": 0}

        def dump() -> None:
            time.sleep(PATIENCE)
            Path(f"{folder}/rank_{rank}").write_bytes(c10d._dump_fr_trace())

        def enter(tag) -> None:
            here["count"] += 1
            last = here["pass"] == len(passes) - 1
            if rank == culprit and last and here["count"] == 1 + int(share * here["of"]):
                Path(f"{folder}/truth").write_text(json.dumps(tag))
                time.sleep(1000)

        class Noted(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, forward, backward, *args):
                ctx.back, ctx.args, ctx.tag = backward, args, (here["layer"], here["part"])
                if forward is not collectives.same:
                    enter([*ctx.tag, "forward"])
                return forward(x, *args)

            @staticmethod
            def backward(ctx, grad):
                if ctx.back is not collectives.same:
                    enter([*ctx.tag, "backward"])
                return ctx.back(grad, *ctx.args), None, None, *(None for _ in ctx.args)

        def noting(function, part):
            def call(*args, **more):
                here["part"] = part
                here["layer"] = here["layer"] if part in ("attention", "MLP") else None
                return function(*args, **more)

            return call

        block = llama.block

        def own_block(mesh, setting, x, positions, layer_weights):
            layer = here["next"]
            here["next"] += 1

            def inner(x):
                here["layer"] = layer
                return block(mesh, setting, x, positions, layer_weights)

            return checkpoint(inner, x, use_reentrant=False) if kind == "recomputes" else inner(x)

        collectives.Exchange = Noted
        for name, part in PARTS.items():
            setattr(llama, name, noting(getattr(llama, name), part))
        llama.block = own_block
        threading.Thread(target=dump, daemon=True).start()
        own = {name: tensor.detach().requires_grad_() for name, tensor in weights.items()}
        for number, what in enumerate(passes):
            here |= {"pass": number, "of": here["count"], "count": 0, "next": 0}
            loss = llama.llama(mesh, setting, tokens, positions, targets, own)["loss"].sum()
            if what == "trains":
                torch.autograd.grad(loss, list(own.values()))
        time.sleep(1000)  # a replica of its own, which has no fault

    return program


def main() -> None:
    draw, rows = random.Random(20), []
    for (kind, degrees), turn in itertools.product(CASES, range(2)):
        culprit, share = draw.randrange(4), draw.random()
        model = lp.model("tiny")
        if kind == "a layer less":
            model = model.replace(n_layers=model.n_layers - 1)
        with tempfile.TemporaryDirectory() as folder:
            with contextlib.suppress(lp.RankFailure):
                lp.run(
                    stopping(kind, culprit, share, folder), model, degrees, engine="processes", seq_len=16,
                    timeout=PATIENCE + 4, reference=PROGRAMS["llama"].reference, backward=False,
                )  # fmt: skip
            files = {rank: Path(folder, f"rank_{rank}") for rank in range(4)}
            dumps = {rank: base64.b64encode(file.read_bytes()).decode() for rank, file in files.items()}
            truth = json.loads(Path(folder, "truth").read_text())
        print(kind, degrees, turn, culprit, truth, flush=True)
        rows.append({"kind": kind, "degrees": degrees, "culprit": culprit, "truth": truth, "dumps": dumps})
    text = "\n".join(json.dumps(row) for row in rows)
    FILE.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
