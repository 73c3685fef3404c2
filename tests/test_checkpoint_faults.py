"""Checkpoints killed, interrupted, out of disk, damaged, mixed up: told by name, and the old one is whole."""

from __future__ import annotations

import errno
import gc
import io
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import save_file

import llamapar as lp
from llamapar import LlamaparError, ModelConfig, checkpoint
from llamapar.checkpoint import CheckpointError, pth, safetensors, source
from llamapar.describe import pickles
from llamapar.describe.modelfile import config_json
from weights import alike, contents, exactly, flip, load, save_hf, save_meta, tiny, together, values

PROJECT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.usefixtures("no_ranks_left")
MODEL = tiny()
CUT = {"tp": 4, "padding": "colossalai", "pp": 2}
META = {"tp": 2, "padding": "megatron", "format": "meta"}


def whole(folder: Path) -> Path:
    return save_hf(folder, MODEL)


def times(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in folder.rglob("*")}


# -- killed, interrupted -----------------------------------------------------------------------------

SERVER = """
import json, os, pathlib, resource, signal, sys, time
sys.path.insert(0, {root!r})
import torch
from llamapar import checkpoint
from llamapar.cli import main as cli
from llamapar.checkpoint import pth, atomic_write

torch.set_num_threads(1)
pth.lay_out_pth(pathlib.Path("{warm}"), {{"a": ("F32", (1,))}})
write = atomic_write._write
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if not child:
        atomic_write._write = lambda stored, data: (time.sleep(job["slow"]), write(stored, data))
        if job["limit"]:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (job["limit"], job["limit"]))
        out = os.open(job["told"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job may ignore it
        os._exit(cli.main(job["words"]))
    print(child, flush=True)
    sys.stdin.readline()  # until then its id stays its own
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Server:
    """Starts `llamapar …` in processes that are ready at once, and slow enough to be hit."""

    def __init__(self, room: Path):
        self.told = room / "told"
        code = SERVER.format(root=str(PROJECT), warm=room / "warm.pth")
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def _asked(self, line: str) -> int:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def start(self, *words: object, slow: float = 0.0005, limit: int = 0) -> int:
        """The id of the process that runs the command; `end` waits for it."""
        job = {"words": [str(w) for w in words], "slow": slow, "limit": limit, "told": str(self.told)}
        return self._asked(json.dumps(job))

    def end(self) -> tuple[int, str]:
        """The exit status of the command (-9 where it was killed), and all that it said."""
        return self._asked("end"), self.told.read_text()

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("server"))
    yield made
    made.close()


def words(source: Path, target: Path, options: dict[str, Any]) -> list[object]:
    given = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
    return ["checkpoint", "reshard", source, target, *given]


def running(process: int) -> bool:
    """Whether the command still runs; its id stays its own until the server is asked for its end."""
    return psutil.Process(process).status() != psutil.STATUS_ZOMBIE


def unfinished(new: Path) -> list[Path]:
    """The temporary folders beside a target."""
    return [path for path in new.parent.iterdir() if path.name.startswith(f"{new.name}.")]


def begun(process: int, server: Server, new: Path) -> None:
    """Waits until the command has a temporary folder."""
    while not unfinished(new):
        assert running(process) or new.exists(), server.end()
        time.sleep(0.0005)


BEGUN = "llamapar: writing {}; if it is interrupted, it starts over\n"


@pytest.mark.parametrize("options", [pytest.param(CUT, marks=pytest.mark.soak), META])
def test_killed_at_any_moment(server: Server, tmp_path: Path, soak: bool, options: dict[str, Any]) -> None:
    """The target is there whole, or not at all; the same command makes it, whatever a killed one left."""
    first = whole(tmp_path / "first")
    checkpoint.shard(first, tmp_path / "old", tp=2, padding="megatron")
    old, before = tmp_path / "old", (contents(tmp_path / "old"), times(tmp_path / "old"))
    checkpoint.reshard(old, tmp_path / "reference", **options)
    reference = contents(tmp_path / "reference")
    moments = random.Random(json.dumps(options))
    statuses, left = [], 0
    for i in range(25 if soak else 3):
        new = tmp_path / f"new {i}"
        child = server.start(*words(old, new, options), slow=0.002)
        if i:  # else before anything is written
            begun(child, server, new)
        time.sleep(moments.random() * 0.1)
        os.kill(child, signal.SIGKILL)
        statuses.append(server.end()[0])
        assert (contents(old), times(old)) == before
        if not new.exists():
            kept = [contents(path) for path in unfinished(new)]
            left += len(kept)
            checkpoint.reshard(old, new, **options)
            assert [contents(path) for path in unfinished(new)] == kept
        assert contents(new) == reference
        assert checkpoint.verify(new).ok
    assert statuses.count(-9) >= len(statuses) // 2
    assert left


def test_interrupted(server: Server, tmp_path: Path) -> None:
    old, new = whole(tmp_path / "old"), tmp_path / "new"
    child = server.start(*words(old, new, CUT), slow=0.05)
    begun(child, server, new)
    time.sleep(0.1)
    os.kill(child, signal.SIGINT)
    assert server.end() == (130, f"{BEGUN.format(new)}\nllamapar: interrupted; nothing is kept\n")
    assert list(tmp_path.iterdir()) == [old]
    checkpoint.shard(old, new, **CUT)
    assert checkpoint.verify(new, against=old).ok


def test_two_at_once(server: Server, tmp_path: Path) -> None:
    """Each writes a folder of its own; the one that is ready later touches nothing."""
    old, new = whole(tmp_path / "old"), tmp_path / "new"
    child = server.start(*words(old, new, CUT), slow=0.01)
    begun(child, server, new)
    checkpoint.shard(old, new, **META)
    before = contents(new)
    status, told = server.end()
    assert (status, told) == (
        2,
        f"{BEGUN.format(new)}llamapar: {new} is there already\n  why  nothing is ever overwritten\n",
    )
    assert contents(new) == before
    assert not unfinished(new)


# -- what is read back -------------------------------------------------------------------------------


def test_what_the_disk_gives_back_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that changes one bit of what it is given."""
    old, opened = whole(tmp_path / "old"), Path.open

    class Faulty(io.FileIO):
        def write(self, data: Any) -> int:
            wrong = bytearray(data)
            wrong[-1] ^= 1
            return super().write(wrong)

    def faulty(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        return Faulty(path, "r+") if mode == "r+b" else opened(path, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", faulty)
    told = (
        "model.safetensors: model.embed_tokens.weight is not what was written, read back from the disk\n"
        "  why  the disk or its driver is faulty; the old checkpoint is as it was"
    )
    with pytest.raises(CheckpointError, match=exactly(told)):
        checkpoint.gather(old, tmp_path / "new")
    assert list(tmp_path.iterdir()) == [old]


# -- no room -----------------------------------------------------------------------------------------


def test_a_disk_that_is_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, before = whole(tmp_path / "old"), contents(tmp_path / "old")
    usage = shutil._ntuple_diskusage(10**12, 10**12, 1000)  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage)
        told = (
            "31,680 bytes are to be written, and 1,000 are free where it goes\n"
            "  why  nothing has been written; the old checkpoint is as it was"
        )
        with pytest.raises(CheckpointError, match=exactly(told)):
            checkpoint.gather(old, tmp_path / "new")
    assert contents(old) == before
    checkpoint.gather(old, tmp_path / "new")
    assert alike(together(tmp_path / "new"), values(MODEL))


@pytest.mark.parametrize("form", ["hf", "meta"])
def test_a_disk_that_becomes_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    old, before, room = whole(tmp_path / "old"), contents(tmp_path / "old"), [20_000]

    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            room[0] -= len(data)
            if room[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(data)

    opened = Path.open

    def full(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        return Full(path, "r+") if mode == "r+b" else opened(path, mode, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        told = f"{tmp_path / 'new'}: No space left on device"
        with pytest.raises(CheckpointError, match=exactly(told)):
            checkpoint.gather(old, tmp_path / "new", format=form)
    assert contents(old) == before
    assert list(tmp_path.iterdir()) == [old]
    checkpoint.gather(old, tmp_path / "new", format=form)
    assert checkpoint.verify(tmp_path / "new", against=old).ok


# -- where the new one should go ---------------------------------------------------------------------


def test_a_target_that_is_there(tmp_path: Path) -> None:
    old = whole(tmp_path / "old")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    before = contents(tmp_path)
    for name in ("file", "folder", "link", "old"):
        told = f"{tmp_path / name} is there already\n  why  nothing is ever overwritten"
        with pytest.raises(CheckpointError, match=exactly(told)):
            checkpoint.gather(old, tmp_path / name)
    assert contents(tmp_path) == before


def test_a_target_that_cannot_be_made(tmp_path: Path) -> None:
    old = whole(tmp_path / "old")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CheckpointError, match=r"/file: File exists\Z"):
        checkpoint.gather(old, tmp_path / "file" / "new")
    with pytest.raises(CheckpointError, match=r"^/proc/new\..+\.partial: No such file or directory\Z"):
        checkpoint.gather(old, "/proc/new")


def test_a_target_that_appears_meanwhile(tmp_path: Path) -> None:
    """Even an empty folder, in whose place a rename would put the new one, stays as it is."""
    old, new = whole(tmp_path / "old"), tmp_path / "new"
    told = f"{new} is there already\n  why  nothing is ever overwritten"
    with pytest.raises(CheckpointError, match=exactly(told)):
        checkpoint.gather(old, new, progress=lambda done, total: new.mkdir(exist_ok=True))
    assert list(new.iterdir()) == []
    assert sorted(tmp_path.iterdir()) == [new, old]


def test_what_lies_beside_the_target_is_not_touched(tmp_path: Path) -> None:
    """Links and folders with names like those of unfinished ones; one of them is the source."""
    old, new, elsewhere = whole(tmp_path / "new.partial"), tmp_path / "new", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "model.safetensors").write_text("mine")
    (tmp_path / "new.0.partial").symlink_to(elsewhere)
    before = contents(tmp_path)
    checkpoint.gather(old, new)
    shutil.rmtree(new)
    assert contents(tmp_path) == before
    assert os.listdir(elsewhere) == ["model.safetensors"]


def test_nobody_else_can_look_into_an_unfinished_one(tmp_path: Path) -> None:
    old, new, modes = whole(tmp_path / "old"), tmp_path / "new", set()

    def progress(done: int, total: int) -> None:
        modes.update(path.stat().st_mode & 0o777 for path in unfinished(new))

    checkpoint.gather(old, new, progress=progress)
    assert modes == {0o700}
    assert new.stat().st_mode & 0o777 == old.stat().st_mode & 0o777


@pytest.mark.parametrize("name", ["new", "deep/new", "../old/new"])
def test_a_target_inside_the_source(tmp_path: Path, name: str) -> None:
    old = whole(tmp_path / "old")
    before = contents(old)
    told = (
        f"{old / name} lies inside the source {old}\n"
        f"  why  the folder of a checkpoint is left as it is\n  try  a folder beside {old}"
    )
    with pytest.raises(CheckpointError, match=exactly(told)):
        checkpoint.shard(old, old / name, tp=2)
    assert contents(old) == before
    (tmp_path / "link").symlink_to(old)
    with pytest.raises(CheckpointError, match=r"link/new lies inside the source .+old\n"):
        checkpoint.shard(old, tmp_path / "link" / "new", tp=2)


def test_a_source_that_changes_while_it_is_read(tmp_path: Path) -> None:
    old, new = whole(tmp_path / "old"), tmp_path / "new"
    file = old / "model.safetensors"
    told = "the source was changed while it was read\n  try  the command again"
    with pytest.raises(CheckpointError, match=exactly(told)):
        checkpoint.gather(old, new, progress=lambda done, total: os.utime(file, ns=(done, done)))
    with pytest.raises(CheckpointError, match=exactly("model.safetensors became shorter while it was read")):
        checkpoint.gather(old, new, progress=lambda done, total: os.truncate(file, 3000))
    assert list(tmp_path.iterdir()) == [old]


def test_a_source_cut_short_while_it_is_read(tmp_path: Path) -> None:
    """What was read stays readable: a mapped file would end the process by SIGBUS."""
    file = tmp_path / "w.safetensors"
    safetensors.lay_out_safetensors(file, {"w": ("F32", (1024, 4096))})
    stored = safetensors.read_safetensors(file)["w"]
    piece = stored.read()
    os.truncate(file, 4096)
    assert int(piece.sum()) == 0
    with pytest.raises(CheckpointError, match=exactly("w.safetensors became shorter while it was read")):
        stored.read()
    file.unlink()
    with pytest.raises(CheckpointError, match=r"w\.safetensors: No such file or directory\Z"):
        stored.read()


def test_a_tensor_of_holes_is_not_read(tmp_path: Path) -> None:
    """A few bytes on the disk that stand for a terabyte."""
    file = tmp_path / "w.safetensors"
    safetensors.lay_out_safetensors(file, {"w": ("F32", (2**20, 2**18))})
    told = "w.safetensors: w has 1,099,511,627,776 bytes\n  why  at most 8,589,934,592 are read"
    with pytest.raises(CheckpointError, match=exactly(told)):
        safetensors.read_safetensors(file)["w"].read()


# -- damaged files -----------------------------------------------------------------------------------


def foreign_meta(folder: Path) -> Path:
    checkpoint.shard(whole(folder.with_name("w")), folder.with_name("c"), **META)
    shards = [dict(load(file)) for file in sorted(folder.with_name("c").glob("*.pth"))]
    return save_meta(folder, MODEL, shards)


def own_hf(folder: Path) -> Path:
    return checkpoint.shard(whole(folder.with_name("w")), folder, tp=2, padding="megatron").path


def own_meta(folder: Path) -> Path:
    return checkpoint.shard(whole(folder.with_name("w")), folder, **META).path


KINDS = {"foreign hf": whole, "foreign meta": foreign_meta, "own hf": own_hf, "own meta": own_meta}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """A checkpoint of each kind that is written or read, freshly made."""
    return request.param, KINDS[request.param](tmp_path / "it")


def tensor_files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix in (".pth", ".safetensors"))


def test_cut_short(kind: tuple[str, Path], tmp_path: Path) -> None:
    _, folder = kind
    file = tensor_files(folder)[-1]
    data = file.read_bytes()
    for size in (0, 1, 8, 100, len(data) // 2, len(data) - 4096, len(data) - 1):
        file.write_bytes(data[:size])
        for call in (lambda: checkpoint.gather(folder, tmp_path / "new"), lambda: checkpoint.verify(folder)):
            with pytest.raises(CheckpointError, match=re.escape(file.name)):
                call()
    file.write_bytes(data + b"\0")
    with pytest.raises(CheckpointError, match=re.escape(file.name)):
        checkpoint.gather(folder, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert not unfinished(tmp_path / "new")


def test_a_file_that_is_missing(kind: tuple[str, Path], tmp_path: Path) -> None:
    name, folder = kind
    tensor_files(folder)[0].unlink()
    listed = "which is not there\n  why  a checkpoint's files lie in its own folder, " + str(folder)
    told = {
        "foreign hf": f"{folder} holds no checkpoint\n  why  looked for: llamapar.json, "
        "model.safetensors.index.json, consolidated.00.pth, .safetensors and .pth files",
        "foreign meta": "consolidated.00.pth is missing: 1 shards are there, the last is 01\n"
        f"  why  all of them are looked for in {folder}",
        "own hf": f"llamapar.json names the file 'tp00-pp00.safetensors', {listed}",
        "own meta": f"llamapar.json names the file 'consolidated.00.pth', {listed}",
    }
    with pytest.raises(CheckpointError, match=exactly(told[name])):
        checkpoint.gather(folder, tmp_path / "new")


LIMITED = """
import resource, sys
sys.path.insert(0, sys.argv[1])
import torch
import llamapar.checkpoint  # what libraries take when they are imported is not what is limited here
with open("/proc/self/statm") as pages:
    now = int(pages.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + 2**28, now + 2**28))
from llamapar.cli.main import main
sys.exit(main(["checkpoint", "inspect", sys.argv[2]]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_AS and /proc are Linux's")
@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "consolidated.999999999.pth",
            "consolidated.00.pth is missing: 1 shards are there, the last is 999999999",
        ),
        (f"consolidated.{'9' * 200}.pth", "consolidated.00.pth is missing: 1 shards are there"),
        ("model-00001-of-99999.safetensors", "model-00001-of-99999.safetensors"),
        ("__999999999_999999999.distcp", "holds no checkpoint"),
    ],
)
def test_a_number_in_a_name_takes_no_memory(tmp_path: Path, name: str, told: str) -> None:
    (tmp_path / name).touch()
    command = [sys.executable, "-c", LIMITED, str(PROJECT), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    message = " ".join(done.stderr.split())  # the command breaks its lines
    assert message.startswith("llamapar: ")
    assert told in message


def same_json(a: bytes, b: bytes) -> bool:
    try:
        return bool(json.loads(a) == json.loads(b))
    except ValueError:
        return False


def said(call: Callable[[], str]) -> str:
    """What a call returns, or its refusal."""
    try:
        return call()
    except LlamaparError as problem:
        return str(problem)


def test_a_flipped_bit_is_found_wherever_it_is(
    kind: tuple[str, Path], tmp_path: Path, counts: Callable[[int, int, int], int]
) -> None:
    """Refused by gather or by verify, or without any meaning: then the result is right all the same."""
    name, folder = kind
    checkpoint.gather(folder, tmp_path / "reference")
    reference = contents(tmp_path / "reference")
    places, times = random.Random(name), counts(5, 20, 300)
    found = {"gather": 0, "verify": 0, "harmless": 0}
    files = [p for p in sorted(folder.iterdir()) if name.startswith("own") or p in tensor_files(folder)]
    for file in files:
        data, header = file.read_bytes(), len(file.read_bytes()) // 8
        spots = [places.randrange(len(data)) for _ in range(times)]
        spots += [places.randrange(min(header, 1500)) for _ in range(times)]
        spots += [len(data) - 1 - places.randrange(min(header, 1500)) for _ in range(times)]
        for at in spots:
            bad = bytearray(data)
            bad[at] ^= 1 << places.randrange(8)
            if file.suffix == ".json" and same_json(bytes(bad), data):
                continue
            file.write_bytes(bad)
            shutil.rmtree(tmp_path / "new", ignore_errors=True)
            problems = said(lambda: "\n".join(checkpoint.verify(folder).problems))
            refused = said(lambda: str(checkpoint.gather(folder, tmp_path / "new")) and "")
            if refused:
                assert re.search(rf"{re.escape(file.name)}|layers\.|norm|embed|output", refused), at
                assert problems, at
                found["gather"] += 1
                continue
            if problems:
                assert file.name in problems, at
                found["verify"] += 1
            elif contents(tmp_path / "new") == reference:
                assert not name.startswith("own"), (file.name, at)  # there every bit is vouched for
                found["harmless"] += 1
            else:  # bytes of a plain safetensors file, which has no checksum
                assert name == "foreign hf", (file.name, at)
                against = checkpoint.verify(folder, against=tmp_path / "reference")
                assert len(against.problems) == 1
                assert against.problems[0].startswith("model.safetensors: ")
                found["verify"] += 1
        file.write_bytes(data)
    assert found["gather"] >= 5, found
    assert checkpoint.verify(folder).ok


def test_what_verify_says_of_damage(tmp_path: Path) -> None:
    folder = own_hf(tmp_path / "it")
    file = folder / "tp01-pp00.safetensors"
    stored = safetensors.read_safetensors(file)["model.layers.1.mlp.down_proj.weight"]
    flip(file, stored.offset + 3, bit=2)
    told = f"{file.name} is not as it was written, llamapar.json says"
    found = checkpoint.verify(folder)
    assert found.problems == (told,)
    assert str(found).splitlines()[0] == "it has 1 fault"
    damaged = f"{told}\n  why  the file is damaged\n  try  another copy of it"
    with pytest.raises(CheckpointError, match=exactly(damaged)):
        checkpoint.gather(folder, tmp_path / "new")
    against = checkpoint.verify(folder, against=tmp_path / "w")
    assert against.problems[1:] == (f"{file.name}: {stored.name} differs from row 0 on",)


def test_what_verify_says_of_a_damaged_file_of_torch(tmp_path: Path) -> None:
    """torch.save keeps a checksum of each tensor, and torch.load does not look at it."""
    folder = foreign_meta(tmp_path / "it")
    file = folder / "consolidated.01.pth"
    stored = pth.read_pth(file)["layers.1.feed_forward.w2.weight"]
    crc = zlib.crc32(stored.read())
    flip(file, stored.offset + 3, bit=2)
    told = f"{file.name}: the bytes of {stored.name} are not those that were written"
    assert checkpoint.verify(folder).problems == (told,)
    damaged = f"{told}\n  why  their crc32 is not the stored {crc:08x}; the file is damaged"
    with pytest.raises(CheckpointError, match=exactly(damaged)):
        checkpoint.gather(folder, tmp_path / "new")


# -- files that do not belong together ---------------------------------------------------------------


def test_a_shard_of_another_step(tmp_path: Path) -> None:
    folder = foreign_meta(tmp_path / "it")
    later = save_hf(tmp_path / "later", MODEL, values(MODEL, seed=1))
    checkpoint.shard(later, tmp_path / "later cut", **META)
    shutil.copy(tmp_path / "later cut" / "consolidated.01.pth", folder / "consolidated.01.pth")
    told = (
        r"\A(layers\.[01]\.(attention|ffn)_)?norm\.weight: the copies in consolidated\.00\.pth and "
        r"consolidated\.01\.pth differ\n  why  ranks that replicate a "
        r"tensor must hold the same bytes; a file is of another step or damaged, or KV heads lie as "
        r"0, 1, …, 0, 1, … and not as 0, 0, 1, 1, …\Z"
    )
    with pytest.raises(CheckpointError, match=told):
        checkpoint.gather(folder, tmp_path / "new")
    assert len(checkpoint.verify(folder).problems) == 5  # the norms
    own = own_meta(tmp_path / "own" / "it")
    shutil.copy(tmp_path / "later cut" / "consolidated.01.pth", own / "consolidated.01.pth")
    with pytest.raises(CheckpointError, match=r"\Aconsolidated\.01\.pth is not as it was written, "):
        checkpoint.gather(own, tmp_path / "new own")


def test_shards_of_two_dtypes(tmp_path: Path) -> None:
    folder = foreign_meta(tmp_path / "it")
    held = dict(load(folder / "consolidated.01.pth"))
    held["layers.0.feed_forward.w1.weight"] = held["layers.0.feed_forward.w1.weight"].half()
    torch.save(held, folder / "consolidated.01.pth")
    told = (
        "layers.0.feed_forward.w1.weight is BF16 in consolidated.00.pth and F16 in consolidated.01.pth\n"
        "  why  shards of one tensor have one dtype"
    )
    with pytest.raises(CheckpointError, match=exactly(told)):
        checkpoint.gather(folder, tmp_path / "new")


def shaped(folder: Path, model: ModelConfig, shapes: dict[str, tuple[int, ...] | None]) -> Path:
    """A Hugging Face folder without data, some shapes changed (None: left out)."""
    folder.mkdir()
    every: dict[str, tuple[int, ...] | None] = {p.hf_name: p.shape for p in model.parameters()}
    held = {n: ("BF16", shape) for n, shape in (every | shapes).items() if shape is not None}
    safetensors.lay_out_safetensors(folder / "model.safetensors", held)
    (folder / "config.json").write_text(json.dumps(config_json(model)))
    return folder


EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
K, DOWN = "model.layers.{}.self_attn.k_proj.weight", "model.layers.3.mlp.down_proj.weight"
PADDED = "it is one of 8 shards of a vocabulary padded to 128512 = 64·8·251, not the whole"
BIG: list[tuple[str, tuple[int, ...], str]] = [
    (EMBEDDING, (16064, 8192), f"[128256, 8192] is needed: {PADDED} embedding"),
    (HEAD, (16064, 8192), f"[128256, 8192] is needed: {PADDED} head"),
    (
        EMBEDDING,
        (32064, 8192),
        "[128256, 8192] is needed: it is one of 4 shards of 128256 rows, not the whole embedding",
    ),
    (
        EMBEDDING,
        (128512, 8192),
        "[128256, 8192] is needed: a vocabulary padded to 128512 = 128·4·251, of which the last 256 rows "
        "stand for no token",
    ),
    (
        EMBEDDING,
        (16064, 65536),
        "[128256, 8192] is needed: 8 shards of 16064 rows were joined along dim 1; along dim 0 they are "
        "128512 rows",
    ),
    (EMBEDDING, (8192, 128256), "[128256, 8192] is needed: the tensor is transposed"),
    (
        K,
        (128, 8192),
        "[1024, 8192] is needed (and 79 alike): it is one of 8 shards of 1024 rows, not the whole tensor",
    ),
    (
        DOWN,
        (65536, 3584),
        "[8192, 28672] is needed: 8 shards of 3584 columns were joined along dim 0; along dim 1 they are "
        "28672 columns",
    ),
    (NORM, (4096,), "[8192] is needed: a size of another model, or of another config"),
]
OTHER = "layers.1.self_attn.k_proj.weight"
SHAPES: list[tuple[str, dict[str, tuple[int, ...] | None], str]] = [
    *(
        (
            "llama3.1-70b",
            {name.format(i): shape for i in range(80)},
            f"{name.format(0)} is {list(shape)} in model.safetensors, {why}",
        )
        for name, shape, why in BIG
    ),
    (
        "tiny",
        dict.fromkeys(("model.layers.2.mlp.up_proj.weight", "model.layers.3.mlp.up_proj.weight")),
        "layers 2–3: tensors are missing (2 in all; the config counts 4 layers)",
    ),
    ("tiny", {NORM: None}, f"{NORM} is missing in model.safetensors, [128] is needed"),
    (
        "tiny",
        {"model.layers.4.input_layernorm.weight": (128,)},
        "layer 4 beyond the config's n_layers=4 (1 tensors)",
    ),
    (
        "tiny",
        {OTHER: (64, 128), f"module.model.{OTHER}": (64, 128)},
        "layer 1: tensors of another name, or that stand twice (2 in all)",
    ),
    (
        "tiny",
        {"visual.patch.weight": (3, 5)},
        "visual.patch.weight [3, 5] in model.safetensors is no tensor of this model",
    ),
]


@pytest.mark.parametrize(("name", "shapes", "told"), SHAPES, ids=[f"{i}" for i in range(len(SHAPES))])
def test_shapes_that_do_not_agree(
    tmp_path: Path, name: str, shapes: dict[str, tuple[int, ...] | None], told: str
) -> None:
    folder = shaped(tmp_path / "it", lp.model(name), shapes)
    found = checkpoint.inspect(folder)
    assert not found.ok
    assert found.findings == (told,)
    with pytest.raises(CheckpointError, match=r"it does not agree with its config: "):
        checkpoint.gather(folder, tmp_path / "new")
    assert list(tmp_path.iterdir()) == [folder]


def test_a_config_that_disagrees(tmp_path: Path) -> None:
    folder = whole(tmp_path / "it")
    (folder / "config.json").write_text(json.dumps(config_json(MODEL.replace(n_layers=3))))
    assert checkpoint.inspect(folder).findings == (
        "layer 2: tensors are missing (9 in all; the config counts 3 layers)",
    )
    own = own_hf(tmp_path / "own" / "it")
    found = checkpoint.inspect(own, model=MODEL.replace(n_layers=1))
    assert not found.ok
    assert found.findings == ("layer 1 beyond the config's n_layers=1 (18 tensors)",)
    (folder / "config.json").unlink()
    told = (
        f"no config beside {folder}\n  why  names and cuts follow from the model's dimensions\n"
        "  try  model='llama3.1-8b', or a config.json or params.json in the folder"
    )
    with pytest.raises(CheckpointError, match=exactly(told)):
        checkpoint.gather(folder, tmp_path / "new")


# -- files made to do harm ---------------------------------------------------------------------------


def indexed(folder: Path, name: Any) -> Path:
    whole(folder)
    listed = dict.fromkeys(values(MODEL), "model.safetensors") | {EMBEDDING: name}
    (folder / safetensors.INDEX).write_text(json.dumps({"weight_map": listed}))
    return folder


PATHS = ("../secret.safetensors", "/etc/passwd", "a/../x.safetensors", "..", ".", "", "x\0.safetensors", 5)


@pytest.mark.parametrize("name", PATHS)
def test_paths_in_an_index_stay_inside(tmp_path: Path, name: Any) -> None:
    save_file(values(MODEL), tmp_path / "secret.safetensors")
    told = (
        f"model.safetensors.index.json names the file {str(name)!r}, which is not there\n"
        f"  why  a checkpoint's files lie in its own folder, {tmp_path / 'it'}"
    )
    with pytest.raises(CheckpointError, match=exactly(told)):
        checkpoint.inspect(indexed(tmp_path / "it", name))


def test_an_index_and_its_files(tmp_path: Path) -> None:
    folder = indexed(tmp_path / "it", "missing.safetensors")
    told = (
        "model.safetensors.index.json names the file 'missing.safetensors', which is not there\n"
        f"  why  a checkpoint's files lie in its own folder, {folder}"
    )
    with pytest.raises(CheckpointError, match=exactly(told)):
        checkpoint.inspect(folder)
    # links out of the folder are how a cache of downloads is laid out
    (folder / "model.safetensors").rename(tmp_path / "blob")
    (folder / "model.safetensors").symlink_to(tmp_path / "blob")
    listed = dict.fromkeys(values(MODEL), "model.safetensors")
    (folder / safetensors.INDEX).write_text(json.dumps({"weight_map": listed}))
    checkpoint.gather(folder, tmp_path / "new")
    assert alike(together(tmp_path / "new"), values(MODEL))
    for changed, told in (
        (
            {"weight_map": listed | {"more": "model.safetensors"}},
            "model.safetensors.index.json: more of model.safetensors is not in the file",
        ),
        (
            {"weight_map": {n: f for n, f in listed.items() if n != EMBEDDING}},
            "model.embed_tokens.weight of model.safetensors is not in the index",
        ),
        ({"weight_map": []}, "model.safetensors.index.json has no weight_map"),
        ({}, "model.safetensors.index.json has no weight_map"),
        ({"weight_map": {"a": {}}}, "names the file '{}'"),
        ([], "model.safetensors.index.json holds list, not an object"),
    ):
        (folder / safetensors.INDEX).write_text(json.dumps(changed))
        with pytest.raises(LlamaparError, match=re.escape(told)):
            checkpoint.inspect(folder)
    for text in (b"\xff\xfe", b"[" * 100_000, b"9" * 5000, b'{"weight_map": ' + b"[" * 5000):
        (folder / safetensors.INDEX).write_bytes(text)
        with pytest.raises(LlamaparError, match=r"\Amodel\.safetensors\.index\.json (is|holds) "):
            checkpoint.inspect(folder)
    with (folder / safetensors.INDEX).open("wb") as file:
        file.truncate(10**12)
    told = "model.safetensors.index.json holds 1,000,000,000,000 bytes\n  why  at most 67,108,864 are read"
    with pytest.raises(CheckpointError, match=exactly(told)):
        checkpoint.inspect(folder)


def one(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
REFUSES = "x.safetensors: safetensors refuses it: Error while deserializing header: "
HEADERS: list[tuple[bytes, str]] = [
    (b"", f"{REFUSES}header too small"),
    (struct.pack("<Q", 2**63), f"{REFUSES}header too large"),
    (one(b"[" * 10_000), f"{REFUSES}invalid JSON in header"),
    (one({"a": F32 | {"shape": [2**63, 2**63]}}), f"{REFUSES}overflow computing buffer size"),
    (one({"a": F32, "b": F32}, b"12345678"), f"{REFUSES}invalid offset for tensor `"),
    (one({"a": F32}, b"123456789"), f"{REFUSES}incomplete metadata, file not fully covered"),
    (one({"a": F32 | {"dtype": "F4", "shape": [16]}}, b"12345678"), "x.safetensors: a has dtype 'F4'"),
    (
        one({"a": F32 | {"shape": [1] * 9, "data_offsets": [0, 4]}}, b"1234"),
        "x.safetensors: a has the impossible shape [1, 1, 1, 1, 1, 1, 1, 1, 1]\n  why  at most 8 dims",
    ),
    (one({"\x1b[31m": F32}, b"12345678"), "the name '\\x1b[31m' is no plain text"),
]
"""Of what the package refuses one of each kind; the last three are ours."""


def test_a_name_that_stands_twice_hides_nothing(tmp_path: Path) -> None:
    """The package keeps the last one, and refuses a file of which it does not cover every byte."""
    entry = '{"dtype": "F32", "shape": [2], "data_offsets": [%d, %d]}'
    header = f'{{"a": {entry % (0, 8)}, "a": {entry % (8, 16)}}}'
    (tmp_path / "x.safetensors").write_bytes(one(header.encode(), b"12345678" * 2))
    with pytest.raises(CheckpointError, match=re.escape(f"{REFUSES}invalid offset for tensor `a`")):
        checkpoint.inspect(tmp_path / "x.safetensors", model="tiny")


def of_names(folder: Path, names: list[str]) -> Path:
    """A file of tensors without elements."""
    folder.mkdir()
    safetensors.lay_out_safetensors(folder / "model.safetensors", dict.fromkeys(names, ("F32", (0,))))
    return folder / "model.safetensors"


def test_a_name_as_long_as_a_book(tmp_path: Path) -> None:
    file = of_names(tmp_path / "old", ["module." * 200_000])
    with pytest.raises(CheckpointError, match=r"^.{100,300} is no plain text\n  why  .{10,80}\Z"):
        checkpoint.inspect(file)


def test_a_header_of_many_strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many names no model has: they are looked at once, not under each way to cut a model."""
    file = of_names(tmp_path / "old", [f"odd.x{i}.w" for i in range(5000)])
    asked = []
    right = source.unwrapped
    monkeypatch.setattr(source, "unwrapped", lambda name, known: (asked.append(name), right(name, known))[1])
    found = checkpoint.inspect(file, model="llama3.2-1b")
    assert len(asked) <= 2 * 5000
    assert len(found.findings) <= 105
    assert found.findings[-1] == "4,902 more kinds of tensors do not agree with the model"
    assert len(str(found)) < 20_000


def test_a_header_of_many_names_is_read_without_a_search_for_circles(tmp_path: Path) -> None:
    """Python's collector looks at all objects again and again while they are made: half of the time."""
    file = of_names(tmp_path / "old", [f"model.layers.{i}.x" for i in range(20_000)])
    begun = []

    def note(phase: str, info: dict[str, int]) -> None:
        begun.append(info["generation"])

    gc.callbacks.append(note)
    try:
        found = checkpoint.inspect(file, model="llama3.2-1b")
        during = len(begun)
    finally:
        gc.callbacks.remove(note)
    assert len(found.checkpoint.shards[0, 0]) == 20_000
    assert during < 20  # about a thousand otherwise: one for each 700 objects
    assert gc.isenabled()


@pytest.mark.parametrize(("data", "told"), HEADERS, ids=[str(i) for i in range(len(HEADERS))])
def test_headers_that_lie(tmp_path: Path, data: bytes, told: str) -> None:
    (tmp_path / "x.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match=re.escape(told)):
        checkpoint.inspect(tmp_path / "x.safetensors", model="tiny")


def manifests() -> dict[str, Callable[[dict[str, Any]], Any]]:
    def other(**changes: Any) -> Callable[[dict[str, Any]], Any]:
        return lambda m: m | {"sharding": m["sharding"] | changes}

    return {
        "no sharding": lambda m: m | {"sharding": None},
        "empty": lambda m: {},
        "a million ranks": other(tp=2**20, pp=2**20),
        "a rank": other(tp=1),
        "three ranks": other(tp=3),
        "a text": other(tp="2"),
        "another split": other(layer_split="odd"),
        "another family": other(naming="gguf"),
        "no files": lambda m: m | {"files": {}},
        "a list": lambda m: m | {"files": [1, 2]},
        "a path": lambda m: m | {"files": {f"../it/{n}": e for n, e in m["files"].items()}},
        "another sum": lambda m: m | {"files": dict.fromkeys(m["files"], 7)},
        "no sums": lambda m: m | {"files": dict.fromkeys(m["files"])},
        "model": other(model=5),
        "wide": lambda m: other(model=m["sharding"]["model"] | {"dim": 10**30})(m),
    }


@pytest.mark.parametrize("name", manifests())
def test_manifests_that_lie(tmp_path: Path, name: str) -> None:
    folder = own_hf(tmp_path / "it")
    manifest = json.loads((folder / source.MANIFEST).read_text())
    del manifest["crc32"]
    (folder / source.MANIFEST).write_bytes(source.with_checksum(manifests()[name](manifest)))
    with pytest.raises(LlamaparError, match=r"llamapar\.json|is not tiny|tp\d\d-pp00"):
        checkpoint.gather(folder, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("code", [b"N", b"}", b"]"])
def test_opcodes_take_little(code: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten million are refused, and what was read until then took a few bytes for each."""
    assert pickles.MAX_STEPS < 10**7
    monkeypatch.setattr(pickles, "MAX_STEPS", 10**5)
    data = b"\x80\x02" + code * 10**5 + b"."
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=r"^it: its pickle takes more than 100,000 steps\Z"):
        pickles.load_pickle(data, set(), "it", storages=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6e5
