"""positions.jsonl.gz: flight records of ranks that stopped at a known place of a Llama step.

    python tests/oracles/make_positions.py        # four minutes of two cores
    python tests/oracles/make_positions.py steps        # positions_steps.jsonl.gz: whole steps, ten minutes
    python tests/oracles/make_positions.py steps 4 12   # two of them again, the others kept

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
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import llamapar as lp
from llamapar.count.wire import sending
from llamapar.flight.order import collectives_in_order
from llamapar.programs import PROGRAMS

PATIENCE = 3.5  # seconds after which every rank dumps; a run takes a tenth on idle cores
FILE = Path(__file__).parent / "positions.jsonl.gz"
STEPS_FILE = FILE.with_name("positions_steps.jsonl.gz")
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


# -- whole steps, under schedules -------------------------------------------------------------------

FOUR = {"tp": 2, "pp": 2}
EIGHT = {"tp": 2, "pp": 2, "dp": 2}
STEPS = [
    ("as it is", FOUR, "1f1b", 0),
    ("as it is", FOUR, "1f1b", 1),
    ("as it is", FOUR, "gpipe", 0),
    ("as it is", FOUR, "interleaved-1f1b", 0),
    ("as it is", EIGHT, "interleaved-1f1b", 1),
    ("as it is", EIGHT | {"zero": 2}, "zbv", 0),
    ("as it is", FOUR, "zbv", 1),
    ("as it is", FOUR, "looped-bfs", 1),
    ("as it is", FOUR, "interleaved-zero-bubble", 1),
    ("as it is", {"tp": 2, "dp": 2}, "1f1b", 1),
    ("gradients", {"tp": 2, "dp": 2}, "1f1b", 0),
    ("gradients", EIGHT, "interleaved-1f1b", 0),
    ("gradients", EIGHT | {"zero": 2}, "1f1b", 1),
    ("gradients", {"pp": 2, "dp": 2}, "zbv", 1),
    ("recomputes", FOUR, "1f1b", 1),
    ("recomputes", FOUR, "interleaved-1f1b", 1),
    ("recomputes", FOUR, "zbv", 0),
    ("a layer less", FOUR, "1f1b", 1),
    ("a layer less", FOUR, "gpipe", 0),
    ("twice forward", FOUR, "1f1b", 1),
    # raised when the analysis was done
    ("as it is", {"pp": 4, "tp": 2}, "interleaved-1f1b", 1),
    ("as it is", {"pp": 4, "tp": 2}, "1f1b", 0),
    ("as it is", {"pp": 2, "cp": 2, "tp": 2}, "1f1b", 1),
    ("as it is", FOUR, "zbv", 0),
    ("as it is", FOUR | {"sequence_parallel": False}, "interleaved-1f1b", 1),
    ("as it is", FOUR, "gpipe", 1),
    ("gradients", {"pp": 2, "dp": 2}, "interleaved-1f1b", 0),
    ("gradients", EIGHT, "zbv", 1),
    ("gradients", EIGHT | {"zero": 1}, "1f1b", 0),
    ("recomputes", FOUR, "looped-bfs", 1),
    ("a layer less", FOUR, "interleaved-1f1b", 1),
    ("twice forward", FOUR, "zbv", 0),
]
"""Kind, layout, schedule, and the step in which the rank stops; four micro-batches each. "gradients": it
stops in the reduction after the passes. "twice forward": a pass without gradients before each that trains."""

MICRO_BATCHES = 4


def stopping_stage(kind: str, step: int, culprit: int, share: float, calls: int, folder: str):
    """A stage; in a step the culprit stops after so great a share of its collectives."""

    def patched() -> None:
        import torch
        import torch.distributed as dist
        from torch._C import _distributed_c10d as c10d

        from llamapar.execution import pipeline_rank, stepping
        from llamapar.programs import llama
        from llamapar.spmd import collectives, compat

        rank = dist.get_rank()
        here = {"layer": None, "part": "", "phase": "", "step": 0, "count": 0}
        stopped_in = "gradients" if kind == "gradients" else ""

        def dump() -> None:
            time.sleep(2 * PATIENCE)
            Path(f"{folder}/rank_{rank}").write_bytes(c10d._dump_fr_trace())

        def sends(function):
            def call(*args, **more):
                if here["step"] == step and (not stopped_in or here["phase"] == stopped_in):
                    if rank == culprit and here["count"] == int(share * calls):
                        Path(f"{folder}/truth").write_text(
                            json.dumps([here[k] for k in ("layer", "part", "phase")])
                        )
                        time.sleep(1000)
                    here["count"] += 1
                return function(*args, **more)

            return call

        class Noted(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, forward, backward, *args):
                ctx.back, ctx.args, ctx.tag = backward, args, (here["layer"], here["part"])
                here["phase"] = "forward"
                return forward(x, *args)

            @staticmethod
            def backward(ctx, grad):
                here["layer"], here["part"] = ctx.tag
                here["phase"] = "backward"
                return ctx.back(grad, *ctx.args), None, None, *(None for _ in ctx.args)

        def noting(function, part):
            def call(*args, **more):
                here["part"], here["phase"] = part, "forward"
                here["layer"] = here["layer"] if part in ("attention", "MLP") else None
                return function(*args, **more)

            return call

        def phase(function, part, name, ends=False):
            def call(*args, **more):
                here.update(layer=None, part=part, phase=name)
                made = function(*args, **more)
                here["step"] += ends
                return made

            return call

        compat.all_reduce, compat.all_gather = sends(compat.all_reduce), sends(compat.all_gather)
        compat.reduce_scatter = sends(compat.reduce_scatter)
        collectives.Exchange = Noted
        for name, part in PARTS.items():
            setattr(llama, name, noting(getattr(llama, name), part))
        pipeline_rank.reduce_gradients = phase(pipeline_rank.reduce_gradients, "the gradients", "gradients")
        stepping.Trained.squares = phase(stepping.Trained.squares, "the norm of the gradients", "update")
        stepping.Trained.update = phase(stepping.Trained.update, "the weights", "update", ends=True)
        llama.here = here
        threading.Thread(target=dump, daemon=True).start()

    def stage(mesh, setting, own, x, positions, targets, weights):
        import torch
        from torch.utils.checkpoint import checkpoint

        from llamapar.programs import llama

        if not hasattr(llama, "here"):
            patched()
        block = llama.block
        layers = [*own.layers]

        def noted(mesh, setting, x, positions, layer_weights):
            layer = layers.pop(0)

            def inner(x):
                llama.here["layer"] = layer
                return block(mesh, setting, x, positions, layer_weights)

            return checkpoint(inner, x, use_reentrant=False) if kind == "recomputes" else inner(x)

        llama.block = noted
        try:
            if kind == "twice forward":
                with torch.no_grad():
                    llama.llama_stage(mesh, setting, own, x, positions, targets, weights)
                layers[:] = own.layers
            return llama.llama_stage(mesh, setting, own, x, positions, targets, weights)
        finally:
            llama.block = block

    return stage


def steps(draw: random.Random, wanted: set[int]) -> Iterator[dict]:
    """Those wanted, by their place in STEPS, raised; of the others what was raised before."""
    rows = gzip.decompress(STEPS_FILE.read_bytes()).splitlines() if wanted else []
    kept = {row["number"]: row for row in map(json.loads, rows)}
    for number, (kind, degrees, schedule, step) in enumerate(STEPS):
        layout, model = lp.Layout.of(degrees), lp.model("tiny").replace(n_layers=8)
        own = model.replace(n_layers=7) if kind == "a layer less" else model
        culprit, share = draw.randrange(layout.world), draw.random()
        if not step and kind != "gradients":
            share = 0.5 + share / 2  # of a first step, what comes before has been seen
        if wanted and number not in wanted:
            yield from [kept[number]] if number in kept else []
            continue
        batch = layout.dp * MICRO_BATCHES
        pipeline = {"schedule": schedule, "micro_batches": MICRO_BATCHES}
        sent = collectives_in_order(sending("step", own, layout, 16, batch, rank=culprit, **pipeline))
        calls = sum(one.phase == "gradients" or kind != "gradients" for one in sent)
        with tempfile.TemporaryDirectory() as folder:
            made = replace(PROGRAMS["step"], stage=stopping_stage(kind, step, culprit, share, calls, folder))
            with contextlib.suppress(lp.RankFailure):
                lp.run(
                    made, own, layout, engine="processes", device="cpu", seq_len=16, schedule=schedule,
                    micro_batches=MICRO_BATCHES, global_batch=layout.dp * MICRO_BATCHES, steps=3,
                    timeout=2 * PATIENCE + 6,
                )  # fmt: skip
            files = {rank: Path(folder, f"rank_{rank}") for rank in range(layout.world)}
            dumps = {
                r: base64.b64encode(file.read_bytes()).decode() for r, file in files.items() if file.exists()
            }
            truth = Path(folder, "truth")
            if not truth.exists():
                print(kind, degrees, schedule, step, "did not stop", flush=True)
                continue
            known = {"seq_len": 16, "global_batch": layout.dp * MICRO_BATCHES, "n_layers": 8}
            row = {
                "number": number,
                "kind": kind,
                "degrees": degrees,
                "schedule": schedule,
                "step": step,
                "culprit": culprit,
            }
            row |= {"truth": json.loads(truth.read_text()), "known": known, "dumps": dumps}
        print(kind, degrees, schedule, step, culprit, row["truth"], len(dumps), flush=True)
        yield row


def written(file: Path, rows: list[dict]) -> None:
    text = "\n".join(json.dumps(row) for row in rows)
    file.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(len(rows), "records,", file.stat().st_size, "bytes")


def main() -> None:
    if sys.argv[1:2] == ["steps"]:
        written(STEPS_FILE, list(steps(random.Random(21), set(map(int, sys.argv[2:])))))
        return
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
    written(FILE, rows)


if __name__ == "__main__":
    main()
