"""Published formulas to the digit, published sizes, and measured peaks within the stated errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import llamapar as lp
from llamapar.count import Breakdown
from llamapar.count.published_rules import megatron, ultrascale
from llamapar.count.reconciliation import by_step, peers_of
from llamapar.count.sizes import Sizes, StageHold

ROOT = Path(__file__).resolve().parent.parent
ORACLES = ROOT / "tests" / "oracles"
MIB, GIB = 2**20, 2**30


def mib(found: Breakdown, *names: str) -> str:
    return f"{found.bytes(*names) / MIB:,.2f}"


def megatrons(model: str, layout: lp.Layout, seq_len: int = 8192, micro_batches: int = 0) -> Breakdown:
    """Megatron-LM's report; by default of two micro-batches for each pipeline rank."""
    many = micro_batches or layout.usual_micro_batches
    return megatron(lp.model(model), layout, seq_len, 1, many, "selective")


# -- Megatron-LM's report --------------------------------------------------------------------------

MEGATRON = [  # reference: its code, run on CPU
    ("llama3.1-405b", {"tp": 8, "pp": 16, "dp": 128}, "19,772.68", "62,752.12", 82524.80),
    ("llama3.1-8b", {"dp": 8}, "57,436.90", "36,936.06", 94372.96),
    ("llama3.1-8b", {"tp": 2, "dp": 4}, "34,463.29", "18,468.03", 52931.32),
    ("llama3.1-70b", {"tp": 8, "pp": 4, "dp": 2}, "25,995.77", "20,512.03", 46507.80),
]


@pytest.mark.parametrize(("model", "layout", "states", "kept", "total"), MEGATRON)
def test_megatrons_report(model: str, layout: dict[str, Any], states: str, kept: str, total: float) -> None:
    found = megatrons(model, lp.Layout(**layout))
    assert mib(found, "weights and optimizer") == states
    assert mib(found, "activations", "logits and loss") == kept
    assert found.total_bytes / MIB == pytest.approx(total, abs=0.01)


def test_megatrons_interleaving_and_few_micro_batches() -> None:
    def kept(micro_batches: int, virtual_stages: int = 1) -> int:
        layout = lp.Layout(tp=8, pp=16, dp=128, virtual_stages=virtual_stages)
        return megatrons("llama3.1-405b", layout, micro_batches=micro_batches).bytes("activations")

    assert kept(32, virtual_stages=4) == round(kept(32) * (1 + 15 / 64))
    assert kept(4) == kept(32) // 4


# -- the Ultra-Scale Playbook's closed forms -------------------------------------------------------

CLOSED = json.loads((ORACLES / "published_memory.json").read_text())["ultrascale_closed_forms"]


@pytest.mark.parametrize("case", CLOSED, ids=str)
def test_ultrascales_closed_forms(case: dict[str, Any]) -> None:
    pp = case.get("pp", 1)
    layout = lp.Layout(
        tp=case.get("tp", 1), cp=case.get("cp", 1), pp=pp, sequence_parallel=case.get("sp", False)
    )
    model = f"llama3.1-{case['model'].lower()}"
    found = ultrascale(lp.model(model), layout, case.get("s", 1024), 1, "selective")
    assert found.bytes("activations") / GIB == case["act_gib"]
    if "params_gib" in case:
        assert found.bytes("parameters") / GIB == pytest.approx(case["params_gib"], abs=6e-4)
        assert found.bytes("optimizer states") / GIB == pytest.approx(case["opt_gib"], abs=6e-4)
    if "first_stage_params_gib" in case:  # embedding and 4 of 32 layers in bfloat16
        sizes = Sizes(lp.model(model), layout, seq_len=1024)
        first = sizes.params(StageHold((4,), True, False)) * 2 / GIB
        assert first == pytest.approx(case["first_stage_params_gib"], abs=6e-4)


# -- reconciliation --------------------------------------------------------------------------------


CONFIGURATIONS = (
    ("llama3.1-405b", {"tp": 8, "pp": 16, "dp": 128}, 8192, 9),
    ("llama3.1-8b", {"dp": 8}, 8192, 3),
    ("llama3.1-8b", {"tp": 2, "dp": 4}, 8192, 3),
    ("llama3.1-70b", {"tp": 8, "pp": 4, "dp": 2}, 8192, 3),
    ("llama3.1-405b", {"tp": 8, "cp": 16, "pp": 16, "dp": 8}, 131072, 2),
)


@pytest.mark.parametrize(("model", "degrees", "seq_len", "tools"), CONFIGURATIONS)
def test_every_waterfall_leads_from_ours_to_theirs(
    model: str, degrees: dict[str, int], seq_len: int, tools: int
) -> None:
    layout = lp.Layout(**degrees)  # type: ignore[arg-type]
    found = lp.reconcile(model, layout, seq_len=seq_len)
    peers = list(peers_of(model, layout, seq_len))
    assert len(peers) == tools
    assert {t.name for t in found.tools} > {peer["tool"] for peer in peers}
    for tool in found.tools:
        assert found.ours.total_bytes + sum(n for _, n in tool.steps) == tool.total_bytes
    totals = [tool.total_bytes for tool in found.tools]
    assert totals == sorted(totals)
    assert sum(by_step(found.ours).values()) == found.ours.total_bytes
    for told in peers:  # a rule of ours says what its tool said
        if told["tool"] == "Megatron-LM":
            total = megatrons(model, layout, seq_len).total_bytes / GIB
            assert total == pytest.approx(float(told["total"]), abs=0.006)
            parts = float(told["states"]) + float(told["activations"])
            assert parts == pytest.approx(float(told["total"]), abs=0.011)


def test_the_550_fold() -> None:
    """The tools' totals for 405B on 16,384 GPUs, the issue's starting point."""
    found = lp.reconcile("llama3.1-405b", lp.Layout(tp=8, pp=16, dp=128), seq_len=8192)
    assert round(found.tools[-1].total_bytes / found.tools[0].total_bytes) == 550
    assert [t.name for t in found.tools][0::10] == ["Vizuara planner", "EleutherAI cookbook"]
    bridge = next(t for t in found.tools if t.name == "Megatron-Bridge")
    assert dict(bridge.steps)["states"] / GIB == pytest.approx(0, abs=0.01)
