"""Checkpoints killed, interrupted, out of disk, damaged, mixed up: told by name, and the old one is whole."""

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
from pathlib import Path

import psutil
import pytest

from inputs import few
from llamapar import LlamaparError, checkpoint
from llamapar.checkpoint import CheckpointError, safetensors, source
from llamapar.describe import pickles
from weights import alike, contents, exactly, load, save_hf, save_meta, tiny, together, values

PROJECT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.usefixtures("no_ranks_left")
MODEL = tiny()
CUT = {"tp": 4, "padding": "colossalai", "pp": 2}
META = {"tp": 2, "padding": "megatron", "format": "meta"}


def whole(folder):
    return save_hf(folder, MODEL)


def times(folder):
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

    def __init__(self, room):
        self.told = room / "told"
        code = SERVER.format(root=str(PROJECT), warm=room / "warm.pth")
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def _asked(self, line):
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def start(self, *words, slow=0.0005, limit=0):
        """The id of the process that runs the command; `end` waits for it."""
        job = {"words": [str(w) for w in words], "slow": slow, "limit": limit, "told": str(self.told)}
        return self._asked(json.dumps(job))

    def end(self):
        """The exit status of the command (-9 where it was killed), and all that it said."""
        return self._asked("end"), self.told.read_text()

    def close(self):
        self._process.communicate()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = Server(tmp_path_factory.mktemp("server"))
    yield made
    made.close()


def words(source, target, options):
    given = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
    return ["checkpoint", "reshard", source, target, *given]


def running(process):
    """Whether the command still runs; its id stays its own until the server is asked for its end."""
    return psutil.Process(process).status() != psutil.STATUS_ZOMBIE


def unfinished(new):
    """The temporary folders beside a target."""
    return [path for path in new.parent.iterdir() if path.name.startswith(f"{new.name}.")]


def begun(process, server, new):
    """Waits until the command has a temporary folder."""
    while not unfinished(new):
        assert running(process) or new.exists(), server.end()
        time.sleep(0.0005)


BEGUN = "llamapar: writing {}; if it is interrupted, it starts over\n"


@pytest.mark.parametrize("options", [pytest.param(CUT, marks=pytest.mark.soak), META])
def test_killed_at_any_moment(server, tmp_path, soak, options):
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


def test_interrupted(server, tmp_path):
    old, new = whole(tmp_path / "old"), tmp_path / "new"
    child = server.start(*words(old, new, CUT), slow=0.05)
    begun(child, server, new)
    time.sleep(0.1)
    os.kill(child, signal.SIGINT)
    assert server.end() == (130, f"{BEGUN.format(new)}\nllamapar: interrupted; nothing is kept\n")
    assert list(tmp_path.iterdir()) == [old]
    checkpoint.shard(old, new, **CUT)
    assert checkpoint.verify(new, against=old).ok


def test_two_at_once(server, tmp_path):
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


def test_what_the_disk_gives_back_is_compared(tmp_path, monkeypatch):
    """A disk that changes one bit of what it is given."""
    old, opened = whole(tmp_path / "old"), Path.open

    class Faulty(io.FileIO):
        def write(self, data):
            wrong = bytearray(data)
            wrong[-1] ^= 1
            return super().write(wrong)

    def faulty(path, mode="r", *args, **kwargs):
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


def test_a_disk_that_is_too_small(tmp_path, monkeypatch):
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
def test_a_disk_that_becomes_full(tmp_path, monkeypatch, form):
    old, before, room = whole(tmp_path / "old"), contents(tmp_path / "old"), [20_000]

    class Full(io.FileIO):
        def write(self, data):
            room[0] -= len(data)
            if room[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(data)

    opened = Path.open

    def full(path, mode="r", *args, **kwargs):
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


def test_a_target_that_cannot_be_made(tmp_path):
    old = whole(tmp_path / "old")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CheckpointError, match=r"/file: File exists\Z"):
        checkpoint.gather(old, tmp_path / "file" / "new")
    with pytest.raises(CheckpointError, match=r"^/proc/new\..+\.partial: No such file or directory\Z"):
        checkpoint.gather(old, "/proc/new")


def test_what_lies_beside_the_target_is_not_touched(tmp_path):
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


def test_nobody_else_can_look_into_an_unfinished_one(tmp_path):
    old, new, modes = whole(tmp_path / "old"), tmp_path / "new", set()

    def progress(done, total):
        modes.update(path.stat().st_mode & 0o777 for path in unfinished(new))

    checkpoint.gather(old, new, progress=progress)
    assert modes == {0o700}
    assert new.stat().st_mode & 0o777 == old.stat().st_mode & 0o777


# -- damaged files -----------------------------------------------------------------------------------


def foreign_meta(folder):
    checkpoint.shard(whole(folder.with_name("w")), folder.with_name("c"), **META)
    shards = [dict(load(file)) for file in sorted(folder.with_name("c").glob("*.pth"))]
    return save_meta(folder, MODEL, shards)


def own_hf(folder):
    return checkpoint.shard(whole(folder.with_name("w")), folder, tp=2, padding="megatron").path


def own_meta(folder):
    return checkpoint.shard(whole(folder.with_name("w")), folder, **META).path


KINDS = {"foreign hf": whole, "foreign meta": foreign_meta, "own hf": own_hf, "own meta": own_meta}


@pytest.fixture(params=KINDS)
def kind(request, tmp_path):
    """A checkpoint of each kind that is written or read, freshly made."""
    return request.param, KINDS[request.param](tmp_path / "it")


def tensor_files(folder):
    return sorted(p for p in folder.iterdir() if p.suffix in (".pth", ".safetensors"))


def test_cut_short(kind, tmp_path):
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


NUMBERED = {
    "consolidated.999999999.pth": "consolidated.00.pth is missing: 1 shards are there, the last is 999999999",
    f"consolidated.{'9' * 200}.pth": "consolidated.00.pth is missing: 1 shards are there",
    "model-00001-of-99999.safetensors": "model-00001-of-99999.safetensors",
    "__999999999_999999999.distcp": "holds no checkpoint",
}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_AS and /proc are Linux's")
@pytest.mark.parametrize("name", few(NUMBERED, 1))
def test_a_number_in_a_name_takes_no_memory(tmp_path, name):
    (tmp_path / name).touch()
    command = [sys.executable, "-c", LIMITED, str(PROJECT), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    message = " ".join(done.stderr.split())  # the command breaks its lines
    assert message.startswith("llamapar: ")
    assert NUMBERED[name] in message


def same_json(a, b):
    try:
        return bool(json.loads(a) == json.loads(b))
    except ValueError:
        return False


def said(call):
    """What a call returns, or its refusal."""
    try:
        return call()
    except LlamaparError as problem:
        return str(problem)


def test_a_flipped_bit_is_found_wherever_it_is(kind, tmp_path, counts):
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


# -- files that do not belong together ---------------------------------------------------------------


def test_a_shard_of_another_step(tmp_path):
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


# -- files made to do harm ---------------------------------------------------------------------------


def one(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def of_names(folder, names):
    """A file of tensors without elements."""
    folder.mkdir()
    safetensors.lay_out_safetensors(folder / "model.safetensors", dict.fromkeys(names, ("F32", (0,))))
    return folder / "model.safetensors"


def test_a_header_of_many_strangers(tmp_path, monkeypatch):
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


def test_a_header_of_many_names_is_read_without_a_search_for_circles(tmp_path):
    """Python's collector looks at all objects again and again while they are made: half of the time."""
    file = of_names(tmp_path / "old", [f"model.layers.{i}.x" for i in range(20_000)])
    begun = []

    def note(phase, info):
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


@pytest.mark.parametrize("code", [b"N", b"}", b"]"])
def test_opcodes_take_little(code, monkeypatch):
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
