"""torch.distributed.checkpoint directories: read as torch saved them, without its reader, without trust."""

from __future__ import annotations

import os
import pickle
import random
import re
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as torch_dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from llamapar.checkpoint import dcp
from llamapar.checkpoint.stored import CheckpointError, Stored
from weights import raw as bits

FP8 = torch.float8_e4m3fn


def raw(stored: Stored) -> bytes:
    return stored.read().tobytes()


def torch_saves(state: dict[str, Any], folder: Path) -> None:
    with warnings.catch_warnings(action="ignore"):  # that there is but one process
        torch_dcp.save(state, checkpoint_id=folder)


def read(folder: Path) -> None:
    """Chunks are looked at when their bytes are asked for."""
    for stored in dcp.read_dcp(folder)[0].values():
        stored.read()


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError, match=f"{re.escape(str(folder))}|overlaps another") as caught:
        read(folder)
    return str(caught.value).replace(str(folder), "FOLDER")


Pieces = dict[str, dict[tuple[int, ...], tuple[int, ...]]]


def by_hand(
    folder: Path,
    tensors: dict[str, torch.Tensor],
    pieces: Pieces,
    files: int = 2,
    change: Callable[[Metadata], None] = lambda _: None,
) -> None:
    """A directory as torch's own writer makes it, for any cut: name → start and shape of each chunk."""
    folder.mkdir(exist_ok=True)
    described, places, number = {}, {}, 0
    for name, tensor in tensors.items():
        chunks = []
        for start, size in pieces[name].items():
            part = tensor[tuple(slice(s, s + n) for s, n in zip(start, size, strict=True))].clone()
            file = folder / f"__{number % files}_0.distcp"
            number += 1
            with file.open("ab") as out:
                offset = out.tell()
                torch.save(part.contiguous(), out)
                places[MetadataIndex(name, start)] = _StorageInfo(file.name, offset, out.tell() - offset)
            chunks.append(ChunkStorageMetadata(torch.Size(start), torch.Size(size)))
        properties = TensorProperties(dtype=tensor.dtype)
        described[name] = TensorStorageMetadata(properties, tensor.shape, chunks)
    made = Metadata(described, storage_data=places)
    change(made)
    (folder / ".metadata").write_bytes(pickle.dumps(made))


def grid(shape: tuple[int, ...], rows: int, columns: int) -> dict[tuple[int, ...], tuple[int, ...]]:
    """The chunks of a matrix cut into rows × columns, the last ones smaller."""
    tall, wide = -(-shape[0] // rows), -(-shape[1] // columns)
    return {
        (r, c): (min(tall, shape[0] - r), min(wide, shape[1] - c))
        for r in range(0, shape[0], tall)
        for c in range(0, shape[1], wide)
    }


# -- reading ---------------------------------------------------------------------------------------


def test_what_torch_saved_is_read(tmp_path: Path) -> None:
    model = {
        "w": torch.randn(5, 3),
        "b": torch.randn(4, 2).bfloat16(),
        "f": torch.randn(7).to(FP8),
        "s": torch.tensor(3.0),
        "p": torch.nn.Parameter(torch.ones(2, 2)),
        "same shape": torch.randn(5, 3),
    }
    torch_saves({"model": model, "step": 3, "optimizer": {"x": [torch.ones(2), "text"]}}, tmp_path)
    found, notes = dcp.read_dcp(tmp_path)
    assert sorted(found) == sorted([*(f"model.{n}" for n in model), "optimizer.x.0"])
    for name, tensor in model.items():
        assert found[f"model.{name}"].shape == tuple(tensor.shape)
        assert raw(found[f"model.{name}"]) == bits(tensor)
    assert notes == [".metadata: 2 entries that are no tensors: step, optimizer.x.1"]


def test_pieces_in_two_dims_and_the_order_of_their_files(tmp_path: Path) -> None:
    tensors = {"w": torch.randn(11, 7), "v": torch.randn(13, 2).bfloat16(), "n": torch.randn(9)}
    pieces: Pieces = {"w": grid((11, 7), 3, 2), "v": grid((13, 2), 4, 1), "n": {(6,): (3,), (0,): (6,)}}
    by_hand(tmp_path, tensors, pieces, files=3)
    found, notes = dcp.read_dcp(tmp_path)
    assert notes == []
    assert [len(found[name].boxes) for name in tensors] == [6, 4, 2]
    for name, tensor in tensors.items():
        assert raw(found[name]) == bits(tensor)
        loaded = {name: torch.zeros_like(tensor)}
        with warnings.catch_warnings(action="ignore"):
            torch_dcp.load(loaded, checkpoint_id=tmp_path)  # the same files in torch's own reader
        assert torch.equal(loaded[name], tensor)
    for box in found["w"].boxes:
        assert box.crc32 is None, "no chunk is opened before it is read"
        assert box.located.crc32 is not None


def _rank_saves(rank: int, ranks: int, folder: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    whole = torch.arange(10 * 6, dtype=torch.float32).reshape(10, 6)
    cut = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    twice = distribute_tensor(whole, mesh, [Shard(0), Shard(0)])
    torch_dcp.save({"cut": cut, "twice": twice, "whole": whole}, checkpoint_id=f"{folder}/saved")
    dist.destroy_process_group()


@pytest.mark.soak
def test_shards_of_real_ranks(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_rank_saves, (4, str(tmp_path)), nprocs=4)
    found, _ = dcp.read_dcp(tmp_path / "saved")
    whole = torch.arange(10 * 6, dtype=torch.float32).reshape(10, 6)
    assert {name: len(s.boxes) for name, s in found.items()} == {"cut": 4, "twice": 4, "whole": 1}
    assert all(raw(stored) == bits(whole) for stored in found.values())


# -- refusals --------------------------------------------------------------------------------------

ONE = {"w": torch.arange(12.0).reshape(4, 3)}
HALVES: Pieces = {"w": {(0, 0): (2, 3), (2, 0): (2, 3)}}


def info(metadata: Metadata, at: int = 0) -> _StorageInfo:
    return list(metadata.storage_data.values())[at]


def test_a_folder_or_file_that_is_not_there(tmp_path: Path) -> None:
    assert refusal(tmp_path) == "FOLDER/.metadata is no file, or is not there"
    by_hand(tmp_path, ONE, HALVES)
    (tmp_path / "__1_0.distcp").unlink()
    assert refusal(tmp_path) == "FOLDER/__1_0.distcp is no file, or is not there"


@pytest.mark.parametrize("path", ["../out", "{outside}", "a/../../out", "link", "ok\0", "loop", "x" * 300])
def test_no_path_leaves_the_folder(tmp_path: Path, path: str) -> None:
    folder, outside = tmp_path / "in", tmp_path / "out"
    path = path.format(outside=outside)
    by_hand(folder, ONE, HALVES, 1, lambda m: setattr(info(m), "relative_path", path))
    (folder / "__0_0.distcp").rename(outside)
    (folder / "link").symlink_to(outside)
    (folder / "loop").symlink_to(folder / "loop")
    assert re.fullmatch(r"FOLDER/.metadata names .*, which is outside the folder", refusal(folder))


def test_chunks_stay_in_their_file(tmp_path: Path) -> None:
    by_hand(tmp_path, ONE, HALVES)
    file = tmp_path / "__1_0.distcp"
    size = file.stat().st_size
    os.truncate(file, size - 10)
    assert refusal(tmp_path) == (
        f"FOLDER/__1_0.distcp has {size - 10:,} bytes\n  why  its last chunk ends at {size:,}"
    )


def test_chunks_cover_their_tensor_once(tmp_path: Path) -> None:
    def refused(name: str, pieces: dict[tuple[int, ...], tuple[int, ...]]) -> str:
        by_hand(tmp_path / name, ONE, {"w": pieces})
        return refusal(tmp_path / name)

    for name, first, second, told in (
        ("hole", 1, 2, 9),
        ("twice", 3, 2, 15),
    ):
        assert refused(name, {(0, 0): (first, 3), (2, 0): (second, 3)}) == (
            f"FOLDER/.metadata: 'w': its chunks hold {told} elements\n"
            "  why  shape [4, 3] has 12: some are missing, or overlap"
        )
    assert refused("both", {(0, 0): (2, 3), (1, 0): (2, 3)}) == (
        "w: its chunk at [1, 0] overlaps another\n  why  as many elements are missing elsewhere"
    )


CHUNK = "FOLDER/__0_0.distcp: the chunk of 'w' at [0, 0]"
ODD = "FOLDER/.metadata is no metadata of a checkpoint\n  why  TypeError on the way"
DISAGREE = {
    "w.properties.dtype = torch.int32": (
        f"{CHUNK} is F32 of shape [2, 3]\n  why  .metadata tells of I32 of shape [2, 3]"
    ),
    "w.size = torch.Size((6, 2)); w.chunks = [ChunkStorageMetadata(torch.Size((0, 0)), w.size)]": (
        f"{CHUNK} is F32 of shape [2, 3]\n  why  .metadata tells of F32 of shape [6, 2]"
    ),
    "w.chunks[0].sizes = torch.Size((5, 3))": (
        "FOLDER/.metadata: 'w' of shape [4, 3] has a chunk outside\n  why  at [0, 0] of shape [5, 3]"
    ),
    "del made.storage_data[MetadataIndex('w', (2, 0))]": (
        "FOLDER/.metadata: 'w' has no data for its chunk at [2, 0]"
    ),
    "w.chunks[0].sizes = [2, 3]": ODD,
    "w.chunks[0].offsets = ((), ())": ODD,
    "info(made).transform_descriptors = ['zstd']": (
        "FOLDER/.metadata: the chunks of 'w' are transformed\n  why  only plain ones are read"
    ),
    "info(made).offset += 1": (
        f"{CHUNK} is no zip file as torch.save writes it, or it is cut off, or something follows its end\n"
        "  why  torch before 1.6 wrote another format: save it again with torch.save"
    ),
}
"""What is changed in the metadata of two chunks → how it is refused."""


@pytest.mark.parametrize("change", DISAGREE)
def test_metadata_that_disagrees_with_the_chunks(tmp_path: Path, change: str) -> None:
    def spoil(made: Metadata) -> None:
        exec(change, globals(), {"made": made, "w": made.state_dict_metadata["w"]})

    by_hand(tmp_path, ONE, HALVES, 1, spoil)
    assert refusal(tmp_path) == DISAGREE[change]


def test_a_damaged_chunk_is_named(tmp_path: Path) -> None:
    rows: Pieces = {"w": {(r, 0): (1, 3) for r in range(4)}}
    by_hand(tmp_path, ONE, rows, files=1)
    file = tmp_path / "__0_0.distcp"
    whole, places = file.read_bytes(), [box.located for box in dcp.read_dcp(tmp_path)[0]["w"].boxes]
    assert len({box.crc32 for box in places}) == 4
    third = whole.index(b"_rebuild_tensor_v2", places[1].offset)
    file.write_bytes(whole[:third] + b"X" + whole[third + 1 :])
    assert refusal(tmp_path) == (
        "FOLDER/__0_0.distcp: the chunk of 'w' at [2, 0]: its data.pkl is damaged\n"
        "  why  its bytes do not have the checksum stored"
    )
    entry = whole.index(b"PK\1\2", places[2].offset)
    file.write_bytes(whole[:entry] + b"X" + whole[entry + 1 :])
    assert refusal(tmp_path).startswith(
        "FOLDER/__0_0.distcp: the chunk of 'w' at [2, 0] is no zip file as torch.save writes it"
    )
    file.write_bytes(whole[: places[3].offset] + b"X" + whole[places[3].offset + 1 :])
    with pytest.raises(
        CheckpointError, match=r"^__0_0\.distcp: the bytes of w are not those that were written"
    ):
        dcp.read_dcp(tmp_path)[0]["w"].read()


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        (pickle.dumps([1, 2]), "is no metadata of a checkpoint"),
        (pickle.dumps(Metadata({}, None, None)), "is no metadata of a checkpoint"),
        (pickle.dumps(Metadata({"w": 3}, None, {})), "is no metadata of a checkpoint"),
        (pickle.dumps(torch.device), "its pickle names 'torch.device', which no plain checkpoint holds"),
        (b"\x80\x04K\1Q.", "its pickle refers to data outside itself"),
        (b"\x80\x04\x8d" + b"\xff" * 8, "its pickle holds opcode b'\\x8d', which torch does not write"),
        (b"\x80\x04r\xff\xff\xff\xff.", "its pickle is damaged"),
        (b"", "its pickle is damaged"),
    ],
)
def test_hostile_metadata(tmp_path: Path, metadata: bytes, said: str) -> None:
    (tmp_path / ".metadata").write_bytes(metadata)
    tracemalloc.start()
    try:
        assert refusal(tmp_path).splitlines()[0].replace("FOLDER/.metadata: ", "FOLDER/.metadata ") == (
            f"FOLDER/.metadata {said}"
        )
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_damage_anywhere(tmp_path: Path, soak: bool) -> None:
    seeded = random.Random(6)
    by_hand(tmp_path, {**ONE, "v": torch.ones(2)}, {**HALVES, "v": {(0,): (2,)}}, files=1)
    whole = {name: (tmp_path / name).read_bytes() for name in (".metadata", "__0_0.distcp")}
    read, count = 0, 8000 if soak else 300
    for _ in range(count):
        name = seeded.choice(list(whole))
        made = bytearray(whole[name])
        for _ in range(seeded.choice((1, 1, 3))):
            at = seeded.randrange(len(made))
            if seeded.randrange(4):
                made[at] ^= 1 << seeded.randrange(8)
            else:
                del made[at : at + seeded.choice((1, 4, len(made)))]
                made = made or bytearray(b"x")
        (tmp_path / name).write_bytes(made)
        try:
            found, _ = dcp.read_dcp(tmp_path)
            boxes = [(stored, box.located) for stored in found.values() for box in stored.boxes]
        except CheckpointError:
            boxes = []
        read += bool(boxes)
        size = (tmp_path / "__0_0.distcp").stat().st_size
        for stored, box in boxes:
            nbytes = stored.itemsize * torch.Size(box.shape).numel()
            assert 0 <= box.offset <= box.offset + nbytes <= size
            assert box.file.parent == tmp_path
        (tmp_path / name).write_bytes(whole[name])
        assert sorted(p.name for p in tmp_path.iterdir()) == sorted(whole)
    assert 0.1 * count < read < 0.9 * count
