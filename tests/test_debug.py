"""`lp.debug`: causes found by experiment, on attempts whose cause was planted; and what it must not say."""

from __future__ import annotations

import json
import runpy
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import llamapar as lp
from llamapar.diagnosis.trials import sizes_of, with_sizes

SIZES = {"dim": 80, "n_heads": 12, "n_kv_heads": 3, "head_dim": 8, "seq": 10}
CELLS = Path(__file__).parent.parent / "benchmarks" / "failing_cells"


def attention(model: dict[str, int], layout: lp.Layout) -> torch.Tensor:
    """Megatron's cut of the keys, which needs tp to divide n_kv_heads."""
    wk = torch.randn(model["n_kv_heads"] * model["head_dim"], model["dim"])
    k = F.linear(torch.randn(model["seq"], model["dim"]), wk.chunk(layout.tp)[0])
    return k.view(model["seq"], model["n_kv_heads"] // layout.tp, model["head_dim"])


def test_a_division_is_found_and_said_as_a_rule() -> None:
    found = lp.debug(attention, SIZES, tp=2, deadline=30, prove=False)
    assert (found.verdict, found.axes) == ("sharding", ("tp",))
    outcomes = found.degrees["tp"]
    assert [n for n, outcome in outcomes.items() if outcome == "passes"] == [1, 3]
    assert list(outcomes) == [1, 2, 3, 4, 5, 6, 8, 16, 32, 64]
    assert "tp divides n_kv_heads" in found.rules
    assert {name for name, *_ in found.flips} >= {"n_kv_heads"}
    assert str(found).splitlines()[0] == ("A sharding problem: it passes in one process, and with tp=1 alone")
    assert f"{len(found.trials)} trials" in found.how
    assert "| fails" not in found.table()
    assert "tp 2 → 1" in found.table()
    for trial in found.trials:  # each agrees with the rule that is said
        if trial.outcome != "fails elsewhere":
            divides = trial.sizes["n_kv_heads"] % trial.layout.tp == 0
            assert divides == (trial.outcome == "passes"), trial


def test_the_nearest_layouts_have_as_many_ranks_and_pass() -> None:
    found = lp.debug(attention, SIZES, tp=2, dp=3, deadline=30, prove=False)
    assert found.layouts
    for layout in found.layouts:
        assert layout.world == 6
        assert SIZES["n_kv_heads"] % layout.tp == 0


def test_layouts_pass_check_where_the_model_is_one() -> None:
    def layers(model: lp.ModelConfig, layout: lp.Layout) -> None:
        torch.zeros(model.n_layers).view(layout.pp, -1)

    config = lp.model("llama3-8b").replace(n_layers=30)
    found = lp.debug(layers, config, pp=4, deadline=30, prove=False)
    assert "pp divides n_layers" in found.rules
    assert found.layouts
    assert all(lp.check(config, layout).ok for layout in found.layouts)


def plain(model: dict[str, int], layout: lp.Layout) -> torch.Tensor:
    hidden = torch.randn(model["seq"], 4 * model["dim"] // layout.tp)
    return hidden @ torch.randn(model["dim"], model["dim"])


def by_hand(model: dict[str, int], layout: lp.Layout) -> torch.Tensor:
    """It cuts by four whatever the layout says, so failing with every degree 1 clears nothing."""
    tp_size = 4
    part = torch.randn(model["n_heads"] // tp_size, model["head_dim"])
    return part + torch.randn(model["n_heads"], model["head_dim"])


def last_stage(model: dict[str, int], layout: lp.Layout) -> None:
    if dist.get_rank() == layout.pp - 1 > 0:
        torch.zeros(3) + torch.zeros(4)


def lookup(model: dict[str, int], layout: lp.Layout) -> torch.Tensor:
    rows = torch.randn(model["dim"] // layout.tp, 4)
    return F.embedding(torch.tensor([model["dim"] - 1]), rows)


def sums(model: dict[str, int], layout: lp.Layout) -> None:
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.is_meta or total.item() == layout.world, "the sum is wrong"


@pytest.mark.parametrize(
    ("attempt", "known", "verdict", "words"),
    [
        (plain, {"tp": 2}, "not_sharding", "it fails in one process too, at the same line"),
        (by_hand, {"tp": 4}, "unknown", "the code still has tp_size = 4"),
        (last_stage, {"pp": 4}, "sharding", "of ranks 0, 3 these pass: 0"),
        (lookup, {"tp": 2}, "sharding", "real tensors"),
        (lambda model, layout: None, {"tp": 2}, "unknown", "the attempt passes as given"),
        (sums, {"tp": 2}, "unknown", "real ranks"),  # a fake group cannot know the value
    ],
)
def test_what_is_said_of_an_attempt(attempt: Any, known: dict[str, int], verdict: str, words: str) -> None:
    found = lp.debug(attempt, SIZES, deadline=30, prove=False, **known)
    assert found.verdict == verdict
    assert words in f"{found}{found.reason}{found.how}"
    assert bool(found.layouts) == (verdict == "sharding")
    if attempt is lookup:
        assert [n for n, outcome in found.degrees["tp"].items() if outcome == "passes"] == [1]


def test_a_dtensor_module_at_a_degree_that_heads_do_not_have() -> None:
    def module(model: dict[str, int], layout: lp.Layout) -> torch.Tensor:
        mesh = init_device_mesh("cpu", (layout.tp,), mesh_dim_names=("tp",))
        wk = nn.Linear(model["dim"], model["n_kv_heads"] * model["head_dim"], bias=False)
        k = parallelize_module(wk, mesh, ColwiseParallel())(torch.randn(2, model["dim"]))
        return k.view(2, -1, model["head_dim"])

    found = lp.debug(module, SIZES, tp=4, deadline=30, prove=False)
    assert found.verdict == "sharding"
    outcomes = found.degrees["tp"]
    assert (outcomes[1], outcomes[3]) == ("passes", "passes")
    assert outcomes[4] != "passes"


def test_a_run_of_ours_is_an_attempt() -> None:
    def run(model: lp.ModelConfig, layout: lp.Layout) -> object:
        return lp.run("attention", model, layout, seq_len=16, device="cpu")

    found = lp.debug(run, "tiny", tp=3, deadline=5, prove=False)
    assert found.verdict == "sharding"
    assert found.axes == ("tp",)
    assert "the attempt's own ranks" in found.how


def test_the_fix_of_an_expression_is_proved_on_real_ranks() -> None:
    """The whole number of heads beside a rank's rows: `heads // 2` is tried, runs, and gives the same."""

    def cut(model: dict[str, int], layout: lp.Layout) -> torch.Tensor:
        heads, size = model["n_heads"], model["head_dim"]
        w = torch.randn(heads * size, model["dim"])
        part = w[: heads * size // layout.tp]
        return part.view(heads, size, model["dim"]).sum() * 0

    found = lp.debug(cut, SIZES, tp=2, deadline=30)
    assert found.proof.startswith("write heads // 2 = 6: runs on 2 real ranks, equal to one process")
    # The code is as it was before.
    with pytest.raises(RuntimeError, match="invalid for input"):
        cut(SIZES, lp.Layout(tp=2))


def test_a_layout_that_passes_on_meta_and_fails_on_real_ranks_is_not_offered() -> None:
    def attempt(model: dict[str, int], layout: lp.Layout) -> None:
        torch.zeros(12).view(layout.tp, -1)
        if layout.dp > 1 and not torch.zeros(1).is_meta:
            raise ValueError("no data for dp")

    found = lp.debug(attempt, SIZES, tp=5, deadline=30)
    assert found.proof.startswith("pp=5: runs on 5 real ranks")
    assert [layout.dp for layout in found.layouts] == [1]


def test_what_an_attempt_prints_is_dropped_and_the_seed_is_given_back(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def loud(model: dict[str, int], layout: lp.Layout) -> None:
        print("hello")
        attention(model, layout)

    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    lp.debug(loud, SIZES, tp=2, prove=False)
    assert torch.equal(torch.rand(1), expected)
    assert capfd.readouterr() == ("", "")
    assert not dist.is_initialized()


def test_a_group_that_is_there_already_is_refused() -> None:
    from llamapar.spmd.compat import fake_world

    with fake_world(2), pytest.raises(lp.LlamaparError, match="has a process group in this process already"):
        lp.debug(attention, SIZES, tp=2)


@pytest.mark.parametrize(
    ("name", "verdict", "axes"),
    [
        ("01", "sharding", ("tp",)),
        ("02", "not_sharding", ()),
        ("14", "sharding", ("cp",)),
        pytest.param("28", "unknown", (), marks=pytest.mark.soak),  # the mesh is to blame, which is no degree
        ("38", "sharding", ("tp", "cp")),
        ("60", "not_sharding", ()),
    ],
)
def test_some_failing_programs(name: str, verdict: str, axes: tuple[str, ...]) -> None:
    """Programs that were written before the debugger, of each kind; the whole table is
    docs/accuracy.md."""
    (path,) = CELLS.glob(f"{name}*.py")
    cell = SimpleNamespace(**runpy.run_path(str(path)))
    model, layout = SimpleNamespace(**cell.MODEL), lp.Layout(**cell.LAYOUT)
    found = lp.debug(cell.attempt, model, layout, deadline=30, prove=False)
    assert (found.verdict, found.axes) == (verdict, axes)


def test_the_answer_as_html_and_json() -> None:
    def named(model: dict[str, int], layout: lp.Layout) -> None:
        raise ValueError("<b>no</b>")

    found = lp.debug(named, SIZES, tp=2, prove=False)
    assert "&lt;b&gt;no" in found._repr_html_()
    assert "<b>no" not in found._repr_html_()
    plain = json.loads(json.dumps(found.as_dict()))
    assert plain["verdict"] == "not_sharding"
    assert plain["trials"][0] == ["", "fails"]


@pytest.mark.parametrize("model", [SIZES, SimpleNamespace(**SIZES), lp.model("llama3-8b")])
def test_sizes_are_read_and_changed_in_a_copy(model: object) -> None:
    before = sizes_of(model)
    assert before["n_kv_heads"] > 0
    other = with_sizes(model, {"n_kv_heads": 1})
    assert type(other) is type(model)
    assert sizes_of(other)["n_kv_heads"] == 1
    assert sizes_of(model) == before


def test_degrees_without_time_are_not_said_to_be_tried() -> None:
    def slow(model: dict[str, int], layout: lp.Layout) -> None:
        time.sleep(0.1)
        torch.zeros(model["n_kv_heads"]).view(layout.tp, -1)

    found = lp.debug(slow, SIZES, tp=2, deadline=0.5, prove=False)
    assert "the time is used up" in found.how
    assert 1 < len(found.degrees["tp"]) < 10
    assert f"tried: {', '.join(map(str, found.degrees['tp']))}" in str(found)
