"""raised.jsonl: errors raised for the purpose by the real libraries, from the recipes in raised.toml.

    pip install torch==2.13.0 transformers==5.23.0 peft==0.21.2 accelerate==1.15.0 safetensors==0.8.0
    pip install --no-deps fairscale==0.4.13 torchtitan==0.3.0 spmd_types==0.2.3 megatron-core==0.16.1 \
        deepspeed==0.19.8 (with tyro docstring_parser typeguard shtab triton einops hjson msgpack pydantic)
    python oracles/make_raised.py torch
    python oracles/make_raised.py jax     (in another environment: jax[cpu]==0.10.2)

raised_again.jsonl came later and in two halves (--halved --recipes raised_again.toml --out ...); it wants
also, without their dependencies: gguf==0.19.0 compressed-tensors==0.20.0 torchao==0.18.0 datasets==5.2.0
(with dill multiprocess xxhash pyarrow pandas), picotron of github.com/huggingface/picotron at 59714b1
and the vllm folder of vllm-0.6.3.tar.gz on the path; its jax part: orbax-checkpoint==0.12.8 flax==0.12.8.

raised_third.jsonl (--recipes raised_third.toml --out ...) is a third set, kept from whoever changes the
diagnosis until it was scored at first sight; it wants also, without their dependencies: nanotron==0.4
lightning==2.6.6 lightning-utilities==0.15.3; its jax part: optax==0.2.8.

raised_fourth.jsonl (--recipes raised_fourth.toml --out ...) is a fourth, kept likewise, its models and
degrees drawn by a seed; it wants also, without their dependencies: ibm-fms==1.13.1 litgpt==0.5.13
diffusers==0.42.1 tensor_parallel==2.0.0 yunchang==0.6.4 torchmetrics==1.9.0 einops==0.8.2.

raised_fifth.jsonl (--halved --recipes raised_fifth.toml --out ...) is a fifth, in two halves from the start,
with libraries named above.

raised_sixth.jsonl (--halved --recipes raised_sixth.toml --out ...) is a sixth, committed with its labels
before it was scored, with libraries named above; its models are of a table of its own, by the names that
users give them.

raised_seventh.jsonl and raised_eighth.jsonl (--halved, their own recipes) are a seventh and an eighth,
by somebody who had not seen the diagnosis; half of each was read, the other scored at first sight.

A recipe is a piece of a user's code with the fault in it, how it is run, what of the traceback is kept, and
its labels. They follow from the fault; no answer of `explain` was looked at for them. Cases keep the form of
wild.jsonl and add: verdict (what can be said from the text alone), decides (facts that would decide where it
cannot be), library with its version, command, item and cause.

mode: "one" (one process), "fake:WORLD[:RANK]" (torch's fake process group), "gloo:WORLD" (so many processes),
"detail:WORLD" (the same with TORCH_DISTRIBUTED_DEBUG=DETAIL). show: "tail" (the last frames and the message),
"last" (the message alone), "rank" (tail as torchrun prints it), "log" (all ranks' lines, and what the
libraries wrote to stderr). Paths are cut to the package.
"""

import argparse
import hashlib
import json
import linecache
import multiprocessing
import os
import re
import sys
import tempfile
import tomllib
import traceback
import warnings
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from queue import Empty
from random import Random
from typing import Any

from fixture import FIXTURES

HERE = Path(__file__).resolve()
FRAMES, LINES, WIDTH = 5, 16, 900  # of a traceback: frames kept; of a message: lines and characters a line
TRUTH = {"sharding": True, "not_sharding": False, "unknown": None}
Recipe = dict[str, Any]

MODELS = """
hidden heads kv hd ffn vocab layers
3072 24 8 128 8192 128256 28
3584 28 4 128 18944 152064 28
5120 40 8 128 13824 152064 48
896 14 2 64 4864 151936 24
2048 16 2 128 11008 151936 36
5120 32 8 128 14336 131072 40
5120 32 8 128 32768 131072 40
12288 96 8 128 28672 32768 88
7168 56 8 128 20480 64000 60
4096 32 4 128 11008 64000 32
960 15 5 64 2560 49152 32
576 9 3 64 1536 49152 30
2048 32 4 64 5632 32000 22
3584 16 8 256 14336 256000 42
4608 32 16 128 36864 256000 46
5120 40 10 128 17920 32064 40
3072 32 32 96 8192 32064 32
3072 24 2 128 12288 49152 30
6144 48 4 128 24576 49152 40
5120 40 8 128 17408 151936 40
1024 16 8 128 3072 151936 28
5120 40 40 128 13824 100352 40
4096 32 8 128 12800 49155 40
8192 64 64 128 22528 256000 40
6144 48 8 128 16384 92544 48
8192 64 8 128 22016 102400 95
3072 12 4 256 23040 131072 28
2560 32 8 80 7168 102400 30
2304 36 36 64 5760 122753 40
16384 128 8 128 53248 128256 126
"""
"""Of published models: Llama 3, Qwen 2.5 and 3, Mistral, Yi, SmolLM2, Gemma 2, Phi, StarCoder2 and others."""
DEGREES = {
    "tp": (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32),
    "pp": (2, 3, 4, 5, 6, 7, 8, 10, 12, 16),
    "cp": (2, 3, 4, 5, 6, 8, 12, 16),
    "dp": (2, 3, 4, 5, 6, 7, 8, 9, 12),
    "mb": tuple(range(1, 13)),
}


def recipes(path: Path) -> Iterator[tuple[Recipe, str]]:
    """Each recipe with its own source text."""
    head, *parts = path.read_text("utf-8").split("\n[[text]]\n")
    models = tomllib.loads(head).get("models", MODELS)
    for part in parts:
        recipe = tomllib.loads(part)
        yield (drawn(recipe, models) if "<<" in part else recipe), part


def drawn(recipe: Recipe, models: str = MODELS) -> Recipe:
    """The recipe with what stands in <<...>> worked out over a model and degrees that its id draws."""
    random, (names, *rows) = Random(recipe["id"]), (line.split() for line in models.strip().splitlines())
    while True:
        row = random.choice(rows)
        values: dict[str, Any] = {n: int(v) if v.isdigit() else v for n, v in zip(names, row, strict=True)}
        values |= {name: random.choice(sizes) for name, sizes in DEGREES.items()}
        values["seq"] = random.choice((128 * random.randrange(2, 64), random.randrange(200, 8000)))
        if eval(recipe.get("draw", "True"), {}, values):
            break

    def filled(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: filled(value) for key, value in part.items()}
        if not isinstance(part, str) or "<<" not in part:
            return part
        text = re.sub(r"<<(.*?)>>", lambda found: str(eval(found[1], {"min": min}, values)), part)
        return int(text) if text.isdigit() else text

    return {key: filled(value) for key, value in recipe.items()}


def shortened(text: str) -> str:
    """Paths from the package on; no address in memory."""
    text = re.sub(r'"[^"\n]*?/(?:site-packages|dist-packages)/', '"', text)
    text = re.sub(r'"[^"\n]*?/lib/python3\.\d+/', '"python3.11/', text)
    text = re.sub(r"(?<![\w.])/\S*?/site-packages/", "", text)
    return re.sub(r"0x[0-9a-f]{6,}", "0x7f", text)


def cut(text: str) -> str:
    lines = [line[:WIDTH].rstrip() for line in text.strip("\n").splitlines()]
    return "\n".join(lines if len(lines) <= LINES else [*lines[:3], *lines[3 - LINES :]])


def formatted(error: BaseException, show: str, file: str) -> str:
    """What a user would paste of the error."""
    told = traceback.TracebackException.from_exception(error)
    message = cut("".join(told.format_exception_only()))
    if show == "last":
        return shortened(message)
    frames = [frame for frame in told.stack if frame.filename != str(HERE)]
    places = [i for i, frame in enumerate(frames) if frame.filename == file and frame.name != "<module>"]
    first = places[-2:][0] if places else 0
    kept = frames[first:]
    if len(kept) > FRAMES:  # what the user called, and where it ended
        own = [frame for frame in kept if frame.filename == file]
        kept = [*own, *kept[len(own) - FRAMES :]]
    body = "".join(traceback.StackSummary.from_list(kept).format())
    return shortened(f"Traceback (most recent call last):\n{body}{message}")


def run(recipe: Recipe, rank: int, world: int, store: str, told: Any) -> None:
    """One rank of a recipe, in a process of its own."""
    warnings.simplefilter("ignore")
    file = recipe.get("file", "train.py")
    code = recipe["code"].lstrip("\n")
    kind = recipe.get("mode", "one").partition(":")[0]
    errors = os.open(f"{store}.err{rank}", os.O_WRONLY | os.O_CREAT)
    os.dup2(errors, 2)
    os.dup2(errors, 1)
    os.chdir(tempfile.mkdtemp())
    given: dict[str, Any] = {"__name__": "__main__", "rank": rank, "world": world}
    try:
        if recipe["env"] == "torch":
            prepare(given, kind, rank, world, store)
        linecache.cache[file] = (len(code), None, code.splitlines(True), file)
        exec(compile(code, file, "exec", dont_inherit=True), given)
    except BaseException as error:  # SystemExit of a library's check as well
        told.put((rank, formatted(error, recipe.get("show", "tail"), file)))
    else:
        told.put((rank, ""))
    told.close()
    told.join_thread()
    os._exit(0)


def prepare(given: dict[str, Any], kind: str, rank: int, world: int, store: str) -> None:
    import math

    import torch
    import torch.distributed as dist
    import torch.nn.functional as functional
    from torch import nn

    torch.manual_seed(0)
    given.update(torch=torch, nn=nn, F=functional, dist=dist, os=os, math=math)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank), MASTER_ADDR="localhost",
                      MASTER_PORT="29500")  # fmt: skip
    if kind == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    if kind == "detail":
        os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
        dist.set_debug_level_from_env()
    if kind in ("gloo", "detail"):
        patience = timedelta(seconds=8)
        shared = dist.FileStore(store, world)
        dist.init_process_group("gloo", store=shared, rank=rank, world_size=world, timeout=patience)


def raised(recipe: Recipe) -> str:
    """The text that the recipe raises; LookupError where it raises none."""
    kind, *sizes = recipe.get("mode", "one").split(":")
    world = int(sizes[0]) if sizes else 1
    ranks = list(range(world)) if kind in ("gloo", "detail") else [int(sizes[1]) if len(sizes) > 1 else 0]
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        store, told = f"{folder}/store", fork.Queue()
        started = [fork.Process(target=run, args=(recipe, r, world, store, told)) for r in ranks]
        for process in started:
            process.start()
        texts: dict[int, str] = {}
        for wait in range(900):
            if len(texts) == len(ranks) or (wait and not any(p.is_alive() for p in started)):
                break
            with suppress(Empty):
                rank, text = told.get(timeout=0.1)
                texts[rank] = text
        for process in started:
            process.kill()
            process.join()
        written = {r: Path(f"{store}.err{r}").read_text(errors="replace") for r in ranks}
    found = {r: text for r, text in sorted(texts.items()) if text}
    if not found:
        raise LookupError(f"nothing raised, {[p.exitcode for p in started]}: {written}"[-1500:])
    if recipe.get("show") == "log":
        return "\n".join(
            f"[rank{r}]: {line}" if part is text and world > 1 else shortened(line)
            for r, text in ((r, found.get(r, "")) for r in ranks if r in found or r not in texts)
            for part in (written[r], text)
            for line in part.splitlines()
        )
    rank = recipe.get("rank", min(found))
    text = found[rank]
    if recipe.get("show") == "rank":
        text = "\n".join(f"[rank{rank}]: {line}" for line in text.splitlines())
    return text


def versioned(library: str) -> str:
    names = {"torch": "torch", "megatron-core": "megatron-core", "python": ""}
    try:
        return f"{library} {version(names.get(library, library)).split('+')[0]}"
    except (PackageNotFoundError, ValueError):  # Python itself has none
        return library


def half(name: str) -> str:
    """Which half of the cases an id falls into: one to learn from, one to be scored at first sight."""
    return ("seen", "unseen")[hashlib.sha256(name.encode()).digest()[0] % 2]


def case(recipe: Recipe, text: str) -> dict[str, Any]:
    """In the form of wild.jsonl."""
    verdict = recipe["verdict"]
    truth = recipe.get("truth", verdict)
    alone = recipe.get("from", "text")
    return {
        "id": recipe["id"],
        "framework": recipe["library"],
        "library": versioned(recipe["library"]),
        "command": f"python oracles/make_raised.py {recipe['env']}",
        "item": recipe["item"],
        "message": text,
        "message_kind": "raised",
        "category": recipe["category"],
        "subtype": recipe.get("subtype"),
        "verdict": verdict,
        "parallel_caused": TRUTH[truth],
        "self_explaining": recipe["self"],
        "diagnosable_from": alone,
        "decides": recipe.get("decides", []),
        "context": recipe.get("context", {}),
        "cause": recipe["cause"],
    } | {name: recipe[name] for name in ("categories",) if name in recipe}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("env", choices=("torch", "jax"))
    parser.add_argument("--recipes", type=Path, default=HERE.with_name("raised.toml"))
    parser.add_argument("--out", type=Path, default=FIXTURES / "raised.jsonl")
    parser.add_argument("--halved", action="store_true", help="mark the half that each case falls into")
    parser.add_argument("--new", action="store_true", help="only recipes without a text")
    parser.add_argument("--only", help="ids that match this pattern; printed, not written")
    args = parser.parse_args()
    if args.env == "torch":
        import torch

        torch.set_num_threads(1)
    else:
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    old = [json.loads(line) for line in args.out.read_text("utf-8").splitlines()] if args.out.exists() else []
    cases = {c["id"]: c for c in old}
    order = []
    for recipe, _ in recipes(args.recipes):
        order.append(recipe["id"])
        recipe.setdefault("env", "torch")
        if args.new and recipe["id"] in cases:
            continue
        if recipe["env"] != args.env or (args.only and not re.search(args.only, recipe["id"])):
            continue
        try:
            cases[recipe["id"]] = case(recipe, raised(recipe))
        except LookupError as error:
            cases.pop(recipe["id"], None)
            print(f"!! {recipe['id']}: {error}", file=sys.stderr)
            continue
        if args.halved:
            cases[recipe["id"]]["split"] = half(recipe["id"])
        if args.only:
            print(f"## {recipe['id']}\n{cases[recipe['id']]['message']}\n")
    if not args.only:
        lines = [json.dumps(cases[name], ensure_ascii=False) for name in order if name in cases]
        args.out.write_text("\n".join(lines) + "\n", "utf-8")
        print(f"{args.out.name}: {len(lines)} of {len(order)} recipes", file=sys.stderr)


if __name__ == "__main__":
    main()
