"""`%debug_shapes`: which cells are run again, with which numbers, and where the replay stops."""

from __future__ import annotations

import json
import re

import pytest

import llamapar as lp
from llamapar.diagnosis.replay import Slice, cells_behind, debug_cells

CELLS = {
    1: "import torch\nimport torch.nn.functional as F",
    2: "tp = 4\nsizes = dict(dim=1280, n_heads=20, n_kv_heads=10, head_dim=64)",
    3: "unused = 7\nprint(unused)",
    4: "kv_heads = sizes['n_kv_heads'] // tp",
    5: "x = torch.randn(2, 32, sizes['dim'])\nw = torch.randn(640, sizes['dim'])",
    6: "w = torch.randn(sizes['n_kv_heads'] * sizes['head_dim'], sizes['dim']).chunk(tp)[0]",
    7: "print(w.shape)",
    8: "F.linear(x, w).view(2, 32, kv_heads, sizes['head_dim'])",
}
KNOWN = dict.fromkeys(["torch", "F", "tp", "sizes", "kv_heads", "x", "w", "unused"])


def test_the_cells_are_those_that_make_what_is_read() -> None:
    behind = cells_behind(CELLS, 8, KNOWN)
    assert list(behind.cells) == [1, 2, 4, 5, 6, 8]
    assert behind.knobs == {"tp": 4, "dim": 1280, "n_heads": 20, "n_kv_heads": 10, "head_dim": 64}
    assert behind.layout == lp.Layout(tp=4)
    assert "tp" not in behind.sizes


def test_a_cell_that_changes_a_value_in_place_belongs_to_them() -> None:
    cells = {
        1: "import torch",
        2: "class Config: dim = 8",
        3: "config = Config()",
        4: "config.dim = 6",
        5: "def grow(c):\n    c.dim += 1",
        6: "grow(config)",
        7: "print(config)",
        8: "torch.zeros(config.dim).view(4, 2)",
    }
    assert list(cells_behind(cells, 8, {}).cells) == [1, 2, 3, 4, 5, 6, 8]


def test_the_attempt_reads_the_numbers_it_is_given() -> None:
    behind = Slice({1: "tp, width = 2, 8\nworld_size = 2", 2: "width // tp, world_size"}, {})
    behind = Slice(behind.cells, cells_behind(behind.cells, 2, {}).knobs)
    assert behind.knobs == {"tp": 2, "width": 8, "world_size": 2}
    assert behind.attempt({"width": 12}, lp.Layout(tp=3)) == (4, 3)


def test_knobs_stand_in_calls_and_dicts() -> None:
    cells = {1: "layout = Layout(tp=2, dp=4)\nconfig = {'layers': 3, 'name': 'a'}", 2: "layout, config"}
    assert cells_behind(cells, 2, {}).knobs == {"tp": 2, "dp": 4, "layers": 3}


@pytest.mark.parametrize(
    ("cells", "known", "words"),
    [
        ({1: "w = torch.load('x.pt')", 2: "w @ w"}, {}, "cell 1 calls load()"),
        ({2: "w @ w"}, {"w": 1}, "w: made by no cell of this session"),
        ({1: "w = (", 2: "w + 1"}, {"w": 1}, "w: made by no cell of this session"),
        ({1: "get_ipython().run_cell_magic('time', '', 'w = 1')\nw = 2", 2: "w + 1"}, {}, "run_cell_magic"),
    ],
)
def test_it_stops_where_something_cannot_be_made_again(
    cells: dict[int, str], known: dict[str, object], words: str
) -> None:
    with pytest.raises(lp.LlamaparError, match=re.escape(words)):
        cells_behind(cells, 2, known)


def test_cells_are_debugged_in_a_process_of_their_own_whose_group_is_the_trials_own() -> None:
    cells = {
        1: "import torch, torch.distributed as dist\n"
        "from torch.distributed.device_mesh import init_device_mesh",
        2: "world_size = tp = 2\nheads = 3",
        3: "tp = 2",
        4: "dist.init_process_group('nccl', rank=0, world_size=world_size)",
        5: "mesh = init_device_mesh('cpu', (tp,), mesh_dim_names=('tp',))",
        6: "torch.zeros(heads).view(mesh.size(), -1)",
    }
    found = debug_cells(cells_behind(cells, 6, {}), 5)
    assert found["verdict"] == "sharding"
    assert found["axes"] == ["tp"]
    assert "tp divides heads" in found["rules"]
    assert (found["kind"], found["file"]) == ("RuntimeError", "<cell 6>")
    assert json.dumps(found)


def test_a_cell_that_ends_the_process_is_said() -> None:
    with pytest.raises(lp.LlamaparError, match="the process of the replay ended"):
        debug_cells(cells_behind({1: "import os", 2: "os._exit(3)"}, 2, {}))


def test_a_cell_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llamapar.diagnosis.replay._EXTRA", 4.0)
    with pytest.raises(lp.LlamaparError, match="had not ended after 5 s"):
        debug_cells(cells_behind({1: "while True: pass"}, 1, {}), 1.0)


def test_a_cell_that_is_no_longer_there_is_named() -> None:
    with pytest.raises(lp.LlamaparError, match="cell 3 is no longer in the session's history"):
        cells_behind({1: "x = 1"}, 3, {})
