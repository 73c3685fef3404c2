"""What the `make_*.py` scripts share: run a real tool's code, and write what it said as a fixture.

A fixture is one JSON file: `made_by` (the command, the tools, their versions or commits) and
`cases`, one a line. Installed tools are imported. Of a tool that is only a repository, single
functions are read at a pinned commit and run as they stand; none of its code is kept here.
"""

import __future__

import argparse
import ast
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).resolve().parents[1] / "tests" / "oracles"
"""Where the tests read them."""

# The commits that shared names such as "torchtitan" stand for: `git clone` of each repository
# (a bare one is enough), given to a script as --torchtitan DIRECTORY and so on.
COMMITS = {
    "llama3": ("meta-llama/llama3", "a0940f9cf7065d45bb6675660f80d305c041a754"),
    "torchtitan": ("pytorch/torchtitan", "b5bcd76c66d0acb1a08b176d9639425bc55e0b2a"),
    "picotron": ("huggingface/picotron", "59714b1bf25541dbeb6f5a721ed15f6d0768e786"),
    "megatron": ("NVIDIA/Megatron-LM", "d98e8a64ddf34856e74b24714e3bedb2f5a39553"),
    "fairscale": ("facebookresearch/fairscale", "146f160241651e1211c4247979f159a4ef43b54a"),
    "llama_models": ("meta-llama/llama-models", "a9c89c471f793423afd4cc3ca8671d6e56fe64cb"),
    "colossalai": ("hpcaitech/ColossalAI", "4f9953be335ef371b3848719ddafe596c01ecd37"),
}
VLLM = "0.33.0"  # too big to build: its wheel is read as an archive, --vllm WHEEL
LIMIT = 150_000  # bytes, of one fixture


def arguments(doc: str | None, *tools: str) -> argparse.Namespace:
    """The command line of a script that needs `tools`: one path for each."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for tool in tools:
        what = f"vllm-{VLLM} wheel" if tool == "vllm" else f"clone of {COMMITS[tool][0]}"
        parser.add_argument(f"--{tool}", type=Path, required=True, metavar="PATH", help=what)
    return parser.parse_args()


def source(args: argparse.Namespace, tool: str, path: str) -> str:
    """The text of `path` in `tool`, at the pinned commit or version."""
    place: Path = getattr(args, tool)
    if tool == "vllm":
        if f"vllm-{VLLM}-" not in place.name:
            raise SystemExit(f"wanted a wheel of vllm {VLLM}, got {place.name}")
        return zipfile.ZipFile(place).read(path).decode()
    show = ["git", "-C", str(place), "show", f"{COMMITS[tool][1]}:{path}"]
    return subprocess.run(show, check=True, capture_output=True, text=True).stdout


def extract(text: str, *names: str, **given: Any) -> dict[str, Any]:
    """Run only the definitions and assignments called `names` in `text`, with `given` as globals.

    A method is found by its own name. Annotations stay strings, so that their types need not exist.
    """
    found: list[ast.stmt] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names:
            node.decorator_list = []
            found.append(node)
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) in names:
            found.append(node)
    missing = len(names) - len(found)
    if missing:
        raise LookupError(f"{missing} of {names} not found once")
    flags = __future__.annotations.compiler_flag
    exec(compile(ast.Module(found, []), "<extracted>", "exec", flags, dont_inherit=True), given)
    return given


def fragment(text: str, *marks: str, **given: Any) -> Callable[[], None]:
    """Of `text`, the smallest statement that holds each of `marks`, to be run in that order.

    For a check in the middle of a method that cannot be called alone: `given` are its names.
    """
    lines = text.splitlines()
    statements = [
        (node.end_lineno - node.lineno, node, "\n".join(lines[node.lineno - 1 : node.end_lineno]))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.stmt) and node.end_lineno
    ]
    held = [[s for s in statements if mark in s[2]] for mark in marks]
    body = [min(found, key=lambda s: s[0])[1] for found in held]
    code = compile(ast.Module(body, []), "<fragment>", "exec", dont_inherit=True)
    return lambda: exec(code, given)


def outcome(key: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """{key: what the call returned}, or {"error": its class, "message": its text}."""
    try:
        return {key: call(*args, **kwargs)}
    except Exception as failure:
        return {"error": type(failure).__name__, "message": str(failure)}


def write(
    script: str,
    cases: list[dict[str, Any]],
    *,
    packages: tuple[str, ...] = (),
    tools: tuple[str, ...] = (),
) -> None:
    """Write NAME.json for the script make_NAME.py. Local versions (+cpu) are cut off."""
    here = Path(script)
    versions = {package: version(package).split("+")[0] for package in packages}
    if "vllm" in tools:
        versions["vllm"] = VLLM
    commits = {COMMITS[tool][0]: COMMITS[tool][1] for tool in tools if tool != "vllm"}
    paths = [f"--{tool} PATH" for tool in tools]
    made_by: dict[str, Any] = {
        "command": " ".join(["python", f"oracles/{here.name}", *paths]),
        "tool": ", ".join([*versions, *commits]),
        "version": versions,
        "commit": commits,
    }
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    text = f'{{"made_by": {json.dumps(made_by)},\n"cases": [\n{lines}\n]}}\n'
    if len(text) > LIMIT:
        raise SystemExit(f"{here.name}: {len(text):,} bytes, the limit is {LIMIT:,}")
    name = here.stem.removeprefix("make_") + ".json"
    (FIXTURES / name).write_text(text)
    print(f"{name}: {len(cases)} cases, {len(text):,} bytes", file=sys.stderr)


def write_tables(name: str, command: str, tables: dict[str, Any]) -> None:
    """Write `name`: tables of rows, a row a line."""
    parts = [f'"made_by": {json.dumps({"command": command})}']
    for key, value in tables.items():
        if isinstance(value, list):
            lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in value)
            parts.append(f'"{key}": [\n{lines}\n]')
        else:
            parts.append(f'"{key}": {json.dumps(value, separators=(",", ":"))}')
    (FIXTURES / name).write_text("{" + ",\n".join(parts) + "}\n")


@contextmanager
def ranks(world: int) -> Iterator[None]:
    """A fake process group of `world` ranks in this one process, as rank 0; needs torch."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()
