"""Torch's zip files: what is read is what torch wrote, what is laid out is what torch reads, and no trust."""

import os
import pickle
import pickletools
import random
import re
import struct
import tracemalloc
import warnings
import zipfile
import zlib
from collections import OrderedDict
from pathlib import Path

import pytest
import torch

from inputs import Evil
from llamapar.checkpoint import pth
from llamapar.checkpoint.stored import CheckpointError
from llamapar.describe import pickles
from weights import raw as bits

FP8 = torch.float8_e4m3fn
HERE = Path(__file__).resolve().parent


def some(generator=0):
    """A state dict of several dtypes and ranks, with what a person's file may hold besides."""
    seeded = torch.Generator().manual_seed(generator)
    a = torch.randn(3, 5, generator=seeded)
    return {
        "a": a,
        "bf16": torch.randn(4, 7, generator=seeded).bfloat16(),
        "fp8": torch.randn(6, generator=seeded).to(FP8),
        "u16": torch.arange(9).to(torch.uint16),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(2.5),
        "ints": torch.arange(6).reshape(2, 3),
        "parameter": torch.nn.Parameter(torch.ones(2, 2)),
        "tied": a,
        "later rows": a[1:],
        "step": 17,
        "note": "saved at night",
    }


def saved(path, value):
    torch.save(value, path)
    return path


def raw(stored):
    return stored.read().tobytes()


def refusal(path):
    with pytest.raises(CheckpointError, match=re.escape(path.name)) as caught:
        pth.read_pth(path)
    return str(caught.value).replace(str(path), "FILE")


# -- reading ---------------------------------------------------------------------------------------


def test_what_torch_wrote_is_read(tmp_path):
    state = some()
    found = pth.read_pth(saved(tmp_path / "a.pth", state))
    tensors = {name: t for name, t in state.items() if isinstance(t, torch.Tensor)}
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert (pth.DTYPES[str(tensor.dtype)], tuple(tensor.shape)) == (found[name].dtype, found[name].shape)
        if tensor.numel():
            assert raw(found[name]) == bits(tensor)
    assert found["tied"].place == found["a"].place
    assert found["a"].crc32 == zlib.crc32(bits(state["a"]))
    assert found["later rows"].crc32 is None, "the checksum is that of all rows"


def test_a_checksum_that_was_not_computed_is_not_known(tmp_path):
    from torch.serialization import set_crc32_options

    set_crc32_options(False)
    try:
        path = saved(tmp_path / "a.pth", some())
    finally:
        set_crc32_options(True)
    assert {stored.crc32 for stored in pth.read_pth(path).values()} == {None}


def test_a_state_dict_inside_is_found_and_two_are_not_guessed(tmp_path):
    inner = {"w": torch.ones(2)}
    assert list(pth.read_pth(saved(tmp_path / "a.pth", {"model": inner, "step": 3}))) == ["w"]
    module = torch.nn.Linear(2, 3)
    assert list(pth.read_pth(saved(tmp_path / "m.pth", module.state_dict()))) == ["weight", "bias"]
    assert list(pth.read_pth(saved(tmp_path / "o.pth", OrderedDict(inner)))) == ["w"]
    assert refusal(saved(tmp_path / "two.pth", {"model": inner, "ema": inner})) == (
        "FILE holds 2 state dicts: ['model', 'ema']\n  why  save one of them"
    )
    assert refusal(saved(tmp_path / "one.pth", torch.ones(2))) == (
        "FILE holds no state dict\n  why  a dict of names and tensors is needed"
    )


# -- refusals --------------------------------------------------------------------------------------


def rezipped(path, change, **options):
    """The file with its records changed, written again as Python writes zips."""
    out = path.with_name("changed.pth")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w", **options) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return out


def pickled(tmp_path, data):
    base = saved(tmp_path / "a.pth", {"w": torch.ones(4)})
    return rezipped(base, lambda name, old: data if name.endswith("data.pkl") else old)


AGAIN = (
    "FILE is no zip file as torch.save writes it, or it is cut off, or something follows its end\n"
    "  why  torch before 1.6 wrote another format: save it again with torch.save"
)


def test_what_is_no_zip_of_torch(tmp_path):
    old = tmp_path / "old.pth"
    torch.save({"w": torch.ones(2)}, old, _use_new_zipfile_serialization=False)
    assert refusal(old) == AGAIN
    (tmp_path / "none.pth").touch()
    assert refusal(tmp_path / "none.pth") == AGAIN
    assert refusal(tmp_path / "absent.pth") == "FILE is no file, or is not there"
    assert refusal(tmp_path) == "FILE is no file, or is not there"
    os.mkfifo(tmp_path / "pipe.pth")
    assert refusal(tmp_path / "pipe.pth") == "FILE is no file, or is not there"


def test_zips_that_torch_would_not_write(tmp_path):
    path = saved(tmp_path / "a.pth", {"w": torch.zeros(400)})
    packed = rezipped(path, lambda _, old: old, compression=zipfile.ZIP_DEFLATED)
    assert refusal(packed) == "FILE holds 'a/data.pkl' compressed\n  why  torch.save never compresses"
    big = rezipped(path, lambda name, old: b"big" if name.endswith("byteorder") else old)
    assert refusal(big) == "FILE is not little-endian\n  why  its numbers would be read backwards"
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(path, "a") as again:
        again.writestr("a/data/0", b"x" * 1600)
    assert refusal(path) == "FILE holds 'a/data/0' twice, or records that overlap"
    bare = tmp_path / "bare.pth"
    with zipfile.ZipFile(bare, "w") as new:
        new.writestr("a/x", b"")
    assert refusal(bare) == "FILE is a zip file without data.pkl\n  why  torch.save writes one"


def test_a_directory_of_terabytes_is_not_read(tmp_path):
    """A sparse file, whose end says that its directory fills all of it."""
    path, size = tmp_path / "a.pth", 2**42
    with path.open("wb") as out:
        out.truncate(size)
        out.seek(size)
        out.write(struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, size, 0))
        out.write(struct.pack("<4sLQL", b"PK\6\7", 0, size, 1))
        out.write(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, 0xFFFFFFFF, 0xFFFFFFFF, 0))
    tracemalloc.start()
    assert refusal(path) == AGAIN
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_sizes_are_those_of_the_records(tmp_path):
    path = saved(tmp_path / "a.pth", {"w": torch.ones(4)})
    short = rezipped(path, lambda name, old: old[:-4] if name.endswith("data/0") else old)
    assert refusal(short) == "FILE: 'w' takes 16 bytes\n  why  its record in the file has 12"
    more = rezipped(path, lambda n, old: old.replace(b"K\x04\x85", b"K\x09\x85") if "pkl" in n else old)
    assert refusal(more) == "FILE: 'w' takes 36 bytes\n  why  its record in the file has 16"
    none = rezipped(
        path, lambda n, old: old.replace(b"X\x01\0\0\x000", b"X\x01\0\0\x007") if "pkl" in n else old
    )
    assert refusal(none).startswith("FILE: torch.load(weights_only=True) refuses it\n  why  ")
    flipped = bytearray(path.read_bytes())
    flipped[flipped.index(b"storage")] ^= 1
    path.write_bytes(flipped)
    assert refusal(path) == (
        "FILE: its data.pkl is damaged\n  why  its bytes do not have the checksum stored"
    )


def test_a_transposed_view_is_named(tmp_path):
    assert refusal(saved(tmp_path / "a.pth", {"w": torch.ones(4, 3).T})) == (
        "FILE: 'w' is a view with strides [1, 3] of [3, 4]\n"
        "  why  only rows that lie one after another are read; save tensor.contiguous()"
    )


def test_overlapping_records(tmp_path):
    # the header of the second record is put inside the data of the first
    path = tmp_path / "a.pth"
    wide = {"w": torch.zeros(64), "x": torch.ones(4)}
    data = bytearray(saved(path, wide).read_bytes())
    with zipfile.ZipFile(path) as z:
        first, second = z.getinfo("a/data/0"), z.getinfo("a/data/1")
        entry = data.index(b"a/data/1", z.start_dir) - 46
    header = data[second.header_offset : second.header_offset + 30 + len(second.filename)]
    header[28:30] = b"\0\0"
    place = data.index(bytes(256), first.header_offset)
    data[place : place + len(header)] = header
    data[entry + 42 : entry + 46] = struct.pack("<L", place)
    path.write_bytes(data)
    assert refusal(path) == "FILE holds 'a/data/1' twice, or records that overlap"


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_is_executed(tmp_path, protocol):
    path = pickled(tmp_path, pickle.dumps({"w": Evil(tmp_path / "executed")}, protocol))
    assert re.match(
        r"FILE: its pickle (names 'posix.system', which no plain checkpoint holds\n"
        r"  why  nothing that a file names is looked up or executed; only tensors, numbers and text are read"
        r"|holds opcode .*)$",
        refusal(path),
    )
    assert not (tmp_path / "executed").exists()
    with zipfile.ZipFile(path) as z:
        pickle.loads(z.read("a/data.pkl"))  # the trap is real
    assert (tmp_path / "executed").exists()


NESTED = b"\x80\x02)" + b"q\x00h\x00\x86" * 200
BOMBS = {
    "a call that allocates": (
        b"\x80\x02}X\x01\0\0\0wctorch.storage\nUntypedStorage\n\x8a\x06\0\0\0\0\0\x01\x85Rs.",
        "its pickle is damaged",
    ),
    "a bytearray": (
        b"\x80\x02cbuiltins\nbytearray\n\x8a\x06\0\0\0\0\0\x01\x85R.",
        "names 'builtins.bytearray'",
    ),
    "a tuple as a key": (b"\x80\x02}" + NESTED[2:] + b"K\1s.", "has a tuple as a key of a dict"),
    "keys of one hash": (b"\x80\x02}\x8a\x09" + (7 * (2**61 - 1)).to_bytes(9, "little") + b"Ns.", "as a key"),
    "a text beyond the file": (b"\x80\x02X\xff\xff\xff\x7f", "its pickle is damaged"),
    "a long beyond the file": (b"\x80\x02\x8b\xff\xff\xff\x7f", "its pickle is damaged"),
    "a long of another kind": (b"\x80\x02\x8b\1\0\0\0\1.", "holds opcode b'\\x8b'"),
    "a memo of 2**32": (b"\x80\x02}r\xff\xff\xff\xff.", "it numbers a value beyond its length"),
    "half a surrogate pair": (b"\x80\x02}X\x03\0\0\0\xed\xa0\x80K\1s.", "its pickle is damaged"),
    "another name for a class": (
        b"\x80\x02ctorch\nFloatStorage\nN}X\x04\0\0\0nameX\x01\0\0\0xs\x86b.",
        "its pickle is damaged",
    ),
    "a key by attribute": (b"\x80\x02ccollections\nOrderedDict\n)R)Ns.", "has a tuple as a key of a dict"),
    "deep lists": (b"\x80\x02" + b"]" * 2**15 + b"a" * (2**15 - 1) + b".", "holds no state dict"),
    "deep tuples": (b"\x80\x02)" + b"\x85" * 2**17 + b".", "holds no state dict"),
    "sizes again and again": (b"\x80\x02ctorch\nSize\n](" + b"K\1" * 9 + b"e\x85R.", "its pickle is damaged"),
    "another file": (b"\x80\x02U\x01x.", "holds opcode b'U'"),
    "nothing": (b"", "its pickle is damaged"),
    "no end": (b"\x80\x02}", "its pickle is damaged"),
    "too many pops": (b"\x80\x020.", "holds opcode b'0'"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_hostile_pickles(tmp_path, name):
    data, expected = BOMBS[name]
    path = pickled(tmp_path, data)
    tracemalloc.start()
    try:
        assert expected in refusal(path)
        assert tracemalloc.get_traced_memory()[1] < 500 * (len(data) + 2**14)
    finally:
        tracemalloc.stop()


def answers(path, folder):
    """Whether the file is read; what is read lies inside it, and nothing but CheckpointError is raised."""
    try:
        found = pth.read_pth(path)
    except CheckpointError:
        return False
    finally:
        assert sorted(p.name for p in folder.iterdir()) == ["a.pth", "b.pth"]
    for stored in found.values():
        assert 0 <= stored.offset <= stored.offset + stored.nbytes <= path.stat().st_size
    return True


def damaged(data, seeded):
    made = bytearray(data)
    for _ in range(seeded.choice((1, 1, 2, 5))):
        if not made:  # all of it was taken away
            break
        kind, at = seeded.randrange(4), seeded.randrange(len(made))
        if kind < 2:
            made[at] ^= 1 << seeded.randrange(8)
        elif kind == 2:
            made[at] = seeded.choice((0, 1, 0x7F, 0x80, 0xFF))
        else:
            del made[at : at + seeded.choice((1, 4, 100))]
    return bytes(made)


def test_damage_anywhere(tmp_path, counts):
    """Nothing but CheckpointError is raised, and no pickle fills the memory."""
    seeded = random.Random(5)
    saved(tmp_path / "a.pth", some())
    with zipfile.ZipFile(tmp_path / "a.pth") as z:
        records = {name: z.read(name) for name in z.namelist()}
    whole, count = (tmp_path / "a.pth").read_bytes(), counts(150, 400, 20_000)
    path, read = tmp_path / "b.pth", 0
    for _ in range(count):
        path.write_bytes(damaged(whole, seeded))
        read += answers(path, tmp_path)
    pickled = [records["a/data.pkl"]] * 9 + [data for data, _ in BOMBS.values()]
    opcodes = [op.code.encode("latin-1") for op in pickletools.opcodes if op.name in pickles.WRITTEN]
    tracemalloc.start()
    for _ in range(count):  # and past the checksum of the pickle, with opcodes that nobody wrote
        data, at = damaged(seeded.choice(pickled) + b"." * 9, seeded), seeded.randrange(100)
        data = data[:at] + b"".join(seeded.choices(opcodes, k=seeded.choice((0, 0, 1, 9)))) + data[at:]
        with zipfile.ZipFile(path, "w") as new:
            for name, record in (records | {"a/data.pkl": data}).items():
                new.writestr(name, record)
        read += answers(path, tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**27
    assert 0.05 * count < read < 1.5 * count


# -- writing ---------------------------------------------------------------------------------------

KINDS = {"F32": torch.float32, "BF16": torch.bfloat16, "F8_E4M3": FP8, "U16": torch.uint16}


def filled(path, state, shared):
    kinds = {v: k for k, v in KINDS.items()}
    pth.lay_out_pth(path, {n: (kinds[t.dtype], tuple(t.shape)) for n, t in state.items()}, shared)
    found = pth.read_pth(path)
    assert list(found) == [*state, *shared]
    with path.open("r+b") as out:
        for name, tensor in state.items():
            out.seek(found[name].offset)
            out.write(bits(tensor))


def state_to_write():
    return {
        "z": torch.randn(17, 5),
        "b": torch.randn(4, 7).bfloat16(),
        "f": torch.randn(33).to(FP8),
        "u": torch.arange(9).to(torch.uint16),
        "e": torch.zeros(0, 4),
        "s": torch.tensor(1.5),
    }


def test_what_is_laid_out_is_what_torch_loads(tmp_path):
    path, state = tmp_path / "consolidated.00.pth", state_to_write()
    filled(path, state, {"head": "z"})
    found = torch.load(path, weights_only=True)
    assert list(found) == [*state, "head"]
    for name, tensor in state.items():
        assert type(found[name]) is torch.Tensor
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert found[name].is_contiguous()
        assert not found[name].numel() or bits(found[name]) == bits(tensor)
    assert found["head"].data_ptr() == found["z"].data_ptr()
    ours = pth.read_pth(path)
    assert ours["head"].place == ours["z"].place
    assert ours["b"].crc32 is None, "torch computes no checksum of a hole"
    filled(tmp_path / "another name.pth", state, {"head": "z"})
    assert (tmp_path / "another name.pth").read_bytes() == path.read_bytes()


def test_records_past_4_gib(tmp_path):
    path = tmp_path / "a.pth"
    tracemalloc.start()
    shapes = {"a": ("U8", (2**32 + 5,)), "b": ("BF16", (2**31, 2)), "c": ("F32", (3,))}
    try:
        pth.lay_out_pth(path, {**shapes, "last": ("F32", (2, 2))})
        found = pth.read_pth(path)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()
    assert path.stat().st_blocks * 512 < 2**20 < 2**33 < path.stat().st_size
    with path.open("r+b") as out:
        out.seek(found["last"].offset)
        out.write(bits(torch.ones(2, 2)))
    assert torch.load(path, weights_only=True, mmap=True)["last"].tolist() == [[1, 1], [1, 1]]
    assert raw(pth.read_pth(path)["last"]) == bits(torch.ones(2, 2))
    with zipfile.ZipFile(path) as z:
        assert z.getinfo("archive/data/3").file_size == 16
