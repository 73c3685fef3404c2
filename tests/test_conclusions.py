"""Sentences that the facts of a failing frame hold by themselves."""

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import llamapar as lp
from llamapar.spmd.compat import fake_world


def told(failing):
    """What is said of the error of a call."""
    try:
        failing()
    except Exception as error:
        return lp.explain(error)
    raise AssertionError("it runs")


def mesh_of(ranks):
    return DeviceMesh("cpu", ranks, mesh_dim_names=("dp", "tp"))


def test_ranks_that_a_mesh_leaves_out():
    with fake_world(16, 15):
        mesh = mesh_of(torch.arange(8).view(1, 8))
        said = "1·8 = 8 of 16 ranks are in the mesh; rank 15 is in none"
        assert told(lambda: mesh.get_local_rank("tp")).summary == said
    with fake_world(16, 3):
        mesh = mesh_of(torch.arange(8).view(1, 8))
        found = told(lambda: mesh["pp"])
        assert found.rivals == ("1·8 = 8 of 16 ranks are in the mesh",)


def test_an_axis_of_a_mesh_leaves_no_rank_out():
    with fake_world(16, 3):
        axis = mesh_of(torch.arange(16).view(2, 8))["tp"]
        found = told(lambda: axis["pp"])
        assert found.live is not None
        assert (found.live.process, found.live.outside) == (
            "rank 3 of 16, mesh tp=8, a fake process group",
            "",
        )


@pytest.mark.parametrize("table", ["emb", "rows"])
def test_an_index_stands_against_its_length(table):
    emb, ids = torch.nn.Embedding(32, 8), torch.tensor([1, 58])
    rows = emb.weight

    def look(tp):
        return emb(ids) if table == "emb" else rows[ids]

    assert told(lambda: look(1)).summary.endswith("index 58 of 32: the last one is 31")
    parts = "index 58 of 32: if these are one of tp = 4 equal parts, rank 1 has it"
    assert told(lambda: look(4)).summary.endswith(parts)


def test_a_target_of_the_whole_vocabulary_stands_against_a_ranks_logits():
    logits, targets = torch.zeros(2, 32), torch.tensor([1, 58])

    def loss(tp):
        return torch.nn.functional.cross_entropy(logits, targets)

    parts = "index 58 of 32: if these are one of tp = 4 equal parts, rank 1 has it"
    assert told(lambda: loss(4)).summary.endswith(parts)


def test_a_plain_tensor_beside_a_dtensor_is_named_with_what_to_write():
    with fake_world(8, 1):
        mesh = mesh_of(torch.arange(8).view(2, 4))
        w = distribute_tensor(torch.ones(32, 12), mesh, [Replicate(), Shard(1)])
        x, part = torch.ones(5, 12), torch.ones(5, 3)
        found = told(lambda: x @ w.T)
        assert (found.verdict, str(found.level)) == ("sharding", "likely")
        assert found.summary == (
            "x is a plain tensor and w a DTensor, Replicate over dp=2, Shard(1) over tp=4: write "
            "distribute_tensor(x, w.device_mesh, [Replicate(), Replicate()]), or w.to_local()"
        )
        one = distribute_tensor(torch.ones(32, 12), mesh["tp"], [Shard(1)])
        assert told(lambda: part @ one.T).summary.endswith(
            "write DTensor.from_local(part, one.device_mesh, [Shard(1)])"
        )
